"""Functions that call operators, made of what these are registered with."""

from __future__ import annotations

import inspect

import pytest

from strategy import op as registry
from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.expr import Call, Var
from strategy.op import all_ops, register_op
from strategy.ops.layer_norm import layer_norm
from strategy.ops.one_hot import one_hot

DATA, GAMMA, BETA = Var("x", "float32[5,19]"), Var("g", "float32[5]"), Var("b", "float32[5]")


def test_inputs_and_attributes_go_by_place_or_by_name() -> None:
    for found in (
        layer_norm(DATA, GAMMA, BETA, 0),
        layer_norm(DATA, GAMMA, axis=0, beta=BETA),
    ):
        assert isinstance(found, Call)
        assert list(found.args) == [DATA, GAMMA, BETA]
        assert (found.attrs.axis, found.attrs.epsilon) == (0, 1e-5)


def test_the_signature_and_the_docstring_are_those_of_the_registration() -> None:
    kept = {name: p.default for name, p in inspect.signature(one_hot).parameters.items()}
    assert kept == {
        "indices": inspect.Parameter.empty, "depth": inspect.Parameter.empty, "axis": -1, "on_value": 1.0,
        "off_value": 0.0, "dtype": "float32",
    }
    assert one_hot.__name__ == "one_hot"
    assert one_hot.__doc__ is not None
    assert "    depth: the extent of the new axis.\n" in one_hot.__doc__
    assert "    dtype: data type of the result; one of bfloat16, " in one_hot.__doc__


@pytest.mark.parametrize(
    ("given", "named", "said"),
    [
        ((DATA,), {}, "layer_norm: missing a required argument: 'gamma'"),
        ((DATA, GAMMA, BETA, 0, 1e-5, 1), {}, "layer_norm: too many positional arguments"),
        ((DATA, GAMMA, BETA), {"axes": 0}, "layer_norm: got an unexpected keyword argument 'axes'"),
    ],
)
def test_wrong_arguments_are_refused_by_the_operators_name(given: tuple, named: dict, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        layer_norm(*given, **named)


def test_an_attribute_without_a_default_behind_one_with_a_default_goes_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Both(Attrs):
        axis: int = field(0, "The axis")
        size: int = field(description="The size")

    all_ops()
    monkeypatch.setattr(registry, "_ops", dict(registry._ops))
    register_op("both").describe("Both.").add_argument("data", "Tensor", "The data.").set_attrs_type(Both)
    found = caller("both")(DATA, 1, size=2)
    assert (found.attrs.axis, found.attrs.size) == (1, 2)
    with pytest.raises(TypeError, match="both: missing a required .*argument: 'size'"):
        caller("both")(DATA)
