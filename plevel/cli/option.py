"""Options shared by commands, and their parsing: workloads, targets, and the place of records."""
# Over 300 lines: one declaration of each option for all commands, with its parsing.

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plevel.cli.error import CommandError, UsageError

if TYPE_CHECKING:
    from strategy.target import Target
    from strategy.workload import Input, Workload


_MOST = 2**63 - 1
LONGEST_S = 1e9  # of 30 years: waits of the operating system have an end


def check_number(value: int | None) -> int | None:
    """The callback of options for integers on record."""
    if value is not None and abs(value) > _MOST:
        raise typer.BadParameter(f"not within ±{_MOST}, as all numbers on record are")
    return value


def check_given(value: str | None) -> str | None:
    """The callback of options for which an empty value, as of a variable that is not set, would be the default."""
    if value == "":
        raise typer.BadParameter("is empty: name one, or leave the option out")
    return value


def number(metavar: str, text: str) -> Any:
    """An argument that is the number of a row."""
    return typer.Argument(metavar=metavar, callback=check_number, help=text, show_default=False)


def complete_op(incomplete: str) -> list[str]:
    """Installed operators with this prefix."""
    from strategy.op import all_ops

    return [name for name in all_ops() if name.startswith(incomplete)]


def complete_target(incomplete: str) -> list[str]:
    """Kinds of targets, and `cpu` for this host."""
    from strategy.target import BUILT

    return [name for name in ("cpu", *BUILT) if name.startswith(incomplete)]


def complete_implementation(ctx: typer.Context, incomplete: str) -> list[str]:
    """Implementations of the named operator, or of all, for CPUs and GPUs."""
    from strategy.example import examples
    from strategy.op import all_ops
    from strategy.op_strategy import candidates
    from strategy.target import Target

    found = all_ops()
    # If a line ends with an option's name, click leaves all words in args.
    words: list[str] = [(ctx.params.get("op") or "").partition("(")[0], *ctx.args]
    named = [found[word] for word in words if word in found]
    names = {
        c.implementation: None
        for one in named[:1] or found.values()
        for workload in examples(one)
        for spec in ("cpu", "cuda -arch=sm_90")
        for c in candidates(workload, Target.parse(spec))
    }
    return [name for name in names if name.startswith(incomplete)]


def choice(name: str, choices: Sequence[str], text: str) -> Any:
    """An option whose value, or each of whose values, is one of the choices."""

    def check(value: Any) -> Any:
        for one in [value] if isinstance(value, str) else value or ():
            check_choice(name, one, choices)
        return value

    return typer.Option(
        name, metavar="|".join(choices), help=text, callback=check,
        autocompletion=lambda incomplete: [c for c in choices if c.startswith(incomplete)],
    )


def check_choice(option: str, text: str, choices: Sequence[str]) -> None:
    """Raise `UsageError` if the value is not one of the choices."""
    if text not in choices:
        raise UsageError(f"{option} {text!r:.40}: unknown: expected one of {', '.join(choices)}")


