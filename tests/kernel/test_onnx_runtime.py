"""Operators that ONNX Runtime's optimizer writes into models, beside NumPy and ONNX Runtime. Nothing is compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from plevel.comparison import error_of  # noqa: E402
from plevel.onnx.file import read_model  # noqa: E402
from plevel.onnx.network import import_model, run_model  # noqa: E402
from strategy.network.graph import NetworkError  # noqa: E402
from strategy.reference import evaluate  # noqa: E402

RANDOM = np.random.default_rng(0)


def N(kind: str, inputs: str, outputs: str = "y", domain: str = "com.microsoft", **attrs: Any) -> Any:
    """A node; a dot stands for an input that is left out."""
    names = [name.strip(".") for name in inputs.split()]
    return helper.make_node(kind, names, [n.strip(".") for n in outputs.split()], domain=domain, **attrs)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype("float32")


def model_of(nodes: list[Any], given: dict[str, Any], constants: dict[str, Any], opset: int = 18) -> Any:
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given.items()
    ]
    weights = [numpy_helper.from_array(np.asarray(c), n) for n, c in constants.items()]
    kind = TensorProto.UINT8 if nodes[-1].op_type.startswith("QLinear") else TensorProto.FLOAT
    output = helper.make_tensor_value_info("y", kind, None)
    output.type.tensor_type.shape.SetInParent()  # unknown
    graph = helper.make_graph(nodes, "small", inputs, [output], weights)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=9)


def values_of(model: Any, path: Path, given: dict[str, Any]) -> Any:
    (path / "model.onnx").write_bytes(model.SerializeToString())
    network = import_model(read_model(path / "model.onnx", {})[0])[0]
    return evaluate(network.root, given)[0]


def gelu(x: Any) -> Any:
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def by_tangent(x: Any) -> Any:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def norm(x: Any, scale: Any, shift: Any = 0, epsilon: float = 1e-12) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * scale + shift


def root_norm(x: Any, scale: Any, epsilon: float = 1e-12) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale


def apart(x: Any, heads: int) -> Any:
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def attended(q: Any, k: Any, v: Any, added: Any = 0, causal: bool = False) -> Any:
    """The rows of heads; keys and values may be shared by several."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3]) + added
    m, n = scores.shape[2:]
    if causal:
        scores = np.where(np.arange(n) <= np.arange(n - m, n)[:, None], scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    found = powers / powers.sum(-1, keepdims=True) @ v
    return found.swapaxes(1, 2).reshape(found.shape[0], m, -1)


def turned(x: Any, i: Any, cos: Any, sin: Any, interleaved: bool = False) -> Any:
    """Heads with the first elements of their vectors in turned pairs, by the angles of places i, [batch, m]."""
    half = cos.shape[1]
    c, s = (v[i][:, None] for v in (cos, sin))
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (
        slice(0, half), slice(half, 2 * half)
    )
    found = x.copy()
    found[..., first] = x[..., first] * c - x[..., second] * s
    found[..., second] = x[..., second] * c + x[..., first] * s
    return found


def rows(x: Any) -> Any:
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


ANGLES = np.arange(16)[:, None] * np.float32([1, 0.3])
TURNS = {"cos": np.cos(ANGLES).astype("float32"), "sin": np.sin(ANGLES).astype("float32")}
X, ROWS = {"x": normal(2, 3, 8)}, {"q": normal(2, 3, 8), "k": normal(2, 5, 8), "v": normal(2, 5, 8)}
MASK = np.int32([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])
PACKED = {"x": normal(2, 3, 6), "w": normal(6, 24), "b": normal(24)}
BYTES = {"x": RANDOM.integers(0, 256, (2, 3, 8), dtype="uint8")}
COLUMNS = {"w": RANDOM.integers(-128, 128, (8, 5), dtype="int8"), "t": np.abs(normal(5)) / 99, "b": normal(5)}
GROUPED = {"q": normal(2, 1, 64), "k": normal(2, 1, 32), "v": normal(2, 1, 32)}
CACHE = {"p": normal(2, 2, 6, 16), "r": normal(2, 2, 6, 16), "n": np.int32([4, 5])}
LENGTH = {"t": np.int32(6), **{name: np.tile(of, 4) for name, of in TURNS.items()}}


def packed(mask: Any = 0, causal: bool = False) -> Callable[..., Any]:
    def exact(x: Any, w: Any, b: Any, **_: Any) -> Any:
        q, k, v = (apart(p, 2) for p in np.split(x @ w + b, 3, -1))
        return attended(q, k, v, mask, causal)

    return exact


def grouped(q: Any, k: Any, v: Any, p: Any, r: Any, n: Any, cos: Any, sin: Any, window: int = 99, **_: Any) -> Any:
    """One token of each batch entry behind as many of its cache as its own length says."""
    q, k, v = apart(q, 4), apart(k, 2), apart(v, 2)
    q, k = (turned(x, n[:, None], cos, sin) for x in (q, k))
    found = []
    for i, length in enumerate(n):
        keys, values = (np.concatenate([c[i : i + 1, :, :length], x[i : i + 1]], 2) for c, x in ((p, k), (r, v)))
        begin = max(0, length + 1 - window)
        found.append(attended(q[i : i + 1], keys[:, :, begin:], values[:, :, begin:]))
    return np.concatenate(found)


HIDDEN = np.where(MASK, 0, -10000)[:, None, None]
CASES: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any], Callable[..., Any]]] = {
    "gelu": ([N("Gelu", "x")], X, {}, gelu),
    "gelu of a sum": ([N("BiasGelu", "x b")], X, {"b": normal(8)}, lambda x, b: gelu(x + b)),
    "fast gelu": ([N("FastGelu", "x b")], X, {"b": normal(8)}, lambda x, b: by_tangent(x + b)),
    "quick gelu": ([N("QuickGelu", "x", alpha=1.5)], X, {}, lambda x: x / (1 + np.exp(-1.5 * x))),
    "a gelu of halves": (
        [N("BiasSplitGelu", "x b")], X, {"b": normal(8)}, lambda x, b: (x + b)[..., :4] * gelu((x + b)[..., 4:])
    ),
    "a sum of three": (
        [N("BiasAdd", "x b s")], X, {"b": normal(8), "s": normal(2, 3, 8)}, lambda x, b, s: x + b + s
    ),
    "a product of turned matrices": (
        [N("FusedMatMul", "x w", transA=1, transB=1, alpha=0.5)], X, {"w": normal(2, 4, 3)},
        lambda x, w: x.swapaxes(1, 2) @ w.swapaxes(1, 2) / 2,
    ),
    "a convolution, clipped": (
        [N("FusedConv", "x w b", activation="Clip", activation_params=[-0.5, 0.25])], {"x": normal(1, 3, 4, 4)},
        {"w": normal(2, 3, 1, 1), "b": normal(2)},
        lambda x, w, b: np.clip(np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0]) + b[:, None, None], -0.5, 0.25),
    ),
    "a convolution, a sum and a leaky relu": (
        [N("FusedConv", "x w . s", activation="LeakyRelu", activation_params=[0.25])],
        {"x": normal(1, 3, 4, 4), "s": normal(1, 2, 4, 4)}, {"w": normal(2, 3, 1, 1)},
        lambda x, w, s: (y := np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0]) + s) * np.where(y < 0, 0.25, 1),
    ),
    "a product with a relu": (
        [N("FusedGemm", "x w b", activation="Relu", transB=1, alpha=2.0)], {"x": normal(3, 4)},
        {"w": normal(5, 4), "b": normal(5)}, lambda x, w, b: np.maximum(2 * x @ w.T + b, 0),
    ),
    "a norm of a sum": (
        [N("SkipLayerNormalization", "x s g h b", epsilon=1e-5)], {**X, "s": normal(2, 3, 8)},
        {"g": normal(8), "h": normal(8), "b": normal(8)}, lambda x, s, g, h, b: norm(x + s + b, g, h, 1e-5),
    ),
    "a sum beside its norm": (
        [N("SkipLayerNormalization", "x s g", "n . . y")], {**X, "s": normal(2, 3, 8)}, {"g": normal(8)},
        lambda x, s, g: x + s,
    ),
    "a norm by roots of a sum": (
        [N("SkipSimplifiedLayerNormalization", "x s g b")], {**X, "s": normal(2, 3, 8)},
        {"g": normal(8), "b": normal(8)}, lambda x, s, g, b: root_norm(x + s + b, g),
    ),
    "a norm by roots, in ONNX's own domain": (
        [N("SimplifiedLayerNormalization", "x g", domain="", epsilon=1e-6, axis=-1)], X, {"g": normal(8)},
        lambda x, g: root_norm(x, g, 1e-6),
    ),
    "a norm of embeddings": (
        [N("EmbedLayerNormalization", "i s w p t g h m", "y n", epsilon=1e-6)],
        {"i": np.int32([[0, 2, 1], [3, 3, 0]]), "s": np.int32([[0, 1, 1], [1, 0, 0]]), "m": np.int32([[1] * 3] * 2)},
        {"w": normal(4, 8), "p": normal(5, 8), "t": normal(2, 8), "g": normal(8), "h": normal(8)},
        lambda i, s, m, w, p, t, g, h: norm(w[i] + p[:3] + t[s], g, h, 1e-6),
    ),
    "attention of one projection": (
        [N("Attention", "x w b", num_heads=2)], {"x": PACKED["x"]}, {n: PACKED[n] for n in "wb"}, packed()
    ),
    "attention up to one's own place": (
        [N("Attention", "x w b", num_heads=2, unidirectional=1)], {"x": PACKED["x"]}, {n: PACKED[n] for n in "wb"},
        packed(causal=True),
    ),
    "attention up to one's own place, with a mask": (
        [N("Attention", "x w b m", num_heads=2, unidirectional=1)], {"x": PACKED["x"], "m": MASK[:, :3]},
        {n: PACKED[n] for n in "wb"}, packed(HIDDEN[..., :3], causal=True),
    ),
    "attention of ends": (
        [N("Attention", "x w b m", num_heads=2)], {"x": PACKED["x"], "m": np.int32([2, 3])},
        {n: PACKED[n] for n in "wb"}, packed(np.float32([[0, 0, -10000], [0, 0, 0]])[:, None, None]),
    ),
    "attention of both ends": (
        [N("Attention", "x w b m", num_heads=2)], {"x": PACKED["x"], "m": np.int32([3, 3, 1, 0])},
        {n: PACKED[n] for n in "wb"}, packed(np.float32([[-10000, 0, 0], [0, 0, 0]])[:, None, None]),
    ),
    "attention behind a past": (
        [N("Attention", "x w b . p", "y z", num_heads=2, unidirectional=1)],
        {"x": PACKED["x"], "p": normal(2, 2, 2, 5, 4)}, {n: PACKED[n] for n in "wb"},
        lambda x, w, b, p: attended(
            (each := [apart(v, 2) for v in np.split(x @ w + b, 3, -1)])[0], np.concatenate([p[0], each[1]], 2),
            np.concatenate([p[1], each[2]], 2), causal=True,
        ),
    ),
    "attention of several heads": (
        [N("MultiHeadAttention", "q k v b m", num_heads=2)], {**ROWS, "m": MASK}, {"b": normal(24)},
        lambda q, k, v, m, b: attended(*(
            apart(x + own, 2) for x, own in zip((q, k, v), np.split(b, 3), strict=True)
        ), HIDDEN),
    ),
    "attention with an added number for each pair": (
        [N("MultiHeadAttention", "q k v . . a", num_heads=2, scale=0.25)], {**ROWS, "a": normal(1, 2, 3, 5)}, {},
        lambda q, k, v, a: attended(apart(q, 2) * 0.5, apart(k, 2), apart(v, 2), a),
    ),
    "attention of packed projections": (
        [N("MultiHeadAttention", "q", num_heads=2)], {"q": normal(2, 3, 2, 3, 4)}, {},
        lambda q: attended(*(q[:, :, :, i].swapaxes(1, 2) for i in range(3))),
    ),
    "attention behind a cache": (
        [N("MultiHeadAttention", "q k v . . . p r", "y c d", num_heads=2, unidirectional=1)],
        {"q": normal(2, 3, 8), "k": normal(2, 3, 8), "v": normal(2, 3, 8), "p": normal(2, 2, 4, 4),
         "r": normal(2, 2, 4, 4)}, {},
        lambda q, k, v, p, r: attended(
            apart(q, 2), np.concatenate([p, apart(k, 2)], 2), np.concatenate([r, apart(v, 2)], 2), causal=True
        ),
    ),
    **{
        f"turned pairs, {name}": (
            [N("RotaryEmbedding", "x i cos sin", **attrs)], {"x": x, "i": places}, TURNS, exact
        )
        for name, x, places, attrs, exact in (
            ("of heads", normal(2, 3, 5, 4), np.asarray([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]]), {}, turned),
            ("of rows", normal(2, 5, 8), np.asarray([3]), {"interleaved": 1},
             lambda x, i, cos, sin: rows(turned(apart(x, 2), 3 + np.arange(5)[None], cos, sin, True))),
            ("of a part", normal(2, 5, 12), np.asarray([0]), {"num_heads": 2, "rotary_embedding_dim": 4},
             lambda x, i, cos, sin: rows(turned(apart(x, 2), np.arange(5)[None], cos, sin))),
        )
    },
    "a token behind its own cache": (
        [N("GroupQueryAttention", "q k v p r n t cos sin", "y c d", num_heads=4, kv_num_heads=2, do_rotary=1)],
        {**GROUPED, **CACHE}, LENGTH, grouped,
    ),
    "a token behind the last of its cache": (
        [N(
            "GroupQueryAttention", "q k v p r n t cos sin", "y c d", num_heads=4, kv_num_heads=2, do_rotary=1,
            local_window_size=3,
        )], {**GROUPED, **CACHE}, LENGTH, lambda **given: grouped(**given, window=3),
    ),
    "a prompt of shared heads": (
        [N("GroupQueryAttention", "q k v . . n t", "y c d", num_heads=4, kv_num_heads=2)],
        {"q": normal(1, 5, 32), "k": normal(1, 5, 16), "v": normal(1, 5, 16), "n": np.int32([4])}, {"t": np.int32(5)},
        lambda q, k, v, **_: attended(apart(q, 4), apart(k, 2), apart(v, 2), causal=True),
    ),
    "integers times their scales": (
        [N("MatMulIntegerToFloat", "x w s t z v b")], BYTES,
        {**COLUMNS, "s": np.float32(0.02), "z": np.uint8(9), "v": np.int8(3)},
        lambda x, w, t, b, s, z, v: (x.astype(float) - z) @ (w.astype(float) - v) * s * t + b,
    ),
    "integers of one scale": (
        [N("QLinearWhere", "c x s z u t z s z")], {**BYTES, "c": RANDOM.random((2, 3, 8)) < 0.5},
        {"s": np.float32(0.1), "t": np.float32(0.3), "z": np.uint8(9), "u": np.uint8(40)},
        lambda x, c, s, t, z, u: np.rint(np.where(c, x.astype(float) - z, 31 * 3)) + z,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_onnx_runtime_documents(name: str, tmp_path: Path) -> None:
    nodes, given, constants, exact = CASES[name]
    found = values_of(model_of(nodes, given, constants), tmp_path, given)
    assert error_of(found, exact(**given, **constants)) < 1e-5


def run(model: Any, given: dict[str, Any]) -> Any:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    runtime.set_default_logger_severity(4)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["y"], given)[0]


