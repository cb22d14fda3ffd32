"""strided_slice: a part of a tensor, as NumPy's slices take it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from strategy.attrs import Attrs, AttrsError, field
from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.pattern import register_injective_schedule
from strategy.reference import widened
from strategy.shape_func import like_shape_func, register_shape_func
from strategy.type_relation import normal_axes, require_dtype_of, require_shape
from strategy.types import Dim, TensorType, Type

_END = 2**31 - 1  # and beyond: to the end of an axis


class Part(NamedTuple):
    """The indices of an axis that are taken: the first, the step, and how many."""

    start: int
    step: int
    count: Any


class StridedSliceAttrs(Attrs):
    """Attributes of strided_slice: one entry per axis that is sliced."""

    begin: tuple[int, ...] = field(description="The first index of each axis, from the end if negative")
    end: tuple[int, ...] = field(description="The end of each axis, itself not included")
    strides: tuple[int, ...] | None = field(None, "The steps, backwards if negative; default: all 1")
    axes: tuple[int, ...] | None = field(None, "The axes that are sliced; default: the first ones")
    slice_mode: str = field(
        "end", "Read `end` as an index, or as the number of elements, of which -1 is all", choices=("end", "size")
    )

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        count = len(self.begin)
        for name in ("end", "strides", "axes"):
            found = getattr(self, name)
            if found is not None and len(found) != count:
                raise AttrsError(f"StridedSliceAttrs.{name} = {found}: begin has {count} entries")
        if self.strides is not None and 0 in self.strides:
            raise AttrsError(f"StridedSliceAttrs.strides = {self.strides}: a step of 0 never arrives")
        if self.slice_mode == "size" and (self.strides or min(self.end, default=0) < -1):
            raise AttrsError("StridedSliceAttrs.slice_mode = 'size': give sizes of at least 0, or -1, and no strides")

    def bounds(self, axis: int, shape: Sequence[Any]) -> tuple[int, int, int]:
        """The first index, the end and the step of an entry, as the mode says, for an axis of the shape."""
        place = axis if self.axes is None else [a % len(shape) for a in self.axes].index(axis)
        begin, end = self.begin[place], self.end[place]
        if self.slice_mode == "size":
            begin = max(begin + int(shape[axis]), 0) if begin < 0 else begin
            end = sys.maxsize if end == -1 else begin + end
        return begin, end, self.strides[place] if self.strides else 1

    def parts(self, shape: Sequence[Any]) -> dict[int, Part]:
        """The part that is taken of each sliced axis, for a shape of numbers, dimensions or TE expressions."""
        found = {}
        for axis in range(len(self.begin)) if self.axes is None else [a % len(shape) for a in self.axes]:
            begin, end, step = self.bounds(axis, shape)
            extent = shape[axis] if isinstance(shape[axis], int) else getattr(shape[axis], "value", None)
            if extent is None and step > 0 and end >= _END:
                whole = begin == 0 and step == 1
                found[axis] = Part(begin, step, shape[axis] if whole else (shape[axis] - begin + step - 1) // step)
                continue
            taken = range(begin, end, step) if extent is None else range(*slice(begin, end, step).indices(extent))
            found[axis] = Part(taken.start, step, len(taken))
        return found


def _check_axes(reporter: TypeReporter, index: int, attrs: StridedSliceAttrs, data: TensorType) -> None:
    count = len(attrs.begin)
    reporter.check(count <= data.ndim, index, f"has fewer than {count} axes to slice")
    axes = attrs.axes or tuple(range(count))
    for axis in normal_axes(reporter, index, axes, data.ndim):
        if data.shape[axis].is_constant:
            continue
        remedy = f"axis {axis} has a symbolic extent: give begin and end counted from its beginning"
        given = [(b, e) for b, e, a in zip(attrs.begin, attrs.end, axes, strict=True) if a % data.ndim == axis]
        reporter.check(all(b >= 0 and (e >= 0 or attrs.slice_mode == "size") for b, e in given), index, remedy)
        start, step, count = attrs.parts(data.shape)[axis]
        # More elements are no matter, but those that are taken must exist.
        least = max(start, start + (count - 1) * step) + 1 if isinstance(count, int) else start
        if least > 0 and not (isinstance(count, int) and count == 0):
            reporter.check(data.shape[axis] >= least, index, f"axis {axis} has fewer elements than are taken")


def _sliced(attrs: StridedSliceAttrs, shape: Sequence[Any]) -> list[Any]:
    taken = attrs.parts(shape)
    return [taken[i].count if i in taken else extent for i, extent in enumerate(shape)]


def strided_slice_rel(types: Sequence[Type], attrs: StridedSliceAttrs, reporter: TypeReporter) -> bool:
    """The extents of the sliced axes are as many as indices are taken."""
    data = reporter.known(0)
    _check_axes(reporter, 0, attrs, data)
    shape = [Dim(d) if isinstance(d, int) else d for d in _sliced(attrs, data.shape)]
    reporter.assign(1, TensorType(shape, data.dtype))
    return True


def strided_slice_backward_rel(types: Sequence[Type], attrs: StridedSliceAttrs, reporter: TypeReporter) -> bool:
    """The type of the data, whose slice the gradient has the shape of."""
    grad, data = reporter.known(0), reporter.known(1)
    _check_axes(reporter, 1, attrs, data)
    require_dtype_of(reporter, 0, 1)
    expected = TensorType(_sliced(attrs, data.shape), data.dtype)
    require_shape(reporter, 0, grad.shape, expected.shape, f"the slice of {reporter.name(1)} is {expected}")
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
    .example({"data": "float32[5,19]"}, {"begin": [-3, 2], "end": [2, -1], "slice_mode": "size"})
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
    taken = attrs.parts([*data.shape])

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
    taken = attrs.parts([*data.shape])
    if any(isinstance(extent, tirx.IntImm) and not int(extent) for extent in grad.shape):
        return [te.compute(data.shape, lambda *i: tirx.const(0, grad.dtype), name="strided_slice_backward")]

    def whole(*index: Any) -> Any:
        place, conditions = list(index), [tirx.const(True, "bool")]
        for axis, steps in taken.items():
            # Backwards, count from the least index that is taken.
            low = steps.start if steps.step > 0 else steps.start + (steps.count - 1) * steps.step
            offset, step = index[axis] - low, abs(steps.step)
            number = offset // step
            conditions += [offset >= 0, number < steps.count, offset % step == 0]
            place[axis] = number if steps.step > 0 else steps.count - 1 - number
        return tirx.if_then_else(tirx.all(*conditions), grad(*place), tirx.const(0, grad.dtype))

    return [te.compute(data.shape, whole, name="strided_slice_backward", tag=topi.tag.INJECTIVE)]


def _slices(attrs: StridedSliceAttrs, shape: Sequence[int]) -> tuple[slice, ...]:
    found = [slice(None)] * len(shape)
    axes = range(len(attrs.begin)) if attrs.axes is None else attrs.axes
    for axis in axes:
        found[axis] = slice(*attrs.bounds(axis % len(shape), shape))
    return tuple(found)


@register_reference("strided_slice")
def reference_strided_slice(attrs: StridedSliceAttrs, inputs: Sequence[Any]) -> Any:
    data = widened(inputs[0])
    return data[_slices(attrs, data.shape)]


@register_reference("strided_slice_backward")
def reference_strided_slice_backward(attrs: StridedSliceAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    grad, data = map(widened, inputs)
    whole = np.zeros_like(data)
    whole[_slices(attrs, data.shape)] = grad
    return whole


register_shape_func("strided_slice", False, lambda attrs, inputs: [tuple(_sliced(attrs, inputs[0]))])
register_shape_func("strided_slice_backward", False, like_shape_func)
for _name in ("strided_slice", "strided_slice_backward"):
    register_injective_schedule(_name)


@register_gradient("strided_slice")
def strided_slice_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad where it was taken from, zeros elsewhere]."""
    return [Call("strided_slice_backward", [grad, orig.args[0]], orig.attrs)]


register_gradient("strided_slice_backward", lambda orig, grad: [Call("strided_slice", [grad], orig.attrs), None])


def strided_slice(
    data: Expr,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    slice_mode: str = "end",
) -> Expr:
    """A part of a tensor, as NumPy's slices `begin:end:stride` take it.

    Args:
        data: the input tensor. Of an axis with a symbolic extent, begin and end count from its beginning, and an end
            of 2^31 - 1 or more is its end.
        begin: the first index of each axis; negative ones count from the end.
        end: where each axis stops, itself not included. What lies outside of the axis is cut off.
        strides: the steps, backwards if negative; default: all 1.
        axes: the axes that are sliced; default: the first ones.
        slice_mode: "size" reads `end` as the number of elements, of which -1 is all that there are.
    """
    optional = {"strides": strides, "axes": axes}
    return call(
        "strided_slice", data, begin=tuple(begin), end=tuple(end), slice_mode=slice_mode,
        **{name: tuple(value) for name, value in optional.items() if value is not None},
    )
