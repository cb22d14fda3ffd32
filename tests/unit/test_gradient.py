"""Every gradient against central differences in float64: of its examples, random shapes and broadcasts."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy import op as registry
from strategy.expr import (
    Call,
    Constant,
    Expr,
    ExprError,
    Tuple,
    TupleGetItem,
    Var,
    call,
    post_order,
)
from strategy.gradient import GradientError, gradient, register_gradient
from strategy.inference import infer_type
from strategy.op import register_op, register_reference
from strategy.ops.activation import gelu
from strategy.ops.argsort import sort
from strategy.ops.attention import attention
from strategy.ops.avg_pool2d import avg_pool2d, global_avg_pool2d
from strategy.ops.batch_matmul import batch_matmul
from strategy.ops.bias_add import bias_add
from strategy.ops.broadcast import (
    add,
    collapse_sum_like,
    divide,
    maximum,
    minimum,
    multiply,
    power,
    subtract,
    where,
)
from strategy.ops.concatenate import concat, concatenate, split, stack
from strategy.ops.conv2d import conv2d
from strategy.ops.convolution import conv1d, conv3d
from strategy.ops.dense import dense
from strategy.ops.dynamic_slice import dynamic_slice
from strategy.ops.elemwise import abs as absolute
from strategy.ops.elemwise import (
    cast,
    clip,
    erf,
    exp,
    log,
    negative,
    ones_like,
    relu,
    rsqrt,
    sigmoid,
    sqrt,
    tanh,
)
from strategy.ops.gather_nd import gather_nd
from strategy.ops.grid_sample import grid_sample
from strategy.ops.grouped_dense import grouped_dense
from strategy.ops.layer_norm import layer_norm
from strategy.ops.matmul import einsum, matmul
from strategy.ops.max_pool2d import max_pool2d
from strategy.ops.reduce import max as reduce_max
from strategy.ops.reduce import mean, prod
from strategy.ops.reduce import min as reduce_min
from strategy.ops.reduce import sum as reduce_sum
from strategy.ops.reshape import expand_dims, reshape, reshape_like, squeeze
from strategy.ops.rms_norm import rms_norm
from strategy.ops.scan import cummax, cumprod, cumsum
from strategy.ops.softmax import log_softmax, softmax
from strategy.ops.statistics import std
from strategy.ops.strided_slice import strided_slice
from strategy.ops.take import take
from strategy.ops.topk import topk
from strategy.ops.transpose import transpose
from strategy.reference import evaluate
from strategy.type_relation import identity_relation
from strategy.types import TensorType, TupleType, may_equal
from strategy.workload import Workload
from workers.reference import random_inputs

STEP = 1e-5


def check(
    build: Callable[..., Expr], shapes: list[tuple[int, ...]], low=-1.0, high=1.0, *, distinct=False
) -> None:
    """Compare the gradient of a graph, its outputs randomly weighted, with central differences.

    With `distinct`, no two elements of an input are so near each other that a step changes their order.
    """
    rng = np.random.default_rng(len(shapes) + sum(map(sum, shapes)))
    names = [f"x{i}" for i in range(len(shapes))]
    inputs = {n: rng.uniform(low, high, s) for n, s in zip(names, shapes, strict=True)}
    if distinct:
        for n, s in zip(names, shapes, strict=True):
            inputs[n] = rng.permutation(np.linspace(low, high, int(np.prod(s)))).reshape(s)
    variables = [
        Var(n, f"float64[{','.join(map(str, s))}]") for n, s in zip(names, shapes, strict=True)
    ]
    out = build(*variables)
    weights = rng.uniform(-1, 1, infer_type(out).concrete_shape)
    found = evaluate(Tuple(gradient(out, variables, Constant(weights))), inputs)

    def value(at: dict[str, np.ndarray]) -> float:
        return float((evaluate(out, at) * weights).sum())

    for name, got in zip(names, found, strict=True):
        assert np.shape(got) == inputs[name].shape
        expected = np.zeros_like(inputs[name])
        for index in np.ndindex(inputs[name].shape):
            near = [{**inputs, name: inputs[name].copy()} for _ in range(2)]
            for at, step in zip(near, (STEP, -STEP), strict=True):
                at[name][index] += step
            expected[index] = (value(near[0]) - value(near[1])) / (2 * STEP)
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7, err_msg=name)


extents = st.integers(1, 4)
shapes = st.lists(extents, min_size=0, max_size=3).map(tuple)


@st.composite
def broadcasts(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Two shapes that broadcast, each with extents of 1 and leading axes left out at random."""
    whole = draw(st.lists(extents, min_size=1, max_size=3))
    pair = []
    for _ in range(2):
        kept = [draw(st.sampled_from([n, 1])) for n in whole]
        pair.append(tuple(kept[draw(st.integers(0, len(kept))) :]))
    return pair