_FOR_GPUS = ("a gelu of halves", "a sum of three", "attention of packed projections")


@pytest.mark.parametrize("name", [name for name in CASES if name not in _FOR_GPUS])
def test_it_computes_what_onnx_runtime_does(name: str, tmp_path: Path) -> None:
    nodes, given, constants, _ = CASES[name]
    model = model_of(nodes, given, constants)
    assert error_of(values_of(model, tmp_path, given), run(model, given)) < 1e-5


@pytest.mark.parametrize("kind", ["DynamicQuantizeMatMul", "QAttention", "QLinearSoftmax"])
def test_quantised_products_are_those_of_onnx_runtime(kind: str, tmp_path: Path) -> None:
    scale, point = np.float32(0.02), np.uint8(9)
    nodes, given, constants = {
        "DynamicQuantizeMatMul": ([N(kind, "x w t . b")], X, COLUMNS),
        "QAttention": (
            [N(kind, "x w b s t m z", num_heads=2)],
            {"x": BYTES["x"], "m": MASK[:, :3]},
            {"w": RANDOM.integers(-9, 9, (8, 24), dtype="int8"), "b": normal(24), "s": scale, "t": scale, "z": point},
        ),
        "QLinearSoftmax": (
            [N(kind, "x s z u z", axis=-1, opset=13)], BYTES, {"s": scale, "z": point, "u": np.float32(1 / 256)}
        ),
    }[kind]
    model = model_of(nodes, given, constants)
    assert error_of(values_of(model, tmp_path, given), run(model, given)) < 5e-3


