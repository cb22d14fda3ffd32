"""batch_matmul: a product of matrices for each entry of a batch.

    batch_matmul.cpu         every dtype, with symbolic dimensions too
    batch_matmul_pack.cpu    register tiles; y packed into panels if it is transposed
    batch_matmul_dot.cpu     bfloat16 by dot-product instructions, y packed for them
    batch_matmul_amx.cpu     bfloat16 and 8-bit integers by AMX, y packed for it
    batch_matmul_cblas.cpu   the vendor's CBLAS, entries of the batch in parallel
"""

from __future__ import annotations

from collections.abc import Sequence

from strategy.cpu import widened
from strategy.cpu.dot import plevel_of
from strategy.generic_func import GenericFunc, get_native_generic_func
from strategy.op import register_strategy
from strategy.op_strategy import OpStrategy
from strategy.ops.batch_matmul import cblas, pack
from strategy.ops.batch_matmul.operator import BatchMatmulAttrs, batch_matmul, compute_batch_matmul
from strategy.ops.dense import amx, dot
from strategy.pattern import schedule_plain_cpu
from strategy.target import Target
from strategy.types import TensorType

__all__ = ["BatchMatmulAttrs", "batch_matmul", "batch_matmul_strategy"]

batch_matmul_strategy: GenericFunc = get_native_generic_func("batch_matmul_strategy")


@batch_matmul_strategy.register("cpu")
def batch_matmul_strategy_cpu(
    attrs: BatchMatmulAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The implementations for processors."""
    strategy = OpStrategy()
    strategy.add_implementation(compute_batch_matmul, schedule_plain_cpu, "batch_matmul.cpu", 5)
    # Tiles are counted when the code is made; the entries of the batch may be when it runs.
    tiled = all(d.is_constant for kind in inputs for d in kind.shape[1:])
    if tiled and widened.serves(inputs, out_type):
        packed = OpStrategy()
        packed.add_implementation(
            pack.compute, pack.schedule, "batch_matmul_pack.cpu", 15, version=2,
            space=pack.space, prepare=pack.prepare,
        )
        strategy.extend(widened.for_types(packed, inputs))
    constant = all(d.is_constant for kind in inputs for d in kind.shape)
    if constant and not attrs.transpose_a and inputs[0].dtype == "bfloat16":
        instruction = dot.dot_of(inputs, target)
        if instruction is not None:
            dot.add(strategy, instruction, "batch_matmul_dot.cpu", plevel_of(target, "bfloat16", 16))
    if constant and not attrs.transpose_a and out_type.dtype in amx.RESULTS.get(inputs[0].dtype, ()):
        product = amx.product_of(inputs, target)
        if product is not None:
            # One row does not pay for the packing of y.
            is_row = (inputs[0].shape[1] == 1).decide()
            amx.add(strategy, product, "batch_matmul_amx.cpu", 9 if is_row else 18)
    if constant and inputs[0].dtype == out_type.dtype == "float32" and "cblas" in target.libs:
        batch, rows = (int(d) for d in out_type.shape[:2])
        # Few rows do not pay for packing y at each call; nor do entries that threads share, as it is packed apart.
        at_each_call = 20 if attrs.transpose_b and (rows < 8 or batch < target.threads) else 10
        strategy.add_implementation(
            cblas.compute, cblas.schedule, "batch_matmul_cblas.cpu", at_each_call if rows == 1 else 10,
            library="cblas", varying_plevel=at_each_call,
        )
    return strategy


register_strategy("batch_matmul", batch_matmul_strategy)
