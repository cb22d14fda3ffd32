"""Models that ONNX Runtime's quantizer has written: products of integers, with ONNX Runtime's values."""

from __future__ import annotations

import ctypes
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from plevel.cli.main import main  # noqa: E402
from plevel.comparison import error_of  # noqa: E402
from plevel.onnx.file import read_model  # noqa: E402
from plevel.onnx.network import import_model, run_model  # noqa: E402
from strategy.network.graph import Network  # noqa: E402
from strategy.network.group import PRODUCTS, groups  # noqa: E402
from strategy.network.integer import multiply_integers  # noqa: E402
from strategy.network.normal import normalize  # noqa: E402
from strategy.reference import evaluate  # noqa: E402
from strategy.target import Target  # noqa: E402

DATA = Path(__file__).parents[1] / "data" / "quantized"  # of make_quantized.py
VNNI, AVX2 = Target.parse("llvm -mcpu=znver4"), Target.parse("llvm -mcpu=haswell")
RANDOM = np.random.default_rng(0)
N = helper.make_node


def form(network: Network, target: Target) -> Network:
    return normalize(multiply_integers(network, target))


def kernels(network: Network) -> list[tuple[str, ...]]:
    return [g.names for g in groups(network) if g.anchor.op.name != "reshape"]


def products(network: Network) -> list[str]:
    return [names[0] for names in kernels(network) if names[0] in PRODUCTS]


def values_of(name: str) -> tuple[Any, Any]:
    """The input of a file, and what ONNX Runtime gives for it."""
    with np.load(DATA / "values.npz") as values:
        return values[name.partition("-")[0]], values[name]


ATTENTION = [*["qdense"] * 3, *["batch_matmul"] * 2, *["qdense"] * 3]


@pytest.mark.parametrize("path", sorted(DATA.glob("*.onnx")), ids=lambda path: path.stem)
def test_a_quantised_file_multiplies_integers(path: Path) -> None:
    kind = path.stem.partition("-")[0]
    x, expected = values_of(path.stem)
    network, _ = import_model(read_model(path, {})[0])
    made = form(network, VNNI)
    wanted = [*["qconv2d"] * 4, "qdense"] if kind == "images" else ATTENTION
    assert sorted(products(made)) == sorted(wanted)
    for each in (made, form(network, AVX2)):
        (found,) = evaluate(each.root, {"x": x})
        assert error_of(found, expected) < 1e-2  # a step of the last integers


def test_a_layer_of_pairs_is_one_kernel() -> None:
    network, _ = import_model(read_model(DATA / "images-pairs.onnx", {})[0])
    layers = [names for names in kernels(form(network, VNNI)) if names[0] == "qconv2d"]
    layer, to_sum = ("qconv2d", "dequantize", "bias_add", "quantize"), ("dequantize", "add", "quantize")
    assert layers == [layer, layer + to_sum, layer, (*layer, "dequantize")]


def integers(*shape: int, dtype: str = "int8") -> Any:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def pairs(nodes: list[Any], x: tuple[int, ...], weight: Any, scales: Any, point: Any = None, **more: Any) -> Any:
    """A model of nodes that read the numbers d of bytes x, and v of the weight."""
    more |= {"s": np.float32(0.05), "z": np.uint8(120), "w": weight, "t": np.asarray(scales, "float32")}
    point = np.zeros(np.shape(scales), weight.dtype) if point is None else point
    graph = helper.make_graph(
        [N("DequantizeLinear", ["x", "s", "z"], ["d"]), *nodes], "small",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in {**more, "u": point}.items()],
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=domains, ir_version=10))


def real(axis: int, domain: str = "") -> Any:
    return N("DequantizeLinear", ["w", "t", "u"], ["v"], axis=axis, domain=domain)


