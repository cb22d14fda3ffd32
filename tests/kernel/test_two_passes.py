"""Reductions in two passes, and updates along indices: any configuration of any shape, against NumPy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategy.compile.lower import lower
from strategy.op_strategy import candidates
from strategy.space import ConfigSpace
from strategy.target import Target
from strategy.workload import EpilogueStep, Workload
from workers.reference import compare, random_inputs, reference, tolerances

from .conftest import run

TARGET = Target.parse("cpu").with_threads(2)
REDUCTIONS = ["variance", "std", "logsumexp", "argmax", "argmin", "any", "all"]


def make(op: str, shape: list[int], dtype: str = "float32", **attrs: Any) -> Workload:
    kind = "bool" if op in ("any", "all") else dtype
    return Workload.make(op, {"data": f"{kind}[{','.join(map(str, shape))}]"}, attrs)


def space_of(work: Workload, threads: int = 2) -> tuple[str, ConfigSpace]:
    found = candidates(work, TARGET.with_threads(threads))
    ((name, space),) = [(c.implementation, c.space) for c in found if c.space is not None]
    return name, space


def check(work: Workload, name: str, config: Any, more: dict[str, Any] | None = None) -> None:
    inputs = random_inputs(work, 7) | (more or {})
    right = reference(work, inputs)
    found = run(lower(work, TARGET, name, config).compile(checks=False), inputs, np.shape(right[0]))
    (tolerance,) = tolerances(work, inputs, right)
    try:
        compare(np.asarray(found), np.asarray(right[0]), tolerance)
    except Exception as error:
        raise AssertionError(f"{work} {name} {config}: {error}") from error


@settings(max_examples=max(3, settings.default.max_examples // 8))
@given(
    op=st.sampled_from(REDUCTIONS), outer=st.lists(st.integers(1, 4), max_size=2),
    rows=st.lists(st.integers(1, 9), min_size=1, max_size=2), inner=st.lists(st.integers(1, 40), max_size=2),
    keepdims=st.booleans(), dtype=st.sampled_from(["float32", "float64", "float16"]), seed=st.integers(0, 2**32),
)
def test_any_reduction(op, outer, rows, inner, keepdims, dtype, seed) -> None:
    axes = list(range(len(outer), len(outer) + len(rows)))
    work = make(op, [*outer, *rows, *inner], dtype, axis=axes, keepdims=keepdims)
    name, space = space_of(work)
    assert name == ("reduce_column.cpu" if inner else "reduce_row.cpu")
    for config in space.sample(random.Random(seed), 1):
        check(work, name, config)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint64"])
@pytest.mark.parametrize(("op", "shape", "axis"), [("argmax", [3, 200], 1), ("argmin", [200, 5], 0)])
def test_the_place_is_the_first_of_equals_or_of_nan(op: str, shape: list[int], axis: int, dtype: str) -> None:
    work = make(op, shape, dtype, axis=axis)
    data = np.random.default_rng(0).integers(0, 3, shape).astype(dtype)
    if dtype.startswith("float"):
        data[data == 1] = -0.0
        data[(1, 77) if axis else (77, 1)] = np.nan
    check(work, space_of(work)[0], None, {"data": data})


@pytest.mark.sample(1)
@pytest.mark.parametrize("axis", [0, 1])
def test_infinities_pass_the_logarithm_of_a_sum(axis: int) -> None:
    rows = np.ones((5, 50), np.float32)
    rows[:3, 7] = np.nan, np.inf, -np.inf
    rows[3] = -np.inf
    data = np.ascontiguousarray(rows if axis else rows.T)
    work = make("logsumexp", list(data.shape), axis=axis)
    check(work, space_of(work)[0], None, {"data": data})


@pytest.mark.parametrize("op", REDUCTIONS)
def test_spaces_have_a_choice_and_their_fallback(op: str) -> None:
    for shape, axis in (([384, 768], 1), ([384, 768], 0), ([7], 0), ([3, 1, 5], 1)):
        for threads in (1, 2, 16):
            _, space = space_of(make(op, shape, axis=axis), threads)
            assert space.contains(space.fallback)
    assert (space_of(make(op, [384, 768], axis=1))[1].count() or 0) >= 100


@st.composite
def scattered(draw: st.DrawFn) -> Workload:
    shape = draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
    axis, count = draw(st.integers(-len(shape), len(shape) - 1)), draw(st.integers(1, 30))
    dtype, index = draw(st.sampled_from(["float32", "float16", "int64"])), draw(st.sampled_from(["int32", "uint8"]))
    places = list(shape)
    places[axis] = count
    data, indices, taken = (",".join(map(str, s)) for s in (shape, places, [count]))
    if draw(st.booleans()):
        inputs = {"data": f"{dtype}[{data}]", "indices": f"{index}[{indices}]", "updates": f"{dtype}[{indices}]"}
        return Workload.make("scatter_add", inputs, {"axis": axis})
    inputs = {"grad": f"{dtype}[{indices}]", "indices": f"{index}[{taken}]", "data": f"{dtype}[{data}]"}
    return Workload.make("take_backward", inputs, {"axis": axis, "mode": draw(st.sampled_from(["clip", "wrap"]))})


@settings(max_examples=max(3, settings.default.max_examples // 8))
@given(work=scattered(), seed=st.integers(0, 2**32))
def test_any_updates(work: Workload, seed: int) -> None:
    name, space = space_of(work)
    assert name == {"scatter_add": "scatter_add_in_order.cpu", "take_backward": "take_backward_loops.cpu"}[work.op]
    assert space.contains(space.fallback)
    for config in space.sample(random.Random(seed), 1):
        check(work, name, config)


def test_entries_of_a_batch_have_updates_of_their_own() -> None:
    inputs = {"grad": "float32[3,5,4,7]", "indices": "int64[3,4]", "data": "float32[3,5,9,7]"}
    work = Workload.make("take_backward", inputs, {"axis": 2, "batch_dims": 1})
    check(work, "take_backward_loops.cpu", None)
    flat = {"grad": "float32[7]", "indices": "int64[7]", "data": "float32[3,4]"}
    check(Workload.make("take_backward", flat, {"mode": "wrap"}), "take_backward_loops.cpu", None)


INDICES = np.array([0, -1, 18, 19, -19, -20, 2**31 + 3, -(2**40)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_rows_of_many_updates(dtype: str) -> None:
    inputs = {"data": f"{dtype}[3,19]", "indices": "int64[3,131]", "updates": f"{dtype}[3,131]"}
    work = Workload.make("scatter_add", inputs, {"axis": 1})
    indices = np.random.default_rng(0).choice(INDICES, (3, 131))
    for parallel in (False, True):
        check(work, "scatter_add_in_order.cpu", {"columns": 1, "parallel": parallel}, {"indices": indices})


@pytest.mark.parametrize(("extent", "kept"), [(2**31 - 1, "int32"), (2**31, "int64")])
def test_places_of_long_rows_are_kept_whole(extent: int, kept: str) -> None:
    inputs = {"data": f"int8[{extent}]", "indices": "int64[64]", "updates": "int8[64]"}
    config = {"columns": 1, "parallel": False}
    made = lower(Workload.make("scatter_add", inputs), TARGET, "scatter_add_in_order.cpu", config)
    assert f'T.alloc_local((T.int64(64),), "{kept}")' in str(made.module)


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize(
    ("shape", "taken", "axis"), [([3, 19], [3, 96], 1), ([19], [32], 0), ([2, 19, 48], [2, 5, 48], 1)]
)
def test_places_before_elements(shape: list[int], taken: list[int], axis: int, dtype: str) -> None:
    data, indices = (",".join(map(str, s)) for s in (shape, taken))
    inputs = {"data": f"{dtype}[{data}]", "indices": f"int64[{indices}]"}
    given_indices = {"indices": np.random.default_rng(0).choice(INDICES, taken)}
    for epilogue in ([], [EpilogueStep("relu", (None,))]):
        work = Workload.make("gather", inputs, {"axis": axis}, epilogue=epilogue)
        name, space = space_of(work)
        assert name == "gather_places.cpu"
        for config in (space.fallback, *space.sample(random.Random(0), 3)):
            check(work, name, config, given_indices)


def test_updates_add_up_in_as_many_steps_as_there_are() -> None:
    """Each element's own pass over the indices would take 4 · 10¹⁰ steps."""
    inputs = {"data": "float32[200000]", "indices": "int32[200000]", "updates": "float32[200000]"}
    work = Workload.make("scatter_add", inputs)
    check(work, "scatter_add_in_order.cpu", None)
