"""Write `quantized/NAME.onnx` by ONNX Runtime's quantizer, and what ONNX Runtime computes of each.

    python tests/data/make_quantized.py

`images` has convolutions, a depthwise one among them, a sum, pools and a product; `rows` has attention. `values.npz`
has an input of each, and the outputs for it by the name of the file, with the optimizations that change no rounding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

OUT = Path(__file__).with_name("quantized")
SHAPES = {"images": (1, 4, 10, 10), "rows": (2, 6, 16)}
BYTES, SIGNED = QuantType.QUInt8, QuantType.QInt8
STATIC: dict[str, dict[str, Any]] = {
    "images-pairs": {"activation_type": BYTES, "weight_type": SIGNED, "per_channel": True},
    "images-pairs-signed": {"activation_type": SIGNED, "weight_type": SIGNED, "reduce_range": True},
    "images-operators": {
        "activation_type": BYTES, "weight_type": SIGNED, "per_channel": True, "quant_format": QuantFormat.QOperator,
    },
    "images-operators-bytes": {
        "activation_type": BYTES, "weight_type": BYTES, "quant_format": QuantFormat.QOperator
    },
    "rows-pairs": {"activation_type": BYTES, "weight_type": SIGNED, "per_channel": True},
    "rows-operators": {"activation_type": SIGNED, "weight_type": SIGNED, "quant_format": QuantFormat.QOperator},
}
DYNAMIC: dict[str, dict[str, Any]] = {
    "images-dynamic": {"weight_type": BYTES}, "rows-dynamic": {"weight_type": SIGNED, "per_channel": True}
}


class Network:
    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.weights: list[Any] = []
        self.nodes: list[Any] = []

    def const(self, name: str, value: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        each = self.random.uniform(0.5, 2, (shape[0], *(1,) * (len(shape) - 1)))
        return self.const(name, (self.random.normal(0, 0.2, shape) * each).astype("float32"))

    def add(self, kind: str, output: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def convolution(self, name: str, x: str, *shape: int, **attributes: Any) -> str:
        given = self.weight(f"{name}w", *shape), self.weight(f"{name}b", shape[0])
        return self.add("Conv", name, x, *given, **attributes)

    def linear(self, name: str, x: str, inputs: int, outputs: int) -> str:
        product = self.add("MatMul", f"{name}m", x, self.weight(f"{name}w", inputs, outputs))
        return self.add("Add", name, product, self.weight(f"{name}b", outputs))

    def model(self, kind: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, kind, [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPES[kind])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], self.weights,
        )
        found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return onnx.shape_inference.infer_shapes(found)


def images() -> onnx.ModelProto:
    net = Network()
    a = net.add("Relu", "a", net.convolution("c", "x", 8, 4, 3, 3, pads=[1, 1, 1, 1]))
    p = net.add("MaxPool", "p", a, kernel_shape=[2, 2], strides=[2, 2])
    d = net.convolution("d", p, 8, 8, 3, 3, pads=[1, 1, 1, 1])
    s = net.add("Relu", "s", net.add("Add", "t", d, p))
    w = net.convolution("e", s, 8, 1, 3, 3, group=8, strides=[2, 2], pads=[1, 1, 1, 1])
    h = net.add("Relu", "h", net.convolution("f", w, 16, 8, 1, 1))
    g = net.add("Flatten", "g", net.add("GlobalAveragePool", "o", h))
    net.add("Gemm", "y", g, net.weight("yw", 4, 16), net.weight("yb", 4), transB=1)
    return net.model("images")


def rows() -> onnx.ModelProto:
    net = Network()
    apart, together = net.const("apart", np.int64([2, 6, 2, 8])), net.const("together", np.int64([2, 6, 16]))
    heads = []
    for name in "qkv":
        each = net.add("Reshape", f"{name}r", net.linear(name, "x", 16, 16), apart)
        heads.append(net.add("Transpose", f"{name}t", each, perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]))
    scores = net.add("MatMul", "s", *heads[:2])
    seen = net.add("MatMul", "a", net.add("Softmax", "p", scores, axis=-1), heads[2])
    joined = net.add("Reshape", "j", net.add("Transpose", "at", seen, perm=[0, 2, 1, 3]), together)
    h = net.add("Add", "h", net.linear("o", joined, 16, 16), "x")
    net.add("MatMul", "y", net.add("Relu", "u", net.linear("f", h, 16, 24)), net.weight("yw", 24, 4))
    return net.model("rows")


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, shape: tuple[int, ...]) -> None:
        random = np.random.default_rng(1)
        self.left: Iterator[Any] = iter([{"x": random.standard_normal(shape).astype("float32")} for _ in range(8)])

    def get_next(self) -> Any:
        return next(self.left, None)


def values(path: Path, x: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": x})[0]


def main() -> None:
    OUT.mkdir(exist_ok=True)
    found = {kind: np.random.default_rng(2).standard_normal(shape).astype("float32") for kind, shape in SHAPES.items()}
    with tempfile.TemporaryDirectory() as folder:
        for kind, make in {"images": images, "rows": rows}.items():
            onnx.save(make(), f"{folder}/{kind}.onnx")
        for name, given in STATIC.items():
            kind = name.partition("-")[0]
            quantize_static(f"{folder}/{kind}.onnx", OUT / f"{name}.onnx", Reader(SHAPES[kind]), **given)
        for name, given in DYNAMIC.items():
            quantize_dynamic(f"{folder}/{name.split('-')[0]}.onnx", OUT / f"{name}.onnx", **given)
    for name in STATIC | DYNAMIC:
        found[name] = values(OUT / f"{name}.onnx", found[name.partition("-")[0]])
    np.savez(OUT / "values.npz", **found)


if __name__ == "__main__":
    main()