@pytest.mark.parametrize("op", [absolute, exp, negative, sigmoid, tanh, relu, erf, gelu])
@given(shape=shapes)
def test_elementwise(op, shape):
    check(op, [shape])


@pytest.mark.parametrize("op", [log, sqrt, rsqrt])
@given(shape=shapes)
def test_elementwise_of_positive_numbers(op, shape):
    check(op, [shape], 0.5, 2.0)


@pytest.mark.parametrize("op", [add, subtract, multiply, maximum, minimum])
@given(pair=broadcasts())
def test_broadcast(op, pair):
    check(op, pair)


@pytest.mark.parametrize("op", [divide, power])
@given(pair=broadcasts())
def test_of_positive_operands(op, pair):
    check(op, pair, 0.5, 2.0)


def test_the_gradients_of_power_at_its_ends_are_pytorch_s():
    """Taken from PyTorch 2.13: x = 0 with y = 0 and y < 0, and a root of a negative number."""
    x, y = Var("x", "float64[4]"), Var("y", "float64[4]")
    given = {"x": np.array([0.0, 0.0, -2.0, -2.0]), "y": np.array([0.0, -1.0, 2.0, 0.0])}
    with np.errstate(all="ignore"):
        of_x, of_y = evaluate(Tuple(gradient(power(x, y), [x, y])), given)
    np.testing.assert_array_equal(of_x, [0, -np.inf, -4, 0])
    np.testing.assert_array_equal(of_y, [0, -np.inf, np.nan, np.nan])


def test_nothing_flows_through_a_deviation_of_zero():
    x = Var("x", "float64[2,3]")
    with np.errstate(all="ignore"):
        found = evaluate(gradient(std(x, 1), [x])[0], {"x": np.array([[5.0, 5, 5], [1, 2, 3]])})
    np.testing.assert_array_equal(found[0], 0)
    assert np.isfinite(found[1]).all()
    assert found[1].any()


def test_power_of_zero_has_the_limit_for_its_gradient():
    x, y = Var("x", "float64[2]"), Var("y", "float64[2]")
    found = evaluate(Tuple(gradient(power(x, y), [x, y])), {"x": np.zeros(2), "y": np.array([2.0, 1.0])})
    np.testing.assert_allclose(found, [[0, 1], [0, 0]])


@given(shape=shapes)
def test_clip(shape):
    check(lambda x: clip(x, -0.5, 0.25), [shape])


@given(pair=broadcasts())
def test_where(pair):
    whole = np.broadcast_shapes(*pair)
    condition = Constant(np.resize([True, False, True], whole))
    check(lambda x, y: where(condition, x, y), pair)


@pytest.mark.parametrize("op", [reduce_sum, mean, reduce_max, reduce_min, prod])
@given(shape=st.lists(extents, min_size=1, max_size=3), keepdims=st.booleans(), data=st.data())
def test_reduction(op, shape, keepdims, data):
    axes = st.sets(st.integers(-len(shape), -1), min_size=1).map(lambda s: tuple(sorted(s)))
    axis = data.draw(st.none() | axes)
    check(lambda x: op(x, axis=axis, keepdims=keepdims), [tuple(shape)])
    if axis is not None and len(axis) < len(shape):
        check(lambda x: op(x, axis=axis, keepdims=keepdims, exclude=True), [tuple(shape)])


def test_max_shares_the_gradient_out_among_equals():
    x = Var("x", "float64[4]")
    (found,) = gradient(reduce_max(x))
    np.testing.assert_allclose(
        evaluate(found, {"x": np.array([1.0, 3.0, 3.0, 0.0])}), [0, 0.5, 0.5, 0]
    )


def test_the_product_has_a_gradient_at_zeros():
    x = Var("x", "float64[3,3]")
    at = np.array([[2.0, 3.0, 4.0], [0.0, 3.0, 4.0], [0.0, 3.0, 0.0]])
    (found,) = gradient(prod(x, axis=1))
    np.testing.assert_allclose(evaluate(found, {"x": at}), [[12, 8, 6], [12, 0, 0], [0, 0, 0]])


@given(m=extents, n=extents, k=extents)
def test_dense(m, n, k):
    check(dense, [(m, k), (n, k)])


@given(ends=st.lists(st.integers(-2, 6), min_size=3, max_size=3))
def test_grouped_dense(ends):
    """Groups out of order, without rows, and beyond them."""
    check(lambda data, weight: grouped_dense(data, weight, Constant(np.array(ends, "int32"))), [(4, 3), (3, 2, 3)])


def test_a_row_of_infinity_reaches_the_weight_of_its_own_group_alone():
    data, weight = Var("data", "float64[4,3]"), Var("weight", "float64[2,2,3]")
    found = gradient(grouped_dense(data, weight, Constant(np.array([1, 4], "int32"))), [weight])[0]
    given = {"data": np.ones((4, 3)), "weight": np.ones((2, 2, 3))}
    given["data"][0, 1] = np.inf
    with np.errstate(all="ignore"):
        found = evaluate(found, given)
    assert np.isinf(found[0, :, 1]).all()
    np.testing.assert_array_equal(found[1], 3)


