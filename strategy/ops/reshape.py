"""The same elements in another shape: reshape, reshape_like, expand_dims and squeeze."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field, repeated
from strategy.caller import Caller, caller
from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.pattern import extents_of, register_injective_schedule
from strategy.reference import widened
from strategy.shape_func import ShapeError, like_shape_func, register_shape_func
from strategy.type_relation import normal_axes, product
from strategy.types import Dim, TensorType, Type


class ReshapeAttrs(Attrs):
    """Attributes of reshape."""

    newshape: tuple[int, ...] = field(
        description="The new shape; one -1 is what is left, 0 the input's next extent, -2 all of its further ones, -3 "
        "the product of the next two, and -4 splits the next into the two entries that follow it", lower=-4,
    )

    def given(self) -> list[int]:
        """The entries that are not of a split."""
        split = {i + n for i, entry in enumerate(self.newshape) if entry == -4 for n in (1, 2)}
        return [entry for i, entry in enumerate(self.newshape) if i not in split]

    def resolve(self, shape: Sequence[Any]) -> tuple[list[Any], list[int]]:
        """The new shape, in which -1 is what is left, and the axes of the input whose extents are in it.

        Of dimensions or integers. Raise `ShapeError` if the input has too few axes.
        """
        found: list[Any] = []
        kept: list[int] = []
        entries, axis = list(self.newshape), 0
        while entries:
            entry = entries.pop(0)
            used = len(shape) - axis if entry == -2 else 2 if entry == -3 else 1
            split = entries[:2] if entry == -4 else []
            # Beside one that is given a number may be behind the last axis.
            if axis + used > len(shape) and entry <= 0 and entry != -1:
                raise ShapeError(f"newshape {self.newshape} names an axis that {len(shape)} dimensions lack")
            own = list(shape[axis : axis + used])
            if entry <= 0 and entry != -1:
                kept += range(axis, axis + used)
            if entry == -3:
                own = [own[0] * own[1]]
            elif entry == -4:
                own = _split(self.newshape, own[0], split)
                del entries[:2]
            found += [entry] if entry == -1 or entry > 0 else own
            axis += used
        return found, kept


def _split(newshape: Sequence[int], extent: Any, parts: Sequence[int]) -> list[Any]:
    """The two extents that -4 splits one into, of which one may be -1."""
    if len(parts) < 2 or min(parts) < -1 or 0 in parts or max(parts) < 1:
        raise ShapeError(f"newshape {newshape}: two extents must follow -4, one of them may be -1")
    found = [extent // parts[1 - i] if n == -1 else n for i, n in enumerate(parts)]
    known = extent.value if isinstance(extent, Dim) else extent
    if known is not None and int(found[0]) * int(found[1]) != known:
        raise ShapeError(f"newshape {newshape} does not split {extent}")
    return found


def _resolved(attrs: ReshapeAttrs, shape: Sequence[int]) -> list[int]:
    """The new shape of numbers, with -1 from the extents that are not kept, as a kept one may be 0."""
    found, kept = attrs.resolve(shape)
    if -1 in found:
        left = math.prod(n for i, n in enumerate(shape) if i not in kept)
        found[found.index(-1)] = left // math.prod(n for n in attrs.given() if n > 0)
    return found


def reshape_rel(types: Sequence[Type], attrs: ReshapeAttrs, reporter: TypeReporter) -> bool:
    """The new shape, which must have as many elements as the input."""
    data = reporter.known(0)
    new = attrs.newshape
    try:
        found, kept = attrs.resolve(data.shape)
    except ShapeError as error:
        reporter.check(False, 0, str(error))
        return False
    given = [n for n in found if isinstance(n, int)]
    reporter.check(given.count(-1) <= 1, 0, f"newshape {new} has more than one -1")
    shape = [d if isinstance(d, Dim) else Dim(max(d, 1)) for d in found]
    if -1 in given:
        # Extents that are kept stand on both sides, and cancel.
        left = product(d for i, d in enumerate(data.shape) if i not in kept)
        # Those of a split are kept too.
        place = next(i for i, n in enumerate(found) if isinstance(n, int) and n == -1)
        count = math.prod(n for n in attrs.given() if n > 0)
        reporter.check(left % count == 0, 0, f"does not divide into newshape {new}")
        shape[place] = left // count if count > 1 else left
    else:
        fits = product(data.shape) == product(shape)
        reporter.check(fits, 0, f"has not as many elements as newshape {new}")
    reporter.assign(1, TensorType(shape, data.dtype))
    return True


def reshape_like_rel(types: Sequence[Type], attrs: Attrs, reporter: TypeReporter) -> bool:
    """The shape of the second input, the dtype of the first."""
    data, like = reporter.known(0), reporter.known(1)
    fits = product(data.shape) == product(like.shape)
    reporter.check(fits, 0, f"has not as many elements as {reporter.name(1)}, {like}")
    reporter.assign(2, TensorType(like.shape, data.dtype))
    return True


class ExpandDimsAttrs(Attrs):
    """Attributes of expand_dims. `axis` may be given as one integer."""

    axis: tuple[int, ...] = field(description="The new axes, of extent 1, counted in the result", form=repeated(1))


class SqueezeAttrs(Attrs):
    """Attributes of squeeze. `axis` may be given as one integer."""

    axis: tuple[int, ...] | None = field(None, "The axes of extent 1 to take away; default: all", form=repeated(1))


def expand_dims_rel(types: Sequence[Type], attrs: ExpandDimsAttrs, reporter: TypeReporter) -> bool:
    """The input's shape with new axes of extent 1."""
    data = reporter.known(0)
    rank = data.ndim + len(attrs.axis)
    new = normal_axes(reporter, 0, attrs.axis, rank)
    kept = iter(data.shape)
    shape = [Dim(1) if i in new else next(kept) for i in range(rank)]
    reporter.assign(1, TensorType(shape, data.dtype))
    return True


