"""strided_slice: a part of a tensor, as NumPy's slices take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, AttrsError, field
from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.pattern import register_injective_schedule
from strategy.reference import widened
from strategy.shape_func import like_shape_func, register_shape_func
from strategy.type_relation import normal_axes, require_dtype_of
from strategy.types import Dim, TensorType, Type


class StridedSliceAttrs(Attrs):
    """Attributes of strided_slice: one entry per axis that is sliced."""

    begin: tuple[int, ...] = field(description="The first index of each axis, from the end if negative")
    end: tuple[int, ...] = field(description="Where each axis stops, itself not included")
    strides: tuple[int, ...] | None = field(None, "The steps, backwards if negative; default: all 1")
    axes: tuple[int, ...] | None = field(None, "The axes that are sliced; default: the first ones")

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        count = len(self.begin)
        for name in ("end", "strides", "axes"):
            found = getattr(self, name)
            if found is not None and len(found) != count:
                raise AttrsError(f"StridedSliceAttrs.{name} = {found}: begin has {count} entries")
        if self.strides is not None and 0 in self.strides:
            raise AttrsError(f"StridedSliceAttrs.strides = {self.strides}: a step of 0 never arrives")

    def ranges(self, shape: Sequence[Any]) -> dict[int, range]:
        """For each sliced axis, the indices that are taken of a constant extent."""
        axes = range(len(self.begin)) if self.axes is None else [a % len(shape) for a in self.axes]
        strides = self.strides or (1,) * len(self.begin)
        parts = zip(axes, self.begin, self.end, strides, strict=True)
        return {axis: range(*slice(b, e, s).indices(int(shape[axis]))) for axis, b, e, s in parts}


def _check_axes(reporter: TypeReporter, index: int, attrs: StridedSliceAttrs, data: TensorType) -> None:
    count = len(attrs.begin)
    reporter.check(count <= data.ndim, index, f"has fewer than {count} axes to slice")
    axes = attrs.axes or tuple(range(count))
    for axis in normal_axes(reporter, index, axes, data.ndim):
        known = data.shape[axis].is_constant
        reporter.check(known, index, f"axis {axis} must have a constant extent to be sliced")


def _sliced(attrs: StridedSliceAttrs, shape: Sequence[Any]) -> list[Any]:
    taken = attrs.ranges(shape)
    return [len(taken[i]) if i in taken else extent for i, extent in enumerate(shape)]


def strided_slice_rel(types: Sequence[Type], attrs: StridedSliceAttrs, reporter: TypeReporter) -> bool:
    """The extents of the sliced axes are as many as indices are taken."""
    data = reporter.tensor(0)
    if data is None:
        return False
    _check_axes(reporter, 0, attrs, data)
    shape = [Dim(d) if isinstance(d, int) else d for d in _sliced(attrs, data.shape)]
    reporter.assign(1, TensorType(shape, data.dtype))
    return True


def strided_slice_backward_rel(types: Sequence[Type], attrs: StridedSliceAttrs, reporter: TypeReporter) -> bool:
    """The type of the data, whose slice the gradient has the shape of."""
    grad, data = reporter.tensor(0), reporter.tensor(1)
    if grad is None or data is None:
        return False
    _check_axes(reporter, 1, attrs, data)
    require_dtype_of(reporter, 0, 1)
    expected = TensorType(_sliced(attrs, data.shape), data.dtype)
    reporter.check(str(grad) == str(expected), 0, f"the slice of {reporter.name(1)} is {expected}")
    reporter.assign(2, data)
    return True


(
    register_op("strided_slice")
    .describe("A part of a tensor: every so many elements of some axes.")
    .add_argument("data", "Tensor", "The input tensor.")
    .set_attrs_type(StridedSliceAttrs)
    .set_support_level(4)
    .add_type_rel("StridedSlice", strided_slice_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,19]"}, {"begin": [0, 17], "end": [4, 2], "strides": [1, -3]})
)
(
    register_op("strided_slice_backward")
    .describe(
        "The gradient of strided_slice: that of the part where it was taken, zeros elsewhere."
    )
    .add_argument("grad", "Tensor", "The gradient of the part.")
    .add_argument("data", "Tensor", "The tensor that was sliced.")
    .set_attrs_type(StridedSliceAttrs)
    .set_support_level(10)
    .add_type_rel("StridedSliceBackward", strided_slice_backward_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"grad": "float32[4,5]", "data": "float32[5,19]"}, {"begin": [0, 17], "end": [4, 2], "strides": [1, -3]})
)


@register_compute("strided_slice")
def compute_strided_slice(attrs: StridedSliceAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, topi

    data = inputs[0]
    taken = attrs.ranges([*data.shape])

    def part(*index: Any) -> Any:
        return data(*(taken[n].start + i * taken[n].step if n in taken else i for n, i in enumerate(index)))

    shape = _sliced(attrs, [*data.shape])
    return [te.compute(shape, part, name="strided_slice", tag=topi.tag.INJECTIVE)]


@register_compute("strided_slice_backward")
def compute_strided_slice_backward(
    attrs: StridedSliceAttrs, inputs: Sequence[Any], out_type: Type
) -> list[Any]:
    from tvm import te, tirx, topi

    grad, data = inputs
    taken = attrs.ranges([*data.shape])

    def whole(*index: Any) -> Any:
        place, conditions = list(index), [tirx.const(True, "bool")]
        for axis, steps in taken.items():
            low, step = (steps.start, steps.step) if steps.step > 0 else (steps[-1:], -steps.step)
            if not isinstance(low, int):  # backwards: count from the least index that is taken
                low = low[0] if low else 0
            offset = index[axis] - low
            number = offset // step
            conditions += [offset >= 0, number < len(steps), offset % step == 0]
            place[axis] = number if steps.step > 0 else len(steps) - 1 - number
        return tirx.if_then_else(tirx.all(*conditions), grad(*place), tirx.const(0, grad.dtype))

    return [te.compute(data.shape, whole, name="strided_slice_backward", tag=topi.tag.INJECTIVE)]


def _slices(attrs: StridedSliceAttrs, rank: int) -> tuple[slice, ...]:
    axes = range(len(attrs.begin)) if attrs.axes is None else attrs.axes
    found = [slice(None)] * rank
    for axis, *bounds in zip(axes, attrs.begin, attrs.end, attrs.strides or (1,) * len(attrs.begin), strict=True):
        found[axis] = slice(*bounds)
    return tuple(found)


@register_reference("strided_slice")
def reference_strided_slice(attrs: StridedSliceAttrs, inputs: Sequence[Any]) -> Any:
    data = widened(inputs[0])
    return data[_slices(attrs, data.ndim)]


@register_reference("strided_slice_backward")
def reference_strided_slice_backward(attrs: StridedSliceAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    grad, data = map(widened, inputs)
    whole = np.zeros_like(data)
    whole[_slices(attrs, data.ndim)] = grad
    return whole


@register_shape_func("strided_slice", False)
def strided_slice_shape_func(
    attrs: StridedSliceAttrs, inputs: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    return [tuple(_sliced(attrs, inputs[0]))]


register_shape_func("strided_slice_backward", False, like_shape_func)
for _name in ("strided_slice", "strided_slice_backward"):
    register_injective_schedule(_name)


@register_gradient("strided_slice")
def strided_slice_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad where it was taken from, zeros elsewhere]."""
    return [Call("strided_slice_backward", [grad, orig.args[0]], orig.attrs)]


@register_gradient("strided_slice_backward")
def strided_slice_backward_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return [the slice of grad]."""
    return [Call("strided_slice", [grad], orig.attrs), None]


def strided_slice(
    data: Expr,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
) -> Expr:
    """A part of a tensor, as NumPy's slices `begin:end:stride` take it.

    Args:
        data: the input tensor; the axes that are sliced have constant extents.
        begin: the first index of each axis; negative ones count from the end.
        end: where each axis stops, itself not included. What lies outside of the axis is cut off.
        strides: the steps, backwards if negative; default: all 1.
        axes: the axes that are sliced; default: the first ones.
    """
    optional = {"strides": strides, "axes": axes}
    return call(
        "strided_slice", data, begin=tuple(begin), end=tuple(end),
        **{name: tuple(value) for name, value in optional.items() if value is not None},
    )  # fmt: skip
