"""Tiled transposition and pooling by rows: any configuration of any shape, against NumPy."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategy.compile.lower import lower
from strategy.op_strategy import candidates
from strategy.space import ConfigSpace
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload
from tests.kernel.judge import judge
from workers.reference import random_inputs

TARGET = Target.parse("cpu").with_threads(2)


def tunable(work: Workload) -> tuple[str, ConfigSpace] | None:
    found = [(c.implementation, c.space) for c in candidates(work, TARGET) if c.space is not None]
    return found[0] if found else None


def check(work: Workload, name: str, config: Any) -> None:
    judge(lower(work, TARGET, name, config).compile(checks=False), work, random_inputs(work, 3))


@settings(max_examples=min(12, settings.default.max_examples // 2))
@given(
    shape=st.lists(st.integers(1, 23), min_size=2, max_size=4), data=st.data(),
    dtype=st.sampled_from(["float32", "float64", "int32", "float16", "bfloat16"]), seed=st.integers(0, 2**32),
)
def test_transposition(shape: list[int], data: st.DataObject, dtype: str, seed: int) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    shape[order[-1]] = data.draw(st.sampled_from([4, 8, 12, 16, 20, 48]))
    work = Workload.make("transpose", {"data": f"{dtype}[{','.join(map(str, shape))}]"}, {"axes": list(order)})
    found = tunable(work)
    assert found is not None
    name, space = found
    # Rows are copied as they are if the last axis stays.
    assert name == ("elementwise.cpu" if order[-1] == len(shape) - 1 else "transpose_tile.cpu")
    for config in space.sample(random.Random(seed), 1):
        check(work, name, config)


def test_counts_of_windows_are_repeated_where_they_are_rounded() -> None:
    """The last window of a row ends beyond the image: of bfloat16 its vector of counts is a common subexpression."""
    attrs = {"pool_size": 3, "strides": 2, "ceil_mode": True, "count_include_pad": True}
    check(Workload.make("avg_pool2d", {"data": "bfloat16[2,8,12,33]"}, attrs), "pool.cpu", None)


@pytest.mark.parametrize("spec", ["llvm -mcpu=x86-64-v2", "llvm -mcpu=neoverse-n1 -mtriple=aarch64-linux-gnu"])
def test_tiles_beside_vectors_of_two_numbers_are_of_four_rows(spec: str) -> None:
    (space,) = (
        c.space for c in candidates(Workload.make("transpose", {"data": "int64[24,19]"}), Target.parse(spec)) if c.space
    )
    assert space.fallback["rows"] == 4


@settings(max_examples=min(14, settings.default.max_examples // 2))
@given(
    op=st.sampled_from(["max_pool2d", "avg_pool2d"]), image=st.tuples(st.integers(7, 20), st.integers(7, 50)),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)), strides=st.tuples(*[st.integers(1, 3)] * 2),
    dilation=st.tuples(*[st.integers(1, 2)] * 2), padding=st.tuples(*[st.integers(0, 3)] * 4),
    dtype=st.sampled_from(["float32", "float64", "float16", "bfloat16"]), seed=st.integers(0, 2**32),
    counted=st.booleans(),
)
def test_pooling(
    op: str, image: tuple[int, int], window: tuple[int, int], strides: Any, dilation: tuple[int, int],
    padding: Any, dtype: str, seed: int, counted: bool,
) -> None:
    reach = [(k - 1) * d for k, d in zip(window, dilation, strict=True)]
    attrs: dict[str, Any] = {
        "pool_size": window, "strides": strides, "dilation": dilation,
        "padding": [min(p, r) for p, r in zip(padding, reach * 2, strict=True)],
    }
    if op == "avg_pool2d":
        attrs["count_include_pad"] = counted
    work = Workload.make(op, {"data": f"{dtype}[2,3,{image[0]},{image[1]}]"}, attrs)
    found = tunable(work)
    assert found is not None
    name, space = found
    for config in space.sample(random.Random(seed), 1):
        check(work, name, config)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("op", "data", "attrs"),
    [
        ("transpose", "float32[2,40,24,5]", {"axes": [0, 1, 3, 2]}),
        ("max_pool2d", "float32[2,40,9,49]", {"pool_size": 3, "strides": 2, "padding": 1}),
    ],
)
def test_an_epilogue(op: str, data: str, attrs: dict[str, Any]) -> None:
    bias = Input("bias", "float32[40,1,1]", constant=True)
    steps = [EpilogueStep("add", (None, bias)), EpilogueStep("gelu", (None,))]
    work = Workload.make(op, {"data": data}, attrs, epilogue=steps)
    found = tunable(work)
    assert found is not None
    name, space = found
    check(work, name, space.fallback)


def test_spaces_have_a_choice() -> None:
    for op, data, attrs in (
        ("transpose", "float32[768,3072]", {}),
        ("max_pool2d", "float32[1,64,112,112]", {"pool_size": 3, "strides": 2, "padding": 1}),
    ):
        found = tunable(Workload.make(op, {"data": data}, attrs))
        assert found is not None
        assert (found[1].count() or 0) >= 200
