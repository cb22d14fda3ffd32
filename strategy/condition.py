"""The small expression language of conditions, constraints and derived features.

Expressions have three uses: comparisons over the dimensions of a workload (`SpecializedCondition`, in
conjunctive normal form as in TVM's `te.SpecializedCondition`), constraints between the knobs of a `ConfigSpace`, and
features derived from them. They have a JSON form, which is parsed under limits on depth and size, never evaluated
as code:

    16                              a constant
    "data.shape[0]"                 a variable
    ["<=", ["*", "mr", "nr"], 28]   an operation on operands
"""
# Over 300 lines: one language whose parts make each other: comparing expressions gives clauses, and those conditions.

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Any, ClassVar, Self

import msgspec

from strategy.operation import ARITY, COMPARISON, MIRROR, NEGATION, OPERATIONS, PREFIX

MAX_DEPTH = 32
MAX_NODES = 2000
MAX_NAME = 200
MAX_INTEGER = 2**63

Json = int | float | str | list[Any]


class ExpressionError(ValueError):
    """An expression is malformed or too large, or cannot be computed with the given values."""


class UndecidedError(ExpressionError):
    """A comparison over symbolic dimensions was used as a bool."""


class Expr:
    """An immutable expression: a constant, a variable, or an operation on expressions.

    A variable may carry its known value (of a dimension of a concrete workload), so that an expression that could be
    computed keeps its identity and can be explained. Comparisons give expressions, not bools; `bool()` of one
    computes it, and raises `UndecidedError` if a variable has no value.
    """

    __slots__ = ("args", "op", "value")

    is_dimension: ClassVar[bool] = False  # True if its variables are dimensions of shapes

    def __init__(self, op: str, args: tuple[Any, ...], value: Any = None) -> None:
        self.op = op  # "const", "var", or a key of OPERATIONS
        self.args = args
        self.value = value  # the known value, or None

    @classmethod
    def const(cls, value: float | str) -> Self:
        return cls("const", (value,), value)

    @classmethod
    def var(cls, name: str, value: Any = None) -> Self:
        return cls("var", (name,), value)

    @classmethod
    def _operation(cls, op: str, *operands: Any) -> Self:
        args = tuple([x if isinstance(x, Expr) else cls.const(_number(x)) for x in operands])
        return cls(op, args, _known_value(op, args))

    def __add__(self, other: Any) -> Self:
        return self._operation("+", self, other)

    def __radd__(self, other: Any) -> Self:
        return self._operation("+", other, self)

    def __sub__(self, other: Any) -> Self:
        return self._operation("-", self, other)

    def __rsub__(self, other: Any) -> Self:
        return self._operation("-", other, self)

    def __mul__(self, other: Any) -> Self:
        return self._operation("*", self, other)

    def __rmul__(self, other: Any) -> Self:
        return self._operation("*", other, self)

    def __truediv__(self, other: Any) -> Self:
        return self._operation("/", self, other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._operation("/", other, self)

    def __floordiv__(self, other: Any) -> Self:
        return self._operation("//", self, other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._operation("//", other, self)

    def __mod__(self, other: Any) -> Self:
        return self._operation("%", self, other)

    def __rmod__(self, other: Any) -> Self:
        return self._operation("%", other, self)

    def __getitem__(self, index: int) -> Self:
        return self._operation("item", self, index)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{self} is an expression, not a sequence")

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
        return hash((self.op, self.args))

    def __bool__(self) -> bool:
        if self.value is None:
            raise UndecidedError(
                f"'{self}' is undecided: no value for {', '.join(sorted(self.variables()))}"
            )
        return bool(self.value)

    def same(self, other: Expr) -> bool:
        """Return whether both are the same tree (`==` gives a clause)."""
        if self is other:
            return True
        if self.op != other.op or len(self.args) != len(other.args):
            return False
        if self.op in ("const", "var"):
            return bool(self.args == other.args)
        return all(a.same(b) for a, b in zip(self.args, other.args, strict=True))

    def variables(self) -> frozenset[str]:
        return frozenset([expr.args[0] for expr in self.nodes() if expr.op == "var"])

    def nodes(self) -> Iterator[Expr]:
        """This expression and all of its subexpressions."""
        pending: list[Expr] = [self]
        while pending:
            expr = pending.pop()
            yield expr
            if expr.op not in ("const", "var"):
                pending.extend(expr.args)

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
        return self._operation(self.op, *[a.substitute(env) for a in self.args])

    def evaluate(self, env: Mapping[str, Any]) -> Any:
        """The value for the variables in `env` (numbers, or NumPy arrays of them).

        Raises:
            ExpressionError: a variable has no value, or the computation fails.
        """
        return self.compile()(env)

    def compile(self) -> Callable[[Mapping[str, Any]], Any]:
        """A function that evaluates it, for hot loops."""
        compute = self._closure()

        def run(env: Mapping[str, Any]) -> Any:
            try:
                return compute(env)
            except ExpressionError:
                raise
            except _COMPUTATION_ERRORS as error:
                known = {name: env.get(name) for name in sorted(self.variables())}
                raise ExpressionError(f"cannot compute '{self}' with {known!r:.200}: {error}") from error

        return run

    def _closure(self) -> Callable[[Mapping[str, Any]], Any]:
        if self.op == "const":
            constant = self.args[0]
            return lambda env: constant
        if self.op == "var":
            name, known = self.args[0], self.value

            def read(env: Mapping[str, Any]) -> Any:
                value = env.get(name, known)
                if value is None:
                    raise ExpressionError(f"variable {name!r} has no value: give one")
                return value

            return read
        function = OPERATIONS[self.op]
        parts = [a._closure() for a in self.args]
        if len(parts) == 2:
            left, right = parts
            if self.args[1].op == "const":
                constant = self.args[1].args[0]
                return lambda env: function(left(env), constant)
            return lambda env: function(left(env), right(env))
        return lambda env: function(*(p(env) for p in parts))

    def to_json(self) -> Json:
        if self.op in ("const", "var"):
            result: Json = self.args[0]
            return result
        if self.op in ("and", "or"):
            return [self.op, *[a.to_json() for a in self._operands(self.op)]]
        return [self.op, *[a.to_json() for a in self.args]]

    def _operands(self, op: str) -> Iterator[Expr]:
        """The operands of nested `op`s, flattened."""
        for a in self.args:
            if a.op == op:
                yield from a._operands(op)
            else:
                yield a

    @classmethod
    def from_json(cls, data: Any) -> Expr:
        """Parse the JSON form.

        Raises:
            ExpressionError: not of the form above, an unknown operation, or over the limits of
                `MAX_DEPTH` and `MAX_NODES`.
        """
        _check_size(data)
        return cls._parse(data)

    @classmethod
    def _parse(cls, node: Any) -> Expr:
        if isinstance(node, str):
            if not 0 < len(node) <= MAX_NAME:
                raise ExpressionError(f"a name has 1 to {MAX_NAME} characters, got {node!r:.80}")
            return cls.var(node)
        if isinstance(node, bool | int | float):
            return cls.const(_number(node))
        if not isinstance(node, list) or not node or not isinstance(node[0], str):
            raise ExpressionError(f"expected a number, a name or [operation, …], got {node!r:.80}")
        op, *operands = node
        if op not in OPERATIONS:
            raise ExpressionError(f"unknown operation {op!r:.40}; known: {' '.join(OPERATIONS)}")
        args = [cls._parse(x) for x in operands]
        if op in ("and", "or"):
            return _join(op, [x for a in args for x in ([a] if a.op != op else a._operands(op))])
        if len(args) != ARITY.get(op, 2):
            raise ExpressionError(f"{op!r} takes {ARITY.get(op, 2)} operands, got {len(args)}")
        return cls._operation(op, *args)

    def __str__(self) -> str:
        if self.op in ("const", "var"):
            return str(self.args[0])
        shown = [
            f"({a})" if a.op in OPERATIONS and a.op not in PREFIX else str(a) for a in self.args
        ]
        if self.op == "item":
            return f"{shown[0]}[{shown[1]}]"
        if self.op in PREFIX:
            return f"{self.op}({', '.join(str(a) for a in self.args)})"
        return f"{shown[0]} {self.op} {shown[1]}"

    def __repr__(self) -> str:
        known = "" if self.value is None or self.op == "const" else f" [{self.value}]"
        return f"{type(self).__name__}({self}{known})"


def _number(value: Any) -> Any:
    if type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER:
        return value
    if type(value) not in (bool, int, float):  # NumPy's numbers
        if hasattr(value, "__index__"):
            value = int(value)
        elif isinstance(value, float):
            value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ExpressionError(f"{value} cannot appear in an expression: numbers are finite")
    if not isinstance(value, bool | int | float):
        raise ExpressionError(
            f"{value!r:.80} cannot appear in an expression: use numbers, dimensions or knobs"
        )
    if abs(value) > MAX_INTEGER and isinstance(value, int):
        raise ExpressionError(f"an integer in an expression is within ± {MAX_INTEGER}")
    return value


def _check_size(data: Any) -> None:
    """Raise if a JSON tree exceeds the limits of size or depth, without walking it further."""
    nodes = 0
    level = [data]
    for depth in range(MAX_DEPTH + 2):
        nodes += len(level)
        if nodes > MAX_NODES:
            raise ExpressionError(f"expression has more than {MAX_NODES} nodes")
        if not level:
            return
        if depth > MAX_DEPTH:
            raise ExpressionError(f"expression is nested deeper than {MAX_DEPTH}")
        # The first entry of a list is the operation.
        below = [node for node in level if isinstance(node, list)]
        if nodes + sum(len(node) - 1 for node in below if node) > MAX_NODES:
            raise ExpressionError(f"expression has more than {MAX_NODES} nodes")
        level = [x for node in below for x in node[1:]]


def _join(op: str, args: Sequence[Expr]) -> Expr:
    """`op` over all of `args`, as a balanced tree of small depth."""
    if not args:
        raise ExpressionError(f"{op!r} takes at least one operand")
    if len(args) == 1:
        return args[0]
    half = len(args) // 2
    return Expr._operation(op, _join(op, args[:half]), _join(op, args[half:]))


_COMPUTATION_ERRORS = (ArithmeticError, TypeError, IndexError, ValueError)


def _known_value(op: str, args: Sequence[Expr]) -> Any:
    """The value of an operation if it is certain, else None."""
    for a in args:
        if a.value is None:
            if op in COMPARISON and args[0].same(args[1]):
                return op in ("==", "<=", ">=")  # m == m for all m
            return None
    values = [a.value for a in args]
    try:
        return OPERATIONS[op](*values)
    except _COMPUTATION_ERRORS as error:
        shown = ", ".join([repr(v)[:40] for v in values])
        raise ExpressionError(f"cannot compute {op!r} of {shown}: {error}") from error


def minimum(a: Any, b: Any) -> Expr:
    return Expr._operation("min", a, b)


def maximum(a: Any, b: Any) -> Expr:
    return Expr._operation("max", a, b)


def ceildiv(a: Any, b: Any) -> Expr:
    return Expr._operation("ceildiv", a, b)


def log2(a: Any) -> Expr:
    return Expr._operation("log2", a)


def _compare(op: str, a: Any, b: Any) -> Clause:
    return Clause((Expr._operation(op, a, b),))


class Clause:
    """A disjunction of comparisons, an element of a conjunctive normal form.

    `a | b` joins clauses; `a & b` gives a `SpecializedCondition`. A clause whose variables all have values can be
    used as a bool; others raise `UndecidedError`.
    """

    def __init__(self, alternatives: Sequence[Expr]) -> None:
        # Mirrored and sorted, so that equivalent spellings are equal.
        normal = [_normal(a) for a in alternatives]
        if not normal:
            raise ExpressionError("'or' takes at least one comparison")
        if len(normal) > 1:
            unique = {_canonical(a): a for a in normal}
            normal = [unique[text] for text in sorted(unique)]
        self.alternatives = tuple(normal)

    @cached_property
    def key(self) -> tuple[str, ...]:
        """The canonical text, shared by equal clauses."""
        return tuple([_canonical(a) for a in self.alternatives])

    @cached_property
    def encoded(self) -> tuple[str, bytes]:
        """The JSON text of a clause in a digest, also its sort key."""
        data = self.to_json()
        return repr(data), msgspec.json.encode(data)

    @property
    def equation(self) -> tuple[Expr, Expr] | None:
        """The sides of a clause that is one equation, a constant on the right; None for another."""
        first, *others = self.alternatives
        if others or first.op != "==":
            return None
        left, right = first.args
        return left, right

    @property
    def expression(self) -> Expr:
        """The disjunction as one expression."""
        return _join("or", self.alternatives)

    def decide(self) -> bool | None:
        """True or False if certain, None if it depends on a symbolic dimension."""
        undecided = False
        for a in self.alternatives:
            if a.value is None:
                undecided = True
            elif a.value:
                return True
        return None if undecided else False

    def __bool__(self) -> bool:
        return _as_bool(self)

    def evaluate(self, env: Mapping[str, Any]) -> Any:
        """Return whether it holds for the variables in `env`: numbers, or arrays of them."""
        holds = self.alternatives[0].evaluate(env)
        for a in self.alternatives[1:]:
            holds = holds | a.evaluate(env)
        return holds

    def __or__(self, other: Clause) -> Clause:
        if not isinstance(other, Clause):
            return NotImplemented
        return Clause(self.alternatives + other.alternatives)

    def __and__(self, other: Clause | SpecializedCondition) -> SpecializedCondition:
        return SpecializedCondition(self, other)

    def __invert__(self) -> SpecializedCondition:
        return SpecializedCondition(*(_compare(NEGATION[a.op], *a.args) for a in self.alternatives))

    def variables(self) -> frozenset[str]:
        return self._variables

    @cached_property
    def _variables(self) -> frozenset[str]:
        return frozenset().union(*[a.variables() for a in self.alternatives])

    def substitute(self, env: Mapping[str, Any]) -> Clause:
        return Clause([a.substitute(env) for a in self.alternatives])

    def to_json(self) -> Json:
        first = self.alternatives[0].to_json()
        if len(self.alternatives) == 1:
            return first
        return ["or", *(a.to_json() for a in self.alternatives)]

    @classmethod
    def from_json(cls, data: Any) -> Clause:
        """Parse the JSON form; raise `ExpressionError` as `Expr.from_json` does."""
        _check_size(data)
        return cls._parse(data)

    @classmethod
    def _parse(cls, data: Any) -> Clause:
        either = isinstance(data, list) and data and data[0] == "or"
        return cls([Expr._parse(x) for x in (data[1:] if either else [data])])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Clause) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        if len(self.alternatives) == 1:
            return str(self.alternatives[0])
        return " | ".join(f"({a})" for a in self.alternatives)

    def __repr__(self) -> str:
        return f"Clause({self})"


def _as_bool(claim: Clause | SpecializedCondition) -> bool:
    decided = claim.decide()
    if decided is None:
        names = sorted(claim.variables())
        symbolic = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} symbolic here"
        raise UndecidedError(f"'{claim}' is undecided: {symbolic}; use SpecializedCondition to dispatch on it")
    return decided


