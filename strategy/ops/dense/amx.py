"""`dense_amx.cpu`, `qdense_amx.cpu`, `batch_matmul_amx.cpu`: products by AMX, in blocks of tiles.

The weight is packed as for `dense_dot.cpu`, with zeros behind n, and behind k where that is no whole number of tiles.
Tiles of the data are read in place, where the blocks' rows and the tiles' words divide m and k; elsewhere from a copy
whose tiles lie side by side. A block's sums go through memory of the task to the epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from strategy.attrs import Attrs
from strategy.cpu.amx import find_product
from strategy.cpu.dot import Dot
from strategy.op_strategy import OpStrategy
from strategy.ops.dense.amx_product import Depth, is_summed, product, schedule_product, space_of
from strategy.ops.dense.dot import packing
from strategy.schedule import Outs, integer, start_schedule
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType

RESULTS = {"bfloat16": ("bfloat16", "float32"), "int8": ("int32",), "uint8": ("int32",)}  # of sums


def product_of(inputs: Sequence[TensorType], target: Target) -> Dot | None:
    """The target's instruction for the dtypes of data[…, m, k] and a weight; None without one, or if k is symbolic."""
    known = inputs[0].shape[-1].is_constant and all(d.is_constant for d in inputs[1].shape)
    return find_product(target, inputs[0].dtype, inputs[1].dtype) if known else None


def add(strategy: OpStrategy, dot: Dot, name: str, plevel: int) -> None:
    """Add the implementation by an instruction to a strategy."""
    strategy.add_implementation(
        partial(compute, dot), partial(schedule, dot), name, plevel,
        space=partial(space, dot), prepare=partial(prepare, dot),
    )


def space(
    dot: Dot, attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The block, how blocks are grouped into tasks, and where the data are copied, if they are."""
    *batch, m, n = out_type.shape
    k = int(inputs[0].shape[-1])
    depth = Depth.of(dot, k)
    in_place = m.is_constant and depth.total * dot.group == k
    return space_of(m, int(n), math.prod(map(int, batch)), target, in_place=in_place, depth=depth)


def prepare(
    dot: Dot, attrs: Attrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into panels [ceil(n / width), words, width, group], with its rows' sums if needed."""
    pack = packing(
        dot, integer(config, "width"), Depth.of(dot, int(inputs[0].shape[-1])).total,
        is_transposed=getattr(attrs, "transpose_b", True), summed=is_summed(dot, attrs, inputs[0].dtype),
    )
    return {1: pack}


def compute(
    dot: Dot, attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The product over whole blocks, and its part within m × n, less the zero points' share."""
    from tvm import te

    data, weight = inputs
    total = product(dot, attrs, data, weight, int(out_type.shape[-1]), Depth.of(dot, int(data.shape[-1])), config)
    shape = (*total.shape[:-2], data.shape[-2], int(out_type.shape[-1]))
    return [te.compute(shape, lambda *i: total(*i).astype(out_type.dtype), name="dense")]


def schedule(dot: Dot, attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of panels × rows in parallel; in each, one block after the other."""
    data = outs.args[0]
    sch, stages, output = start_schedule(outs)
    schedule_product(
        sch, stages, output, dot, Depth.of(dot, int(data.shape[-1])), config,
        summed=is_summed(dot, attrs, data.dtype), m=data.shape[-2],
        in_place=(str(data.dtype), int(data.shape[-1]) // dot.group),
    )
    return sch
