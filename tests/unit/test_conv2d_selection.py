"""The case that TVM tested its own selection with: a convolution with three implementations."""

from __future__ import annotations

import pytest

from strategy import op as registry
from strategy.condition import SpecializedCondition
from strategy.generic_func import generic_func
from strategy.op import all_ops, get_op, register_op, register_strategy
from strategy.op_strategy import Candidate, OpStrategy, candidates
from strategy.ops.conv2d.operator import Conv2DAttrs, conv2d_rel
from strategy.record import convert, to_json
from strategy.select import NO_RECORDS, History, Reason, SelectionError, select
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.workload import Workload

TARGET = Target.parse("llvm -mcpu=x86-64")


class Records:
    """A database that holds what a test says was measured."""

    def __init__(self) -> None:
        self.found: list[tuple[str, History]] = []

    def add(self, workload: Workload, implementation: str, mean_s: float, tile: int) -> None:
        record = History(
            implementation=implementation, config=Config({"tile": tile}), mean_s=mean_s,
            model="unknown", keys=("cpu",),
        )
        self.found.append((workload.key, record))

    def measured(self, workload, target, device):
        return []

    def instances(self, workload, target, device):
        return []

    def history(self, workload):
        return [h for key, h in self.found if key == workload.key]


@pytest.fixture
def conv2d_like(monkeypatch):
    """`conv_1` (10, tunable), `conv_2` (15, tunable), `conv_3` (20, for 16 input channels or more)."""
    all_ops()
    monkeypatch.setattr(registry, "_ops", dict(registry._ops))
    register_op("conv2d_like").describe("As conv2d.").set_num_inputs(2).add_argument(
        "data", "Tensor", "[n, c, h, w]"
    ).add_argument("weight", "Tensor", "[o, c, h, w]").set_attrs_type(Conv2DAttrs).add_type_rel(
        "Conv2D", conv2d_rel
    )

    def space(attrs, inputs, out_type, target):
        return ConfigSpace([Knob("tile", [1, 2, 4])])

    @generic_func
    def strategy(attrs, inputs, out_type, target):
        found = OpStrategy()
        found.add_implementation(len, len, name="conv_1", plevel=10, space=space)
        found.add_implementation(len, len, name="conv_2", plevel=15, space=space)
        with SpecializedCondition(inputs[0].shape[1] >= 16):
            found.add_implementation(len, len, name="conv_3", plevel=20)
        return found

    register_strategy("conv2d_like", strategy)

    def workload(channels: int | str) -> Workload:
        return Workload.make(
            "conv2d_like",
            {"data": f"float32[1,{channels},7,7]", "weight": f"float32[32,{channels},3,3]"},
        )

    return workload


def test_conditions_decide_which_are_valid(conv2d_like):
    for channels, valid in ((8, ["conv_1", "conv_2"]), (16, ["conv_1", "conv_2", "conv_3"])):
        found = select(conv2d_like(channels), TARGET, Records())
        assert sorted(r.implementation for r in found.rivals if r.valid) == valid


@pytest.mark.parametrize("policy", ["plevel", "tvm"])
def test_without_records_the_highest_valid_level_wins(conv2d_like, policy):
    for channels, winner in ((8, "conv_2"), (16, "conv_3")):
        found = select(conv2d_like(channels), TARGET, Records(), policy=policy)
        assert (found.implementation, found.reason) == (winner, Reason.PLEVEL)


def test_tvms_rule_takes_the_lowest_cost_on_record(conv2d_like):
    small, large = conv2d_like(8), conv2d_like(16)
    records = Records()

    def winners() -> list[tuple[str, object]]:
        found = [select(w, TARGET, records, policy="tvm") for w in (small, large)]
        return [(f.implementation, f.config.get("tile")) for f in found]

    records.add(small, "conv_1", 0.5, 1)
    records.add(large, "conv_1", 1.0, 2)
    assert winners() == [("conv_1", 1), ("conv_1", 2)]
    records.add(small, "conv_2", 0.2, 4)
    records.add(large, "conv_1", 1.2, 4)
    assert winners() == [("conv_2", 4), ("conv_1", 2)], "1.0 s, not 1.2 s"


