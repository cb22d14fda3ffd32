"""Dimensions and types."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.condition import Clause, ExpressionError, UndecidedError
from strategy.types import (
    DTYPES,
    MAX_DIM,
    MAX_ELEMENTS,
    Dim,
    IncompleteType,
    TensorType,
    TupleType,
    TypeSyntaxError,
)
from strategy.workload import Input, Workload


def test_comparing_dimensions_gives_a_clause():
    assert isinstance(Dim(3) > 2, Clause)
    assert bool(Dim(3) > 2)
    assert not bool(Dim(3) == 4)
    with pytest.raises(UndecidedError, match="m is symbolic here"):
        bool(Dim("m") > 2)
    assert (Dim("m") == Dim("m")).decide() is True


def test_a_constant_dimension_is_an_integer():
    assert int(Dim(7)) == 7
    assert list(range(Dim(2))) == [0, 1]
    with pytest.raises(ExpressionError, match="dimension 'm' is symbolic"):
        int(Dim("m"))


@pytest.mark.parametrize("entry", [True, 1.5, None, "", "2m", "m n", "m" * 65, -1, MAX_DIM + 1])
def test_what_is_no_dimension(entry):
    with pytest.raises(TypeSyntaxError, match="dimension"):
        Dim(entry)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("float32", "'float32' is not a tensor type: write it as"),
        ("float32[1,2", "is not a tensor type"),
        ("float32[1,,2]", "'' is not a dimension"),
        ("float33[1]", r"unknown dtype 'float33', did you mean float32\?; known: bfloat16"),
        ("float32[-1]", "'-1' is not a dimension"),
        ("float32[99999999999999999999]", "is not a dimension"),
        (f"float32[{MAX_DIM + 1}]", "is out of range"),
        (f"float32[{','.join('1' * 17)}]", "at most 16 dimensions, got 17"),
    ],
)
def test_types_that_cannot_be_read(text, message):
    with pytest.raises(TypeSyntaxError, match=message):
        TensorType.parse(text)


tensors = st.builds(
    TensorType,
    st.lists(st.integers(0, 2**9) | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), max_size=5),
    st.sampled_from(sorted(DTYPES)),
)


@pytest.mark.parametrize("entries", [[MAX_DIM], [MAX_DIM, 1, "m"]])
def test_the_largest_tensor(entries):
    assert TensorType.parse(str(TensorType(entries))).shape[0].value == MAX_DIM


def test_a_tensor_of_too_many_elements_is_refused():
    with pytest.raises(TypeSyntaxError, match=rf"int8\[{MAX_ELEMENTS},2\] is too large: .* at most {MAX_ELEMENTS} "):
        Input("data", f"int8[{MAX_ELEMENTS},2]")
    with pytest.raises(TypeSyntaxError, match=rf"int8\[{MAX_ELEMENTS + 1},0\] is too large"):
        Input("data", f"int8[{MAX_ELEMENTS + 1},0]")
    # In a network, primes stand for symbolic sizes.
    assert TensorType.parse("float32[300007,12,400009,400009]").size > MAX_ELEMENTS
    assert TensorType.parse(f"float32[{300007 * 400009 * 500009},8]").size > MAX_ELEMENTS
    for op, attrs in (("tile", {"reps": [2**60]}), ("pad", {"pad_width": [[2**62, 2**62]]})):
        with pytest.raises(TypeSyntaxError, match=r"float32\[\d+\] is too large"):
            Workload.make(op, {"data": "float32[5]"}, attrs)
    for attrs in ({"pool_size": 2**24, "padding": 2**24 - 1},
                  {"pool_size": 2**21 + 1, "strides": 5, "dilation": 5, "padding": 5 * 2**21}):
        with pytest.raises(TypeSyntaxError, match="is too large"):
            Workload.make("max_pool2d", {"data": "float32[128,1,4,4]"}, attrs)


@given(kind=tensors)
def test_text_both_ways(kind):
    again = TensorType.parse(str(kind))
    assert again == kind
    assert hash(again) == hash(kind)
    assert again.is_constant == all(d.is_constant for d in kind.shape)


def test_named_dimensions_keep_their_value_and_type():
    kind = TensorType.parse("float32[8,m]")
    named = kind.named("data")
    assert named == kind
    assert str(named.shape[0] > 4) == "data.shape[0] > 4"
    assert str(named.shape[1]) == "m"
    assert (named.shape[0] * 2).value == 16


def test_sizes():
    kind = TensorType.parse("int8[2,3]")
    assert (kind.ndim, kind.size, kind.concrete_shape) == (2, 6, (2, 3))
    assert TensorType([]).size == 1
    with pytest.raises(ExpressionError, match="'m' is symbolic"):
        TensorType(["m"]).size  # noqa: B018


def test_tuples_and_unknown_types():
    one, other = TensorType([1]), TensorType([2])
    assert TupleType([one, other]) == TupleType([TensorType([1]), other])
    assert TupleType([one]) != TupleType([other])
    assert str(TupleType([one, other])) == "(float32[1], float32[2])"
    assert IncompleteType("x") != IncompleteType("x")
