"""Normal form of networks: batch norms in the convolutions before them, by value and by workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pytest

from strategy.expr import Call, Constant, Expr, Tuple, Var, call, post_order
from strategy.network import layer
from strategy.network.derivation import name_extents
from strategy.network.extent import Extent
from strategy.network.graph import Network, NetworkError
from strategy.network.group import groups, require_twin, require_types
from strategy.network.memory import Life, share
from strategy.network.normal import normalize
from strategy.network.plan import Place, Plan
from strategy.network.probe import PROBES, make_sizes
from strategy.network.rewriter import extents
from strategy.network.size import MOST, NAMES, PROBED
from strategy.network.sizing import write_sizes
from strategy.types import TensorType
from workers.reference import numpy_dtype

CHANNELS = 6


class Weights:
    """Constants drawn from one seed."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def __call__(self, *shape: int) -> Constant:
        return Constant(self.random.uniform(0.5, 2, shape).astype("float32"))

    def norm(self, x: Expr) -> Expr:
        size = extents(x)[1]
        return layer.batch_norm(x, self(size), self(size), self(size), self(size), 1e-5)


def convolution(x: Expr, weight: Expr, bias: Expr | None, groups: int = 1) -> Expr:
    rank = len(extents(x)) - 2
    one = (1,) * rank
    return layer.convolution(x, weight, bias, strides=one, padding=one * 2, dilation=one, groups=groups)


def evaluate(root: Expr, given: dict[str, Any]) -> Any:
    values: dict[Expr, Any] = {}
    for node in post_order(root):
        inputs = [v for i in node.inputs for v in (values[i] if isinstance(i, Tuple) else [values[i]])]
        if isinstance(node, Call):
            reference = node.op.get_attr("FReference")
            values[node] = reference(node.attrs, inputs).reshape(extents(node))
        elif isinstance(node, Tuple):
            values[node] = inputs
        elif isinstance(node, Constant):
            values[node] = node.value if node.value.dtype == bool else node.value.astype("float64")
        else:
            values[node] = given[node.name]
    return values[root][0]


def operators(network: Network) -> list[str]:
    return [n.op.name for n in post_order(network.root) if isinstance(n, Call) and n.op.name != "reshape"]


FOLDED = {
    "plain": ((1, 4, 8, 8), lambda x, w: w.norm(convolution(x, w(CHANNELS, 4, 3, 3), None))),
    "bias": ((2, 4, 8, 8), lambda x, w: w.norm(convolution(x, w(CHANNELS, 4, 3, 3), w(CHANNELS)))),
    "grouped": ((1, 4, 8, 8), lambda x, w: w.norm(convolution(x, w(CHANNELS, 2, 3, 3), w(CHANNELS), 2))),
    "depthwise": ((1, 4, 8, 8), lambda x, w: w.norm(convolution(x, w(4, 1, 3, 3), None, 4))),
    "one dimension": ((2, 4, 8), lambda x, w: w.norm(convolution(x, w(CHANNELS, 4, 3), w(CHANNELS)))),
    "one dimension, no bias": ((2, 4, 8), lambda x, w: w.norm(convolution(x, w(CHANNELS, 4, 3), None))),
    "twice": ((1, 4, 8, 8), lambda x, w: w.norm(w.norm(convolution(x, w(CHANNELS, 4, 3, 3), w(CHANNELS))))),
}


@pytest.mark.parametrize("name", FOLDED)
def test_a_batch_norm_becomes_weights_and_bias_of_the_convolution_before_it(name: str) -> None:
    shape, make = FOLDED[name]
    x, weights = Var("x", f"float32[{','.join(map(str, shape))}]"), Weights()
    given = Network((x,), {"y": call("relu", make(x, weights))}, {})
    found = normalize(given)
    assert operators(found) == ["conv2d", "bias_add", "relu"]
    data = {"x": weights.random.normal(size=shape)}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-5, atol=1e-5)


def test_a_convolution_that_others_read_keeps_its_weights() -> None:
    x, weights = Var("x", "float32[1,4,8,8]"), Weights()
    read = convolution(x, weights(CHANNELS, 4, 3, 3), weights(CHANNELS))
    given = Network((x,), {"y": call("add", read, weights.norm(read))}, {})
    found = normalize(given)
    assert operators(found)[:2] == ["conv2d", "bias_add"]
    data = {"x": weights.random.normal(size=(1, 4, 8, 8))}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-5, atol=1e-5)


def number(value: float) -> Constant:
    return Constant(np.float32(value))


SCORES: dict[str, tuple[Callable[[Expr, Expr, Expr], Expr], list[str]]] = {
    "scale": (lambda x, m, b: call("softmax", call("divide", x, number(8)), axis=1), ["softmax"]),
    "scale by a quotient": (
        lambda x, m, b: call("softmax", call("add", call("divide", x, number(3)), m)), ["softmax_bias"]
    ),
    "scale by a quotient alone": (lambda x, m, b: call("softmax", call("divide", x, number(3))), ["softmax"]),
    "scale of a logarithm": (lambda x, m, b: call("log_softmax", call("multiply", number(0.5), x)), ["log_softmax"]),
    "scale and mask": (
        lambda x, m, b: call("softmax", call("add", call("divide", x, number(8)), m)), ["softmax_bias"]
    ),
    "mask, then scale": (
        lambda x, m, b: call("softmax", call("multiply", call("add", m, x), number(3))), ["add", "softmax"]
    ),
    "mask of bools": (
        lambda x, m, b: call("softmax", call("where", b, call("multiply", x, number(3)), number(-np.inf))),
        ["softmax_bias"],
    ),
    "mask of a large number": (
        lambda x, m, b: call("softmax", call("where", b, x, number(-9))), ["where", "softmax"]
    ),
    "mask before another axis": (lambda x, m, b: call("softmax", call("add", x, m), axis=0), ["softmax_bias"]),
    "mask that others read": (
        lambda x, m, b: call("add", call("softmax", shared := call("add", x, m)), shared), ["add", "softmax", "add"]
    ),
    "epilogue of a product": (
        lambda x, m, b: call("softmax", call("multiply", call("dense", x, x), number(3))),
        ["dense", "multiply", "softmax"],
    ),
}


