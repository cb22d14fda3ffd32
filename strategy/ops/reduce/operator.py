"""Reductions over axes: sum, mean, max, min and prod."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from strategy.attrs import Attrs, AttrsError, field, repeated
from strategy.caller import Caller, caller
from strategy.cpu.binding import is_cpu
from strategy.op import (
    TOpPattern,
    TypeRelation,
    TypeReporter,
    register_compute,
    register_op,
    register_op_attr,
    register_peaks,
    register_reference,
)
from strategy.order import largest, smallest
from strategy.pattern import Compute, in_float32, register_reduce_schedule
from strategy.reference import Peaks, widened
from strategy.shape_func import reduce_shape_func, register_shape_func
from strategy.type_relation import (
    KINDS,
    Requirement,
    normal_axes,
    require_float,
    require_nonempty,
    require_number,
)
from strategy.types import Dim, TensorType, Type


class ReduceAttrs(Attrs):
    """Attributes of reductions. `axis` may be given as one integer."""

    axis: tuple[int, ...] | None = field(None, "The axes to reduce; default: all", form=repeated(1))
    keepdims: bool = field(False, "Keep the reduced axes, with extent 1")
    exclude: bool = field(False, "Reduce the axes that are not named instead")

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self.axis == ():
            raise AttrsError("ReduceAttrs.axis = (): name at least one axis, or None for all")
        if self.exclude and self.axis is None:
            raise AttrsError("ReduceAttrs.exclude = True: name the axes that are kept")


def reduced_axes(attrs: ReduceAttrs, rank: int) -> tuple[int, ...]:
    """The axes to reduce, counted from 0, in order."""
    if attrs.axis is None:
        return tuple(range(rank))
    named = {a % rank for a in attrs.axis}
    return tuple(a for a in range(rank) if (a in named) != attrs.exclude)


def reduced_rows(attrs: ReduceAttrs, data: Any) -> Any:
    """A view of an array with reduced axes as the last: those next to each other, of the last part along the others."""
    import numpy as np

    axes = reduced_axes(attrs, data.ndim)
    first = last = axes[-1]
    while first - 1 in axes:
        first -= 1
    rows = data.reshape(*data.shape[:first], math.prod(data.shape[first : last + 1]), *data.shape[last + 1 :])
    at = [-1 if axis in axes else slice(None) for axis in range(first)]
    return np.moveaxis(rows[tuple(at)], first - at.count(-1), -1)


def sum_peaks(attrs: ReduceAttrs, inputs: Sequence[Any]) -> Peaks:
    """`register_peaks` of a sum, or of squares: the square of each is the sum of all others, if those are 1."""
    shape = inputs[0].shape
    terms = math.prod(shape[axis] for axis in reduced_axes(attrs, len(shape)))
    return Peaks(reduced_rows(attrs, inputs[0]), math.sqrt(terms))


def reduced_shape(attrs: ReduceAttrs, reporter: TypeReporter, data: TensorType) -> list[Dim]:
    """The shape of input 0 without the reduced axes, or with extent 1 there; checks the axes."""
    reporter.check(data.ndim > 0, 0, "has no axis to reduce: leave the reduction out")
    if attrs.axis is not None:
        named = normal_axes(reporter, 0, attrs.axis, data.ndim)
        some = not attrs.exclude or len(named) < data.ndim
        reporter.check(some, 0, f"exclude leaves no axis to reduce but {attrs.axis}")
    gone = reduced_axes(attrs, data.ndim)
    if attrs.keepdims:
        return [Dim(1) if i in gone else d for i, d in enumerate(data.shape)]
    return [d for i, d in enumerate(data.shape) if i not in gone]


def reduce_relation(require: Requirement = require_number, *, nonempty: bool = False) -> TypeRelation:
    """The input's type without the reduced axes, or with extent 1 there."""

    def relation(types: Sequence[Type], attrs: ReduceAttrs, reporter: TypeReporter) -> bool:
        data = reporter.known(0)
        require(reporter, 0, data)
        shape = reduced_shape(attrs, reporter, data)
        if nonempty:
            require_nonempty(reporter, 0, data, reduced_axes(attrs, data.ndim))
        reporter.assign(1, TensorType(shape, data.dtype))
        return True

    return relation


