"""One function for every size: schedules with symbolic dimensions, judged by NumPy."""

from __future__ import annotations

import random

import pytest

from strategy.compile.artefact import Artefact
from strategy.compile.lower import InstantiationError, lower
from strategy.op_strategy import find_implementation
from strategy.target import Target
from strategy.workload import Workload
from strategy.workload_text import parse_workload
from tests.kernel.judge import judge
from workers.reference import random_inputs

TARGET = Target.parse("cpu").with_threads(2)
LAYER_NORM = {"data": "float32[m,100]", "gamma": "float32[100]", "beta": "float32[100]"}
CASES = [
    ("gelu", {"data": "float32[m,77]"}, {}, "broadcast.cpu"),
    ("add", {"lhs": "float32[m,3,40]", "rhs": "float32[3,1]"}, {}, "broadcast.cpu"),
    ("transpose", {"data": "float32[m,6,40]"}, {"axes": [0, 2, 1]}, "injective.cpu"),
    ("softmax", {"data": "float32[m,100]"}, {}, "softmax_row.cpu"),
    ("softmax", {"data": "float32[m,4,33]"}, {}, "softmax_row.cpu"),
    ("log_softmax", {"data": "float64[m,100]"}, {}, "log_softmax_row.cpu"),
    ("layer_norm", LAYER_NORM, {}, "layer_norm_row.cpu"),
    ("sum", {"data": "float32[m,3,50]"}, {"axis": [1, 2]}, "reduce_row.cpu"),
    ("mean", {"data": "float32[m,3,64]"}, {"axis": [-1], "keepdims": True}, "reduce_row.cpu"),
    ("sum", {"data": "float32[m,4,33]"}, {"axis": [2]}, "reduce_row.cpu"),
    ("max", {"data": "int32[m,50]"}, {"axis": [1]}, "reduce_row.cpu"),
    ("sum", {"data": "float32[m,50]"}, {"axis": [0]}, "reduce.cpu"),
    ("topk", {"data": "float32[m,40,w]"}, {"k": 3, "axis": 1, "ret_type": "values"}, "topk_scan.cpu"),
    ("argsort", {"data": "float32[m,w,3]"}, {"axis": 1, "is_ascend": False}, "argsort_radix.cpu"),
    ("dense", {"data": "float32[m,40]", "weight": "float32[33,40]"}, {}, "dense_pack.cpu"),
    ("matmul_nbits", {"data": "float32[m,32]", "weight": "uint8[33,1,16]", "scales": "float32[33,1]"},
     {"accuracy_level": 4}, "matmul_nbits_panel.cpu"),
    ("grouped_dense", {"data": "float32[m,40]", "weight": "float32[5,33,40]", "ends": "int32[5]"}, {},
     "grouped_dense_pack.cpu"),
    ("batch_matmul", {"x": "float32[m,9,20]", "y": "float32[m,17,20]"}, {}, "batch_matmul_pack.cpu"),
    ("batch_matmul", {"x": "float32[m,9,20]", "y": "float32[1,20,32]"}, {"transpose_b": False},
     "batch_matmul_pack.cpu"),
    *(("conv2d", {"data": "float32[m,5,9,11]", "weight": "float32[7,5,3,2]"},
       {"strides": [2, 1], "padding": [1, 0, 2, 1]}, f"conv2d_nchw_{name}.cpu") for name in ("im2col", "spatial_pack")),
    *(("conv2d", {"data": "float32[m,16,7,5]", "weight": "float32[20,16,1,1]"}, {}, f"conv2d_nchw_{name}.cpu")
      for name in ("im2col", "spatial_pack", "1x1")),
    ("conv2d", {"data": "float32[m,5,9,7]", "weight": "float32[3,5,1,1]"}, {"strides": 2, "padding": 1},
     "conv2d_nchw_spatial_pack.cpu"),
    ("conv2d", {"data": "float64[m,6,9,9]", "weight": "float64[12,1,3,3]"}, {"groups": 6, "padding": 1},
     "depthwise_conv2d_nchw.cpu"),
    ("conv2d", {"data": "float32[m,5,h,w]", "weight": "float32[7,5,3,2]"},
     {"strides": [2, 1], "padding": [1, 0, 2, 1]}, "conv2d_nchw_spatial_pack.cpu"),
    ("conv2d", {"data": "float32[1,16,h,w]", "weight": "float32[20,16,3,3]"}, {"padding": 1},
     "conv2d_nchw_spatial_pack.cpu"),
    ("conv2d", {"data": "float32[m,3,w,6]", "weight": "float32[8,3,3,3]"}, {}, "conv2d_nchw_spatial_pack.cpu"),
    ("conv2d", {"data": "float32[2,6,9,w]", "weight": "float32[33,6,1,1]"}, {"strides": 2, "padding": 1},
     "conv2d_nchw_spatial_pack.cpu"),
    ("conv2d", {"data": "float64[2,3,h,11]", "weight": "float64[3,3,5,5]"}, {"dilation": 2, "padding": 4},
     "conv2d_nchw_spatial_pack.cpu"),
    ("attention", {"query": "float32[2,4,h,8]", "key": "float32[2,2,w,8]", "value": "float32[2,2,w,8]"}, {},
     "attention_tile.cpu"),
    ("attention_bias", {"query": "float32[m,4,1,8]", "key": "float32[m,2,w,8]", "value": "float32[m,2,w,16]",
     "bias": "bool[w]"}, {}, "attention_row.cpu"),
]


