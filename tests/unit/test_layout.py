"""Layouts of images: every operator gives in each what it gives in NCHW, and so do gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from strategy.expr import Constant, Expr, Tuple, Var
from strategy.gradient import gradient
from strategy.inference import infer_type
from strategy.layout import LAYOUTS, PLAIN
from strategy.op import TypeRelationError
from strategy.ops.adaptive_pool2d import adaptive_avg_pool2d, adaptive_max_pool2d
from strategy.ops.avg_pool2d import avg_pool2d, global_avg_pool2d
from strategy.ops.conv2d import conv2d
from strategy.ops.layout_transform import layout_transform
from strategy.ops.max_pool2d import max_pool2d
from strategy.reference import evaluate
from strategy.workload import Workload

WEIGHT = Constant(np.random.default_rng(1).uniform(-1, 1, (32, 16, 3, 2)))
OPERATORS: dict[str, Callable[..., Expr]] = {
    "max_pool2d": partial(max_pool2d, pool_size=(2, 3), strides=(1, 2), padding=1),
    "avg_pool2d": partial(avg_pool2d, pool_size=3, strides=2, padding=(1, 0), ceil_mode=True),
    "global_avg_pool2d": global_avg_pool2d,
    "adaptive_avg_pool2d": partial(adaptive_avg_pool2d, output_size=(2, 3)),
    "adaptive_max_pool2d": partial(adaptive_max_pool2d, output_size=(2, 3)),
    "conv2d": lambda x, layout: conv2d(x, WEIGHT, 2, 1, data_layout=layout),
    "conv2d out_layout": lambda x, layout: layout_transform(
        conv2d(x, WEIGHT, padding=1, data_layout=layout, out_layout="NCHW16c"), "NCHW16c", layout
    ),
    "depthwise": lambda x, layout: conv2d(
        x, Constant(WEIGHT.value[:16, :1]), padding=1, groups=16, data_layout=layout
    ),
}


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != PLAIN])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_layout_gives_what_nchw_gives(name, layout):
    rng = np.random.default_rng(0)
    x = Var("x", "float64[2,16,5,7]")
    given = {"x": rng.uniform(-1, 1, (2, 16, 5, 7))}
    plain = OPERATORS[name](x, layout=PLAIN)
    other = layout_transform(OPERATORS[name](layout_transform(x, PLAIN, layout), layout=layout), layout, PLAIN)
    weights = Constant(rng.uniform(-1, 1, infer_type(plain).concrete_shape))
    found, expected = (evaluate(Tuple([y, *gradient(y, [x], weights)]), given) for y in (other, plain))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_blocks_are_where_they_are_said_to_be():
    data = np.arange(32 * 6.0).reshape(1, 32, 2, 3)
    blocked = evaluate(layout_transform(Constant(data), "NCHW", "NCHW16c"), {})
    assert blocked.shape == (1, 2, 2, 3, 16)
    assert blocked[0, 1, 1, 2, 5] == data[0, 21, 1, 2]
    halves = evaluate(layout_transform(Constant(blocked), "NCHW16c", "NCHW8c"), {})
    assert halves[0, 3, 0, 1, 7] == data[0, 31, 0, 1]
    last = evaluate(layout_transform(Constant(halves), "NCHW8c", "NHWC"), {})
    np.testing.assert_array_equal(last, data.transpose(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "message"),
    [
        ("layout_transform", {"data": "float32[1,12,4,4]"}, {"src_layout": "NCHW", "dst_layout": "NCHW8c"},
         r"data is float32\[1,12,4,4\]: its channels do not divide into blocks of NCHW8c: use another layout"),
        ("layout_transform", {"data": "float32[1,2,4,4,8]"}, {"src_layout": "NCHW16c", "dst_layout": "NCHW"},
         r"its blocks are not of 16 channels: \[batch, channels / 16, height, width, 16\]"),
        ("max_pool2d", {"data": "float32[1,16,4,4]"}, {"pool_size": 2, "layout": "NCHW16c"},
         r"expected 5 dimensions, \[batch, channels / 16, height, width, 16\]"),
        ("conv2d", {"data": "float32[1,16,4,4]", "weight": "float32[12,16,3,3]"}, {"out_layout": "NCHW8c"},
         "weight is .*: its channels do not divide into blocks of NCHW8c"),
        ("conv2d", {"data": "float32[1,2,4,4,8]", "weight": "float32[8,8,3,3]"}, {"data_layout": "NCHW8c"},
         "does not fit data"),
    ],
)
def test_what_does_not_fit_a_layout_is_named(op, inputs, attrs, message):
    with pytest.raises(TypeRelationError, match=message):
        Workload.make(op, inputs, attrs)


def test_a_result_in_the_layout_of_the_data_is_the_same_workload():
    inputs = {"data": "float32[1,2,4,4,8]", "weight": "float32[8,16,3,3]"}
    named, plain = (
        Workload.make("conv2d", inputs, {"data_layout": "NCHW8c", **more}) for more in ({"out_layout": "NCHW8c"}, {})
    )
    assert named.key == plain.key