def _in_int32(compute: Compute) -> Compute:
    """A compute that reduces narrower integers in int32 on GPUs.

    TVM joins the threads of a warp in shared memory for these, without the barrier that CUDA asks for there.
    """

    @wraps(compute)
    def wide(attrs: Attrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
        from tvm import topi

        dtype = str(inputs[0].dtype)
        if is_cpu() or dtype not in ("int8", "uint8", "int16", "uint16"):
            return compute(attrs, inputs, out_type)
        return [topi.cast(made, dtype) for made in compute(attrs, [topi.cast(inputs[0], "int32")], out_type)]

    return wide


def _register(
    name: str,
    description: str,
    compute: Compute,
    reference: Callable[..., Any],
    require: Requirement = require_number,
    *,
    nonempty: bool = False,
) -> Caller:
    """Register a reduction, and return the function that calls it."""
    (
        register_op(name)
        .describe(description)
        .add_argument("data", "Tensor", f"A tensor of {KINDS[require]}.")
        .set_attrs_type(ReduceAttrs)
        .set_support_level(4)
        .add_type_rel("Reduce", reduce_relation(require, nonempty=nonempty))
        .set_attr("TOpPattern", TOpPattern.kCommReduce)
        .example({"data": "float32[3,5,19]"}, {"axis": [1]})
        .example({"data": "float32[3,5,19]"}, {"axis": [2]})
        .example({"data": "float32[3,5,19]"}, {"axis": [-1], "exclude": True})
    )

    def numpy_reference(attrs: ReduceAttrs, inputs: Sequence[Any]) -> Any:
        data = widened(inputs[0])
        return reference(data, axis=reduced_axes(attrs, data.ndim), keepdims=attrs.keepdims)

    register_compute(name, in_float32(_in_int32(compute)))
    register_reference(name, numpy_reference)
    register_reduce_schedule(name)
    register_shape_func(name, False, reduce_shape_func)

    return caller(name)


def _by_topi(name: str) -> Compute:
    """The compute by TVM's function of a name."""

    def compute(attrs: ReduceAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
        from tvm import topi

        return [getattr(topi, name)(inputs[0], _axes(attrs, inputs[0]), attrs.keepdims)]

    return compute


def _axes(attrs: ReduceAttrs, data: Any) -> list[int] | None:
    return None if attrs.axis is None else list(reduced_axes(attrs, len(data.shape)))


def _mean(attrs: ReduceAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import tirx, topi

    data = inputs[0]
    total = topi.sum(data, _axes(attrs, data), attrs.keepdims)
    count: Any = math.prod(data.shape[axis] for axis in reduced_axes(attrs, len(data.shape)))
    if isinstance(count, tirx.IntImm) and int(count) == 0:
        return [topi.full_like(total, math.nan)]
    return [topi.divide(total, tirx.Cast(data.dtype, tirx.convert(count)))]


def _extreme(reducer: Callable[[], Any]) -> Compute:
    """The compute of the largest or the smallest element."""

    def compute(attrs: ReduceAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
        from tvm import te

        data, joined = inputs[0], reducer()
        axes = reduced_axes(attrs, len(data.shape))
        steps = {axis: te.reduce_axis((0, data.shape[axis]), name=f"k{axis}") for axis in axes}
        shape = [1 if i in steps else n for i, n in enumerate(data.shape) if attrs.keepdims or i not in steps]

        def element(*index: Any) -> Any:
            kept = iter(index)
            place = []
            for axis in range(len(data.shape)):
                given = next(kept) if attrs.keepdims or axis not in steps else None
                place.append(steps.get(axis, given))
            return joined(data(*place), axis=list(steps.values()))

        return [te.compute(shape, element, name="extreme")]

    return compute


def _reference_sum(x: Any, axis: Any, keepdims: bool) -> Any:
    # NumPy would accumulate small integers in 64 bits.
    return x.sum(axis=axis, keepdims=keepdims, dtype=x.dtype)


def _reference_prod(x: Any, axis: Any, keepdims: bool) -> Any:
    return x.prod(axis=axis, keepdims=keepdims, dtype=x.dtype)


def _reference_mean(x: Any, axis: Any, keepdims: bool) -> Any:
    import numpy as np

    with np.errstate(invalid="ignore"):  # of no elements it is NaN
        count = np.ones_like(x).sum(axis=axis, keepdims=keepdims)
        return x.sum(axis=axis, keepdims=keepdims) / count


sum = _register("sum", "The sum over axes; integers are accumulated in their dtype.", _by_topi("sum"), _reference_sum)
mean = _register("mean", "The arithmetic mean over axes.", _mean, _reference_mean, require_float)
max = _register(
    "max", "The largest element over axes.", _extreme(largest), lambda x, **how: x.max(**how), nonempty=True
)
min = _register(
    "min", "The smallest element over axes.", _extreme(smallest), lambda x, **how: x.min(**how), nonempty=True
)
prod = _register(
    "prod", "The product over axes; integers are accumulated in their dtype.", _by_topi("prod"), _reference_prod
)
register_op_attr("prod", "TFactors", True)
register_peaks("sum", sum_peaks)
register_peaks("mean", sum_peaks)
