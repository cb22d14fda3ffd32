"""Types of expressions: dimensions, tensors, tuples, and incomplete types."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from strategy.condition import Expr, ExpressionError
from strategy.suggestion import suggest

DTYPES = frozenset(
    "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()
)
MAX_RANK = 16
MAX_DIM = 2**63 - 1  # of a network with symbolic sizes, whose primes multiply; a workload's has MAX_ELEMENTS
MAX_ELEMENTS = 2**48
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
_TENSOR = re.compile(r"\s*([a-z0-9]+)\s*\[([^\[\]]*)\]\s*\Z")


class TypeSyntaxError(ValueError):
    """A type, shape or dtype is malformed; the message has the remedy."""


class Dim(Expr):
    """A dimension of a shape: an integer, or a symbol, or arithmetic on them.

    Comparing dimensions always gives a `Clause`, also of constants, so that conditions keep their identity; `int()` of
    a symbolic dimension raises.
    """

    __slots__ = ()

    is_dimension = True

    def __init__(
        self, op: int | str | Expr, args: tuple[Any, ...] | None = None, value: Any = None
    ) -> None:
        if args is not None:
            super().__init__(str(op), args, value)
        elif isinstance(op, Expr):
            super().__init__(op.op, op.args, op.value)
        elif isinstance(op, str) and _SYMBOL.match(op):
            super().__init__("var", (op,))
        elif isinstance(op, str | bool) or not hasattr(op, "__index__"):
            raise TypeSyntaxError(f"{op!r:.80} is not a dimension: use an integer or a name such as m")
        else:
            size = int(op)
            if not 0 <= size <= MAX_DIM:
                raise TypeSyntaxError(f"dimension {size} is out of range 0 … {MAX_DIM}")
            super().__init__("const", (size,), size)

    @property
    def is_constant(self) -> bool:
        return self.value is not None

    def __int__(self) -> int:
        if self.value is None:
            raise ExpressionError(
                f"dimension '{self}' is symbolic and has no value before run time: give a number"
            )
        return int(self.value)

    __index__ = __int__

    def named(self, name: str) -> Dim:
        """This dimension under the name of its position (`data.shape[0]`), with its value.

        A symbolic dimension keeps its own name.
        """
        return Dim("var", (name,), self.value) if self.op == "const" else self


class Type:
    """A tensor type, a tuple of types, or a type to be inferred."""

    __slots__ = ()


class TensorType(Type):
    """A tensor of `dtype` with `shape`, whose entries are `Dim`s.

    Raises:
        TypeSyntaxError: an unknown dtype, too many dimensions, or an invalid dimension.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: Iterable[int | str | Expr], dtype: str = "float32") -> None:
        if dtype not in DTYPES:
            known = " ".join(sorted(DTYPES))
            raise TypeSyntaxError(f"unknown dtype {dtype!r:.40}{suggest(dtype, DTYPES)}; known: {known}")
        self.shape: tuple[Dim, ...] = tuple(d if type(d) is Dim else Dim(d) for d in shape)
        if len(self.shape) > MAX_RANK:
            raise TypeSyntaxError(
                f"a tensor has at most {MAX_RANK} dimensions, got {len(self.shape)}"
            )
        self.dtype = dtype

    @classmethod
    def parse(cls, text: str) -> TensorType:
        """Read `float32[128,768]`, `float32[m,768]` or `float32[]`."""
        found = _TENSOR.match(text)
        if not found:
            raise TypeSyntaxError(
                f"{text!r:.80} is not a tensor type: write it as float32[128,768]"
            )
        entries = [x.strip() for x in found[2].split(",")] if found[2].strip() else []
        return cls([int(x) if x.isdecimal() and len(x) < 20 else x for x in entries], found[1])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_empty(self) -> bool:
        """True if an extent is known to be 0."""
        return any(dim.is_constant and int(dim) == 0 for dim in self.shape)

    @property
    def is_constant(self) -> bool:
        """Return whether every dimension is known."""
        return all(d.is_constant for d in self.shape)

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        return tuple(int(d) for d in self.shape)

    @property
    def size(self) -> int:
        """The number of elements; raise if a dimension is symbolic."""
        return math.prod(self.concrete_shape)

    def named(self, argument: str) -> TensorType:
        """The type with constant dimensions named by their position in `argument`."""
        return TensorType(
            [d.named(f"{argument}.shape[{i}]") for i, d in enumerate(self.shape)], self.dtype
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorType) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(str(d.value if d.is_constant else d) for d in self.shape)}]"

    def __repr__(self) -> str:
        return f"TensorType({self})"


class TupleType(Type):
    """A tuple of types, such as inputs of concatenate and outputs of split."""

    __slots__ = ("fields",)

    def __init__(self, fields: Sequence[Type]) -> None:
        self.fields = tuple(fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TupleType) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.fields)

    def __str__(self) -> str:
        return f"({', '.join(str(f) for f in self.fields)})"

    def __repr__(self) -> str:
        return f"TupleType{self}"


class IncompleteType(Type):
    """A type to be inferred; each instance is a distinct unknown."""

    __slots__ = ("name",)

    def __init__(self, name: str = "?") -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"IncompleteType({self.name})"


def require_size(kind: Type) -> None:
    """Raise `TypeSyntaxError` if a tensor has too many elements.

    Types themselves may have more: those of a network have large primes in place of symbolic sizes.
    """
    for own in kind.fields if isinstance(kind, TupleType) else (kind,):
        sizes = [int(d.value) for d in own.shape if d.value is not None] if isinstance(own, TensorType) else []
        if math.prod(sizes) > MAX_ELEMENTS or max(sizes, default=0) > MAX_ELEMENTS:
            raise TypeSyntaxError(f"{own} is too large: a tensor has at most {MAX_ELEMENTS} elements")


def may_equal(a: Type, b: Type) -> bool:
    """Return whether two types can be equal for some values of their symbolic dimensions."""
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return (
            a.dtype == b.dtype
            and a.ndim == b.ndim
            and all((d == e).decide() is not False for d, e in zip(a.shape, b.shape, strict=True))
        )
    if isinstance(a, TupleType) and isinstance(b, TupleType):
        return len(a.fields) == len(b.fields) and all(map(may_equal, a.fields, b.fields))
    return a == b