_OP = typer.Argument(
    metavar="OP", help="The operator: dense, …", show_default=False, autocompletion=complete_op
)
Op = Annotated[str, _OP]
_WORKLOAD = typer.Argument(
    metavar="OP|WORKLOAD", show_default=False, autocompletion=complete_op,
    help="The operator, with its --input: dense; or a workload as tables print it: 'relu(data=float32[64])'.",
)
OpOrWorkload = Annotated[str, _WORKLOAD]
SomeWorkload = Annotated[str | None, _WORKLOAD]  # a file may replace it
OfOp = Annotated[
    str | None,
    typer.Option("--op", metavar="NAME", help="Only this operator.", autocompletion=complete_op),
]
WorkloadHas = Annotated[
    str | None,
    typer.Option(
        "--workload-has", metavar="WORDS", help="Only workloads whose text has each of these words: 'float16 768'."
    ),
]
OfImplementation = Annotated[
    str | None,
    typer.Option(
        "--implementation", metavar="NAME", help="Only this implementation.", autocompletion=complete_implementation
    ),
]
OfRun = Annotated[
    int | None, typer.Option("--run", metavar="ID", callback=check_number, help="Only records of this run.")
]
OfTask = Annotated[
    int | None, typer.Option("--task", metavar="ID", callback=check_number, help="Only records of this task.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", "-i", metavar="NAME=TYPE[:const]", show_default=False,
        help="An input and its type, as data=float32[128,768]; append :const if it never changes.",
    ),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attr", "-a", metavar="NAME=VALUE", help="An attribute; the value in JSON."),
]
TargetSpec = Annotated[
    str,
    typer.Option("--target", "-t", metavar="TARGET", help="cpu (this host), cuda:0 (its GPU), 'llvm -mcpu=…', or JSON.",
                 autocompletion=complete_target),
]
ModelTarget = Annotated[
    str | None,
    typer.Option(
        "--target", "-t", metavar="TARGET", show_default=False, autocompletion=complete_target,
        help="cpu (this host), cuda:0 (its GPU), 'llvm -mcpu=…', or JSON; default: the model file's, or cpu.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=1, help="Threads of a kernel; default: all of the target."),
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="ID", help="A device's identity; its own records are preferred."),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", callback=check_given, help="A service, as http://host:8765 [PLEVEL_URL].",
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database", metavar="URL|FILE", callback=check_given,
        help="A database, used directly [PLEVEL_DATABASE; default: a file in your data directory].",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", metavar="NAME", callback=check_given, show_default=False,
        help="The namespace to use [PLEVEL_NAMESPACE; default: default].",
    ),
]
CacheFlush = Annotated[
    bool,
    typer.Option("--cache-flush", help="Time with cold caches; only the first input is cached."),
]
Log = Annotated[str | None, choice("--log", ("text", "json"), "The format of log lines; default: text.")]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", min=0, callback=check_number, help="The seed of all random choices."),
]
# Of TLS between a Dask scheduler and its builders and workers; the key of a service's, too.
Authority = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="The authority that signed the scheduler's certificate, in PEM."),
]
Certificate = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="This host's certificate for the scheduler, in PEM."),
]
Key = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def workload_command(verb: str, workload: Workload) -> str:
    """`plevel VERB` with a workload, quoted for a shell: its parts as options, or its text with an epilogue."""
    if workload.epilogue or not workload.inputs:
        return shlex.join(("plevel", verb, workload.key))
    words = ["plevel", verb, workload.op]
    for one in workload.inputs:
        words += ["--input", str(one)]
    for name, value in workload.attrs.items():
        words += ["--attr", f"{name}={json.dumps(value)}"]
    return shlex.join(words)


def require_op(op: str | None, others: str) -> str:
    """The operator or workload that a command names; `others` says what it may name instead.

    Raises:
        UsageError: none is named, or a model file in its place.
    """
    if op is None:
        raise UsageError(f"name an operator with its --input, {others}")
    if op.endswith((".toml", ".json")):
        raise UsageError(f"{op!r:.120} is no operator: name a model file with --file")
    return op


def read_workload(
    op: str, inputs: list[str] | None, attrs: list[str] | None, *, far: bool = False
) -> Workload:
    """The workload that the options describe, or that `op` is the text of, validated.

    If `far`, an operator that is not installed here is accepted: the service may have it. Those of other tools may have
    no inputs.

    Raises:
        UsageError: names the option at fault and the remedy.
    """
    from strategy.op import find_op

    if "(" in op:
        if inputs or attrs:
            raise UsageError(f"{op!r:.120} is a whole workload: leave --input and --attr out")
        return parse_workload(op, far=far)
    known = find_op(op)
    if not inputs and known is not None and known.arguments:
        raise UsageError(f"{op}: its inputs are missing: give each with --input; 'plevel ops {op}' has an example")
    return make_workload(op, inputs or [], read_attributes(attrs), far=far)


def make_workload(
    op: str, inputs: list[str], values: Mapping[str, Any], *, far: bool = False
) -> Workload:
    """As `read_workload`, with attributes as values."""
    from strategy.workload import Workload

    return _checked(lambda: Workload(op, tuple(map(_read_input, inputs)), dict(values)), far=far)


def parse_workload(text: str, *, far: bool = False) -> Workload:
    """As `read_workload`, of a workload as it is printed, epilogue included."""
    from strategy import workload_text

    return _checked(lambda: workload_text.parse_workload(text), far=far)


def require_constant(workload: Workload, named: object = "--input") -> None:
    """Raise `UsageError` if a workload, from `named`, has symbolic dimensions."""
    if not workload.is_constant:
        raise UsageError(
            f"{named}: {workload} has a symbolic dimension: give numbers, only constant shapes can be timed"
        )