def kind(case: tuple[str, dict[str, str], dict[str, object], str]) -> tuple[object, ...]:
    """The operator, the implementation, and the symbolic dimensions."""
    op, inputs, _, implementation = case
    shapes = "".join(text.partition("[")[2] for text in inputs.values())
    return op, implementation, [name for name in "mhw" if name in shapes]


# The first of each kind; the others are larger samples.
SAMPLED = [
    pytest.param(*case, marks=[pytest.mark.full] if any(kind(c) == kind(case) for c in CASES[:at]) else [])
    for at, case in enumerate(CASES)
]
SIZES = {"m": (1, 2, 7, 64, 131), "h": (3, 8, 1, 30, 13), "w": (40, 3, 5, 17, 64)}


def sizes_of(workload: Workload) -> list[dict[str, int]]:
    """Sizes of the symbolic dimensions, awkward ones among them."""
    names = {str(d) for i in workload.inputs for d in i.tensor.shape if not d.is_constant}
    return [{name: SIZES[name][turn] for name in names} for turn in range(len(SIZES["m"]))]


def check(artefact: Artefact, workload: Workload, seed: int) -> None:
    judge(artefact, workload, random_inputs(workload, seed))


@pytest.mark.sample(6)
@pytest.mark.parametrize(("op", "inputs", "attrs", "implementation"), SAMPLED)
def test_right_for_every_size(op, inputs, attrs, implementation, full):
    workload = Workload.make(op, inputs, attrs)
    space = find_implementation(workload, TARGET, implementation).space
    configs = [None]
    if space is not None and (full or op in ("softmax", "sum", "conv2d")):
        found = space(workload.attr_node, workload.input_types, workload.out_type, TARGET)
        configs += found.sample(random.Random(0), 1)
    for config in configs:
        lowered = lower(workload, TARGET, implementation, config)
        if config is None:
            text = lowered.module.script()
            assert "T.vectorized" in text or op == "argsort"  # a sort by digits moves one number at a time
            assert "T.parallel" in text
        artefact = lowered.compile(checks=False)
        for seed, sizes in enumerate(sizes_of(workload)):
            check(artefact, workload.bind(sizes), seed)


def test_a_product_of_batches_with_an_epilogue_takes_every_size():
    product = 'batch_matmul(x=float32[m,w,8],y=float32[m,8,3]){"transpose_b":false}'
    workload = parse_workload(f"{product}+multiply(.,multiply0.rhs=float32[])+add(.,add1.rhs=float32[m,w,3])")
    artefact = lower(workload, TARGET, "batch_matmul.cpu", None).compile(checks=False)
    for seed, sizes in enumerate(sizes_of(workload)):
        check(artefact, workload.bind(sizes), seed)


def test_attention_of_a_symbolic_depth_needs_a_scale():
    inputs = {"query": "float32[m,m,3,m]", "key": "float32[m,m,5,m]", "value": "float32[m,m,5,8]"}
    with pytest.raises(InstantiationError, match="depth 'm' is symbolic: give a constant, or a scale"):
        lower(Workload.make("attention", inputs), TARGET, "attention.cpu")
    workload = Workload.make("attention", inputs, {"scale": 0.5})
    artefact = lower(workload, TARGET, "attention.cpu").compile(checks=False)
    for m in (1, 7):
        check(artefact, workload.bind({"m": m}), m)


@pytest.mark.parametrize(("op", "inputs", "attrs", "implementation"), [c for c in CASES if "row" in c[3]])
def test_what_is_best_for_some_size_is_a_configuration_for_all(op, inputs, attrs, implementation):
    def space(workload: Workload):
        found = find_implementation(workload, TARGET, implementation)
        return found.space(workload.attr_node, workload.input_types, workload.out_type, TARGET)

    workload = Workload.make(op, inputs, attrs)
    whole = space(workload)
    for m in (1, 48, 131):
        for config in space(workload.bind({"m": m})).sample(random.Random(m), 10):
            assert whole.contains(config) or config["tasks"] > 64 or config.get("parts", 1) > 1


@pytest.mark.parametrize(("op", "data", "attrs"), [
    ("sum", "float32[m]", {}), ("prod", "int32[m,3]", {}), ("sum", "bfloat16[3,m]", {"axis": [1]}),
    ("mean", "float64[m]", {}), ("all", "bool[m]", {}),
])
def test_of_no_elements_at_run_time(op, data, attrs):
    workload = Workload.make(op, {"data": data}, attrs)
    artefact = lower(workload, TARGET, "reduce.cpu").compile(checks=False)
    for m in (0, 5):
        bound = workload.bind({"m": m})
        judge(artefact, bound, random_inputs(bound, 0))
