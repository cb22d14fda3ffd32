"""Implementations of operators along an axis: several threads per row, which is read once.

TVM's own schedule is another implementation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.dlight import schedule_by
from strategy.cuda.limit import limits_of
from strategy.cuda.matmul import accumulator
from strategy.cuda.row import row_space, schedule_rows
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.pattern import PLAIN_VERSION, Compute, schedule_reduce
from strategy.schedule import Outs
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType, Type


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """The space of rows for the shape and axis of a call."""
    axis, data = _axis(attrs) % inputs[0].ndim, inputs[0]
    others = [extent for i, extent in enumerate(data.shape) if i != axis]
    length = int(data.shape[axis]) if data.shape[axis].is_constant else None
    rows = math.prod(map(int, others)) if all(e.is_constant for e in others) else None
    return row_space(limits_of(target), rows, length, accumulator(data.dtype), data.dtype)


def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """The schedule of rows along the axis of a call."""
    return schedule_rows(outs, _axis(attrs) % len(outs.args[0].shape), config)


schedule_rule = schedule_by("GeneralReduction")


def _axis(attrs: Any) -> int:
    """The axis along which the operator's rows lie."""
    return int(attrs.axis)


def register_row_implementations(name: str, generic: Compute) -> None:
    """Register GPU implementations of an operator whose attribute `axis` is along its rows.

    Args:
        name: the operator, which must have a strategy.
        generic: its compute for all targets.
    """

    def compute(attrs: Attrs, inputs: Sequence[Any], out_type: Type, config: Config) -> list[Any]:
        return list(generic(attrs, inputs, out_type))

    def strategy_cuda(
        attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
    ) -> OpStrategy:
        strategy = OpStrategy()
        if inputs[0].is_empty:
            strategy.add_implementation(generic, schedule_reduce.dispatch(target), "reduce.cuda", version=PLAIN_VERSION)
            return strategy
        strategy.add_implementation(compute, schedule, f"{name}_rows.cuda", 10, version=2, space=space)
        strategy.add_implementation(generic, schedule_rule, f"{name}_dlight.cuda", 5)
        return strategy

    get_registered_op(name).get_attr("FTVMStrategy").register(["cuda", "gpu"], strategy_cuda)
