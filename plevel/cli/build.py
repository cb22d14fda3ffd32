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
FORMS = ("tir", "llvm", "asm")


def build(
    op: option.Op,
    inputs: option.Inputs,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE.so", help="The library; its header is FILE.h."
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
    behind one function that checks the shapes and jumps.

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


def show(
    op: option.Op,
    inputs: option.Inputs,
    attr: option.Attributes = None,
    target: option.TargetSpec = "cpu",
    threads: option.Threads = None,
    implementation: Implementation = None,
    config: Knobs = None,
    form: Annotated[
        str, typer.Option("--as", metavar="tir|llvm|asm", help="TensorIR, LLVM's IR, or assembly.")
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
        if form == "tir":
            print(lowered.module.script())
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