@pytest.mark.parametrize("turned", [(a, b) for a in (False, True) for b in (False, True)])
@given(batch=st.tuples(st.sampled_from([1, 3]), st.sampled_from([1, 3])), m=extents, n=extents, k=extents)
def test_batch_matmul(turned, batch, m, n, k):
    x = (batch[0], k, m) if turned[0] else (batch[0], m, k)
    y = (batch[1], n, k) if turned[1] else (batch[1], k, n)
    check(lambda a, b: batch_matmul(a, b, *turned), [x, y])


@given(shape=st.permutations([2, 3, 4]), axes=st.none() | st.permutations([0, 1, 2]))
def test_transpose(shape, axes):
    check(lambda x: transpose(x, axes), [tuple(shape)])


def test_reshape():
    check(lambda x: reshape(x, (0, -1)), [(2, 3, 2)])
    check(reshape_like, [(2, 6), (3, 4)])
    check(lambda x: expand_dims(x, (0, -1)), [(2, 3)])
    check(squeeze, [(2, 1, 3, 1)])


@given(
    shape=st.tuples(extents, extents), begin=st.tuples(*[st.integers(-5, 4)] * 2), data=st.data(),
    strides=st.tuples(*[st.sampled_from([-2, -1, 1, 2])] * 2),
)
def test_strided_slice(shape, begin, strides, data):
    end = data.draw(st.tuples(*[st.integers(-6, 5)] * 2))
    check(lambda x: strided_slice(x, begin, end, strides), [shape])


