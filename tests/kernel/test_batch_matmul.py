"""Every implementation of batch_matmul, compiled and judged by NumPy as a worker judges it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategy.compile.lower import lower
from strategy.op_strategy import candidates
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload

from .test_conv2d import TARGET, check, extremes, space_of, valid

GENERAL, PACK, CBLAS = "batch_matmul.cpu", "batch_matmul_pack.cpu", "batch_matmul_cblas.cpu"
ALL = {GENERAL, PACK, CBLAS}


def make(b, m, n, k, *, ta=False, tb=True, bx=None, by=None, dtype="float32", constants=(), epilogue=()):
    x = f"{bx or b},{k},{m}" if ta else f"{bx or b},{m},{k}"
    y = f"{by or b},{n},{k}" if tb else f"{by or b},{k},{n}"
    attrs = {"transpose_a": ta, "transpose_b": tb}
    types = {"x": f"{dtype}[{x}]", "y": f"{dtype}[{y}]"}
    return Workload.make("batch_matmul", types, attrs, constants, epilogue)


CASES = [
    (make(3, 7, 9, 20, by=1), ALL),
    (make(3, 7, 9, 20, ta=True, tb=False, bx=1, dtype="float64"), {GENERAL, PACK}),
    (make(2, 3, 5, 4, tb=False, dtype="int32"), {GENERAL}),
    (make(4, 12, 9, 76, dtype="float16"), {GENERAL, PACK}),
    (make(1, 1, 1, 1), ALL),
    (make(1, 33, 47, 16, constants=["y"]), ALL),
    (make(3, 1, 70, 31), ALL),
    (make(3, 1, 70, 31, ta=True, tb=False), ALL),
    (make(2, 17, 64, 33, tb=False), ALL),
    (make(2, 17, 19, 33, ta=True), ALL),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_fallback_is_right(case):
    workload, names = CASES[case]
    assert valid(workload).keys() == names
    for name in names:
        check(workload, name)


def test_symbolic_extents_are_left_to_the_general_one():
    workload = Workload.make("batch_matmul", {"x": "float32[b,m,8]", "y": "float32[b,4,8]"})
    assert [c.implementation for c in candidates(workload, TARGET)] == [GENERAL]


def test_the_library_needs_a_target_that_has_it():
    assert CBLAS not in valid(make(2, 3, 4, 5), Target.parse("llvm -mcpu=znver4"))


def test_the_ends_of_every_knob():
    workload = make(2, 29, 70, 33)
    for config in list(extremes(space_of(workload, PACK)))[::2]:
        check(workload, PACK, config)


@settings(max_examples=min(8, settings.default.max_examples // 2))
@given(
    b=st.integers(1, 4), m=st.integers(1, 40), n=st.integers(1, 80), k=st.integers(1, 60),
    ta=st.booleans(), tb=st.booleans(), constant=st.booleans(), shared=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_configuration_of_any_shape(b, m, n, k, ta, tb, constant, shared, seed):
    constants = ["y"] if constant else []
    workload = make(b, m, n, k, ta=ta, tb=tb, by=1 if shared else None, constants=constants)
    for config in space_of(workload, PACK).sample(random.Random(seed), 1):
        check(workload, PACK, config)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", sorted(ALL))
def test_an_epilogue_joins_the_output(name):
    steps = [
        EpilogueStep("add", (None, Input("mask", "float32[2,1,21]"))),
        EpilogueStep("add", (Input("residual", "float32[2,13,21]"), None)),
        EpilogueStep("relu", (None,)),
    ]
    check(make(2, 13, 21, 16, epilogue=steps), name)


@pytest.mark.parametrize("spec", ["llvm -mcpu=znver5", "llvm -mcpu=haswell", "llvm -mcpu=neoverse-n1"])
def test_the_space_is_worth_searching(spec):
    for workload in (make(12, 128, 128, 64), make(12, 128, 64, 128, tb=False), make(32, 512, 512, 128)):
        space = valid(workload, Target.parse(spec))[PACK]
        assert (space.count(limit=1000) or 1000) >= 200
        assert space.contains(space.fallback)


@pytest.mark.parametrize(
    ("batch", "m", "constant", "expected"),
    [
        (8, 4, False, CBLAS), (8, 16, False, PACK), (1, 64, False, CBLAS), (1, 64, True, PACK), (8, 4, True, PACK),
        (8, 1, True, CBLAS),
    ],
)
def test_what_runs_untuned(batch: int, m: int, constant: bool, expected: str) -> None:
    """OpenBLAS is chosen where y would be packed at each call for few rows, or for entries that threads share."""
    types = {"x": f"float32[{batch},{m},64]", "y": f"float32[{batch},512,64]"}
    workload = Workload.make("batch_matmul", types, constants=["y"] if constant else [])
    target = Target.parse("llvm -mcpu=znver5 -num-cores=2 -libs=cblas")
    assert max(candidates(workload, target), key=lambda c: c.plevel).implementation == expected


@pytest.mark.parametrize(("dtype", "name"), [("float32", ""), ("float16", ""), ("float32", "_cblas")])
def test_equal_code_has_equal_digests(dtype: str, name: str) -> None:
    """Also of a function that is one block, a call of a library."""
    work = Workload.make("batch_matmul", {"x": f"{dtype}[2,8,8]", "y": f"{dtype}[2,8,8]"})
    target = Target.parse("llvm -mcpu=znver5 -num-cores=2 -libs=cblas")
    one, same = (lower(work, target, f"batch_matmul{name}.cpu").digest for _ in range(2))
    assert one == same
