"""Transposed convolutions whose window is as large as their strides: any configuration, judged by NumPy."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strategy.compile.lower import lower
from strategy.op_strategy import candidates
from strategy.space import ConfigSpace
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload

from . import test_low_precision as low_precision
from .test_conv2d import check

TARGET = Target.parse("cpu").with_threads(2)
BLOCKS = "conv2d_transpose_blocks.cpu"


def make(data: str, weight: str, *, epilogue: Any = (), dtype: str = "float32", **attrs: Any) -> Workload:
    inputs = {"data": f"{dtype}[{data}]", "weight": f"{dtype}[{weight}]"}
    return Workload.make("conv2d_transpose", inputs, attrs, ["weight"], epilogue)


def levels(work: Workload, target: Target = TARGET) -> dict[str, int]:
    return {c.implementation: c.plevel for c in candidates(work, target)}


def space_of(work: Workload, target: Target = TARGET) -> ConfigSpace:
    (found,) = (c.space for c in candidates(work, target) if c.implementation == BLOCKS)
    assert found is not None
    return found


@settings(max_examples=min(15, settings.default.max_examples // 4), deadline=None)
@given(
    batch=st.integers(1, 2), groups=st.integers(1, 3), depth=st.integers(1, 9), own=st.integers(1, 9),
    height=st.integers(1, 5), width=st.integers(1, 40), down=st.integers(1, 4), across=st.sampled_from([1, 2, 4]),
    dtype=st.sampled_from(["float32", "float32", "float64", "float16"]), follows=st.booleans(),
    seed=st.integers(0, 2**32),
)
@example(1, 1, 5, 3, 6, 16, 2, 2, "float32", True, 0)  # vectors end with rows of the image
@example(2, 2, 4, 3, 2, 19, 3, 4, "float32", True, 1)  # no vector does
@example(1, 3, 2, 5, 3, 32, 3, 1, "float32", False, 2)
@example(1, 1, 7, 37, 2, 1, 1, 2, "float64", False, 3)
@example(1, 2, 7, 5, 2, 17, 2, 2, "float16", True, 4)
def test_any_configuration(batch, groups, depth, own, height, width, down, across, dtype, follows, seed) -> None:
    bias = Input("bias", f"{dtype}[{groups * own},1,1]", constant=True)
    steps = [EpilogueStep("add", (None, bias)), EpilogueStep("relu", (None,))] if follows else []
    work = make(
        f"{batch},{groups * depth},{height},{width}", f"{groups * depth},{own},{down},{across}", epilogue=steps,
        dtype=dtype, strides=[down, across], groups=groups,
    )
    space = space_of(work)
    for config in (space.fallback, *space.sample(random.Random(seed), 1)):
        check(work, BLOCKS, config)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats_by_every_implementation_of_float32(dtype: str) -> None:
    work = make("2,6,7,19", "6,5,3,3", dtype=dtype, strides=2, padding=1, groups=2)
    for candidate in candidates(work, TARGET):
        if candidate.space is not None:
            for config in (candidate.space.fallback, *candidate.space.sample(random.Random(dtype), 2)):
                low_precision.check(work, candidate.implementation, config)
    assert levels(work).keys() >= {"conv2d_transpose_im2col.cpu", "conv2d_transpose_spatial_pack.cpu"}


@pytest.mark.parametrize(
    ("data", "weight", "attrs"),
    [
        ("1,4,8,16", "4,3,2,2", {"strides": 1}), ("1,4,8,16", "4,3,3,2", {"strides": 2}),
        ("1,4,8,16", "4,3,2,2", {"strides": 2, "padding": 1}), ("1,4,8,16", "4,3,3,3", {"strides": 3}),
        ("1,4,8,16", "4,3,2,2", {"strides": 2, "output_padding": [0, 1]}),
        ("1,4,8,16", "4,3,2,2", {"strides": 2, "dilation": 2}),
    ],
)
def test_is_offered_only_where_blocks_lie_apart(data: str, weight: str, attrs: dict[str, Any]) -> None:
    assert BLOCKS in levels(make("1,4,8,16", "4,3,2,2", strides=2))
    assert BLOCKS not in levels(make(data, weight, **attrs))


@pytest.mark.parametrize(("width", "is_first"), [(16, True), (64, True), (30, True), (7, False), (17, False)])
def test_is_chosen_untuned_where_vectors_are_full(width: int, is_first: bool) -> None:
    target = Target.parse("llvm -mcpu=skylake-avx512")
    found = levels(make(f"1,64,8,{width}", "64,32,2,2", strides=2), target)
    assert (max(found, key=found.__getitem__) == BLOCKS) is is_first


@pytest.mark.parametrize(
    ("data", "weight", "expected"),
    [
        ("1,256,16,16", "256,128,4,4", "spatial_pack"),
        ("1,64,64,64", "64,3,4,4", "im2col"),  # lanes of three output channels would be idle
        ("1,4,16,16", "4,128,4,4", "im2col"),  # short sums
        ("1,256,17,17", "256,128,4,4", "im2col"),  # tiles of the spatial pack would be single pixels
    ],
)
def test_phases_are_unfolded_untuned_where_images_of_groups_are(data: str, weight: str, expected: str) -> None:
    found = levels(make(data, weight, strides=2, padding=1), Target.parse("llvm -mcpu=skylake-avx512"))
    assert max(found, key=found.__getitem__) == f"conv2d_transpose_{expected}.cpu"


@pytest.mark.parametrize("mcpu", ["skylake-avx512", "haswell", "x86-64"])
@pytest.mark.parametrize(("data", "weight"), [("1,128,64,64", "128,64,2,2"), ("1,512,16,16", "512,256,2,2")])
def test_a_tenth_of_the_space_is_valid(mcpu: str, data: str, weight: str) -> None:
    space = space_of(make(data, weight, strides=2), Target.parse(f"llvm -mcpu={mcpu}"))
    generator = random.Random(0)
    drawn = [space.config(generator.randrange(space.size)) for _ in range(300)]
    assert sum(map(space.contains, drawn)) >= 30


@pytest.mark.parametrize(("data", "weight", "attrs", "passes"), [
    ("1,4,5,6", "4,3,6,6", {"strides": 4, "padding": 1}, 2),
    ("2,8,5,7", "8,3,4,4", {"strides": 2, "padding": 1, "groups": 8}, 1),  # each group pads its own in its task
    ("1,3,5,6", "3,2,7,6", {"strides": [5, 4], "padding": [1, 1]}, 2),
])
def test_many_phases_pad_their_image_once(data: str, weight: str, attrs: dict[str, Any], passes: int) -> None:
    work, name = make(data, weight, **attrs), "conv2d_transpose_spatial_pack.cpu"
    lowered = lower(work, TARGET, name)
    assert lowered.module["main"].script().count("T.parallel") == passes
    check(work, name, None)


@pytest.mark.parametrize("implementation", ["conv2d_transpose_im2col.cpu", "conv2d_transpose_spatial_pack.cpu"])
def test_phases_of_a_window_as_large_as_its_strides_that_begin_inside_of_it(implementation: str) -> None:
    work = make("1,4,5,5", "4,1,3,3", strides=3, padding=2, output_padding=1)
    check(work, implementation, None)