@pytest.mark.parametrize(("x", "y"), [
    ((3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 6)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((1, 3, 4), (7, 4, 2)),
])
def test_matmul_of_any_rank(x, y):
    left, right = np.random.default_rng(0).random(x), np.random.default_rng(1).random(y)
    found = evaluate(matmul(Constant(left), Constant(right)), {})
    np.testing.assert_allclose(found, left @ right, strict=True)
    turned = [t if t.ndim < 2 else t.swapaxes(-1, -2) for t in (left, right)]
    found = evaluate(matmul(*map(Constant, turned), left.ndim > 1, right.ndim > 1), {})
    np.testing.assert_allclose(found, left @ right)
    check(matmul, [x, y])


@pytest.mark.parametrize(("equation", "forms"), [
    ("bhqd,bhkd->bhqk", [(2, 1, 2, 3), (2, 1, 3, 3)]), ("ij,jk", [(2, 3), (3, 2)]), ("i,j->ji", [(2,), (3,)]),
    ("ij,jk,kl->li", [(2, 3), (3, 2), (2, 2)]), ("ij,ij->", [(2, 3)] * 2), ("ijk->ki", [(2, 3, 2)]),
    ("bij, bjk -> bk", [(2, 3, 2), (2, 2, 3)]), ("ab,cd->ad", [(2, 3), (2, 2)]),
])
def test_einsum(equation, forms):
    values = [np.random.default_rng(i).random(f) for i, f in enumerate(forms)]
    found = evaluate(einsum(equation, *map(Constant, values)), {})
    np.testing.assert_allclose(found, np.einsum(equation, *values), strict=True)
    check(lambda *x: einsum(equation, *x), forms)


def test_products_that_do_not_fit_are_named():
    x, y = Var("x", "float32[2,3]"), Var("y", "float32[4,5]")
    for build, message in (
        (lambda: matmul(x, y), "k is 3 against 4"), (lambda: matmul(Var("m", "float32[m,3]"), y), "symbolic"),
        (lambda: einsum("ij,jk", x, y), "'j' in 'ij,jk' is 3 and 4"), (lambda: einsum("ii", x), "each once"),
        (lambda: einsum("ij->ijz", x), "'z' of the result"), (lambda: einsum("ij,jk", x), "of 2 operands, got 1"),
        (lambda: einsum("ijk", x), "of 2 axes"),
    ):
        with pytest.raises(ExprError, match=message):
            build()


def test_a_grid_may_be_computed_from_the_image():
    check(lambda x: grid_sample(x, tanh(reshape(x, (1, 3, 4, 2)))), [(1, 2, 3, 4)], distinct=True)
    check(lambda x: grid_sample(x, tanh(reshape(x, (1, 2, 2, 2, 3)))), [(1, 2, 2, 2, 3)], distinct=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_places_of_a_narrow_grid_are_wider(dtype):
    """Places as a kernel has them: 8 bits tell no pixels of a large image apart."""
    image, grid = Var("image", f"{dtype}[1,2,3,512]"), Var("grid", f"{dtype}[1,4,5,2]")
    found = gradient(grid_sample(image, grid), [image, grid])
    assert [infer_type(g).dtype for g in found] == [dtype, dtype]
    nodes = [node for node in post_order(Tuple(found)) if isinstance(node, Call) and node.op.name == "floor"]
    assert {infer_type(node).dtype for node in nodes} == {"float32"}


@pytest.mark.parametrize("is_ascend", [True, False])
def test_sort(is_ascend):
    check(lambda x: sort(x, 0, is_ascend), [(5, 3)], distinct=True)
    data = np.array([[3.0, np.nan, -1.0, 2.0]])
    right = [-1, 2, 3, np.nan]
    np.testing.assert_array_equal(evaluate(sort(Constant(data), 1, is_ascend), {}), [right[:: 1 if is_ascend else -1]])


@pytest.mark.parametrize("batch_dims", [0, 1])
def test_gather_nd(batch_dims):
    indices = np.random.default_rng(0).integers(-3, 3, (2, 2, 5))
    check(lambda x: gather_nd(x, indices, batch_dims), [(2, 3, 4, 2)])


@pytest.mark.parametrize("begin", [(1, 2), (-3, 9)])
def test_dynamic_slice(begin):
    check(lambda x: dynamic_slice(x, np.array(begin), (2, -1)), [(3, 4)])
    check(lambda x: dynamic_slice(x, np.array(begin), (1, 3)), [(3, 4)])
    data = np.arange(12.0).reshape(3, 4)
    first = np.clip(begin, 0, (2, 1))
    found = evaluate(dynamic_slice(Constant(data), np.array(begin), (1, 3)), {})
    np.testing.assert_array_equal(found, data[first[0] : first[0] + 1, first[1] : first[1] + 3])


def test_a_slice_by_size_from_before_the_axis_begins_with_it():
    data = np.arange(5.0)
    for begin, size, right in ((-7, 3, data[:3]), (-7, -1, data), (-6, 5, data), (-2, 2, data[3:])):
        found = evaluate(strided_slice(Constant(data), (begin,), (size,), slice_mode="size"), {})
        np.testing.assert_array_equal(found, right)


def test_a_slice_by_size_takes_all_of_a_very_long_axis():
    x = Var("x", TensorType((1 << 32,), "int8"))
    assert strided_slice(x, (1,), (-1,), slice_mode="size").tensor_type.concrete_shape == ((1 << 32) - 1,)


def test_strided_slice_by_size():
    check(lambda x: strided_slice(x, (1, -3), (2, -1), slice_mode="size"), [(4, 5)])
    data = np.arange(20.0).reshape(4, 5)
    found = evaluate(strided_slice(Constant(data), (-2, -3), (2, 2), slice_mode="size"), {})
    np.testing.assert_array_equal(found, data[2:4, 2:4])


@pytest.mark.parametrize("mode", ["clip", "wrap"])
@given(axis=st.none() | st.integers(-2, 1), indices=st.lists(st.integers(-9, 9), min_size=1, max_size=5))
def test_take(mode, axis, indices):
    check(lambda x: take(x, np.array(indices), axis, mode), [(2, 3)])


@given(shape=st.lists(extents, min_size=1, max_size=3), data=st.data())
def test_vectors_along_an_axis(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    vector = (shape[axis],)
    check(lambda x, b: bias_add(x, b, axis), [tuple(shape), vector])
    check(lambda x, g, b: layer_norm(x, g, b, axis, 0.1), [tuple(shape), vector, vector])


def test_the_gradient_of_a_vector_has_its_dtype_whatever_the_datas():
    x, g, b = (Var(name, kind) for name, kind in (("x", "float16[2,3]"), ("g", "float32[3]"), ("b", "float32[3]")))
    for norm in (layer_norm(x, g, b), rms_norm(x, g)):
        inputs = [x, g, b][: len(norm.args)]
        assert [of.tensor_type for of in gradient(norm, inputs)] == [i.tensor_type for i in inputs]


@given(shape=st.lists(extents, min_size=1, max_size=3), exclusive=st.booleans(), data=st.data())
def test_cumsum(shape, exclusive, data):
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    check(lambda x: cumsum(x, axis, exclusive=exclusive), [tuple(shape)])


@given(shape=st.lists(extents, min_size=1, max_size=3), exclusive=st.booleans(), data=st.data())
def test_cumprod(shape, exclusive, data):
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    check(lambda x: cumprod(x, axis, exclusive=exclusive), [tuple(shape)])


@given(shape=st.lists(extents, min_size=1, max_size=3), data=st.data())
def test_cummax(shape, data):
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    check(lambda x: cummax(x, axis), [tuple(shape)], distinct=True)


def test_the_gradient_of_cummax_is_that_of_the_last_of_equals():
    (found,) = gradient(cummax(Var("x", "float64[6]"), 0))
    np.testing.assert_array_equal(evaluate(found, {"x": np.array([1.0, 1, 0, 3, 3, 2])}), [1, 2, 0, 1, 2, 0])


def test_the_gradient_of_a_sum_keeps_small_terms_beside_large_ones():
    x, g = Var("x", "float64[3]"), Var("g", "float64[3]")
    (found,) = gradient(cumsum(x, 0) * g, [x])
    given = {"x": np.zeros(3), "g": np.array([1e17, 1, 2])}
    np.testing.assert_allclose(evaluate(found, given), [1e17, 3, 2], rtol=1e-12)
    given["g"][0] = np.nan
    np.testing.assert_array_equal(evaluate(found, given), [np.nan, 3, 2])


def test_the_gradient_of_a_product_of_small_numbers_is_exact():
    (found,) = gradient(cumprod(Var("x", "float64[5]"), 0))
    slope = evaluate(found, {"x": np.full(5, 1e-6)})
    np.testing.assert_allclose(slope[-1], 1e-24, rtol=1e-12)


def test_the_gradient_of_cummax_ends_at_a_number_that_is_none():
    (found,) = gradient(cummax(Var("x", "float64[5]"), 0))
    np.testing.assert_array_equal(evaluate(found, {"x": np.array([1, np.nan, 2, np.nan, 3])}), [1, 2, 0, 2, 0])


@given(
    numbers=st.lists(st.sampled_from([0.0, -1.5, 2.0]), min_size=1, max_size=6), exclusive=st.booleans()
)
def test_cumprod_has_a_gradient_at_zeros(numbers, exclusive):
    x = Var("x", f"float64[{len(numbers)}]")
    (found,) = gradient(cumprod(x, 0, exclusive=exclusive))
    ends = range(len(numbers)) if exclusive else range(1, len(numbers) + 1)
    expected = [
        sum(np.prod(numbers[:i] + numbers[i + 1 : end]) for end in ends if end > i)
        for i in range(len(numbers))
    ]
    np.testing.assert_allclose(evaluate(found, {"x": np.array(numbers)}), expected, atol=1e-12)


@pytest.mark.parametrize("kept", ["values", "both"])
@given(shape=st.lists(extents, min_size=1, max_size=3), ascend=st.booleans(), data=st.data())
def test_topk(kept, shape, ascend, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(1, shape[axis]))

    def values(x: Expr) -> Expr:
        found = topk(x, k, axis, kept, ascend)
        return found[0] if kept == "both" else found

    check(values, [tuple(shape)], distinct=True)


def test_nothing_flows_to_what_is_only_counted():
    x = Var("x", "float64[3]")
    (found,) = gradient(cast(topk(x, 2, ret_type="indices"), "float64"))
    np.testing.assert_array_equal(evaluate(found, {"x": np.arange(3.0)}), np.zeros(3))


@st.composite
def poolings(draw: st.DrawFn):
    size = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    reach = [(k - 1) * d for k, d in zip(size, dilation, strict=True)]
    padding = draw(st.tuples(*[st.integers(0, reach[side % 2]) for side in range(4)]))
    image = [r + 1 + draw(st.integers(0, 3)) for r in reach]
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 2)))
    how = {"pool_size": size, "strides": strides, "dilation": dilation, "padding": padding}
    how["ceil_mode"] = draw(st.booleans())
    return (1, 2, *image), how