@pytest.mark.parametrize("name", SCORES)
def test_a_softmax_takes_the_scale_and_the_mask_before_it(name: str) -> None:
    make, expected = SCORES[name]
    x, mask, seen = Var("x", "float32[4,6]"), Var("m", "float32[6]"), Var("b", "bool[4,1]")
    found = normalize(given := Network((x, mask, seen), {"y": make(x, mask, seen)}, {}))
    assert operators(found) == expected
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(4, 6)), "m": rng.normal(size=6), "b": np.array([[True], [True], [True], [False]])}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-6)


LATER = ~np.tri(5, 5, dtype=bool)
MASKS: dict[str, tuple[Any, str, bool]] = {
    "all seen": (~np.zeros((1, 1, 5, 5), bool), "attention", False),
    "all seen, of fewer axes": (np.ones(5, bool), "attention", False),
    "nothing added": (np.zeros((2, 1, 1, 5), "f"), "attention", False),
    "what comes later": (~LATER, "attention", True),
    "what comes later, of each head": (np.broadcast_to(~LATER, (2, 3, 5, 5)).copy(), "attention", True),
    "minus infinity": (np.where(LATER, -np.inf, 0).astype("f"), "attention", True),
    "the least number": (np.where(LATER, np.finfo("f").min, 0).astype("f"), "attention", True),
    "a large number": (np.where(LATER, -9, 0).astype("f"), "attention_bias", False),
    "no number": (np.where(LATER, np.nan, 0).astype("f"), "attention_bias", False),
    "other places": (LATER, "attention_bias", False),
    "of some heads": (np.stack([~LATER, ~LATER, np.ones((5, 5), bool)])[None], "attention_bias", False),
    "one row": (~LATER[:1], "attention_bias", False),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_a_constant_mask_that_attention_does_not_need_goes(name: str, causal: bool) -> None:
    mask, expected, becomes = MASKS[name]
    q, k, v = (Var(n, "float32[2,3,5,4]") for n in "qkv")
    made = call("attention_bias", q, k, v, Constant(mask), scale=0.3, is_causal=causal)
    found = normalize(given := Network((q, k, v), {"y": made}, {}))
    attention = found.outputs["y"]
    assert isinstance(attention, Call)
    if causal and becomes:
        expected = "attention_bias"  # once is enough, and rare
    assert attention.op.name == expected
    assert attention.attrs.to_json().get("is_causal", False) == (causal or becomes)
    rng = np.random.default_rng(0)
    data = {n: rng.normal(size=(2, 3, 5, 4)) for n in "qkv"}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-6)


def test_a_mask_over_queries_of_another_layout_is_taken_by_its_own_extents() -> None:
    q, k = Var("q", "float32[1,5,3,4]"), Var("k", "float32[1,5,3,4]")
    made = call("attention_bias", q, k, k, Constant(~LATER), layout="BSHD")
    found = normalize(given := Network((q, k), {"y": made}, {}))
    assert operators(found) == ["attention"]
    rng = np.random.default_rng(0)
    data = {n: rng.normal(size=(1, 5, 3, 4)) for n in "qk"}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-6)


