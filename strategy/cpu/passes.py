"""The way from a scheduled module to a processor's code: TVM's passes that matter there, each once.

TVM's own sequence serves all kinds of targets. Two thirds of it find nothing to do in code for a
processor (threads of a GPU, its memories, asynchronous copies), and it begins with what has to be done
before vector loops can be masked (`strategy.cpu.masking`): run after that, it would do it all again. What
remains here gives the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

# Raised whenever a change here or in `strategy.cpu.masking` changes what records of all implementations on
# processors mean. It is added to their versions: both only rise, so that no sum comes twice.
PROCESSOR_VERSION = 1


@cache
def processor_pipeline() -> str:
    """The name under which TVM knows the pipeline, for `tvm.compile`."""
    from tvm.tirx import register_tir_pipeline

    register_tir_pipeline("plevel_processor", _pipeline)
    return "plevel_processor"


def _pipeline() -> tuple[Any, Callable[[], Any], Callable[[], Any]]:
    """The passes over all, then those over the host's functions and over a device's, of which it has none."""
    from tvm import s_tir, tirx
    from tvm.ir.transform import Sequential, module_pass

    from strategy.cpu.masking import mask_vector_loops, reveal_choices

    early, late = s_tir.transform, tirx.transform
    passes = [
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
        module_pass(lambda module, _: mask_vector_loops(module), opt_level=0, name="mask_vector_loops"),
        late.BF16ComputeLegalize(),
        early.LoopPartition(),
        late.VectorizeLoop(True),
        late.StorageRewrite(),
        early.HoistIfThenElse(),
        late.UnrollLoop(),
        early.RenormalizeSplitPattern(),
        late.StmtSimplify(),
        late.RemoveNoOp(),
        early.RewriteUnsafeSelect(),
        late.CommonSubexprElim(),
        late.AnnotateEntryFunc(),
        late.MakePackedAPI(),
        late.BF16StorageLegalize(),
    ]
    return (
        Sequential(passes),
        lambda: Sequential(
            [
                late.LowerTVMBuiltin(),
                late.LowerIntrin(),
                module_pass(lambda module, _: reveal_choices(module), opt_level=0, name="reveal_choices"),
            ]
        ),
        lambda: Sequential([]),
    )