@given(case=poolings(), count_include_pad=st.booleans())
def test_avg_pool2d(case, count_include_pad):
    shape, how = case
    check(lambda x: avg_pool2d(x, **how, count_include_pad=count_include_pad), [shape])


@given(case=poolings())
def test_max_pool2d(case):
    shape, how = case
    check(lambda x: max_pool2d(x, **how), [shape], distinct=True)


def test_max_pool2d_shares_the_gradient_out_among_equals():
    x = Var("x", "float64[1,1,2,3]")
    at = np.array([[[[1.0, 3.0, 3.0], [0.0, 2.0, 3.0]]]])
    (found,) = gradient(max_pool2d(x, 2))
    np.testing.assert_allclose(evaluate(found, {"x": at})[0, 0], [[0, 4 / 3, 1 / 3], [0, 0, 1 / 3]])


def test_global_avg_pool2d():
    check(global_avg_pool2d, [(2, 3, 2, 4)])


@given(lengths=st.lists(extents, min_size=1, max_size=4), axis=st.sampled_from([0, 1, -1]))
def test_concatenate(lengths, axis):
    shapes = [(n, 2) if axis == 0 else (2, n) for n in lengths]
    check(lambda *xs: concatenate(xs, axis), shapes)


def test_an_empty_tensor_that_is_joined_has_an_empty_gradient():
    parts = [Var(name, f"float64[{rows},4]") for name, rows in (("a", 0), ("b", 3), ("c", 0), ("d", 1))]
    given = {p.name: np.ones(p.tensor_type.concrete_shape) for p in parts}
    weight = Constant(np.arange(16.0).reshape(4, 4))
    found = evaluate(Tuple(gradient(multiply(concatenate(parts, 0), weight), parts)), given)
    for one, right in zip(found, np.split(weight.value, [0, 3, 3]), strict=True):
        np.testing.assert_array_equal(one, right)


