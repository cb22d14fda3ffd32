"""The call graph: nodes, arithmetic on them, and type inference to a fixed point."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from strategy import op as registry
from strategy.attrs import AttrsError
from strategy.compile.fusion import describe, fuse
from strategy.expr import (
    Call,
    Constant,
    ExprError,
    Tuple,
    TupleGetItem,
    Var,
    call,
    const,
    free_vars,
    post_order,
    substitute,
)
from strategy.inference import infer_type
from strategy.op import OpError, TypeRelationError, register_op
from strategy.ops.avg_pool2d import avg_pool2d
from strategy.ops.batch_matmul import batch_matmul
from strategy.ops.broadcast import add, collapse_sum_like, greater, where
from strategy.ops.concatenate import concat, concatenate, split
from strategy.ops.conv2d import conv2d
from strategy.ops.dense import dense
from strategy.ops.elemwise import cast, ones_like, relu, sigmoid
from strategy.ops.max_pool2d import max_pool2d
from strategy.ops.reduce import mean
from strategy.ops.reduce import sum as reduce_sum
from strategy.ops.reshape import expand_dims, reshape, reshape_like
from strategy.ops.scan import cumprod, cumsum
from strategy.ops.softmax import softmax
from strategy.ops.topk import topk
from strategy.ops.transpose import transpose
from strategy.ops.window import windows
from strategy.reference import evaluate
from strategy.types import Dim, IncompleteType, TensorType, TupleType


def typed(text: str, name: str = "x") -> Var:
    return Var(name, text)


def of(expr) -> str:
    return str(infer_type(expr))


def test_arithmetic_makes_calls_of_the_broadcast_operators():
    grad, orig = typed("float64[3]", "grad"), typed("float64[3]", "orig")
    graph = grad * orig * (ones_like(orig) - orig)
    at = {"grad": np.array([1.0, 2.0, 3.0]), "orig": np.array([0.5, 0.25, 2.0])}
    np.testing.assert_allclose(evaluate(graph, at), at["grad"] * at["orig"] * (1 - at["orig"]))
    assert [n.op.name for n in post_order(-grad / orig + orig) if isinstance(n, Call)] == [
        "negative", "divide", "add",
    ]


def test_arrays_become_constants_from_either_side():
    x, row = typed("float32[2,3]"), np.arange(3, dtype="float32")
    for graph in (x + row, row + x, row - x, row * x, row / (x + row)):
        assert of(graph) == "float32[2,3]"
    assert isinstance((row - x).args[0], Constant)


def test_a_number_needs_a_dtype():
    with pytest.raises(ExprError, match=r"multiply: rhs is 2, not an expression: .*const\(value"):
        typed("float64[2]") * 2
    assert of(typed("float64[2]") * const(2, "float64")) == "float64[2]"
    assert (str(const(2).type), str(const(2.0).type)) == ("int32[]", "float32[]")


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (lambda: typed("float32[4,1]") + typed("float32[3]", "y"), "float32[4,3]"),
        (lambda: greater(typed("int32[4]"), typed("int32[]", "y")), "bool[4]"),
        (lambda: cast(typed("int8[2]"), "float16"), "float16[2]"),
        (lambda: where(typed("bool[4,1]"), typed("int8[3]", "y"), typed("int8[1]", "z")), "int8[4,3]"),
        (lambda: reduce_sum(typed("int32[2,3,4]"), axis=(0, -1)), "int32[3]"),
        (lambda: mean(typed("float32[2,3]"), keepdims=True), "float32[1,1]"),
        (lambda: collapse_sum_like(typed("int32[2,3]"), typed("int32[3]", "y")), "int32[3]"),
        (lambda: reshape(typed("int8[2,3,4]"), (0, -1)), "int8[2,12]"),
        (lambda: reshape(typed("int8[2,3]"), (3, 2)), "int8[3,2]"),
        (lambda: expand_dims(typed("int8[2,3]"), (0, -1)), "int8[1,2,3,1]"),
        (lambda: reshape_like(typed("int8[6]"), typed("float32[2,3]", "y")), "int8[2,3]"),
        (lambda: transpose(typed("int8[2,3,4]")), "int8[4,3,2]"),
        (lambda: concatenate([typed("int8[2,3]"), typed("int8[2,4]", "y")], axis=-1), "int8[2,7]"),
        (lambda: cumsum(typed("int8[2,3]"), axis=1, dtype="int32"), "int32[2,3]"),
        (lambda: cumprod(typed("int8[2,3]")), "int8[6]"),
        (lambda: topk(typed("float32[2,9]"), k=3)[1], "int32[2,3]"),
        (lambda: softmax(typed("float32[2,9]")), "float32[2,9]"),
        (lambda: batch_matmul(typed("float32[5,2,3]"), typed("float32[1,4,3]", "y")), "float32[5,2,4]"),
        (lambda: max_pool2d(typed("float32[1,2,7,8]"), 3, 2, padding=1), "float32[1,2,4,4]"),
        (lambda: conv2d(typed("float32[1,4,9,9]"), typed("float32[8,2,3,3]", "w"), 2, 1, 2, 2), "float32[1,8,4,4]"),
    ],
)
def test_types(graph, expected):
    assert of(graph()) == expected


def test_symbolic_dimensions_flow_through():
    x, w = typed("float32[m,768]"), typed("float32[3072,768]", "w")
    y = relu(dense(x, w) + typed("float32[3072]", "bias"))
    assert of(y) == "float32[m,3072]"
    assert of(concat(y, y, typed("float32[5,3072]", "z"))) == "float32[(m + m) + 5,3072]"
    flat = infer_type(reshape(typed("float32[m,4]", "f"), (-1,)))
    assert flat == TensorType([Dim("m") * 4])
    assert of(cumsum(typed("float32[m,4]", "c"))) == "float32[m * 4]"
    assert of(max_pool2d(typed("float32[b,2,h,8]", "p"), 2, 2)) == "float32[b,2,((h - 2) // 2) + 1,4]"
    assert of(max_pool2d(typed("float32[1,2,h,8]", "q"), 3, 2, 2, 1)) == "float32[1,2,((h - 3) // 2) + 1,3]"


def test_types_flow_against_the_arrows():
    v = Var("v")
    graph = conv2d(typed("float32[1,3,8,8]"), relu(v), channels=16, kernel_size=3, padding=1)
    assert of(graph) == "float32[1,16,8,8]"
    assert str(v.checked_type) == "float32[16,3,3,3]"


def test_a_long_chain_is_solved_against_the_arrows():
    weight = node = Var("v")
    for _ in range(2000):
        node = sigmoid(node)
    infer_type(conv2d(typed("float64[1,3,8,8]"), node, channels=16, kernel_size=3))
    assert str(weight.checked_type) == "float64[16,3,3,3]"


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (lambda x: add(x, typed("float32[4]", "y")),
         r"add: rhs is float32\[4\]: does not broadcast with float32\[2,3\]"),
        (lambda x: add(x, typed("int32[3]", "y")),
         r"add: rhs is int32\[3\]: expected the dtype of lhs, float32\[2,3\]"),
        (lambda x: dense(x, typed("float32[4,5]", "w")), r"dense: weight is float32\[4,5\]"),
        (lambda x: concat(x, typed("float32[2,4]", "y")),
         r"concatenate: data .* entry 1 is float32\[2,4\], which does not join float32\[2,3\]"),
        (lambda x: reshape(x, (4, -1)), r"reshape: data is float32\[2,3\]: does not divide into newshape \(4, -1\)"),
        (lambda x: transpose(x, (0, 0)), r"transpose: data is float32\[2,3\]: axes \(0, 0\) name one axis twice"),
        (lambda x: reduce_sum(x, axis=2), r"sum: data is float32\[2,3\]: axis 2 is out of range for 2"),
        (lambda x: sigmoid(cast(x, "int32")), r"sigmoid: data is int32\[2,3\]: expected a floating-point"),
        (lambda x: split(x, (4,), axis=1)[0], r"split: data is float32\[2,3\]: indices \(4,\) do not ascend"),
        (lambda x: topk(x, k=4, ret_type="values"), r"topk: data is float32\[2,3\]: has fewer than k = 4"),
        (lambda x: cumsum(x, dtype="bool"), r"cumsum: data is float32\[2,3\]: dtype = bool: scans are of numbers"),
        (lambda x: x[0], r"is float32\[2,3\]: it has no entry 0"),
        (lambda x: sigmoid(Tuple([x])), r"sigmoid: data must be one tensor, got \(float32\[2,3\]\)"),
        (concatenate, r"concatenate: data is float32\[2,3\]: expected a tuple"),
        (lambda x: conv2d(x, Var("w")), r"conv2d: data is float32\[2,3\]: expected 4 dimensions"),
        (lambda x: max_pool2d(typed("float32[1,1,4,4]", "y"), 2, padding=2), "wider than the window"),
        (lambda x: max_pool2d(typed("float32[1,1,1,9]", "y"), 2, dilation=2, padding=1),
         r"^max_pool2d: data is float32\[1,1,1,9\]: a window of dilation \(2, 2\) lies in padding .* alone$"),
        (lambda x: max_pool2d(typed("float32[1,1,4,4]", "y"), 2**10, strides=2**11 - 1, dilation=2**12,
                              padding=2**21 + 1), "a window of dilation .* lies in padding .* alone$"),
        (lambda x: call("conv2d_backward_data", typed("float32[1,4,4,7]", "g"), typed("float32[8,3,3,3]", "w"),
                        typed("float32[1,3,6,9]", "d")),
         r"conv2d_backward_data: grad is float32\[1,4,4,7\]: conv2d gives float32\[1,8,4,7\]"),
        (lambda x: call("conv2d_backward_weight", typed("float32[1,4,400,400]", "g"), typed("float32[1,3,6,9]", "d"),
                        typed("float32[4,3,3,3]", "w")),
         r"conv2d_backward_weight: grad is float32\[1,4,400,400\]: conv2d gives float32\[1,4,4,7\]"),
        (lambda x: call("conv2d_backward_weight", typed("float32[1,4,4,7]", "g"), typed("float32[1,3,6,9]", "d"),
                        typed("float32[4,2,3,3]", "w")),
         r"conv2d_backward_weight: weight is .*: does not fit data, float32\[1,3,6,9\], in groups = 1"),
        (lambda x: call("sum", typed("float32[]", "s")), "sum: data is .*: has no axis to reduce: leave"),
        (lambda x: call("max_pool2d_backward", *(typed("float32[1,1,4,4]", n) for n in "gy"), pool_size=2),
         r"max_pool2d_backward: grad is float32\[1,1,4,4\]: what is pooled is float32\[1,1,3,3\]"),
        (lambda x: collapse_sum_like(x, typed("float32[2]", "y")), r"collapse_sum_like: data is float32\[2,3\]"),
    ],
)
def test_conflicts_name_operator_argument_and_both_types(graph, message):
    with pytest.raises(TypeRelationError, match=message):
        infer_type(graph(typed("float32[2,3]")))


@pytest.mark.parametrize("pool", [max_pool2d, avg_pool2d])
def test_a_pool_is_refused_where_one_of_its_windows_lies_in_the_padding_alone(pool):
    for size, rows, gap, step, before, after in product((1, 2, 3), (2, 3), (1, 2, 3), (1, 2), range(4), range(3)):
        reach = (rows - 1) * gap
        if max(before, after) > reach or before + size + after <= reach:
            continue  # refused for its padding, or for its size
        how = (rows, 1), (step, 1), (gap, 1), (before, 0, after, 0)
        met = windows(np.ones((1, 1, size, 1)), *how).any(axis=(-2, -1))
        found = pool(typed(f"float32[1,1,{size},1]"), *how)
        if met.all():
            assert of(found) == f"float32[1,1,{met.shape[2]},1]"
        else:
            with pytest.raises(TypeRelationError, match="alone"):
                infer_type(found)


def test_an_assignment_that_conflicts_names_both_types():
    w = Var("w")
    x, y = typed("float32[1,3,8,8]"), typed("float32[1,4,8,8]", "y")
    how = {"channels": 2, "kernel_size": 1}
    with pytest.raises(TypeRelationError, match=r"conv2d: weight is float32\[2,3,1,1\].*float32\[1,4,8,8\]"):
        infer_type(Tuple([conv2d(x, w, **how), conv2d(y, w, **how)]))
    assert w._type is None, "a failed inference leaves no types behind"


def test_one_variable_as_two_arguments_has_one_type(monkeypatch):
    def relation(types, attrs, reporter):
        for index, extent in enumerate((2, 3, 3)):
            reporter.assign(index, TensorType([extent]))
        return True

    monkeypatch.setattr(registry, "_ops", dict(registry._ops))
    register_op("pair").set_num_inputs(2).add_argument("a", "Tensor", "").add_argument(
        "b", "Tensor", ""
    ).add_type_rel("Pair", relation)
    v = Var("v")
    with pytest.raises(TypeRelationError, match=r"pair: Var\(v: v\) is float32\[2\], but must be float32\[3\]"):
        infer_type(call("pair", v, v))


def test_what_nothing_determines_is_named_with_its_use():
    with pytest.raises(TypeRelationError, match=r"type of Var\(v: v\), rhs of add,: give it a type"):
        infer_type(add(typed("float32[2]"), Var("v")))


def test_an_operator_without_a_relation_says_so(monkeypatch):
    monkeypatch.setattr(registry, "_ops", dict(registry._ops))
    register_op("bare").set_num_inputs(1).add_argument("data", "Tensor", "")
    with pytest.raises(OpError, match="bare has no type relation: add one with add_type_rel"):
        infer_type(call("bare", typed("float32[2]")))


def test_calls_are_checked_when_they_are_made():
    x = typed("float32[2]")
    with pytest.raises(ExprError, match=r"add takes 2 inputs \(lhs, rhs\), got 1"):
        call("add", x)
    with pytest.raises(ExprError, match="takes attributes of type ScanopAttrs"):
        Call("cumsum", [x], call("sum", x).attrs)
    with pytest.raises(AttrsError, match="ScanopAttrs has no attribute 'axes'"):
        call("cumsum", x, axes=1)
    with pytest.raises(AttrsError, match=r"strides = \(0, 0\) is out of bounds: 1 … 16777216"):
        conv2d(x, x, strides=0)
    with pytest.raises(OpError, match="unknown operator 'nonsense'"):
        call("nonsense", x)
    with pytest.raises(TypeError, match="is an expression"):
        list(x)
    with pytest.raises(ExprError, match="integer of at least 0, got -1"):
        TupleGetItem(Tuple([x]), -1)


def test_one_window_or_padding_has_one_form():
    x, w = typed("float32[1,1,5,5]"), typed("float32[1,1,3,3]", "w")
    forms = [conv2d(x, w, padding=p).attrs for p in (1, (1, 1), (1, 1, 1, 1), [1, 1, 1, 1])]
    assert len(set(forms)) == 1
    assert conv2d(x, w, channels=1, kernel_size=3, padding=1).attrs.to_json() == forms[0].to_json()


def test_free_variables_come_in_order_and_have_one_name_each():
    x, y = typed("float32[2]"), typed("float32[2]", "y")
    assert free_vars(y + x * y) == [y, x]
    with pytest.raises(ExprError, match="two variables are called 'x'"):
        free_vars(x + typed("float32[2]"))


def test_a_tuple_of_a_tuples_entries():
    low, high = split(typed("int32[5]"), (2,))
    assert infer_type(Tuple([high, low])) == TupleType([TensorType([3], "int32"), TensorType([2], "int32")])
    found = evaluate(Tuple([high, low]), {"x": np.arange(5)})
    assert [list(f) for f in found] == [[2, 3, 4], [0, 1]]


def test_substitution_keeps_what_does_not_change():
    x, y = typed("float32[2]"), typed("float32[2]", "y")
    kept = relu(y)
    graph = sigmoid(x) + kept
    other = substitute(graph, {x: typed("float32[1]", "z")})
    assert isinstance(other, Call)
    assert other.args[1] is kept
    assert [v.name for v in free_vars(other)] == ["z", "y"]
    assert substitute(graph, {}) is graph


def test_a_deep_graph_is_no_recursion():
    node = typed("float32[2]")
    for _ in range(5000):
        node = relu(node)
    assert of(node) == "float32[2]"


def test_evaluation_needs_values_and_references(monkeypatch):
    monkeypatch.setattr(registry, "_ops", dict(registry._ops))
    register_op("unreferenced").set_num_inputs(1)
    with pytest.raises(ExprError, match="variable 'x' has no value"):
        evaluate(relu(typed("float32[2]")), {})
    with pytest.raises(OpError, match="unreferenced has no reference"):
        evaluate(call("unreferenced", const(1.0)), {})
    with pytest.raises(ExprError, match="cannot have dtype complex128"):
        Constant(np.zeros(2, complex))


def test_unknown_types_are_each_their_own():
    assert IncompleteType("a") != IncompleteType("a")


def test_a_graph_is_printed_as_text():
    x, w = Var("x", "float32[m,16]"), Var("w")
    hidden = call("dense", x, w, units=4) * const(2.0)
    both = Tuple([call("topk", hidden, k=2)[1], hidden + Constant(np.ones(4, "float32"))])
    untyped = """\
