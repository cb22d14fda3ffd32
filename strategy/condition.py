"""The small expression language of conditions, constraints and derived features.

One syntax tree serves three uses: comparisons over the dimensions of a workload
(`SpecializedCondition`, in conjunctive normal form as in TVM's `te.SpecializedCondition`),
constraints between the knobs of a `ConfigSpace`, and features derived from them. A tree has a JSON
form which is parsed, never evaluated as code, under limits on depth and size:

    16                              a constant
    "data.shape[0]"                 a variable
    ["<=", ["*", "mr", "nr"], 28]   an operation on operands
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Self

MAX_DEPTH = 32
MAX_NODES = 2000

Json = int | float | str | list[Any]


class ExpressionError(ValueError):
    """A malformed or oversized expression, or one that cannot be computed with the values given."""


class UndecidedError(ExpressionError):
    """A comparison over symbolic dimensions was used where a definite truth value is needed."""


def _ceildiv(a: Any, b: Any) -> Any:
    return -(-a // b)


def _log2(a: Any) -> Any:
    if isinstance(a, int | float):
        return math.log2(a)
    import numpy as np

    return np.log2(a)


def _minimum(a: Any, b: Any) -> Any:
    return _choose(a <= b, a, b)


def _maximum(a: Any, b: Any) -> Any:
    return _choose(a >= b, a, b)


def _choose(test: Any, a: Any, b: Any) -> Any:
    if isinstance(test, bool):
        return a if test else b
    import numpy as np

    return np.where(test, a, b)


def _item(value: Any, index: int) -> Any:
    # A tuple-valued knob (a split); arrays of such values hold one column per part.
    return value[index] if isinstance(value, tuple | list) else value[..., index]


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": _minimum,
    "max": _maximum,
    "ceildiv": _ceildiv,
    "log2": _log2,
    "item": _item,
    "if": _choose,
}
_COMPARISON: dict[str, Callable[..., Any]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_LOGIC: dict[str, Callable[..., Any]] = {
    # Bitwise forms work on bools and on arrays of them alike.
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "not": lambda a: a ^ True,
}
OPERATIONS = _ARITHMETIC | _COMPARISON | _LOGIC
_ARITY = {"log2": 1, "not": 1, "if": 3}
_NEGATION = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


class Expr:
    """An immutable expression: a constant, a variable, or an operation on expressions.

    A variable may carry the value it is known to have (a dimension of a concrete workload), so that
    an expression keeps its identity and can be explained even where it can be computed at once.
    Comparisons give expressions, not bools; `bool()` of one computes it and raises `UndecidedError`
    where a variable has no value.
    """

    __slots__ = ("_hash", "args", "op", "value")

    def __init__(self, op: str, args: tuple[Any, ...], value: Any = None) -> None:
        self.op = op  # "const", "var", or a key of OPERATIONS
        self.args = args
        self.value = value  # the known value, or None
        self._hash: int | None = None

    @classmethod
    def const(cls, value: float | str) -> Self:
        return cls("const", (value,), value)

    @classmethod
    def var(cls, name: str, value: Any = None) -> Self:
        return cls("var", (name,), value)

    @classmethod
    def wrap(cls, value: Any) -> Expr:
        """`value` as an expression: numbers and bools become constants."""
        if isinstance(value, Expr):
            return value
        if isinstance(value, bool | int | float):
            return cls.const(value)
        raise ExpressionError(
            f"{value!r} cannot appear in an expression: use numbers, dimensions or knobs"
        )

    def _apply(self, op: str, *operands: Any) -> Self:
        args = tuple(self.wrap(x) for x in operands)
        value = None
        if all(a.value is not None for a in args):
            value = _checked(OPERATIONS[op], *(a.value for a in args))
        elif op in _COMPARISON and args[0].same(args[1]):
            value = op in ("==", "<=", ">=")  # m == m, whatever m is
        return type(self)(op, args, value)

    def __add__(self, other: Any) -> Self:
        return self._apply("+", self, other)

    def __radd__(self, other: Any) -> Self:
        return self._apply("+", other, self)

    def __sub__(self, other: Any) -> Self:
        return self._apply("-", self, other)

    def __rsub__(self, other: Any) -> Self:
        return self._apply("-", other, self)

    def __mul__(self, other: Any) -> Self:
        return self._apply("*", self, other)

    def __rmul__(self, other: Any) -> Self:
        return self._apply("*", other, self)

    def __truediv__(self, other: Any) -> Self:
        return self._apply("/", self, other)

    def __floordiv__(self, other: Any) -> Self:
        return self._apply("//", self, other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._apply("//", other, self)

    def __mod__(self, other: Any) -> Self:
        return self._apply("%", self, other)

    def __rmod__(self, other: Any) -> Self:
        return self._apply("%", other, self)

    def __getitem__(self, index: int) -> Self:
        return self._apply("item", self, index)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{self} is one expression, not a sequence")

    def __lt__(self, other: Any) -> Clause:
        return _compare("<", self, other)

    def __le__(self, other: Any) -> Clause:
        return _compare("<=", self, other)

    def __gt__(self, other: Any) -> Clause:
        return _compare(">", self, other)

    def __ge__(self, other: Any) -> Clause:
        return _compare(">=", self, other)

    def __eq__(self, other: object) -> Clause:  # type: ignore[override]
        return _compare("==", self, other)

    def __ne__(self, other: object) -> Clause:  # type: ignore[override]
        return _compare("!=", self, other)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.op, self.args))
        return self._hash

    def __bool__(self) -> bool:
        if self.value is None:
            raise UndecidedError(
                f"'{self}' is undecided: {', '.join(sorted(self.variables()))} has no value here"
            )
        return bool(self.value)

    def same(self, other: Expr) -> bool:
        """Whether both are the same tree (`==` gives a clause)."""
        return self is other or self.to_json() == other.to_json()

    def variables(self) -> frozenset[str]:
        if self.op == "var":
            return frozenset(self.args)
        if self.op == "const":
            return frozenset()
        return frozenset().union(*(a.variables() for a in self.args))

    def substitute(self, env: Mapping[str, Any]) -> Expr:
        """The same expression with the named variables bound to numbers or expressions."""
        if self.op == "const":
            return self
        if self.op == "var":
            name = self.args[0]
            if name not in env:
                return self
            bound = env[name]
            return bound if isinstance(bound, Expr) else type(self).var(name, bound)
        return self._apply(self.op, *(a.substitute(env) for a in self.args))

    def evaluate(self, env: Mapping[str, Any]) -> Any:
        """The value where the variables are as in `env` (numbers, or NumPy arrays of them).

        Raises:
            ExpressionError: a variable has no value, or the computation fails.
        """
        return self.compile()(env)

    def compile(self) -> Callable[[Mapping[str, Any]], Any]:
        """A closure that computes this expression: what `evaluate` runs, reusable in hot loops."""
        if self.op == "const":
            constant = self.args[0]
            return lambda env: constant
        if self.op == "var":
            name, known = self.args[0], self.value

            def read(env: Mapping[str, Any]) -> Any:
                value = env.get(name, known)
                if value is None:
                    raise ExpressionError(f"variable {name!r} has no value")
                return value

            return read
        function = OPERATIONS[self.op]
        parts = [a.compile() for a in self.args]
        if len(parts) == 2:
            left, right = parts
            return lambda env: _checked(function, left(env), right(env))
        return lambda env: _checked(function, *(p(env) for p in parts))

    def to_json(self) -> Json:
        if self.op in ("const", "var"):
            result: Json = self.args[0]
            return result
        return [self.op, *(a.to_json() for a in self.args)]

    @classmethod
    def from_json(cls, data: Any) -> Expr:
        """Parses the JSON form.

        Raises:
            ExpressionError: not of the form above, an unknown operation, or over the limits of
                `MAX_DEPTH` and `MAX_NODES`.
        """
        budget = [MAX_NODES]

        def parse(node: Any, depth: int) -> Expr:
            budget[0] -= 1
            if budget[0] < 0:
                raise ExpressionError(f"expression has more than {MAX_NODES} nodes")
            if depth > MAX_DEPTH:
                raise ExpressionError(f"expression is nested deeper than {MAX_DEPTH}")
            if isinstance(node, str):
                return cls.var(node)
            if isinstance(node, bool | int | float):
                return cls.const(node)
            if not isinstance(node, list) or not node or not isinstance(node[0], str):
                raise ExpressionError(f"expected a number, a name or [operation, …], got {node!r:.80}")
            op, *operands = node
            if op not in OPERATIONS:
                raise ExpressionError(
                    f"unknown operation {op!r:.40}; known: {' '.join(OPERATIONS)}"
                )
            args = tuple(parse(x, depth + 1) for x in operands)
            if op in ("and", "or"):
                return _join(op, args)
            if len(args) != _ARITY.get(op, 2):
                raise ExpressionError(f"{op!r} takes {_ARITY.get(op, 2)} operands, got {len(args)}")
            return cls.const(0)._apply(op, *args)

        return parse(data, 0)

    def __str__(self) -> str:
        if self.op in ("const", "var"):
            return str(self.args[0])
        shown = [f"({a})" if a.op in OPERATIONS and a.op not in _PREFIX else str(a) for a in self.args]
        if self.op == "item":
            return f"{shown[0]}[{shown[1]}]"
        if self.op in _PREFIX:
            return f"{self.op}({', '.join(str(a) for a in self.args)})"
        return f"{shown[0]} {self.op} {shown[1]}"

    def __repr__(self) -> str:
        known = "" if self.value is None or self.op == "const" else f" [{self.value}]"
        return f"{type(self).__name__}({self}{known})"


_PREFIX = {"min", "max", "ceildiv", "log2", "not", "if", "item"}


def _join(op: str, args: Sequence[Expr]) -> Expr:
    if not args:
        raise ExpressionError(f"{op!r} takes at least one operand")
    joined = args[0]
    for nxt in args[1:]:
        joined = Expr.const(0)._apply(op, joined, nxt)
    return joined


def _checked(function: Callable[..., Any], *values: Any) -> Any:
    try:
        return function(*values)
    except (ArithmeticError, TypeError, IndexError, ValueError) as error:
        shown = ", ".join(repr(v)[:40] for v in values)
        raise ExpressionError(f"cannot compute with {shown}: {error}") from error


def minimum(a: Any, b: Any) -> Expr:
    return Expr.const(0)._apply("min", a, b)


def maximum(a: Any, b: Any) -> Expr:
    return Expr.const(0)._apply("max", a, b)


def ceildiv(a: Any, b: Any) -> Expr:
    return Expr.const(0)._apply("ceildiv", a, b)


def log2(a: Any) -> Expr:
    return Expr.const(0)._apply("log2", a)


def _compare(op: str, a: Any, b: Any) -> Clause:
    return Clause((Expr.const(0)._apply(op, a, b),))


class Clause:
    """A disjunction of comparisons: what a conjunctive normal form is made of.

    `a | b` joins clauses; `a & b` gives a `SpecializedCondition`. A clause whose variables all have
    values can be used as a bool; any other raises `UndecidedError` there.
    """

    __slots__ = ("alternatives",)

    def __init__(self, alternatives: Sequence[Expr]) -> None:
        unique = {_canonical(a): a for a in alternatives}
        for a in unique.values():
            if a.op not in _COMPARISON:
                raise ExpressionError(f"'{a}' is not a comparison")
        # Sorted, so that equal conditions are equal however they were written.
        self.alternatives = tuple(unique[k] for k in sorted(unique))

    def decide(self) -> bool | None:
        """True or False where that is certain, None where it depends on a symbolic dimension."""
        undecided = False
        for a in self.alternatives:
            if a.value is None:
                undecided = True
            elif a.value:
                return True
        return None if undecided else False

    def __bool__(self) -> bool:
        decided = self.decide()
        if decided is None:
            names = ", ".join(sorted(self.variables()))
            raise UndecidedError(
                f"'{self}' is undecided: {names} is symbolic here; "
                "use SpecializedCondition to dispatch on it"
            )
        return decided

    def evaluate(self, env: Mapping[str, Any]) -> Any:
        """Whether it holds where the variables are as in `env`: numbers, or arrays of them."""
        holds: Any = False
        for a in self.alternatives:
            holds = holds | a.evaluate(env)
        return holds

    def __or__(self, other: Clause) -> Clause:
        if not isinstance(other, Clause):
            return NotImplemented
        return Clause(self.alternatives + other.alternatives)

    def __and__(self, other: Clause | SpecializedCondition) -> SpecializedCondition:
        return SpecializedCondition(self, other)

    def __invert__(self) -> SpecializedCondition:
        return SpecializedCondition(
            *(_compare(_NEGATION[a.op], *a.args) for a in self.alternatives)
        )

    def variables(self) -> frozenset[str]:
        return frozenset().union(*(a.variables() for a in self.alternatives))

    def substitute(self, env: Mapping[str, Any]) -> Clause:
        return Clause([a.substitute(env) for a in self.alternatives])

    def to_json(self) -> Json:
        first = self.alternatives[0].to_json()
        if len(self.alternatives) == 1:
            return first
        return ["or", *(a.to_json() for a in self.alternatives)]

    @classmethod
    def from_json(cls, data: Any) -> Clause:
        if isinstance(data, list) and data and data[0] == "or":
            return cls([_comparison(Expr.from_json(x)) for x in data[1:]] or _no_alternative())
        return cls((_comparison(Expr.from_json(data)),))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Clause) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(tuple(_canonical(a) for a in self.alternatives))

    def __str__(self) -> str:
        if len(self.alternatives) == 1:
            return str(self.alternatives[0])
        return " | ".join(f"({a})" for a in self.alternatives)

    def __repr__(self) -> str:
        return f"Clause({self})"


def _canonical(expr: Expr) -> str:
    return repr(expr.to_json())


def _comparison(expr: Expr) -> Expr:
    if expr.op not in _COMPARISON:
        raise ExpressionError(f"'{expr}' is not a comparison")
    return expr


def _no_alternative() -> list[Expr]:
    raise ExpressionError("'or' takes at least one comparison")


_stack: ContextVar[tuple[SpecializedCondition, ...]] = ContextVar("specialized_conditions", default=())


class SpecializedCondition:
    """A conjunction of clauses over shape dimensions, under which implementations are valid.

    Used as a context: implementations added inside are specialised to it. Contexts nest and all of
    them hold (TVM kept only the innermost one).

        with SpecializedCondition(m > 16):
            strategy.add_implementation(...)
    """

    __slots__ = ("_outer", "clauses")

    def __init__(self, *clauses: Clause | SpecializedCondition) -> None:
        flat: dict[str, Clause] = {}
        for c in clauses:
            if isinstance(c, SpecializedCondition):
                flat.update({repr(x.to_json()): x for x in c.clauses})
            elif isinstance(c, Clause):
                flat[repr(c.to_json())] = c
            else:
                raise ExpressionError(
                    f"SpecializedCondition takes comparisons over shape dimensions "
                    f"such as m > 16, got {c!r:.80}"
                )
        self.clauses = tuple(flat[k] for k in sorted(flat))
        self._outer: tuple[SpecializedCondition, ...] = ()

    @staticmethod
    def current() -> SpecializedCondition | None:
        """The conjunction of the contexts entered here, or None outside of any."""
        active = _stack.get()
        return SpecializedCondition(*active) if active else None

    def __enter__(self) -> Self:
        self._outer = _stack.get()
        _stack.set((*self._outer, self))
        return self

    def __exit__(self, *exc: object) -> None:
        _stack.set(self._outer)

    def decide(self) -> bool | None:
        """True or False where that is certain, None where it depends on a symbolic dimension."""
        results = [c.decide() for c in self.clauses]
        if any(r is False for r in results):
            return False
        return None if any(r is None for r in results) else True

    def evaluate(self, env: Mapping[str, Any]) -> Any:
        """Whether it holds where the variables are as in `env`: numbers, or arrays of them."""
        holds: Any = True
        for clause in self.clauses:
            holds = holds & clause.evaluate(env)
        return holds

    def __and__(self, other: Clause | SpecializedCondition) -> SpecializedCondition:
        return SpecializedCondition(self, other)

    def variables(self) -> frozenset[str]:
        return frozenset().union(*(c.variables() for c in self.clauses))

    def substitute(self, env: Mapping[str, Any]) -> SpecializedCondition:
        """This condition with variables bound to numbers or to other dimensions."""
        return SpecializedCondition(*(c.substitute(env) for c in self.clauses))

    def to_json(self) -> list[Any]:
        """`["and", clause, …]`; a condition without clauses always holds."""
        return ["and", *(c.to_json() for c in self.clauses)]

    @classmethod
    def from_json(cls, data: Any) -> SpecializedCondition:
        if isinstance(data, list) and data and data[0] == "and":
            if len(data) > MAX_NODES:
                raise ExpressionError(f"condition has more than {MAX_NODES} clauses")
            return cls(*(Clause.from_json(x) for x in data[1:]))
        return cls(Clause.from_json(data))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpecializedCondition) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.clauses)

    def __str__(self) -> str:
        if not self.clauses:
            return "always"
        if len(self.clauses) == 1:
            return str(self.clauses[0])
        return " & ".join(f"({c})" for c in self.clauses)

    def __repr__(self) -> str:
        return f"SpecializedCondition({self})"
