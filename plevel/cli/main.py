"""The entry point: commands, and how errors end them.

Exit codes: 0 done, 1 failure, 2 usage, 130 interrupted (Ctrl-C, SIGTERM or SIGHUP).
"""

from __future__ import annotations

import functools
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeGuard

import typer

from plevel.cli import (
    build,
    builder,
    bundle,
    db,
    deploy,
    doctor,
    extract,
    fleet,
    listing,
    lock,
    measure,
    model,
    ops,
    plot,
    profile,
    select,
    serve,
    show,
    token,
    transfer,
    tune,
    worker,
)
from plevel.cli.error import CommandError
from plevel.cli.exit_code import interrupted
from plevel.cli.file import explain
from plevel.cli.help import WIDEST, Panels, lay_out
from plevel.cli.plain_text import PlainStream

SAME_S = 1.0  # time in which another signal is the same request

_PANELS: dict[str, dict[str, Any]] = {
    "Tune and select": {
        "tune": tune.tune, "select": select.select, "lock": lock.lock, "check": lock.check,
        "extract": extract.extract, "ops": ops.ops,
    },
    "Compile": {
        "build": build.build, "compile": deploy.compile_model, "profile": profile.profile, "show": show.show,
        "measure": measure.measure,
    },
    "Records": {
        "runs": listing.runs, "coverage": listing.coverage, "records": listing.records,
        "plot": plot.plot, "model": model.app, "import": transfer.import_files,
        "export": transfer.export, "db": db.app,
    },
    "Farm": {
        "serve": serve.serve, "worker": worker.worker, "builder": builder.builder,
        "workers": listing.workers, "status": listing.status, "cancel": listing.cancel, "why": fleet.why,
        "doctor": doctor.doctor, "fleet": fleet.app, "token": token.app, "bundle": bundle.app,
    },
}
_NAMES = tuple(name for commands in _PANELS.values() for name in commands)


def _print_version(wanted: bool) -> None:
    if wanted:
        from strategy.installed_code import code_identity

        print(f"plevel {code_identity()}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version, with a digest of the installed code.", callback=_print_version,
            is_eager=True,
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error. May stand anywhere.")
    ] = False,
) -> None:
    pass


def _assemble(*names: str) -> typer.Typer:
    """The command line with some of its commands."""
    made = typer.Typer(
        name="plevel",
        cls=Panels,
        help="Tune operators: measure their implementations, record the times, and select the fastest.",
        epilog="Exit codes: 0 done, 1 failure, 2 wrong usage, 130 interrupted.",
        no_args_is_help=True,
        rich_markup_mode=None,  # square brackets of types are no markup
        # Typer colours what it says of completion, by codes that `PlainStream` shows as text.
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST, "color": False},
    )
    made.callback()(_root)
    for panel, commands in _PANELS.items():
        for name, command in commands.items():
            if name not in names:
                continue
            if isinstance(command, typer.Typer):
                made.add_typer(command, name=name, rich_help_panel=panel, cls=Panels)
            else:
                made.command(name, rich_help_panel=panel)(command)
    return made


