"""The pass pipeline from a scheduled module to CPU code: TVM's relevant passes, each once.

TVM's own pipeline serves all kinds of targets. Two thirds of it have no effect on CPU code (GPU threads and
memories, asynchronous copies), and its first passes must run before vector loops are masked
(`strategy.cpu.masking`). It gives the same code, but for what is added: masks, prefetches, branches,
non-temporal stores, sums on the stack, and its alignment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

# Must be raised when a change here or in `strategy.cpu.masking` makes the records of all CPU implementations wrong.
# It is added to their versions: both only rise, so no sum occurs twice.
PROCESSOR_VERSION = 3


@cache
def processor_pipeline() -> str:
    """The registered name of the pipeline, for `tvm.compile`."""
    from tvm.tirx import register_tir_pipeline

    register_tir_pipeline("plevel_processor", _pipeline)
    return "plevel_processor"


def _pipeline() -> tuple[Any, Callable[[], Any], Callable[[], Any]]:
    """The passes of the module, of host functions, and of device functions (none)."""
    from tvm import s_tir, tirx
    from tvm.ir.transform import Sequential, module_pass

    from strategy.cpu.ahead import insert_prefetches
    from strategy.cpu.amx_tasks import insert_shapes
    from strategy.cpu.binding import loop_over_scalars, read_bits, repeat_conditions, store_names
    from strategy.cpu.broadcast import broadcast_words
    from strategy.cpu.masking import mask_vector_loops, reveal_choices
    from strategy.cpu.registers import keep_on_stack
    from strategy.cpu.skipping import insert_branches
    from strategy.cpu.stack import align_stack
    from strategy.cpu.streaming import insert_streams

    early, late = s_tir.transform, tirx.transform
    passes = [
        late.ConvertSSA(),  # what is inlined in several places binds the same names there
        early.CanonicalizeLoop(),
        early.LowerInitBlock(),
        early.PlanAndUpdateBufferAllocationLocation(),
        early.ConvertBlocksToOpaque(),
        early.CompactBufferAllocation(),
        early.LowerMatchBuffer(),
        early.StmtSimplify(),
        early.LowerOpaqueBlock(),
        late.FlattenBuffer(),
        late.NarrowDataType(32),
        module_pass(lambda module, _: insert_branches(module), opt_level=0, name="insert_branches"),
        module_pass(lambda module, _: mask_vector_loops(module), opt_level=0, name="mask_vector_loops"),
        module_pass(lambda module, _: insert_prefetches(module), opt_level=0, name="insert_prefetches"),
        module_pass(lambda module, _: read_bits(module), opt_level=0, name="read_bits"),
        late.BF16ComputeLegalize(),
        late.ConvertSSA(),  # it repeats what is rounded, and the names that are bound there
        early.LoopPartition(),
        module_pass(lambda module, _: loop_over_scalars(module), opt_level=0, name="loop_over_scalars"),
        late.VectorizeLoop(True),
        late.StorageRewrite(),
        early.HoistIfThenElse(),
        late.UnrollLoop(),
        early.RenormalizeSplitPattern(),
        late.StmtSimplify(),
        late.RemoveNoOp(),
        early.RewriteUnsafeSelect(),
        late.CommonSubexprElim(),
        module_pass(lambda module, _: repeat_conditions(module), opt_level=0, name="repeat_conditions"),
        module_pass(lambda module, _: insert_streams(module), opt_level=0, name="insert_streams"),
        module_pass(lambda module, _: keep_on_stack(module), opt_level=0, name="keep_on_stack"),
        module_pass(lambda module, _: align_stack(module), opt_level=0, name="align_stack"),
        late.AnnotateEntryFunc(),
        late.MakePackedAPI(),
        module_pass(lambda module, _: broadcast_words(module), opt_level=0, name="broadcast_words"),
        late.BF16StorageLegalize(),
    ]
    return (
        Sequential(passes),
        lambda: Sequential(
            [
                late.LowerTVMBuiltin(),
                late.LowerIntrin(),
                module_pass(lambda module, _: reveal_choices(module), opt_level=0, name="reveal_choices"),
                module_pass(lambda module, _: store_names(module), opt_level=0, name="store_names"),
                module_pass(lambda module, _: insert_shapes(module), opt_level=0, name="insert_shapes"),
            ]
        ),
        lambda: Sequential([]),
    )