def test_candidates_as_json_give_the_same_answer(conv2d_like):
    for channels in (8, 16):
        workload = conv2d_like(channels)
        sent = to_json(candidates(workload, TARGET))
        offered = convert(sent, list[Candidate])
        assert select(workload, TARGET, Records(), offered=offered) == select(workload, TARGET, Records())


def test_a_symbolic_dimension_excludes_what_it_leaves_open(conv2d_like):
    found = select(conv2d_like("c"), TARGET, Records(), policy="tvm")
    assert found.implementation == "conv_2"


def test_nothing_valid_names_operator_and_target(conv2d_like):
    get_op("conv2d_like").reset_attr("FTVMStrategy")

    @generic_func
    def strategy(attrs, inputs, out_type, target):
        found = OpStrategy()
        with SpecializedCondition(inputs[0].shape[1] >= 16):
            found.add_implementation(len, len, name="conv_3")
        return found

    register_strategy("conv2d_like", strategy)
    for policy in ("plevel", "tvm"):
        with pytest.raises(SelectionError, match=r"no implementation of conv2d_like is valid for .* on llvm"):
            select(conv2d_like(8), TARGET, Records(), policy=policy)


@pytest.mark.parametrize(
    ("size", "strides", "expected"),
    [(28, 1, "1x1"), (14, 1, "spatial_pack"), (28, 2, "spatial_pack"), (56, 2, "1x1"), (7, 1, "spatial_pack")],
)
def test_pixels_are_in_the_lanes_where_there_are_many(size, strides, expected):
    shapes = {"data": f"float32[1,1024,{size},{size}]", "weight": "float32[256,1024,1,1]"}
    workload = Workload.make("conv2d", shapes, {"strides": strides}, ["weight"])
    target = Target.parse("llvm -mcpu=znver4 -num-cores=2")
    assert select(workload, target, NO_RECORDS).implementation == f"conv2d_nchw_{expected}.cpu"


@pytest.mark.parametrize(
    ("channels", "size", "strides", "expected"),
    [
        (1280, 16, 1, "taps"), (2048, 28, 1, "taps"),
        (1024, 16, 1, "1x1"), (2048, 14, 1, "spatial_pack"), (2048, 32, 2, "1x1"),
    ],
)
def test_very_many_channels_of_a_pixel_are_divided_into_blocks(channels, size, strides, expected):
    shapes = {"data": f"float32[1,{channels},{size},{size}]", "weight": f"float32[512,{channels},1,1]"}
    workload = Workload.make("conv2d", shapes, {"strides": strides}, ["weight"])
    target = Target.parse("llvm -mcpu=emeraldrapids -num-cores=2")
    assert select(workload, target, NO_RECORDS).implementation == f"conv2d_nchw_{expected}.cpu"


@pytest.mark.parametrize(
    ("channels", "size", "out", "window", "strides", "l2", "expected"),
    [
        (512, 14, 512, 3, 2, 1 << 20, "taps"),  # a panel of 576 KB
        (512, 14, 512, 3, 2, 4 << 20, "spatial_pack"),
        (2048, 7, 512, 1, 1, 1 << 20, "spatial_pack"),  # of 256 KB
        (512, 28, 512, 3, 2, 1 << 20, "spatial_pack"),  # 196 pixels
        (512, 7, 512, 3, 1, 1 << 20, "winograd_2x2"),
    ],
)
def test_few_pixels_do_not_wait_for_panels_that_are_not_prefetched(channels, size, out, window, strides, l2, expected):
    shapes = {"data": f"float32[1,{channels},{size},{size}]", "weight": f"float32[{out},{channels},{window},{window}]"}
    workload = Workload.make("conv2d", shapes, {"strides": strides, "padding": window // 2}, ["weight"])
    target = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2, "l2_bytes": l2})
    assert select(workload, target, NO_RECORDS).implementation == f"conv2d_nchw_{expected}.cpu"


