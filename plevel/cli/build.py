"""`plevel build` and `plevel show`: what was selected, as a library, and as the code it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from plevel.cli import option
from plevel.cli.error import CommandError, UsageError

if TYPE_CHECKING:
    from strategy.dispatch import DispatchTable
    from strategy.entry import LibraryRow
    from strategy.lower import Lowered
    from strategy.select import Selection
    from strategy.space import Config
    from strategy.target import Target
    from strategy.workload import Workload

Implementation = Annotated[
    str | None,
    typer.Option(
        "--implementation", "-I", metavar="NAME",
        help="This one, with --config or its fallback; the selected one if not given.",
        autocompletion=option.complete_implementation,
    ),
]  # fmt: skip
Knobs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KNOB=VALUE", help="A knob's value, as in JSON."),
]
FORMS = ("tir", "llvm", "asm", "cuda")


class _Chosen(NamedTuple):
    """What is compiled; `because` is None where it was named, not selected."""

    lowered: Lowered
    implementation: str
    config: Config
    because: str | None

    def say_why(self) -> None:
        if self.because is not None:
            print(f"# {self.implementation}: {self.because}")


def build(
    op: option.Op,
    inputs: option.Inputs,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE.so",
            help="The library; its header is FILE.h. For CUDA a cubin, with FILE.cu and FILE.json.",
        ),
    ],
    attr: option.Attributes = None,
    target: option.TargetSpec = "cpu",
    threads: option.Threads = None,
    implementation: Implementation = None,
    config: Knobs = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="What C calls it; plevel_OP if not given."),
    ] = None,
    bundle_libs: Annotated[
        bool,
        typer.Option(
            "--bundle-libs",
            help="Copy the vendor libraries that it calls beside it: the folder can be moved then.",
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Run it between inaccessible pages, and compare it with NumPy."
        ),
    ] = False,
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Compile the selected implementation into a shared library.

    A C header is written beside it. With symbolic dimensions (data=float32[m,768]) the library holds
    the rows of the dispatch table behind one function that checks the shapes and jumps. For a target
    such as 'cuda -arch=sm_90', a cubin is written with its source and its launches; no GPU is needed.

    Example: plevel build dense -i data=float32[m,768] -i weight=float32[3072,768]:const -o libdense.so
    """
    workload, where = option.read_workload(op, inputs, attr), option.read_target(target, threads)
    option.check_out(out)
    place = option.locate(url, database)
    from plevel.cli.output import tell
    from plevel.embedded import require_worker

    require_worker()
    _require_known(where)
    from strategy.entry import LibraryRow, is_free
    from strategy.export import export_library, table_rows, vendor_libraries
    from strategy.extern import ExternError
    from strategy.lower import CompileError, InstantiationError

    if name is not None and not is_free(name):
        raise UsageError(
            f"--name {name!r:.80}: a name of C has letters, digits and underscores, and is no word of it"
        )
    if where.kind == "cuda":
        if verify:
            raise UsageError("--verify: a cubin needs a device; see `plevel measure --device`")
        if bundle_libs:
            raise UsageError("--bundle-libs: a cubin calls no library; leave it out")
        _build_cuda(workload, where, implementation, config, place, out, as_json=as_json)
        return
    try:
        if implementation is None and not workload.is_constant:
            table = _dispatch(workload, where, place)
            if not as_json:
                print(table.explanation)
            rows: list[LibraryRow] = table_rows(table)
            about: dict[str, Any] = {"table": table}
        else:
            chosen = _lower(workload, where, implementation, config, place)
            if not as_json:
                chosen.say_why()
            rows, about = [LibraryRow(chosen.lowered)], _described(chosen)
        header = export_library(workload, rows, out, name, bundle=bundle_libs)
        libraries = vendor_libraries(rows)
    except (CompileError, ExternError, InstantiationError) as error:
        raise CommandError(str(error)) from error
    if verify:
        checked = _verify(workload, rows, out)
        about["verified"] = checked
        if not as_json:
            print(f"it agrees with NumPy, inside its buffers, at {checked} {'size' if checked == 1 else 'sizes'}")
    copies = [out.parent / library.name for library in libraries] if bundle_libs else []
    files = [str(path) for path in (out, header, *copies)]
    needed = [] if bundle_libs else [str(library) for library in libraries]
    said = f"{', '.join(files[:-1])} and {files[-1]} are written"
    if needed:
        said += (
            f"\nit calls {', '.join(needed)}, where it looks for it: elsewhere put a copy beside it, "
            "by --bundle-libs"
        )
    tell(said, {"files": files, "needs": needed, **about}, as_json=as_json)


