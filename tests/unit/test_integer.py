"""Products of dequantised integers: the same values by products of integers, and what stays a product of floats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from strategy import reference
from strategy.expr import Call, Constant, Expr, Tuple, Var, call, post_order
from strategy.network.graph import Network
from strategy.network.group import groups
from strategy.network.integer import multiply_integers
from strategy.network.normal import normalize
from strategy.target import Target

from .test_network import evaluate, operators

VNNI, AVX2 = Target.parse("llvm -mcpu=znver4"), Target.parse("llvm -mcpu=haswell")
random = np.random.default_rng(0)


def numbers(*shape: int, dtype: str = "int8") -> np.ndarray:
    if dtype == "float32":
        return random.normal(size=shape)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def constant(value: Any, dtype: str) -> Constant:
    return Constant(np.asarray(value, dtype))


def real(x: Expr, scale: Any = 0.05, point: Any = 0, axis: int = -1) -> Call:
    given = [v if isinstance(v, Expr) else constant(v, d) for v, d in ((scale, "float32"), (point, "int32"))]
    return call("dequantize", x, *given, axis=axis)


def weight(*shape: int, point: int = 0, dtype: str = "int8") -> Call:
    scales = np.linspace(0.01, 0.03, shape[0])
    return real(Constant(numbers(*shape, dtype=dtype)), scales, np.full(shape[0], point), axis=0)


def check(output: Call, target: Target = VNNI, **computed: Any) -> Network:
    """The network by products of integers, whose values are those of floats."""
    inputs = [node for node in post_order(output) if isinstance(node, Var)]
    network = Network(tuple(inputs), {"y": output}, {})
    found = multiply_integers(network, target)
    data = {v.name: numbers(*v.type.concrete_shape, dtype=v.type.dtype) for v in inputs if v.name not in computed}
    data |= {name: np.asarray(value) for name, value in computed.items()}
    expected = evaluate(network.root, data)[0]
    least = 1e-5 * np.abs(expected).max()
    for made in (found, normalize(found)):
        np.testing.assert_allclose(evaluate(made.root, data)[0], expected, rtol=1e-5, atol=least)
    return normalize(found)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize(("point", "of_weight"), [(0, 0), (17, 0), (100, -3)])
def test_layers_of_bytes_are_products_of_integers(kind, point, of_weight):
    x, image = Var("x", f"{kind}[5,2,8]"), Var("x", f"{kind}[2,8,7,6]")
    rows = call("dense", call("reshape", real(x, 0.1, point), newshape=(10, 8)), weight(6, 8, point=of_weight))
    assert "qdense" in operators(check(rows))
    for attrs in ({"padding": 1}, {"strides": 2, "padding": (1, 0, 2, 1)}, {"groups": 2, "dilation": 2}):
        own = weight(6, 8 // attrs.get("groups", 1), 3, 3, point=of_weight)
        found = call("conv2d", real(image, 0.1, point), own, **attrs)
        assert "qconv2d" in operators(check(found))


def test_weights_may_be_shown_in_another_shape():
    x, line = Var("x", "uint8[5,8]"), Var("x", "uint8[2,8,1,9]")
    rows = call("dense", real(x, 0.1, 3), call("reshape", weight(6, 4, 2), newshape=(6, 8)))
    assert "qdense" in operators(check(rows))
    found = call("conv2d", real(line, 0.1, 3), call("reshape", weight(6, 8, 3), newshape=(6, 8, 1, 3)))
    assert "qconv2d" in operators(check(found))
    several = call("reshape", weight(2, 3, 8), newshape=(6, 8))  # one scale for three rows
    assert "qdense" in operators(check(call("dense", real(x, 0.1, 3), several)))


def test_operands_may_be_transposed():
    x, columns = Var("x", "uint8[8,5]"), real(Constant(numbers(8, 6)), np.linspace(0.01, 0.03, 6), axis=1)
    turned = call("transpose", real(x, 0.1, 3), axes=(1, 0))
    assert "qdense" in operators(check(call("dense", turned, call("transpose", columns, axes=(1, 0)))))
    turned = call("transpose", call("reshape", columns, newshape=(2, 4, 3, 2)), axes=(2, 3, 1, 0))
    rows = call("reshape", turned, newshape=(6, 8))
    assert "qdense" in operators(check(call("dense", real(Var("x", "uint8[5,8]"), 0.1, 3), rows)))


def test_one_scale_may_serve_all_of_a_weight():
    x, of_weight = Var("x", "uint8[3,8]"), real(Constant(numbers(6, 8, dtype="uint8")), 0.02, 128)
    assert "qdense" in operators(check(call("dense", real(x, 0.1, 3), of_weight)))


def test_scale_and_zero_point_of_the_data_may_be_computed_at_the_call():
    scale, point, image = Var("scale", "float32[1]"), Var("point", "int32[]"), Var("x", "uint8[2,4,7,6]")
    computed = {"scale": np.float32([0.07]), "point": np.int32(93)}
    one = call("reshape", scale, newshape=())
    rows = call("dense", real(Var("x", "uint8[5,8]"), one, point), weight(6, 8, point=2))
    assert "qdense" in operators(check(rows, **computed))
    for padding in (0, 1):
        found = call("conv2d", real(image, one, point), weight(6, 4, 3, 3), padding=padding)
        assert "qconv2d" in operators(check(found, **computed))


def test_rounding_joins_the_sums_of_integers_and_no_others():
    x = Var("x", "uint8[5,8]")
    for target, names in ((VNNI, ["qdense"]), (AVX2, ["dequantize", "dense", "round"])):
        found = call("bias_add", call("dense", real(x, 0.1, 3), weight(6, 8)), constant(np.ones(6), "float32"), axis=1)
        found = call("multiply", call("relu", found), constant(20, "float32"))
        found = call("clip", call("add", call("round", found), constant(7, "float32")), a_min=0.0, a_max=255.0)
        made = normalize(multiply_integers(Network((x,), {"y": call("cast", found, dtype="uint8")}, {}), target))
        assert [g.anchor.op.name for g in groups(made)] == names


def test_integers_of_a_layer_are_made_in_its_kernel():
    given = constant(0.3, "float32"), constant(17, "int32")
    for target, names in ((VNNI, ["qdense"]), (AVX2, ["dequantize", "dense", "quantize"])):
        x = Var("x", "uint8[2,3,8]")
        rows = call("dense", call("reshape", real(x, 0.1, 3), newshape=(6, 8)), weight(6, 8))
        found = call("relu", call("add", call("reshape", rows, newshape=(2, 3, 6)), constant(np.ones(6), "float32")))
        output = call("quantize", found, *given, out_dtype="uint8")
        made = normalize(multiply_integers(Network((x,), {"y": output}, {}), target))
        found = [g for g in groups(made) if g.anchor.op.name != "reshape"]
        assert [g.anchor.op.name for g in found] == names
        assert target is AVX2 or found[0].names[1:] == ("dequantize", "bias_add", "relu", "quantize")


@pytest.mark.parametrize(("scale", "names"), [(0.1, ["max_pool2d"]), (-0.1, ["dequantize", "max_pool2d", "quantize"])])
def test_the_largest_integers_are_those_of_the_largest_numbers(scale, names):
    pool = call("max_pool2d", real(Var("x", "uint8[1,2,4,4]"), scale, 17), pool_size=(2, 2), strides=(2, 2))
    found = check(call("quantize", pool, constant(scale, "float32"), constant(17, "int32"), out_dtype="uint8"))
    assert operators(found) == names


def test_integers_are_concatenated():
    x, y = Var("x", "uint8[2,3]"), Var("y", "uint8[2,4]")
    given = constant(0.1, "float32"), constant(17, "int32")
    both = call("concatenate", Tuple([real(x, 0.1, 17), real(y, 0.2, 3)]), axis=1)
    found = check(call("quantize", both, *given, out_dtype="uint8"))
    assert operators(found) == ["dequantize", "quantize", "concatenate"]  # those of x stay as they are


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (6,), (1, 6)])
def test_sums_of_integers_are_scaled_in_their_kernel(shape):
    x, bias = Var("x", "uint8[5,8]"), constant(np.linspace(-1, 1, 6), "float32")
    sums = call("cast", call("qdense", x, Constant(numbers(6, 8)), input_zero_point=9), dtype="float32")
    factor = constant(np.linspace(0.01, 0.02, 6)[: np.prod(shape, dtype=int)].reshape(shape), "float32")
    for operands in ((sums, factor), (factor, sums)):
        network = Network((x,), {"y": call("add", call("multiply", *operands), bias)}, {})
        made = normalize(network)
        (group,) = groups(made)
        assert group.names == ("qdense", "dequantize", "bias_add")
        data = {"x": numbers(5, 8, dtype="uint8")}
        np.testing.assert_allclose(*(evaluate(n.root, data)[0] for n in (network, made)), rtol=1e-6)


@pytest.mark.parametrize("shape", [(5, 1), (5, 6)])
def test_sums_of_integers_with_other_factors_are_multiplied(shape):
    x = Var("x", "uint8[5,8]")
    sums = call("cast", call("qdense", x, Constant(numbers(6, 8))), dtype="float32")
    factor = constant(np.linspace(0.01, 0.02, np.prod(shape)).reshape(shape), "float32")
    made = normalize(Network((x,), {"y": call("multiply", sums, factor)}, {}))
    assert "dequantize" not in operators(made)


X, IMAGE = Var("x", "uint8[5,8]"), Var("x", "uint8[2,4,7,6]")
LARGE = Constant(np.full((2, 80000), -128, np.int8))
LEFT = {
    "a target without instructions": (lambda: call("dense", real(X), weight(6, 8)), AVX2),
    "a length that no instruction takes": (lambda: call("dense", real(Var("x", "uint8[5,6]")), weight(6, 6)), VNNI),
    "sums beyond int32": (lambda: call("dense", real(Var("x", "uint8[1,80000]")), real(LARGE)), VNNI),
    "scales of the data's columns": (lambda: call("dense", real(X, np.linspace(1, 2, 8)), weight(6, 8)), VNNI),
    "zero points of the data's columns": (lambda: call("dense", real(X, 1, np.arange(8)), weight(6, 8)), VNNI),
    "scales of the weight's columns": (
        lambda: call("dense", real(X), real(Constant(numbers(6, 8)), np.linspace(1, 2, 8), axis=1)), VNNI
    ),
    "scales of parts of the weight's rows": (
        lambda: call("dense", real(Var("x", "uint8[5,16]")), call("reshape", weight(6, 8), newshape=(3, 16))), VNNI
    ),
    "scales of the weight's columns, turned": (
        lambda: call("dense", real(X), call("transpose", weight(8, 6), axes=(1, 0))), VNNI
    ),
    "several zero points of the weight": (
        lambda: call("dense", real(X), real(Constant(numbers(6, 8)), 1, np.arange(6), axis=0)), VNNI
    ),
    "a zero point that is no byte": (lambda: call("dense", real(X, 1, -5), weight(6, 8)), VNNI),
    "a weight's zero point that is no byte": (lambda: call("dense", real(X), weight(6, 8, point=200)), VNNI),
    "a scale that float32 lacks": (lambda: call("dense", real(X, 1e-30), real(Constant(numbers(6, 8)), 1e-12)), VNNI),
    "a weight that is no constant": (lambda: call("dense", real(X), real(Var("w", "int8[6,8]"))), VNNI),
    "a weight of numbers": (lambda: call("dense", real(X), constant(np.ones((6, 8)), "float32")), VNNI),
    "numbers beside bytes": (lambda: call("dense", Var("x", "float32[5,8]"), weight(6, 8)), VNNI),
    "wider integers": (lambda: call("dense", real(Var("x", "int32[5,8]")), weight(6, 8)), VNNI),
    "a layout": (
        lambda: call("conv2d", real(Var("x", "uint8[2,7,6,4]")), weight(6, 3, 3, 4), data_layout="NHWC",
                     kernel_layout="OHWI"), VNNI,
    ),
    "a depthwise convolution whose sums float32 lacks": (
        lambda: call("conv2d", real(Var("x", "uint8[1,2,40,40]"), 1, 0), weight(2, 1, 33, 33), groups=2), AVX2
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_products_stay(name):
    make, target = LEFT[name]
    assert not {"qdense", "qconv2d"} & set(operators(check(make(), target)))


def test_a_network_of_symbolic_sizes_has_products_of_integers_in_both_its_forms():
    twin, network = (
        Network((x,), {"y": call("dense", real(x, 0.1), weight(6, 8))}, {})
        for x in (Var("x", f"uint8[{rows},8]") for rows in (5, 7))
    )
    found = multiply_integers(replace(network, twin=twin), VNNI)
    assert found.twin
    assert all("qdense" in operators(one) for one in (found, found.twin))


@pytest.mark.parametrize("point", [0, "several"])
@pytest.mark.parametrize("of_weight", [0, -3])
def test_data_may_have_a_scale_for_each_row(point, of_weight):
    q, shape = Var("q", "int8[9,40]"), (3, 3, 40)
    scales = Var("scales", "float32[9]")
    points = Var("points", "int32[9]") if point else constant(0, "int32")
    given = real(call("reshape", call("reshape", q, newshape=shape), newshape=(9, 40)), scales, points, axis=0)
    rows = call("reshape", call("reshape", given, newshape=shape), newshape=(9, 40))
    product = call("dense", rows, weight(24, 40, point=of_weight))
    output = call("relu", call("bias_add", product, constant(random.normal(size=24), "float32"), axis=1))
    computed = {"scales": np.linspace(0.01, 0.05, 9, dtype=np.float32)}
    computed |= {"points": np.arange(-4, 5, dtype=np.int32)} if point else {}
    (names,) = (g.names for g in groups(check(output, **computed)) if g.anchor.op.name == "qdense")
    added = ("add",) if point else ()
    assert names == ("qdense", *added, "dequantize", "multiply", "bias_add", "relu")


@pytest.mark.parametrize(("rows", "axis"), [((40, 9), 1), ((9, 40), 1)])
def test_other_scales_of_data_leave_products_of_floats(rows, axis):
    scales = np.linspace(0.01, 0.05, rows[axis])
    given = real(Var("q", f"int8[{rows[0]},{rows[1]}]"), scales, axis=axis)
    assert "qdense" not in operators(check(call("dense", given, weight(24, rows[1]))))


@pytest.mark.parametrize("offset", [128, 127])
def test_bytes_with_an_offset_are_products_of_signed_bytes(offset):
    """As torchao multiplies on processors without products of signed bytes."""
    q, numbers_ = Var("q", "int8[5,40]"), Constant(numbers(24, 40))
    wide = call("add", call("cast", q, dtype="int32"), constant(offset, "int32"))
    share = constant(offset * numbers_.value.astype(np.int32).sum(axis=1)[None], "int32")
    sums = call("subtract", call("qdense", call("cast", wide, dtype="uint8"), numbers_), share)
    rows = call("multiply", call("cast", sums, dtype="float32"), Var("scales", "float32[5,1]"))
    scaled = call("multiply", rows, constant(np.linspace(0.01, 0.02, 24), "float32"))
    output = call("add", scaled, constant(random.normal(size=24), "float32"))
    scales = np.linspace(0.01, 0.05, 5, dtype=np.float32)[:, None]
    made = check(output, q=np.maximum(numbers(5, 40), -100), scales=scales)
    (names,) = (g.names for g in groups(made) if g.anchor.op.name == "qdense")
    assert (names == ("qdense", "dequantize", "multiply", "bias_add")) == (offset == 128)


def blocks(n: int, k: int, size: int, low: int, high: int, point: int = 0) -> Expr:
    """A weight whose integers share a scale in blocks of a row, as torchao's groups are written."""
    count = n * k // size
    given = Constant(random.integers(low, high, (count, size), "int8", endpoint=True))
    found = real(given, random.uniform(0.01, 0.03, count), np.full(count, point), axis=0)
    return call("reshape", found, newshape=(n, k))


