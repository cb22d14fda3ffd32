"""`plevel import` and `plevel export`: tuning logs of other tools and of plevel."""
# Over 300 lines: two commands that share their files, progress and errors.

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from plevel.cli import location, option
from plevel.cli.error import CommandError, UsageError
from plevel.cli.file import make_folder, whole
from plevel.cli.plain_text import plain
from plevel.cli.processor import check_name

if TYPE_CHECKING:
    from plevel.client import Client
    from plevel.direct import Direct
    from service.formats import Joined

_FORMATS = ("native", "autotvm", "kernel_tuner", "metaschedule", "csv", "parquet", "vllm-moe")
_PIECE = 1 << 18


def import_files(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Logs, compressed or not.", show_default=False)
    ],
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", metavar="TARGET",
            help="The target of files that name only a device, or none.",
            autocompletion=option.complete_target,
        ),
    ] = None,
    device_model: Annotated[
        str,
        typer.Option(
            "--device-model", metavar="MODEL", show_default=False,
            help="The device model of files that name none, as Triton's: 'NVIDIA H100'.",
        ),
    ] = "",
    rejects: Annotated[
        Path | None,
        typer.Option("--rejects", metavar="FILE", help="Write rejected entries to this file."),
    ] = None,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """Read tuning logs into the database.

    Records that exist already are skipped. The format is detected: AutoTVM, Kernel Tuner, MetaSchedule,
    Triton, Helion, vLLM, TunableOp, AITER, FlashInfer, or plevel's own.

    Example: plevel import tophub/*.log --rejects rejected.ndjson
    """
    place = location.locate(url, database, namespace, makes=True)
    where = None if target is None else option.read_target(target, None)
    if where is not None:
        check_name(where, far=True)
    on = None if where is None else json.dumps(where.to_json())
    for path in files:
        if path.is_dir():
            raise UsageError(f"{path} is a folder: name the files in it")
        if not path.exists():
            raise UsageError(f"{path}: no such file: name an existing log")
    if rejects is not None:
        option.check_written("--rejects", rejects)
        option.check_apart("--rejects", rejects, files)
    location.make_database(place)

    from plevel.cli.output import print_json
    from plevel.client import ServiceError
    from service.formats import grouped
    from strategy.table import show_number

    totals: dict[str, Any] = {"read": 0, "new": 0, "known": 0, "rejected": 0, "reasons": Counter()}
    with contextlib.ExitStack() as stack:
        aside = None if rejects is None else stack.enter_context(whole(rejects))
        records = stack.enter_context(place.connect())
        stack.enter_context(_seldom_collected())
        groups = list(grouped(files))
        unread = 0
        for group in groups:
            rejected: list[Mapping[str, Any]] = []  # the first of them
            note = partial(_note, aside, group, rejected)
            try:
                summary = _import_group(records, group, target=on, device_model=device_model, put_aside=note)
            except (CommandError, ServiceError) as error:
                of_service = isinstance(error, ServiceError) and error.status != HTTPStatus.UNPROCESSABLE_ENTITY
                if len(groups) == 1 or of_service:
                    raise
                print(f"plevel: {error}", file=sys.stderr)  # of this file: the others are read
                unread += 1
                continue
            _add(totals, summary)
            if not as_json:
                _tell(" + ".join(str(p) for p in group), summary)
            if rejected and aside is None:
                _say_why(str(group[-1]), rejected[0])
    if as_json:
        print_json(totals)
    elif len(files) > 1:
        _tell("total", totals)
    if unread:
        count = show_number(len(groups), "log")
        raise CommandError(f"{unread} of {count} could not be read: see the lines above", answered=True)


def _import_group(records: Client | Direct, group: list[Path], **options: Any) -> Mapping[str, Any]:
    """Import the files of one log, with progress on a terminal, and return their summary."""
    from plevel.cli.output import make_console
    from plevel.cli.progress import follow_reading

    name, size = str(group[-1]), sum(path.stat().st_size for path in group)
    try:
        with follow_reading(make_console(stderr=True), name, size) as advance:
            return records.import_records(_pieces(group, advance), name=name, **options)
    except KeyboardInterrupt:
        print(
            f"plevel: interrupted in {name}: what was stored stays; the same command adds the rest", file=sys.stderr
        )
        raise