def test_concat_of_one_tensor_twice():
    check(lambda x: concat(x, x * x), [(3, 2)])


def test_more_tensors_are_joined_than_a_workload_has_inputs():
    values = [np.full((2, 1), float(i)) for i in range(70)]
    for build, form in ((concatenate, np.concatenate), (stack, np.stack)):
        graph = build([Constant(v) for v in values], -1)
        np.testing.assert_array_equal(evaluate(graph, {}), form(values, -1))
        calls = [node for node in post_order(graph) if isinstance(node, Call)]
        assert max(len(node.args[0].inputs) for node in calls) <= 64
    check(lambda x: concatenate(split(x, 66), 0) * x, [(66,)])


def test_split_into_equal_parts():
    check(lambda x: concatenate(split(x, 3, axis=-1)[::-1], 0), [(2, 6)])
    with pytest.raises(ExprError, match=r"axis 1 of float64\[2,6\] has no 4 equal parts"):
        split(Var("x", "float64[2,6]"), 4, axis=1)


def test_split_of_an_axis_without_equal_parts():
    empty = Var("x", "float64[2,0]")
    with pytest.raises(ExprError, match=r"axis 1 of float64\[2,0\] has no 4 equal parts"):
        split(empty, 4, axis=1)
    assert split(empty, 1, axis=1) == (empty,)
    with pytest.raises(ExprError, match=r"axis 2 is not one of float64\[2,0\]: give one from -2 to 1"):
        split(empty, 4, axis=2)


def test_split_of_which_a_part_is_unused():
    def middle(x: Expr) -> Expr:
        _, part, last = split(x, (1, 3), axis=1)
        return concatenate([part * part, last], 1)

    check(middle, [(2, 5)])


@given(shape=st.lists(extents, min_size=1, max_size=3), data=st.data())
def test_softmax(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    check(lambda x: softmax(x, axis), [tuple(shape)])
    check(lambda x: log_softmax(x, axis), [tuple(shape)])


@pytest.mark.parametrize("dtype", ["bool", "float64"])
def test_a_query_that_sees_no_key_has_no_gradient(dtype):
    hidden = np.full((3, 4), dtype == "bool", dtype)
    hidden[1], hidden[2, 0] = (False, False) if dtype == "bool" else (-np.inf, -np.inf)
    check(lambda q, k, v: attention(q, k, v, Constant(hidden)), [(1, 2, 3, 2), (1, 1, 4, 2), (1, 1, 4, 3)])


def test_the_gradient_of_attention_has_the_layout_of_its_operands():
    def attend(q: Expr, k: Expr, v: Expr) -> Expr:
        return attention(q, k, v, is_causal=True, layout="BSHD")

    check(attend, [(2, 3, 4, 2), (2, 5, 2, 2), (2, 5, 2, 3)])


@st.composite
def convolutions(draw: st.DrawFn):
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    groups, per_group, multiplier = draw(st.sampled_from([(1, 2, 3), (2, 1, 2), (2, 2, 1)]))
    how = {
        "strides": draw(st.tuples(st.integers(1, 3), st.integers(1, 2))),
        "padding": draw(st.tuples(*[st.integers(0, 2)] * 4)),
        "dilation": draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        "groups": groups,
    }
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, how["dilation"], strict=True)]
    image = [r + draw(st.integers(0, 3)) for r in reach]
    data = dict(zip("NCHW", (draw(st.integers(1, 2)), groups * per_group, *image), strict=True))
    weight = dict(zip("OIHW", (groups * multiplier, per_group, *kernel), strict=True))
    how["data_layout"] = draw(st.sampled_from(["NCHW", "NHWC"]))
    how["kernel_layout"] = draw(st.sampled_from(["OIHW", "HWIO", "OHWI"]))
    return tuple(data[a] for a in how["data_layout"]), tuple(weight[a] for a in how["kernel_layout"]), how


@given(case=convolutions())
def test_conv2d(case):
    data, weight, how = case
    check(lambda x, w: conv2d(x, w, **how), [data, weight])


def test_second_derivatives():
    def slope(build):
        return lambda *xs: gradient(build(*xs), xs[:1])[0]

    check(slope(lambda x: sigmoid(x) * x), [(3, 2)])
    check(slope(lambda x, w: tanh(conv2d(x, w, padding=1))), [(1, 2, 3, 3), (2, 2, 3, 3)])
    check(slope(lambda x: softmax(x) * x), [(2, 3)])
    check(slope(lambda x: cumprod(x, 0) * x), [(4,)])
    check(slope(lambda x: avg_pool2d(x * x, 2, padding=1)), [(1, 2, 2, 3)])


