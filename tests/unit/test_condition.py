"""Expressions, clauses and specialised conditions."""

from __future__ import annotations

import math
import operator
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strategy.condition import (
    MAX_DEPTH,
    MAX_NODES,
    Clause,
    Expr,
    ExpressionError,
    SpecializedCondition,
    UndecidedError,
    ceildiv,
    log2,
    maximum,
    minimum,
)
from strategy.op_strategy import OpStrategy
from strategy.operation import OPERATIONS
from strategy.record import WireError, decode, encode
from strategy.space import knob
from strategy.types import Dim

m, n = Dim("m"), Dim("n")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")

# Each operation in plain Python, apart from the table under test.
MEANING: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
    "ceildiv": lambda a, b: math.ceil(a / b),
    "if": lambda test, a, b: a if test else b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "and": lambda *xs: all(xs),
    "or": lambda *xs: any(xs),
    "not": lambda a: not a,
}


def arithmetic(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    binary = st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), children, children)
    # Divisors that are never 0: what division by 0 does is tested apart.
    divided = st.tuples(st.sampled_from(["//", "%", "ceildiv", "/"]), children, st.integers(1, 9))
    return (binary | divided).map(list)


numbers = st.integers(-50, 50)
arithmetics = st.recursive(numbers | st.sampled_from(["a", "b", "c"]), arithmetic, max_leaves=12)
comparisons = st.tuples(st.sampled_from(COMPARISONS), arithmetics, arithmetics).map(list)