def check_function(name: str) -> None:
    """Raise `UsageError` if the value of `--name` is no name of a C function."""
    from strategy.compile.c_text import is_free

    if not is_free(name):
        raise UsageError(
            f"--name {name!r:.80}: not a name in C: use a letter, then letters, digits and underscores; no keyword"
        )


def _checked(read: Callable[[], Workload], *, far: bool) -> Workload:
    """The workload in normal form, checked against its operator unless that is left to the service."""
    from strategy.attrs import AttrsError
    from strategy.condition import ExpressionError
    from strategy.op import OpError, TypeRelationError, find_op
    from strategy.types import TypeSyntaxError
    from strategy.workload import WorkloadError

    try:
        found = read()
        return found if far and find_op(found.op) is None else found.checked()
    except (
        AttrsError, ExpressionError, OpError, TypeRelationError, TypeSyntaxError, WorkloadError
    ) as error:
        raise UsageError(str(error)) from error


def _read_input(text: str) -> Input:
    from strategy.types import TypeSyntaxError
    from strategy.workload import Input, WorkloadError

    name, equals, rest = text.partition("=")
    type_, colon, mark = rest.partition(":")
    if not equals or not name.strip() or not type_.strip():
        raise UsageError(
            f"--input {text!r:.120}: write it as data=float32[128,768], with :const if constant"
        )
    if colon and mark.strip() != "const":
        raise UsageError(
            f"--input {text!r:.120}: unknown mark ':{mark:.40}': only ':const' may follow the type"
        )
    try:
        return Input(name.strip(), type_.strip(), bool(colon))
    except (TypeSyntaxError, WorkloadError) as error:
        raise UsageError(f"--input {name.strip():.80}: {error}") from error


def read_attributes(texts: Sequence[str] | None, option: str = "--attr") -> dict[str, Any]:
    """Values by name, each from `NAME=VALUE`; a value that is not JSON is a string."""
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"{option} {text!r:.120}: write it as name=value")
        if name in found:
            raise UsageError(f"{option} {name}: is given twice: leave one out")
        try:
            found[name] = json.loads(value)
        except (RecursionError, ValueError):
            found[name] = value
    return found


def read_target(spec: str, threads: int | None, name: str = "--target") -> Target:
    """The target; `cpu` and `cuda:0` are resolved to this host's, before anything is sent.

    Raises:
        UsageError: an unknown target or target option.
        CommandError: this host has no such GPU.
    """
    from strategy.target import Target, TargetError

    if spec.startswith("cuda:"):
        return read_gpu(spec, threads, name)
    try:
        target = Target.parse(spec)
        if target.arch == "native":  # which logs of other tools may have
            raise UsageError(f"{name}: 'native' names no processor: write cpu for this host, or -mcpu=znver4")
        if target.kind == "cuda" and target.arch.isdecimal():
            raise UsageError(f"{name}: -arch={target.arch:.40}: write it as -arch=sm_{target.arch:.40}")
        return target if threads is None else target.with_threads(threads)
    except TargetError as error:
        raise UsageError(f"{name}: {error}") from error


def read_key(spec: str | None) -> str | None:
    """The key of a target that is given by it, or as `read_target` takes it."""
    if spec is None or ("/" in spec and not spec.startswith("{") and " " not in spec):
        return spec  # others may name a model with a slash
    return read_target(spec, None).key


def read_gpu(slot: str, threads: int | None, name: str) -> Target:
    """The target of a GPU of this host, `cuda:0`.

    Raises:
        UsageError: threads were asked for.
        CommandError: pycuda, a driver or the device is missing.
    """
    from workers.__main__ import describe_cuda
    from workers.cpu import DeviceError

    if threads is not None:
        raise UsageError(f"--threads: a number of CPU threads: leave it out with {name} {slot}")
    try:
        return describe_cuda(slot).target
    except DeviceError as error:
        raise CommandError(f"{name}: {error}") from error


Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim", metavar="NAME=SIZE|NAME=SUM", show_default=False,
        help="The value of a symbolic size of an ONNX model's inputs, or the sum of others that it is; repeatable.",
    ),
]


