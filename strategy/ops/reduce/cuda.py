"""Sums on NVIDIA's GPUs: TVM's own rule for them, beside the plain schedule of all reductions."""

from __future__ import annotations

from collections.abc import Sequence

from strategy.attrs import Attrs
from strategy.cuda.dlight import schedule_by
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.target import Target
from strategy.types import TensorType, Type


def _register(name: str) -> None:
    op = get_registered_op(name)
    generic = op.get_attr("FTVMStrategy")

    def strategy_cuda(
        attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
    ) -> OpStrategy:
        strategy: OpStrategy = generic.default(attrs, inputs, out_type, target)
        # A single sum breaks its rule, as an empty tensor does.
        if isinstance(out_type, TensorType) and out_type.ndim and not inputs[0].is_empty:
            strategy.add_implementation(
                op.get_attr("FTVMCompute"), schedule_by("Reduction"), f"{name}_dlight.cuda", 5
            )
        return strategy

    generic.register(["cuda", "gpu"], strategy_cuda)


_register("sum")
_register("mean")
