"""`plevel show`: the code of the selected implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from plevel.cli import location, option
from plevel.cli.chosen import Implementation, Knobs, described, lower_chosen
from plevel.cli.error import CommandError, UsageError
from plevel.cli.processor import require_known

if TYPE_CHECKING:
    from strategy.compile.lower import Lowered
    from strategy.target import Target


def show(
    op: option.OpOrWorkload,
    inputs: option.Inputs = None,
    attr: option.Attributes = None,
    target: option.TargetSpec = "cpu",
    threads: option.Threads = None,
    implementation: Implementation = None,
    config: Knobs = None,
    form: Annotated[
        str,
        option.choice(
            "--as", ("tir", "llvm", "asm", "cuda"),
            "TensorIR, LLVM's IR, assembly, or CUDA C for a target such as 'cuda -arch=sm_90'.",
        ),
    ] = "tir",
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """Print the code of the selected (or named) implementation.

    Example: plevel show dense -i 'data=float32[128,768]' -i 'weight=float32[3072,768]:const' --as asm
    """
    workload, where = option.read_workload(op, inputs, attr), option.read_target(target, threads)
    place = location.locate(url, database, namespace)
    from plevel.cli.output import print_json
    from plevel.extra import require_worker

    require_worker()
    require_known(where)
    from strategy.cuda.limit import LimitError
    from strategy.cuda.source import PlanError
    from strategy.fault import CompileError, InstantiationError
    from strategy.target import TargetError

    try:
        chosen = lower_chosen(workload, where, implementation, config, place)
        code = _code(chosen.lowered, where, form)
    except (CompileError, InstantiationError, LimitError, PlanError) as error:
        raise CommandError(str(error)) from error
    except TargetError as error:
        raise UsageError(f"--target: {error}") from error
    if as_json:
        print_json({"form": form, **described(chosen), "code": code})
        return
    chosen.say_why()
    print(code)


def _code(lowered: Lowered, target: Target, form: str) -> str:
    if target.kind == "cuda" and (form == "cuda" or lowered.template is not None):
        import msgspec

        from strategy.compile.cuda import emit

        source = emit(lowered)
        if source.code:
            return source.code
        # Only library calls: print each with its arguments.
        return msgspec.json.format(msgspec.json.encode(source.programs)).decode()
    if form == "tir":
        return str(lowered.module.script())
    if form == "cuda" or target.kind == "cuda":
        others = "cuda or tir" if target.kind == "cuda" else "tir, llvm or asm"
        raise UsageError(f"--as {form}: not available for {target}: use {others}")
    module = lowered.compile().executable.mod
    return str(module.inspect_source("ll" if form == "llvm" else "s"))