@pytest.mark.parametrize(
    ("channels", "size", "out", "attrs", "expected"),
    [
        (64, 56, 64, {}, "winograd_lines_4x4"), (128, 28, 128, {}, "winograd_4x4"),
        (256, 14, 256, {}, "dot_direct"),  # 9 MB of the transformed weight
        (512, 7, 512, {}, "dot_direct"),  # 49 pixels wait for the transformed weight
        (512, 14, 512, {}, "dot_direct"), (512, 28, 512, {}, "winograd_4x4"),  # 36 MB of it
        (16, 112, 32, {}, "winograd_lines_4x4"), (16, 112, 16, {}, "dot_direct"),  # fewer channels share the transforms
        (256, 28, 256, {"dilation": 2, "padding": 2}, "dot_direct"),
    ],
)
def test_bfloat16_is_convolved_in_float32_where_that_saves_more_than_its_instruction(
    channels, size, out, attrs, expected
):
    shapes = {"data": f"bfloat16[1,{channels},{size},{size}]", "weight": f"bfloat16[{out},{channels},3,3]"}
    workload = Workload.make("conv2d", shapes, {"padding": 1, **attrs}, ["weight"])
    target = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2, "l2_bytes": 1 << 20})
    assert select(workload, target, NO_RECORDS).implementation == f"conv2d_nchw_{expected}.cpu"


@pytest.mark.parametrize(("channels", "size", "expected"), [
    (4, 4, "im2col"), (8, 8, "spatial_pack"), (16, 28, "spatial_pack"), (4, 28, "lines"), (8, 28, "lines"),
])
def test_half_of_the_lanes_of_a_group_are_enough_unless_lines_fill_more(channels, size, expected):
    shapes = {"data": f"float32[1,{32 * channels},{size},{size}]", "weight": f"float32[{32 * channels},{channels},3,3]"}
    workload = Workload.make("conv2d", shapes, {"groups": 32, "padding": 1}, ["weight"])
    target = Target.parse("llvm -mcpu=znver4 -num-cores=2")
    assert select(workload, target, NO_RECORDS).implementation == f"conv2d_nchw_{expected}.cpu"


@pytest.mark.parametrize(
    ("channels", "size", "batch", "dilation", "expected"),
    [
        (512, 7, 1, 1, "winograd_2x2"),  # 49 pixels, and 36 MB of weights of F(4×4)
        (512, 5, 1, 1, "spatial_pack"),  # 25 pixels, and 16 MB of F(2×2)
        (128, 7, 1, 1, "winograd_2x2"),  # 2.3 MB of F(4×4)
        (96, 7, 1, 1, "winograd_4x4"),  # 1.3 MB
        (512, 7, 2, 1, "winograd_4x4"), (512, 14, 1, 1, "winograd_4x4"), (96, 14, 1, 1, "winograd_4x4"),
        (256, 28, 1, 1, "winograd_4x4"), (256, 28, 1, 2, "winograd_4x4"),
    ],
)
def test_few_pixels_do_not_wait_for_a_transformed_weight(
    channels, size, batch, dilation, expected
):
    shapes = {"data": f"float32[{batch},{channels},{size},{size}]", "weight": f"float32[{channels},{channels},3,3]"}
    workload = Workload.make("conv2d", shapes, {"padding": dilation, "dilation": dilation}, ["weight"])
    target = Target.parse({"kind": "llvm", "mcpu": "emeraldrapids", "num-cores": 2, "l2_bytes": 2 << 20})
    assert select(workload, target, NO_RECORDS).implementation == f"conv2d_nchw_{expected}.cpu"
    if dilation == 1:
        shapes["data"] = f"float32[{batch},{channels // 16},{size},{size},16]"
        blocked = Workload.make("conv2d", shapes, {"padding": 1, "data_layout": "NCHW16c"}, ["weight"])
        assert select(blocked, target, NO_RECORDS).implementation == f"conv2d_nchwc_{expected}.cpu"


