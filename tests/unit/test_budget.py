"""The distribution of a workload's next trials."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from service.tuning.budget import (
    ALL_FAILED,
    Arm,
    Stand,
    charge,
    hopeless,
    next_arm,
    order,
    parts,
    settled,
    share,
    split,
)


def spend(gains: list[float | None], budget: int, batch: int = 4) -> list[int]:
    """The trials that each implementation gets, where a model halves its hopes with each batch."""
    arms = [Arm() for _ in gains]
    while (left := budget - sum(a.trials for a in arms)) > 0:
        i = next_arm(arms, budget)
        assert i is not None
        trials = arms[i].trials + min(batch, left)
        gain = gains[i]
        arms[i] = Arm(
            trials=trials, told=trials, best_s=1.0,
            gain=None if gain is None else gain / 2 ** (trials / batch),
        )
    return [a.trials for a in arms]


@given(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=6), st.integers(1, 300))
def test_the_budget_is_spent_and_not_more(gains: list[float | None], budget: int) -> None:
    assert sum(spend(gains, budget)) == budget


def test_even_first_and_then_where_the_gain_is() -> None:
    spent = spend([0.5, 0.1, 1e-30], 288)
    assert spent[0] >= spent[1] > spent[2]
    assert spent[2] == share([Arm()] * 3, 288) == 48


def test_without_a_model_all_have_the_same_chance() -> None:
    spent = spend([None, None, None], 300)
    assert max(spent) - min(spent) <= 4


def test_a_tiny_budget_is_even() -> None:
    assert spend([0.1, 0.5, 0.9], 12) == [4, 4, 4]


@given(st.integers(0, 1000), st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_split_is_whole_and_near_the_weights(total: int, weights: list[float]) -> None:
    parts = split(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) < 1


def test_parts_are_by_time_and_what_never_ran_counts_as_the_longest() -> None:
    assert parts(100, [1, 4], [None, None]) == [20, 80]
    assert parts(100, [1, 4, 1], [8e-3, 2.5e-4, None]) == [47, 6, 47]


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
    assert hopeless(Arm(trials=ALL_FAILED + 3, told=ALL_FAILED, elsewhere=3), 1.0, 8) == (
        "all of its 16 trials on the run's device model failed; 3 on others succeeded"
    )


def test_closed_ones_get_nothing() -> None:
    arms = [Arm(trials=3, exhausted=True), Arm(trials=3, dropped=True)]
    assert next_arm(arms, 100) is None
    assert next_arm([*arms, Arm(trials=50)], 100) == 2


def test_done_is_who_gains_nothing_of_late_and_expects_nothing() -> None:
    arm = Arm(trials=80, told=80, best_s=1.0, gain=0.004)
    assert settled(arm, 1.005, 1.0, 0.01)
    assert not settled(arm, 1.02, 1.0, 0.01), "it has gained of late"
    assert not settled(replace(arm, gain=0.02), 1.0, 1.0, 0.01)
    assert not settled(arm, None, 1.0, 0.01), "it is too early to say"
    assert not settled(replace(arm, gain=None), 1.0, 1.0, 0.01)
    # Its gain counts by the leader's time, to which it is compared.
    assert settled(replace(arm, best_s=3.0), 3.005, 1.0, 0.01)


def test_half_of_the_budget_is_by_weight_and_the_rest_by_the_time_it_saves() -> None:
    def stand(trials: int, weight: float, gain: float | None, lead_s: float | None = 1e-3) -> Stand:
        return Stand(weight, 100, [Arm(trials=trials, gain=gain)], lead_s)

    # A workload with less than half of its part is served first, the furthest behind before others.
    assert order([stand(49, 1, 0.0), stand(50, 9, 0.5), stand(10, 1, 0.0)]) == [2, 0, 1]
    # Then 3 calls × 2 ms × 1 % goes before 1 call × 1 ms × 5 %.
    assert order([stand(60, 1, 0.05), stand(60, 3, 0.01, 2e-3), stand(60, 1, 0.2)]) == [2, 1, 0]
    # A workload that never ran is looked at, and closed ones expect nothing.
    closed = Stand(9.0, 100, [Arm(trials=60, gain=0.5, dropped=True)], 1e-3)
    assert order([closed, stand(60, 1, 1e-9), stand(60, 1, None, None)]) == [2, 1, 0]


def test_each_workload_is_tried_once_the_longest_first() -> None:
    def stand(trials: int, part: int) -> Stand:
        return Stand(1.0, part, (Arm(trials=trials, best_s=1e-3), Arm()), 1e-3)

    assert order([stand(0, 0), stand(0, 11), stand(0, 1)]) == [1, 2, 0]
    assert order([stand(1, 1), stand(6, 11), stand(0, 0)]) == [2, 1, 0]


def test_no_weight_is_too_large_or_too_small_to_split_by() -> None:
    assert parts(10, [1e308, 1e308], [1.0, None]) == [5, 5]
    assert parts(10, [5e-324, 5e-324], [1e-9, 1e-9]) == [5, 5]
    assert parts(10, [1.0, 5e-324], [5e-324, 1e-9]) == [10, 0]
    assert parts(10, [1e308, 5e-324], [1e-300, 1e-300]) == [10, 0]
    assert split(10, [0.0, 0.0]) == [5, 5]


@example([30, 0], 8, 0)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 200), st.integers(0, 50))
def test_trials_of_other_runs_leave_the_untried_their_share(earlier: list[int], part: int, own: int) -> None:
    charged = charge(own, earlier, part)
    assert own <= charged <= own + min(sum(earlier), part)
    untried = earlier.count(0)
    assert part - (charged - own) >= min(untried * share(earlier, part), part)
    if not untried:
        assert charged == own + min(sum(earlier), part)
