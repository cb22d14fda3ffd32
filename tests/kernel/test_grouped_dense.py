"""Every implementation of grouped_dense, compiled and judged by NumPy as a worker judges it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategy.compile.artefact import Artefact
from strategy.compile.lower import lower
from strategy.op import TypeRelationError
from strategy.op_strategy import candidates
from strategy.space import Config
from strategy.workload import EpilogueStep, Input, Workload
from tests.kernel.judge import judge
from workers.reference import random_inputs

from .test_conv2d import TARGET, extremes, space_of, valid

GENERAL = "reduce.cpu"


def make(
    m: int, n: int, k: int, groups: int, dtype: str = "float32", *, constant: bool = True,
    epilogue: Sequence[EpilogueStep] = (),
) -> Workload:
    types = {"data": f"{dtype}[{m},{k}]", "weight": f"{dtype}[{groups},{n},{k}]", "ends": f"int32[{groups}]"}
    return Workload.make("grouped_dense", types, {}, ["weight"] if constant else [], epilogue)


def check(artefact: Artefact, workload: Workload, ends: Sequence[int] | None = None) -> None:
    inputs = random_inputs(workload, 7)
    if ends is not None:
        inputs["ends"] = np.asarray(ends, "int32")
    judge(artefact, workload, inputs)


def build(workload: Workload, name: str, config: Config | None = None) -> Artefact:
    return lower(workload, TARGET, name, config).compile(checks=False)


FOLLOWED = [EpilogueStep("silu", (None,)), EpilogueStep("multiply", (None, Input("by", "float32[19,40]")))]
CASES = [
    make(1, 1, 1, 1), make(2, 33, 64, 8), make(19, 40, 20, 3, constant=False), make(40, 64, 32, 5, "bfloat16"),
    make(13, 9, 30, 2, "float16"), make(13, 9, 30, 20, "float64"), make(19, 40, 20, 3, epilogue=FOLLOWED),
    make(70, 48, 64, 2, "bfloat16", epilogue=FOLLOWED[:1]), make(5, 48, 96, 2, "bfloat16", constant=False),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("workload", CASES, ids=str)
def test_the_fallback_is_right(workload: Workload) -> None:
    for name in valid(workload):
        check(build(workload, name), workload)


@pytest.mark.sample(2)
@pytest.mark.parametrize("workload", [make(19, 70, 24, 3), make(37, 96, 64, 3, "bfloat16")], ids=str)
def test_the_ends_of_every_knob(workload: Workload, full: bool) -> None:
    for name in valid(workload).keys() - {GENERAL}:
        found = list(extremes(space_of(workload, name)))
        for config in found if full else found[::4]:
            check(build(workload, name, config), workload)


ROWS = make(19, 37, 32, 4, "bfloat16"), make(19, 37, 32, 4)


@cache
def built(workload: Workload) -> list[Artefact]:
    return [build(workload, name) for name in valid(workload)]


@settings(max_examples=12)
@given(st.sampled_from(ROWS), st.lists(st.integers(-3, 25), min_size=4, max_size=4))
def test_any_ends_give_what_numpy_does(workload: Workload, ends: list[int]) -> None:
    for artefact in built(workload):
        check(artefact, workload, ends)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_function_serves_any_number_of_rows(dtype: str) -> None:
    types = {"data": f"{dtype}[m,70]", "weight": f"{dtype}[3,33,70]", "ends": "int32[3]"}
    workload = Workload.make("grouped_dense", types)
    for found in candidates(workload, TARGET):
        artefact = build(workload, found.implementation)
        for m, ends in ((1, [0, 0, 1]), (40, [3, 3, 40]), (64, [20, 50, 60])):
            check(artefact, workload.bind({"m": m}), ends)


def test_a_weight_of_no_row_is_not_multiplied() -> None:
    """Infinite weights of the other groups would make NaN of zeros."""
    import tvm

    workload = make(3, 16, 8, 4)
    inputs = random_inputs(workload, 0) | {"ends": np.array([0, 2, 2, 2], "int32")}
    inputs["weight"][[0, 2, 3]] = np.inf
    for name in valid(workload):
        artefact, output = build(workload, name), tvm.runtime.tensor(np.full((3, 16), np.nan, "float32"))
        given = (artefact.prepare(a, tvm.runtime.tensor(inputs[a.name])) for a in artefact.arguments[:-1])
        artefact.main(*given, output)
        assert np.isfinite(output.numpy()).all()
        assert not output.numpy()[2].any()


def test_few_rows_that_share_no_weight_leave_it_unpacked() -> None:
    """Packing reads the weights of all groups at each call if they are no constants."""
    plevels = {
        m: {c.implementation: c.plevel for c in candidates(make(m, 32, 32, 8, constant=False), TARGET)} for m in (2, 64)
    }
    assert plevels[2]["grouped_dense_pack.cpu"] < plevels[2][GENERAL]
    assert plevels[64]["grouped_dense_pack.cpu"] > plevels[64][GENERAL]


@pytest.mark.parametrize("rows", range(1, 30))
def test_an_untuned_tile_of_one_group_has_no_more_rows_than_the_data(rows: int) -> None:
    assert space_of(make(rows, 9, 29, 1), "grouped_dense_pack.cpu").fallback["rows"] <= rows


@pytest.mark.parametrize(("inputs", "message"), [
    ({"weight": "float32[16,8]"}, r"weight is .*: expected 3 dimensions, \[g, n, k\]"),
    ({"weight": "float32[4,16,9]"}, "its last dimension must be that of data, 8"),
    ({"weight": "float64[4,16,8]"}, "expected the dtype of data"),
    ({"ends": "int64[4]"}, "ends is .*: expected int32: cast it first"),
    ({"ends": "int32[3]"}, r"expected the end of each group, \[4\]"),
    ({"data": "float32[0,8]"}, "axis 0 is empty"),
])
def test_types_that_do_not_fit_are_named(inputs: dict[str, str], message: str) -> None:
    given = {"data": "float32[3,8]", "weight": "float32[4,16,8]", "ends": "int32[4]"}
    with pytest.raises(TypeRelationError, match=message):
        Workload.make("grouped_dense", given | inputs)
