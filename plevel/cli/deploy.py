"""`plevel compile`: a whole model as one shared library that needs neither its framework nor Python."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from plevel.cli import location, option
from plevel.cli.chosen import require_version, tell_outdated
from plevel.cli.error import CommandError, UsageError
from plevel.cli.lock import read_lock
from plevel.cli.processor import is_own, require_known

if TYPE_CHECKING:
    from plevel.deployment import Deployed
    from plevel.faster import Faster
    from plevel.importing import Imported
    from strategy.network.size import Dims
    from strategy.select.lock import Lock
    from strategy.target import Target


def compile_model(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.pt2|FILE.onnx", show_default=False,
            help="A program of torch.export.save, or an ONNX model.",
        ),
    ],
    out: Annotated[
        Path,
        option.out("The library, with the header FILE.h and the manifest FILE.json.", metavar="FILE.so"),
    ],
    target: option.TargetSpec = "cpu",
    threads: option.Threads = None,
    lock: Annotated[
        Path | None,
        typer.Option(
            "--lock", metavar="FILE", show_default=False,
            help="Take the selections of a lock file; what it lacks from --database if that is named.",
        ),
    ] = None,
    dim: option.Dims = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The name of the C function; default: plevel_FILE."),
    ] = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify", show_default=False,
            help="Run it, and compare all its values with the framework's; default: its outputs, where that can be.",
        ),
    ] = None,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """Compile a model into one shared library with its weights.

    Each part of the model runs by the implementation that the database selects, by times as in a network
    (-thread-pool=openmp -constants=cold), which the file of `plevel extract` asks for. The library has one
    C function of the model's inputs and outputs, and needs neither PyTorch nor Python.

    Example: plevel compile model.pt2 -o model.so
    """
    from plevel.cli.output import tell
    from plevel.extra import require_room, require_worker

    asked = _read_options(model, out, target, threads, lock, dim, name, verify, url, database, namespace)
    require_worker()
    require_room()
    if not is_own(asked.target):  # whose name LLVM knows: without TVM, which only the children load
        require_known(asked.target)
    imported, chosen = _compile(asked)
    found: dict[str, Any] = {"function": asked.function, "files": [str(f) for f in _files(chosen)]}
    said = _describe(asked, chosen, found)
    if verify is not False:
        said += _verify_or_remove(asked, chosen, imported, found)
    tell(said, found, as_json=as_json)


class _Options(NamedTuple):
    """The options of `plevel compile`, checked.

    Attributes:
        source: a database, or a lock file alone, with the selections; None: the default database.
    """

    model: Path
    out: Path
    target: Target
    function: str
    sizes: Dims
    locked: Lock | None
    source: str | None
    namespace: str | None
    verify: bool | None


def _read_options(
    model: Path, out: Path, target: str, threads: int | None, lock: Path | None, dim: list[str] | None,
    name: str | None, verify: bool | None, url: str | None, database: str | None, namespace: str | None,
) -> _Options:
    """Check the options, in the order of the command line; raise `UsageError` for the first at fault."""
    from strategy.select import SelectionError

    if out.suffix != ".so":
        raise UsageError(f"--out {out}: name a file.so: its header and its manifest stand beside it")
    option.check_library(out)
    where = option.read_target(target, threads)
    if where.kind != "llvm":
        raise UsageError(f"--target {where}: models are compiled for processors: use cpu, or llvm -mcpu=…")
    where = where.in_network()
    if verify and not is_own(where):
        raise UsageError(f"--verify: {where} is another processor than this one: leave it out, and verify there")
    function = default_name(out) if name is None else name
    option.check_function(function)
    sizes = option.read_dims(dim)
    locked, lock_path = (None, None) if lock is None else (read_lock(lock), str(lock))
    if locked is not None and url is None and database is None:
        try:
            locked.require(where)
        except SelectionError as error:
            raise UsageError(f"--lock {lock}: {error}") from error
    for entry in () if locked is None else locked.selections:
        if where.is_like(entry.target.key):
            require_version(entry)
    if url is not None or database is not None or namespace is not None:
        place = location.locate(url, database, namespace)
        database = place.url or place.database
    return _Options(model, out, where, function, sizes, locked, database or lock_path, namespace, verify)


def _compile(asked: _Options) -> tuple[Imported, Faster]:
    """Import the model, and write its library with the selections of the records."""
    from plevel.deployment import deploy
    from plevel.extra import EmbeddedError
    from plevel.faster import Faster, deploy_faster
    from plevel.importing import import_model
    from plevel.kernel_selection import make_chooser, open_records
    from strategy.fault import CompileError
    from strategy.network.graph import NetworkError
    from workers.sandbox import SandboxError

    warnings.filterwarnings("ignore", "`isinstance.treespec", FutureWarning)  # PyTorch's, of itself
    try:
        with open_records(asked.source, asked.namespace) as records:
            imported = import_model(asked.model, asked.sizes)
            choose = make_chooser(asked.target, records, asked.locked)
            given = imported.network, asked.target, choose, asked.out
            if asked.verify is not False and is_own(asked.target):
                return imported, deploy_faster(*given, name=asked.function, about=asked.model.name)
            return imported, Faster(deploy(*given, name=asked.function, about=asked.model.name))
    except NetworkError as error:
        raise UsageError(f"{asked.model}: {error}") from error
    except (CompileError, EmbeddedError, SandboxError) as error:
        raise CommandError(f"{asked.model}: {error}") from error


def _files(chosen: Faster) -> list[Path]:
    return [(made := chosen.deployed).library, made.header, made.manifest]


def _describe(asked: _Options, chosen: Faster, found: dict[str, Any]) -> str:
    """Return lines about the library, and add what they tell to `found`."""
    from strategy.select import Reason
    from strategy.table import show_number

    made = chosen.deployed
    kernels = [s for s in made.description.steps if s.workload is not None]
    measured = sum(s.reason in (Reason.MEASURED, Reason.TRANSFERRED) for s in kernels)
    outdated = tell_outdated(s.reason for s in kernels)
    found |= {"kernels": len(kernels), "measured": measured}
    said = (
        f"{asked.out}: {show_number(len(kernels), 'kernel')}, {measured} of them measured{outdated}; "
        f"{made.plan.weight_bytes / 1e6:.1f} MB of weights, {made.plan.arena_bytes / 1e6:.1f} MB of buffers"
    )
    if made.plan.sizes:
        listed = ", ".join(f"{s.name} from {s.low} to {s.high}" for s in made.plan.sizes.sizes)
        said += f" at the least sizes: {listed}"
    return said + _say_layouts(chosen, found)


def _verify_or_remove(asked: _Options, chosen: Faster, imported: Imported, found: dict[str, Any]) -> str:
    """Return a line about the comparison with the framework; remove a library that it refutes, or does not reach."""
    from plevel.comparison import ComparisonError, DisputedError
    from strategy.network.graph import NetworkError
    from workers.sandbox import SandboxError

    out = asked.out
    try:
        return _verify(chosen.deployed, asked.target, imported, found, thorough=asked.verify)
    except DisputedError as error:
        raise CommandError(
            f"verification: {error}; these are the values of ONNX's own reference, which is wrong for some operators: "
            f"{out} is kept; install onnxruntime, whose values decide, and compile again"
        ) from error
    except NetworkError as error:  # no verdict
        raise CommandError(f"verification: {error}; {out} is kept, not verified") from error
    except BaseException as error:  # an interrupt, too: what was not compared is not kept
        for file in _files(chosen):
            file.unlink(missing_ok=True)
        if not isinstance(error, ComparisonError | SandboxError):
            raise
        remedy = "" if asked.verify else "; --no-verify keeps it as it is"
        raise CommandError(f"verification: {error}; {out} is removed{remedy}") from error


def default_name(out: Path) -> str:
    """The function's name from the file's; POSIX reserves names that end as those of types do."""
    from strategy.compile.c_text import c_word, is_free

    name = f"plevel_{c_word(out.stem.removeprefix('lib'))}"
    return name if is_free(name) else f"{name}_model"


def _say_layouts(chosen: Faster, found: dict[str, Any]) -> str:
    """Return a line about the layouts of images, if libraries of both were to be timed."""
    if chosen.failure:
        found["layouts"] = {"kept": "blocked", "failure": chosen.failure}
        return f"\nimages are in blocked layouts, which could not be compared with NCHW: {chosen.failure}"
    ratio = chosen.ratio
    if ratio is None:
        return ""
    found["layouts"] = {"kept": "blocked" if chosen.is_blocked else "NCHW", "ratio": ratio}
    timed = f"{ratio.median_s:.2f} ({ratio.low_s:.2f} to {ratio.high_s:.2f}) of the time of NCHW"
    if chosen.is_blocked:
        return f"\nimages are in blocked layouts: a call takes {timed}"
    return f"\nimages stay in NCHW: in blocked layouts a call takes {timed}"


def _unready(target: Target, imported: Imported) -> str:
    """The reason why a library is not run unless that is asked for; empty where there is none."""
    from importlib.util import find_spec

    if not is_own(target):
        return "it is for another processor"
    if imported.framework == "onnx" and find_spec("onnxruntime") is None:
        return "ONNX Runtime is not installed; --verify takes ONNX's own reference, which is slow"
    return ""


def _verify(
    made: Deployed, target: Target, imported: Imported, found: dict[str, Any], *, thorough: bool | None
) -> str:
    """Compare with the framework, at several sizes and value by value if `thorough`; return a line about it."""
    from plevel.comparison import ComparisonError, UnfitError, compare
    from strategy.network.graph import NetworkError

    tried = made.plan.sizes.samples() if made.plan.sizes else [()]
    values = [s.value for s in made.description.steps if s.value is not None]
    if thorough:
        done = {}
        for n in tried:
            with suppress(UnfitError):  # indices in an example may lie beyond the axis at another size
                done[n] = compare(made, imported.reference(values, n), n)
        if not done:
            n = imported.example or tried[0]
            done[n] = compare(made, imported.reference(values, n), n)
        tried, each = list(done), list(done.values())
    else:
        tried = [imported.example or tried[len(tried) // 2]]
        if why := _unready(target, imported):
            return f"\nnot verified: {why}"
        try:
            reference = imported.reference((), tried[0])
        except NetworkError as error:
            return f"\nnot verified: {error}"
        try:
            each = [compare(made, reference, tried[0])]
        except ComparisonError as error:
            # The comparison of all values names the step; where it agrees, the library's results vary.
            try:
                for n in tried:
                    compare(made, imported.reference(values, n), n)
            except NetworkError:  # it refuses to name values
                raise error from None
            raise ComparisonError(f"{error}; a second run agreed: its results vary") from error
    compared = max(each, key=lambda c: c.error)
    found["verified"] = compared
    at = f" at sizes {', '.join('×'.join(map(str, n)) for n in tried)}" if made.plan.sizes else ""
    said = f"\nits outputs agree{at} within {compared.error:.1e} of their largest value"
    worst = f"; of {compared.values} values {compared.worst} is the worst ({compared.worst_error:.1e})"
    return said + (worst if compared.values else "")