def read_dims(given: Sequence[str] | None) -> dict[str, int | tuple[tuple[int, str], ...]]:
    """The sizes of `--dim` by name: numbers, or sums of factors with symbols, of which a number has none."""
    found: dict[str, int | tuple[tuple[int, str], ...]] = {}
    for text in given or ():
        name, _, size = text.rpartition("=")
        terms = [_read_term(term) for term in size.split("+")]
        known = tuple(term for term in terms if term is not None)
        is_number = len(known) == 1 and not known[0][1]
        if not name or len(known) < len(terms) or not (is_number or any(symbol for _, symbol in known)):
            raise UsageError(
                f"--dim {text!r:.80}: write it as batch=1, as height=32*h for any multiple of 32, or as all=past+new"
            )
        if name in found:
            raise UsageError(f"--dim {name:.80}: is given twice: leave one out")
        found[name] = known[0][0] if is_number else known
    return found


def _read_term(text: str) -> tuple[int, str] | None:
    number, times, symbol = text.partition("*")
    if number.isidentifier() and not times:
        return 1, number
    is_size = number.isascii() and number.isdecimal() and len(number) < 20 and 0 < int(number) < 2**31
    return (int(number), symbol) if is_size and (symbol.isidentifier() or not times) else None


def out(text: str, *, metavar: str = "FILE") -> Any:
    """An option for the file to write."""
    return typer.Option("--out", "-o", metavar=metavar, callback=check_out, help=text)


def check_out(out: Path | None) -> Path | None:
    """As `check_written`, of the value of `--out`."""
    if out is not None:
        check_written("--out", out)
    return out


def check_written(flag: str, path: Path) -> None:
    """Raise `UsageError` if the file cannot be written, before any work is done."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{flag} {path}: cannot be written there: name a file in an existing folder")
    # A device or a pipe is written itself, a file is replaced.
    if not os.access(path if path.exists() and not path.is_file() else path.resolve().parent, os.W_OK):
        raise UsageError(f"{flag} {path}: cannot be written there: name a file in a folder that this user may write to")


def check_folder(out: Path) -> None:
    """As `check_written`, of a folder for several files, which is created with those above it."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file: name a folder for several files")
    above = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UsageError(f"--out {out}: cannot be written there: name a folder that this user may write to")


def check_apart(flag: str, out: Path, read: Iterable[Path]) -> None:
    """Raise `UsageError` if the file to write is one of those to read."""
    if out.is_file() and any(path.exists() and out.samefile(path) for path in read):
        raise UsageError(f"{flag} {out}: is one of the files to read: name another file")


def check_library(out: Path) -> None:
    """As `check_out`, of a library that takes its place with other files beside it: no device or pipe."""
    check_out(out)
    if out.exists() and not out.is_file():
        raise UsageError(f"--out {out}: is no file: name one, as others are written beside it")


def read_share(flag: str, text: str, fits: Callable[[float], bool]) -> float:
    """The fraction of `1%` or `0.01`.

    Raises:
        UsageError: not a fraction; 5 is ambiguous (5% or 500%) and refused.
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not fits(share) or (share >= 1 and not text.endswith("%")):
        raise UsageError(f"{flag} {text[:40]!r}: not a fraction: write it as 1%, or 0.01")
    return share


def read_instant(when: datetime | None) -> float | None:
    """A moment, of UTC where it names no zone, as Unix time."""
    return None if when is None else when.replace(tzinfo=when.tzinfo or UTC).timestamp()


def read_window(
    first: str, since: datetime | None, last: str, until: datetime | None
) -> tuple[float | None, float | None]:
    """The two moments; raise `UsageError` if the second, of option `last`, is not after that of `first`."""
    begin, end = read_instant(since), read_instant(until)
    if begin is not None and end is not None and begin >= end:
        raise UsageError(f"{first} {since} is not before {last} {until}: give an earlier {first}")
    return begin, end


def explain_field(error: Exception, kind: type) -> str:
    """The text of an error of a file that was decoded as `kind`; for an unknown field with the known ones."""
    from service.api.meant import with_suggestion
    from strategy.record import WireError

    return str(with_suggestion(WireError(str(error)), kind))


def read_duration(option: str, text: str) -> float:
    """Parse `90d`, `12h`, `30m` or `45s` as seconds."""
    number, unit = text[:-1], {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}.get(text[-1:])
    if unit is None or not number.isdecimal():
        raise UsageError(f"{option} {text!r:.40}: not a duration: write it as 90d, 12h, 30m or 45s")
    if len(number) > 10 or int(number) * unit > LONGEST_S:
        raise UsageError(f"{option} {text!r:.40}: longer than 30 years: write a shorter time")
    return int(number) * unit
