"""The kernel of a depthwise and a pointwise convolution, compiled and judged by NumPy as a worker judges it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from strategy.compile.lower import lower
from strategy.expr import Constant, Var, call
from strategy.layout import laid_out
from strategy.op_strategy import candidates
from strategy.signature import Role
from strategy.space import ConfigSpace
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload
from tests.unit.test_network import evaluate
from workers.reference import compare, random_inputs, reference, tolerances

from .conftest import run

TARGET = Target.parse("cpu").with_threads(2)
NAME = "depthwise_separable_conv2d_nchwc.cpu"


def make(
    image: tuple[int, ...], window: tuple[int, int], out_channels: int, attrs: Mapping[str, Any], *,
    constant: bool = True, epilogue: tuple[EpilogueStep, ...] = (), dtype: str = "float32",
) -> Workload:
    """The workload of an image of NCHW, in blocks of 16 unless `attrs` say otherwise."""
    given = {"data_layout": "NCHW16c", "out_layout": "NCHW16c", **attrs}
    channels = image[1]
    inputs = {
        "data": f"{dtype}[{','.join(map(str, laid_out(image, given['data_layout'])))}]",
        "depthwise_weight": f"{dtype}[{channels},1,{window[0]},{window[1]}]",
        "depthwise_bias": f"{dtype}[{channels}]",
        "pointwise_weight": f"{dtype}[{out_channels},{channels},1,1]",
    }
    constants = [n for n in inputs if n != "data"] if constant else []
    return Workload.make("depthwise_separable_conv2d", inputs, given, constants, epilogue)


def space_of(workload: Workload, target: Target = TARGET) -> ConfigSpace:
    (found,) = candidates(workload, target)
    assert found.implementation == NAME
    assert found.space is not None
    return found.space


def check(workload: Workload, config: Mapping[str, Any] | None = None) -> None:
    inputs = random_inputs(workload, 7)
    expected = reference(workload, inputs)
    artefact = lower(workload, TARGET, NAME, config).compile(checks=False)
    aligned = {a.name: inputs[a.name] for a in artefact.arguments if a.role is not Role.OUTPUT}
    found = run(artefact, aligned, expected[0].shape)
    (tolerance,) = tolerances(workload, inputs, expected)
    compare(np.asarray(found), np.asarray(expected[0]), tolerance)


CASES: list[tuple[tuple[int, ...], tuple[int, int], int, dict[str, Any]]] = [
    ((1, 32, 14, 14), (3, 3), 48, {"padding": 1, "activation": "relu6"}),
    ((2, 16, 9, 17), (3, 3), 24, {"padding": 1, "strides": 2, "activation": "relu", "out_layout": "NCHW8c"}),
    ((1, 24, 7, 37), (5, 5), 16, {"padding": 2, "activation": "hardswish", "data_layout": "NCHW8c"}),
    ((1, 8, 1, 1), (1, 1), 8, {"data_layout": "NCHW8c", "out_layout": "NCHW8c"}),
    ((1, 48, 11, 13), (2, 3), 112, {"padding": [0, 2, 1, 0], "strides": [2, 3], "dilation": [2, 1]}),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_any_configuration_of_any_shape(case, constant, full):
    workload = make(*case, constant=constant)
    space = space_of(workload)
    check(workload)
    for config in space.sample(random.Random(0), 12 if full else 2):
        check(workload, config)


@pytest.mark.full
def test_a_large_window_is_not_unrolled():
    workload = make((1, 16, 14, 14), (31, 31), 16, {"padding": 15})
    assert lower(workload, TARGET, NAME).module.script().count("unroll(T.int64(31))") == 1  # its rows are
    check(workload)


@pytest.mark.full
@pytest.mark.parametrize(("case", "dtype"), [(1, "float64"), (2, "float16")])
def test_a_block_may_be_several_vectors_and_floats_may_be_narrow(case, dtype):
    workload = make(*CASES[case], dtype=dtype)
    for config in space_of(workload).sample(random.Random(0), 3):
        check(workload, config)


@pytest.mark.full
def test_every_value_of_every_knob():
    workload = make(*CASES[2])
    space = space_of(workload)
    for knob in space.knobs:
        for value in {knob.values[0], knob.values[-1]}:
            config = next((c for c in space if c[knob.name] == value), None)
            assert config is not None
            check(workload, config)


def test_an_epilogue_joins_the_output():
    image, window, out_channels, attrs = CASES[0]
    out = str(make(image, window, out_channels, attrs).out_type)
    steps = (
        EpilogueStep("add", (None, Input("bias", "float32[1,3,1,1,16]", constant=True))),
        EpilogueStep("add", (Input("residual", out), None)),
        EpilogueStep("relu", (None,)),
    )
    check(make(image, window, out_channels, attrs, epilogue=steps))


def test_it_is_both_convolutions():
    rng = np.random.default_rng(0)
    data, bias = Var("data", "float32[2,2,9,8,16]"), rng.normal(size=32).astype("f")
    depthwise, pointwise = (Constant(rng.normal(size=s).astype("f")) for s in ((32, 1, 3, 3), (48, 32, 1, 1)))
    one = call(
        "depthwise_separable_conv2d", data, depthwise, Constant(bias), pointwise, strides=2, padding=1,
        activation="relu", data_layout="NCHW16c", out_layout="NCHW16c",
    )
    image = call("conv2d", data, depthwise, strides=2, padding=1, groups=32, data_layout="NCHW16c")
    image = call("relu", call("add", image, Constant(bias.reshape(1, 2, 1, 1, 16))))
    two = call("conv2d", image, pointwise, data_layout="NCHW16c")
    assert one.checked_type == two.checked_type
    given = {"data": rng.normal(size=(2, 2, 9, 8, 16)).astype("f")}
    np.testing.assert_allclose(evaluate(one, given), evaluate(two, given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", ["cpu", "cuda -arch=sm_90"])
def test_images_of_symbolic_sizes_have_no_implementation(spec):
    inputs = {
        "data": "float32[n,2,7,7,16]", "depthwise_weight": "float32[32,1,3,3]", "depthwise_bias": "float32[32]",
        "pointwise_weight": "float32[16,32,1,1]",
    }
    attrs = {"data_layout": "NCHW16c", "out_layout": "NCHW16c"}
    assert candidates(Workload.make("depthwise_separable_conv2d", inputs, attrs), Target.parse(spec)) == []


@pytest.mark.parametrize(("spec", "columns", "width"), [
    ("llvm -mcpu=znver4", 14, 32), ("llvm -mcpu=haswell", 5, 16), ("llvm -mcpu=neoverse-n1", 14, 8),
])
def test_the_fallback_fills_the_registers(spec, columns, width):
    target = Target.parse(spec).with_threads(2)
    layout = "NCHW16c" if width == 32 else "NCHW8c"
    attrs = {"padding": 1, "data_layout": layout, "out_layout": layout}
    found = space_of(make((1, 384, 14, 14), (3, 3), 64, attrs), target).fallback
    assert (found["columns"], found["width"]) == (columns, width)
    assert found["rows"] == 1
    assert space_of(make((1, 96, 112, 112), (3, 3), 64, attrs), target).fallback["rows"] == 2