def heads(x: Expr, count: int) -> Expr:
    """[batch, heads, tokens, depth] of [batch, tokens, channels], as BERT's."""
    batch, tokens, channels = extents(x)
    shown = call("reshape", x, newshape=(batch, tokens, count, channels // count))
    return call("transpose", shown, axes=(0, 2, 1, 3))


def projected(x: Expr, weights: Weights, columns: int) -> Expr:
    """[batch, tokens, columns] of [batch, tokens, channels]: a product and its bias."""
    batch, tokens, channels = extents(x)
    rows = call("reshape", x, newshape=(batch * tokens, channels))
    made = call("bias_add", call("dense", rows, weights(columns, channels)), weights(columns), axis=1)
    return call("reshape", made, newshape=(batch, tokens, columns))


def joined(x: Expr) -> Expr:
    """[batch, tokens, channels] of [batch, heads, tokens, depth]."""
    batch, count, tokens, depth = extents(x)
    return call("reshape", call("transpose", x, axes=(0, 2, 1, 3)), newshape=(batch, tokens, count * depth))


def part(x: Expr, axis: int, begin: int, end: int) -> Expr:
    return call("strided_slice", x, begin=(begin,), end=(end,), axes=(axis,))


def three(x: Expr, weights: Weights) -> Expr:
    q, k, v = (heads(projected(x, weights, n), 2) for n in (8, 8, 12))
    return joined(call("attention", q, k, v, is_causal=True))


def split(x: Expr, weights: Weights) -> Expr:
    """As GPT-2's: columns of one product."""
    whole = projected(x, weights, 112)
    q, k, v = (heads(part(whole, 2, *ends), 2) for ends in ((0, 32), (32, 64), (64, 112)))
    return joined(call("attention", q, k, v))


def unflattened(x: Expr, weights: Weights) -> Expr:
    """As `torch.nn.MultiheadAttention`'s, of one picture: parts of a first axis, and heads before tokens."""
    _, tokens, channels = extents(x)
    whole = projected(call("reshape", x, newshape=(tokens, 1, channels)), weights, 96)
    shown = call("reshape", whole, newshape=(1, tokens, 1, 3, 32))
    first = call("reshape", call("transpose", shown, axes=(3, 1, 2, 0, 4)), newshape=(3, tokens, 1, 32))

    def of(place: int) -> Expr:
        own = call("reshape", part(first, 0, place, place + 1), newshape=(tokens, 2, 16))
        return call("reshape", call("transpose", own, axes=(1, 0, 2)), newshape=(1, 2, tokens, 16))

    made = call("transpose", call("attention", of(0), of(1), of(2)), axes=(2, 0, 1, 3))
    return call("reshape", made, newshape=(tokens, 32))


@pytest.mark.parametrize(
    ("make", "batch"), [(three, 1), (three, 2), (split, 1), (split, 2), (unflattened, 1)]
)
def test_attention_reads_its_heads_where_the_products_before_it_wrote_them(
    make: Callable[[Expr, Weights], Expr], batch: int
) -> None:
    x, weights = Var("x", f"float32[{batch},5,6]"), Weights()
    found = normalize(given := Network((x,), {"y": make(x, weights)}, {}))
    assert operators(found) == [*["dense", "bias_add"] * 3, "attention"]
    data = {"x": weights.random.normal(size=(batch, 5, 6))}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-5, atol=1e-5)


def multihead(x: Expr, weights: Weights) -> Expr:
    """As `torch.nn.MultiheadAttention` of batch_first: tokens before the batch between its products."""
    batch, tokens, _ = extents(x)
    whole = projected(call("transpose", x, axes=(1, 0, 2)), weights, 96)
    shown = call("reshape", whole, newshape=(1, tokens, batch, 3, 32))
    first = call("reshape", call("transpose", shown, axes=(3, 1, 2, 0, 4)), newshape=(3, tokens, batch, 32))

    def of(place: int) -> Expr:
        own = call("reshape", part(first, 0, place, place + 1), newshape=(tokens, batch * 2, 16))
        return call("reshape", call("transpose", own, axes=(1, 0, 2)), newshape=(batch, 2, tokens, 16))

    made = call("transpose", call("attention", of(0), of(1), of(2)), axes=(2, 0, 1, 3))
    made = projected(call("reshape", made, newshape=(tokens, batch, 32)), weights, 6)
    return call("transpose", made, axes=(1, 0, 2))


@pytest.mark.parametrize("batch", [1, 3])
def test_attention_with_tokens_before_the_batch_moves_no_rows(batch: int) -> None:
    x, weights = Var("x", f"float32[{batch},5,6]"), Weights()
    found = normalize(given := Network((x,), {"y": multihead(x, weights)}, {}))
    assert operators(found) == [*["dense", "bias_add"] * 3, "attention", "dense", "bias_add"]
    data = {"x": weights.random.normal(size=(batch, 5, 6))}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [(2, 1, 0), (1, 2, 0)])
def test_rows_of_a_product_that_are_not_turned_back_stay(axes: tuple[int, ...]) -> None:
    x, weights = Var("x", "float32[3,3,6]"), Weights()
    turned = projected(call("transpose", x, axes=(1, 0, 2)), weights, 3)
    found = normalize(given := Network((x,), {"y": call("transpose", turned, axes=axes)}, {}))
    assert operators(found) == ["transpose", "dense", "bias_add", "transpose"]
    data = {"x": weights.random.normal(size=(3, 3, 6))}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-5, atol=1e-5)


def test_rows_of_a_product_that_are_several_turned_ones_stay() -> None:
    x, weights = Var("x", "float32[4,3,4]"), Weights()
    pairs = call("reshape", call("transpose", x, axes=(1, 0, 2)), newshape=(1, 6, 8))
    made = call("reshape", projected(pairs, weights, 12), newshape=(3, 4, 6))
    found = normalize(given := Network((x,), {"y": call("transpose", made, axes=(1, 0, 2))}, {}))
    assert operators(found) == ["transpose", "dense", "bias_add", "transpose"]
    data = {"x": weights.random.normal(size=(4, 3, 4))}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-5, atol=1e-5)


def test_a_product_of_turned_rows_that_others_read_is_computed_once() -> None:
    x, weights = Var("x", "float32[2,5,6]"), Weights()
    turned = projected(call("transpose", x, axes=(1, 0, 2)), weights, 8)
    outputs = {"y": call("transpose", turned, axes=(1, 0, 2)), "z": call("relu", turned)}
    assert operators(normalize(Network((x,), outputs, {}))).count("dense") == 1


@pytest.mark.parametrize("others", ["whole", "without bias", "overlapping", "rows", "narrow"])
def test_a_product_that_is_not_only_read_in_parts_of_its_columns_stays_one(others: str) -> None:
    x, weights = Var("x", "float32[1,5,6]"), Weights()
    whole = projected(x, weights, 64)
    further = {
        "whole": whole, "without bias": whole.inputs[0].inputs[0], "overlapping": part(whole, 2, 31, 64),
        "rows": part(whole, 1, 0, 2), "narrow": part(whole, 2, 32, 63),
    }[others]
    given = Network((x,), {"a": part(whole, 2, 0, 32), "b": call("relu", further)}, {})
    found = normalize(given)
    assert operators(found).count("dense") == 1
    data = {"x": weights.random.normal(size=(1, 5, 6))}
    for name in given.outputs:
        one, other = (evaluate(Tuple([n.outputs[name]]), data) for n in (found, given))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_rows_of_a_product_with_as_many_columns_are_no_columns() -> None:
    """Its bias is added behind a reshape, as ONNX writes it."""
    x, random = Var("x", "float32[1,64,6]"), np.random.default_rng(0)
    weight, bias = (Constant(random.normal(size=shape).astype("float32")) for shape in ((64, 6), (64,)))
    given = Network((x,), {"y": part(call("add", layer.linear(x, weight), bias), 1, 0, 32)}, {})
    data = {"x": random.normal(size=(1, 64, 6))}
    found = evaluate(normalize(given).root, data)
    np.testing.assert_allclose(found, evaluate(given.root, data), rtol=1e-5, atol=1e-5)


