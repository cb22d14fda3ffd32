"""Reductions and scans along axes before the last: any configuration of any shape, against NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strategy.compile.lower import lower
from strategy.op_strategy import candidates
from strategy.target import Target
from strategy.workload import Workload

from .conftest import aligned, run
from .test_dense import extremes
from .test_row import space_of

REDUCTIONS = ["sum", "mean", "max", "min", "prod"]
SCANS = ["cumsum", "cumprod"]
extents = st.lists(st.integers(1, 40), min_size=1, max_size=2)


def make(op: str, shape: list[int], dtype: str = "float32", **attrs: Any) -> Workload:
    return Workload.make(op, {"data": f"{dtype}[{','.join(map(str, shape))}]"}, attrs)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "work",
    [
        make("sum", [6, 16, 104], axis=[1]), make("cumsum", [24, 104], axis=0), make("cumsum", [8, 24], axis=1),
        make("cumsum", [4099]), make("cumsum", [2, 2500], exclusive=True),
    ],
)
def test_the_ends_of_every_knob(check: Callable[..., None], work: Workload, full: bool) -> None:
    name, space = space_of(work)
    for config in list(extremes(space))[:: 1 if full else 2]:
        check(work, name, config)


@settings(max_examples=min(12, settings.default.max_examples // 2))
@given(
    op=st.sampled_from(REDUCTIONS), outer=st.lists(st.integers(1, 4), max_size=2),
    rows=st.lists(st.integers(1, 9), min_size=1, max_size=2), inner=extents, keepdims=st.booleans(),
    dtype=st.sampled_from(["float32", "float64", "float16"]), seed=st.integers(0, 2**32),
)
@example(op="sum", outer=[], rows=[384], inner=[768], keepdims=False, dtype="float32", seed=0)
def test_any_reduction(op, outer, rows, inner, keepdims, dtype, seed, check) -> None:
    axes = list(range(len(outer), len(outer) + len(rows)))
    work = make(op, [*outer, *rows, *inner], dtype, axis=axes, keepdims=keepdims)
    name, space = space_of(work)
    assert name == "reduce_column.cpu"
    for config in space.sample(random.Random(seed), 1):
        check(work, name, config)


@settings(max_examples=min(12, settings.default.max_examples // 2))
@given(
    op=st.sampled_from(SCANS), shape=st.lists(st.integers(1, 40), min_size=2, max_size=3), data=st.data(),
    exclusive=st.booleans(), dtype=st.sampled_from(["float32", "float64", "float16"]), seed=st.integers(0, 2**32),
)
def test_any_scan(op, shape, data, exclusive, dtype, seed, check) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    shape[(axis + 1) % len(shape)] += 1  # at least two scans
    work = make(op, shape, dtype, axis=axis, exclusive=exclusive)
    name, space = space_of(work)
    assert name == f"{op}_tile.cpu"
    for config in space.sample(random.Random(seed), 1):
        check(work, name, config)


@settings(max_examples=6)
@given(
    shape=st.sampled_from([[1, 4096], [5000], [3, 1367], [8209]]), dtype=st.sampled_from(["float32", "float64"]),
    exclusive=st.booleans(), seed=st.integers(0, 2**32),
)
def test_any_long_row(shape, dtype, exclusive, seed, check) -> None:
    work = make("cumsum", shape, dtype, exclusive=exclusive)
    name, space = space_of(work)
    assert name == "cumsum_parts.cpu"
    for config in space.sample(random.Random(seed), 1):
        check(work, name, config)


@pytest.mark.parametrize("op", SCANS)
def test_a_long_row_of_integers_is_exact(op: str, target: Target) -> None:
    work = make(op, [6007], "int64", exclusive=True)
    data, _ = aligned([6007], "int64")
    data[...] = np.random.default_rng(0).choice([-1, 1, 3], 6007)
    expected = work.operator.get_attr("FReference")(work.attr_node, [data])
    found = run(lower(work, target, f"{op}_parts.cpu").compile(checks=False), {"data": data}, [6007])
    assert (found == expected).all()


def test_a_product_that_overflows_in_parts_only_is_one_product() -> None:
    assert [c.tunable for c in candidates(make("cumprod", [1 << 20]), Target.parse("cpu"))] == [False]


@given(
    op=st.sampled_from([*REDUCTIONS, *SCANS]), shape=st.lists(st.integers(1, 600), min_size=2, max_size=3),
    dtype=st.sampled_from(["float32", "float64", "int32"]), threads=st.integers(1, 64),
)
def test_the_fallback_is_of_its_space(op: str, shape: list[int], dtype: str, threads: int) -> None:
    if op == "mean" and dtype == "int32":
        dtype = "float32"
    for axis in range(len(shape) - 1):
        _, space = space_of(make(op, [*shape[:-1], shape[-1] + 1], dtype, axis=axis), threads)
        assert space.contains(space.fallback)


@pytest.mark.parametrize("op", [*REDUCTIONS, *SCANS])
def test_a_space_has_a_choice(op: str) -> None:
    _, space = space_of(make(op, [384, 768], axis=0))
    assert (space.count() or 0) >= 200


@pytest.mark.parametrize(
    "work", [make("cumsum", [40]), make("cumsum", [1, 40], axis=1), make("cumsum", [4, 40], "int8", axis=0)]
)
def test_one_scan_alone_is_left_to_the_generic_one(work: Workload) -> None:
    assert [c.tunable for c in candidates(work, Target.parse("cpu"))] == [False]
