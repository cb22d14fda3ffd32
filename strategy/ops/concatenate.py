"""concatenate and stack join tensors along an axis, split takes one apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from strategy.attrs import Attrs, field
from strategy.expr import Call, Expr, ExprError, Tuple, TupleGetItem, call, const
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.take import take
from strategy.pattern import register_injective_schedule
from strategy.reference import widened
from strategy.shape_func import concatenate_shape_func, register_shape_func
from strategy.type_relation import normal_axis, require_shape, tuple_fields
from strategy.types import Dim, TensorType, TupleType, Type
from strategy.workload import MAX_INPUTS


class ConcatenateAttrs(Attrs):
    """Attributes of concatenate."""

    axis: int = field(0, "The axis along which the tensors are joined")


class StackAttrs(Attrs):
    """Attributes of stack."""

    axis: int = field(0, "The new axis, counted in the result")


class SplitAttrs(Attrs):
    """Attributes of split."""

    indices: tuple[int, ...] = field(
        description="The first index of each part but the first: Relay's indices_or_sections", lower=0
    )
    axis: int = field(0, "The axis along which the tensor is taken apart")


def concatenate_rel(types: Sequence[Type], attrs: ConcatenateAttrs, reporter: TypeReporter) -> bool:
    """The extents along the axis add up; all others, and the dtypes, are equal."""
    fields = tuple_fields(reporter, 0)
    first = fields[0]
    axis = normal_axis(reporter, 0, attrs.axis, first.ndim)
    for number, other in enumerate(fields[1:], start=1):
        remedy = f"entry {number} is {other}, which does not join {first} on axis {axis}"
        reporter.check(other.dtype == first.dtype and other.ndim == first.ndim, 0, remedy)
        joined = (*other.shape[:axis], first.shape[axis], *other.shape[axis + 1 :])
        require_shape(reporter, 0, joined, first.shape, remedy)
    total = first.shape[axis]
    for other in fields[1:]:
        total = total + other.shape[axis]
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    reporter.assign(1, TensorType(shape, first.dtype))
    return True


def stack_rel(types: Sequence[Type], attrs: StackAttrs, reporter: TypeReporter) -> bool:
    """The number of tensors, all of one type, is the extent of a new axis."""
    fields = tuple_fields(reporter, 0)
    for number, other in enumerate(fields[1:], start=1):
        remedy = f"entry {number} is {other}, but the first {fields[0]}"
        reporter.check(other.dtype == fields[0].dtype, 0, remedy)
        require_shape(reporter, 0, other.shape, fields[0].shape, remedy)
    axis = normal_axis(reporter, 0, attrs.axis, fields[0].ndim + 1)
    shape = fields[0].shape
    reporter.assign(1, TensorType((*shape[:axis], Dim(len(fields)), *shape[axis:]), fields[0].dtype))
    return True


def split_rel(types: Sequence[Type], attrs: SplitAttrs, reporter: TypeReporter) -> bool:
    """A tuple of the parts between the indices."""
    data = reporter.known(0)
    axis = normal_axis(reporter, 0, attrs.axis, data.ndim)
    bounds = [Dim(0), *map(Dim, attrs.indices), data.shape[axis]]
    parts = []
    for low, high in pairwise(bounds):
        reporter.check(low < high, 0, f"indices {attrs.indices} do not ascend within axis {axis}")
        shape = (*data.shape[:axis], high - low, *data.shape[axis + 1 :])
        parts.append(TensorType(shape, data.dtype))
    reporter.assign(1, TupleType(parts))
    return True


(
    register_op("concatenate")
    .describe("Joins tensors along an axis.")
    .add_argument("data", "Tuple", "The tensors to join.")
    .set_attrs_type(ConcatenateAttrs)
    .set_support_level(1)
    .add_type_rel("Concatenate", concatenate_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data.0": "float32[5,19]", "data.1": "float32[5,3]"}, {"axis": 1})
)
(
    register_op("stack")
    .describe("Joins tensors of one type along a new axis.")
    .add_argument("data", "Tuple", "The tensors to join.")
    .set_attrs_type(StackAttrs)
    .set_support_level(3)
    .add_type_rel("Stack", stack_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data.0": "float32[5,19]", "data.1": "float32[5,19]"}, {"axis": 1})
)
(
    register_op("split")
    .describe("Takes a tensor apart along an axis.")
    .add_argument("data", "Tensor", "The input tensor.")
    .set_attrs_type(SplitAttrs)
    .set_support_level(3)
    .add_type_rel("Split", split_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,19]"}, {"axis": 1, "indices": [7]})
)


@register_compute("concatenate")
def compute_concatenate(attrs: ConcatenateAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return [topi.concatenate(tuple(inputs), axis=attrs.axis)]


@register_compute("stack")
def compute_stack(attrs: StackAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return [topi.stack(list(inputs), attrs.axis)]


@register_compute("split")
def compute_split(attrs: SplitAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return list(topi.split(inputs[0], list(attrs.indices), axis=attrs.axis))


@register_reference("concatenate")
def reference_concatenate(attrs: ConcatenateAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    return np.concatenate([widened(x) for x in inputs], axis=attrs.axis)


@register_reference("stack")
def reference_stack(attrs: StackAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    return np.stack([widened(t) for t in inputs], attrs.axis)


@register_reference("split")
def reference_split(attrs: SplitAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    return tuple(np.split(widened(inputs[0]), list(attrs.indices), axis=attrs.axis))


@register_shape_func("split", False)
def split_shape_func(attrs: SplitAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    shape = inputs[0]
    axis = attrs.axis % len(shape)
    bounds = [0, *attrs.indices, shape[axis]]
    return [
        (*shape[:axis], high - low, *shape[axis + 1 :])
        for low, high in pairwise(bounds)
    ]


register_shape_func("concatenate", False, concatenate_shape_func)
@register_shape_func("stack", False)
def stack_shape_func(attrs: StackAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    axis = attrs.axis % (len(inputs[0]) + 1)
    return [(*inputs[0][:axis], len(inputs), *inputs[0][axis:])]


for _name in ("concatenate", "split", "stack"):
    register_injective_schedule(_name)


@register_gradient("concatenate")
def concatenate_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [the parts of grad], one tuple for the one input."""
    kinds = orig.args[0].checked_type
    assert isinstance(kinds, TupleType)
    axis = orig.attrs.axis
    extents = [t.shape[axis] for t in kinds.fields if isinstance(t, TensorType)]
    if not all(e.is_constant for e in extents[:-1]):
        raise ExprError("the gradient of concatenate needs constant extents along its axis")
    indices = tuple(accumulate(int(e) for e in extents[:-1]))
    if any(e.is_constant and int(e) == 0 for e in extents):  # split has no empty parts
        parts_of = pairwise((0, *indices, 2**31 - 1))
        return [Tuple([call("strided_slice", grad, begin=(a,), end=(b,), axes=(axis,)) for a, b in parts_of])]
    parts = call("split", grad, indices=indices, axis=axis)
    return [Tuple([TupleGetItem(parts, i) for i in range(len(extents))])]


