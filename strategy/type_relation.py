"""Common type relations, and helpers of relations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.op import TypeRelation, TypeRelationError, TypeReporter, UnknownTypeError
from strategy.types import Dim, IncompleteType, TensorType, TupleType, Type

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
SUMS = ("int32", "int64", *sorted(FLOATS))  # the dtypes of sums of products


def require_any(reporter: TypeReporter, index: int, kind: TensorType) -> None:
    """Accept every dtype of the argument at `index`."""


def require_float(reporter: TypeReporter, index: int, kind: TensorType) -> None:
    """Raise `TypeRelationError` if the argument at `index` is not floating-point."""
    reporter.check(kind.dtype in FLOATS, index, "expected a floating-point tensor: cast it first")


def require_number(reporter: TypeReporter, index: int, kind: TensorType) -> None:
    """Raise `TypeRelationError` if the argument at `index` is a tensor of bools."""
    reporter.check(kind.dtype != "bool", index, "expected numbers: cast it first")


def require_integer(reporter: TypeReporter, index: int, kind: TensorType) -> None:
    """Raise `TypeRelationError` unless the argument at `index` is a tensor of integers."""
    reporter.check(kind.dtype.startswith(("int", "uint")), index, "expected integers: cast it first")


def require_bool(reporter: TypeReporter, index: int, kind: TensorType) -> None:
    """Raise `TypeRelationError` unless the argument at `index` is a tensor of bools."""
    reporter.check(kind.dtype == "bool", index, "expected bools: compare, or cast it first")


def require_signed(reporter: TypeReporter, index: int, kind: TensorType) -> None:
    """Raise `TypeRelationError` if the argument at `index` is unsigned."""
    signed = kind.dtype in FLOATS or kind.dtype.startswith("int")
    reporter.check(signed, index, "expected signed numbers: cast it first")


def require_nonempty(
    reporter: TypeReporter, index: int, kind: TensorType, axes: Iterable[int] | None = None
) -> None:
    """Raise `TypeRelationError` if one of these axes (default: all) of the argument at `index` is empty."""
    for axis in range(kind.ndim) if axes is None else axes:
        known = (kind.shape[axis] >= 1).decide() is not False
        reporter.check(known, index, f"axis {axis} is empty: there is nothing to compute from")


def sum_dtype(reporter: TypeReporter, index: int, kind: TensorType, out_dtype: str | None) -> str:
    """The dtype of sums of products of the argument at `index`: its own if `out_dtype` is None.

    Raises `TypeRelationError` for integers of 8 and 16 bits without `out_dtype`, as sums would overflow, and for an
    `out_dtype` that does not hold the numbers of the argument.
    """
    if out_dtype is None:
        narrow = kind.dtype.endswith(("int8", "int16"))
        reporter.check(not narrow, index, "sums of its products overflow: give out_dtype = int32 or int64")
        return kind.dtype
    real = out_dtype in FLOATS
    numbers = "floating-point numbers" if real else "integers"
    reporter.check((kind.dtype in FLOATS) == real, index, f"out_dtype = {out_dtype} is for {numbers}: cast first")
    narrow = kind.dtype.endswith("16") if real else not kind.dtype.endswith("64")
    fits = out_dtype == kind.dtype or out_dtype.endswith("64") or (narrow and out_dtype.endswith("32"))
    reporter.check(fits, index, f"is wider than out_dtype = {out_dtype}: cast the result instead")
    return out_dtype


# The largest finite number of each.
_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}


def represents(dtype: str, value: float) -> bool:
    """Return whether a dtype has a number: bools 0 and 1, integers their range, floats all in theirs and infinity."""
    if dtype == "bool":
        return value in (0, 1)
    if dtype in FLOATS:
        return math.isinf(value) or abs(value) <= _LARGEST.get(dtype, math.inf)
    signed, bits = dtype.startswith("int"), int(dtype.lstrip("uint"))
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
    return value.is_integer() and low <= value < high


def require_rank(reporter: TypeReporter, index: int, kind: TensorType, rank: int, form: str) -> None:
    """Raise `TypeRelationError` unless the argument at `index` has `rank` dimensions."""
    reporter.check(kind.ndim == rank, index, f"expected {rank} dimensions, {form}")


def require_dtype_of(reporter: TypeReporter, index: int, other: int) -> None:
    """Raise `TypeRelationError` if two known tensors differ in dtype."""
    mine, theirs = reporter.tensor(index), reporter.tensor(other)
    if mine is not None and theirs is not None:
        reporter.check(
            mine.dtype == theirs.dtype, index, f"expected the dtype of {reporter.name(other)}, {theirs}"
        )


Requirement = Callable[[TypeReporter, int, TensorType], None]
# Each requirement in words.
KINDS: dict[Requirement, str] = {
    require_number: "numbers", require_signed: "signed numbers", require_float: "floating-point numbers",
    require_bool: "bools", require_integer: "integers", require_any: "numbers or bools",
}


def identity_relation(
    require: Requirement | None = require_number, *, out_dtype: str | None = None
) -> TypeRelation:
    """Relation of equal types of input and output, in both directions unless the output has `out_dtype`."""

    def relation(types: Sequence[Type], attrs: Attrs, reporter: TypeReporter) -> bool:
        data, out = reporter.tensor(0), reporter.tensor(1)
        if data is None and out is not None and out_dtype is None:
            reporter.assign(0, out)
            data = out
        if data is None:
            return False
        if require is not None:
            require(reporter, 0, data)
        reporter.assign(1, TensorType(data.shape, out_dtype or data.dtype))
        return True

    return relation


def broadcast_relation(
    require: Requirement = require_number, *, out_dtype: str | None = None
) -> TypeRelation:
    """Relation of two tensors of one dtype, broadcast as in NumPy; the output has their dtype or `out_dtype`."""

    def relation(types: Sequence[Type], attrs: Attrs, reporter: TypeReporter) -> bool:
        lhs, rhs = reporter.tensor(0), reporter.tensor(1)
        for index, kind in ((0, lhs), (1, rhs)):
            if kind is not None:
                require(reporter, index, kind)
        if lhs is None or rhs is None:
            return False
        require_dtype_of(reporter, 1, 0)
        shape = broadcast_shape(reporter, 1, rhs, lhs)
        reporter.assign(2, TensorType(shape, out_dtype or lhs.dtype))
        return True

    return relation


def broadcast_shape(
    reporter: TypeReporter, index: int, mine: TensorType, other: TensorType
) -> tuple[Dim, ...]:
    """The shape that two shapes broadcast to; a conflict is reported at `index`, which is `mine`.

    A symbolic dimension is assumed to be equal to another that is not 1 (`Workload.assumptions`).
    """
    rank = max(mine.ndim, other.ndim)
    one = Dim(1)
    padded = [(one,) * (rank - t.ndim) + t.shape for t in (other, mine)]
    shape = []
    for a, b in zip(*padded, strict=True):
        if not _is_one(a) and not _is_one(b):
            reporter.check(a == b, index, f"does not broadcast with {other}: {b} against {a}")
        shape.append(a if _is_one(b) or (a.is_constant and not _is_one(a)) else b)
    return tuple(shape)


def require_shape(
    reporter: TypeReporter, index: int, found: Sequence[Dim], wanted: Sequence[Dim], remedy: str
) -> None:
    """Raise `TypeRelationError` for the argument at `index` if two shapes are certainly not equal."""
    reporter.check(len(found) == len(wanted), index, remedy)
    for a, b in zip(found, wanted, strict=True):
        reporter.check(a == b, index, remedy)


def _is_one(dim: Dim) -> bool:
    return bool(dim.value == 1)  # without a clause: a network asks this of all its dimensions, several times


def certainly(claim: Any) -> bool:
    """Return whether a clause over dimensions is certainly true; False if it depends on a symbol."""
    return claim.decide() is True


def product(dims: Iterable[Dim]) -> Dim:
    """The number of elements of a shape, as a dimension."""
    total = Dim(1)
    for d in dims:
        total = d if _is_one(total) else total * d
    return total


def normal_axis(reporter: TypeReporter, index: int, axis: int, rank: int) -> int:
    """`axis` counted from 0; an error at `index` if it is out of range."""
    reporter.check(-rank <= axis < rank, index, f"axis {axis} is out of range for {rank} dimensions")
    return axis % rank


def normal_axes(
    reporter: TypeReporter, index: int, axes: Sequence[int], rank: int
) -> tuple[int, ...]:
    """Axes counted from 0, in the given order; an error at `index` if one is out of range or repeated."""
    normal = tuple(normal_axis(reporter, index, a, rank) for a in axes)
    reporter.check(len(set(normal)) == len(normal), index, f"axes {tuple(axes)} name one axis twice")
    return normal


def tuple_fields(reporter: TypeReporter, index: int) -> tuple[TensorType, ...]:
    """The types of the tuple at `index`, as `TypeReporter.known`; raise if it is no tuple."""
    kind = reporter.types[index]
    if isinstance(kind, IncompleteType):
        raise UnknownTypeError
    if not isinstance(kind, TupleType) or not kind.fields:
        raise TypeRelationError(
            f"{reporter.op.name}: {reporter.name(index)} is {kind}: expected a tuple of tensors"
        )
    fields: list[TensorType] = []
    for entry in kind.fields:
        if isinstance(entry, IncompleteType):
            raise UnknownTypeError
        if not isinstance(entry, TensorType):
            raise TypeRelationError(
                f"{reporter.op.name}: {reporter.name(index)} is {kind}: a tuple inside a tuple"
            )
        fields.append(entry)
    return tuple(fields)