fn (%x: float32[m,16], %w) {
  %0 = dense(%x, %w, units=4);
  %1 = multiply(%0, float32(2.0));
  %2 = topk(%1, k=2);
  %3 = add(%1, const(float32[4]));
  (%2.1, %3)
}"""
    assert str(both) == untyped
    infer_type(both)
    assert str(both) == """\
fn (%x: float32[m,16], %w: float32[4,16]) {
  %0 = dense(%x, %w, units=4) /* float32[m,4] */;
  %1 = multiply(%0, float32(2.0)) /* float32[m,4] */;
  %2 = topk(%1, k=2) /* (float32[m,2], int32[m,2]) */;
  %3 = add(%1, const(float32[4])) /* float32[m,4] */;
  (%2.1, %3)
}"""
    assert str(x) == "fn (%x: float32[m,16]) {\n  %x\n}"
    assert str(Tuple([const(3)])) == "fn () {\n  (int32(3),)\n}"


def test_operands_that_may_be_exchanged_give_one_workload() -> None:
    x, other, weight = Var("x", "float32[4,8]"), Var("other", "float32[4,6]"), Var("w", "float32[6,8]")
    for name, alike in (("add", True), ("multiply", True), ("subtract", False)):
        sides = []
        for first in (True, False):
            product = call("dense", x, weight)
            graph = call(name, product, other) if first else call(name, other, product)
            infer_type(graph)
            (group,) = fuse(graph)
            workload, sources = describe(group)
            assert sources[workload.epilogue[0].operands[1 if first or alike else 0].name] == (other, None)
            sides.append(workload.key)
        assert (sides[0] == sides[1]) is alike