app = _assemble(*_NAMES)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its code; an error is one line on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    # A global option would have to stand before the command.
    arguments = [a for a in arguments if a != "--debug"]
    _open_streams()
    try:
        with _interruptible():
            code = _make_command(arguments).main(arguments, prog_name="plevel", standalone_mode=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of the output has closed it
        code = 1
    except Exception as error:
        code, message = (2, error.format_message()) if _is_help(error) else _explain(error)
        with suppress(OSError):  # nowhere is left to say it
            if debug:
                import traceback

                traceback.print_exc()
            print(message if _is_help(error) else f"plevel: {message}", file=sys.stderr)
            if "--json" in arguments and not getattr(error, "answered", False):
                _print_failure(message, code)
    _flush()
    if code == 130:  # typer's own of an interrupt, too
        code = interrupted(arguments)
    sys.exit(code if isinstance(code, int) else 0)


def _print_failure(message: str, code: int) -> None:
    """Print the document of `--json` in place of a result, on one line as `fleet scale` prints its own."""
    from strategy.record import encode

    text = message.encode(errors="replace").decode()  # of an argument that is no UTF-8, as on stderr
    print(encode({"error": text, "exit_code": code}).decode())


def _flush() -> None:
    """Write what the standard streams hold; discard what cannot be written.

    The interpreter would fail at it again at its end, with another exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def _interruptible() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP as Ctrl-C, so that child processes are stopped and partial files removed.

    One that comes soon after another would interrupt just that: a supervisor may signal a process and its group, and a
    person press Ctrl-C twice.
    """
    until = 0.0

    def interrupt(number: int, frame: Any) -> None:
        nonlocal until
        if time.monotonic() >= until:
            until = time.monotonic() + SAME_S
            signal.default_int_handler(number, frame)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    for kind in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(kind) is not signal.SIG_IGN:  # as they are in the background, and under nohup
            before[kind] = signal.signal(kind, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            if until:  # which would end the interpreter in its own end
                signal.signal(number, signal.SIG_IGN)
            elif signal.getsignal(number) is interrupt:  # a daemon has its own
                signal.signal(number, handler)


def _make_command(arguments: list[str]) -> Any:
    """The command line, of which a command that is named first is built alone: all take as long as loading them."""
    first = arguments[0] if arguments else ""
    return _build(*((first,) if first in (*_NAMES, "--version") else _NAMES))


@functools.cache
def _build(*names: str) -> Any:
    made = typer.main.get_command(_assemble(*names))
    lay_out(made)
    return made


def _open_streams() -> None:
    """Replace closed standard streams, and characters that an encoding lacks or that command a terminal."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # else the next file, such as a database, gets the number to which libraries and children write
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
            if stream.isatty():
                setattr(sys, name, PlainStream(stream))


def _is_help(error: Exception) -> TypeGuard[typer.TyperException]:
    """Return whether a group was called without a command: click raises its help as an error."""
    return isinstance(error, typer.TyperException) and type(error).__name__ == "NoArgsIsHelpError"


def _explain(error: Exception) -> tuple[int, str]:
    """The exit code and the message of an error."""
    if isinstance(error, CommandError):
        return error.exit_code, _line(error)
    if isinstance(error, typer.TyperException):
        said = error.format_message().replace("\n", " ").rstrip(".")
        context = getattr(error, "ctx", None)
        if context is not None and context.parent is None and said.startswith("No such option"):
            said += ": options of a command follow its name"
        if context is None:
            return error.exit_code, said
        return error.exit_code, f"{said}{'' if said.endswith('?') else ':'} see '{context.command_path} --help'"
    from plevel.client import ServiceError, UnreachableError
    from plevel.extra import EmbeddedError
    from service import errors
    from strategy.fault import ToolError
    from strategy.op import OpError
    from strategy.select import SelectionError
    from workers.bundle import BundleError
    from workers.cpu import DeviceError
    from workers.sandbox import SandboxError

    complete = (
        BundleError, DeviceError, EmbeddedError, OpError, SandboxError, SelectionError, ToolError, UnreachableError,
        errors.ServiceError,
    )
    if isinstance(error, complete):
        return 1, _line(error)
    if isinstance(error, ServiceError):
        line = _line(error)
        more = [t for e in error.errors if (t := str(e.get("detail", ""))) and t not in line]
        wrong_request = error.status in (400, 422)
        return (2 if wrong_request else 1), "; ".join([line, *more])
    if isinstance(error, OSError):
        return explain(error)
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # of pathlib, and of platformdirs
        return 1, f"user {os.getuid()} has no home folder: set HOME to one that it may write to"
    if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # of pathlib, before Python 3.13
        return 2, f"{_line(error)}: name another file"
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:  # they stand for bytes of an argument
        return 2, f"an argument is not text in UTF-8: {error.object!r:.80}: write it anew"
    from strategy.fault import find_fault

    fault = find_fault(error)
    if fault is not None:
        return 1, f"{fault}: {type(error).__name__}: {_line(error)} (in an operator's code: correct it there)"
    return 1, f"{type(error).__name__}: {_line(error)} (a defect of plevel: report it, with the output of --debug)"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
