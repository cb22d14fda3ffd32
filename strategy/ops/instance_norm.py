"""instance_norm: each channel of each entry of a batch brought to mean 0 and variance 1, then scaled and shifted.

A channel is a group of its own, so that all is done as by group_norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.cuda.schedule import register_plain_schedule
from strategy.expr import Call, Expr
from strategy.gradient import register_gradient
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_condition,
    register_op,
    register_peaks,
    register_reference,
    register_terms,
)
from strategy.op_strategy import OpStrategy
from strategy.ops.bias_add import vector_relation
from strategy.ops.group_norm import (
    GroupNormAttrs,
    compute_group_norm,
    compute_group_norm_row,
    differentiate,
    group_norm_condition,
    group_norm_peaks,
    group_norm_rel,
    group_norm_row_space,
    group_norm_terms,
    is_row_by_row,
    reference_group_norm,
    schedule_group_norm_row,
)
from strategy.pattern import register_cpu_implementations
from strategy.schedule import Outs
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.target import Target
from strategy.types import TensorType, Type


class InstanceNormAttrs(Attrs):
    """Attributes of instance_norm."""

    axis: int = field(1, "The axis of the channels; those before it are the batch")
    epsilon: float = field(1e-5, "Added to the variance", lower=0)


def _groups(attrs: InstanceNormAttrs, shape: Sequence[Any]) -> GroupNormAttrs:
    """The attributes of the group_norm that this is."""
    return GroupNormAttrs(num_groups=int(shape[attrs.axis]), axis=attrs.axis, epsilon=attrs.epsilon)


def instance_norm_rel(types: Sequence[Type], attrs: InstanceNormAttrs, reporter: TypeReporter) -> bool:
    """As group_norm's, of a constant number of channels."""
    data = vector_relation(reporter, (1, 2), attrs.axis)
    channels = data.shape[attrs.axis]
    known = channels.is_constant and int(channels) > 0
    reporter.check(known, 0, f"axis {attrs.axis}, of the channels, must have a known extent of at least 1")
    return group_norm_rel(types, _groups(attrs, data.shape), reporter)


(
    register_op("instance_norm")
    .describe(
        "(x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance of each channel of each entry "
        "of the batch, as Relay's nn.instance_norm."
    )
    .add_argument("data", "Tensor", "A floating-point tensor, [batch, channels, ...]; their number is constant.")
    .add_argument("gamma", "Tensor", "The scale of each channel, a vector.")
    .add_argument("beta", "Tensor", "Added to each channel, a vector.")
    .set_attrs_type(InstanceNormAttrs)
    .set_support_level(1)
    .add_type_rel("InstanceNorm", instance_norm_rel)
    .set_attr("TOpPattern", TOpPattern.kOpaque)
    .example({"data": "float32[2,3,5,19]", "gamma": "float32[3]", "beta": "float32[3]"})
)


def _as_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of group_norm's attributes, and of inputs or outputs first, for those of instance_norm."""

    def of_channels(attrs: InstanceNormAttrs, given: Any, *more: Any) -> Any:
        data = given.args[0] if isinstance(given, Outs) else given[0]
        return function(_groups(attrs, data.shape), given, *more)

    return of_channels


register_compute("instance_norm", _as_groups(compute_group_norm))
register_reference("instance_norm", _as_groups(reference_group_norm))
register_condition("instance_norm", _as_groups(group_norm_condition))
register_terms("instance_norm", _as_groups(group_norm_terms))
register_peaks("instance_norm", _as_groups(group_norm_peaks))
register_plain_schedule("instance_norm", "instance_norm")
register_shape_func("instance_norm", False, elemwise_shape_func)


def _add_row(
    strategy: OpStrategy, attrs: InstanceNormAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> None:
    if is_row_by_row(inputs[0], attrs.axis):
        strategy.add_implementation(
            _as_groups(compute_group_norm_row), _as_groups(schedule_group_norm_row), "instance_norm_row.cpu", 12,
            space=_as_groups(group_norm_row_space),
        )


register_cpu_implementations("instance_norm", _add_row)


@register_gradient("instance_norm")
def instance_norm_grad(orig: Call, grad: Expr) -> list[Expr]:
    """As group_norm's."""
    return differentiate(_groups(orig.attrs, orig.tensor_type.shape), orig.args, grad)


instance_norm = caller("instance_norm")