def _verify(workload: Workload, rows: list[LibraryRow], library: Path) -> int:
    """How many sizes the library was run at; one that must not be used is removed."""
    from strategy.entry import Entry
    from workers.folder import scratch
    from workers.sandbox import ForkServer, SandboxError
    from workers.verification import Parameter, VerificationError, verify

    parameters = [Parameter(p.name, p.argument) for p in Entry("entry", workload, rows).parameters]
    try:
        with scratch() as folder, ForkServer(folder) as server:
            return verify(server, library, workload, parameters)
    except VerificationError as error:
        for path in (library, library.with_suffix(".h")):
            path.unlink(missing_ok=True)
        raise CommandError(f"--verify: {error}; {library} is removed") from error
    except SandboxError as error:
        raise CommandError(f"--verify: {error}") from error


def _require_known(target: Target) -> None:
    """Raises `UsageError` for a processor that LLVM does not know: TVM would build for any, and say so aside."""
    if target.kind != "llvm" or not target.arch:
        return
    from tvm.target import codegen

    triple = target.to_tvm().get("mtriple") or codegen.llvm_get_system_triple()
    if not codegen.llvm_is_valid_cpu(target.arch, triple):
        raise UsageError(f"--target: LLVM knows no -mcpu={target.arch} of {triple}")


def _described(chosen: _Chosen) -> dict[str, Any]:
    return {
        "implementation": chosen.implementation, "config": chosen.config, "because": chosen.because,
    }  # fmt: skip


def _build_cuda(
    workload: Workload,
    target: Target,
    implementation: str | None,
    config: list[str] | None,
    place: option.Location,
    out: Path,
    *,
    as_json: bool,
) -> None:
    from plevel.cli.output import print_json
    from strategy.cuda.build import compile_cuda
    from strategy.cuda.limit import LimitError
    from strategy.cuda.source import PlanError
    from strategy.lower import CompileError, InstantiationError
    from strategy.target import TargetError

    if implementation is None and not workload.is_constant:
        raise UsageError("--implementation: name one; dispatch tables are not compiled for CUDA")
    try:
        chosen = _lower(workload, target, implementation, config, place)
        if not as_json:
            chosen.say_why()
        artefact = compile_cuda(chosen.lowered)
    except (CompileError, InstantiationError, LimitError, PlanError) as error:
        raise CommandError(str(error)) from error
    except TargetError as error:
        raise UsageError(f"--target: {error}") from error
    files = [str(path) for path in artefact.export(out)]
    if as_json:
        print_json({"files": files, **_described(chosen), "usage": artefact.usage})
        return
    for name, usage in artefact.usage.items():
        spilled = "" if usage.spill_bytes is None else f", {usage.spill_bytes} bytes spilled"
        print(f"{name}: {usage.registers} registers{spilled}")
    if artefact.cubin:
        print(f"{', '.join(files)} are written")
    else:
        print(f"{files[0]} is written: what to call of {artefact.signature.library}, and with what")