@register_gradient("stack")
def stack_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [the parts of grad], one tuple for the one input."""
    count = int(orig.tensor_type.shape[orig.attrs.axis])
    return [Tuple([take(grad, const(i, "int32"), orig.attrs.axis) for i in range(count)])]


register_gradient("split", lambda orig, grad: [concatenate(grad, orig.attrs.axis)])


def concatenate(data: Expr | Sequence[Expr], axis: int = 0) -> Expr:
    """Join tensors along an axis; more than 64 by several calls, each of 64 at most.

    Args:
        data: the tensors, as a sequence or as one expression that is a tuple.
        axis: the axis along which they are joined.
    """
    whole = _whole(data)
    if isinstance(whole, Tuple) and len(whole) > MAX_INPUTS:
        return concatenate([concatenate(some, axis) for some in _batches(whole)], axis)
    return call("concatenate", whole, axis=axis)


def stack(data: Expr | Sequence[Expr], axis: int = 0) -> Expr:
    """Join tensors of one type along a new axis; more than 64 by several calls, each of 64 at most.

    Args:
        data: the tensors, as a sequence or as one expression that is a tuple.
        axis: the new axis, counted in the result.
    """
    whole = _whole(data)
    if isinstance(whole, Tuple) and len(whole) > MAX_INPUTS:
        return concatenate([stack(some, axis) for some in _batches(whole)], axis)
    return call("stack", whole, axis=axis)


def _whole(data: Expr | Sequence[Expr]) -> Expr:
    return data if isinstance(data, Expr) else Tuple(list(data))


def _batches(whole: Tuple) -> list[tuple[Expr, ...]]:
    """The tensors of a tuple, by as many as a call takes."""
    return [whole.fields[i : i + MAX_INPUTS] for i in range(0, len(whole), MAX_INPUTS)]


def concat(*args: Expr) -> Expr:
    """Join tensors along axis 0.

    Args:
        args: the tensors.
    """
    return concatenate(Tuple(list(args)))


def split(data: Expr, indices: int | Sequence[int], axis: int = 0) -> tuple[Expr, ...]:
    """Take a tensor apart along an axis.

    Args:
        data: the input tensor.
        indices: where each part but the first begins, ascending; or the number of equal parts.
        axis: the axis along which it is taken apart.

    Returns:
        The parts, one more than there are indices.

    Raises:
        ExprError: data has no such axis, or its extent is not divided by the number of parts.
    """
    if isinstance(indices, int):
        kind = data.tensor_type
        if not -kind.ndim <= axis < kind.ndim:
            raise ExprError(f"split: axis {axis} is not one of {kind}: give one from {-kind.ndim} to {kind.ndim - 1}")
        if indices == 1:
            return (data,)
        extent = kind.shape[axis]
        if indices < 1 or not extent.is_constant or int(extent) < indices or int(extent) % indices:
            raise ExprError(f"split: axis {axis} of {kind} has no {indices} equal parts: name where each begins")
        indices = range(int(extent) // indices, int(extent), int(extent) // indices)
    parts = call("split", data, indices=tuple(indices), axis=axis)
    return tuple(TupleGetItem(parts, i) for i in range(len(indices) + 1))