def _canonical(expr: Expr) -> str:
    return repr(expr.to_json())


def _normal(comparison: Expr) -> Expr:
    """A comparison in normal form: `16 < m` is `m > 16`, and `n == m` is `m == n`."""
    if comparison.op not in COMPARISON:
        raise ExpressionError(f"'{comparison}' is not a comparison")
    left, right = comparison.args
    # A constant is on the right.
    mirrored = left.op == "const"
    if mirrored == (right.op == "const"):
        mirror = MIRROR[comparison.op]
        mirrored = (_canonical(left), comparison.op) > (_canonical(right), mirror)
    if not mirrored:
        return comparison
    return type(comparison)(MIRROR[comparison.op], (right, left), comparison.value)


_stack: ContextVar[tuple[SpecializedCondition, ...]] = ContextVar(
    "specialized_conditions", default=()
)


class SpecializedCondition:
    """A conjunction of clauses over shape dimensions, under which implementations are valid.

    It can be used as a bool as a clause can. As a context manager, it specialises the implementations added inside. All
    nested contexts hold (in TVM only the innermost one).

        with SpecializedCondition(m > 16):
            strategy.add_implementation(...)
    """

    __slots__ = ("clauses",)

    clauses: tuple[Clause, ...]

    def __init__(self, *clauses: Clause | SpecializedCondition) -> None:
        flat: dict[tuple[str, ...], Clause] = {}
        for c in clauses:
            if isinstance(c, SpecializedCondition):
                flat.update({x.key: x for x in c.clauses})
            elif isinstance(c, Clause):
                flat[c.key] = c
            else:
                raise ExpressionError(
                    f"SpecializedCondition takes comparisons over shape dimensions "
                    f"such as m > 16, several as arguments or joined by &, got {c!r:.80}"
                )
        self.clauses = tuple(flat[k] for k in sorted(flat))

    @staticmethod
    def current() -> SpecializedCondition | None:
        """The conjunction of the current contexts, None outside of any."""
        active = _stack.get()
        return SpecializedCondition(*active) if len(active) > 1 else next(iter(active), None)

    def __enter__(self) -> Self:
        for expr in itertools.chain(*(a.nodes() for c in self.clauses for a in c.alternatives)):
            if expr.op == "var" and not expr.is_dimension:
                raise ExpressionError(
                    f"'{self}': {expr.args[0]!r} is no dimension: a "
                    f"SpecializedCondition compares entries of shapes, such as inputs[0].shape[0]"
                )
        _stack.set((*_stack.get(), self))
        return self

    def __exit__(self, *exc: object) -> None:
        _stack.set(_stack.get()[:-1])

    def decide(self) -> bool | None:
        """True or False if certain, None if it depends on a symbolic dimension."""
        results = [c.decide() for c in self.clauses]
        if any(r is False for r in results):
            return False
        return None if any(r is None for r in results) else True

    def __bool__(self) -> bool:
        return _as_bool(self)

    def evaluate(self, env: Mapping[str, Any]) -> Any:
        """Return whether it holds for the variables in `env`: numbers, or arrays of them."""
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
        """Parse the JSON form; raise `ExpressionError` as `Expr.from_json` does."""
        _check_size(data)
        conjunction = isinstance(data, list) and data and data[0] == "and"
        return cls(*(Clause._parse(x) for x in (data[1:] if conjunction else [data])))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpecializedCondition) and self.clauses == other.clauses

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
