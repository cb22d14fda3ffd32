"""Features of configurations for the cost model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.search.features import SpaceFeatures
from strategy.condition import Expr
from strategy.space import Config, ConfigError, ConfigSpace, Knob, knob, reorder, split


def test_numbers_tuples_names_and_bools_have_their_columns() -> None:
    space = ConfigSpace(
        [
            Knob("tile", (1, 2, 4, 8)),
            Knob("vectorize", (False, True)),
            split("s", 6, 2),
            Knob("mode", ("a", "b", "c")),
        ]
    )
    features = SpaceFeatures(space)
    assert features.names == (
        "tile", "vectorize", "s.0", "s.1", "mode.0", "mode.1", "mode.2", "mode.3",
    )  # fmt: skip
    config = Config({"tile": 4, "vectorize": True, "s": (2, 3), "mode": "b"})
    row = features.matrix(features.digits([config]))[0]
    assert row.tolist() == [4, 1, 2, 3, 1, 0, 1, 0]


def test_derived_expressions_are_columns() -> None:
    space = ConfigSpace(
        [Knob("a", (1, 2, 3)), Knob("b", (0, 4)), split("s", 12, 2)],
        derived={"area": knob("a") * knob("b"), "inner": knob("s")[1], "ratio": knob("a") / knob("b")},
    )
    features = SpaceFeatures(space)
    assert features.names[-3:] == ("area", "inner", "ratio")
    configs = [Config({"a": 3, "b": 4, "s": (2, 6)}), Config({"a": 3, "b": 0, "s": (12, 1)})]
    rows = features.matrix(features.digits(configs))
    assert rows[0, -3:].tolist() == [12, 6, 0.75]
    assert rows[1, -3:-1].tolist() == [0, 1]
    assert np.isnan(rows[1, -1]), "there is no value, and that is no error"


def test_names_can_be_compared() -> None:
    modes = ("a", "b")
    same = Expr.from_json(["==", "mode", "other"])
    space = ConfigSpace([Knob("mode", modes), Knob("other", modes)], derived={"same": same})
    features = SpaceFeatures(space)
    rows = features.matrix(features.digits(list(space)))
    assert rows[:, -1].tolist() == [1, 0, 0, 1]


def test_an_expression_without_a_value_is_a_feature_less() -> None:
    space = ConfigSpace([split("s", 6, 2)], derived={"third": knob("s")[2]})
    features = SpaceFeatures(space)
    assert np.isnan(features.matrix(features.digits([Config({"s": (2, 3)})]))[0, -1])


@given(st.lists(st.integers(0, 23), min_size=1, max_size=20))
def test_columns_are_the_values_whatever_the_order(indices: list[int]) -> None:
    space = ConfigSpace(
        [Knob("a", (1, 10)), reorder("o", ["i", "j", "k"]), Knob("b", (2.5, 0.5))],
        derived={"sum": knob("a") + knob("b")},
    )
    features = SpaceFeatures(space)
    configs = [space.config(i) for i in indices]
    rows = features.matrix(features.digits(configs))
    for config, row in zip(configs, rows, strict=True):
        a, b, order = config["a"], config["b"], config["o"]
        assert isinstance(order, tuple)
        assert row.tolist() == [a, *order, b, a + b]  # type: ignore[operator]


def test_no_knobs_no_columns() -> None:
    features = SpaceFeatures(ConfigSpace([]))
    assert features.matrix(features.digits([Config()])).shape == (1, 0)


def test_a_stranger_is_refused() -> None:
    features = SpaceFeatures(ConfigSpace([Knob("a", (1, 2))]))
    with pytest.raises(ConfigError, match="a=3"):
        features.digits([Config({"a": 3})])
