"""dynamic_slice: a part of constant size that begins where a tensor says at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.gather import as_int64
from strategy.pattern import register_injective_schedule
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import require_dtype_of, require_shape
from strategy.types import TensorType, Type


class DynamicSliceAttrs(Attrs):
    """Attributes of dynamic_slice."""

    size: tuple[int, ...] = field(description="The extents of the part; -1 takes all of an axis", lower=-1)


def _sized(attrs: DynamicSliceAttrs, shape: Sequence[Any]) -> list[Any]:
    return [own if size == -1 else size for size, own in zip(attrs.size, shape, strict=True)]


def _part(attrs: DynamicSliceAttrs, reporter: TypeReporter, index: int, data: TensorType) -> TensorType | None:
    """The type of the part of `data`, the argument at `index`, whose begin is argument 1; None where it is unknown."""
    begin = reporter.tensor(1)
    if begin is None:
        return None
    reporter.check(len(attrs.size) == data.ndim, index, f"size = {attrs.size}: name an extent, or -1, for each axis")
    reporter.check(begin.dtype.startswith(("int", "uint")), 1, "expected integers: cast it first")
    each = f"expected one integer for each axis of {reporter.name(index)}, {data}"
    reporter.check(begin.ndim == 1, 1, each)
    reporter.check(begin.shape[0] == data.ndim, 1, each)
    for axis, size in enumerate(attrs.size):
        reporter.check(data.shape[axis] >= size, index, f"axis {axis} has fewer elements than size = {attrs.size}")
    return TensorType(_sized(attrs, data.shape), data.dtype)


def dynamic_slice_rel(types: Sequence[Type], attrs: DynamicSliceAttrs, reporter: TypeReporter) -> bool:
    """The size that the attributes say, in the dtype of the data."""
    data = reporter.tensor(0)
    part = None if data is None else _part(attrs, reporter, 0, data)
    if part is not None:
        reporter.assign(2, part)
    return part is not None


def dynamic_slice_backward_rel(types: Sequence[Type], attrs: DynamicSliceAttrs, reporter: TypeReporter) -> bool:
    """The type of the data, whose part the gradient has the shape of."""
    grad, data = reporter.tensor(0), reporter.tensor(2)
    part = None if grad is None or data is None else _part(attrs, reporter, 2, data)
    if part is None or grad is None or data is None:
        return False
    require_dtype_of(reporter, 0, 2)
    require_shape(reporter, 0, grad.shape, part.shape, f"the part of {reporter.name(2)} is {part}")
    reporter.assign(3, data)
    return True


(
    register_op("dynamic_slice")
    .describe(
        "A part of constant size that begins where a tensor says; it is moved to lie within the data, as in XLA."
    )
    .add_argument("data", "Tensor", "The tensor that is sliced.")
    .add_argument("begin", "Tensor", "The first index of each axis, integers.")
    .set_attrs_type(DynamicSliceAttrs)
    .set_support_level(4)
    .add_type_rel("DynamicSlice", dynamic_slice_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,19]", "begin": "int32[2]"}, {"size": [3, 7]})
    .example({"data": "float32[5,19]", "begin": "int32[2]"}, {"size": [-1, 4]})
)
(
    register_op("dynamic_slice_backward")
    .describe("The gradient of dynamic_slice: that of the part where it was taken, zeros elsewhere.")
    .add_argument("grad", "Tensor", "The gradient of the part.")
    .add_argument("begin", "Tensor", "The first index of each axis, integers.")
    .add_argument("data", "Tensor", "The tensor that was sliced.")
    .set_attrs_type(DynamicSliceAttrs)
    .set_support_level(10)
    .add_type_rel("DynamicSliceBackward", dynamic_slice_backward_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"grad": "float32[3,7]", "begin": "int32[2]", "data": "float32[5,19]"}, {"size": [3, 7]})
)


def _first(begin: Any, axis: int, extent: Any, size: Any) -> Any:
    """The first index along an axis, so that the part lies within."""
    from tvm import tirx

    most = tirx.Cast("int64", tirx.convert(extent - size))
    return tirx.max(tirx.min(as_int64(begin(axis)), most), tirx.const(0, "int64"))


@register_compute("dynamic_slice")
def compute_dynamic_slice(attrs: DynamicSliceAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, topi

    data, begin = inputs
    sizes = _sized(attrs, [*data.shape])

    def element(*index: Any) -> Any:
        firsts = (_first(begin, axis, data.shape[axis], size) for axis, size in enumerate(sizes))
        return data(*(first + i for first, i in zip(firsts, index, strict=True)))

    return [te.compute(sizes, element, name="dynamic_slice", tag=topi.tag.INJECTIVE)]


@register_compute("dynamic_slice_backward")
def compute_dynamic_slice_backward(attrs: DynamicSliceAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, tirx, topi

    grad, begin, data = inputs
    sizes = [*grad.shape]

    def element(*index: Any) -> Any:
        places = [
            i - _first(begin, axis, data.shape[axis], size)
            for axis, (i, size) in enumerate(zip(index, sizes, strict=True))
        ]
        within = [c for p, size in zip(places, sizes, strict=True) for c in (p >= 0, p < size)]
        return tirx.if_then_else(tirx.all(*within), grad(*places), tirx.const(0, grad.dtype))

    return [te.compute(data.shape, element, name="dynamic_slice_backward", tag=topi.tag.INJECTIVE)]


def _slices(attrs: DynamicSliceAttrs, begin: Any, shape: Sequence[int]) -> tuple[slice, ...]:
    sizes = _sized(attrs, shape)
    firsts = (min(max(int(b), 0), n - size) for b, n, size in zip(begin, shape, sizes, strict=True))
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


@register_reference("dynamic_slice")
def reference_dynamic_slice(attrs: DynamicSliceAttrs, inputs: Sequence[Any]) -> Any:
    data = widened(inputs[0])
    return data[_slices(attrs, inputs[1], data.shape)]


@register_reference("dynamic_slice_backward")
def reference_dynamic_slice_backward(attrs: DynamicSliceAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    grad, data = widened(inputs[0]), widened(inputs[2])
    whole = np.zeros_like(data)
    whole[_slices(attrs, inputs[1], data.shape)] = grad
    return whole


register_shape_func("dynamic_slice", False, lambda attrs, inputs: [tuple(_sized(attrs, inputs[0]))])
register_shape_func("dynamic_slice_backward", False, lambda attrs, inputs: [inputs[2]])


for _name in ("dynamic_slice", "dynamic_slice_backward"):
    register_injective_schedule(_name)


@register_gradient("dynamic_slice")
def dynamic_slice_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return [grad where it was taken from, zeros elsewhere]."""
    data, begin = orig.args
    return [Call("dynamic_slice_backward", [grad, begin, data], orig.attrs), None]


@register_gradient("dynamic_slice_backward")
def dynamic_slice_backward_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return [the part of grad]."""
    return [Call("dynamic_slice", [grad, orig.args[1]], orig.attrs), None, None]


def dynamic_slice(data: Expr, begin: Expr, size: Sequence[int]) -> Expr:
    """A part of constant size that begins where a tensor says at run time.

    Args:
        data: the tensor that is sliced.
        begin: the first index of each axis, integers. A part that would not lie within the data is moved.
        size: the extents of the part; -1 takes all of an axis.
    """
    return call("dynamic_slice", data, begin, size=tuple(size))
