"""`grouped_dense`: rows in groups, each by its group's own weight, as experts are in a mixture of them.

    reduce.cpu               every dtype and all dimensions symbolic; weights that vary, for few rows
    grouped_dense_pack.cpu   register tiles of each group's rows, weights packed into panels
    grouped_dense_dot.cpu    the same for bfloat16 by dot-product instructions
    grouped_dense_amx.cpu    bfloat16 by AMX, for more rows than groups
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from strategy.attrs import Attrs
from strategy.condition import SpecializedCondition
from strategy.cpu.amx import find_product
from strategy.cpu.dot import Dot, plevel_of
from strategy.op_strategy import OpStrategy
from strategy.ops.dense.dot import dot_of
from strategy.ops.grouped_dense import amx, loops, pack
from strategy.ops.grouped_dense.operator import grouped_dense
from strategy.pattern import register_cpu_implementations
from strategy.schedule import accumulator, lanes_of
from strategy.target import Target
from strategy.types import TensorType

__all__ = ["grouped_dense"]


def _add(
    strategy: OpStrategy, attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> None:
    (m, k), weight = inputs[0].shape, inputs[1]
    if not k.is_constant or not all(d.is_constant for d in weight.shape):
        return
    groups = int(weight.shape[0])
    # Packing moves the weights of all groups, of which few rows read few.
    is_few = m.is_constant and int(m) <= groups
    def add_packed(dot: Dot | None, lanes: int, name: str, plevel: int) -> None:
        strategy.add_implementation(
            partial(pack.compute, lanes, dot), loops.schedule, name, plevel,
            space=partial(pack.space, dot), prepare=partial(pack.prepare, dot), varying_plevel=9 if is_few else None,
        )

    add_packed(None, lanes_of(target, accumulator(inputs[0].dtype)), "grouped_dense_pack.cpu", 12)
    if (dot := dot_of(inputs, target)) is not None:
        add_packed(dot, dot.lanes, "grouped_dense_dot.cpu", plevel_of(target, inputs[0].dtype, 14))
    if (product := find_product(target, inputs[0].dtype, weight.dtype)) is not None:
        with SpecializedCondition(m > groups):  # a block has more rows than fewer would fill
            strategy.add_implementation(
                partial(amx.compute, product), loops.schedule, "grouped_dense_amx.cpu", 18,
                version=2, space=partial(amx.space, product), prepare=partial(amx.prepare, product),
            )


register_cpu_implementations("grouped_dense", _add)
