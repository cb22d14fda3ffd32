"""`plevel build`: selected implementations as libraries for C programs, or as cubins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from plevel.cli import location, option
from plevel.cli.chosen import Chosen, Implementation, Knobs, described, lower_chosen
from plevel.cli.error import CommandError, UsageError
from plevel.cli.file import make_folder, unwritten, whole
from plevel.cli.lock import find_locked, read_lock
from plevel.cli.model_file import read_model
from plevel.cli.processor import require_known
from plevel.cli.verification import verify_library

if TYPE_CHECKING:
    from strategy.compile.entry import LibraryRow
    from strategy.select.dispatch import DispatchTable
    from strategy.select.lock import Locked
    from strategy.target import Target
    from strategy.workload import Workload


def build(
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE.so|FOLDER", show_default=False,
            help="The library, with the header FILE.h; for CUDA a cubin, with FILE.cu and FILE.json; "
            "a folder if there are several.",
        ),
    ],
    op: option.SomeWorkload = None,
    inputs: option.Inputs = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", show_default=False,
            help="Build all workloads of a model file into a folder with a manifest.",
        ),
    ] = None,
    lock: Annotated[
        Path | None,
        typer.Option(
            "--lock", metavar="FILE", show_default=False,
            help="Build the selections of a lock file, without a database; all of them if no workload is named.",
        ),
    ] = None,
    attr: option.Attributes = None,
    target: option.ModelTarget = None,
    threads: option.Threads = None,
    implementation: Implementation = None,
    config: Knobs = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The name of the C function; default: plevel_OP."),
    ] = None,
    bundle_libs: Annotated[
        bool,
        typer.Option(
            "--bundle-libs",
            help="Copy the vendor libraries that it calls into its folder, which can then be moved.",
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Run it in guarded memory and compare its results with NumPy's."),
    ] = False,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """Compile the selected implementation into a shared library.

    A C header is written beside it. With symbolic dimensions (data=float32[m,768]) the library holds
    the rows of the dispatch table and one function that checks the shapes and calls a row. For a target
    such as 'cuda -arch=sm_90' it writes a cubin with its source and its launches, which needs no GPU.

    With --file or --lock alone, each workload becomes a library of the folder --out, and manifest.json
    names the files and the function of each.

    Example: plevel build dense -i 'data=float32[m,768]' -i 'weight=float32[3072,768]:const' -o libdense.so
    """
    place = location.Location() if lock is not None else location.locate(url, database, namespace)
    locked = None if lock is None else read_lock(lock)
    for flag, given in (
        ("--implementation", implementation), ("--config", config), ("--url", url), ("--database", database),
        ("--namespace", namespace),
    ):
        if locked is not None and given:
            raise UsageError(f"--lock names what is built: leave {flag} out")
    if name is not None:
        option.check_function(name)
    plan = partial(
        _Plan, implementation=implementation, config=config, place=place, bundle_libs=bundle_libs, verify=verify
    )
    if model is None and (locked is None or op is not None):
        op = option.require_op(op, "a model file with --file, or a lock file with --lock")
        option.check_library(out)
        workload, where = option.read_workload(op, inputs, attr), option.read_target(target or "cpu", threads)
        _report(plan(workload, where, find_locked(locked, workload, where), out, name).make(), as_json)
        return
    for flag, given in (
        ("OP", op), ("--input", inputs), ("--attr", attr), ("--name", name),
        ("--implementation", implementation), ("--config", config),
    ):
        if given:
            raise UsageError(f"{'--lock' if model is None else '--file'} builds several workloads: leave {flag} out")
    if model is None and (target or threads):
        raise UsageError("--lock names the target of each selection: leave --target and --threads out")
    option.check_folder(out)
    if model is not None:
        network = read_model(model)
        where = network.read_target(target, threads)
        wanted = [(w.workload, where, find_locked(locked, w.workload, where)) for w in network.workloads]
    else:
        assert locked is not None
        wanted = [(entry.workload, entry.target, entry) for entry in locked.selections]
    _build_all([plan(*one, *_names(out, one[0], one[1])) for one in wanted], out, as_json)


def _names(folder: Path, workload: Workload, target: Target) -> tuple[Path, str]:
    """The file of one library of several, and the name of its C function."""
    word = f"{workload.op}_{workload.digest}"
    return folder / f"{word}.{'cubin' if target.kind == 'cuda' else 'so'}", f"plevel_{word}"


def _build_all(plans: list[_Plan], folder: Path, as_json: bool) -> None:
    """Build each into the folder; write the manifest last, once all are complete."""
    from plevel.cli.output import print_json
    from strategy.record import to_json
    from strategy.table import show_number

    make_folder(folder)
    try:
        (folder / "manifest.json").unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(unwritten(f"--out {folder}", error)) from error
    built = []
    for plan in plans:
        built.append(plan.make())
        if not as_json:
            _report(built[-1], as_json)
    manifest = to_json({"libraries": built})
    with whole(folder / "manifest.json") as file:
        file.write(json.dumps(manifest, indent=2, ensure_ascii=False).encode() + b"\n")
    if as_json:
        print_json(manifest)
    else:
        count = show_number(len(built), "workload")
        print(f"wrote {folder / 'manifest.json'}: files and functions of {count}")


def _report(built: Mapping[str, Any], as_json: bool) -> None:
    from plevel.cli.output import print_json
    from strategy.table import show_number

    if as_json:
        print_json(built)
        return
    if built.get("because") is not None:
        print(f"# {built['implementation']}: {built['because']}")
    if "table" in built:
        print(built["table"].explanation)
    for function, usage in built.get("usage", {}).items():
        spilled = "" if usage.spill_bytes is None else f", {usage.spill_bytes} bytes spilled"
        print(f"{function}: {usage.registers} registers{spilled}")
    if "verified" in built:
        print(f"it agrees with NumPy, within its buffers, at {show_number(built['verified'], 'size')}")
    *files, last = built["files"]
    if files:
        print(f"wrote {', '.join(files)} and {last}")
    else:
        print(f"wrote {last}: the library to call, and its arguments")
    if built.get("needs"):
        print(f"needs      {', '.join(built['needs'])} at that path; --bundle-libs puts a copy beside the library, "
        "for other hosts")


class _Plan(NamedTuple):
    """A library to build: its workload, and where to write it."""

    workload: Workload
    target: Target
    locked: Locked | None
    out: Path
    name: str | None
    implementation: str | None
    config: list[str] | None
    place: location.Location
    bundle_libs: bool
    verify: bool

    def make(self) -> dict[str, Any]:
        """Build it; return what was built, and the reason.

        Raises:
            CommandError: it cannot be built; names the workload.
        """
        from plevel.extra import require_room, require_worker

        require_worker()
        require_room()
        require_known(self.target)
        about = {"workload": self.workload.key, "target": str(self.target)}
        return about | (self._make_cubin() if self.target.kind == "cuda" else self._make_library())

    @property
    def _is_table(self) -> bool:
        """Return whether its sizes are open, and neither the lock nor an option names one implementation."""
        return self.locked is None and self.implementation is None and not self.workload.is_constant

    def _choose(self) -> Chosen:
        return lower_chosen(
            self.workload, self.target, self.implementation, self.config, self.place, self.locked
        )

    def _tabulate(self) -> DispatchTable:
        """The dispatch table of what is installed here, by the evidence of a service, which may have other versions."""
        if self.place.url is None:
            with self.place.connect() as records:
                return records.dispatch(self.workload, self.target)
        from plevel.database import plevel_database
        from strategy.select.dispatch import dispatch

        with plevel_database(self.place.url, namespace=self.place.namespace) as database:
            return dispatch(self.workload, self.target, database)

    def _make_library(self) -> dict[str, Any]:
        from strategy.compile.c_text import c_word
        from strategy.compile.entry import LibraryRow
        from strategy.compile.export import export_library, table_rows, vendor_libraries
        from strategy.extern import ExternError
        from strategy.fault import CompileError, InstantiationError

        if self.out.suffix == ".h":
            raise UsageError(f"--out {self.out}: name a file.so: its header stands beside it")
        about: dict[str, Any]
        try:
            if self._is_table:
                table = self._tabulate()
                rows: list[LibraryRow] = table_rows(table)
                about = {"table": table}
            else:
                chosen = self._choose()
                rows, about = [LibraryRow(chosen.lowered)], described(chosen)
            header = export_library(self.workload, rows, self.out, self.name, bundle=self.bundle_libs)
            libraries = vendor_libraries(rows)
        except (CompileError, ExternError, InstantiationError) as error:
            raise CommandError(f"{self.workload}: {error}") from error
        if self.verify:
            about["verified"] = verify_library(self.workload, self.target, rows, self.out)
        copies = [self.out.parent / library.name for library in libraries] if self.bundle_libs else []
        return {
            "function": self.name or f"plevel_{c_word(self.workload.op)}",
            "files": [str(path) for path in (self.out, header, *copies)],
            "needs": [] if self.bundle_libs else [str(library) for library in libraries],
            **about,
        }

    def _make_cubin(self) -> dict[str, Any]:
        from strategy.compile.cuda import compile_cuda
        from strategy.cuda.limit import LimitError
        from strategy.cuda.source import PlanError
        from strategy.draft import drafted
        from strategy.fault import CompileError, InstantiationError
        from strategy.target import TargetError

        if self.verify:
            raise UsageError("--verify: a cubin needs a device: use `plevel measure --device`")
        if self.out.suffix in (".cu", ".json"):
            raise UsageError(f"--out {self.out}: name a file.cubin: its source and its plan stand beside it")
        if self.bundle_libs:
            raise UsageError("--bundle-libs: a cubin calls no library: leave it out")
        if self._is_table:
            raise UsageError("--input: dispatch tables are not compiled for CUDA: name one --implementation")
        try:
            chosen = self._choose()
            artefact = compile_cuda(chosen.lowered)
        except (CompileError, InstantiationError, LimitError, PlanError) as error:
            raise CommandError(f"{self.workload}: {error}") from error
        except TargetError as error:
            raise UsageError(f"--target: {error}") from error
        suffixes: list[str] = []
        with drafted(self.out, suffixes) as draft:
            suffixes += [file.suffix for file in artefact.export(draft)]
        files = [str(self.out.with_suffix(suffix)) for suffix in suffixes]
        return {"files": files, **described(chosen), "usage": artefact.usage}