def logic(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    joined = st.tuples(
        st.sampled_from(["and", "or"]), st.lists(children, min_size=1, max_size=4)
    ).map(lambda t: [t[0], *t[1]])
    return joined | children.map(lambda c: ["not", c])


expressions = st.recursive(comparisons, logic, max_leaves=5) | arithmetics
clauses = comparisons | st.lists(comparisons, min_size=1, max_size=4).map(lambda c: ["or", *c])
conditions = st.lists(clauses, max_size=4).map(lambda c: ["and", *c])
values = st.fixed_dictionaries(dict.fromkeys("abc", numbers))


def in_python(tree: Any, env: dict[str, int]) -> Any:
    if isinstance(tree, list):
        return MEANING[tree[0]](*(in_python(x, env) for x in tree[1:]))
    return env[tree] if isinstance(tree, str) else tree


@given(expressions)
@example(["and", ["<", "a", 0], ["and", ["<", "b", 0], ["<", "c", 0], ["<", "a", 1]]])
def test_an_expression_survives_its_json(tree: Any) -> None:
    expr = Expr.from_json(tree)
    assert expr.same(Expr.from_json(expr.to_json()))
    assert Expr.from_json(expr.to_json()).to_json() == expr.to_json()


@given(clauses)
def test_a_clause_survives_its_json(tree: Any) -> None:
    clause = Clause.from_json(tree)
    again = Clause.from_json(clause.to_json())
    assert again == clause
    assert hash(again) == hash(clause)
    assert again.to_json() == clause.to_json()


@given(conditions)
def test_a_condition_survives_the_wire(tree: Any) -> None:
    condition = SpecializedCondition.from_json(tree)
    again = decode(encode(condition), SpecializedCondition)
    assert again == condition
    assert hash(again) == hash(condition)
    assert str(again) == str(condition)


@given(expressions, values)
def test_evaluation_equals_python(tree: Any, env: dict[str, int]) -> None:
    expected = in_python(tree, env)
    expr = Expr.from_json(tree)
    assert expr.evaluate(env) == pytest.approx(expected)
    assert expr.compile()(env) == pytest.approx(expected)


@given(expressions, values)
def test_binding_the_variables_gives_the_same_value(tree: Any, env: dict[str, int]) -> None:
    bound = Expr.from_json(tree).substitute(env)
    assert bound.value == pytest.approx(in_python(tree, env))
    assert bound.to_json() == Expr.from_json(tree).to_json()  # its identity is kept


@given(expressions, st.lists(values, min_size=1, max_size=5))
def test_evaluation_on_arrays_equals_that_on_numbers(tree: Any, rows: list[dict[str, int]]) -> None:
    expr = Expr.from_json(tree)
    columns = {name: np.array([row[name] for row in rows]) for name in "abc"}
    expected = [expr.evaluate(row) for row in rows]
    found = np.broadcast_to(expr.evaluate(columns), len(rows))
    np.testing.assert_allclose(found.astype(float), np.array(expected, dtype=float))


@given(conditions, values)
def test_a_condition_is_the_conjunction_of_its_clauses(tree: Any, env: dict[str, int]) -> None:
    expected = all(in_python(c, env) for c in tree[1:])
    condition = SpecializedCondition.from_json(tree)
    assert condition.evaluate(env) == expected
    assert condition.substitute(env).decide() is expected


@given(st.lists(comparisons, min_size=1, max_size=3), values)
def test_negation(trees: list[Any], env: dict[str, int]) -> None:
    clause = Clause.from_json(["or", *trees])
    assert (~clause).evaluate(env) == (not clause.evaluate(env))


def test_functions_of_expressions() -> None:
    env = {"a": 7, "b": 2}
    a, b = Expr.var("a"), Expr.var("b")
    assert ceildiv(a, b).evaluate(env) == 4
    assert ceildiv(9, b).evaluate(env) == 5
    assert minimum(a, 3).evaluate(env) == 3
    assert maximum(3, b).evaluate(env) == 3
    assert log2(b).evaluate(env) == 1
    np.testing.assert_array_equal(log2(b).evaluate({"b": np.array([1, 8])}), [0, 3])
    assert (1 / b).evaluate(env) == 0.5
    assert (20 // a + 20 % a - 1).evaluate(env) == 7
    assert Expr.from_json(["if", ["<", "a", "b"], 1, "b"]).evaluate(env) == 2
    assert Expr.var("tile")[1].evaluate({"tile": (3, 5)}) == 5


def test_numbers_of_numpy_are_numbers() -> None:
    assert (m > np.int64(16)) == (m > 16)
    assert type((m * np.float64(2)).args[1].value) is float


@pytest.mark.parametrize(
    "tree",
    [
        ["**", "a", 2], ["__import__", "os"], [], [["+"], 1, 2], ["+", 1], ["+", 1, 2, 3], ["not"], ["and"],
        None, {"op": "+"}, ["+", None, 1], ["+", {"a": 1}, 1], "", "x" * 201, 2**64, -(2**65),
        math.nan, math.inf, ["+", math.nan, 1],
    ],
)
def test_what_is_no_expression_is_refused(tree: Any) -> None:
    with pytest.raises(ExpressionError):
        Expr.from_json(tree)


@pytest.mark.parametrize(
    "tree", ["a", 1, ["+", "a", 1], ["or"], ["or", "a"], ["and", ["<", "a", 1], ["<", "b", 1]]]
)
def test_a_clause_is_made_of_comparisons(tree: Any) -> None:
    with pytest.raises(ExpressionError):
        Clause.from_json(tree)


@pytest.mark.sample(4)
@pytest.mark.parametrize("read", [Expr, Clause, SpecializedCondition])
@pytest.mark.parametrize("op", ["and", "or", "<"])
def test_size_and_depth_are_limited(read: Any, op: str) -> None:
    with pytest.raises(ExpressionError, match=f"more than {MAX_NODES} nodes"):
        read.from_json([op, *[["<", "a", 1]] * MAX_NODES])
    with pytest.raises(ExpressionError, match=f"more than {MAX_NODES} nodes"):
        read.from_json([op, *[[op, *[["<", "a", 1]] * 500]] * 4])
    deep: Any = "a"
    for _ in range(50_000):
        deep = ["+", deep, 1]
    with pytest.raises(ExpressionError, match=f"deeper than {MAX_DEPTH}"):
        read.from_json(["<", deep, 1])


def test_what_is_just_within_the_limits_can_be_used() -> None:
    deep: Any = "a"
    for _ in range(MAX_DEPTH):
        deep = ["+", deep, 1]
    assert Expr.from_json(deep).evaluate({"a": 0}) == MAX_DEPTH
    wide = ["or", *[["==", "a", i] for i in range(MAX_NODES // 3 - 1)]]
    for expr in (Expr.from_json(wide), Clause.from_json(wide).expression):
        assert expr.evaluate({"a": 600}) is True
        assert expr.substitute({"a": -1}).value is False
        assert expr.variables() == {"a"}
        assert Expr.from_json(expr.to_json()).to_json() == expr.to_json()


@pytest.mark.parametrize(
    "data", [b"5", b'"m"', b'["and", 3]', b"{}", b"null", b'["and", [">", "m", null]]', b"[" * 5000]
)
def test_hostile_conditions_are_refused_on_the_wire(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data, SpecializedCondition)


@pytest.mark.parametrize(
    ("tree", "env"),
    [
        (["//", 1, "a"], {"a": 0}), (["%", 1, "a"], {"a": 0}), (["log2", "a"], {"a": 0}),
        (["item", "a", 3], {"a": (1, 2)}), (["item", "a", 0], {"a": 5}), (["+", "a", 1], {"a": "x"}),
        (["+", "a", 1], {}),
    ],
)
def test_a_failed_computation_says_of_what(tree: Any, env: dict[str, Any]) -> None:
    for compute in (Expr.from_json(tree).evaluate, Expr.from_json(tree).compile()):
        with pytest.raises(ExpressionError, match=r"'a' has no value|with {'a': "):
            compute(env)


def test_comparing_gives_clauses_that_keep_their_identity() -> None:
    rows = Dim(128).named("data.shape[0]")
    clause = rows > 16
    assert isinstance(clause, Clause)
    assert clause.to_json() == [">", "data.shape[0]", 16]
    assert clause
    assert not rows <= 16
    assert str(clause) == "data.shape[0] > 16"
    assert (rows * 2 == 256).decide() is True


def test_the_truth_of_an_undecided_clause_is_an_error() -> None:
    with pytest.raises(UndecidedError, match="m is symbolic"):
        bool(m > 16)
    with pytest.raises(UndecidedError):
        bool((m > 16) | (n == 1))
    with pytest.raises(UndecidedError):
        1 < m < 5  # noqa: B015
    with pytest.raises(UndecidedError):
        bool(m * 4)
    assert (m > 16).decide() is None


def test_what_is_certain_is_decided_though_symbolic() -> None:
    assert (m == m).decide() is True
    assert (m + 1 != m + 1).decide() is False
    assert ((m > 16) | (Dim(4) > 2)).decide() is True
    assert SpecializedCondition(m > 16, Dim(1) > 2).decide() is False
    assert SpecializedCondition(m > 16, Dim(3) > 2).decide() is None
    assert SpecializedCondition().decide() is True


def test_a_conjunction_is_no_truth_of_its_own() -> None:
    """An `if` of a strategy over `(m > 16) & (n == 1)` is decided, or an error, as over `m > 16`."""
    with pytest.raises(UndecidedError, match=r"'\(n == 1\) & \(m > 16\)' is undecided: m, n are symbolic here"):
        bool((m > 16) & (n == 1))
    assert not (m > 16) & (Dim(2) == 1)
    assert (Dim(17) > 16) & (Dim(1) == 1)


def test_equal_clauses_however_written() -> None:
    assert (m > 16) == (16 < m)
    assert (m > n) == (n < m)
    assert (n == m) == (m == n)
    assert ((m > 16) | (n == 1)) == ((n == 1) | (m > 16)) == ((1 == n) | (16 < m) | (m > 16))
    assert len({m > n, n < m, Clause.from_json(["<", "n", "m"])}) == 1
    assert Clause.from_json(["<", 16, "m"]) == (m > 16)
    assert (m > 16) != (m >= 16)
    assert (m > 16) != (n > 16)


@given(st.sampled_from(COMPARISONS), arithmetics, arithmetics, values)
def test_a_mirrored_comparison_is_the_same(op: str, a: Any, b: Any, env: dict[str, int]) -> None:
    mirror = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(op, op)
    left, right = Clause.from_json([op, a, b]), Clause.from_json([mirror, b, a])
    assert left == right
    assert left.to_json() == right.to_json()
    assert left.evaluate(env) == MEANING[op](in_python(a, env), in_python(b, env))


def test_conditions_nest() -> None:
    strategy = OpStrategy()
    with SpecializedCondition(m > 16):
        strategy.add_implementation(print, print, "outer")
        with SpecializedCondition((n % 4 == 0) | (n == 1)):
            strategy.add_implementation(print, print, "inner")
        strategy.add_implementation(print, print, "outer again")
    strategy.add_implementation(print, print, "everywhere")
    found = {i.name: c for c, i in strategy}
    assert found["outer"] == found["outer again"] == SpecializedCondition(m > 16)
    assert found["inner"] == SpecializedCondition((n == 1) | (n % 4 == 0), m > 16)
    assert found["everywhere"] is None
    assert str(found["inner"]) == "((n == 1) | ((n % 4) == 0)) & (m > 16)"


def test_a_condition_may_be_entered_again_within_itself() -> None:
    condition = SpecializedCondition(m > 16)
    with condition, condition:
        assert SpecializedCondition.current() == condition
    assert SpecializedCondition.current() is None


def test_a_condition_is_left_when_its_body_fails() -> None:
    with pytest.raises(ZeroDivisionError), SpecializedCondition(m > 16):
        _ = 1 / 0
    assert SpecializedCondition.current() is None


def test_a_condition_is_of_its_thread() -> None:
    seen = []
    with SpecializedCondition(m > 16):
        thread = threading.Thread(target=lambda: seen.append(SpecializedCondition.current()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_only_dimensions_may_appear_in_a_condition() -> None:
    for wrong in (True, 16, "m > 16", m, None, [m > 16, n > 8]):
        with pytest.raises(ExpressionError, match="comparisons over shape dimensions .* arguments or joined by &"):
            SpecializedCondition(wrong)
    for other in ("16", None, [16], object()):
        with pytest.raises(ExpressionError, match="cannot appear"):
            m > other  # noqa: B015
    with (
        pytest.raises(ExpressionError, match="'rows' is no dimension"),
        SpecializedCondition(m > knob("rows")),
    ):
        pytest.fail("entered")
    assert SpecializedCondition.current() is None
    with SpecializedCondition(Dim(4) > 2):  # a constant is a dimension as well
        pass


def test_clauses_and_conditions_combine() -> None:
    both = (m > 16) & (n == 1)
    assert both == SpecializedCondition(n == 1, m > 16) == SpecializedCondition(m > 16) & (1 == n)
    assert SpecializedCondition(both, m > 16) == both
    assert ~(m > 16) == SpecializedCondition(m <= 16)
    assert ~((m > 16) | (n != 1)) == SpecializedCondition(n == 1, m <= 16)
    assert both.variables() == {"m", "n"}
    assert str(SpecializedCondition()) == "always"


def test_substitution_by_other_dimensions() -> None:
    clause = (m > 16).substitute({"m": n * 4})
    assert clause == (n * 4 > 16)
    assert clause.substitute({"n": 5}).decide() is True


def test_expressions_cannot_be_taken_for_sequences() -> None:
    with pytest.raises(TypeError, match="an expression"):
        list(m)


def test_expressions_survive_pickling() -> None:
    expr = (m * 4 + 1) % n
    again = pickle.loads(pickle.dumps(expr))
    assert type(again) is Dim
    assert again.same(expr)


def test_every_operation_is_covered_here() -> None:
    assert OPERATIONS.keys() - MEANING.keys() == {"log2", "item"}
    assert operator.and_(True, False) is OPERATIONS["and"](True, False)