def test_a_layer_norm_of_an_older_operator_set_is_read(tmp_path: Path) -> None:
    """As ONNX Runtime's optimizer writes it: ONNX has it from operator set 17 on."""
    node, constants = N("LayerNormalization", "x g h", domain="", epsilon=1e-5), {"g": normal(8), "h": normal(8)}
    found = values_of(model_of([node], X, constants, opset=13), tmp_path, X)
    assert error_of(found, norm(X["x"], *constants.values(), 1e-5)) < 1e-6


@pytest.mark.parametrize(("message", "node"), [
    ("activation 'Elu': plevel has Relu", N("FusedGemm", "x c", activation="Elu")),
    ("transposes the last two axes alone", N("FusedMatMul", "x c", transBatchA=1)),
    ("a mask of int32", N("Attention", "e w . m", num_heads=1)),
    ("total_sequence_length is not constant", N("GroupQueryAttention", "e . . . . m l", num_heads=2, kv_num_heads=1)),
])
def test_what_is_not_computed_is_refused(message: str, node: Any, tmp_path: Path) -> None:
    given = {"x": normal(4, 4), "e": normal(1, 2, 4), "m": np.int32([1, 2, 3]), "l": np.int32(2)}
    with pytest.raises(NetworkError, match=message):
        values_of(model_of([node], given, {"c": normal(4, 4), "w": normal(4, 12)}), tmp_path, given)


