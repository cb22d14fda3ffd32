"""Features of configurations for the cost model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.search.features import Matrix, SpaceFeatures
from strategy.condition import Expr
from strategy.space import Config, ConfigSpace, Knob, knob, reorder, split


def rows_of(space: ConfigSpace, configs: Iterable[Config]) -> Matrix:
    digits = [space.digits(c) for c in configs]
    return SpaceFeatures(space).matrix(np.array(digits, dtype=np.int32).reshape(len(digits), len(space.knobs)))


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
    )
    config = Config({"tile": 4, "vectorize": True, "s": (2, 3), "mode": "b"})
    row = rows_of(space, [config])[0]
    assert row.tolist() == [4, 1, 2, 3, 1, 0, 1, 0]


def test_derived_expressions_are_columns() -> None:
    space = ConfigSpace(
        [Knob("a", (1, 2, 3)), Knob("b", (0, 4)), split("s", 12, 2)],
        derived={"area": knob("a") * knob("b"), "inner": knob("s")[1], "ratio": knob("a") / knob("b")},
    )
    features = SpaceFeatures(space)
    assert features.names[-3:] == ("area", "inner", "ratio")
    configs = [Config({"a": 3, "b": 4, "s": (2, 6)}), Config({"a": 3, "b": 0, "s": (12, 1)})]
    rows = rows_of(space, configs)
    assert rows[0, -3:].tolist() == [12, 6, 0.75]
    assert rows[1, -3:-1].tolist() == [0, 1]
    assert np.isnan(rows[1, -1]), "there is no value, and that is no error"


def test_names_can_be_compared() -> None:
    modes = ("a", "b")
    same = Expr.from_json(["==", "mode", "other"])
    space = ConfigSpace([Knob("mode", modes), Knob("other", modes)], derived={"same": same})
    rows = rows_of(space, space)
    assert rows[:, -1].tolist() == [1, 0, 0, 1]


def test_an_expression_without_a_value_is_a_feature_less() -> None:
    space = ConfigSpace([split("s", 6, 2)], derived={"third": knob("s")[2]})
    assert np.isnan(rows_of(space, [Config({"s": (2, 3)})])[0, -1])


@given(st.lists(st.integers(0, 23), min_size=1, max_size=20))
def test_columns_are_the_values_whatever_the_order(indices: list[int]) -> None:
    space = ConfigSpace(
        [Knob("a", (1, 10)), reorder("o", ["i", "j", "k"]), Knob("b", (2.5, 0.5))],
        derived={"sum": knob("a") + knob("b")},
    )
    configs = [space.config(i) for i in indices]
    rows = rows_of(space, configs)
    for config, row in zip(configs, rows, strict=True):
        a, b, order = config["a"], config["b"], config["o"]
        assert isinstance(order, tuple)
        assert row.tolist() == [a, *order, b, a + b]


def test_no_knobs_no_columns() -> None:
    assert rows_of(ConfigSpace([]), [Config()]).shape == (1, 0)
