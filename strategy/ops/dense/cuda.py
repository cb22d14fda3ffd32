"""`dense` on NVIDIA's GPUs: tiles of registers, tensor cores, one warp per sum, and TVM's dlight.

dense_tiled.cuda        any dtype: operands in shared memory, sums in registers
dense_tensor_core.cuda  float16 and bfloat16, summed in float32 by tensor cores
dense_mma.cuda          the same by mma.sync, copied ahead by cp.async; sm_80 and later
dense_wgmma.cuda        the same by Hopper's wgmma
dense_gemv.cuda         few rows, for which the weight is read once: threads side by side along k
dense_dlight.cuda       float32, and one row of any float, by TVM's own rules, as a rival
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from strategy.attrs import Attrs
from strategy.condition import SpecializedCondition
from strategy.cpu.tile import Extents
from strategy.cuda.dlight import schedule_by
from strategy.cuda.library import multiplies, schedule_in_place
from strategy.cuda.limit import limits_of
from strategy.cuda.matmul import accumulator
from strategy.cuda.mma import mma_product, mma_space, takes_mma
from strategy.cuda.tensor_core import schedule_tensor_core, tensor_space
from strategy.cuda.tiled import loops_of_parts, schedule_tiled, tiled_space
from strategy.cuda.wgmma import takes_wgmma, wgmma_product, wgmma_space
from strategy.op_strategy import OpStrategy
from strategy.ops.dense import cublas, dense_strategy, gemv_cuda, mma
from strategy.schedule import Outs, join_epilogue, new_schedule
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import Dim, TensorType, Type


@dense_strategy.register(["cuda", "gpu"])
def dense_strategy_cuda(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The implementations for NVIDIA's GPUs."""
    strategy = OpStrategy()
    m = inputs[0].shape[0]
    strategy.add_implementation(compute, schedule, "dense_tiled.cuda", 10, version=2, space=space)
    if inputs[0].dtype in limits_of(target).tensor_cores:
        strategy.add_implementation(
            compute, schedule_tensors, "dense_tensor_core.cuda", 15, space=space_of_tensors
        )
    n, k = inputs[1].shape
    if takes_mma(Dim(1), n, k, inputs[0].dtype, out_type.dtype, limits_of(target)):
        strategy.add_implementation(
            partial(mma.compute, mma_product), schedule_in_place, "dense_mma.cuda", 18,
            version=2, space=partial(mma.space, mma_space),
        )
    if takes_wgmma(Dim(1), n, k, inputs[0].dtype, out_type.dtype, limits_of(target)):
        strategy.add_implementation(
            partial(mma.compute, wgmma_product), schedule_in_place, "dense_wgmma.cuda", 19,
            space=partial(mma.space, wgmma_space),
        )
    with SpecializedCondition(m <= gemv_cuda.ROWS):
        strategy.add_implementation(
            gemv_cuda.compute, gemv_cuda.schedule, "dense_gemv.cuda", 20,
            version=2, space=gemv_cuda.space,
        )
    if "cublas" in target.libs and multiplies(inputs[0].dtype, out_type.dtype):
        strategy.add_implementation(
            cublas.compute, schedule_in_place, "dense_cublas.cuda", 25, library="cublas"
        )
    if inputs[0].dtype == out_type.dtype == "float32":
        strategy.add_implementation(
            compute_plain, schedule_by("Matmul", "GEMV"), "dense_dlight.cuda", 5, version=2
        )
    elif inputs[0].dtype in ("float16", "bfloat16"):
        # The rule for tensor cores imports all of TVM's intrinsics, which takes half a minute.
        with SpecializedCondition(m == 1):
            strategy.add_implementation(
                compute_plain, schedule_by("GEMV"), "dense_dlight.cuda", 5, version=2
            )
    return strategy


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Blocks, threads and loads."""
    m, n, k = _extents(inputs)
    return tiled_space(
        limits_of(target), inputs[0].dtype, m, n, k, vector=4 if k % 4 == 0 else 1
    )


def space_of_tensors(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Blocks, warps and loads."""
    return tensor_space(limits_of(target), *_extents(inputs))


def _extents(inputs: Sequence[TensorType]) -> tuple[int | None, int, int]:
    extents = Extents.of(inputs)
    return int(extents.m) if extents.m.is_constant else None, extents.n, extents.k


def compute(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The product, padded to whole blocks."""
    return gemv_cuda.compute_padded(inputs, out_type, config)


def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """See `schedule_tiled`."""
    sch = new_schedule(outs)
    schedule_tiled(sch, loops_of_parts(sch) or _loops(sch), config)
    return sch


def schedule_tensors(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """See `schedule_tensor_core`."""
    sch = new_schedule(outs)
    schedule_tensor_core(sch, _loops(sch), config)
    return sch


def _loops(sch: Any) -> tuple[Any, Any, Any]:
    row, column = sch.get_loops(join_epilogue(sch))
    return sch.add_unit_loop(row), row, column


def compute_plain(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    """The product as it is written, narrow floats summed in float32."""
    from tvm import te

    data, weight = inputs
    (m, k), n = data.shape, weight.shape[0]
    step = te.reduce_axis((0, k), name="step")
    dtype = accumulator(inputs[0].dtype)
    product = te.compute(
        (m, n),
        lambda i, j: te.sum(data[i, step].astype(dtype) * weight[j, step].astype(dtype), axis=step),
        name="product",
    )
    if dtype == out_type.dtype:
        return [product]
    return [te.compute((m, n), lambda i, j: product[i, j].astype(out_type.dtype), name="dense")]