def test_weights_that_are_too_large_for_a_message_are_given_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.setattr("plevel.onnx.network._IN_MESSAGE", 1)
    weight = normal(40, 64)
    model = model_of([N("MatMul", "x w", domain="")], {"x": normal(3, 40)}, {"w": weight})
    made = run_model(model, [])
    assert made.decides
    np.testing.assert_allclose(made.outputs[0], made.inputs[0] @ weight, rtol=1e-4, atol=1e-5)
    assert len(model.graph.initializer[0].raw_data) == weight.nbytes  # of the copy alone


def test_quantised_numbers_are_those_of_the_file_and_not_of_fused_kernels() -> None:
    """ONNX Runtime's optimizer takes a softmax of integers, some of which are off by one."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    constants = {"s": np.float32(0.03), "z": np.uint8(120), "t": np.float32(0.013), "o": np.uint8(7)}
    nodes = [
        N("QuantizeLinear", "x s z", "q", domain=""), N("DequantizeLinear", "q s z", "d", domain=""),
        N("Softmax", "d", "p", domain="", axis=-1), N("QuantizeLinear", "p t o", "r", domain=""),
        N("DequantizeLinear", "r t o", domain=""),
    ]
    model = model_of(nodes, {"x": normal(64, 32)}, constants)
    made = run_model(model, [])
    (found,) = evaluate(import_model(model)[0].root, {"x": made.inputs[0]})
    assert error_of(found, made.outputs[0]) < 1e-6