@contextlib.contextmanager
def _seldom_collected() -> Iterator[None]:
    """Run the garbage collector less often: records are many and leave no cycles.

    It took a sixth of an import's time, most of it on objects loaded before.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _pieces(group: list[Path], advance: Callable[[int], object]) -> Iterator[bytes]:
    from service.formats import Joined

    with contextlib.closing(Joined(group)) as joined:
        while piece := _read(joined, group):
            yield piece
            advance(len(piece))


def _read(joined: Joined, group: list[Path]) -> bytes:
    try:
        return joined.read(_PIECE)
    except OSError as error:
        raise CommandError(f"{group[-1]} cannot be read: {error.strerror}: name another file") from error


def _say_why(name: str, first: Mapping[str, Any]) -> None:
    """Print why an entry was rejected, without the control characters that a log from elsewhere may have."""
    where = f"line {first['line']}: " if first["line"] else ""  # some are found behind the reader
    why = " ".join(str(first["detail"]).split())
    print(f"{name}: {plain(f'{where}{why:.300}')}; --rejects FILE keeps what is rejected", file=sys.stderr)


def _note(
    aside: IO[bytes] | None, group: list[Path], rejected: list[Mapping[str, Any]], found: Mapping[str, Any]
) -> None:
    if not rejected:
        rejected.append(found)
    if aside is not None:
        aside.write(json.dumps({"file": str(group[-1]), **found}).encode() + b"\n")


def _add(totals: dict[str, Any], summary: Mapping[str, Any]) -> None:
    for name in ("read", "new", "known", "rejected"):
        totals[name] += summary[name]
    totals["reasons"].update(summary["reasons"])


def _tell(what: str, summary: Mapping[str, Any]) -> None:
    line = (
        f"{what}: {summary['read']} read, {summary['new']} new, {summary['known']} known, "
        f"{summary['rejected']} rejected"
    )
    if summary["reasons"]:
        line += " (" + ", ".join(f"{r}: {n}" for r, n in sorted(summary["reasons"].items())) + ")"
    print(line)


def export(
    form: Annotated[str, option.choice("--format", _FORMATS, "The format to write.")] = "native",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", show_default=False,
            help="The file to write instead of standard output; a folder for metaschedule and vllm-moe.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="MODEL", help="The device model of vllm-moe: 'NVIDIA H100 80GB HBM3'.",
        ),
    ] = None,
    op: option.OfOp = None,
    implementation: option.OfImplementation = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="TOOL", help="Only this source: plevel, autotvm, …")
    ] = None,
    run: option.OfRun = None,
    task: option.OfTask = None,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --out, print the result as JSON.")
    ] = False,
) -> None:
    """Write records as plevel's own NDJSON, or for other tools.

    plevel's own format can be imported again without loss. A Kernel Tuner file holds one task: name it with
    --task. vllm-moe writes what VLLM_TUNED_CONFIG_FOLDER reads, for one device model, with a row for each usual
    number of tokens; provenance.json says which are measured, advised, transferred or predicted. If no record
    matches, nothing is written, and the exit code is 1.

    Example: plevel export --op dense -o dense.ndjson
    """
    if (form == "vllm-moe") != (device is not None):
        raise UsageError(
            "--format vllm-moe: name the device model with --device" if device is None
            else "--device: only --format vllm-moe is for one device model: leave it out"
        )
    if form in ("metaschedule", "vllm-moe") and out is None:
        raise UsageError(f"--format {form}: writes several files: name a folder with --out")
    if device is not None:
        assert out is not None
        given = {"--op": op, "--implementation": implementation, "--source": source, "--run": run, "--task": task}
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"{name}: --format vllm-moe writes all that is known: leave it out")
        option.check_folder(out)
        from plevel.cli import moe

        place = location.locate(url, database, namespace)
        with place.connect() as records:
            moe.write(out, records.iter_foreign("vllm", kernel="fused_moe"), device, as_json=as_json)
        return
    if form == "metaschedule":
        assert out is not None
        option.check_folder(out)
        source = source or "metaschedule"
    elif out is not None:
        option.check_out(out)
    if form == "parquet" and out is None and sys.stdout.isatty():
        raise UsageError("--format parquet: a binary format: name a file with --out")
    place = location.locate(url, database, namespace)

    wanted = {
        "op": op, "implementation": implementation, "source": source, "run_id": run, "task_id": task,
    }
    with place.connect() as records:
        parts = _begin(records, form, wanted)
        if form == "metaschedule" and out is not None:
            _write_pair(out, parts)
        elif out is None:
            for part in parts:
                sys.stdout.buffer.write(part)
        else:
            with whole(out) as file:
                for part in parts:
                    file.write(part)
    if out is not None:
        from plevel.cli.output import tell

        tell(f"wrote {out}", {"file": str(out), "format": form}, as_json=as_json)


def _begin(records: Client | Direct, form: str, wanted: Mapping[str, Any]) -> Iterator[bytes]:
    """The parts of an export, once it is known that any record matches."""
    from plevel.client import ServiceError

    first = None
    try:
        parts = records.export_records(form, **wanted)
        first = next(parts, None)
    except ServiceError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
    if first is None:
        given = ", ".join(f"{name} {value}" for name, value in wanted.items() if value is not None)
        raise CommandError(
            f"no record matches{f' ({given})' if given else ''}, nothing was written: 'plevel records' "
            "and 'plevel coverage' list what exists"
        )
    return itertools.chain([first], parts)


def _write_pair(folder: Path, parts: Iterator[bytes]) -> None:
    """Write `database_workload.json`, whose lines begin with a string, and `database_tuning_record.json`."""
    make_folder(folder)
    rest = b""
    with (
        whole(folder / "database_workload.json") as workloads,
        whole(folder / "database_tuning_record.json") as tuning,
    ):
        for part in parts:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                (workloads if line.startswith(b'["') else tuning).write(line + b"\n")
        for file in (workloads, tuning):  # neither takes its place if the disk has no room for the end of the other
            file.flush()