def show(
    op: option.Op,
    inputs: option.Inputs,
    attr: option.Attributes = None,
    target: option.TargetSpec = "cpu",
    threads: option.Threads = None,
    implementation: Implementation = None,
    config: Knobs = None,
    form: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="|".join(FORMS),
            autocompletion=option.complete(*FORMS),
            help="TensorIR, LLVM's IR, assembly, or CUDA C for a target such as 'cuda -arch=sm_90'.",
        ),
    ] = "tir",
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Print the code of the selected (or named) implementation.

    Example: plevel show dense -i data=float32[128,768] -i weight=float32[3072,768]:const --as asm
    """
    workload, where = option.read_workload(op, inputs, attr), option.read_target(target, threads)
    option.check_choice("--as", form, FORMS)
    place = option.locate(url, database)
    from plevel.cli.output import print_json
    from plevel.embedded import require_worker

    require_worker()
    _require_known(where)
    from strategy.cuda.limit import LimitError
    from strategy.cuda.source import PlanError
    from strategy.lower import CompileError, InstantiationError
    from strategy.target import TargetError

    try:
        chosen = _lower(workload, where, implementation, config, place)
        code = _code(chosen.lowered, where, form)
    except (CompileError, InstantiationError, LimitError, PlanError) as error:
        raise CommandError(str(error)) from error
    except TargetError as error:
        raise UsageError(f"--target: {error}") from error
    if as_json:
        print_json({"form": form, **_described(chosen), "code": code})
        return
    chosen.say_why()
    print(code)


def _code(lowered: Lowered, target: Target, form: str) -> str:
    if target.kind == "cuda" and (form == "cuda" or lowered.template is not None):
        import msgspec

        from strategy.cuda.build import emit

        source = emit(lowered)
        if source.code:
            return source.code
        # Nothing but calls of libraries: what is called with what.
        return msgspec.json.format(msgspec.json.encode(source.programs)).decode()
    if form == "tir":
        return str(lowered.module.script())
    if form == "cuda" or target.kind == "cuda":
        raise UsageError(f"--as {form}: {target} has no such code")
    module = lowered.compile().executable.mod
    return str(module.inspect_source("ll" if form == "llvm" else "s"))


def _lower(
    workload: Workload,
    target: Target,
    implementation: str | None,
    config: list[str] | None,
    place: option.Location,
) -> _Chosen:
    from strategy.lower import lower

    if implementation is None:
        if config:
            raise UsageError("--config: name the implementation too, with --implementation")
        answer = _select(workload, target, place)
        name, values, because = answer.implementation, answer.config, answer.explanation
        return _Chosen(lower(workload, target, name, values), name, values, because)
    values = read_config(workload, target, implementation, config)
    return _Chosen(lower(workload, target, implementation, values), implementation, values, None)


def read_config(
    workload: Workload, target: Target, implementation: str, knobs: list[str] | None
) -> Config:
    """The implementation's configuration: its fallback with the knobs that are given.

    Raises:
        UsageError: an unknown implementation or knob, or a value or combination it cannot have.
    """
    from strategy.op import OpError
    from strategy.op_strategy import candidates, find_implementation
    from strategy.space import Config, ConfigError, SpaceError

    try:
        find_implementation(workload, target, implementation)
    except OpError as error:
        raise UsageError(f"--implementation: {error}") from error
    offered = {c.implementation: c for c in candidates(workload, target)}
    candidate = offered.get(implementation)
    if candidate is None:
        raise UsageError(f"--implementation: {implementation} needs numbers where {workload} has names")
    given = dict(option.read_attribute(text, "--config") for text in knobs or ())
    if candidate.space is None:
        if given:
            raise UsageError(f"--config: {implementation} has nothing to tune")
        return Config()
    try:
        return candidate.space.check({**candidate.fallback, **given})
    except (ConfigError, SpaceError) as error:
        raise UsageError(f"--config: {error}") from error


def _select(workload: Workload, target: Target, place: option.Location) -> Selection:
    from plevel.direct import connect
    from strategy.select import SelectionError

    try:
        with connect(place.url, place.database) as records:
            return records.select(workload, target)
    except SelectionError as error:
        raise CommandError(str(error)) from error


def _dispatch(workload: Workload, target: Target, place: option.Location) -> DispatchTable:
    from plevel.direct import connect
    from strategy.select import SelectionError

    try:
        with connect(place.url, place.database) as records:
            return records.dispatch(workload, target)
    except SelectionError as error:
        raise CommandError(str(error)) from error
