"""group_norm: groups of channels brought to mean 0 and variance 1 for each entry of the batch, then scaled and shifted.

A group's elements lie next to each other in memory, so that groups are rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.cpu.row import (
    reader,
    reduce_row,
    row_space,
    schedule_elements,
    schedule_stages,
    schedule_tasks,
)
from strategy.cuda.schedule import register_plain_schedule
from strategy.expr import Expr, call, const
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
from strategy.ops.bias_add import along, array_along, vector_grad, vector_relation
from strategy.ops.reduce import mean
from strategy.ops.reshape import reshape, reshape_like
from strategy.pattern import in_float32, register_cpu_implementations
from strategy.reference import Peaks, norm_condition, norm_peaks, widened
from strategy.schedule import Outs, accumulator, integer, start_schedule
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.type_relation import require_float, require_nonempty
from strategy.types import TensorType, Type


class GroupNormAttrs(Attrs):
    """Attributes of group_norm."""

    num_groups: int = field(description="Number of groups that the channels are divided into", lower=1)
    axis: int = field(1, "The axis of the channels; those before it are the batch, and a group takes all behind it")
    epsilon: float = field(1e-5, "Added to the variance", lower=0)


def group_norm_rel(types: Sequence[Type], attrs: GroupNormAttrs, reporter: TypeReporter) -> bool:
    """The type of the data; gamma and beta have its extent along the axis, which the groups divide."""
    data = vector_relation(reporter, (1, 2), attrs.axis)
    require_float(reporter, 0, data)
    axis = attrs.axis % data.ndim
    require_nonempty(reporter, 0, data, list(range(axis, data.ndim)))
    divided = data.shape[axis] % attrs.num_groups == 0
    reporter.check(divided, 0, f"the extent of axis {axis} is no multiple of num_groups = {attrs.num_groups}")
    reporter.assign(3, data)
    return True


(
    register_op("group_norm")
    .describe(
        "(x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance of each group of channels."
    )
    .add_argument("data", "Tensor", "A floating-point tensor, [batch, channels, ...].")
    .add_argument("gamma", "Tensor", "The scale of each channel, a vector.")
    .add_argument("beta", "Tensor", "Added to each channel, a vector.")
    .set_attrs_type(GroupNormAttrs)
    .set_support_level(1)
    .add_type_rel("GroupNorm", group_norm_rel)
    .set_attr("TOpPattern", TOpPattern.kOpaque)
    .example({"data": "float32[2,6,5,19]", "gamma": "float32[6]", "beta": "float32[6]"}, {"num_groups": 3})
    .example({"data": "float32[5,38]", "gamma": "float32[38]", "beta": "float32[38]"}, {"num_groups": 2})
    .example({"data": "float32[3,4,4,4]", "gamma": "float32[4]", "beta": "float32[4]"}, {"num_groups": 1})
    .example(
        {"data": "float32[3,5,38]", "gamma": "float32[38]", "beta": "float32[38]"}, {"num_groups": 2, "axis": -1}
    )
)


@register_compute("group_norm")
@in_float32
def compute_group_norm(attrs: GroupNormAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """In two passes: the variance as a difference of sums would lose its digits."""
    from tvm import te, tirx

    data, gamma, beta = inputs
    axis = attrs.axis % len(data.shape)
    *batch, channels = data.shape[: axis + 1]
    each, inner = channels // attrs.num_groups, data.shape[axis + 1 :]
    count = tirx.Cast(data.dtype, math.prod(inner, start=each))

    def total(tensor: Any, name: str) -> Any:
        """The sum of each group."""
        channel = te.reduce_axis((0, each), name="channel")
        places = [te.reduce_axis((0, extent), name=f"k{i}") for i, extent in enumerate(inner)]

        def element(*i: Any) -> Any:
            return te.sum(tensor(*i[:-1], i[-1] * each + channel, *places), axis=[channel, *places])

        return te.compute((*batch, attrs.num_groups), element, name=name)

    def group(*i: Any) -> tuple[Any, ...]:
        return (*i[:axis], i[axis] // each)

    centre = total(data, "total")
    offset = te.compute(data.shape, lambda *i: data(*i) - centre(*group(*i)) / count, name="offset")
    squares = te.compute(data.shape, lambda *i: offset(*i) * offset(*i), name="squares")
    square = total(squares, "square")
    epsilon = tirx.const(attrs.epsilon, data.dtype)

    def scaled(*i: Any) -> Any:
        deviation = tirx.sqrt(square(*group(*i)) / count + epsilon)
        return offset(*i) / deviation * gamma[i[axis]] + beta[i[axis]]

    return [te.compute(data.shape, scaled, name="group_norm")]


@register_reference("group_norm")
def reference_group_norm(attrs: GroupNormAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, *vectors = map(widened, inputs)
    gamma, beta = (array_along(v, attrs.axis, data.ndim) for v in vectors)
    groups = data.reshape(_row_shape(attrs, data.shape))
    offset = groups - groups.mean(axis=-1, keepdims=True)
    variance = (offset * offset).mean(axis=-1, keepdims=True)
    return (offset / np.sqrt(variance + attrs.epsilon)).reshape(data.shape) * gamma + beta


@register_condition("group_norm")
def group_norm_condition(attrs: GroupNormAttrs, inputs: Sequence[Any]) -> Any:
    data = widened(inputs[0])
    return norm_condition(data.reshape(_row_shape(attrs, data.shape)), -1, attrs.epsilon).reshape(data.shape)


@register_terms("group_norm")
def group_norm_terms(attrs: GroupNormAttrs, inputs: Sequence[TensorType], out_type: Type) -> int:
    return int(_row_shape(attrs, inputs[0].shape)[-1])


@register_peaks("group_norm")
def group_norm_peaks(attrs: GroupNormAttrs, inputs: Sequence[Any]) -> Peaks:
    return norm_peaks(inputs[0].reshape(_row_shape(attrs, inputs[0].shape)))


register_plain_schedule("group_norm", "group_norm")
register_shape_func("group_norm", False, elemwise_shape_func)


def _row_shape(attrs: GroupNormAttrs, shape: Sequence[Any]) -> list[Any]:
    """The shape with a row for each group."""
    axis = attrs.axis % len(shape)
    return [*shape[:axis], attrs.num_groups, math.prod(map(int, shape[axis:])) // attrs.num_groups]


def compute_group_norm_row(
    attrs: GroupNormAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """Three passes over a group, which lies in the cache after the first if it fits."""
    from tvm import te, tirx

    axis, shape = attrs.axis % len(inputs[0].shape), inputs[0].shape
    each, *inner = (int(d) for d in shape[axis:])
    each //= attrs.num_groups
    rows, extent = [*shape[:axis], attrs.num_groups], math.prod(inner, start=each)
    dtype = accumulator(out_type.dtype)
    data, gamma, beta = (reader(tensor, dtype) for tensor in inputs)
    part, epsilon = tirx.const(1 / extent, dtype), tirx.const(attrs.epsilon, dtype)

    def element(*i: Any) -> Any:
        *batch, group, flat = i
        size = extent // each
        place = [group * each + flat // size]
        for n in inner:
            flat, size = flat % size, size // n
            place.append(flat // size)
        return data(*batch, *place)

    def square(*i: Any) -> Any:
        offset = element(*i) - centre(*i[:-1])
        return offset * offset

    def inverse(total: Any) -> Any:
        return tirx.const(1, dtype) / tirx.sqrt(total * part + epsilon)

    centre = reduce_row("sum", rows, extent, dtype, element, config, "mean", lambda total: total * part)
    scale = reduce_row("sum", rows, extent, dtype, square, config, "scale", inverse)

    def scaled(*i: Any) -> Any:
        row, channel = (*i[:axis], i[axis] // each), i[axis]
        norm = (data(*i) - centre(*row)) * scale(*row)
        return (norm * gamma(channel) + beta(channel)).astype(out_type.dtype)

    return [te.compute(shape, scaled, name="group_norm")]


def group_norm_row_space(
    attrs: GroupNormAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """The space of all operators over rows."""
    return row_space([TensorType(_row_shape(attrs, inputs[0].shape), inputs[0].dtype)], target)


def schedule_group_norm_row(attrs: GroupNormAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Group by group; of the output, the elements of a channel in vectors."""
    sch, stages, output = start_schedule(outs)
    loops = sch.get_loops(output)
    axis = attrs.axis % len(loops)
    each = int(sch.get(loops[axis]).extent) // attrs.num_groups
    group, _ = sch.split(loops[axis], [attrs.num_groups, None])
    if loops[axis + 1 :]:
        sch.fuse(*loops[axis + 1 :])
    row = schedule_tasks(sch, [*loops[:axis], group], config)
    for block in reversed(stages.values()):
        sch.compute_at(block, row, preserve_unit_loops=True)
    schedule_stages(sch, stages, config)
    # TVM finds no group in a loop of its own for channels alone, one of which is left behind whole vectors.
    is_lone = len(loops) == axis + 1 and each % (integer(config, "out_lanes") * integer(config, "out_unroll")) == 1
    schedule_elements(sch, output, config, 1 if is_lone else None)
    return sch