@pytest.mark.parametrize(
    ("channels", "size", "out", "window", "ahead"),
    [(512, 7, 512, 3, True), (1024, 14, 256, 1, True), (256, 56, 64, 1, False), (128, 28, 128, 3, False)],
)
def test_weights_that_leave_the_second_level_come_ahead_of_blocked_images(channels, size, out, window, ahead):
    shapes = {"data": f"float32[1,{channels // 16},{size},{size},16]"}
    shapes["weight"] = f"float32[{out},{channels},{window},{window}]"
    attrs = {"padding": window // 2, "data_layout": "NCHW16c"}
    workload = Workload.make("conv2d", shapes, attrs, ["weight"])
    target = Target.parse({"kind": "llvm", "mcpu": "emeraldrapids", "num-cores": 2, "l2_bytes": 2 << 20})
    (found,) = (c for c in candidates(workload, target) if c.implementation == "conv2d_nchwc_spatial_pack.cpu")
    assert found.fallback["ahead"] is ahead


@pytest.mark.parametrize(
    ("channels", "size", "out", "expected"),
    [
        (160, 80, 32, "winograd_lines_4x4"), (64, 56, 64, "winograd_lines_4x4"), (256, 59, 24, "winograd_lines_4x4"),
        (128, 28, 128, "winograd_4x4"),  # 2.3 MB of weights; what lies between the stages stays in the second levels
        (128, 112, 128, "winograd_lines_4x4"),
        (512, 28, 512, "winograd_4x4"),  # 36 MB of weights for each line of 7 tiles
        (16, 14, 16, "winograd_4x4"),  # no line of 16 pixels
        (64, 56, 12, "lines"),  # output channels of less than a vector
    ],
)
def test_tasks_take_lines_of_tiles_where_the_weight_is_read_soon(channels, size, out, expected):
    shapes = {"data": f"float32[1,{channels},{size},{size}]", "weight": f"float32[{out},{channels},3,3]"}
    workload = Workload.make("conv2d", shapes, {"padding": 1}, ["weight"])
    target = Target.parse({"kind": "llvm", "mcpu": "emeraldrapids", "num-cores": 2, "l2_bytes": 2 << 20})
    assert select(workload, target, NO_RECORDS).implementation == f"conv2d_nchw_{expected}.cpu"


@pytest.mark.parametrize(("channels", "rows", "o_block"), [(512, 13, 10), (256, 13, 10), (14, 14, 1)])
def test_a_task_has_several_tiles_of_a_pointwise_convolution(channels, rows, o_block):
    """The best tile of 512 channels has 14 of them, but 37 such tiles cannot be shared out."""
    shapes = {"data": "float32[1,256,28,28]", "weight": f"float32[{channels},256,1,1]"}
    workload = Workload.make("conv2d", shapes, constants=["weight"])
    target = Target.parse("llvm -mcpu=emeraldrapids -num-cores=2")
    (found,) = (c for c in candidates(workload, target) if c.implementation == "conv2d_nchw_1x1.cpu")
    assert (found.fallback["rows"], found.fallback["o_block"]) == (rows, o_block)


@pytest.mark.parametrize(
    ("channels", "size", "out", "expected"),
    [
        (64, 28, 256, {"inner": "channels", "ahead": True, "copied": False, "width": 32}),
        # Lines of 14 panels; of ten tiles five make two tasks of each of seven parts.
        (64, 56, 256, {"inner": "pixels", "copied": True, "rows": 13, "width": 32, "p_block": 14, "o_block": 10}),
        (256, 56, 128, {"inner": "pixels", "copied": True, "rows": 13, "width": 32, "p_block": 14, "o_block": 5}),
        (128, 40, 128, {"inner": "channels", "ahead": True, "copied": False}),  # stays in the second level
        (256, 56, 64, {"inner": "channels", "ahead": True, "copied": False, "width": 32}),  # leaves the first level
        (512, 32, 128, {"inner": "channels", "ahead": False, "copied": True}),  # rows are whole pages apart
        (192, 35, 64, {"inner": "channels", "ahead": False, "copied": True}),  # vectors cross lines
        (320, 32, 640, {"copied": True, "rows": 13, "o_block": 25}),  # of 46 tiles of the best, two would share a copy
        (320, 64, 320, {"inner": "pixels", "copied": True, "rows": 13, "o_block": 25, "p_block": 16}),  # 25 tiles
        # Of 81 tiles of nine rows three would, and of 91 seven, but of 56 that are less wide 14.
        (728, 19, 728, {"copied": True, "width": 32, "rows": 13, "o_block": 14, "p_block": 4, "inner": "pixels"}),
        (1024, 19, 1024, {"copied": True, "width": 48, "rows": 8, "p_block": 2, "inner": "pixels"}),
        (512, 38, 512, {"copied": True, "p_block": 1, "inner": "channels"}),  # the weight stays in the second level
        (64, 160, 32, {"inner": "channels", "ahead": True, "copied": False, "rows": 8}),
        (96, 54, 16, {"inner": "channels", "ahead": False, "copied": False}),  # two tiles do not pay for either
        (24, 56, 144, {"inner": "channels", "ahead": False, "copied": False}),
        (16, 112, 96, {"inner": "pixels", "ahead": False, "copied": False}),  # short sums, written to memory
        (48, 112, 192, {"inner": "pixels", "ahead": False, "copied": False}),
        (64, 112, 128, {"inner": "pixels", "copied": True, "p_block": 14}),
        (32, 75, 192, {"inner": "channels", "ahead": False, "copied": False}),
    ],
)
def test_panels_of_a_pointwise_convolution_are_prefetched_copied_or_written_in_line(channels, size, out, expected):
    shapes = {"data": f"float32[1,{channels},{size},{size}]", "weight": f"float32[{out},{channels},1,1]"}
    workload = Workload.make("conv2d", shapes, constants=["weight"])
    sizes = {"l1d_bytes": 48 << 10, "l2_bytes": 2 << 20}
    target = Target.parse({"kind": "llvm", "mcpu": "emeraldrapids", "num-cores": 2} | sizes)
    (found,) = (c for c in candidates(workload, target) if c.implementation == "conv2d_nchw_1x1.cpu")
    assert {name: found.fallback[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("channels", "size", "out", "expected"),
    [
        (64, 56, 256, {"inner": "channels", "ahead": True, "copied": False, "width": 48}),
        (256, 56, 128, {"inner": "channels", "ahead": True, "copied": False}),
        (128, 64, 256, {"inner": "pixels", "ahead": False, "copied": True}),  # rows are whole pages apart
        (256, 54, 128, {"inner": "channels", "ahead": False, "copied": True}),  # vectors cross lines
    ],
)
def test_panels_of_a_pointwise_convolution_come_from_a_near_last_level(channels, size, out, expected):
    shapes = {"data": f"float32[1,{channels},{size},{size}]", "weight": f"float32[{out},{channels},1,1]"}
    workload = Workload.make("conv2d", shapes, constants=["weight"])
    sizes = {"l1d_bytes": 48 << 10, "l2_bytes": 1 << 20}
    target = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2} | sizes)
    (found,) = (c for c in candidates(workload, target) if c.implementation == "conv2d_nchw_1x1.cpu")
    assert {name: found.fallback[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("channels", "size", "out", "window", "expected"),
    [
        (128, 56, 128, 3, {"by_task": True, "o_block": 4, "p_block": 8}),  # of two lines, as seven of four are uneven
        (64, 112, 64, 3, {"by_task": True, "o_block": 2, "p_block": 14}),
        (128, 64, 256, 3, {"by_task": False, "o_block": 1}),  # the weight leaves no half of the second level
        (64, 112, 64, 7, {"by_task": False, "o_block": 1}),  # tasks of few lines would pad most of them again
    ],
)
def test_tasks_pad_the_lines_of_a_large_image(channels, size, out, window, expected):
    shapes = {"data": f"float32[1,{channels},{size},{size}]", "weight": f"float32[{out},{channels},{window},{window}]"}
    work = Workload.make("conv2d", shapes, {"strides": 2, "padding": window // 2}, ["weight"])
    target = Target.parse({"kind": "llvm", "mcpu": "emeraldrapids", "num-cores": 2, "l2_bytes": 2 << 20})
    (found,) = (c for c in candidates(work, target) if c.implementation == "conv2d_nchw_spatial_pack.cpu")
    assert {name: found.fallback[name] for name in expected} == expected


def test_small_images_are_padded_before_all_tasks():
    shapes = {"data": "float32[1,64,56,56]", "weight": "float32[64,64,3,3]"}
    work = Workload.make("conv2d", shapes, {"padding": 1}, ["weight"])
    (found,) = (c for c in candidates(work, TARGET) if c.implementation == "conv2d_nchw_spatial_pack.cpu")
    assert "by_task" not in found.fallback


@pytest.mark.parametrize(("size", "rows"), [(7, 7), (14, 14)])
def test_tiles_of_a_spatial_pack_cover_a_small_image(size, rows):
    shapes = {"data": f"float32[1,512,{size},{size}]", "weight": "float32[2048,512,1,1]"}
    target = Target.parse("llvm -mcpu=emeraldrapids -num-cores=2")
    found = select(Workload.make("conv2d", shapes, constants=["weight"]), target, NO_RECORDS)
    assert (found.implementation, found.config["rows"]) == ("conv2d_nchw_spatial_pack.cpu", rows)
    assert found.config["ahead"]  # the weight leaves no half of the second level


@pytest.mark.parametrize(
    ("channels", "size", "out", "window", "expected"),
    [
        (48, 80, 96, 3, (10, 32)),
        (32, 112, 64, 3, (8, 32)),
        (80, 20, 160, 3, (10, 32)),
        (192, 10, 192, 3, (5, 48)),  # four vectors load less for a multiply-add, but more of them from the second level
        (3, 224, 64, 7, (7, 32)),  # the numbers of eight pixels for two steps of the window leave too few registers
    ],
)
def test_tiles_of_a_spatial_pack_leave_registers_to_the_pixels_of_a_step(channels, size, out, window, expected):
    shapes = {"data": f"float32[1,{channels},{size},{size}]", "weight": f"float32[{out},{channels},{window},{window}]"}
    work = Workload.make("conv2d", shapes, {"strides": 2, "padding": window // 2}, ["weight"])
    target = Target.parse("llvm -mcpu=emeraldrapids -num-cores=2")
    (found,) = (c for c in candidates(work, target) if c.implementation == "conv2d_nchw_spatial_pack.cpu")
    assert (found.fallback["rows"], found.fallback["width"]) == expected


@pytest.mark.parametrize(
    ("inputs", "attrs", "implementation", "expected"),
    [
        ("float32[1,64,9,9] float32[64,1,9,9]", {"groups": 64, "padding": 4}, "depthwise_conv2d_nchw.cpu", "unrolled"),
        ("float32[1,64,32,32] float32[64,1,31,31]", {"groups": 64, "padding": 15}, "depthwise_conv2d_nchw.cpu", "rows"),
        ("float32[1,64,1,4096] float32[64,1,1,2048]", {"groups": 64}, "depthwise_conv2d_nchw.cpu", "loops"),
        (
            "float32[1,28,28,64] float32[31,31,1,64]",
            {"groups": 64, "padding": 15, "data_layout": "NHWC", "kernel_layout": "HWIO"},
            "depthwise_conv2d_nhwc.cpu", "rows",
        ),
        (
            "float32[1,8,28,28,8] float32[64,1,31,31]", {"groups": 64, "padding": 15, "data_layout": "NCHW8c"},
            "depthwise_conv2d_nchwc.cpu", "rows",
        ),
        ("float32[1,16,1,4096] float32[64,16,1,1024]", {}, "conv2d_nchw_spatial_pack.cpu", "loops"),
        ("float32[1,1,1,4096] float32[16,1,1,400]", {}, "conv2d_nchw_lines.cpu", "loops"),
        (
            "bfloat16[1,1,4096,16] bfloat16[64,1,1024,16]", {"data_layout": "NHWC", "kernel_layout": "OHWI"},
            "conv2d_nhwc_dot.cpu", "loops",
        ),
    ],
)
def test_a_large_window_is_not_unrolled(inputs, attrs, implementation, expected):
    """LLVM takes minutes for code of some ten thousand products."""
    workload = Workload.make("conv2d", dict(zip(("data", "weight"), inputs.split(), strict=True)), attrs, ["weight"])
    target = Target.parse("llvm -mcpu=znver4 -num-cores=2")
    (found,) = (c for c in candidates(workload, target) if c.implementation == implementation)
    assert found.fallback["window"] == expected


def test_a_long_row_of_a_window_is_not_unrolled_in_place():
    shapes = {"data": "float32[1,1,1,4351]", "weight": "float32[32,1,1,256]"}
    target = Target.parse("llvm -mcpu=znver4 -num-cores=2")
    found = candidates(Workload.make("conv2d", shapes, constants=["weight"]), target)
    (fallback,) = (c.fallback for c in found if c.implementation == "conv2d_nchw_im2col.cpu")
    assert (fallback["in_place"], fallback["unroll"]) == (True, 1)