def test_attention_of_keys_from_elsewhere_keeps_the_layout_that_they_have() -> None:
    x, weights, cache = Var("x", "float32[1,5,6]"), Weights(), Var("cache", "float32[1,2,9,4]")
    made = call("attention", heads(projected(x, weights, 8), 2), cache, cache)
    assert operators(normalize(Network((x, cache), {"y": made}, {}))) == ["dense", "bias_add", "transpose", "attention"]


def test_a_constant_added_to_scores_of_symbolic_sizes_is_no_mask() -> None:
    q, k = (Var(n, f"float32[1,1,{PROBED},4]") for n in "qk")
    made = call("attention_bias", q, k, k, Constant(np.full((1, 1, 1, 1), -1, "f")))
    found = normalize(Network((q, k), {"y": made}, {})).outputs["y"]  # one of their scores has 84 GB
    assert isinstance(found, Call) and found.op.name == "attention_bias"


@pytest.mark.parametrize(("dtype", "by", "expected"), [
    ("float32", 41, "divide"), ("float32", 8, "multiply"), ("float16", 1e-5, "divide"), ("float16", 2**-24, "divide"),
])
def test_a_quotient_becomes_a_product_only_where_that_is_rounded_alike(dtype: str, by: float, expected: str) -> None:
    x = Var("x", f"{dtype}[4]")
    found = normalize(Network((x,), {"y": call("divide", x, Constant(np.array(by, dtype)))}, {}))
    assert operators(found) == [expected]


def test_a_quotient_whose_reciprocal_is_infinite_stays_behind_its_product() -> None:
    x, weight = Var("x", "float16[2,3]"), Constant(np.ones((4, 3), "float16"))
    for by, expected in ((0.3, ["dense"]), (1e-5, ["dense", "divide"])):
        divisors = Constant(np.full(4, by, "float16"))
        found = normalize(Network((x,), {"y": call("divide", call("dense", x, weight), divisors)}, {}))
        assert operators(found) == expected


@pytest.mark.parametrize(("dtype", "out_dtype", "factor"), [
    ("float16", None, 1000), ("float16", "float32", 3),
])
def test_a_factor_that_weights_cannot_take_stays_behind_their_product(
    dtype: str, out_dtype: str | None, factor: int
) -> None:
    x, attrs = Var("x", TensorType((5, 4), dtype)), {} if out_dtype is None else {"out_dtype": out_dtype}
    product = call("dense", x, Constant(np.full((3, 4), 100, dtype)), **attrs)
    scaled = call("multiply", product, Constant(np.full((1, 3), factor, out_dtype or dtype)))
    assert operators(normalize(Network((x,), {"y": scaled}, {}))) == ["dense", "multiply"]


@pytest.mark.parametrize(("op", "weight", "bias", "factor", "folds"), [
    ("multiply", 1e-4, None, 1e-4, False), ("multiply", 1e-30, None, 1e-20, False), ("multiply", 1e-4, None, 0, True),
    ("multiply", 0, None, 1e-30, True), ("multiply", 1, 3e4, 3, False), ("multiply", 1, 3e4, 2, True),
    ("divide", 1, None, 3e4, False), ("divide", 1, None, 1e4, True), ("multiply", 1, 1e-4, 1e-3, True),
])
def test_a_factor_that_would_take_digits_from_weights_stays_behind_their_product(
    op: str, weight: float, bias: float | None, factor: float, folds: bool
) -> None:
    dtype = "float32" if 0 < min(weight, factor) < 1e-10 else "float16"
    x = Var("x", TensorType((5, 4), dtype))
    found = call("dense", x, Constant(np.array([[weight] * 4, [1, weight, 0, 0]], dtype)))
    if bias is not None:
        found = call("bias_add", found, Constant(np.full(2, bias, dtype)))
    found = normalize(Network((x,), {"y": call(op, found, Constant(np.full((1, 2), factor, dtype)))}, {}))
    assert (op not in operators(found)) == folds


def test_a_bias_of_rows_is_not_joined_with_one_of_channels() -> None:
    x, numbers = Var("x", TensorType((3, 4), "float32")), np.arange(3, dtype="float32")
    product = call("dense", x, Constant(np.ones((3, 4), "float32")))
    value = call("bias_add", product, Constant(numbers), axis=0)
    value = call("add", call("multiply", value, Constant(numbers[None])), Constant(numbers[None]))
    given = np.ones((3, 4), "float32")
    made = normalize(Network((x,), {"y": value}, {}))
    np.testing.assert_array_equal(
        evaluate(made.root, {"x": given}), (4 + numbers[:, None]) * numbers + numbers
    )


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_biases_of_another_axis_than_the_second_are_joined_along_it(axis: int) -> None:
    x, numbers = Var("x", TensorType((3, 3, 3), "float32")), Constant(np.arange(3, dtype="float32"))
    value = call("bias_add", call("bias_add", x, numbers, axis=axis), numbers, axis=axis)
    plain, given = Network((x,), {"y": value}, {}), np.ones((3, 3, 3), "float32")
    made = normalize(plain)
    assert operators(made) == ["bias_add"]
    np.testing.assert_array_equal(evaluate(made.root, {"x": given}), evaluate(plain.root, {"x": given}))


