"""The call graph: variables, constants, calls of operators and tuples, with type inference.

    x = Var("x", "float32[m,768]")
    w = Var("w", "float32[3072,768]")
    y = relu(dense(x, w) + Var("bias", "float32[3072]"))
    infer_type(y)  # float32[m,3072]

Nodes are immutable and compared by identity: a node with several uses is computed once.
"""
# Over 300 lines: the kinds of nodes of one graph, and the walks over it.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strategy.attrs import Attrs
from strategy.op import Op, get_op
from strategy.types import DTYPES, IncompleteType, TensorType, Type

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike


class ExprError(ValueError):
    """A graph is malformed; the message names the node and the remedy."""


class Expr:
    """A node of the call graph. Arithmetic on nodes makes calls of the broadcast operators."""

    # Makes NumPy arrays leave arithmetic to the node.
    __array_ufunc__ = None
    __slots__ = ("__weakref__", "_type")

    def __init__(self) -> None:
        self._type: Type | None = None

    @property
    def inputs(self) -> tuple[Expr, ...]:
        """The inputs of this node."""
        return ()

    @property
    def checked_type(self) -> Type:
        """The type of this node, inferred if necessary; see `infer_type`."""
        if self._type is None:
            from strategy.inference import infer_type

            return infer_type(self)
        return self._type

    @property
    def tensor_type(self) -> TensorType:
        """`checked_type`, which must be one tensor."""
        found = self.checked_type
        if not isinstance(found, TensorType):
            raise ExprError(f"{self!r} is {found}, but one tensor is needed: take one with [index]")
        return found

    def __add__(self, other: Any) -> Expr:
        return call("add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return call("add", other, self)

    def __sub__(self, other: Any) -> Expr:
        return call("subtract", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return call("subtract", other, self)

    def __mul__(self, other: Any) -> Expr:
        return call("multiply", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return call("multiply", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return call("divide", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return call("divide", other, self)

    def __neg__(self) -> Expr:
        return call("negative", self)

    def __getitem__(self, index: Any) -> Expr:
        return TupleGetItem(self, index)

    def __str__(self) -> str:
        """The graph as text in Relay's style, with known types."""
        names: dict[Expr, str] = {}
        lines: list[str] = []
        for node in post_order(self):
            names[node] = node._text([names[i] for i in node.inputs])
            if isinstance(node, Call):
                place = f"%{len(lines)}"
                lines.append(f"  {place} = {names[node]}{_comment(node)};\n")
                names[node] = place
        variables = [n for n in names if isinstance(n, Var)]
        heads = [
            names[v] if isinstance(kind := v._type or v.type, IncompleteType) else f"{names[v]}: {kind}"
            for v in variables
        ]
        return f"fn ({', '.join(heads)}) {{\n{''.join(lines)}  {names[self]}\n}}"

    def _text(self, inputs: Sequence[str]) -> str:
        """The text of the node itself, given the names of its inputs."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Expr]:
        # Otherwise Python would iterate through __getitem__ endlessly.
        raise TypeError(f"{self!r} is an expression, not a sequence: take a tuple's entries with [index]")


class Var(Expr):
    """An input of the graph. A missing type is inferred from its uses."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, type: Type | str | None = None) -> None:
        super().__init__()
        self.name = name
        self.type: Type = (
            TensorType.parse(type) if isinstance(type, str) else type or IncompleteType(name)
        )

    def _text(self, inputs: Sequence[str]) -> str:
        return f"%{self.name}"

    def __repr__(self) -> str:
        return f"Var({self.name}: {self.type})"


class Constant(Expr):
    """A tensor whose value is known at compile time, such as weights.

    The array must not change afterwards, as it may be packed once.
    """

    __slots__ = ("value",)

    def __init__(self, value: ArrayLike, dtype: str | None = None) -> None:
        import numpy as np

        super().__init__()
        self.value: np.ndarray[Any, Any] = np.asarray(value, dtype)
        if self.value.dtype.name not in DTYPES:
            raise ExprError(f"a constant cannot have dtype {self.value.dtype}: give dtype=")

    @property
    def type(self) -> TensorType:
        return TensorType(self.value.shape, self.value.dtype.name)

    def _text(self, inputs: Sequence[str]) -> str:
        if self.value.ndim == 0:
            return f"{self.value.dtype}({self.value})"
        return f"const({self.type})"

    def __repr__(self) -> str:
        return f"Constant({self.type})"


def const(value: ArrayLike, dtype: str | None = None) -> Constant:
    """A constant; numbers without a dtype are float32 or int32, as in TVM."""
    if dtype is None and isinstance(value, int | float) and not isinstance(value, bool):
        dtype = "int32" if isinstance(value, int) else "float32"
    return Constant(value, dtype)


class Call(Expr):
    """A call of an operator. `attrs` are its fixed arguments."""

    __slots__ = ("args", "attrs", "op")

    def __init__(self, op: Op | str, args: Sequence[Expr], attrs: Attrs | None = None) -> None:
        super().__init__()
        self.op = get_op(op) if isinstance(op, str) else op
        self.args = tuple(args)
        self.attrs: Any = self.op.attrs_type() if attrs is None else attrs  # of the operator's own type
        for index, arg in enumerate(self.args):
            if not isinstance(arg, Expr):
                raise ExprError(
                    f"{self.op.name}: {self.argument(index)} is {arg!r:.80}, not an expression: "
                    "make it one with const(value, dtype)"
                )
        if self.op.num_inputs is not None and len(self.args) != self.op.num_inputs:
            names = ", ".join(a.name for a in self.op.arguments)
            raise ExprError(
                f"{self.op.name} takes {self.op.num_inputs} inputs ({names}), got {len(self.args)}"
            )
        if not isinstance(self.attrs, self.op.attrs_type):
            raise ExprError(
                f"{self.op.name} takes attributes of type {self.op.attrs_type.__name__}, "
                f"got {self.attrs!r:.80}"
            )

    def argument(self, index: int) -> str:
        """Name of the argument at `index`."""
        known = self.op.arguments
        return known[index].name if index < len(known) else f"input {index}"

    @property
    def inputs(self) -> tuple[Expr, ...]:
        return self.args

    def _text(self, inputs: Sequence[str]) -> str:
        given = (f"{k}={v}" for k, v in self.attrs.to_json().items())
        return f"{self.op.name}({', '.join([*inputs, *given])})"

    def __repr__(self) -> str:
        return f"Call({self.op.name})"


class Tuple(Expr):
    """A tuple of expressions: an input of `concatenate`, or several outputs of a graph."""

    __slots__ = ("fields",)

    def __init__(self, fields: Sequence[Expr]) -> None:
        super().__init__()
        self.fields = tuple(fields)
        for index, entry in enumerate(self.fields):
            if not isinstance(entry, Expr):
                raise ExprError(
                    f"Tuple: field {index} is {entry!r:.80}, not an expression: wrap it with "
                    "const(value, dtype)"
                )

    @property
    def inputs(self) -> tuple[Expr, ...]:
        return self.fields

    def __len__(self) -> int:
        return len(self.fields)

    def _text(self, inputs: Sequence[str]) -> str:
        return f"({', '.join(inputs)}{',' if len(inputs) == 1 else ''})"

    def __repr__(self) -> str:
        return f"Tuple({len(self.fields)} fields)"


class TupleGetItem(Expr):
    """An entry of a tuple, such as one output of an operator."""

    __slots__ = ("index", "tuple_value")

    def __init__(self, tuple_value: Expr, index: Any) -> None:
        super().__init__()
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise ExprError(f"a tuple's index is an integer of at least 0, got {index!r:.40}")
        self.tuple_value = tuple_value
        self.index: int = index

    @property
    def inputs(self) -> tuple[Expr, ...]:
        return (self.tuple_value,)

    def _text(self, inputs: Sequence[str]) -> str:
        return f"{inputs[0]}.{self.index}"

    def __repr__(self) -> str:
        return f"TupleGetItem({self.tuple_value!r}, {self.index})"


def _comment(node: Expr) -> str:
    return "" if node._type is None else f" /* {node._type} */"


def call(name: str, *args: Any, **attrs: Any) -> Call:
    """A call of the operator `name`; NumPy arrays become constants, attributes that are None are omitted."""
    import numpy as np

    op = get_op(name)
    nodes = [Constant(a) if isinstance(a, np.ndarray) else a for a in args]
    return Call(op, nodes, op.attrs_type(**{k: v for k, v in attrs.items() if v is not None}))


def post_order(*roots: Expr, untyped: bool = False, but: Iterable[Expr] = ()) -> list[Expr]:
    """All nodes that `roots` depend on, including them, each once and after its inputs.

    With `untyped`, inputs of nodes with a known type are omitted; so are nodes of `but`, with their inputs.
    """
    order: dict[Expr, None] = {}
    entered = set(but)
    # An explicit stack, as graphs may be deeper than Python's recursion limit.
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        node, left = stack.pop()
        if left:
            order[node] = None
        elif node not in entered:
            entered.add(node)
            stack.append((node, True))
            if not (untyped and node._type is not None):
                stack.extend((i, False) for i in reversed(node.inputs))
    return list(order)


def free_vars(*roots: Expr) -> list[Var]:
    """The variables that `roots` depend on, in the order of traversal.

    Raises:
        ExprError: two of them have the same name.
    """
    found: dict[str, Var] = {}
    for node in post_order(*roots):
        if isinstance(node, Var):
            if node.name in found:
                raise ExprError(f"two variables are called {node.name!r}: rename one")
            found[node.name] = node
    return list(found.values())


def substitute(expr: Expr, replacements: Mapping[Expr, Expr]) -> Expr:
    """The same graph with some nodes replaced by others."""
    made: dict[Expr, Expr] = dict(replacements)
    for node in post_order(expr):
        if node not in made:
            made[node] = rebuilt(node, [made[i] for i in node.inputs])
    return made[expr]


def rebuilt(node: Expr, inputs: Sequence[Expr]) -> Expr:
    """The same node with other inputs; itself where they are its own."""
    if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
        return node
    if isinstance(node, Call):
        return Call(node.op, inputs, node.attrs)
    return TupleGetItem(inputs[0], node.index) if isinstance(node, TupleGetItem) else Tuple(inputs)