def squeeze_rel(types: Sequence[Type], attrs: SqueezeAttrs, reporter: TypeReporter) -> bool:
    """The input's shape without axes of extent 1."""
    data = reporter.known(0)
    if attrs.axis is None:
        gone = [i for i, d in enumerate(data.shape) if d.is_constant and int(d) == 1]
        known = all(d.is_constant for d in data.shape)
        reporter.check(known, 0, "name the axes to take away where an extent is symbolic")
    else:
        gone = list(normal_axes(reporter, 0, attrs.axis, data.ndim))
        for axis in gone:
            reporter.check(data.shape[axis] == 1, 0, f"axis {axis} is not of extent 1")
    reporter.assign(1, TensorType([d for i, d in enumerate(data.shape) if i not in gone], data.dtype))
    return True


(
    register_op("reshape")
    .describe("The same elements in another shape.")
    .add_argument("data", "Tensor", "The input tensor.")
    .set_attrs_type(ReshapeAttrs)
    .set_support_level(3)
    .add_type_rel("Reshape", reshape_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,19]"}, {"newshape": [19, 5]})
    .example({"data": "float32[4,3,5,7]"}, {"newshape": [-4, 2, -1, -3, -2]})
)
(
    register_op("reshape_like")
    .describe("The elements of the first tensor in the shape of the second.")
    .add_argument("data", "Tensor", "The input tensor.")
    .add_argument("shape_like", "Tensor", "The tensor whose shape the result has.")
    .set_support_level(3)
    .add_type_rel("ReshapeLike", reshape_like_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,19]", "shape_like": "float32[95]"})
)
(
    register_op("expand_dims")
    .describe("New axes of extent 1.")
    .add_argument("data", "Tensor", "The input tensor.")
    .set_attrs_type(ExpandDimsAttrs)
    .set_support_level(1)
    .add_type_rel("ExpandDims", expand_dims_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,19]"}, {"axis": [0, -1]})
)

(
    register_op("squeeze")
    .describe("The axes of extent 1 taken away.")
    .add_argument("data", "Tensor", "The input tensor.")
    .set_attrs_type(SqueezeAttrs)
    .set_support_level(3)
    .add_type_rel("Squeeze", squeeze_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[1,19]"})
)


@register_compute("reshape")
@register_compute("reshape_like")
@register_compute("expand_dims")
@register_compute("squeeze")
def compute_reshape(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    from tvm import topi

    return [topi.reshape(inputs[0], extents_of(out_type, inputs))]


@register_reference("reshape")
def reference_reshape(attrs: ReshapeAttrs, inputs: Sequence[Any]) -> Any:
    data = widened(inputs[0])
    return data.reshape(_resolved(attrs, data.shape))


@register_reference("reshape_like")
def reference_reshape_like(attrs: Attrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    return widened(inputs[0]).reshape(np.shape(inputs[1]))


@register_reference("expand_dims")
def reference_expand_dims(attrs: ExpandDimsAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    return np.expand_dims(widened(inputs[0]), attrs.axis)


@register_reference("squeeze")
def reference_squeeze(attrs: SqueezeAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    return np.squeeze(widened(inputs[0]), attrs.axis)


@register_shape_func("reshape", False)
def reshape_shape_func(attrs: ReshapeAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    shape = _resolved(attrs, inputs[0])
    if math.prod(shape) != math.prod(inputs[0]):
        raise ShapeError(f"{inputs[0]} does not reshape to {attrs.newshape}")
    return [tuple(shape)]


@register_shape_func("expand_dims", False)
def expand_dims_shape_func(attrs: ExpandDimsAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    rank = len(inputs[0]) + len(attrs.axis)
    new = {a % rank for a in attrs.axis}
    kept = iter(inputs[0])
    return [tuple(1 if i in new else next(kept) for i in range(rank))]


@register_shape_func("squeeze", False)
def squeeze_shape_func(attrs: SqueezeAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    shape = inputs[0]
    axes = range(len(shape)) if attrs.axis is None else attrs.axis
    gone = {a % len(shape) for a in axes if shape[a] == 1}
    if attrs.axis is not None and len(gone) < len(attrs.axis):
        raise ShapeError(f"{shape} has another extent than 1 on one of axes {attrs.axis}")
    return [tuple(n for i, n in enumerate(shape) if i not in gone)]


register_shape_func("reshape_like", False, like_shape_func)
for _name in ("reshape", "reshape_like", "expand_dims", "squeeze"):
    register_injective_schedule(_name)


@register_gradient("reshape")
@register_gradient("expand_dims")
@register_gradient("squeeze")
def reshape_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad in the input's shape]."""
    return [reshape_like(grad, orig.args[0])]


register_gradient("reshape_like", lambda orig, grad: [reshape_like(grad, orig.args[0]), None])


def reshape(data: Expr, newshape: Sequence[int]) -> Expr:
    """The same elements in another shape.

    Args:
        data: the input tensor.
        newshape: the new shape. As Relay's, one entry may be -1, which is what is left; 0 is the input's next extent,
            -2 all of its further ones, -3 the product of the next two, and -4 splits the next into the two entries
            that follow it, of which one may be -1.
    """
    return call("reshape", data, newshape=tuple(newshape))


reshape_like: Caller = caller("reshape_like")
expand_dims = caller("expand_dims")
squeeze = caller("squeeze")