def gelu_of(x: Expr, half: Constant) -> Expr:
    erf = call("erf", call("divide", x, number(2**0.5)))
    return call("multiply", call("multiply", x, call("add", erf, number(1))), half)


def test_a_gelu_written_with_a_quotient_is_one_operator_unless_a_number_gives_it_more_axes() -> None:
    x = Var("x", "float32[4]")
    for shape, expected in (((), True), ((1,), True), ((1, 1), False)):
        given = Network((x,), {"y": gelu_of(x, Constant(np.full(shape, 0.5, "float32")))}, {})
        found = normalize(given)
        assert (operators(found) == ["gelu"]) == expected
        assert extents(found.outputs["y"]) == extents(given.outputs["y"])


@pytest.mark.parametrize(("exponent", "axis", "epsilon", "recognized"), [
    (2, -1, 1e-6, True), (3, -1, 1e-6, False), (2, 1, 1e-6, False), (2, -1, -1e-6, False),
])
def test_a_norm_by_the_root_of_the_mean_of_squares_is_one_operator(
    exponent: float, axis: int, epsilon: float, recognized: bool
) -> None:
    x, weights = Var("x", "float32[2,4,4]"), Weights()
    mean = call("mean", call("power", x, number(exponent)), axis=(axis,), keepdims=True)
    made = times(weights(4), times(x, call("rsqrt", call("add", mean, number(epsilon)))))
    found = normalize(given := Network((x,), {"y": made}, {}))
    assert (operators(found) == ["rms_norm"]) == recognized
    if recognized:
        assert [n.attrs.to_json() for n in post_order(found.root) if isinstance(n, Call)] == [{"epsilon": 1e-6}]
    data = {"x": weights.random.uniform(0.5, 2, (2, 4, 4))}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-5)


@pytest.mark.parametrize(("dtype", "inner", "recognized"), [
    ("float16", "float32", True), ("bfloat16", "float32", True), ("float16", "float64", False),
    ("float32", "float16", False),
])
def test_a_norm_of_16_bits_that_is_computed_in_float32_is_one_operator(
    dtype: str, inner: str, recognized: bool
) -> None:
    """As those of LLaMA."""
    x, weights = Var("x", f"{dtype}[2,4,4]"), Weights()
    wide = call("cast", x, dtype=inner)
    two, epsilon = (Constant(np.array(n, inner)) for n in (2, 1e-6))
    mean = call("mean", call("power", wide, two), axis=(2,), keepdims=True)
    normed = times(wide, call("rsqrt", call("add", mean, epsilon)))
    gamma = Constant(weights(4).value.astype(numpy_dtype(dtype)))
    made = times(gamma, call("cast", normed, dtype=dtype))
    data = {"x": weights.random.uniform(0.5, 2, (2, 4, 4))}
    for outputs, expected in (({"y": made}, recognized), ({"y": made, "normed": normed}, False)):
        found = normalize(given := Network((x,), outputs, {}))
        assert (operators(found) == ["rms_norm"]) == expected
        one, other = (np.float64(evaluate(n.root, data)) for n in (found, given))
        np.testing.assert_allclose(one, other, rtol=2e-2)


def is_kernel(node: Expr) -> bool:
    return isinstance(node, Call) and node.op.name != "reshape"


@pytest.mark.parametrize("shape", [(2, 4, 4), (8, 4)], ids=["plain", "behind a reshape"])
@pytest.mark.parametrize(
    ("spelled", "weight"), [("llama", "float16"), ("t5", "float16"), ("torch", "float16"), ("gemma", "float32")]
)
def test_each_spelling_of_a_norm_of_16_bits_is_one_operator(
    spelled: str, weight: str, shape: tuple[int, ...]
) -> None:
    x, weights = Var("x", f"float16[{','.join(map(str, shape))}]"), Weights()
    casts = (call("cast", x, dtype="float32") for _ in range(2))
    wide, again = (cast if len(shape) == 3 else call("reshape", cast, newshape=(2, 4, 4)) for cast in casts)
    mean = call("mean", times(wide, wide), axis=(2,), keepdims=True)
    normed = times(again if spelled == "t5" else wide, call("rsqrt", call("add", mean, number(1e-6))))
    gamma = weights(4).value
    if weight == "float16":
        gamma = gamma.astype(weight)
    if spelled in ("t5", "llama"):
        made = times(Constant(gamma), call("cast", normed, dtype="float16"))
    else:
        made = call("cast", times(normed, Constant(gamma.astype("float32"))), dtype="float16")
    found = normalize(given := Network((x,), {"y": made}, {}))
    (norm,) = (n for n in post_order(found.root) if is_kernel(n))
    assert (norm.op.name, [arg.tensor_type.dtype for arg in norm.args]) == ("rms_norm", ["float16", weight])
    data = {"x": weights.random.uniform(0.5, 2, shape)}
    one, other = (np.float64(evaluate(n.root, data)) for n in (found, given))
    np.testing.assert_allclose(one, other, rtol=2e-3)
    read = Network((x,), {"y": made, "normed": normed}, {})
    assert "rms_norm" not in operators(normalize(read))