def test_a_node_that_is_used_twice_gets_the_sum():
    x = Var("x", "float64[3]")
    y = x * x
    (found,) = gradient(y * y)
    at = np.array([1.0, -2.0, 3.0])
    np.testing.assert_allclose(evaluate(found, {"x": at}), 4 * at**3)


def test_a_deep_chain_needs_no_recursion():
    x = Var("x", "float64[2]")
    y = x
    for _ in range(3000):
        y = y + x
    (found,) = gradient(y)
    np.testing.assert_allclose(evaluate(found, {"x": np.zeros(2)}), [3001, 3001])


def test_what_does_not_reach_the_output_is_zero():
    x, y = Var("x", "float64[3]"), Var("y", "float64[2]")
    _, dy = gradient(x * x, [x, y])
    np.testing.assert_array_equal(evaluate(dy, {"y": np.ones(2)}), [0, 0])


def test_gradients_have_symbolic_types():
    x, w = Var("x", "float32[m,8]"), Var("w", "float32[4,8]")
    dx, dw = gradient(reduce_sum(relu(dense(x, w)), axis=-1))
    assert (str(dx.checked_type), str(dw.checked_type)) == ("float32[m,8]", "float32[4,8]")


def windows(x: Expr) -> Expr:
    return call("max_pool2d", x, pool_size=(2, 2), layout="NCHW8c")


def test_a_gradient_by_blocks_of_channels_may_be_symbolic():
    (dx,) = gradient(windows(Var("x", "float32[1,n,4,4,8]")))
    assert may_equal(dx.checked_type, TensorType((1, 3, 4, 4, 8), "float32"))


@pytest.mark.parametrize(("shape", "build"), [
    ("1,2,h,6", lambda x: call("adaptive_avg_pool2d", x, output_size=(3, 4))),
    ("n,2,7,6", lambda x: call("adaptive_max_pool2d", x, output_size=(3, 4))),
    ("1,2,h,6", lambda x: call("resize2d", x, size=(3, 4))),
    ("3,n,4", lambda x: concatenate([x, Var("y", "float32[3,2,4]")], 1)),
])
def test_a_gradient_that_needs_a_symbolic_extent_is_refused(shape, build):
    x = Var("x", f"float32[{shape}]")
    with pytest.raises(GradientError, match="the gradient of"):
        gradient(build(x), [x])


@pytest.mark.parametrize(("shape", "build"), [
    ("0,2,7,6", lambda x: call("adaptive_avg_pool2d", x, output_size=(3, 4))),
    ("1,0,6,9", lambda x: avg_pool2d(x, (2, 3))),
    ("5,0", lambda x: reduce_sum(x * x, axis=1)),
    ("5,3", lambda x: gather_nd(x, Constant(np.zeros((1, 0), "int32")))),
    ("5,3", lambda x: softmax(take(x, Constant(np.zeros(0, "int32")), axis=0))),
])
def test_nothing_flows_through_an_empty_tensor(shape, build):
    x = Var("x", f"float64[{shape}]")
    (dx,) = gradient(build(x), [x])
    given = np.ones(x.tensor_type.concrete_shape)
    found = evaluate(dx, {"x": given})
    assert found.shape == given.shape
    assert not found.any()


def test_errors_name_the_operator(monkeypatch):
    monkeypatch.setattr(registry, "_ops", dict(registry._ops))
    x = Var("x", "float64[3]")
    with pytest.raises(GradientError, match="take the gradient of one tensor"):
        gradient(Tuple([x, x]))
    for name, rule, message in (
        ("no_rule", None, "no_rule has no gradient: register one"),
        ("wrong_count", lambda orig, grad: [], "gives 0 expressions for 1 inputs"),
        ("wrong_type", lambda orig, grad: [reduce_sum(grad)], r"for data is float64\[\], but"),
    ):
        register_op(name).set_num_inputs(1).add_argument("data", "Tensor", "").add_type_rel(
            "Identity", identity_relation()
        )
        register_reference(name, lambda attrs, inputs: inputs[0])
        register_gradient(name, rule)
        with pytest.raises(GradientError, match=message):
            gradient(call(name, x))


def test_collapse_sum_like_undoes_a_broadcast():
    check(lambda x, y: collapse_sum_like(x * x, y), [(2, 3, 4), (3, 1)])
    x = Var("x", "float32[2,3]")
    assert str(infer_type(collapse_sum_like(ones_like(x), Var("y", "float32[3]")))) == "float32[3]"


def flowing(out: Expr) -> list[Expr]:
    """The floating-point tensors that an expression gives."""
    kind = infer_type(out)
    parts = [TupleGetItem(out, i) for i in range(len(kind.fields))] if isinstance(kind, TupleType) else [out]
    return [p for p in parts if infer_type(p).dtype.startswith("float")]