STEPS, IMAGE = np.linspace(0.01, 0.03, 6), (2, 8, 7, 7)
PRODUCT = N("MatMul", ["d", "v"], ["y"])
SHOWN: dict[str, tuple[Any, str]] = {
    "columns": (pairs([real(1), PRODUCT], (2, 3, 8), integers(8, 6), STEPS), "qdense"),
    "one scale of bytes": (
        pairs([real(1), PRODUCT], (3, 8), integers(8, 6, dtype="uint8"), 0.02, np.uint8(7)), "qdense"
    ),
    "rows": (pairs([real(0), N("Gemm", ["d", "v"], ["y"], transB=1)], (3, 8), integers(6, 8), STEPS), "qdense"),
    "turned rows": (
        pairs([real(0), N("Transpose", ["v"], ["a"], perm=[1, 0]), N("MatMul", ["d", "a"], ["y"])], (3, 8),
              integers(6, 8), STEPS), "qdense",
    ),
    "turned data": (pairs([real(1), N("Gemm", ["d", "v"], ["y"], transA=1)], (8, 3), integers(8, 6), STEPS), "qdense"),
    "another view": (
        pairs([real(0), N("Identity", ["v"], ["a"]), N("Reshape", ["a", "h"], ["b"]), N("Conv", ["d", "b"], ["y"])],
              IMAGE, integers(6, 8, 9), STEPS, h=[6, 8, 3, 3]), "qconv2d",
    ),
    "a line": (pairs([real(0), N("Conv", ["d", "v"], ["y"])], (2, 8, 9), integers(6, 8, 3), STEPS), "qconv2d"),
    "another domain": (
        pairs([real(0, "com.microsoft"), N("Conv", ["d", "v"], ["y"])], IMAGE, integers(6, 8, 1, 1), STEPS), "qconv2d"
    ),
    "scales within a row": (pairs([real(0), PRODUCT], (3, 6), integers(6, 8), STEPS), "dense"),
    "scales of a window": (
        pairs([real(1), N("Conv", ["d", "v"], ["y"])], (2, 6, 7, 7), integers(4, 6, 1, 1), STEPS), "conv2d"
    ),
    "several zero points": (
        pairs([real(1), PRODUCT], (3, 8), integers(8, 6), STEPS, np.array([1, 2, 3, 0, 0, 9], "int8")), "dense"
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_weights_of_bytes_may_be_shown_otherwise(name: str) -> None:
    model, product = SHOWN[name]
    check(model, [product])


def check(model: Any, wanted: list[str]) -> None:
    """The products of a model, which computes what ONNX does."""
    from onnx.reference import ReferenceEvaluator

    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    given = {"x": integers(*shape, dtype="uint8")}
    network, _ = import_model(model)
    made = form(network, VNNI)
    assert products(made) == wanted
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    for node in plain.graph.node:
        node.domain = ""
    (expected,) = ReferenceEvaluator(plain).run(None, given)
    (found,) = evaluate(made.root, given)
    assert error_of(found, expected) < 1e-5


READ = {
    "a transposed convolution": ([N("ConvTranspose", ["d", "v"], ["y"], strides=[2, 2])], "conv2d"),
    "a weight that is data, too": (
        [N("Conv", ["d", "v"], ["a"]), N("ReduceSum", ["v"], ["b"], keepdims=0), N("Add", ["a", "b"], ["y"])], "qconv2d"
    ),
    "a weight that is computed": ([N("Abs", ["v"], ["a"]), N("Conv", ["d", "a"], ["y"])], "conv2d"),
    "a weight as data": ([N("Conv", ["v", "d"], ["y"])], None),
}


@pytest.mark.parametrize("name", READ)
def test_others_read_the_numbers_of_a_weight(name: str) -> None:
    nodes, product = READ[name]
    model = pairs([real(0), *nodes], (8, 8, 3, 3) if product is None else (1, 8, 5, 5), integers(8, 8, 3, 3), 0.02)
    check(model, [product or "conv2d"])


def test_integers_that_are_only_moved_stay_integers() -> None:
    nodes = [
        N("MaxPool", ["d"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]), N("QuantizeLinear", ["a", "s", "z"], ["b"]),
        N("DequantizeLinear", ["b", "s", "z"], ["c"]), N("Transpose", ["c"], ["e"], perm=[0, 2, 3, 1]),
        N("QuantizeLinear", ["e", "s", "z"], ["f"]), N("DequantizeLinear", ["f", "s", "z"], ["g"]),
        N("Relu", ["g"], ["y"]),
    ]
    model = pairs(nodes, IMAGE, integers(1), 1.0)
    check(model, [])
    network = form(import_model(model)[0], VNNI)
    assert kernels(network) == [("max_pool2d",), ("transpose", "dequantize", "relu")]


@pytest.mark.parametrize(("scale", "point"), [(0.051, 120), (0.05, 119)])
def test_integers_of_another_scale_are_rounded_anew(scale: float, point: int) -> None:
    nodes = [
        N("MaxPool", ["d"], ["a"], kernel_shape=[2, 2]), N("QuantizeLinear", ["a", "o", "p"], ["b"]),
        N("DequantizeLinear", ["b", "o", "p"], ["y"]),
    ]
    model = pairs(nodes, IMAGE, integers(1), 1.0, o=np.float32(scale), p=np.uint8(point))
    check(model, [])
    assert ("max_pool2d",) not in kernels(form(import_model(model)[0], VNNI))


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as done:
        main([str(a) for a in arguments])
    return int(done.value.code or 0)


@pytest.mark.usefixtures("builds")
@pytest.mark.parametrize("name", ["images-pairs", "images-operators-bytes", "rows-pairs", "rows-dynamic"])
def test_a_library_of_a_quantised_file_gives_the_values_of_onnx_runtime(name: str, tmp_path: Path) -> None:
    out = tmp_path / "model.so"
    assert call("compile", DATA / f"{name}.onnx", "-o", out, "--threads", "2", "--no-verify") == 0
    x, expected = values_of(name)
    found = np.empty_like(expected)
    pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (x, found))
    assert ctypes.CDLL(str(out)).plevel_model(*pointers) == 0
    assert error_of(found, expected) < 1e-2  # a step of the last integers


def test_extraction_names_products_of_integers(tmp_path: Path) -> None:
    out = tmp_path / "model.toml"
    assert call("extract", DATA / "images-pairs.onnx", "-o", out) == 0
    keys = [w["workload"] for w in tomllib.loads(out.read_text())["workloads"]]
    assert sum(key.startswith("qconv2d(") for key in keys) == 4
    assert sum(key.startswith("qdense(") for key in keys) == 1
    assert not any(key.startswith(("conv2d(", "dense(")) for key in keys)


def test_numbers_beside_a_half_may_be_rounded_to_either_integer() -> None:
    """The outputs of ONNX Runtime change as inputs, weights and scales are moved by a little, and by nothing else."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    made = run_model(read_model(DATA / "images-pairs.onnx", {})[0], [])
    assert made.moved is not None
    (right,) = made.outputs
    np.testing.assert_array_equal(made.moved(0.0)[0], right)
    assert 0 < error_of(made.moved(1e-3)[0], right) < 0.05
