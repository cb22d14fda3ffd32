"""Where the next trials of a workload go."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from service.budget import ALL_FAILED, Arm, hopeless, next_arm, share, split


def spend(costs: list[float], budget: int, batch: int = 4) -> list[int]:
    """The trials that each implementation gets, where its best is known at once."""
    arms = [Arm() for _ in costs]
    while (i := next_arm(arms, budget)) is not None:
        n = min(batch, budget - sum(a.trials for a in arms))
        trials = arms[i].trials + n
        arms[i] = Arm(trials=trials, told=trials, best_s=costs[i])
    return [a.trials for a in arms]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.integers(1, 300))
def test_the_budget_is_spent_and_not_more(costs: list[float], budget: int) -> None:
    assert sum(spend(costs, budget)) == budget


def test_even_first_and_then_to_those_who_can_win() -> None:
    costs = [1.0, 1.1, 4.0]
    spent = spend(costs, 300)
    assert spent[0] > spent[1] > spent[2]
    assert spent[2] >= share([Arm()] * 3, 300) == 50


def test_a_tiny_budget_is_even() -> None:
    assert spend([1.0, 5.0, 9.0], 12) == [4, 4, 4]


@given(st.integers(0, 1000), st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_split_is_whole_and_near_the_weights(total: int, weights: list[float]) -> None:
    parts = split(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) < 1


def test_who_is_hopeless() -> None:
    arm = Arm(trials=20, told=20, best_s=2.0, lower_bound_s=1.2)
    said = hopeless(arm, 1.0, 20)
    assert said is not None
    assert "2.00×" in said
    assert "1.20×" in said
    for still_open in (
        replace(arm, told=19),
        replace(arm, best_s=1.4),
        replace(arm, lower_bound_s=0.9),
        replace(arm, lower_bound_s=None),
        replace(arm, dropped=True),
    ):
        assert hopeless(still_open, 1.0, 20) is None
    assert hopeless(arm, None, 20) is None


def test_who_only_fails_is_given_up_after_a_while() -> None:
    assert hopeless(Arm(trials=ALL_FAILED, told=ALL_FAILED), 1.0, 8) == "all of its 16 trials failed"
    assert hopeless(Arm(trials=8, told=8), 1.0, 8) is None


def test_closed_ones_get_nothing() -> None:
    arms = [Arm(trials=3, exhausted=True), Arm(trials=3, dropped=True)]
    assert next_arm(arms, 100) is None
    assert next_arm([*arms, Arm(trials=50)], 100) == 2
