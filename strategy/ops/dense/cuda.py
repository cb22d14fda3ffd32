"""`dense` on NVIDIA's GPUs: tiles of registers, tensor cores, one warp per sum, and TVM's dlight.

dense_tiled.cuda        any dtype: operands in shared memory, sums in registers
dense_tensor_core.cuda  float16 and bfloat16, summed in float32 by tensor cores
dense_mma.cuda          the same by mma.sync, copied ahead by cp.async; sm_80 and later
dense_wgmma.cuda        the same by Hopper's wgmma
dense_gemv.cuda         few rows: threads side by side along k
dense_dlight.cuda       float32, and one row of any float, by TVM's own rules, as a rival
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.condition import SpecializedCondition
from strategy.cuda.dlight import schedule_by
from strategy.cuda.library import multiplies, schedule_in_place
from strategy.cuda.limit import limits_of
from strategy.cuda.matmul import Product, accumulator, compute_product
from strategy.cuda.mma import takes_mma
from strategy.cuda.tensor_core import schedule_tensor_core, tensor_space
from strategy.cuda.tiled import loops_of_parts, schedule_tiled, tiled_space
from strategy.cuda.wgmma import takes_wgmma
from strategy.op_strategy import OpStrategy
from strategy.ops.dense import cublas, dense_strategy, mma
from strategy.ops.dense.tile import Extents
from strategy.schedule import (
    Outs,
    find_stages,
    integer,
    join_epilogue,
    new_schedule,
    stage,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import Dim, TensorType, Type

_GEMV_ROWS = 16


@dense_strategy.register("cuda")
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
            mma.compute, schedule_in_place, "dense_mma.cuda", 18, version=2, space=mma.space
        )
    if takes_wgmma(Dim(1), n, k, inputs[0].dtype, out_type.dtype, limits_of(target)):
        strategy.add_implementation(
            mma.compute_by_groups, schedule_in_place, "dense_wgmma.cuda", 19,
            space=mma.space_of_groups,
        )  # fmt: skip
    with SpecializedCondition(m <= _GEMV_ROWS):
        strategy.add_implementation(
            compute_gemv, schedule_gemv, "dense_gemv.cuda", 20, space=space_of_gemv
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
    """The padded product, and the part of it that is wanted."""
    from tvm import te

    data, weight = inputs
    (m, k), n = data.shape, int(weight.shape[0])
    m = int(m) if out_type.shape[0].is_constant else m
    product = compute_product(
        Product(1, m, n, int(k)),
        lambda batch, i, step: data[i, step],
        lambda batch, j, step: weight[j, step],
        str(data.dtype),
        config,
    )
    return [te.compute((m, n), lambda i, j: product[0, i, j].astype(out_type.dtype), name="dense")]


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


def space_of_gemv(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Threads along k, columns per block, and how much of k a thread reads at a time."""
    limits, k = limits_of(target), int(inputs[1].shape[1])
    sizes = [t for t in (32, 64, 128, 256, 512) if t == 32 or t < 2 * k]
    threads = knob("threads") * knob("columns")
    return ConfigSpace(
        [
            Knob("threads", sizes),
            Knob("columns", [1, 2, 4, 8, 16]),
            Knob("steps", [1, 2, 4, 8]),
        ],
        [threads <= limits.threads],
        derived={"block": threads},
        fallback={"threads": min(sizes[-1], 64), "columns": 4, "steps": 4},
    )


def compute_gemv(
    attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The product, over a k padded with zeros to whole turns of all threads."""
    from tvm import te, tirx

    data, weight = inputs
    (m, k), n = data.shape, int(weight.shape[0])
    depth, turn = int(k), integer(config, "threads") * integer(config, "steps")
    dtype = str(data.dtype)
    sum_dtype = dtype if dtype == "float64" else "float32"
    step = te.reduce_axis((0, -(-depth // turn) * turn), name="step")

    def term(i: Any, j: Any) -> Any:
        value = data[i, step].astype(sum_dtype) * weight[j, step].astype(sum_dtype)
        if depth % turn == 0:
            return value
        return tirx.if_then_else(step < depth, value, tirx.const(0, sum_dtype))

    product = te.compute(
        (m, n), lambda i, j: te.sum(term(i, j), axis=step), name="product", attrs=stage("product")
    )
    return [te.compute((m, n), lambda i, j: product[i, j].astype(out_type.dtype), name="dense")]


def schedule_gemv(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """A block has some columns of one row, and `threads` threads for each, which add their parts."""
    sch = new_schedule(outs)
    product = find_stages(sch)["product"]
    output = join_epilogue(sch)
    threads, columns, steps = (integer(config, name) for name in ("threads", "columns", "steps"))
    row, column = sch.get_loops(output)
    block, column = sch.split(column, [None, columns])
    sch.reorder(row, block, column)
    sch.bind(row, "blockIdx.y")
    sch.bind(block, "blockIdx.x")
    sch.set_scope(product, 0, "shared")
    sch.compute_at(product, block, preserve_unit_loops=True)
    *_, i, j, step = sch.get_loops(product)
    _, x, each = sch.split(step, [None, threads, steps])
    sch.bind(sch.fuse(i, j), "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.unroll(each)
    sch.bind(column, "threadIdx.y")
    return sch


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