@pytest.mark.parametrize(("op", "vectors"), [("softmax", 0), ("log_softmax", 0), ("layer_norm", 2)])
def test_rows_of_float32_between_two_casts_are_of_16_bits(op: str, vectors: int) -> None:
    x, weights = Var("x", "bfloat16[2,4,4]"), Weights()
    wide = call(op, call("cast", x, dtype="float32"), *(weights(4) for _ in range(vectors)))
    made = call("cast", wide, dtype="bfloat16")
    (found,) = (n for n in post_order(normalize(Network((x,), {"y": made}, {})).root) if isinstance(n, Call))
    assert [arg.tensor_type.dtype for arg in found.args] == ["bfloat16", *["float32"] * vectors]
    assert (found.op.name, found.tensor_type) == (op, made.tensor_type)
    shown = call("reshape", call("cast", x, dtype="float32"), newshape=(8, 4))  # as behind a product
    again = call("cast", call(op, shown, *wide.args[1:]), dtype="bfloat16")
    (found,) = (n for n in post_order(normalize(Network((x,), {"y": again}, {})).root) if is_kernel(n))
    assert (found.op.name, found.tensor_type) == (op, again.tensor_type)
    for outputs in ({"y": made, "wide": wide}, {"y": call("cast", wide, dtype="float16")}):
        assert operators(normalize(Network((x,), outputs, {}))) == ["cast", op, "cast"]


def times(*factors: Expr) -> Expr:
    return reduce(lambda a, b: call("multiply", a, b), factors)


CUBIC = {
    "power": lambda x, c: times(call("add", x, times(call("power", x, number(3)), number(c))), number(0.7978845608)),
    "products": lambda x, c: times(
        x, number(0.7978845608), call("add", times(number(c), x, x), number(1))
    ),
}


@pytest.mark.parametrize("cube", [0.044715, 0.0447])
@pytest.mark.parametrize("spelling", CUBIC)
def test_a_gelu_by_tanh_is_one_operator_however_its_polynomial_is_written(spelling: str, cube: float) -> None:
    x = Var("x", "float32[2,4]")
    tanh = call("tanh", CUBIC[spelling](x, cube))
    given = Network((x,), {"y": times(number(0.5), x, call("add", number(1), tanh))}, {})
    found = normalize(given)
    assert (operators(found) == ["gelu"]) == (cube == 0.044715)
    data = {"x": np.linspace(-4, 4, 8).reshape(2, 4)}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-5, atol=1e-6)


def rotated(x: Expr, *, interleaved: bool) -> Expr:
    """(-b, a) of each pair (a, b), as models write it."""
    width = extents(x)[-1]

    def taken(begin: int, end: int) -> Expr:
        return call("strided_slice", x, begin=(begin,), end=(end,), strides=(2 if interleaved else 1,), axes=(3,))

    if not interleaved:
        parts = [call("negative", taken(width // 2, width)), taken(0, width // 2)]
        return call("concatenate", Tuple(parts), axis=-1)
    parts = [call("expand_dims", v, axis=4) for v in (call("negative", taken(1, width)), taken(0, width))]
    return call("reshape", call("concatenate", Tuple(parts), axis=4), newshape=extents(x))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("angles", ["constant", "computed", "of each batch", "of each element"])
def test_a_rotary_embedding_that_a_model_writes_is_one_operator(angles: str, *, interleaved: bool) -> None:
    x, rng = Var("x", "float32[2,3,5,8]"), np.random.default_rng(0)
    places = Var("places", f"float32[{2 if angles == 'of each batch' else 1},5,4]")
    data = {"x": rng.normal(size=(2, 3, 5, 8)), "places": rng.normal(size=extents(places))}
    each = rng.normal(size=(5, 8 if angles == "of each element" else 4)).astype("float32")
    if angles.startswith("of each e") or angles == "constant":
        both = each if each.shape[1] == 8 else np.repeat(each, 2, 1) if interleaved else np.concatenate([each, each], 1)
        cos, sin = (Constant(f(both)[None, None]) for f in (np.cos, np.sin))
    else:
        whole = call("concatenate", Tuple([places, places]), axis=-1)
        cos, sin = (
            call("expand_dims", call("multiply", call(name, whole), number(0.5)), axis=1) for name in ("cos", "sin")
        )
    made = call("add", times(x, cos), times(rotated(x, interleaved=interleaved), sin))
    inputs = (x,) if isinstance(cos, Constant) else (x, places)
    found = normalize(given := Network(inputs, {"y": made}, {}))
    recognized = angles == "constant" or (angles == "computed" and not interleaved)
    assert ("rotary_embedding" in operators(found)) == recognized
    assert ("concatenate" in operators(found)) != recognized
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-5, atol=1e-6)


def test_a_rotation_of_integers_is_no_rotary_embedding() -> None:
    x, angles = Var("x", "int32[1,2,3,4]"), Constant(np.ones((3, 4), "int32"))
    turned = call("concatenate", Tuple((call("negative", part(x, 3, 2, 4)), part(x, 3, 0, 2))), axis=-1)
    made = call("add", call("multiply", x, angles), call("multiply", turned, angles))
    assert "rotary_embedding" not in operators(normalize(Network((x,), {"y": made}, {})))


def test_a_rotation_of_other_pairs_or_with_another_sign_is_no_rotary_embedding() -> None:
    x, rng = Var("x", "float32[2,3,5,8]"), np.random.default_rng(0)
    angle = np.tile(rng.normal(size=(5, 4)), 2).astype("float32")
    cos, sin = (Constant(f(angle)[None, None]) for f in (np.cos, np.sin))

    def taken(begin: int, end: int) -> Expr:
        return call("strided_slice", x, begin=(begin,), end=(end,), axes=(3,))

    first, second = taken(0, 4), taken(4, 8)
    for parts in ([second, call("negative", first)], [call("negative", first), second], [call("negative", second)] * 2):
        turned = call("concatenate", Tuple(parts), axis=-1)
        given = Network((x,), {"y": call("add", times(x, cos), times(turned, sin))}, {})
        found, data = normalize(given), {"x": rng.normal(size=(2, 3, 5, 8))}
        assert "rotary_embedding" not in operators(found)
        np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-5, atol=1e-6)


def test_channels_of_another_layout_are_not_those_of_axis_1() -> None:
    x, weights = Var("x", "float32[1,6,4,6]"), Weights()
    product = call("conv2d", x, weights(6, 6, 1, 1), data_layout="NHWC")
    given = Network((x,), {"y": call("multiply", product, weights(6, 1, 1))}, {})
    found = normalize(given)
    data = {"x": weights.random.normal(size=(1, 6, 4, 6))}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(given.root, data), rtol=1e-5)


