"""Strategies: what a strategy function adds, and its candidates as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from strategy.attrs import Attrs, field
from strategy.condition import SpecializedCondition
from strategy.cpu.passes import PROCESSOR_VERSION
from strategy.op import OpError, TypeReporter, register_op, register_strategy
from strategy.op import _ops as registered
from strategy.op_strategy import (
    Candidate,
    OpStrategy,
    candidates,
    evaluate,
    find_implementation,
)
from strategy.record import WireError, convert, decode, encode, to_json
from strategy.space import Config, ConfigSpace, Knob, knob, split
from strategy.target import Target
from strategy.types import Dim, TensorType, Type
from strategy.workload import Workload

CPU = Target.parse("llvm -mcpu=znver4 -num-cores=2 -libs=cblas")
OP = "test_op_strategy.product"


class ProductAttrs(Attrs):
    factor: int = field(1, "What the product is multiplied by")


def product_rel(types: Sequence[Type], attrs: Any, reporter: TypeReporter) -> bool:
    a, b = reporter.tensor(0), reporter.tensor(1)
    assert a is not None
    assert b is not None
    reporter.assign(2, TensorType([a.shape[0], b.shape[0]], a.dtype))
    return True


def tiles(attrs: Attrs, inputs: Sequence[TensorType], out_type: Any, target: Target) -> ConfigSpace:
    return ConfigSpace(
        [split("m", int(inputs[0].shape[0]), 2), Knob("unroll", [1, 2, 4])],
        [knob("m")[1] * knob("unroll") <= target.vector_bytes],
    )


def only_when_large(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Any, target: Target
) -> ConfigSpace:
    assert int(inputs[0].shape[0]) > 16, "asked for a space where the condition does not hold"
    return ConfigSpace([Knob("block", [16])])


def product_strategy(
    attrs: ProductAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> OpStrategy:
    strategy = OpStrategy()
    m = inputs[0].shape[0]
    strategy.add_implementation(print, repr, "product.generic")
    strategy.add_implementation(print, repr, "product_tiled.cpu", 12, space=tiles, version=3)
    with SpecializedCondition(m > 16):
        strategy.add_implementation(print, repr, "product_large.cpu", 14, space=only_when_large)
    if "cblas" in target.libs:
        strategy.add_implementation(print, repr, "product_cblas.cpu", 15, library="cblas")
    return strategy


@pytest.fixture(autouse=True)
def operators() -> Iterator[None]:
    register_op(OP).set_num_inputs(2).add_argument("a", "Tensor", "").add_argument(
        "b", "Tensor", ""
    ).set_attrs_type(ProductAttrs).add_type_rel("Product", product_rel)
    register_strategy(OP, product_strategy)
    yield
    del registered[OP]


def workload(rows: int) -> Workload:
    return Workload.make(OP, {"a": f"float32[{rows},8]", "b": "float32[4,8]"})


def test_an_implementation_has_the_documented_defaults() -> None:
    strategy = OpStrategy()
    strategy.add_implementation(print, repr)
    ((condition, added),) = strategy
    assert condition is None
    assert (added.name, added.plevel, added.version) == ("default", 10, 1)
    assert (added.compute, added.schedule) == (print, repr)
    assert (added.space, added.prepare, added.library) == (None, None, None)


def test_a_strategy_that_gives_none_is_named() -> None:
    registered[OP].reset_attr("FTVMStrategy")
    register_strategy(OP, lambda attrs, inputs, out_type, target: None)
    with pytest.raises(OpError, match=f"the strategy of {OP} on {CPU} gives NoneType: return its OpStrategy"):
        candidates(workload(4), CPU)


def test_equal_conditions_are_one_specialisation() -> None:
    m, n = Dim("m"), Dim("n")
    strategy = OpStrategy()
    with SpecializedCondition(m > 16):
        strategy.add_implementation(print, repr, "a")
    with SpecializedCondition(16 < m):
        strategy.add_implementation(print, repr, "b")
    strategy.add_implementation(print, repr, "c")
    with SpecializedCondition(m > 16), SpecializedCondition(n == 1):
        strategy.add_implementation(print, repr, "d")
    with SpecializedCondition(1 == n, m > 16):
        strategy.add_implementation(print, repr, "e")
    strategy.add_implementation(print, repr, "f")
    groups = [[i.name for i in s.implementations] for s in strategy.specializations]
    assert groups == [["a", "b"], ["c", "f"], ["d", "e"]]
    assert strategy.specializations[1].condition is None
    assert [i.name for _, i in strategy] == list("abcdef")


def test_a_name_is_given_once() -> None:
    strategy = OpStrategy()
    strategy.add_implementation(print, repr, "a")
    with pytest.raises(OpError, match="implementation 'a' is added twice"):
        strategy.add_implementation(print, repr, "a")
    assert len(list(strategy)) == 1


@pytest.mark.parametrize("name", ["", "autotvm:conv2d", "a" * 201])
def test_a_name_is_no_other_tools(name: str) -> None:
    with pytest.raises(OpError, match="a name has 1 to 200 characters and no ':', which other tools' have"):
        OpStrategy().add_implementation(print, repr, name)


def test_candidates_are_all_implementations_in_order() -> None:
    found = candidates(workload(64), CPU)
    assert [(c.implementation, c.plevel) for c in found] == [
        ("product.generic", 10), ("product_tiled.cpu", 12), ("product_large.cpu", 14), ("product_cblas.cpu", 15),
    ]
    assert [c.tunable for c in found] == [False, True, True, False]
    assert [c.library for c in found] == [None, None, None, "cblas"]
    assert str(found[2].condition) == "a.shape[0] > 16"
    space = found[1].space
    assert space is not None
    assert found[1].version == f"{3 + PROCESSOR_VERSION}.{space.digest}"
    assert found[0].version == f"{1 + PROCESSOR_VERSION}.0"
    assert found[1].fallback == space.fallback
    assert found[0].fallback == Config()


def test_versions_have_that_of_the_lowering_whatever_keys_a_processor_has() -> None:
    board = Target.parse({"kind": "llvm", "keys": ["myboard"]})
    assert candidates(workload(64), board)[0].version == f"{1 + PROCESSOR_VERSION}.0"
    assert candidates(workload(64), Target.parse("cuda"))[0].version == "1.0"


def test_a_plevel_may_depend_on_constants() -> None:
    def strategy(attrs: ProductAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target) -> OpStrategy:
        found = OpStrategy()
        found.add_implementation(print, repr, "packs", 12)
        found.add_implementation(print, repr, "in_place", 5, varying_plevel=16)
        return found

    registered[OP].reset_attr("FTVMStrategy")
    register_strategy(OP, strategy)
    varying = workload(8)
    constant, data = (
        Workload.make(OP, {i.name: i.type for i in varying.inputs}, constants=[name]) for name in ("b", "a")
    )
    target = Target.parse("llvm")
    assert {w: [c.plevel for c in candidates(w, target)] for w in (varying, constant, data)} == {
        varying: [12, 16], constant: [12, 5], data: [12, 16]
    }


def test_a_space_is_not_asked_for_where_the_condition_does_not_hold() -> None:
    found = {c.implementation: c for c in candidates(workload(8), CPU)}
    large = found["product_large.cpu"]
    assert large.space is None
    assert large.condition is not None
    assert large.condition.decide() is False


def test_the_strategy_sees_the_target() -> None:
    without = Target.parse({**CPU.to_json(), "libs": []})
    assert "product_cblas.cpu" not in [c.implementation for c in candidates(workload(8), without)]


def test_finding_an_implementation() -> None:
    assert find_implementation(workload(8), CPU, "product_tiled.cpu").version == 3 + PROCESSOR_VERSION
    with pytest.raises(
        OpError, match=r"no implementation 'x' .* it has: product.generic, product_tiled.cpu"
    ):
        find_implementation(workload(8), CPU, "x")


def test_an_operator_without_a_strategy_says_so() -> None:
    registered[OP].reset_attr("FTVMStrategy")
    with pytest.raises(OpError, match="has no strategy: register one with register_strategy"):
        evaluate(workload(8), CPU)


@pytest.mark.parametrize("rows", [8, 64])
def test_candidates_survive_the_wire(rows: int) -> None:
    for candidate in candidates(workload(rows), CPU):
        again = decode(encode(candidate), Candidate)
        assert again == candidate
        assert convert(to_json(candidate), Candidate) == candidate
        assert again.fallback == candidate.fallback
        if candidate.condition is not None:
            # Facts of the dimensions stay here; the places are enough to decide again.
            assert again.condition is not None
            assert again.condition.decide() is None
            decided = again.condition.substitute(workload(rows).dims).decide()
            assert decided is candidate.condition.decide()


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("plevel"),
        lambda d: d.update(plevel="12"),
        lambda d: d.update(condition=[">", "m"]),
        lambda d: d.update(space={"knobs": 5}),
        lambda d: d.update(implementation=None),
    ],
)
def test_a_malformed_candidate_is_a_wire_error(change: Callable[[dict[str, Any]], object]) -> None:
    data = to_json(candidates(workload(64), CPU)[2])
    change(data)
    with pytest.raises(WireError):
        convert(data, Candidate)
