"""Shape functions, against the shapes that NumPy finds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from strategy import op as registry
from strategy.expr import ExprError, Tuple, Var, call
from strategy.gradient import gradient
from strategy.op import OpError, all_ops, get_op, register_op, register_reference
from strategy.ops.concatenate import concatenate, split
from strategy.ops.conv2d import conv2d
from strategy.ops.dense import dense
from strategy.ops.elemwise import cast, relu
from strategy.ops.max_pool2d import max_pool2d
from strategy.ops.reduce import sum as reduce_sum
from strategy.ops.reshape import expand_dims, reshape
from strategy.ops.scan import cumsum
from strategy.ops.topk import topk
from strategy.ops.transpose import transpose
from strategy.reference import evaluate
from strategy.shape_func import (
    ShapeError,
    output_shapes,
    register_shape_func,
    run_time_shape,
)
from strategy.types import TensorType


def arange_shape_func(attrs, inputs):
    """As many elements as there are steps from start to stop: needs the inputs' values."""
    start, stop, step = (float(v) for v in inputs)
    if step == 0:
        raise ShapeError("a step of 0 never reaches the stop")
    return [(max(0, math.ceil((stop - start) / step)),)]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    all_ops()
    monkeypatch.setattr(registry, "_ops", dict(registry._ops))


def register_arange():
    """An operator whose output is as long as its inputs' values say."""

    def relation(types, attrs, reporter):
        start = reporter.tensor(0)
        if start is None:
            return False
        reporter.assign(3, TensorType(["steps"], start.dtype))
        return True

    op = register_op("arange").describe("Numbers from start to stop.").set_num_inputs(3)
    for name in ("start", "stop", "step"):
        op.add_argument(name, "Tensor", name)
    op.add_type_rel("Arange", relation)
    register_reference("arange", lambda attrs, inputs: np.arange(*(float(x) for x in inputs)))
    register_shape_func("arange", True, arange_shape_func)


x = Var("x", "float32[m,n]")
y = Var("y", "float32[k,n]")


@pytest.mark.parametrize(
    "graph",
    [
        relu(x),
        x + Var("row", "float32[n]"),
        reduce_sum(x, axis=-1),
        reduce_sum(x, axis=0, keepdims=True),
        reduce_sum(x),
        concatenate([x, y], axis=0),
        reshape(x, (0, 2, -1)),
        expand_dims(x, (0, -1)),
        transpose(x),
        cumsum(x),
        cumsum(x, axis=1),
        dense(x, y),
        Tuple(split(x, (1, 2), axis=-1)),
        call("topk", x, k=2),
        call("concatenate", call("topk", cast(x, "int32"), k=2), axis=0),
        topk(x, k=1, axis=0, ret_type="indices"),
        max_pool2d(expand_dims(x, (0, 1)), 2, 2, padding=1),
        conv2d(expand_dims(x, (0, 1)), expand_dims(x, (0, 1)), 2, 2),
    ],
)
def test_shapes_are_those_that_numpy_finds(graph):
    rng = np.random.default_rng(0)
    inputs = {"x": rng.random((3, 4)), "y": rng.random((5, 4)), "row": rng.random(4)}
    value = evaluate(graph, inputs)
    expected = tuple(v.shape for v in value) if isinstance(value, tuple) else value.shape
    assert run_time_shape(graph, inputs) == expected


def test_every_operator_has_a_shape_function():
    for name, op in all_ops().items():
        assert op.get_attr("FShapeFunc") is not None, name


def test_the_gradient_of_a_convolution_has_the_shapes_of_its_inputs():
    data, weight = Var("data", "float32[n,4,h,w]"), Var("weight", "float32[6,2,3,3]")
    arrays = {"data": np.ones((2, 4, 7, 9), "float32"), "weight": np.ones((6, 2, 3, 3), "float32")}
    for found, name in zip(gradient(conv2d(data, weight, strides=2, groups=2)), arrays, strict=True):
        assert run_time_shape(found, arrays) == arrays[name].shape


def test_a_shape_that_depends_on_data():
    register_arange()
    stop = Var("stop", "float32[]")
    graph = call("arange", cast(stop - stop, "float32"), stop * stop, Var("step", "float32[]"))
    inputs = {"stop": np.float32(3), "step": np.float32(2)}
    assert run_time_shape(relu(graph), inputs) == evaluate(graph, inputs).shape == (5,)
    with pytest.raises(ShapeError, match="arange: a step of 0 never reaches the stop"):
        run_time_shape(graph, {"stop": np.float32(3), "step": np.float32(0)})


def test_only_what_a_shape_depends_on_is_computed(monkeypatch):
    register_arange()
    one = Var("one", "float32[]")
    steps = call("arange", one - one, one, one)
    graph = steps + relu(reduce_sum(x))

    def no_reference(attrs, inputs):
        pytest.fail("the value of relu is not needed")

    monkeypatch.setitem(get_op("relu")._attrs, "FReference", (no_reference, 10))
    assert run_time_shape(graph, {"one": 1.0, "x": np.ones((2, 2))}) == (1,)


def test_a_value_may_be_needed_of_some_inputs_only():
    register_op("repeat_counted").set_num_inputs(2)
    register_shape_func("repeat_counted", [False, True], lambda attrs, inputs: [(inputs[0][0] * int(inputs[1]),)])
    assert output_shapes(get_op("repeat_counted"), None, [(3,), np.int32(4)]) == [(12,)]


def test_errors_name_the_operator():
    with pytest.raises(ShapeError, match=r"add: \(2,\) and \(3,\) do not broadcast"):
        output_shapes(get_op("add"), None, [(2,), (3,)])
    joined = call("concatenate", Tuple([x, y]), axis=1)
    with pytest.raises(ShapeError, match=r"concatenate: \(5, 4\) and \(3, 4\) differ"):
        run_time_shape(joined, {"x": np.ones((3, 4)), "y": np.ones((5, 4))})
    with pytest.raises(ShapeError, match=r"reshape: \(3, 4\) does not reshape to \(5, -1\)"):
        run_time_shape(reshape(x, (5, -1)), {"x": np.ones((3, 4))})
    with pytest.raises(ExprError, match="variable 'x' has no value"):
        run_time_shape(relu(x), {})
    register_op("shapeless").set_num_inputs(1)
    with pytest.raises(OpError, match="shapeless has no shape function: register one"):
        run_time_shape(call("shapeless", x), {"x": np.ones((3, 4))})
