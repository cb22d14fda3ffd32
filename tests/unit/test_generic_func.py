"""Functions that targets override."""

from __future__ import annotations

import pytest

from strategy import generic_func as module
from strategy.generic_func import (
    GenericFuncError,
    generic_func,
    get_native_generic_func,
    override_native_generic_func,
)
from strategy.target import Target


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
    monkeypatch.setattr(module, "_by_name", dict(module._by_name))


def make():
    @generic_func
    def kind_of(data, target):
        """The default body."""
        return "default", data

    for key in ("cuda", "rocm", "cpu", "gpu"):
        kind_of.register(key, lambda data, target, key=key: (key, data))
    return kind_of


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("cuda", "cuda"),
        ("rocm", "rocm"),
        ("llvm", "cpu"),
        ({"kind": "llvm", "keys": ["arm_cpu", "cpu"]}, "cpu"),
        ("metal", "gpu"),
        ({"kind": "llvm", "keys": ["hexagon"]}, "default"),
    ],
)
def test_the_targets_keys_are_walked_in_order_then_the_default(target, body):
    assert make()(3, Target.parse(target)) == (body, 3)
    assert make()(data=3, target=Target.parse(target)) == (body, 3)


def test_the_first_key_decides():
    kind_of = make()
    assert kind_of(0, Target.parse({"kind": "llvm", "keys": ["gpu", "cpu"]}))[0] == "gpu"
    assert kind_of.find(Target.parse("metal"))[0] == "gpu"
    assert kind_of.find(Target.parse({"kind": "llvm", "keys": ["dsp"]}))[0] is None


def test_a_key_is_registered_once_unless_overridden():
    kind_of = make()
    with pytest.raises(GenericFuncError, match="kind_of is already registered for 'gpu': pass override"):
        kind_of.register(["mali", "gpu"], lambda data, target: "new")
    assert kind_of(1, Target.parse({"kind": "opencl", "keys": ["mali", "gpu"]}))[0] == "gpu", (
        "a refused registration changes nothing"
    )

    @kind_of.register(["mali", "gpu"], override=True)
    def mine(data, target):
        return "new"

    assert kind_of(1, Target.parse("metal")) == "new"
    assert mine(1, None) == "new"


def test_bodies_are_extended_one_on_top_of_the_other():
    @generic_func
    def names_of(data, target):
        return ["default"]

    for mine in ("first", "second"):

        @names_of.extend("cpu")
        def more(before, data, target, mine=mine):
            return [*before(data, target), mine]

    assert names_of(0, Target.parse("llvm")) == ["default", "first", "second"]
    assert names_of(0, Target.parse("cuda")) == ["default"]
    bodiless = get_native_generic_func("bodiless")
    with pytest.raises(GenericFuncError, match="bodiless has no body for 'cpu' to extend: register one"):
        bodiless.extend("cpu")


def test_native_functions_are_made_by_name():
    @override_native_generic_func("some_strategy")
    def some_strategy(attrs, target):
        return "generic"

    assert get_native_generic_func("some_strategy") is some_strategy
    with pytest.raises(GenericFuncError, match="some_strategy already has a default"):
        override_native_generic_func("some_strategy")(lambda attrs, target: "other")
    other = override_native_generic_func("some_strategy", override=True)(lambda attrs, target: "newer")
    assert other is some_strategy
    assert some_strategy(None, Target.parse("llvm")) == "newer"
    assert some_strategy.set_default(lambda attrs, target: "other", override=True)(
        None, Target.parse("llvm")
    ) == "other"


def test_strategies_may_come_before_the_default():
    later = get_native_generic_func("later_strategy")
    later.register("cuda", lambda target: "cuda")
    with pytest.raises(GenericFuncError, match=r"later_strategy has no implementation .*registered: cuda"):
        later(Target.parse("llvm"))
    override_native_generic_func("later_strategy")(lambda target: "generic")
    assert (later(Target.parse("llvm")), later(Target.parse("cuda"))) == ("generic", "cuda")


def test_what_a_body_must_take():
    with pytest.raises(GenericFuncError, match="has no parameter called 'target'"):
        generic_func(lambda data: data)
    with pytest.raises(GenericFuncError, match="kind_of needs a Target as its argument 'target', got 'cpu'"):
        make()(1, "cpu")


def test_the_current_target_stands_for_the_argument():
    with Target.parse("cuda"):
        assert make()(3) == ("cuda", 3)
        assert make()(data=3) == ("cuda", 3)
        assert make()(3, Target.parse("rocm")) == ("rocm", 3)
    with pytest.raises(GenericFuncError, match="got None: give one, or call it within 'with target:'"):
        make()(3)


def test_the_documentation_is_the_defaults():
    assert make().__doc__ == "The default body."