@pytest.mark.parametrize("op", registry.all_ops())
def test_examples(op):
    """Along a random direction: central differences of all elements of all examples would take minutes."""
    if registry.get_op(op).get_attr("FPrimalGradient") is None:
        return
    rng = np.random.default_rng(0)
    for example in registry.get_op(op).examples:
        types, attrs = (
            {n: re.sub("^b?float[0-9]+", "float64", v) if isinstance(v, str) else v for n, v in given.items()}
            for given in (example.inputs, example.attrs)
        )
        workload = Workload.make(op, types, attrs)
        drawn = random_inputs(workload, 0)
        moved = [i for i in workload.inputs if i.tensor.dtype == "float64"]
        variables = {i.name: Var(i.name, i.type) for i in moved}
        given = [variables.get(i.name) or Constant(drawn[i.name]) for i in workload.inputs]
        tupled = registry.get_op(op).arguments[0].kind == "Tuple"
        out = call(op, *([Tuple(given)] if tupled else given), **workload.attrs)
        if not moved or not flowing(out):
            continue
        # No two elements are so near each other, or a number where the slope jumps, that a step passes it.
        places = {i.name: rng.permutation(np.linspace(-0.99, 0.98, i.tensor.size)) for i in moved}
        at = {i.name: places[i.name].reshape(i.tensor.concrete_shape) for i in moved}
        with np.errstate(all="ignore"):
            steep = op.startswith("floor_")  # near 0 a step passes many jumps
            if steep or not all(np.isfinite(evaluate(part, at)).all() for part in flowing(out)):
                at = {name: value + 1.5 for name, value in at.items()}  # of positive numbers only
        kinds = [infer_type(part) for part in flowing(out)]
        weights = [Constant(rng.uniform(-1, 1, k.concrete_shape).astype(k.dtype)) for k in kinds]
        total = reduce(add, [reduce_sum(part * w) for part, w in zip(flowing(out), weights, strict=True)])
        direction = {name: rng.uniform(-1, 1, value.shape) for name, value in at.items()}
        ahead, behind = (
            float(evaluate(total, {n: at[n] + step * direction[n] for n in at})) for step in (STEP, -STEP)
        )
        slopes = evaluate(Tuple(gradient(total, list(variables.values()))), at)
        found = sum(float((slope * direction[n]).sum()) for n, slope in zip(variables, slopes, strict=True))
        np.testing.assert_allclose(found, (ahead - behind) / (2 * STEP), rtol=1e-5, atol=1e-6, err_msg=str(workload))


def test_every_operator_has_a_gradient():
    without = {name for name, op in registry.all_ops().items() if op.get_attr("FPrimalGradient") is None}
    integers = {"qdense", "qconv2d", "quantize", "dequantize", "requantize", "matmul_nbits"}
    assert without == {"max_pool2d_backward", *integers}  # so that max pooling is differentiated once


def test_a_convolution_of_one_dimension_may_be_of_symbolic_size():
    x, w = Var("x", "float32[n,4,width]"), Var("w", "float32[6,4,3]")
    assert str(conv1d(x, w, padding=1).checked_type) == "float32[n,6,((width - 1) // 1) + 1]"
    with pytest.raises(ExprError, match=r"conv1d: float32\[6,4\]: expected 3 dimensions"):
        conv1d(x, Var("v", "float32[6,4]"))


def test_convolutions_of_one_and_three_dimensions_are_sums_over_their_windows():
    rng = np.random.default_rng(0)
    for function, data, weight, how in (
        (conv1d, (2, 4, 9), (6, 2, 3), {"strides": 2, "padding": (1, 2), "dilation": 2, "groups": 2}),
        (conv3d, (1, 2, 5, 4, 3), (3, 2, 2, 3, 2), {"strides": (2, 1, 1), "padding": (1, 0, 1), "dilation": (1, 1, 2)}),
    ):
        x, w = rng.standard_normal(data), rng.standard_normal(weight)
        found = evaluate(function(Constant(x), Constant(w), **how), {})
        rank, groups = len(data) - 2, how.get("groups", 1)

        def each(value, rank=rank):
            return (value,) * rank if isinstance(value, int) else value

        sides = how["padding"] if len(how["padding"]) == 2 * rank else how["padding"] * 2
        padded = np.pad(x, [(0, 0), (0, 0), *zip(sides[:rank], sides[rank:], strict=True)])
        for place in np.ndindex(found.shape):
            n, o, *at = place
            first = o // (weight[0] // groups) * weight[1]
            window = tuple(
                slice(i * s, i * s + (k - 1) * d + 1, d)
                for i, s, d, k in zip(at, each(how["strides"]), each(how["dilation"]), weight[2:], strict=True)
            )
            expected = (padded[(n, slice(first, first + weight[1]), *window)] * w[o]).sum()
            np.testing.assert_allclose(found[place], expected)
