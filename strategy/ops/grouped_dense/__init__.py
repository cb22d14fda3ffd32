"""`grouped_dense`: rows in groups, each by its group's own weight, as experts are in a mixture of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from strategy.attrs import Attrs
from strategy.op_strategy import OpStrategy
from strategy.ops.grouped_dense import pack
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
    # Packing moves the weights of all groups, of which few rows read few.
    is_few = m.is_constant and int(m) <= int(weight.shape[0])
    strategy.add_implementation(
        partial(pack.compute, lanes_of(target, accumulator(inputs[0].dtype))), pack.schedule,
        "grouped_dense_pack.cpu", 12, space=pack.space, prepare=pack.prepare, varying_plevel=9 if is_few else None,
    )  # fmt: skip


register_cpu_implementations("grouped_dense", _add)
