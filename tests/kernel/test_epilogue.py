"""Products fused with their epilogues, as networks call them."""

from __future__ import annotations

import numpy as np

from strategy.compile import compile as compile_graph
from strategy.expr import Constant, Var
from strategy.ops.activation import gelu
from strategy.ops.batch_matmul import batch_matmul
from strategy.ops.bias_add import bias_add
from strategy.ops.conv2d import conv2d
from strategy.ops.dense import dense
from strategy.ops.elemwise import relu
from strategy.reference import evaluate

from .test_conv2d import TARGET


def test_what_models_call_becomes_one_function():
    rng = np.random.default_rng(0)

    def given(*shape):
        return rng.uniform(-1, 1, shape).astype("float32")

    x, image, keys, residual = (Var(n, t) for n, t in (
        ("x", "float32[9,20]"), ("image", "float32[1,16,9,9]"), ("keys", "float32[3,7,20]"),
        ("residual", "float32[1,5,9,9]"),
    ))  # fmt: skip
    weight = Constant(given(5, 16, 3, 3))
    convolution = bias_add(conv2d(image, weight, padding=1), Constant(given(5)))
    graphs = {
        "dense": gelu(bias_add(dense(x, Constant(given(33, 20))), Constant(given(33)))),
        "conv2d": relu(convolution + residual),
        "batch_matmul": gelu(batch_matmul(keys, keys) + Constant(given(7, 7))),
    }
    values = {"x": given(9, 20), "image": given(1, 16, 9, 9), "keys": given(3, 7, 20),
              "residual": given(1, 5, 9, 9)}  # fmt: skip
    for anchor, graph in graphs.items():
        function = compile_graph(graph, TARGET)
        (explained,) = function.explain()
        assert explained.calls[0] == anchor
        assert len(explained.calls) >= 3
        found = function(*(values[v.name] for v in function.variables))
        np.testing.assert_allclose(found, evaluate(graph, values), atol=3e-5)
