"""Every implementation of conv2d, compiled and judged by NumPy as a worker judges it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strategy.compile.lower import lower
from strategy.op_strategy import candidates
from strategy.signature import Role
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload
from workers.reference import compare, random_inputs, reference, tolerances

from .conftest import run

TARGET = Target.parse("cpu").with_threads(2)
DIRECT, IM2COL, SPATIAL = "conv2d_nchw.cpu", "conv2d_nchw_im2col.cpu", "conv2d_nchw_spatial_pack.cpu"
POINTWISE, DEPTHWISE = "conv2d_nchw_1x1.cpu", "depthwise_conv2d_nchw.cpu"
F2, F4 = "conv2d_nchw_winograd_2x2.cpu", "conv2d_nchw_winograd_4x4.cpu"
F4_LINES = "conv2d_nchw_winograd_lines_4x4.cpu"
TAPS, LINES = "conv2d_nchw_taps.cpu", "conv2d_nchw_lines.cpu"
NARROW = {DIRECT, IM2COL, SPATIAL}
GENERAL = {*NARROW, TAPS}
FEW = {*GENERAL, LINES}  # output channels of a group, and windows of several pixels
# One workload for each implementation, ragged in every extent.
EXAMPLES = {
    DIRECT: ("float32[1,6,9,11]", "float32[10,3,3,2]", {"groups": 2}),
    IM2COL: ("float32[2,6,12,11]", "float32[38,3,3,3]", {"padding": 1, "strides": [1, 2], "groups": 2}),
    SPATIAL: ("float32[2,6,12,11]", "float32[38,3,3,3]", {"padding": 1, "strides": [1, 2], "groups": 2}),
    TAPS: ("float32[2,36,12,11]", "float32[38,18,3,3]", {"padding": 5, "dilation": 5, "strides": [1, 2], "groups": 2}),
    LINES: ("float32[2,6,12,21]", "float32[14,3,3,3]", {"padding": 1, "strides": [1, 2], "groups": 2}),
    POINTWISE: ("float32[2,6,5,11]", "float32[38,3,1,1]", {"groups": 2}),
    DEPTHWISE: ("float32[2,6,12,21]", "float32[12,1,3,3]", {"padding": 1, "strides": 2, "groups": 6}),
    F2: ("float32[2,5,9,11]", "float32[19,5,3,3]", {"padding": 1}),
    F4: ("float32[1,17,9,22]", "float32[19,17,3,3]", {"padding": [1, 0, 2, 1]}),
    F4_LINES: ("float32[2,17,15,23]", "float32[19,17,3,3]", {"padding": [1, 0, 2, 1]}),
}
LAST, LAST_SPATIAL = "conv2d_nhwc.cpu", "conv2d_nhwc_spatial_pack.cpu"
EXAMPLES[LAST_SPATIAL] = (
    "float32[2,12,11,6]", "float32[3,3,3,38]",
    {"padding": 1, "strides": [1, 2], "groups": 2, "data_layout": "NHWC", "kernel_layout": "HWIO"},
)
LAST_DEPTHWISE = "depthwise_conv2d_nhwc.cpu"
EXAMPLES[LAST_DEPTHWISE] = (
    "float32[2,12,21,37]", "float32[3,3,1,37]",
    {"padding": 1, "strides": 2, "groups": 37, "data_layout": "NHWC", "kernel_layout": "HWIO"},
)
BLOCKED, BLOCKED_SPATIAL = "conv2d_nchwc.cpu", "conv2d_nchwc_spatial_pack.cpu"
BLOCKED_DEPTHWISE = "depthwise_conv2d_nchwc.cpu"
BLOCKED_F2, BLOCKED_F4 = "conv2d_nchwc_winograd_2x2.cpu", "conv2d_nchwc_winograd_4x4.cpu"
BLOCKED_LINES = "conv2d_nchwc_winograd_lines_4x4.cpu"
IN_BLOCKS = {BLOCKED, BLOCKED_SPATIAL, BLOCKED_DEPTHWISE, BLOCKED_F2, BLOCKED_F4, BLOCKED_LINES}
EXAMPLES[BLOCKED_SPATIAL] = (
    "float32[2,3,12,11,8]", "float32[48,24,3,3]",
    {"padding": 1, "strides": [1, 2], "data_layout": "NCHW8c", "out_layout": "NCHW16c"},
)
EXAMPLES[BLOCKED_F2] = ("float32[2,1,9,11,8]", "float32[24,8,3,3]", {"padding": 1, "data_layout": "NCHW8c"})
EXAMPLES[BLOCKED_F4] = (
    "float32[1,3,9,22,8]", "float32[48,24,3,3]",
    {"padding": [1, 0, 2, 1], "data_layout": "NCHW8c", "out_layout": "NCHW16c"},
)
EXAMPLES[BLOCKED_LINES] = (
    "float32[2,3,15,23,8]", "float32[48,24,3,3]",
    {"padding": [1, 0, 2, 1], "data_layout": "NCHW8c", "out_layout": "NCHW16c"},
)
EXAMPLES[BLOCKED_DEPTHWISE] = (
    "float32[2,3,12,21,16]", "float32[48,1,3,3]",
    {"padding": 1, "strides": 2, "groups": 48, "data_layout": "NCHW16c"},
)
TUNABLE = [name for name in EXAMPLES if name != DIRECT]


def make(data, weight, attrs, constants=("weight",), epilogue=()) -> Workload:
    return Workload.make("conv2d", {"data": data, "weight": weight}, attrs, constants, epilogue)


def valid(workload: Workload, target: Target = TARGET) -> dict[str, ConfigSpace | None]:
    """The implementations whose condition holds, with their spaces."""
    found = candidates(workload, target)
    return {c.implementation: c.space for c in found if c.condition is None or c.condition.decide()}


def check(workload: Workload, name: str, config: Mapping[str, Any] | None = None) -> None:
    inputs = random_inputs(workload, 7)
    expected = reference(workload, inputs)
    artefact = lower(workload, TARGET, name, config).compile(checks=False)
    aligned = {a.name: inputs[a.name] for a in artefact.arguments if a.role is not Role.OUTPUT}
    found = run(artefact, aligned, expected[0].shape)
    (tolerance,) = tolerances(workload, inputs, expected)
    try:
        compare(np.asarray(found), np.asarray(expected[0]), tolerance)
    except Exception as error:
        raise AssertionError(f"{workload} {name} {config}: {error}") from error


def space_of(workload: Workload, name: str) -> ConfigSpace:
    space = valid(workload)[name]
    assert space is not None
    return space


CASES = [
    ("float32[1,3,15,17]", "float32[5,3,3,3]",
     {"strides": [2, 1], "padding": [1, 2, 0, 1], "dilation": [1, 2]}, FEW),
    ("float32[2,4,9,8]", "float32[6,2,3,2]", {"groups": 2}, FEW),
    ("float32[1,12,5,11]", "float32[38,6,1,1]", {"groups": 2}, {*GENERAL, POINTWISE}),
    ("float32[2,8,9,21]", "float32[8,2,3,3]", {"groups": 4, "padding": 1, "dilation": 2}, FEW),
    ("float64[2,4,9,8]", "float64[8,1,3,3]", {"groups": 4, "padding": 1}, {DIRECT, DEPTHWISE}),
    ("float32[2,4,9,8]", "float32[4,1,5,3]", {"groups": 4, "strides": 2}, {DIRECT, DEPTHWISE}),
    ("float32[2,4,15,17]", "float32[8,4,3,3]", {"padding": 1}, {*FEW, F2}),
    ("float32[1,16,8,8]", "float32[8,16,3,3]", {}, {*FEW, F2, F4}),
    ("float64[1,16,8,9]", "float64[2,16,3,3]", {"padding": [1, 0, 2, 1]}, {*FEW, F2, F4}),
    ("float32[2,16,18,33]", "float32[5,16,3,3]", {"padding": [2, 1, 3, 2], "dilation": [2, 3]}, {*FEW, F2, F4}),
    ("float32[1,5,1,1]", "float32[3,5,1,1]", {}, {*GENERAL, POINTWISE}),
    ("float64[2,16,7,7]", "float64[33,16,1,1]", {}, {*GENERAL, POINTWISE}),
    ("float32[1,16,7,7]", "float32[33,16,1,1]", {"strides": 2}, {*GENERAL, POINTWISE}),
    ("float32[2,12,6,9]", "float32[10,6,1,1]", {"strides": [2, 1], "padding": 1, "groups": 2}, {*GENERAL, POINTWISE}),
    ("float32[1,3,23,23]", "float32[64,3,7,7]", {"strides": 2, "padding": 3}, GENERAL),
    ("float32[2,3,9,32]", "float32[5,3,6,6]", {"strides": 2, "padding": [2, 3, 2, 0]}, FEW),
    ("float32[1,4,6,33]", "float32[18,2,3,5]", {"strides": [1, 2], "padding": 1, "dilation": [1, 3], "groups": 2},
     FEW),
    ("float32[2,7,9,5]", "float32[3,2,5,19]", {"padding": [1, 0, 2, 1], "data_layout": "NHWC", "kernel_layout": "HWIO"},
     {LAST, LAST_SPATIAL}),
    ("float32[1,8,9,6]", "float32[4,3,3,3]",
     {"groups": 2, "dilation": 2, "data_layout": "NHWC", "kernel_layout": "OHWI"}, {LAST, LAST_SPATIAL}),
    ("float64[1,8,9,6]", "float64[33,6,1,1]", {"strides": 2, "data_layout": "NHWC"}, {LAST, LAST_SPATIAL}),
    ("float32[1,9,8,4]", "float32[3,3,1,8]",
     {"groups": 4, "data_layout": "NHWC", "kernel_layout": "HWIO"}, {LAST}),
    ("float32[2,16,9,8]", "float32[6,3,3,16]", {"padding": 1, "kernel_layout": "OHWI"}, {*FEW, F2, F4}),
    ("float64[2,9,8,5]", "float64[2,3,1,5]",
     {"groups": 5, "padding": [1, 0, 2, 1], "strides": [1, 2], "data_layout": "NHWC", "kernel_layout": "HWIO"},
     {LAST, LAST_DEPTHWISE}),
    ("int16[1,8,8,3]", "int16[3,3,3,4]",
     {"out_dtype": "int32", "data_layout": "NHWC", "kernel_layout": "HWIO"}, {LAST}),
    ("float32[1,3,13,11]", "float32[24,3,3,3]",
     {"strides": 2, "padding": 1, "out_layout": "NCHW8c"}, {BLOCKED, BLOCKED_SPATIAL}),
    ("float32[2,2,5,7,16]", "float32[48,32,1,1]", {"data_layout": "NCHW16c"}, {BLOCKED, BLOCKED_SPATIAL}),
    ("float64[1,2,7,7,16]", "float64[1,1,32,40]",
     {"strides": 2, "data_layout": "NCHW16c", "out_layout": "NCHW8c", "kernel_layout": "HWIO"},
     {BLOCKED, BLOCKED_SPATIAL}),
    ("float64[1,2,9,8,8]", "float64[16,1,5,3]",
     {"groups": 16, "padding": [2, 1], "dilation": [1, 2], "data_layout": "NCHW8c"}, {BLOCKED, BLOCKED_DEPTHWISE}),
    ("float32[1,2,9,8,8]", "float32[32,4,3,3]", {"groups": 4, "data_layout": "NCHW8c"}, {BLOCKED}),
    ("float32[1,4,9,8,8]", "float32[32,8,3,3]", {"groups": 4, "padding": 1, "data_layout": "NCHW8c"},
     {BLOCKED, BLOCKED_SPATIAL}),
    ("float64[2,6,9,7]", "float64[48,3,1,1]", {"groups": 2, "strides": 2, "out_layout": "NCHW8c"},
     {BLOCKED, BLOCKED_SPATIAL}),
    ("float32[1,2,17,21,8]", "float32[16,16,3,3]", {"padding": [2, 3], "dilation": [2, 1], "data_layout": "NCHW8c"},
     {BLOCKED, BLOCKED_SPATIAL, BLOCKED_F2, BLOCKED_F4}),
    ("float64[2,1,7,11,8]", "float64[16,8,3,3]",
     {"padding": 3, "dilation": 3, "data_layout": "NCHW8c", "out_layout": "NCHW16c"},
     {BLOCKED, BLOCKED_SPATIAL, BLOCKED_F2}),
    ("float32[1,2,9,8,8]", "float32[5,16,3,3]", {"data_layout": "NCHW8c", "out_layout": "NHWC"}, {BLOCKED}),
    ("int8[1,1,8,8,8]", "int8[8,8,3,3]", {"out_dtype": "int32", "data_layout": "NCHW8c"}, {BLOCKED}),
    ("float16[1,2,9,8,8]", "float16[8,16,3,3]", {"padding": 1, "data_layout": "NCHW8c"},
     {BLOCKED, BLOCKED_SPATIAL, BLOCKED_F2, BLOCKED_F4}),
    ("float16[1,2,9,8,8]", "float16[16,1,3,3]", {"groups": 16, "data_layout": "NCHW8c"}, {BLOCKED, BLOCKED_DEPTHWISE}),
    ("int32[1,3,8,8]", "int32[4,3,3,3]", {}, {DIRECT}),
    ("float16[1,64,8,8]", "float16[8,64,3,3]", {"padding": 1}, {*NARROW, LINES, TAPS, F2, F4}),
    ("float16[2,12,6,9]", "float16[10,6,1,1]", {"groups": 2}, {*NARROW, TAPS, POINTWISE}),
    ("float16[1,16,7,7]", "float16[33,16,1,1]", {"strides": 2, "out_dtype": "float32"}, {*NARROW, TAPS, POINTWISE}),
    ("float16[2,4,9,8]", "float16[8,1,3,3]", {"groups": 4, "padding": 1}, {DIRECT, DEPTHWISE}),
    ("float16[2,7,9,5]", "float16[3,2,5,19]", {"padding": [1, 0, 2, 1], "data_layout": "NHWC", "kernel_layout": "HWIO"},
     {LAST, LAST_SPATIAL}),
    ("float16[1,9,8,5]", "float16[3,3,1,5]",
     {"groups": 5, "data_layout": "NHWC", "kernel_layout": "HWIO"}, {LAST, LAST_DEPTHWISE}),
    ("float16[1,4,8,8]", "float16[8,4,3,3]", {"out_dtype": "float64"}, {DIRECT}),
]


def samples() -> Iterator[Any]:
    """The cases that no implementation has met in its dtype; the others are larger samples."""
    met: set[tuple[str, str]] = set()
    for number, (data, *_, names) in enumerate(CASES):
        found = {(name, data.partition("[")[0]) for name in names}
        yield pytest.param(number, marks=[pytest.mark.full] if found <= met else [])
        met |= found


@pytest.mark.parametrize(("weight", "order"), [("3,3,16,19", "HWIO"), ("19,3,3,16", "OHWI")])
def test_a_weight_in_another_order(weight, order):
    workload = make("float32[1,16,9,17]", f"float32[{weight}]", {"padding": 1, "kernel_layout": order})
    names = valid(workload)
    assert names.keys() == {*GENERAL, LINES, F2, F4, F4_LINES}
    for name in names:
        check(workload, name)


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", list(samples()))
def test_the_fallback_is_right(case):
    data, weight, attrs, names = CASES[case]
    workload = make(data, weight, attrs, ("weight",) if case % 2 else ())
    assert valid(workload).keys() == names
    for name in names:
        check(workload, name)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("attrs", [{"strides": 2}, {"strides": [1, 3], "padding": [0, 1, 2, 0], "groups": 2}])
def test_strided_pixels_are_picked_or_read_where_they_lie(attrs, dtype):
    workload = make(f"{dtype}[2,6,9,12]", f"{dtype}[38,{6 // attrs.get('groups', 1)},1,1]", attrs)
    fallback = space_of(workload, SPATIAL).fallback
    assert fallback["picked"]
    for picked in (False, True):
        config = {**fallback, "picked": picked}
        check(workload, SPATIAL, config)
        code = lower(workload, TARGET, SPATIAL, config).module["main"].script()
        in_place = not picked and "padding" not in attrs and dtype == "float32"
        assert ("padded" in code) != in_place
        assert code.count("T.parallel") == 2 - in_place


@pytest.mark.parametrize(("dtype", "batch", "groups"), [("float32", 2, 8), ("float16", 1, 16), ("float32", 1, 8)])
def test_each_of_many_groups_pads_its_own_channels(dtype, batch, groups):
    data, weight = f"{dtype}[{batch},{3 * groups},9,14]", f"{dtype}[{5 * groups},3,3,3]"
    workload = make(data, weight, {"padding": 1, "strides": [1, 2], "groups": groups})
    check(workload, SPATIAL)
    code = lower(workload, TARGET, SPATIAL).module["main"].script()
    assert code.count("T.parallel(") == 2 - (batch * groups >= 8 * TARGET.threads)


@pytest.mark.parametrize("data", ["float32[1,6,h,12]", "float32[1,9,12,6]"])
def test_pixels_of_images_of_any_size_or_with_channels_last_are_not_picked(data):
    layout = {"data_layout": "NHWC"} if data.endswith("6]") else {}
    workload = make(data, "float32[38,6,1,1]", {"strides": 2, **layout})
    (space,) = (s for name, s in valid(workload).items() if "spatial_pack" in name)
    assert "picked" not in space.fallback


@pytest.mark.full
def test_windows_of_few_channels_are_read_in_place():
    for data, attrs in (("float32[1,3,18,64]", {"strides": 2, "padding": 2}), ("float32[2,3,13,33]", {"padding": 2})):
        workload = make(data, "float32[21,3,6,6]", attrs)
        space = space_of(workload, IM2COL)
        assert space.fallback["in_place"]
        code = lower(workload, TARGET, IM2COL).module["main"].script()
        assert "split" in code if "strides" in attrs else "padded" in code
        assert "columns" not in code
        for width in {16, 32} & set(space["width"].values):
            check(workload, IM2COL, {**space.fallback, "rows": 5, "width": width})
    assert not space_of(make("float32[1,64,56,56]", "float32[64,64,3,3]", {"padding": 1}), IM2COL).fallback["in_place"]


@pytest.mark.full
def test_a_task_splits_the_rows_that_it_reads():
    workload = make("float32[1,3,64,64]", "float32[32,3,6,6]", {"strides": 2, "padding": 2})
    space = space_of(workload, IM2COL)
    assert space.fallback["in_place"]
    code = lower(workload, TARGET, IM2COL).module["main"].script()
    assert code.count("T.parallel(") == 1
    # Tasks that share pixels do not each split them.
    shared = {**space.fallback, "o_block": 1}
    assert lower(workload, TARGET, IM2COL, shared).module["main"].script().count("T.parallel(") == 2
    for config in (space.fallback, shared):
        check(workload, IM2COL, config)


@pytest.mark.parametrize(
    ("arch", "image", "weight", "stride", "chosen"),
    [
        ("znver4", "227,227", "96,3,11,11", 4, SPATIAL), ("znver4", "224,224", "768,3,16,16", 16, SPATIAL),
        ("znver4", "224,224", "64,3,7,7", 2, IM2COL), ("znver4", "224,224", "96,3,4,4", 4, IM2COL),
        ("znver4", "300,300", "64,3,3,3", 1, IM2COL),
        # A tile of one vector waits for the weight on some processors.
        ("znver5", "224,224", "64,3,7,7", 2, SPATIAL), ("znver5", "256,256", "64,3,7,7", 2, IM2COL),
        ("emeraldrapids", "224,224", "64,3,7,7", 2, IM2COL),
        ("znver5", "218,218", "32,3,3,3", 2, IM2COL),
    ],
)
def test_what_is_chosen_untuned_for_a_first_layer(arch, image, weight, stride, chosen):
    workload = make(f"float32[1,3,{image}]", f"float32[{weight}]", {"strides": stride, "padding": int(stride == 2) * 3})
    found = candidates(workload, Target.parse(f"llvm -mcpu={arch}"))
    valid = [c for c in found if c.condition is None or c.condition.decide()]
    assert max(valid, key=lambda c: c.plevel).implementation == chosen


@pytest.mark.parametrize(
    ("size", "dilation", "chosen"), [(24, 6, TAPS), (17, 6, TAPS), (28, 3, F4), (32, 4, F4), (56, 7, TAPS)]
)
def test_what_is_chosen_untuned_for_a_dilated_window(size, dilation, chosen):
    workload = make(
        f"float32[1,64,{size},{size}]", "float32[64,64,3,3]", {"padding": dilation, "dilation": dilation}
    )
    found = candidates(workload, Target.parse("llvm -mcpu=znver4"))
    valid = [c for c in found if c.condition is None or c.condition.decide()]
    assert max(valid, key=lambda c: c.plevel).implementation == chosen


@pytest.mark.parametrize(("name", "width"), [(F4, 88), (F2, 88), (F2, 156)])
def test_images_of_a_dilated_window_are_turned_within_their_lines(name, width):
    """Their lines have 44 and 78 columns, which tiles of 11 and 13 divide: the last has no room for a whole vector."""
    attrs = {"padding": 2, "dilation": 2}
    check(make(f"float32[1,16,15,{width}]", "float32[16,16,3,3]", attrs), name)


@pytest.mark.parametrize(("size", "dilation", "chosen"), [(56, 2, BLOCKED_F4), (28, 12, BLOCKED_SPATIAL)])
def test_what_is_chosen_untuned_for_a_dilated_window_of_a_blocked_image(size, dilation, chosen):
    attrs = {"padding": dilation, "dilation": dilation, "data_layout": "NCHW16c"}
    workload = make(f"float32[1,4,{size},{size},16]", "float32[64,64,3,3]", attrs)
    assert max(candidates(workload, Target.parse("llvm -mcpu=znver5")), key=lambda c: c.plevel).implementation == chosen


@pytest.mark.parametrize(("data", "weight", "groups", "chosen"), [
    ("1,128,56,56", "128,4,3,3", 32, LINES), ("1,512,14,14", "512,16,3,3", 32, SPATIAL),
    ("1,64,64,64", "3,64,3,3", 1, LINES), ("1,64,64,64", "24,64,3,3", 1, F4_LINES), ("1,64,8,8", "64,64,3,3", 1, F2),
    ("8,512,7,7", "512,512,3,3", 1, F4),
])
def test_what_is_chosen_untuned_for_few_channels_and_for_small_images(data, weight, groups, chosen):
    workload = make(f"float32[{data}]", f"float32[{weight}]", {"padding": 1, "groups": groups})
    found = candidates(workload, Target.parse("llvm -mcpu=sapphirerapids -num-cores=2"))
    valid = [c for c in found if c.condition is None or c.condition.decide()]
    assert max(valid, key=lambda c: c.plevel).implementation == chosen


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_taps_that_see_padding_alone_are_left_out(rows):
    # A tile of 4 pixels of a line of 14 sees padding in part; the last one of 5 ends behind it.
    workload = make("float32[1,32,9,14]", "float32[20,32,3,3]", {"padding": 6, "dilation": 6})
    check(workload, TAPS, {**space_of(workload, TAPS).fallback.to_json(), "rows": rows, "depth": 16})


@pytest.mark.parametrize("workload", [
    make("float32[1,32,9,14]", "float32[20,32,3,3]", {"padding": 6, "dilation": 6}),
    make("float32[1,1024,28,28]", "float32[256,1024,3,3]", {"padding": 12, "dilation": 12}),
])
def test_a_tenth_of_the_draws_for_taps_is_valid(workload):
    space, rng = space_of(workload, TAPS), random.Random(0)
    draws = ({k.name: rng.choice(k.values) for k in space.knobs} for _ in range(1000))
    assert sum(map(space.allows, draws)) >= 100


@pytest.mark.parametrize(("size", "stride", "is_first"), [(19, 1, False), (17, 1, False), (23, 2, True), (28, 1, True)])
def test_a_spatial_pack_of_single_pixels_is_not_chosen_untuned(size, stride, is_first):
    weight, attrs = "float32[64,64,5,5]", {"padding": 2, "strides": stride}
    found = candidates(make(f"float32[1,64,{size},{size}]", weight, attrs), Target.parse("llvm -mcpu=znver4"))
    valid = [c for c in found if c.condition is None or c.condition.decide()]
    assert (max(valid, key=lambda c: c.plevel).implementation == SPATIAL) is is_first


@pytest.mark.parametrize("arch", ["znver4", "haswell"])
def test_the_sums_of_a_fallback_stay_in_registers(arch):
    workload = make("float32[1,16,28,28]", "float32[96,16,3,3]", {"padding": 1})
    lowered = lower(workload, Target.parse(f"llvm -mcpu={arch}"), SPATIAL)
    source = lowered.compile(checks=False).executable.mod.inspect_source("s")
    code = source[source.index("\nmain_compute_") : source.index("\nprepare_weight_compute_")]
    loop = code[code.rindex("\n.L", 0, code.index("vfmadd")) : code.rindex("vfmadd")]
    assert not re.findall(r"vfmadd.*\(%rsp", code)
    # A finished tile is turned by shuffles, which may take more registers than there are.
    assert not re.findall(r"vmov\w+\s+[^%\n]*\(%rsp[^%\n]*\), %[yz]mm", loop)


@pytest.mark.parametrize("name", [POINTWISE, TAPS])
def test_sums_are_nowhere_in_memory(name):
    lowered = lower(make("float32[1,64,12,14]", "float32[64,64,1,1]", {}), Target.parse("llvm -mcpu=znver4"), name)
    source = lowered.compile(checks=False).executable.mod.inspect_source("ll")
    assert "%tiles_local" in source
    assert not re.findall(r"(store|load|memset).*ptr [^,]*%tiles_local", source)


def test_a_tile_follows_the_multiply_adds_of_a_processor():
    workload = make("float32[1,512,28,28]", "float32[128,512,1,1]", {})
    rows = {}
    for arch in ("znver4", "znver5"):
        space = valid(workload, Target.parse(f"llvm -mcpu={arch}"))[POINTWISE]
        assert space is not None
        rows[arch] = space.fallback["rows"]
    # Thirteen rows load less, but have two rows of zeros: those cost more where a cycle multiplies one vector.
    assert rows == {"znver4": 8, "znver5": 13}


@pytest.mark.parametrize("attrs", [{"strides": 2}, {"strides": [1, 2]}, {"groups": 2}])
def test_winograd_is_only_where_it_can_be(attrs):
    channels = 32 // attrs.get("groups", 1)
    names = valid(make("float32[1,32,9,9]", f"float32[4,{channels},3,3]", attrs))
    assert not names.keys() & {F2, F4}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [F2, F4])
def test_winograd_of_groups(name, full):
    for attrs in ({"padding": 1, "groups": 2}, {"padding": [1, 2, 0, 3], "groups": 3, "dilation": [1, 2]}):
        work = make("float32[2,48,14,17]", f"float32[36,{48 // attrs['groups']},3,3]", attrs)
        space = space_of(work, name)
        assert all(36 // attrs["groups"] % config["rows"] == 0 for config in space.sample(random.Random(0), 9))
        for config in [space.fallback, *space.sample(random.Random(1), 4 if full else 1)]:
            check(work, name, config)


def test_a_symbolic_image_has_fewer_implementations_than_a_symbolic_batch():
    assert valid(make("float32[n,16,9,9]", "float32[4,16,3,3]", {})).keys() == FEW
    assert valid(make("float32[n,16,9,9]", "float32[4,16,1,1]", {})).keys() == {*GENERAL, POINTWISE}
    assert valid(make("float32[n,4,9,9]", "float32[4,1,3,3]", {"groups": 4})).keys() == {DIRECT, DEPTHWISE}
    for data in ("float32[1,16,h,9]", "float32[1,16,9,w]", "float32[n,16,h,w]"):
        assert valid(make(data, "float32[4,16,3,3]", {})).keys() == {DIRECT, SPATIAL}
    assert valid(make("float32[n,c,9,9]", "float32[4,16,3,3]", {})).keys() == {DIRECT}


def test_a_space_for_any_batch_has_the_configurations_of_each():
    for data, weight, attrs, names in CASES:
        symbolic = data.replace("[1,", "[n,").replace("[2,", "[n,")
        for name in names - {DIRECT, LAST, F2, F4, F4_LINES, *IN_BLOCKS}:
            whole, own = (space_of(make(d, weight, attrs), name) for d in (symbolic, data))
            assert whole.digest == own.digest


def extremes(space: ConfigSpace) -> Iterator[Config]:
    """For each end of each knob, a valid configuration that has it, if there is one."""
    seeded = random.Random(0)
    for knob in space.knobs:
        for end in {knob.values[0], knob.values[-1]}:
            held = [type(k)(k.name, [end], k.kind) if k.name == knob.name else k for k in space.knobs]
            yield from ConfigSpace(held, space.constraints).sample(seeded, 1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", TUNABLE)
def test_the_ends_of_every_knob(name, full):
    workload = make(*EXAMPLES[name])
    found = list(extremes(space_of(workload, name)))
    # One in ten by default: the others differ in one knob from one of them.
    for config in found if full else found[::10]:
        check(workload, name, config)


@settings(max_examples=min(8, settings.default.max_examples // 2))
@given(
    image=st.tuples(st.integers(5, 12), st.integers(5, 20)), channels=st.sampled_from([1, 2, 17, 32]),
    out_channels=st.sampled_from([1, 3, 16, 37]), kernel=st.sampled_from([(1, 1), (3, 3), (2, 5)]),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)), padding=st.tuples(*[st.integers(0, 2)] * 4),
    dilation=st.sampled_from([(1, 1), (2, 1)]), plain=st.booleans(), groups=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**32),
)
def test_any_configuration_of_any_shape(
    image, channels, out_channels, kernel, strides, padding, dilation, plain, groups, seed
):
    attrs = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    if plain:
        attrs |= {"strides": 1, "dilation": 1} | ({"padding": 0} if kernel == (1, 1) else {})
    workload = make(
        f"float32[1,{channels * groups},{image[0]},{image[1]}]",
        f"float32[{out_channels * groups},{channels},{kernel[0]},{kernel[1]}]",
        attrs,
        ("weight",) if seed % 2 else (),
    )
    rng = random.Random(seed)
    name, space = rng.choice([(n, s) for n, s in valid(workload).items() if s is not None] or [(DIRECT, None)])
    check(workload, name, space and space.sample(rng, 1)[0])


@pytest.mark.parametrize("width", [8, 16, 24])
def test_panels_of_blocked_images_are_of_one_group(width):
    weight = f"float32[{2 * width},16,3,3]"
    workload = make("float32[1,4,6,7,8]", weight, {"groups": 2, "padding": 1, "data_layout": "NCHW8c"})
    space = space_of(workload, BLOCKED_SPATIAL)
    assert all(width % wide == 0 for wide in space["width"].values)
    for wide in space["width"].values:
        blocks = max(b for b in space["o_block"].values if 2 * width // wide % b == 0)
        check(workload, BLOCKED_SPATIAL, {**space.fallback, "rows": 7, "width": wide, "o_block": blocks, "p_block": 2})


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_epilogue_joins_the_output(name):
    data, weight, attrs = EXAMPLES[name]
    out = str(make(data, weight, attrs).out_type)
    _, channels, _, _, *block = out.removesuffix("]").split(",")
    steps = [
        EpilogueStep("add", (None, Input("bias", f"float32[{','.join([channels, '1', '1', *block])}]", constant=True))),
        EpilogueStep("add", (Input("residual", out), None)),
        EpilogueStep("relu", (None,)),
    ]
    check(make(data, weight, attrs, epilogue=steps), name)


LAYERS = [
    ("float32[1,64,56,56]", "float32[64,64,3,3]", {"padding": 1}),
    ("float32[1,512,7,7]", "float32[512,512,3,3]", {"padding": 1}),
    ("float32[1,256,14,14]", "float32[1024,256,1,1]", {}),
    ("float32[1,3,224,224]", "float32[64,3,7,7]", {"strides": 2, "padding": 3}),
    ("float32[1,96,112,112]", "float32[96,1,3,3]", {"strides": 2, "padding": 1, "groups": 96}),
    ("float32[1,960,7,7]", "float32[960,1,3,3]", {"padding": 1, "groups": 960}),
    ("float32[1,16,14,14,16]", "float32[256,256,3,3]", {"padding": 1, "data_layout": "NCHW16c"}),
    ("float32[1,60,7,7,16]", "float32[960,1,3,3]", {"padding": 1, "groups": 960, "data_layout": "NCHW16c"}),
    ("float32[1,3,14,14,16]", "float32[48,1,3,3]", {"padding": 1, "groups": 48, "data_layout": "NCHW16c"}),
]


@pytest.mark.parametrize("spec", ["llvm -mcpu=znver5", "llvm -mcpu=haswell", "llvm -mcpu=neoverse-n1"])
@pytest.mark.parametrize(("data", "weight", "attrs"), LAYERS)
def test_spaces_are_worth_searching(data, weight, attrs, spec):
    for name, space in valid(make(data, weight, attrs), Target.parse(spec)).items():
        if space is None:
            continue
        assert (space.count(limit=1000) or 1000) >= 200, name
        assert space.contains(space.fallback), name
        assert ConfigSpace.from_json(space.to_json()) == space


UNFOLDED = [
    ("float32[1,512,14,14]", "float32[512,16,3,3]", {"padding": 1, "groups": 32}),
    ("float32[1,256,56,56]", "float32[256,8,3,3]", {"padding": 1, "strides": 2, "groups": 32}),
    ("float32[1,1024,7,7]", "float32[1024,32,3,3]", {"padding": 1, "groups": 32}),
    ("float32[1,240,28,28]", "float32[240,80,1,1]", {"groups": 3}),
    ("float32[1,3,640,640]", "float32[32,3,6,6]", {"padding": 2, "strides": 2}),
    ("float32[1,3,227,227]", "float32[96,3,11,11]", {"strides": 4}),
    ("float32[1,256,14,14]", "float32[256,256,3,3]", {"padding": 1}),
]


@pytest.mark.parametrize("spec", ["llvm -mcpu=znver5", "llvm -mcpu=haswell", "llvm -mcpu=neoverse-n1"])
def test_a_tenth_of_the_configurations_of_im2col_is_valid(spec):
    rng = random.Random(0)
    for data, weight, attrs in UNFOLDED:
        space = valid(make(data, weight, attrs), Target.parse(spec))[IM2COL]
        drawn = ({k.name: rng.choice(k.values) for k in space.knobs} for _ in range(4000))
        assert sum(map(space.allows, drawn)) >= 400, (data, weight, attrs)


@given(
    batch=st.integers(1, 3), channels=st.integers(1, 600), out_channels=st.integers(1, 600),
    height=st.integers(3, 230), width=st.integers(3, 230), kernel=st.sampled_from([1, 2, 3]),
    stride=st.integers(1, 3), padding=st.integers(0, 2), threads=st.integers(1, 64),
    spec=st.sampled_from(["-mcpu=znver4", "-mcpu=haswell", "", "-mcpu=neoverse-n1"]),
)
@example(
    batch=1, channels=8, out_channels=8, height=14, width=14, kernel=3, stride=1, padding=1, threads=1,
    spec="-mcpu=haswell",
)
@example(
    batch=1, channels=48, out_channels=8, height=113, width=20, kernel=3, stride=1, padding=1, threads=2,
    spec="-mcpu=znver4",
)
@example(
    batch=1, channels=16, out_channels=16, height=10, width=6, kernel=3, stride=1, padding=1, threads=1,
    spec="-mcpu=znver5",
)
@example(
    batch=11, channels=16, out_channels=16, height=3, width=3, kernel=3, stride=1, padding=0, threads=1,
    spec="-mcpu=znver5",
)
def test_every_shape_has_a_fallback(
    batch, channels, out_channels, height, width, kernel, stride, padding, threads, spec
):
    target = Target.parse(f"llvm {spec} -num-cores={threads}")
    attrs = {"strides": stride, "padding": padding}
    data = f"float32[{batch},{channels},{height},{width}]"
    ungrouped = make(data, f"float32[{out_channels},{channels},{kernel},{kernel}]", attrs)
    depthwise = make(data, f"float32[{channels},1,{kernel},{kernel}]", attrs | {"groups": channels})
    grouped = make(
        f"float32[{batch},{3 * channels},{height},{width}]",
        f"float32[{3 * out_channels},{channels},{kernel},{kernel}]", attrs | {"groups": 3},
    )
    made = [ungrouped, depthwise, grouped]
    for block in (8, 16):
        whole, out = (-(-c // block) * block for c in (channels, out_channels))
        blocks, layout = f"float32[{batch},{whole // block},{height},{width},{block}]", f"NCHW{block}c"
        blocked = attrs | {"data_layout": layout}
        made.append(make(data, f"float32[{out},{channels},{kernel},{kernel}]", attrs | {"out_layout": layout}))
        made.append(make(blocks, f"float32[{out},{whole},{kernel},{kernel}]", blocked))
        made.append(make(blocks, f"float32[{whole},1,{kernel},{kernel}]", blocked | {"groups": whole}))
        three = f"float32[{batch},{3 * whole // block},{height},{width},{block}]"
        made.append(make(three, f"float32[{3 * out},{whole},{kernel},{kernel}]", blocked | {"groups": 3}))
    for workload in made:
        for space in valid(workload, target).values():
            assert space is None or space.contains(space.fallback)


@pytest.mark.parametrize(
    ("data", "attrs"), [("4,16,32,32", {"padding": 1}), ("1,16,64,64", {"padding": 2, "dilation": 2})], ids=str
)
def test_products_of_several_images_read_vectors(data: str, attrs: dict[str, Any]) -> None:
    """Vectors of tiles that go over an image's last line, or its end."""
    types = {"data": f"float32[{data}]", "weight": "float32[32,16,3,3]"}
    work = Workload.make("conv2d", types, attrs, ["weight"])
    lowered = lower(work, Target.parse("llvm -mcpu=znver5 -num-cores=2"), F4)
    source = lowered.compile(checks=False).executable.mod.inspect_source("s")
    tasks = [code for code in re.split(r"\n\.?\w*lambda[\w.]*:\n", source) if code.count("vfmadd231ps") > 8]
    assert tasks
    for code in tasks:
        assert not re.search("vinsertps|vextractps", code)
