"""Workloads: reading, checking, their identity, and the types they are made of."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.attrs import AttrsError
from strategy.op import OpError, TypeRelationError
from strategy.record import WireError, decode, encode
from strategy.types import (
    DTYPES,
    Dim,
    IncompleteType,
    TensorType,
    TupleType,
    TypeSyntaxError,
)
from strategy.workload import EpilogueStep, Input, Workload, WorkloadError
from strategy.workload_text import parse_workload

entries = st.integers(0, 2**9) | st.sampled_from(["m", "n", "batch_size", "_x1"])
tensors = st.builds(TensorType, st.lists(entries, max_size=5), st.sampled_from(sorted(DTYPES)))
names = st.text("abcXYZ019_.-/é", min_size=1, max_size=8)
inputs = st.builds(Input, names, tensors.map(str), st.booleans())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
attrs = st.dictionaries(st.text(max_size=8), json_values, max_size=3)
steps = st.builds(
    EpilogueStep, names, st.lists(st.none() | inputs, min_size=1, max_size=3).map(tuple), attrs
)
workloads = st.builds(
    Workload,
    names,
    st.lists(inputs, min_size=1, max_size=4, unique_by=lambda i: i.name).map(tuple),
    attrs,
    st.lists(steps, max_size=2).map(tuple),
)


@given(workloads)
def test_a_workload_survives_the_wire(workload: Workload) -> None:
    again = decode(encode(workload), Workload)
    assert again == workload
    assert hash(again) == hash(workload)
    assert (again.key, again.digest) == (workload.key, workload.digest)
    assert pickle.loads(pickle.dumps(workload)) == workload


@given(workloads, workloads)
def test_the_key_is_the_identity(one: Workload, other: Workload) -> None:
    assert (one.key == other.key) == (encode(one) == encode(other))


def test_names_cannot_imitate_other_workloads() -> None:
    # The key of one input of this name would be that of two.
    for name in ("a=float32[1],b", "a:const", "", " a", "x" * 129, 'a"', "a\n"):
        with pytest.raises(WorkloadError, match="an input's name has 1 to 128 characters"):
            Input(name, "float32[1]")
    for op in ("", "dense(", "a+b", "x" * 129):
        with pytest.raises(WorkloadError, match="an operator's name has 1 to 128 characters"):
            Workload(op, (Input("a", "float32[1]"),))
        with pytest.raises(WorkloadError, match="an operator's name has 1 to 128 characters"):
            EpilogueStep(op, (None,))


def test_the_key_says_all() -> None:
    workload = Workload(
        "dense",
        (Input("data", "float32[128,768]"), Input("weight", "float32[3072,768]", constant=True)),
        {"b": 2, "a": [1]},
        (EpilogueStep("add", (None, Input("bias", "float32[3072]", constant=True))),
         EpilogueStep("relu", (None,), {"x": 1})),
    )
    assert workload.key == (
        "dense(data=float32[128,768],weight=float32[3072,768]:const)"
        '{"a":[1],"b":2}+add(.,bias=float32[3072]:const)+relu(.){"x":1}'
    )
    assert str(workload) == workload.key


def test_spelling_does_not_matter() -> None:
    assert Input("a", " float32 [ 08, m ] ") == Input("a", "float32[8,m]")
    one = Workload.make(
        "dense", {"weight": "float32[64, 32]", "data": "float32[8,32]"}, {"out_dtype": None}
    )
    two = Workload.make(
        "dense", [Input("data", "float32[8,32]"), Input("weight", "float32[64,32]")]
    )
    assert one.key == two.key == "dense(data=float32[8,32],weight=float32[64,32])"


def dense(rows: int | str = 8, **more: Any) -> Workload:
    return Workload.make(
        "dense", {"data": f"float32[{rows},32]", "weight": "float32[64,32]"}, constants=["weight"], **more
    )


def test_a_workload_of_an_installed_operator() -> None:
    workload = dense()
    assert workload.checked() == workload
    assert str(workload.out_type) == "float32[8,64]"
    assert [i.constant for i in workload.inputs] == [False, True]
    assert workload.dims == {
        "data.shape[0]": 8,
        "data.shape[1]": 32,
        "weight.shape[0]": 64,
        "weight.shape[1]": 32,
    }
    assert [str(d) for d in workload.input_types[0].shape] == ["data.shape[0]", "data.shape[1]"]
    assert workload.is_constant
    assert workload.symbols == frozenset()
    assert workload.flops == 2 * 8 * 32 * 64
    assert Workload.make("dense", workload.inputs).key == workload.key


def finished(*steps: EpilogueStep) -> Workload:
    return Workload.make("dense", dense(8).inputs, epilogue=steps)


def test_an_epilogue_has_one_form() -> None:
    bias = EpilogueStep("add", (None, Input("bias", "float32[64]")))
    spelled = EpilogueStep("clip", (None,), {"a_max": 6, "a_min": 0})
    usual = EpilogueStep("clip", (None,), {"a_min": 0.0, "a_max": 6.0})
    assert finished(bias, spelled).key == finished(bias, usual).key == finished(bias, spelled).checked().key


def test_constants_are_named_beside_inputs_too() -> None:
    shapes = {"data": "float32[8,32]", "weight": "float32[64,32]"}
    named = Workload.make("dense", Workload.make("dense", shapes).inputs, constants=["weight"])
    assert [i.constant for i in named.inputs] == [False, True]


def test_a_symbolic_workload() -> None:
    workload = dense("m")
    assert not workload.is_constant
    assert workload.symbols == {"m"}
    assert str(workload.out_type) == "float32[m,64]"
    assert workload.bind({"m": 8}) == dense(8)
    assert workload.match(dense(8)) == {"m": 8}
    assert (
        workload.match(
            Workload.make("dense", {"data": "float32[8,32]", "weight": "float32[63,32]"})
        )
        is None
    )


@pytest.mark.parametrize(
    "change",
    [
        {"op": "other"},
        {"attrs": {"axis": 2}},
        {"epilogue": (EpilogueStep("relu", (None,)),)},
        {"inputs": (Input("data", "float32[8,8]", True),)},
        {"inputs": (Input("date", "float32[8,8]"),)},
        {"inputs": (Input("data", "float64[8,8]"),)},
        {"inputs": (Input("data", "float32[8,8,1]"),)},
        {"inputs": (Input("data", "float32[8,9]"),)},
        {"inputs": (Input("data", "float32[8,m]"),)},
        {"inputs": (Input("data", "float32[8,8]"), Input("more", "float32[8,8]"))},
    ],
)
def test_an_instance_differs_in_its_symbols_alone(change: dict[str, Any]) -> None:
    square = Workload("made_up", (Input("data", "float32[m,m]"),), {"axis": 1})
    instance = square.bind({"m": 8})
    assert square.match(instance) == {"m": 8}
    assert square.match(msgspec.structs.replace(instance, **change)) is None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Workload.make("densee", {}), OpError,
         "unknown operator 'densee', did you mean dense\\?; known: those of 'plevel ops'$"),
        (lambda: Workload.make("dense", {"data": "float32[8,32]"}), WorkloadError, "input 'weight' is missing"),
        (lambda: Workload.make("dense", {"date": "float32[8,32]"}), WorkloadError,
         "no input 'date', did you mean data\\?: expected data, weight"),
        (lambda: Workload.make("dense", dense().inputs, constants=["bias"]), WorkloadError, "no input 'bias'"),
        (lambda: Workload.make("dense", [Input("data", "float32[8,32]")] * 2), WorkloadError,
         "the same name: data, data"),
        (lambda: dense(attrs={"unit": 3}), AttrsError, "no attribute 'unit'"),
        (lambda: dense(attrs={"units": 0}), AttrsError, "units = 0 is out of bounds"),
        (lambda: Workload.make("dense", {"data": "float32[8,31]", "weight": "float32[64,32]"}),
         TypeRelationError, "weight is float32"),
        (lambda: Workload.make("dense", {"data": "float31[8,32]", "weight": "float32[64,32]"}),
         TypeSyntaxError, "'float31'"),
        (lambda: Workload("x", tuple(Input(f"i{i}", "int8[]") for i in range(65))), WorkloadError,
         "at most 64 inputs, got 65"),
        (lambda: Workload("x", (Input("a", "int8[]"), Input("a", "int8[]"))), WorkloadError, "the same name"),
        (lambda: EpilogueStep("add", ()), WorkloadError, "1 to 64 operands, got 0"),
        (lambda: finished(EpilogueStep("adds", (None,))), OpError, "unknown operator 'adds'"),
        (lambda: finished(EpilogueStep("relu", (Input("x", "float32[8,64]"),))), WorkloadError,
         "relu: .* the value so far"),
        (lambda: finished(EpilogueStep("add", (None, Input("bias", "float32[63]")))), TypeRelationError,
         "add: rhs is float32\\[63\\]"),
        (lambda: finished(EpilogueStep("clip", (None,), {"a_min": 0})), AttrsError, "a_max is required"),
    ],
)
def test_what_no_operator_can_take(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b'{"op":"dense"}', b'{"op":5,"inputs":[{"name":"a","type":"int8[]"}]}',
        b'{"op":"x","inputs":[{"name":"a","type":"int8[-1]"}]}', b'{"op":"x","inputs":[{"name":"a","type":"int9[1]"}]}',
        b'{"op":"x","inputs":[{"name":"a","type":"int8[1e3]"}]}', b'{"op":"x","inputs":[{"name":"a","type":8}]}',
        b'{"op":"x","inputs":[{"name":"a","type":"int8[]"},{"name":"a","type":"int8[]"}]}',
        b'{"op":"x","inputs":[{"name":"a","type":"int8[]"}],"attrs":[]}',
    ],
)
def test_hostile_workloads_are_refused_on_the_wire(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data, Workload)


@given(tensors)
def test_a_tensor_type_survives_its_text(tensor: TensorType) -> None:
    assert TensorType.parse(str(tensor)) == tensor
    assert hash(TensorType.parse(str(tensor))) == hash(tensor)
    assert pickle.loads(pickle.dumps(tensor)) == tensor
    assert tensor.named("data") == tensor


def test_tensor_types() -> None:
    tensor = TensorType([128, "m", Dim("m") * 4], "int8")
    assert str(tensor) == "int8[128,m,m * 4]"
    assert (tensor.ndim, tensor.is_constant) == (3, False)
    assert TensorType([2, 3]).size == 6
    assert TensorType([]).size == 1
    assert TensorType([2, 3]).concrete_shape == (2, 3)
    assert TensorType([2, 3]) != TensorType([3, 2])
    assert TupleType([tensor, TensorType([])]) == TupleType((tensor, TensorType([])))
    assert str(TupleType([TensorType([1]), TensorType([])])) == "(float32[1], float32[])"
    assert IncompleteType() != IncompleteType()
    with pytest.raises(ValueError, match="'m' is symbolic"):
        _ = tensor.size


@pytest.mark.parametrize(
    "text",
    ["", "float32", "float32[", "float32[1,]", "float32[,1]", "float32[1 2]", "float32[-1]", "float32[1.5]",
     "float31[1]", "float32[1]]", "float32[m*2]", "float32[9m]", f"float32[{'1,' * 16}1]", f"float32[{2**63}]",
     f"float32[{'9' * 400}]", "float32[1]\n;", "float32[²]", f"float32[{'m' * 65}]"],
)
def test_what_is_no_tensor_type(text: str) -> None:
    with pytest.raises(TypeSyntaxError) as caught:
        TensorType.parse(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [-1, 2**63, True, 1.5, None, "", "9m", "m m", "m" * 65, [1]])
def test_what_is_no_dimension(value: Any) -> None:
    with pytest.raises(TypeSyntaxError):
        Dim(value)


def test_dimensions() -> None:
    assert int(Dim(5)) == Dim(5).__index__() == 5
    assert list(range(Dim(3))) == [0, 1, 2]
    with pytest.raises(ValueError, match="'m' is symbolic and has no value before run time"):
        int(Dim("m"))
    named = Dim(5).named("data.shape[0]")
    assert (str(named), int(named), named.is_constant) == ("data.shape[0]", 5, True)
    assert str(Dim("m").named("data.shape[0]")) == "m"
    assert str(Dim("m") * 4 + 1) == "(m * 4) + 1"


ATTENTION = {"query": "float32[2,4,5,8]", "key": "float32[2,2,19,8]", "value": "float32[2,2,19,8]"}


@pytest.mark.parametrize(("op", "inputs", "attrs", "assumed", "unified"), [
    ("add", {"lhs": "float32[4,3]", "rhs": "float32[h,3]"}, {}, "h == 4", "rhs=float32[4,3]"),
    ("add", {"lhs": "float32[h,3]", "rhs": "float32[w,3]"}, {}, "h == w", "lhs=float32[w,3]"),
    ("add", {"lhs": "float32[h,3]", "rhs": "float32[h,1]"}, {}, "always", "lhs=float32[h,3]"),
    ("attention_bias", {**ATTENTION, "bias": "float32[h,19]"}, {}, "h == 5", "bias=float32[5,19]"),
    ("batch_matmul", {"x": "float32[3,5,7]", "y": "float32[h,9,7]"}, {}, "h == 3", "y=float32[3,9,7]"),
    ("concatenate", {"data.0": "float32[4,3]", "data.1": "float32[2,h]"}, {}, "h == 3", "data.1=float32[2,3]"),
    ("stack", {"data.0": "float32[3]", "data.1": "float32[h]"}, {}, "h == 3", "data.1=float32[3]"),
    ("broadcast_to", {"data": "float32[h,3]"}, {"shape": [4, 3]}, "h == 4", "data=float32[4,3]"),
    ("collapse_sum_like", {"data": "float32[4,3]", "collapse_type": "float32[h,3]"}, {}, "h == 4", "=float32[4,3])"),
])
def test_what_types_assume_of_symbolic_extents(op, inputs, attrs, assumed, unified):
    workload = Workload.make(op, inputs, attrs)
    found = [str(c) for c in workload.assumptions.clauses if ">=" not in str(c)]
    assert found == [assumed] * (assumed != "always")
    assert unified in str(workload.unified)
    assert not workload.bind({"h": 1, "w": 1}).assumptions.clauses


def test_operands_of_one_name_have_one_type():
    same = Input("data", "float32[8,16]")
    steps = [EpilogueStep("add", (None, same))]
    assert Workload.make("relu", [same], epilogue=steps).epilogue[0].operands[1] == same
    steps = [EpilogueStep("add", (None, Input("data", "float32[16]")))]
    with pytest.raises(WorkloadError, match="have the same name: rename one"):
        Workload.make("relu", [same], epilogue=steps)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 0.5])
def test_infinite_attributes_come_back(value):
    attrs = {"pad_width": [[1, 0]], "pad_value": value}
    workload = Workload.make("pad", {"data": "float32[2]"}, attrs)
    for read in (parse_workload(workload.key), decode(encode(workload), Workload)):
        assert read == workload
        assert read.attrs["pad_value"] == workload.attrs["pad_value"]
        assert read.attr_node.pad_value == value


def test_an_epilogue_assumes_too():
    scale = Input("scale", "float32[n]")
    steps = [EpilogueStep("multiply", (None, scale))]
    workload = Workload.make("relu", {"data": "float32[m,3]"}, epilogue=steps)
    assert str(workload.assumptions) == "n == 3"
    assert "scale=float32[3]" in str(workload.unified)