def is_row_by_row(data: TensorType, axis: int) -> bool:
    """True if all extents from the axis on are constant, and none is 0."""
    known = all(d.is_constant for d in data.shape[axis % data.ndim :])
    return known and all(int(d) >= 1 for d in data.shape if d.is_constant)


def _add_row(
    strategy: OpStrategy, attrs: GroupNormAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> None:
    if is_row_by_row(inputs[0], attrs.axis):
        strategy.add_implementation(
            compute_group_norm_row, schedule_group_norm_row, "group_norm_row.cpu", 12, version=2,
            space=group_norm_row_space,
        )


register_cpu_implementations("group_norm", _add_row)
register_gradient("group_norm", lambda orig, grad: differentiate(orig.attrs, orig.args, grad))


def differentiate(attrs: GroupNormAttrs, inputs: Sequence[Expr], grad: Expr) -> list[Expr]:
    """Return [(g - mean(g) - n mean(g n)) / deviation, grad n, grad] with n the norm and g = grad gamma."""
    x, gamma, beta = inputs
    rank = x.tensor_type.ndim
    axis = attrs.axis % rank

    def rows(node: Expr) -> Expr:
        return reshape(node, (*[0] * axis, attrs.num_groups, -1))

    offset = rows(x) - mean(rows(x), -1, keepdims=True)
    variance = mean(offset * offset, -1, keepdims=True)
    scale = call("rsqrt", variance + const(attrs.epsilon, x.tensor_type.dtype))
    norm = offset * scale
    slope = rows(grad * along(gamma, axis, rank))
    dx = slope - mean(slope, -1, keepdims=True) - norm * mean(slope * norm, -1, keepdims=True)
    dgamma = vector_grad(grad * reshape_like(norm, x), gamma, axis)
    return [reshape_like(dx * scale, x), dgamma, vector_grad(grad, beta, axis)]


group_norm = caller("group_norm")
