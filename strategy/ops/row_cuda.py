"""softmax, log_softmax and layer_norm on NVIDIA's GPUs: some threads for each row, which is read once.

TVM's own schedules of them are rivals.
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
from strategy.ops.layer_norm import compute_layer_norm
from strategy.ops.softmax import compute_log_softmax, compute_softmax
from strategy.pattern import Compute
from strategy.schedule import Outs
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType, Type


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """See `row_space`."""
    axis, data = _axis(attrs) % inputs[0].ndim, inputs[0]
    others = [extent for i, extent in enumerate(data.shape) if i != axis]
    length = int(data.shape[axis]) if data.shape[axis].is_constant else None
    rows = math.prod(map(int, others)) if all(e.is_constant for e in others) else None
    return row_space(limits_of(target), rows, length, accumulator(data.dtype), data.dtype)


def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """See `schedule_rows`."""
    return schedule_rows(outs, _axis(attrs) % len(outs.args[0].shape), config)


schedule_rule = schedule_by("GeneralReduction")


def _axis(attrs: Any) -> int:
    """The axis along which the operator's rows lie."""
    return int(attrs.axis)


def _register(name: str, generic: Compute) -> None:
    def compute(attrs: Attrs, inputs: Sequence[Any], out_type: Type, config: Config) -> list[Any]:
        return list(generic(attrs, inputs, out_type))

    def strategy_cuda(
        attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
    ) -> OpStrategy:
        strategy = OpStrategy()
        strategy.add_implementation(compute, schedule, f"{name}_rows.cuda", 10, version=2, space=space)
        strategy.add_implementation(generic, schedule_rule, f"{name}_dlight.cuda", 5)
        return strategy

    get_registered_op(name).get_attr("FTVMStrategy").register(["cuda", "gpu"], strategy_cuda)


_register("softmax", compute_softmax)
_register("log_softmax", compute_log_softmax)
_register("layer_norm", compute_layer_norm)