def test_extents_are_sums_of_products_of_sizes_at_any_probe():
    wanted = (
        "n", "m", "3*n", "n*n", "12*n*m", "n + 1", "n - 1", "n + m", "768*n + 768", "n*m + n", "n*m + 512*m", "768",
        "250002", "2*n + 3", "16*m - 9", "n*m + 1", "4*n*m - 2", "64*n*m + 5",
    )
    near = [n + 2 for n in PROBES[0][:2]]
    for sizes in make_sizes([(1, 40), (2, MOST)], near):
        assert [sizes.encode(n) for n in (*near, near[0] * 2)] == [*near, near[0] * 2]
        values = dict(zip(("n", "m"), sizes.probes, strict=True))
        for text in wanted:
            found = sizes.encode(eval(text, {}, values))
            assert str(found) == text
            if not isinstance(found, int):
                assert found.at((3, 5)) == eval(text, {}, {"n": 3, "m": 5})
        assert sizes.samples() == [(1, 8), (3, 64), (8, 2), (40, 4)]
        assert str(sizes.bytes(TensorType((sizes.probes[0], sizes.probes[0] + 1, 3)), 4)) == "12*n*n + 12*n"
        assert sizes.shown(f"float32[{sizes.probes[0]},{sizes.probes[1]}]") == "float32[n,m]"


def test_sums_and_products_of_many_sizes_are_told_apart() -> None:
    wanted = ("n + k", "2*m - 2", "3*m + 1", "4*n", "t + 7", "p + q", "n*k*t", "64*p*q*r", "16*t - 9", "r*t + 1")
    for sizes in make_sizes([(1, MOST)] * len(NAMES)):
        values = dict(zip(NAMES, sizes.probes, strict=True))
        for text in wanted:
            assert str(sizes.encode(eval(text, {}, values))) == text
    n, m, k = make_sizes([(1, MOST)] * 3)[0].symbols
    known = [n + m + k, n * m + k]
    for sizes in make_sizes([(1, MOST)] * 3, known=known):
        assert [sizes.encode(extent.at(sizes.probes)) for extent in known] == known


def test_an_axis_of_more_than_three_sizes_is_refused() -> None:
    sizes = make_sizes([(1, MOST)] * 4)[0]
    x = Var("x", f"float32[{','.join(map(str, sizes.probes))},8]")
    with pytest.raises(NetworkError, match="multiplies too many symbolic sizes"):
        layer.reshape(x, (-1, 8))


