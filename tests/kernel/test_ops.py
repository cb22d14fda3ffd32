"""Implementations of operators, compiled and judged by NumPy as a worker judges them.

`test_every_type.py` runs the examples of all operators; here is what else an operator has to stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strategy.compile.lower import lower
from strategy.op import TOpPattern, TypeRelationError, all_ops, get_op
from strategy.op_strategy import evaluate
from strategy.signature import Role
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload
from strategy.workload_text import parse_workload
from workers.reference import numpy_dtype, random_inputs, reference, tolerances

TARGET = Target.parse("cpu").with_threads(2)
BIAS = EpilogueStep("add", (None, Input("bias", "float32[4,1,1]", constant=True)))
RELU = EpilogueStep("relu", (None,))


def check(
    workload: Workload, implementation: str | None = None, given: Mapping[str, Any] | None = None
) -> set[str]:
    """Run all implementations, or the named one, on poisoned outputs; the names of those run."""
    import tvm

    inputs = {**random_inputs(workload, 7), **(given or {})}
    expected = reference(workload, inputs)
    allowed = tolerances(workload, inputs, expected)
    ran = set()
    for condition, found in evaluate(workload, TARGET):
        if implementation not in (None, found.name) or (condition and not condition.decide()):
            continue
        artefact = lower(workload, TARGET, found).compile(checks=False)
        arguments = artefact.arguments
        tensors = [
            artefact.prepare(a, tvm.runtime.tensor(inputs[a.name]))
            for a in arguments
            if a.role is not Role.OUTPUT
        ]
        outputs = [
            tvm.runtime.tensor(np.full(a.tensor.concrete_shape, 77).astype(numpy_dtype(a.tensor.dtype)))
            for a in arguments
            if a.role is Role.OUTPUT
        ]
        artefact.main(*tensors, *outputs)
        for got, right, tolerance in zip(outputs, expected, allowed, strict=True):
            value = got.numpy()
            assert value.shape == np.shape(right), found.name
            off = np.abs(value.astype(np.float64) - np.asarray(right, np.float64))
            assert np.all(off <= tolerance), f"{workload} {found.name}: off by {off.max():.3g}"
        ran.add(found.name)
    return ran


def make(op, inputs, attrs=None, constants=(), epilogue=()) -> Workload:
    return Workload.make(op, inputs, attrs or {}, constants, epilogue)


CASES = [
    ("negative", {"data": "float32[1]"}, {}),
    ("negative", {"data": "int8[3,5]"}, {}),
    ("exp", {"data": "float32[]"}, {}),
    ("exp", {"data": "float64[300,77]"}, {}),
    ("sigmoid", {"data": "float32[13,129]"}, {}),
    ("tanh", {"data": "float64[13,129]"}, {}),
    ("relu", {"data": "int32[200,300]"}, {}),
    ("relu", {"data": "float16[200,3]"}, {}),
    ("ones_like", {"data": "int64[3,4]"}, {}),
    ("zeros_like", {"data": "bool[70]"}, {}),
    ("cast", {"data": "float32[3,40]"}, {"dtype": "int32"}),
    ("cast", {"data": "bool[3,40]"}, {"dtype": "float64"}),
    ("add", {"lhs": "float32[4,1,5]", "rhs": "float32[3,1]"}, {}),
    ("add", {"lhs": "uint8[37]", "rhs": "uint8[1]"}, {}),
    ("subtract", {"lhs": "int32[300,77]", "rhs": "int32[]"}, {}),
    ("multiply", {"lhs": "float64[77]", "rhs": "float64[300,77]"}, {}),
    ("divide", {"lhs": "float32[]", "rhs": "float32[3]"}, {}),
    ("maximum", {"lhs": "float32[300,77]", "rhs": "float32[77]"}, {}),
    ("equal", {"lhs": "int32[5,7]", "rhs": "int32[7]"}, {}),
    ("equal", {"lhs": "bool[5,67]", "rhs": "bool[67]"}, {}),
    ("not_equal", {"lhs": "bool[5,64]", "rhs": "bool[5,64]"}, {}),
    ("greater", {"lhs": "float32[50,70]", "rhs": "float32[70]"}, {}),
    *((op, {"data": "float32[13,129]"}, {}) for op in ("erf", "gelu")),
    *((op, {"data": "float64[13,9]"}, {}) for op in ("erf", "gelu")),
    ("gelu", {"data": "bfloat16[13,9]"}, {}),
    ("abs", {"data": "float32[13,129]"}, {}),
    ("abs", {"data": "int16[7]"}, {}),
    ("clip", {"data": "float32[130,7]"}, {"a_min": -0.25, "a_max": 0.5}),
    ("clip", {"data": "float32[130,7]"}, {"a_min": -1e30, "a_max": 3.4028234663852886e38}),
    ("clip", {"data": "int8[130]"}, {"a_min": -3, "a_max": 4}),
    *((op, {"lhs": "int8[50,7]", "rhs": "int8[7]"}, {}) for op in ("not_equal", "less", "less_equal", "greater_equal")),
    ("minimum", {"lhs": "float64[5,1]", "rhs": "float64[7]"}, {}),
    ("bias_add", {"data": "float32[2,5,7]", "bias": "float32[5]"}, {}),
    ("bias_add", {"data": "int32[2,5,7]", "bias": "int32[7]"}, {"axis": -1}),
    ("where", {"condition": "bool[5,1]", "x": "float32[5,70]", "y": "float32[70]"}, {}),
    ("collapse_sum_like", {"data": "float32[4,5,6]", "collapse_type": "float32[5,1]"}, {}),
    ("collapse_sum_like", {"data": "float32[4,5]", "collapse_type": "float32[4,5]"}, {}),
    ("collapse_sum_like", {"data": "int32[4,5]", "collapse_type": "int32[]"}, {}),
    ("sum", {"data": "float32[8,3,50]"}, {"axis": [1]}),
    ("sum", {"data": "float64[80,300]"}, {}),
    ("sum", {"data": "int8[80,300]"}, {"axis": [0]}),
    ("sum", {"data": "int32[5,40,3]"}, {"axis": [1]}),
    ("mean", {"data": "float32[80,300]"}, {"axis": [-1], "keepdims": True}),
    ("max", {"data": "int32[80,30,3]"}, {"axis": [0, 2]}),
    ("max", {"data": "float32[7]"}, {}),
    ("min", {"data": "float64[8,3,50]"}, {"axis": [0, 2], "keepdims": True}),
    ("prod", {"data": "float32[8,6]"}, {"axis": [1]}),
    ("prod", {"data": "int64[4,3]"}, {}),
    ("argmax", {"data": "float32[8,3,50]"}, {"axis": [1]}),
    ("argmax", {"data": "int32[8,30]"}, {"axis": [-1], "keepdims": True, "dtype": "int64"}),
    ("argmin", {"data": "float64[4,5,6]"}, {"axis": [0, 2]}),
    ("argmin", {"data": "uint8[400]"}, {}),
    ("reshape", {"data": "float32[4,6]"}, {"newshape": [3, -1]}),
    ("reshape_like", {"data": "int8[4,6]", "shape_like": "float32[24]"}, {}),
    ("expand_dims", {"data": "float32[4,6]"}, {"axis": [0, -1]}),
    ("squeeze", {"data": "float32[1,6,1]"}, {}),
    ("squeeze", {"data": "bool[1,6,1]"}, {"axis": [-1]}),
    ("strided_slice", {"data": "float32[4,60]"}, {"begin": [1, -3], "end": [9, 2], "strides": [1, -4]}),
    ("strided_slice", {"data": "int8[4,60]"}, {"begin": [2], "end": [50], "axes": [-1]}),
    ("strided_slice_backward", {"grad": "float32[3,14]", "data": "float32[4,60]"},
     {"begin": [1, -3], "end": [9, 2], "strides": [1, -4]}),
    ("take", {"data": "float32[9,20]", "indices": "int32[3,2]"}, {"axis": 0}),
    ("take", {"data": "int8[9,20]", "indices": "int64[3]"}, {"axis": -1, "mode": "wrap"}),
    ("take", {"data": "bool[9,20]", "indices": "int8[]"}, {}),
    ("take_backward", {"grad": "float32[3,2,20]", "indices": "int32[3,2]", "data": "float32[9,20]"}, {"axis": 0}),
    ("take_backward", {"grad": "float16[7]", "indices": "int64[7]", "data": "float16[3,4]"}, {"mode": "wrap"}),
    ("pad", {"data": "float32[]"}, {"pad_width": []}),
    ("transpose", {"data": "float32[4,6,33]"}, {"axes": [2, 0, 1]}),
    ("transpose", {"data": "int16[40,60]"}, {}),
    ("concatenate", {"data.0": "float32[4,6]", "data.1": "float32[4,5]", "data.2": "float32[4,1]"}, {"axis": 1}),
    ("split", {"data": "float32[4,26]"}, {"axis": 1, "indices": [3, 20]}),
    ("cumsum", {"data": "float32[4,26]"}, {"axis": 1}),
    ("cumsum", {"data": "int8[4,26]"}, {"axis": 0, "dtype": "int64", "exclusive": True}),
    ("cumsum", {"data": "float64[3,2,4]"}, {"axis": -2}),
    ("cumsum", {"data": "int32[5,40]"}, {"axis": 0}),
    ("cumprod", {"data": "int64[12,7]"}, {"axis": 1, "exclusive": True}),
    ("cumprod", {"data": "float32[4,26]"}, {"exclusive": True}),
    ("cumprod", {"data": "float32[4,26]"}, {"dtype": "float64"}),
    ("topk", {"data": "float32[4,26]"}, {"k": 3}),
    ("topk", {"data": "float64[4,26,3]"}, {"k": 26, "axis": 1, "is_ascend": True, "dtype": "int64"}),
    ("topk", {"data": "int32[5,40]"}, {"k": 9, "axis": -1, "ret_type": "indices"}),
    ("topk", {"data": "int32[5,40]"}, {"k": 2, "axis": 0, "ret_type": "values"}),
    ("softmax", {"data": "float32[40,126]"}, {}),
    ("softmax", {"data": "float64[4,6,5]"}, {"axis": 1}),
    ("softmax_bias", {"data": "bfloat16[5,190]", "bias": "bool[5,190]"}, {"scale": 0.5}),
    ("softmax_bias", {"data": "float32[3,4,5,16]", "bias": "float32[3,1,5,16]"}, {"axis": 1}),
    ("softmax_bias", {"data": "float64[3,2,6,21]", "bias": "bool[2,6,1]"}, {"axis": 2, "scale": 0.5}),
    ("softmax_bias", {"data": "float32[3,4,5,7]", "bias": "float32[5,1]"}, {"axis": 1}),
    ("log_softmax", {"data": "float32[40,126]"}, {}),
    ("log_softmax", {"data": "float16[4,6,5]"}, {"axis": 1}),
    ("layer_norm", {"data": "float32[4,6,75]", "gamma": "float32[75]", "beta": "float32[75]"}, {}),
    ("layer_norm", {"data": "float64[4,6,5]", "gamma": "float64[6]", "beta": "float64[6]"}, {"axis": 1}),
    ("layer_norm", {"data": "bfloat16[4,65]", "gamma": "bfloat16[65]", "beta": "bfloat16[65]"}, {}),
    ("argsort", {"data": "float32[4,26]"}, {}),
    ("argsort", {"data": "int32[4,26,3]"}, {"axis": 1, "is_ascend": False, "dtype": "int64"}),
    ("max_pool2d", {"data": "float32[1,3,15,17]"}, {"pool_size": 3, "strides": 2, "padding": 1}),
    ("max_pool2d", {"data": "int32[2,1,9,9]"}, {"pool_size": [2, 3], "dilation": [2, 1]}),
    ("max_pool2d_backward", {"grad": "float32[1,3,8,9]", "data": "float32[1,3,15,17]"},
     {"pool_size": 3, "strides": 2, "padding": 1}),
    ("max_pool2d_backward", {"grad": "float16[2,1,7,8]", "data": "float16[2,1,9,9]"},
     {"pool_size": [2, 2], "dilation": [2, 1]}),
    ("avg_pool2d", {"data": "float32[1,3,15,17]"}, {"pool_size": 3, "strides": 2, "padding": 1}),
    ("avg_pool2d", {"data": "float16[2,1,9,9]"}, {"pool_size": [2, 3], "padding": 1, "count_include_pad": True}),
    ("global_avg_pool2d", {"data": "float32[2,3,7,7]"}, {}),
    ("conv2d_backward_data",
     {"grad": "float32[2,6,7,15]", "weight": "float32[6,2,3,3]", "data": "float32[2,4,15,17]"},
     {"groups": 2, "strides": [2, 1]}),
    ("conv2d_backward_weight",
     {"grad": "float32[2,6,7,15]", "data": "float32[2,4,15,17]", "weight": "float32[6,2,3,3]"},
     {"groups": 2, "strides": [2, 1]}),
    ("all_class_non_max_suppression", {"boxes": "bfloat16[1,400,4]", "scores": "bfloat16[1,2,400]"},
     {"max_output_boxes_per_class": 300, "iou_threshold": 0.1}),
    ("unique", {"data": "bfloat16[1000]"}, {"return_counts": True}),
    # Narrow floats are summed in float32, and long sums may be off by more.
    ("sum", {"data": "bfloat16[16,300]"}, {"axis": [1]}),
    ("ones_like", {"data": "bfloat16[3,64]"}, {}),
    ("zeros_like", {"data": "bfloat16[75]"}, {}),
    ("mean", {"data": "float16[16,3000]"}, {"axis": [1]}),
    ("softmax", {"data": "float16[16,300]"}, {}),
    ("softmax", {"data": "float32[16,30000]"}, {}),
    ("cumsum", {"data": "float16[1600]"}, {}),
    ("cumsum", {"data": "float32[200000]"}, {}),
    ("adaptive_avg_pool2d", {"data": "float32[1,2,9,70]"}, {"output_size": [5, 9]}),
    ("adaptive_max_pool2d", {"data": "float32[1,1,3,600]"}, {"output_size": [2, 130]}),
    ("adaptive_max_pool2d", {"data": "float16[2,7,9,13]"}, {"output_size": [4, 5], "layout": "NHWC"}),
    ("grid_sample", {"data": "float32[1,2,1,5]", "grid": "float32[1,3,4,2]"},
     {"padding_mode": "reflection", "align_corners": True}),
    ("resize2d", {"data": "float32[1,1,3,40]"}, {"size": [5, 600]}),
    ("resize2d", {"data": "float32[1,2,3,70]"}, {"size": [5, 41]}),
    ("resize2d", {"data": "float32[2,3,9,24]"}, {"size": [7, 46], "method": "cubic"}),
    ("conv2d_transpose", {"data": "float32[1,5,6,7]", "weight": "float32[5,3,2,2]"}, {"strides": 2}),
    ("conv2d_transpose", {"data": "float32[1,4,3,5]", "weight": "float32[4,3,4,4]"},
     {"strides": 2, "padding": 1, "groups": 2}),
    ("conv2d_transpose", {"data": "float32[2,3,5,4]", "weight": "float32[3,1,3,3]"},
     {"strides": 2, "padding": 1, "output_padding": 1, "groups": 3}),
    ("conv2d_transpose", {"data": "float32[1,2,4,3]", "weight": "float32[2,3,1,2]"},
     {"strides": [2, 3], "output_padding": [1, 1]}),
    ("conv2d_transpose", {"data": "float32[1,5,3,16]", "weight": "float32[5,3,2,2]"}, {"strides": 2}),
    ("conv2d_transpose", {"data": "float32[2,4,2,19]", "weight": "float32[4,3,3,4]"}, {"strides": [3, 4], "groups": 2}),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_operator(op, inputs, attrs):
    assert check(make(op, inputs, attrs))


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_chain_of_elementary_functions_does_not_repeat_what_it_is_of(dtype):
    chain = [EpilogueStep(name, (None,)) for name in ("exp", "sigmoid", "exp")]
    work = make("relu", {"data": f"{dtype}[7,131]"}, epilogue=chain)
    assert len(lower(work, TARGET, "broadcast.cpu").module.script()) < 100_000
    assert check(work, "broadcast.cpu")


@pytest.mark.full
def test_a_chain_of_elementary_functions_is_used_twice():
    other = Input("other", "float32[7,131]")
    chain = [EpilogueStep("silu", (None,)), EpilogueStep("swiglu", (None, other))]
    work = make("exp", {"data": "float32[7,131]"}, epilogue=chain)
    assert len(lower(work, TARGET, "broadcast.cpu").module.script()) < 200_000
    assert check(work, "broadcast.cpu")


TWICE = [
    "add(.,.)", "multiply(.,.)+sigmoid(.)", "maximum(.,.)+add(.,.)", "subtract(.,.)+relu(.)",
    "abs(.)+negative(.)", "where(c=bool[131],.,.)+negative(.)", "bias_add(.,.)", "prelu(.,.)",
]


@pytest.mark.parametrize(("steps", "dtype"), [
    *((steps, "float32") for steps in TWICE[:1] + TWICE[2:]),
    (TWICE[0], "bfloat16"), (TWICE[2], "float16"), (TWICE[1], "float64"),
    (TWICE[0], "int32"), (TWICE[0], "int64"), (TWICE[0], "uint8"), (TWICE[4], "int32"), (TWICE[5], "int32"),
])
def test_a_chain_that_uses_each_value_twice_does_not_repeat_what_it_is_of(steps, dtype):
    is_vector = steps in ("bias_add(.,.)", "prelu(.,.)")
    work = chained(f"relu(data={dtype}[{'' if is_vector else '7,'}131])", steps + '{"axis":0}' * is_vector)
    assert len(lower(work, TARGET, "broadcast.cpu").module.script()) < 100_000
    assert check(work, "broadcast.cpu")


def chained(head, steps):
    """A chain of 24 steps, each with operands of its own."""
    several = 24 // steps.count("(")
    return parse_workload(head + "".join(f"+{steps}".replace("=", f"{n}=") for n in range(several)))


@pytest.mark.parametrize("work", [
    chained("logical_not(data=bool[7,131])", "where(.,.,e=bool[7,131])+where(.,f=bool[131],.)+logical_not(.)"),
    chained(
        "requantize(data=int32[7,131],s=float32[],z=int32[],t=float32[],y=int32[])",
        "requantize(.,s=float32[],z=int32[],t=float32[],y=int32[])",
    ),
], ids=["where", "requantize"])
def test_a_chain_of_choices_does_not_repeat_what_it_is_of(work):
    assert len(lower(work, TARGET, "broadcast.cpu").module.script()) < 50_000
    assert check(work, "broadcast.cpu")


@pytest.mark.parametrize(("op", "dtype", "number"), [
    ("argmax", "int32", -(1 << 31)), ("argmax", "uint64", 0), ("argmin", "int64", (1 << 63) - 1),
    ("argmin", "uint64", (1 << 64) - 1), ("argmax", "float32", -np.inf), ("argmin", "int8", 127),
])
def test_of_elements_that_are_all_the_last_the_first_is_found(op, dtype, number):
    """TVM begins with such an element, at -1."""
    data = np.full((3, 40), number, dtype)
    assert check(make(op, {"data": f"{dtype}[3,40]"}, {"axis": [1]}), "reduce.cpu", {"data": data})


@pytest.mark.parametrize("op", ["erf", "round"])
def test_a_product_has_a_factor_that_is_no_vector(op):
    other = Input("other", "float64[7,131]")
    chain = [EpilogueStep(op, (None,)), EpilogueStep("multiply", (None, other))]
    work = make("sin", {"data": "float64[7,131]"}, epilogue=chain)
    assert check(work)


EMPTY = [
    ("relu", {"data": "float32[0,3]"}, {}),
    ("gelu", {"data": "float32[2,0]"}, {}),
    ("add", {"lhs": "float32[2,0]", "rhs": "float32[1]"}, {}),
    ("sum", {"data": "float32[0,3]"}, {"axis": [0]}),
    ("sum", {"data": "float32[3,0]"}, {"axis": [1]}),
    ("sum", {"data": "float32[0]"}, {}),
    ("prod", {"data": "int16[0,3]"}, {}),
    ("collapse_sum_like", {"data": "float64[0]", "collapse_type": "float64[]"}, {}),
    *((op, {"data": "bool[0]"}, {}) for op in ("any", "all")),
    *((op, {"data": "bool[3,0,16]"}, {"axis": [axis]}) for op in ("any", "all") for axis in (0, 1)),
    ("layout_transform", {"data": "float32[1,0,9,1]"}, {"src_layout": "NCHW", "dst_layout": "NHWC"}),
    ("transpose", {"data": "int32[0,4]"}, {}),
    ("softmax", {"data": "float32[0,4]"}, {}),
    ("reshape", {"data": "float32[0,30]"}, {"newshape": [0, 3, -1]}),
    ("take", {"data": "float32[0,5]", "indices": "int32[2]"}, {"axis": 1}),
    ("pad", {"data": "float32[0,3,5,5]"}, {"pad_width": [[0, 0], [0, 0], [1, 1], [1, 1]], "pad_mode": "reflect"}),
    ("rotary_embedding", {"data": "float32[2,2,3,0]", "cos": "float32[3,0]", "sin": "float32[3,0]"}, {}),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), EMPTY, ids=lambda v: v if isinstance(v, str) else "")
def test_empty_tensors(op, inputs, attrs):
    assert check(make(op, inputs, attrs))


def test_attention_does_not_repeat_what_its_exponential_is_of():
    inputs = {"query": "float32[2,4,5,6]", "key": "float32[2,2,19,6]", "value": "float32[2,2,19,8]"}
    work = make("attention", inputs, {"is_causal": True})
    assert len(lower(work, TARGET, "attention.cpu").module.script()) < 25_000


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_attention_of_a_query_that_sees_no_key_is_zero(dtype):
    for m, implementation in ((1, "attention_row.cpu"), (5, "attention_tile.cpu")):
        hidden = np.full((m, 19), dtype == "bool", dtype)
        hidden[0] = False if dtype == "bool" else -np.inf
        inputs = {"query": f"float32[2,4,{m},8]", "key": "float32[2,2,19,8]", "value": "float32[2,2,19,8]"}
        workload = make("attention_bias", {**inputs, "bias": f"{dtype}[{m},19]"})
        right = reference(workload, {**random_inputs(workload, 7), "bias": hidden})[0]
        assert not right[:, :, 0].any()
        assert {implementation, "attention.cpu"} <= check(workload, given={"bias": hidden})


@pytest.mark.sample(4)
@pytest.mark.parametrize(("dtype", "fits", "beyond"), [
    ("int8", [-128, 127], [-129, 128, 0.5]), ("uint8", [0, 255], [-1, 256]), ("bool", [0, 1], [2]),
    ("int64", [-(2.0**63), 2.0**63 - 1024], [2.0**63]), ("uint64", [2.0**64 - 2048], [2.0**64]),
    ("float16", [65504, -np.inf], [65505]), ("bfloat16", [3e38, np.inf], [3.4e38]), ("float32", [-3e38], [1e39]),
])
def test_numbers_of_attributes_are_numbers_of_the_dtype(dtype, fits, beyond):
    import tvm

    def padded(value):
        return make("pad", {"data": f"{dtype}[2]"}, {"pad_width": [[1, 0]], "pad_value": float(value)})

    def hot(value):
        return make("one_hot", {"indices": "int32[1]"}, {"depth": 2, "on_value": float(value), "dtype": dtype})

    for value in fits:
        for workload in (padded(value), hot(value)):
            artefact = lower(workload, TARGET, "injective.cpu").compile(checks=False)
            given = {a.name: np.zeros(a.tensor.concrete_shape, numpy_dtype(a.tensor.dtype)) for a in artefact.arguments}
            tensors = [tvm.runtime.tensor(x) for x in given.values()]
            artefact.main(*tensors)
            assert tensors[-1].numpy().flat[0] == numpy_dtype(dtype).type(value)
    for value in beyond:
        with pytest.raises(TypeRelationError, match=r"pad_value = .* is no number of its dtype"):
            padded(value)
        with pytest.raises(TypeRelationError, match=rf"on_value = .* is no {dtype}"):
            hot(value)


def test_a_scale_that_is_one_number_needs_no_axis():
    for axis in (1, 5, -3):
        assert check(make("quantize", {**types_of("output"), "data": "float32[7]"}, {"axis": axis}))
        assert check(make("requantize", {**types_of("input", "output"), "data": "int32[7]"}, {"axis": axis}))


def types_of(*sides):
    return {f"{side}_{what}": f"{dtype}[]" for side in sides for what, dtype in
            (("scale", "float32"), ("zero_point", "int32"))}


@pytest.mark.full
def test_indices_beyond_what_float32_counts_are_exact():
    inputs = {"data": "float16[16777220]", "indices": "int32[1]", "updates": "float16[1]"}
    assert check(make("scatter_add", inputs), given={"indices": np.array([16777217], "int32")})


@pytest.mark.sample(2)
@pytest.mark.parametrize(("op", "names", "attrs"), [
    ("gather", "indices", {"axis": 1}), ("take", "indices", {"axis": 1}), ("take", "indices", {"mode": "wrap"}),
    ("dynamic_slice", "begin", {"size": [2, 3]}),
])
def test_indices_that_int64_cannot_hold(op, names, attrs):
    numbers = np.array([[2**64 - 1, 2**63], [5, 2**62]], "uint64")
    numbers = numbers[0] if op == "dynamic_slice" else numbers
    inputs = {"data": "float32[2,7]", names: f"uint64[{','.join(map(str, numbers.shape))}]"}
    assert check(make(op, inputs, attrs), given={names: numbers})


@pytest.mark.parametrize("op", ["log", "sqrt", "rsqrt"])
def test_of_positive_numbers(op):
    # Random inputs are in -1 … 1: NaN is the right answer there, so shift them.
    import tvm

    artefact = lower(make(op, {"data": "float32[37,5]"}), TARGET, "broadcast.cpu").compile(checks=False)
    data = np.random.default_rng(0).uniform(0.1, 9, (37, 5)).astype("float32")
    out = tvm.runtime.tensor(np.full_like(data, 77))
    artefact.main(tvm.runtime.tensor(data), out)
    expected = get_op(op).get_attr("FReference")(get_op(op).attrs_type(), [data])
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_power_of_positive_numbers():
    import tvm

    types = {"lhs": "float32[37,5]", "rhs": "float32[5]"}
    artefact = lower(make("power", types), TARGET, "broadcast.cpu").compile(checks=False)
    rng = np.random.default_rng(0)
    lhs, rhs = rng.uniform(0.1, 9, (37, 5)).astype("float32"), rng.uniform(-3, 3, 5).astype("float32")
    out = tvm.runtime.tensor(np.full_like(lhs, 77))
    artefact.main(tvm.runtime.tensor(lhs), tvm.runtime.tensor(rhs), out)
    np.testing.assert_allclose(out.numpy(), lhs.astype("float64") ** rhs, rtol=1e-6)


@pytest.mark.parametrize("op", ["exp", "sigmoid", "tanh", "erf", "gelu", "atan"])
def test_elementary_functions_over_their_whole_range(op):
    import tvm

    data = np.concatenate([np.linspace(-120, 120, 24001), np.geomspace(1e-30, 1, 500), [np.inf, -np.inf, np.nan]])
    data = data.astype("float32")
    artefact = lower(make(op, {"data": f"float32[{data.size}]"}), TARGET, "broadcast.cpu").compile(checks=False)
    out = tvm.runtime.tensor(np.full_like(data, 77))
    artefact.main(tvm.runtime.tensor(data), out)
    expected = get_op(op).get_attr("FReference")(get_op(op).attrs_type(), [data])
    # 1 + erf(x) keeps few digits where gelu vanishes, as everywhere.
    absolute = 3e-6 if op == "gelu" else 1e-37
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(out.numpy(), expected.astype("float32"), rtol=5e-7, atol=absolute)


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_angles_of_any_size(op):
    import tvm

    sizes = np.concatenate([np.linspace(0, 40, 4001), np.geomspace(1e-44, 3.4e38, 5000), [np.inf, np.nan]])
    data = np.concatenate([sizes, -sizes]).astype("float32")
    artefact = lower(make(op, {"data": f"float32[{data.size}]"}), TARGET, "broadcast.cpu").compile(checks=False)
    out = tvm.runtime.tensor(np.full_like(data, 77))
    artefact.main(tvm.runtime.tensor(data), out)
    with np.errstate(invalid="ignore"):
        expected = getattr(np, op)(data.astype("float64"))
    np.testing.assert_allclose(out.numpy(), expected, rtol=2e-7, atol=2e-11)
    assert np.signbit(out.numpy()[len(sizes)]) == (op == "sin")


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_bits_are_moved_beyond_all_and_by_less_than_none(dtype):
    rng, limits = np.random.default_rng(0), np.iinfo(dtype)
    for count in (3, 64):
        given = {
            "lhs": rng.integers(limits.min, limits.max, count, dtype, endpoint=True),
            "rhs": rng.integers(max(limits.min, -3), limits.bits + 3, count, dtype),
        }
        for op in ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"):
            assert check(make(op, dict.fromkeys(given, f"{dtype}[{count}]")), given=given)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("rows", "least"), [(3, 1e-7), (1000, 90)])
def test_logarithms_of_sums_over_their_whole_range(rows, least):
    import tvm

    # Of each column, some numbers are equal, and the others smaller: by any difference, or so much that sums are exact.
    equal = np.arange(rows)[:, None] <= np.arange(1333) % rows
    data = np.where(equal, 0, -np.geomspace(least, 300, 1333)) + np.geomspace(1e-3, 1e3, 1333)
    data = np.roll(data.astype("float32"), 1, 0)
    work = make("log_softmax", {"data": f"float32[{rows},1333]"}, {"axis": 0})
    artefact = lower(work, TARGET, "log_softmax_column.cpu").compile(checks=False)
    out = tvm.runtime.tensor(np.full_like(data, 77))
    artefact.main(tvm.runtime.tensor(data), out)
    (expected,) = reference(work, {"data": data})
    np.testing.assert_allclose(out.numpy(), expected, rtol=5e-7, atol=3e-7)


@pytest.mark.full
def test_chains_and_a_value_used_twice():
    steps = [
        EpilogueStep("sigmoid", (None,)),
        EpilogueStep("multiply", (None, None)),
        EpilogueStep("cast", (None,), {"dtype": "float64"}),
    ]
    check(make("add", {"lhs": "float32[33,5]", "rhs": "float32[5]"}, epilogue=steps))
    check(make("batch_matmul", {"x": "float32[2,3,4]", "y": "float32[2,5,4]"}, epilogue=steps))
    check(make("transpose", {"data": "float32[33,5]"}, epilogue=steps))


def test_what_an_epilogue_can_be_has_a_compute_for_all_targets():
    for name, op in all_ops().items():
        if op.get_attr("TOpPattern") in (TOpPattern.kElemWise, TOpPattern.kBroadcast):
            assert callable(op.get_attr("FTVMCompute")), name


@settings(max_examples=min(15, settings.default.max_examples // 2))
@given(
    rows=st.integers(1, 40), columns=st.integers(1, 70), depth=st.integers(1, 9),
    op=st.sampled_from(["sum", "mean", "max"]), axis=st.sampled_from([None, [0], [1], [2], [0, 2]]),
    keepdims=st.booleans(),
)
def test_reductions_over_many_shapes(rows, columns, depth, op, axis, keepdims):
    shape = f"float32[{rows},{depth},{columns}]"
    check(make(op, {"data": shape}, {"axis": axis, "keepdims": keepdims}))


@settings(max_examples=min(12, settings.default.max_examples // 2))
@given(
    rows=st.lists(st.integers(1, 7), min_size=1, max_size=2), extent=st.integers(1, 300), data=st.data(),
    ascend=st.booleans(), kept=st.sampled_from(["both", "values", "indices"]),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64"]),
)
def test_topk_over_many_shapes(rows, extent, data, ascend, kept, dtype):
    # Integers are few, so that many are equal.
    k, axis = data.draw(st.integers(1, min(extent, 128))), data.draw(st.integers(0, len(rows)))
    attrs = {"k": k, "axis": axis, "is_ascend": ascend, "ret_type": kept}
    shape = ",".join(map(str, [*rows[:axis], extent, *rows[axis:]]))
    assert "topk_scan.cpu" in check(make("topk", {"data": f"{dtype}[{shape}]"}, attrs))


@settings(max_examples=min(15, settings.default.max_examples // 2))
@given(
    whole=st.lists(st.integers(1, 20), min_size=1, max_size=4), data=st.data(),
    op=st.sampled_from(["add", "maximum", "greater"]), dtype=st.sampled_from(["float32", "float64", "int32"]),
)
def test_broadcasts_over_many_shapes(whole, data, op, dtype):
    shapes = []
    for _ in range(2):
        kept = [data.draw(st.sampled_from([n, 1])) for n in whole]
        shapes.append(kept[data.draw(st.integers(0, len(kept))) :])
    lhs, rhs = (f"{dtype}[{','.join(map(str, s))}]" for s in shapes)
    check(make(op, {"lhs": lhs, "rhs": rhs}))


ODD = st.sampled_from([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -2.5])
OF_ODD = [
    ("max", {"axis": [0]}), ("max", {"axis": [1]}), ("min", {"axis": [0]}), ("min", {"axis": [1]}),
    ("argmax", {"axis": [1]}), ("argmin", {"axis": [0]}), ("relu", {}), ("clip", {"a_min": -1, "a_max": 0.5}),
    ("argsort", {}), ("argsort", {"is_ascend": False}), ("softmax", {}), ("log_softmax", {}),
    ("log_softmax", {"axis": 0}),
    *(("topk", {"k": k, "is_ascend": a}) for k in (1, 5) for a in (True, False)),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.full)])
@pytest.mark.parametrize(("op", "attrs"), OF_ODD, ids=str)
def test_one_rule_for_nan(op, attrs, dtype):
    import tvm

    workload = make(op, {"data": f"{dtype}[9,37]"}, attrs)
    offered = [i for c, i in evaluate(workload, TARGET) if c is None or c.decide()]
    kernels = [lower(workload, TARGET, i).compile(checks=False) for i in offered]
    out = workload.out_type

    @settings(max_examples=20)
    @given(data=hnp.arrays(dtype, (9, 37), elements=ODD))
    def agree(data):
        with np.errstate(all="ignore"):
            expected = reference(workload, {"data": data})
        for kernel in kernels:
            outputs = [
                tvm.runtime.empty(k.concrete_shape, k.dtype) for k in (out.fields if hasattr(out, "fields") else [out])
            ]
            kernel.main(tvm.runtime.tensor(data), *outputs)
            for output, right in zip(outputs, expected, strict=True):
                np.testing.assert_allclose(output.numpy(), right, rtol=1e-5, atol=1e-6)

    agree()
