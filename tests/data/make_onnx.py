"""Writes `model.onnx`: a picture as tokens by a convolution with batch norm, then attention, then classes.

    python tests/data/make_onnx.py

As exporters of PyTorch write it: linear layers as MatMul and Add, GELU by Erf, shapes computed by Shape.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS = 32, 2


def make_model() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    weights: list[Any] = []
    nodes: list[Any] = []

    def weight(name: str, *shape: int, scale: float = 0.2) -> str:
        weights.append(numpy_helper.from_array(random.normal(0, scale, shape).astype("float32"), name))
        return name

    def const(name: str, value: Any, dtype: str = "int64") -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(op: str, output: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def linear(name: str, x: str, inputs: int, outputs: int) -> str:
        product = add("MatMul", f"{name}.product", x, weight(f"{name}.weight", inputs, outputs))
        return add("Add", name, weight(f"{name}.bias", outputs), product)

    x = add("Conv", "conv", "picture", weight("conv.weight", WIDTH, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    variance = numpy_helper.from_array(random.uniform(0.5, 2, WIDTH).astype("float32"), "norm.variance")
    weights.append(variance)
    statistics = [weight(f"norm.{n}", WIDTH) for n in ("scale", "shift", "mean")]
    x = add("BatchNormalization", "norm", x, *statistics, "norm.variance")
    x = add("MaxPool", "pool", add("Relu", "relu", x), kernel_shape=[2, 2], strides=[2, 2])
    batch = add("Gather", "batch", add("Shape", "shape", x), const("zero", 0), axis=0)
    whole = add("Unsqueeze", "batch.1", batch, const("zeros", [0]))
    shape = add("Concat", "tokens.shape", whole, const("channels", [WIDTH]), const("rest", [-1]), axis=0)
    x = add("Transpose", "tokens", add("Reshape", "flat", x, shape), perm=[0, 2, 1])
    parts = []
    for name in ("q", "k", "v"):
        y = add("Reshape", f"{name}.heads", linear(name, x, WIDTH, WIDTH), const(f"{name}.shape", [0, 0, HEADS, -1]))
        parts.append(add("Transpose", f"{name}.t", y, perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]))
    scores = add("MatMul", "scores", *parts[:2])
    scaled = add("Div", "scaled", scores, const("root", np.sqrt(WIDTH / HEADS), "float32"))
    y = add("MatMul", "seen", add("Softmax", "softmax", scaled, axis=-1), parts[2])
    y = add("Reshape", "joined", add("Transpose", "seen.t", y, perm=[0, 2, 1, 3]), const("joined.shape", [0, 0, -1]))
    x = add("Add", "residual", linear("out", y, WIDTH, WIDTH), x)
    y = linear("up", x, WIDTH, 2 * WIDTH)
    erf = add("Erf", "erf", add("Div", "div", y, const("sqrt2", np.sqrt(2), "float32")))
    half = add("Mul", "product", y, add("Add", "plus", erf, const("one", 1, "float32")))
    y = linear("down", add("Mul", "gelu", half, const("half", 0.5, "float32")), 2 * WIDTH, WIDTH)
    x = add("ReduceMean", "mean", add("Add", "residual.1", x, y), axes=[1], keepdims=0)
    add("Gemm", "classes", x, weight("last.weight", 5, WIDTH), weight("last.bias", 5), transB=1)
    graph = helper.make_graph(
        nodes, "seeing",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["batch", 5])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


if __name__ == "__main__":
    onnx.save(make_model(), Path(__file__).with_name("model.onnx"))