def test_rests_and_roundings_of_sizes_are_those_of_python():
    (n,) = make_sizes([(1, 40)])[0].symbols
    for divisor in range(1, 9):
        for extent in (n, n * 3 + 2, n * -1 + 5, n * 5 - n // 2 * 2):
            for value in range(40):
                number = extent.at((value,))
                assert (extent % divisor).at((value,)) == number % divisor
                if number >= 0:
                    assert extent.rounded(divisor).at((value,)) == round(Fraction(number, divisor))


def test_quotients_of_sizes_have_one_form():
    n, m = make_sizes([(1, 40), (1, 40)])[0].symbols
    halved = n
    forms = []
    for _ in range(3):  # by windows of three with a border
        halved = (halved - 1) // 2 + 1
        forms.append(str(halved))
    assert forms == ["(n + 1)//2", "(n + 3)//4", "(n + 7)//8"]
    assert str((n * 32 - 1) // 2 + 1) == "16*n"
    found = {
        (n * 6 + 9) // 4: "n + n//2 + 2", n + (n * -1) % 7: "7*((n + 6)//7)", (n + m) // 2 * m: "m*((n + m)//2)",
        (n // 2 * 3 + 1) // 4: "(3*(n//2) + 1)//4", n % 3 + 1: "n - 3*(n//3) + 1",
    }
    for extent, text in found.items():
        assert str(extent) == text
        for values in product(range(1, 20), range(1, 4)):
            assert extent.at(values) == eval(text, {}, dict(zip("nm", values, strict=True)))
            assert min(quotient.dividend.at(values) for quotient in extent.quotients) >= 0, "C rounds towards zero"
    assert ((n + 1) // 2 * 64).c == "64*((n + 1)/2)"


def test_quotients_of_sizes_are_found_at_any_probe():
    def halves(size: Extent) -> list[Extent]:
        return [(size + 2**i - 1) // 2**i for i in range(1, 6)]

    n, m = make_sizes([(1, 40), (1, 40)])[0].symbols
    known = [*halves(n), *halves(m), n + (n * -1) % 7]
    both = make_sizes([(1, 40), (1, 40)], [401_408, 250_002], known)
    assert len({sizes.probes[0] % 32 for sizes in both}) == 2
    for sizes in both:
        wanted = (*known, known[4] * known[9], known[4] * 64, known[0] * known[5] * 3, n, m * n, known[4] * n)
        for extent in wanted:
            assert extent.at(sizes.probes) >= PROBED
            assert sizes.encode(extent.at(sizes.probes)) == extent
        assert sizes.encode(401_408) == 401_408


def test_a_multiple_of_a_quotient_is_told_from_a_size():
    """It is n, or n + 1."""
    n = make_sizes([(1, 40)])[0].symbols[0]
    even = (n + 1) // 2 * 2
    for sizes in make_sizes([(1, 40)], known=[even, (n + 1) // 2]):
        assert sizes.encode(even.at(sizes.probes)) == even
        assert sizes.encode(sizes.probes[0]) == n
    with pytest.raises(ValueError, match="cannot tell apart"):
        make_sizes([(1, 40)], known=[even, n + 1])
    for sizes in make_sizes([(1, 40)], known=[even, n + 1], joint=True):
        for extent in (n, n + 1, even, even - 2, even * n, n * n + n):
            assert sizes.encode(extent.at(sizes.probes), extent.at(sizes.twin)) == extent
    with pytest.raises(ValueError, match="is small at all sizes"):
        make_sizes([(1, 40)], known=[n % 3 + 1])
    for far in (96, 127):  # at some rests of n alone, far from those that are tried first
        alike = [n // 128, (n + 128 - far) // 128]
        for sizes in make_sizes([(1, MOST), (1, MOST)], known=alike, joint=True):
            assert [sizes.encode(e.at(sizes.probes), e.at(sizes.twin)) for e in alike] == alike


def test_sizes_at_which_a_part_is_longer_than_its_axis_are_refused():
    n = make_sizes([(1, 40)])[0].symbols[0]
    half, third = n // 2, (n + 2) // 3
    sizes = make_sizes([(1, 40)], known=[half, third, half * 2])[0]
    assert sizes.limited([(third, half)]).sizes[0].low == 2
    with pytest.raises(ValueError, match="which is greater depends on the call"):
        sizes.limited([(n, half * 2)])


def test_a_shape_that_does_not_follow_from_the_sizes_is_refused() -> None:
    n = make_sizes([(1, 40)])[0].symbols[0]
    half = (n + 1) // 2
    (sizes, _) = make_sizes([(1, 40)], known=[half])
    x = Var("x", f"float32[{half.at(sizes.probes)},4]")
    twice = call("repeat", x, repeats=2, axis=0)  # n + 1 where n is odd
    require_types(groups(Network((x,), {"y": x * x}, {}, sizes)), sizes)
    assert str(sizes.encode(extents(twice)[0])) == "2*((n + 1)//2)"
    wrong = replace(sizes, known=(half, n + 1))
    with pytest.raises(NetworkError, match="cannot tell how the shape of a repeat depends on the sizes"):
        require_types(groups(Network((x,), {"y": twice}, {}, wrong)), wrong)


def test_extents_that_are_one_number_at_some_sizes_are_told_by_the_twin() -> None:
    n = make_sizes([(1, 40)])[0].symbols[0]
    half = (n + 1) // 2
    both = make_sizes([(1, 40)], known=[half, half * 2, n + 1], joint=True)
    assert any((half * 2).at(sizes.probes) == (n + 1).at(sizes.probes) for sizes in both)
    networks = []
    for sizes in both:
        x, z = (Var(name, f"float32[{rows.at(sizes.probes)},4]") for name, rows in (("x", half), ("z", n + 1)))
        outputs = {"twice": call("repeat", x, repeats=2, axis=0), "z": z * z}
        networks.append(Network((x, z), outputs, {}, sizes))
    name_extents(*networks)
    for network in networks:
        assert network.sizes is not None
        named = [network.sizes.encoded(node.tensor_type) for node in network.outputs.values()]
        assert named == [(half * 2, 4), (n + 1, 4)]
        require_types(groups(network), network.sizes)
    require_twin(*(made for network in networks for made in (groups(network), network.sizes)))


def test_a_fixed_extent_that_is_taken_for_a_symbolic_one_is_refused() -> None:
    def forms(rows: int) -> tuple[Any, ...]:
        found = []
        for sizes in make_sizes([(1, MOST)]):
            x = Var("x", f"int64[{sizes.probes[0]}]")
            given = Network((x,), {"y": call("take", Constant(np.zeros((rows, 1), "float32")), x, axis=0)}, {}, sizes)
            found += [groups(normalize(given)), sizes]
        return tuple(found)

    require_twin(*forms(200_000))
    with pytest.raises(NetworkError, match="of take depends on a symbolic size"):
        require_twin(*forms(PROBES[0][0] + 93))


def test_the_buffers_of_a_place_are_compared_one_by_one():
    """A macro within its own operand doubles for each of them: the C compiler took minutes for a MobileNet's."""
    sizes = make_sizes([(1, 40)])[0]
    place = Place(tuple(sizes.symbols[0] * i for i in range(1, 60)))
    lines = write_sizes(Plan((), (), (), (), (place,), replace(sizes, sizes=())), [])
    assert max(line.count("MAX(") for line in lines) == 1


def test_buffers_that_are_never_alive_together_share_a_place():
    lives = [Life(100, 0, 1), Life(80, 1, 2), Life(90, 2, 3), Life(10, 0, 3)]
    found = share(lives)
    assert found[0] == found[2]
    assert len({found[0], found[1], found[3]}) == 3


@pytest.mark.parametrize("step", [-1, -2, -7])
def test_a_long_axis_is_taken_backwards(step: int) -> None:
    x = Var("x", "float32[1,300001]")
    given = np.arange(300_001, dtype=np.float32)[None]
    for start, end in ((None, None), (290_500, None), (-3, None)):
        taken = layer.take_slice(x, 1, start, end, step)
        np.testing.assert_array_equal(evaluate(taken, {"x": given}), given[0, slice(start, end, step)])