@pytest.mark.parametrize(
    ("low", "high", "point", "bits"), [(-8, 7, 0, 4), (-4, 3, 4, 4), (-128, 127, 0, 8), (-5, 9, 1, 8)]
)
def test_a_few_rows_of_floats_read_the_integers_of_a_weight(low, high, point, bits):
    x = Var("x", "float32[3,64]")
    network = Network((x,), {"y": call("dense", x, blocks(24, 64, 32, low, high, point))}, {})
    made, data = normalize(multiply_integers(network, VNNI)), {"x": numbers(3, 64, dtype="float32").astype(np.float32)}
    found, expected = (reference.evaluate(n.root, data)[0] for n in (made, network))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    (product,) = (node for node in post_order(made.root) if isinstance(node, Call) and node.op.name == "matmul_nbits")
    assert (product.attrs.bits, product.attrs.block_size) == (bits, 32)


OTHERS = {
    "many rows": lambda: call("dense", Var("x", "float32[9,64]"), blocks(24, 64, 32, -8, 7)),
    "short blocks": lambda: call("dense", Var("x", "float32[3,64]"), blocks(24, 64, 8, -8, 7)),
    "an odd k": lambda: call("dense", Var("x", "float32[3,33]"), blocks(24, 33, 33, -8, 7)),
    "zero points beyond 8 bits": lambda: call("dense", Var("x", "float32[3,64]"), blocks(24, 64, 32, -128, 127, 9)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_weights_are_floats(name):
    assert "matmul_nbits" not in operators(check(OTHERS[name]()))


def test_a_cast_weight_with_a_scale_for_each_row_is_read_as_bytes():
    x, of_weight = Var("x", "float32[3,64]"), call("cast", Constant(numbers(64, 24)), dtype="float32")
    product = call("dense", x, call("transpose", of_weight))
    made = check(call("multiply", product, constant(random.uniform(0.01, 0.02, 24), "float32")))
    assert "matmul_nbits" in operators(made)
