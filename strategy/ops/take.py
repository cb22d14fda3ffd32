"""take: elements of a tensor by their indices along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.expr import Call, Expr
from strategy.gradient import register_gradient
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_condition,
    register_op,
    register_reference,
)
from strategy.ops.gather import as_int64, int64_array
from strategy.pattern import register_injective_schedule, register_reduce_schedule
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import normal_axis, require_number, require_shape
from strategy.types import TensorType, Type


class TakeAttrs(Attrs):
    """Attributes of take."""

    axis: int | None = field(None, "The axis that is indexed; default: the flattened input")
    mode: str = field(
        "clip", "Indices out of range: the nearest that is in range, 0 for negative ones, or modulo the extent",
        choices=("clip", "wrap"),
    )
    batch_dims: int = field(0, "The first axes, which both tensors share: each entry has indices of its own", lower=0)


def _taken(attrs: TakeAttrs, data: Sequence[Any], indices: Sequence[Any]) -> tuple[Any, ...]:
    """The shape of the result, for shapes of integers or dimensions."""
    if attrs.axis is None:
        return tuple(indices)
    axis = attrs.axis % len(data)
    return (*data[:axis], *indices[attrs.batch_dims :], *data[axis + 1 :])


def _check(attrs: TakeAttrs, reporter: TypeReporter, data: TensorType, indices: TensorType, at: int) -> None:
    whole = indices.dtype.startswith(("int", "uint"))
    reporter.check(whole, 1, "expected indices that are integers; cast them first")
    batch = attrs.batch_dims
    if attrs.axis is not None:
        behind = normal_axis(reporter, at, attrs.axis, data.ndim) >= batch
        reporter.check(behind, at, f"axis {attrs.axis} is one of its first batch_dims = {batch}")
        reporter.check(indices.ndim >= batch, 1, f"has fewer than batch_dims = {batch} axes")
        remedy = f"its first batch_dims = {batch} axes differ from those of {reporter.name(at)}, {data}"
        require_shape(reporter, 1, indices.shape[:batch], data.shape[:batch], remedy)
    else:
        reporter.check(not batch, at, f"batch_dims = {batch} needs an axis")
    for axis in range(data.ndim) if attrs.axis is None else [attrs.axis % data.ndim]:
        reporter.check(data.shape[axis] >= 1, at, f"axis {axis} is empty: there is nothing to take")


def take_rel(types: Sequence[Type], attrs: TakeAttrs, reporter: TypeReporter) -> bool:
    """The indices' shape in place of the axis."""
    data, indices = reporter.known(0), reporter.known(1)
    _check(attrs, reporter, data, indices, 0)
    reporter.assign(2, TensorType(_taken(attrs, data.shape, indices.shape), data.dtype))
    return True


def take_backward_rel(types: Sequence[Type], attrs: TakeAttrs, reporter: TypeReporter) -> bool:
    """The type of the data, from which the gradient's elements were taken."""
    grad, indices, data = (reporter.known(i) for i in range(3))
    require_number(reporter, 2, data)
    _check(attrs, reporter, data, indices, 2)
    expected = TensorType(_taken(attrs, data.shape, indices.shape), data.dtype)
    reporter.check(str(grad) == str(expected), 0, f"what is taken is {expected}")
    reporter.assign(3, data)
    return True


(
    register_op("take")
    .describe("Elements of a tensor by their indices along an axis.")
    .add_argument("data", "Tensor", "The tensor that is indexed.")
    .add_argument("indices", "Tensor", "Integers; the result has their shape in place of the axis.")
    .set_attrs_type(TakeAttrs)
    .set_support_level(3)
    .add_type_rel("Take", take_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,19]", "indices": "int32[4]"}, {"axis": 1})
    .example({"data": "float32[5,19]", "indices": "int32[4]"}, {"axis": 0})
    .example({"data": "float32[5,19]", "indices": "int32[4]"}, {"mode": "wrap"})
    .example({"data": "float32[5,3,19]", "indices": "int32[5,4]"}, {"axis": 2, "batch_dims": 1})
)
(
    register_op("take_backward")
    .describe("The gradient of take: for each element the sum of those that were taken from it.")
    .add_argument("grad", "Tensor", "The gradient of what was taken.")
    .add_argument("indices", "Tensor", "Integers.")
    .add_argument("data", "Tensor", "The tensor that was indexed.")
    .set_attrs_type(TakeAttrs)
    .set_support_level(10)
    .add_type_rel("TakeBackward", take_backward_rel)
    .set_attr("TOpPattern", TOpPattern.kCommReduce)
    .example({"grad": "float32[5,4]", "indices": "int32[4]", "data": "float32[5,19]"}, {"axis": 1})
    .example({"grad": "float32[4]", "indices": "int32[4]", "data": "float32[5,19]"})
    .example(
        {"grad": "float32[5,3,4]", "indices": "int32[5,4]", "data": "float32[5,3,19]"}, {"axis": 2, "batch_dims": 1}
    )
)


