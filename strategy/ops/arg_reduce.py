"""argmax and argmin: indices of the largest and the smallest elements over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.attrs import field
from strategy.caller import Caller, caller
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.reduce import ReduceAttrs, reduced_axes, reduced_shape
from strategy.ops.reduce.passes import Passes, register_passes
from strategy.order import highest, sort_key
from strategy.pattern import register_reduce_schedule
from strategy.reference import widened
from strategy.shape_func import reduce_shape_func, register_shape_func
from strategy.type_relation import require_nonempty, require_number
from strategy.types import TensorType, Type

# All keys of these may be the one that TVM begins with, whose place is -1.
_FULL = frozenset({"int32", "int64", "uint64"})


class ArgReduceAttrs(ReduceAttrs):
    """Attributes of argmax and argmin. `axis` may be given as one integer."""

    dtype: str = field("int32", "Data type of the indices", choices=("int32", "int64"))


def arg_reduce_rel(types: Sequence[Type], attrs: ArgReduceAttrs, reporter: TypeReporter) -> bool:
    """The shape of a reduction, of indices."""
    data = reporter.known(0)
    require_number(reporter, 0, data)
    shape = reduced_shape(attrs, reporter, data)
    require_nonempty(reporter, 0, data, reduced_axes(attrs, data.ndim))
    reporter.assign(1, TensorType(shape, attrs.dtype))
    return True


def _register(name: str, which: str) -> Caller:
    (
        register_op(name)
        .describe(
            f"The place of the {which} element over axes, counted over the reduced axes; the first of equals, "
        "or of NaN where there is one."
        )
        .add_argument("data", "Tensor", "A tensor of numbers.")
        .set_attrs_type(ArgReduceAttrs)
        .set_support_level(4)
        .add_type_rel("ArgReduce", arg_reduce_rel)
        .set_attr("TOpPattern", TOpPattern.kCommReduce)
        .example({"data": "float32[3,5,19]"}, {"axis": [1]})
        .example({"data": "float32[3,5,19]"}, {"axis": [2]})
        .example({"data": "float32[3,5]"}, {"dtype": "int64"})
    )

    def compute(attrs: ArgReduceAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
        from tvm import te, tirx, topi

        data = inputs[0]
        keys = te.compute(
            data.shape, lambda *i: sort_key(data(*i), nan_first=name == "argmin"), name="keys",
            tag=topi.tag.ELEMWISE,
        )
        axis = None if attrs.axis is None else list(reduced_axes(attrs, len(data.shape)))
        found = getattr(topi, name)(keys, axis, attrs.keepdims)
        if str(data.dtype) in _FULL:
            found = topi.maximum(found, tirx.const(0, found.dtype))
        return [topi.cast(found, attrs.dtype)]

    def reference(attrs: ArgReduceAttrs, inputs: Sequence[Any]) -> Any:
        import numpy as np

        data = widened(inputs[0])
        axes = reduced_axes(attrs, data.ndim)
        kept = [i for i in range(data.ndim) if i not in axes]
        count = math.prod(data.shape[i] for i in axes)
        flat = data.transpose([*kept, *axes]).reshape([*(data.shape[i] for i in kept), count])
        found = np.asarray(getattr(np, name)(flat, axis=-1)).astype(attrs.dtype)
        return np.expand_dims(found, axes) if attrs.keepdims else found

    register_compute(name, compute)
    register_reference(name, reference)
    register_reduce_schedule(name)
    register_shape_func(name, False, reduce_shape_func)
    register_gradient(name, lambda orig, grad: [None])

    return caller(name)


argmax = _register("argmax", "largest")
argmin = _register("argmin", "smallest")


def _kind(dtype: str) -> str:
    """The dtype of keys, and of places among them."""
    return "int64" if dtype in ("float64", "int64", "uint64", "uint32") else "int32"


def _place(key: Any, end: Any, place: Any) -> Any:
    """The place of an element whose key is the largest, or the smallest, and of others a place behind all."""
    from tvm import tirx

    dtype = str(key.ty.dtype)
    return tirx.Select(key == end, tirx.Cast(dtype, place), highest(dtype))


def _passes(how: str, *, nan_first: bool) -> Passes:
    return Passes(
        _kind, lambda value, dtype: sort_key(value, nan_first=nan_first), how,
        lambda attrs, place, end, count: place, second="min", term=_place,
    )


register_passes("argmax", _passes("max", nan_first=False))
register_passes("argmin", _passes("min", nan_first=True))
