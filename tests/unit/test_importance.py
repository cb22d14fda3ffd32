"""Importance of knobs, on times whose causes are known."""

from __future__ import annotations

import numpy as np

from service.search.importance import importance
from strategy.space import ConfigSpace, Knob

SPACE = ConfigSpace(
    [Knob("much", range(8)), Knob("little", range(8)), Knob("nothing", range(8))],
    fallback={"much": 0, "little": 0, "nothing": 0},
)


def _digits(n: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 8, size=(n, 3), dtype=np.int32)


def test_the_share_of_a_knob_is_what_it_decides() -> None:
    digits = _digits(600)
    found = importance(SPACE, digits, 1.0 * digits[:, 0] + 0.25 * digits[:, 1])
    assert found is not None
    assert [name for name, _ in found.shares] == ["much", "little", "nothing"]
    (_, much), (_, little), (_, nothing) = found.shares
    assert abs(much - 16 / 17) < 0.06
    assert abs(little - 1 / 17) < 0.04
    assert nothing < 0.01
    assert found.accuracy > 0.9


def test_times_that_no_knob_decides_are_told() -> None:
    digits = _digits(600)
    found = importance(SPACE, digits, np.random.default_rng(2).normal(size=600))
    assert found is not None
    assert found.accuracy < 0.2


def test_too_few_or_equal_times_have_none() -> None:
    assert importance(SPACE, _digits(10), np.arange(10.0)) is None
    assert importance(SPACE, _digits(100), np.ones(100)) is None
