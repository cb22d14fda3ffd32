"""`plevel build` and `plevel show`: what was selected, as a library, and as the code it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plevel.cli import option
from plevel.cli.error import CommandError, UsageError

if TYPE_CHECKING:
    from strategy.dispatch import DispatchTable
    from strategy.export import LibraryRow
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
    ),
]  # fmt: skip
Knobs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KNOB=VALUE", help="A knob's value, as in JSON."),
]
FORMS = ("tir", "llvm", "asm", "cuda")


def build(
    op: option.Op,
    inputs: option.Inputs,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
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
    url: option.Url = None,
    database: option.Database = None,
) -> None:
    """Compile the selected implementation into a shared library with a C header.

    With symbolic dimensions (data=float32[m,768]) the library holds the rows of the dispatch table
    behind one function that checks the shapes and jumps. For a target such as 'cuda -arch=sm_90', a
    cubin is written with its source and its launches; no GPU is needed.

    Example: plevel build dense -i data=float32[m,768] -i weight=float32[3072,768]:const -o libdense.so
    """
    workload, where = option.read_workload(op, inputs, attr), option.read_target(target, threads)
    if name is not None and not name.isidentifier():
        raise UsageError(f"--name {name!r:.80}: a name of C has letters, digits and underscores")
    if not output.parent.is_dir():
        raise CommandError(f"--output {output}: there is no folder {output.parent}")
    place = option.locate(url, database)
    from plevel.embedded import require_worker

    require_worker()
    from strategy.export import LibraryRow, export_library, table_rows
    from strategy.lower import CompileError, InstantiationError

    if where.kind == "cuda":
        _build_cuda(workload, where, implementation, config, place, output)
        return
    try:
        if implementation is None and not workload.is_constant:
            table = _dispatch(workload, where, place)
            print(table.explanation)
            rows: list[LibraryRow] = table_rows(table)
        else:
            rows = [LibraryRow(_lower(workload, where, implementation, config, place))]
        header = export_library(workload, rows, output, name)
    except (CompileError, InstantiationError) as error:
        raise CommandError(str(error)) from error
    print(f"{output} and {header} are written")


def _build_cuda(
    workload: Workload,
    target: Target,
    implementation: str | None,
    config: list[str] | None,
    place: option.Location,
    output: Path,
) -> None:
    from strategy.cuda.build import compile_cuda
    from strategy.cuda.limit import LimitError
    from strategy.cuda.source import PlanError
    from strategy.lower import CompileError, InstantiationError
    from strategy.target import TargetError

    if implementation is None and not workload.is_constant:
        raise UsageError("--implementation: name one; dispatch tables are not compiled for CUDA")
    try:
        artefact = compile_cuda(_lower(workload, target, implementation, config, place))
    except (CompileError, InstantiationError, LimitError, PlanError) as error:
        raise CommandError(str(error)) from error
    except TargetError as error:
        raise UsageError(f"--target: {error}") from error
    for name, usage in artefact.usage.items():
        spilled = "" if usage.spill_bytes is None else f", {usage.spill_bytes} bytes spilled"
        print(f"{name}: {usage.registers} registers{spilled}")
    print(f"{', '.join(str(path) for path in artefact.export(output))} are written")


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
            help="TensorIR, LLVM's IR, assembly, or CUDA C for a target such as 'cuda -arch=sm_90'.",
        ),
    ] = "tir",
    url: option.Url = None,
    database: option.Database = None,
) -> None:
    """Print the code of the selected (or named) implementation.

    Example: plevel show dense -i data=float32[128,768] -i weight=float32[3072,768]:const --as asm
    """
    workload, where = option.read_workload(op, inputs, attr), option.read_target(target, threads)
    if form not in FORMS:
        raise UsageError(f"--as {form!r:.40}: one of {', '.join(FORMS)}")
    place = option.locate(url, database)
    from plevel.embedded import require_worker

    require_worker()
    from strategy.lower import CompileError, InstantiationError

    try:
        lowered = _lower(workload, where, implementation, config, place)
        if where.kind == "cuda" and (form == "cuda" or lowered.template is not None):
            from strategy.cuda.build import emit

            print(emit(lowered).code)
        elif form == "tir":
            print(lowered.module.script())
        elif form == "cuda" or where.kind == "cuda":
            raise UsageError(f"--as {form}: {where} has no such code")
        else:
            source = lowered.compile().executable.mod.inspect_source(
                "ll" if form == "llvm" else "s"
            )
            print(source)
    except (CompileError, InstantiationError) as error:
        raise CommandError(str(error)) from error


def _lower(
    workload: Workload,
    target: Target,
    implementation: str | None,
    config: list[str] | None,
    place: option.Location,
) -> Lowered:
    from strategy.lower import lower

    if implementation is None:
        if config:
            raise UsageError("--config: name the implementation too, with --implementation")
        answer = _select(workload, target, place)
        print(f"# {answer.implementation}: {answer.explanation}")
        return lower(workload, target, answer.implementation, answer.config)
    return lower(
        workload, target, implementation, read_config(workload, target, implementation, config)
    )


def read_config(
    workload: Workload, target: Target, implementation: str, knobs: list[str] | None
) -> Config:
    """The implementation's configuration: its fallback with the knobs that are given.

    Raises:
        UsageError: an unknown implementation or knob, or a value or combination it cannot have.
    """
    from strategy.op import OpError
    from strategy.op_strategy import candidates, find_implementation
    from strategy.space import Config, ConfigError

    try:
        find_implementation(workload, target, implementation)
    except OpError as error:
        raise UsageError(f"--implementation: {error}") from error
    candidate = next(c for c in candidates(workload, target) if c.implementation == implementation)
    given = dict(option.read_attribute(text, "--config") for text in knobs or ())
    if candidate.space is None:
        if given:
            raise UsageError(f"--config: {implementation} has nothing to tune")
        return Config()
    values: dict[str, Any] = {**candidate.fallback, **{k: _knob(v) for k, v in given.items()}}
    try:
        return candidate.space.check(values)
    except ConfigError as error:
        raise UsageError(f"--config: {error}") from error


def _knob(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


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
