"""`batch_matmul` on NVIDIA's GPUs: the products of `dense`, one for each entry of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from strategy.condition import SpecializedCondition
from strategy.cuda.dlight import schedule_by
from strategy.cuda.library import multiplies, schedule_in_place
from strategy.cuda.limit import limits_of
from strategy.cuda.matmul import Product, Read, compute_product
from strategy.cuda.mma import mma_product, mma_space, takes_mma
from strategy.cuda.tensor_core import schedule_tensor_core, tensor_space
from strategy.cuda.tiled import loops_of_parts, schedule_tiled, tiled_space
from strategy.cuda.wgmma import takes_wgmma, wgmma_product, wgmma_space
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.ops.batch_matmul import BatchMatmulAttrs, cublas, mma
from strategy.ops.batch_matmul.operator import compute_batch_matmul
from strategy.ops.dense.mma import space as mma_space_of
from strategy.pattern import extents_of
from strategy.schedule import Outs, ScheduleError, join_epilogue, new_schedule
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.type_relation import FLOATS
from strategy.types import TensorType


def batch_matmul_strategy_cuda(
    attrs: BatchMatmulAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The implementations for NVIDIA's GPUs."""
    strategy = OpStrategy()
    strategy.add_implementation(
        compute, schedule, "batch_matmul_tiled.cuda", 10, version=2, space=space
    )
    if inputs[0].dtype in limits_of(target).tensor_cores:
        strategy.add_implementation(
            compute, schedule_tensors, "batch_matmul_tensor_core.cuda", 15, space=space_of_tensors
        )
    if mma.takes(takes_mma, attrs, inputs, out_type, target):
        strategy.add_implementation(
            partial(mma.compute, mma_product), schedule_in_place, "batch_matmul_mma.cuda", 18,
            version=2, space=partial(mma_space_of, mma_space),
        )
    if mma.takes(takes_wgmma, attrs, inputs, out_type, target):
        strategy.add_implementation(
            partial(mma.compute, wgmma_product), schedule_in_place, "batch_matmul_wgmma.cuda", 19,
            space=partial(mma_space_of, wgmma_space),
        )
    if "cublas" in target.libs and multiplies(inputs[0].dtype, out_type.dtype):
        strategy.add_implementation(
            cublas.compute, schedule_in_place, "batch_matmul_cublas.cuda", 25, library="cublas"
        )
    # Of narrow floats its rule imports all of TVM's intrinsics, which takes half a minute.
    if inputs[0].dtype == out_type.dtype == "float32":
        with SpecializedCondition(out_type.shape[1] > 1):
            strategy.add_implementation(
                compute_batch_matmul, schedule_by("Matmul"), "batch_matmul_dlight.cuda", 5
            )
    return strategy


def space(
    attrs: BatchMatmulAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Blocks, threads and loads."""
    batch = max(int(t.shape[0]) if t.shape[0].is_constant else 1 for t in inputs)
    last = [t.shape[2] for t in inputs]
    whole = all(extent.is_constant and int(extent) % 4 == 0 for extent in last)
    return tiled_space(
        limits_of(target), _multiplied(attrs, inputs[0].dtype), *_extents(attrs, inputs), batch=batch,
        along_k=attrs.transpose_b and not attrs.transpose_a, vector=4 if whole else 1,
    )


def space_of_tensors(
    attrs: BatchMatmulAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Blocks, warps and loads."""
    return tensor_space(limits_of(target), *_extents(attrs, inputs))


def _multiplied(attrs: BatchMatmulAttrs, dtype: str) -> str:
    """The dtype of the factors: integers have that of their sums, in which their products fit."""
    return dtype if dtype in FLOATS else attrs.out_dtype or dtype


def _extents(attrs: BatchMatmulAttrs, inputs: Sequence[TensorType]) -> tuple[int | None, int, int]:
    x, y = inputs
    m, k = (x.shape[2], x.shape[1]) if attrs.transpose_a else (x.shape[1], x.shape[2])
    n = y.shape[1] if attrs.transpose_b else y.shape[2]
    for name, dim in (("n", n), ("k", k)):
        if not dim.is_constant:
            raise ScheduleError(f"batch_matmul needs a constant {name} here, got '{dim}'")
    return int(m) if m.is_constant else None, int(n), int(k)


def compute(
    attrs: BatchMatmulAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The padded products, and the part of them that is wanted; a batch of 1 is read for all."""
    from tvm import te, tirx

    x, y = inputs
    batch, m, n = extents_of(out_type, inputs)
    k = int(x.shape[1 if attrs.transpose_a else 2])
    dtype = _multiplied(attrs, str(x.dtype))

    def operand(tensor: Any, turned: bool) -> Read:
        single = isinstance(tensor.shape[0], tirx.IntImm) and int(tensor.shape[0]) == 1

        def read(entry: Any, row: Any, step: Any) -> Any:
            entry = 0 if single else entry
            value = tensor[entry, step, row] if turned else tensor[entry, row, step]
            return value.astype(dtype)

        return read

    product = compute_product(
        Product(batch, m, n, k),
        operand(x, attrs.transpose_a),
        operand(y, not attrs.transpose_b),
        dtype,
        config,
    )
    return [
        te.compute(
            (batch, m, n),
            lambda b, i, j: product[b, i, j].astype(out_type.dtype),
            name="batch_matmul",
        )
    ]


def schedule(attrs: BatchMatmulAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """See `schedule_tiled`."""
    sch = new_schedule(outs)
    loops = loops_of_parts(sch) or tuple(sch.get_loops(join_epilogue(sch)))
    schedule_tiled(
        sch, loops, config, a_along_k=not attrs.transpose_a, b_along_k=attrs.transpose_b
    )
    return sch


def schedule_tensors(attrs: BatchMatmulAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """See `schedule_tensor_core`."""
    sch = new_schedule(outs)
    batch, i, j = sch.get_loops(join_epilogue(sch))
    schedule_tensor_core(
        sch, (batch, i, j), config, a_along_k=not attrs.transpose_a, b_along_k=attrs.transpose_b
    )
    return sch


get_registered_op("batch_matmul").get_attr("FTVMStrategy").register(
    ["cuda", "gpu"], batch_matmul_strategy_cuda
)
