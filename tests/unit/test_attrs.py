"""Attribute nodes: declared fields with type, default, bounds and description."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.attrs import Attrs, AttrsError, field
from strategy.ops.max_pool2d import MaxPool2DAttrs
from strategy.ops.movement import PadAttrs
from strategy.ops.reduce import ReduceAttrs
from strategy.ops.scan import ScanopAttrs
from strategy.ops.topk import TopKAttrs
from strategy.types import DTYPES


class PoolAttrs(Attrs):
    size: tuple[int, int] = field(description="Height and width", lower=1, upper=64)
    mode: str = field("max", "What is taken", choices=("max", "mean"))
    scale: float = field(1.0, "Factor", lower=0)
    axes: tuple[int, ...] | None = field(None, "Axes")
    flag: bool = field(False, "Switch")


class MoreAttrs(PoolAttrs):
    extra: int = field(0, "One more", upper=9)


def test_defaults_and_access():
    node = PoolAttrs(size=(2, 3))
    assert (node.size, node.mode, node.scale, node.axes, node.flag) == ((2, 3), "max", 1.0, None, False)
    assert MoreAttrs(size=(1, 1)).extra == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "PoolAttrs.size is required: Height and width"),
        ({"size": (1, 1), "sise": 1},
         r"PoolAttrs has no attribute 'sise', did you mean size\?; it has: size, mode, scale, axes, flag"),
        ({"size": (0, 1)}, r"PoolAttrs.size = \(0, 1\) is out of bounds: 1 … 64"),
        ({"size": (1, 65)}, r"PoolAttrs.size = \(1, 65\) is out of bounds: 1 … 64"),
        ({"size": (1, 1, 1)}, r"PoolAttrs.size = \(1, 1, 1\): expected tuple\[int, int\]"),
        ({"size": 2}, r"PoolAttrs.size = 2: expected tuple\[int, int\]"),
        ({"size": (True, 1)}, r"PoolAttrs.size = \(True, 1\): expected"),
        ({"size": (1, 1), "mode": "min"}, r"PoolAttrs.mode = 'min' is out of bounds: one of max, mean"),
        ({"size": (1, 1), "scale": -1}, "PoolAttrs.scale = -1.0 is out of bounds: at least 0"),
        ({"size": (1, 1), "scale": float("nan")}, "PoolAttrs.scale = nan: expected float"),
        ({"size": (1, 1), "scale": "1"}, "PoolAttrs.scale = '1': expected float"),
        ({"size": (1, 1), "flag": 1}, "PoolAttrs.flag = 1: expected bool"),
        ({"size": None}, "PoolAttrs.size = None: expected"),
    ],
)
def test_errors_name_field_value_and_bound(values, message):
    with pytest.raises(AttrsError, match=message):
        PoolAttrs(**values)


def test_a_subclass_adds_fields():
    with pytest.raises(AttrsError, match=r"MoreAttrs.extra = 10 is out of bounds: at most 9"):
        MoreAttrs(size=(1, 1), extra=10)
    assert list(MoreAttrs.fields()) == [*PoolAttrs.fields(), "extra"]


def test_equality_and_hash_are_by_value():
    one, other = PoolAttrs(size=[2, 3], scale=2), PoolAttrs(size=(2, 3), scale=2.0)
    assert one == other
    assert hash(one) == hash(other)
    assert one != PoolAttrs(size=(2, 3))
    assert PoolAttrs(size=(1, 1)) != MoreAttrs(size=(1, 1))


def test_a_node_is_immutable():
    node = PoolAttrs(size=(1, 1))
    with pytest.raises(AttrsError, match="PoolAttrs is immutable"):
        node.size = (2, 2)


pools = st.builds(
    PoolAttrs,
    size=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    mode=st.sampled_from(["max", "mean"]),
    scale=st.floats(0, 1e9),
    axes=st.none() | st.lists(st.integers(-9, 9)).map(tuple),
    flag=st.booleans(),
)


@given(node=pools)
def test_json_both_ways(node):
    data = node.to_json()
    assert PoolAttrs.from_json(data) == node
    assert all(getattr(node, name) != PoolAttrs.fields()[name].default for name in data)


@pytest.mark.parametrize("data", [None, [], "size", 3])
def test_json_of_another_form(data):
    with pytest.raises(AttrsError, match="PoolAttrs: expected an object of attributes"):
        PoolAttrs.from_json(data)


def test_the_documents_scan_attributes():
    fields = ScanopAttrs.fields()
    assert [(f.name, f.default, f.description) for f in fields.values()][2] == (
        "exclusive", False, "The first element is not included",
    )
    assert fields["dtype"].choices == tuple(sorted(DTYPES))
    assert ScanopAttrs() == ScanopAttrs(axis=None, dtype=None, exclusive=False)
    with pytest.raises(AttrsError, match=r"ScanopAttrs.dtype = 'float' is out of bounds: one of bfloat16"):
        ScanopAttrs(dtype="float")
    with pytest.raises(AttrsError, match=r"TopKAttrs.k = 0 is out of bounds: at least 1"):
        TopKAttrs(k=0)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400])
def test_an_integer_beyond_64_bits_is_named(value):
    with pytest.raises(AttrsError, match=r"^PoolAttrs.size = .*: too large for 64 bits$"):
        PoolAttrs(size=(1, value))
    with pytest.raises(AttrsError, match=r"^PadAttrs.pad_width = .*: too large for 64 bits$"):
        PadAttrs(pad_width=((0, value),))


def test_an_integer_beyond_float64_is_named():
    assert PoolAttrs(size=(1, 1), scale=10**30) == PoolAttrs(size=(1, 1), scale=1e30)
    largest = int(np.finfo(np.float64).max)  # more than 2**1023
    assert PoolAttrs(size=(1, 1), scale=largest).scale == float(largest)
    for value in (2**1024, 10**400):
        with pytest.raises(AttrsError, match=r"^PoolAttrs.scale = .*: too large for float64$"):
            PoolAttrs(size=(1, 1), scale=value)


@pytest.mark.parametrize("value", [np.int64(2), np.uint8(2), np.array(2)])
def test_numpy_scalars_are_numbers(value):
    node = PoolAttrs(size=[value, 3], scale=value, flag=np.bool_(True))
    assert node == PoolAttrs(size=(2, 3), scale=2.0, flag=True)
    assert json.loads(json.dumps(node.to_json())) == {"size": [2, 3], "scale": 2.0, "flag": True}
    assert PoolAttrs(size=(1, 1), scale=np.float32(0.1)).scale == float(np.float32(0.1))
    assert ReduceAttrs(axis=value) == ReduceAttrs(axis=2)
    assert MaxPool2DAttrs(pool_size=value, padding=value) == MaxPool2DAttrs(pool_size=2, padding=2)


@pytest.mark.parametrize("size", [np.float64(2), np.bool_(True), np.str_("2"), np.array([2])])
def test_numpy_scalars_of_another_kind_are_refused(size):
    with pytest.raises(AttrsError, match="expected tuple"):
        PoolAttrs(size=(size, 3))


def test_the_sign_of_a_zero_is_kept():
    class FillAttrs(Attrs):
        value: float = field(0.0, "What is filled in")
        other: float = field(1.0, "Another")

    negative = FillAttrs(value=-0.0, other=-0.0)
    written = negative.to_json()
    # As text: PostgreSQL's numbers have no negative zero.
    assert json.loads(json.dumps(written)) == {"value": "-0.0", "other": "-0.0"}
    read = FillAttrs.from_json(written)
    assert [str(v) for v in (read.value, read.other)] == ["-0.0", "-0.0"]
    assert read == negative
    assert FillAttrs(value=-0.0) != FillAttrs() == FillAttrs(value=0.0)
    assert FillAttrs(other=-0.0) != FillAttrs(other=0.0)
    assert FillAttrs().to_json() == {}