def place_in_range(attrs: TakeAttrs, index: Any, extent: Any) -> Any:
    """A TE index, brought into 0 … extent - 1 as the mode says."""
    from tvm import tirx

    if attrs.mode == "wrap":
        kind = "uint64" if str(index.ty.dtype) == "uint64" else "int64"
        rest = tirx.floormod(tirx.Cast(kind, index), tirx.Cast(kind, tirx.convert(extent)))
        return tirx.Cast("int64", rest)
    index = as_int64(index)
    return tirx.max(tirx.min(index, tirx.Cast("int64", tirx.convert(extent)) - 1), tirx.const(0, "int64"))


def _flat(attrs: TakeAttrs, data: Any) -> tuple[Any, int]:
    """The data and the axis that is indexed: without one, those of the flattened data."""
    from tvm import topi

    if attrs.axis is not None:
        return data, attrs.axis % len(data.shape)
    return topi.reshape(data, [math.prod(data.shape)]), 0


@register_compute("take")
def compute_take(attrs: TakeAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, topi

    data, axis = _flat(attrs, inputs[0])
    indices, batch = inputs[1], attrs.batch_dims
    rank = len(indices.shape) - batch

    def element(*i: Any) -> Any:
        index = place_in_range(attrs, indices(*i[:batch], *i[axis : axis + rank]), data.shape[axis])
        return data(*i[:axis], index, *i[axis + rank :])

    shape = _taken(attrs, [*inputs[0].shape], [*indices.shape])
    return [te.compute(shape, element, name="take", tag=topi.tag.INJECTIVE)]


@register_compute("take_backward")
def compute_take_backward(attrs: TakeAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, tirx, topi

    grad, indices, data = inputs
    if data.dtype in ("float16", "bfloat16"):
        grad = topi.cast(grad, "float32")
    axis = 0 if attrs.axis is None else attrs.axis % len(data.shape)
    extents = [math.prod(data.shape)] if attrs.axis is None else [*data.shape]
    batch = attrs.batch_dims
    places = [te.reduce_axis((0, n), name="r") for n in [*indices.shape][batch:]]

    def element(*i: Any) -> Any:
        index = place_in_range(attrs, indices(*i[:batch], *places), extents[axis])
        found = grad(*i[:axis], *places, *i[axis + 1 :])
        value = tirx.if_then_else(index == i[axis], found, tirx.const(0, grad.dtype))
        return te.sum(value, axis=places) if places else value

    flat = te.compute(extents, element, name="take_backward")
    return [topi.cast(flat if attrs.axis is not None else topi.reshape(flat, data.shape), data.dtype)]


def _places(attrs: TakeAttrs, data: Any, indices: Any) -> Any:
    """The places in the flattened data that are taken, in the result's shape."""
    import numpy as np

    numbers, mode = np.arange(data.size).reshape(data.shape), cast("Any", attrs.mode)
    if mode == "wrap":  # by a division: NumPy's own wrapping takes a subtraction for each turn
        extent = max(1, data.size if attrs.axis is None else data.shape[attrs.axis])
        indices = indices % np.asarray(extent, np.uint64 if indices.dtype == np.uint64 else np.int64)
    indices = int64_array(indices)
    if not attrs.batch_dims or attrs.axis is None:
        return np.take(numbers, indices, axis=attrs.axis, mode=mode)
    found = np.empty(_taken(attrs, data.shape, indices.shape), np.int64)
    for entry in np.ndindex(data.shape[: attrs.batch_dims]):
        axis = attrs.axis % data.ndim - attrs.batch_dims
        found[entry] = np.take(numbers[entry], indices[entry], axis=axis, mode=mode)
    return found


@register_reference("take")
def reference_take(attrs: TakeAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data = widened(inputs[0])
    return data.ravel()[_places(attrs, data, np.asarray(inputs[1]))]


@register_reference("take_backward")
def reference_take_backward(attrs: TakeAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    grad, data = widened(inputs[0]), widened(inputs[2])
    places = _places(attrs, data, np.asarray(inputs[1]))
    sums = np.zeros(data.size, data.dtype)
    np.add.at(sums, places.ravel(), grad.ravel())
    return sums.reshape(data.shape)


@register_condition("take_backward")
def take_backward_condition(attrs: TakeAttrs, inputs: Sequence[Any]) -> Any:
    """Many indices may name one element, and none most."""
    import numpy as np

    grad, indices, data = inputs
    return 1 + reference_take_backward(attrs, [np.ones(np.shape(grad)), indices, np.zeros(np.shape(data))])


register_shape_func("take", False, lambda attrs, inputs: [_taken(attrs, *inputs)])
register_shape_func("take_backward", False, lambda attrs, inputs: [inputs[2]])
register_injective_schedule("take")
register_reduce_schedule("take_backward")


@register_gradient("take")
def take_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return [the sums of grad's elements where they were taken from]."""
    data, indices = orig.args
    return [Call("take_backward", [grad, indices, data], orig.attrs), None]


register_gradient("take_backward", lambda orig, grad: [Call("take", [grad, orig.args[1]], orig.attrs), None, None])


take = caller("take")
