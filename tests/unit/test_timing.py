"""Timing: calibration, convergence, giving up and interleaving, on a clock that is simulated."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.record import CONFIRM_POLICY, SEARCH_POLICY, TimingPolicy, estimate
from workers.kernel import _steadily
from workers.timing import STALLED, TURN, ImplausibleError, Timed, time_kernels


class Machine:
    """A clock that kernels move on: each takes `per_call_s`, with noise and with a drift."""

    def __init__(self, seed: int = 0, resolution_s: float = 0.0) -> None:
        self.now = 0.0
        self.calls: list[tuple[int, int]] = []
        self.drift: Callable[[float], float] = lambda now: 1.0
        self._rng = random.Random(seed)
        self._resolution_s = resolution_s

    def kernel(
        self, index: int, per_call_s: float, noise: float = 0.0, spikes: float = 0.0
    ) -> Callable[[int], float]:
        def measure(calls: int) -> float:
            self.calls.append((index, calls))
            began = self.now
            factor = self.drift(self.now) * (1 + abs(self._rng.gauss(0, noise)))
            if self._rng.random() < spikes:
                factor *= 3  # the scheduler took the core away
            self.now += per_call_s * calls * factor
            took = self.now - began
            if self._resolution_s:
                took = took // self._resolution_s * self._resolution_s
            return took

        return measure

    def turns(self) -> list[int]:
        """The order of kernels, without repetitions."""
        order = [index for index, _ in self.calls]
        return [x for i, x in enumerate(order) if i == 0 or order[i - 1] != x]


def run(
    kernels: list[Callable[[int], float]], policy: TimingPolicy = SEARCH_POLICY, **options: object
) -> list[Timed]:
    return time_kernels(kernels, policy, rng=random.Random(1), **options)


@pytest.mark.parametrize("per_call_s", [2e-8, 1e-6, 3.7e-5, 1e-3, 9e-3])
def test_a_repeat_lasts_as_long_as_the_policy_says(per_call_s: float) -> None:
    machine = Machine()
    (timed,) = run([machine.kernel(0, per_call_s)], TimingPolicy(budget_s=1))
    assert timed.done and timed.error is None
    wanted = max(1, math.ceil(TimingPolicy().min_repeat_s / per_call_s))
    assert wanted <= timed.calls <= wanted + 1
    assert timed.samples_s == pytest.approx([per_call_s] * 6)


def test_a_quiet_kernel_takes_the_fewest_repeats_and_a_noisy_one_more() -> None:
    machine = Machine()
    quiet, noisy = run(
        [machine.kernel(0, 1e-4, noise=0.001), machine.kernel(1, 1e-4, noise=0.05)],
        TimingPolicy(budget_s=10),
    )
    assert len(quiet.samples_s) == TimingPolicy().min_repeats
    assert len(noisy.samples_s) > 2 * len(quiet.samples_s)
    found = estimate(noisy.samples_s)
    if len(noisy.samples_s) < TimingPolicy().max_repeats:
        assert (found.high_s - found.low_s) / 2 <= TimingPolicy().spread * found.median_s


def test_noise_ends_at_the_most_repeats() -> None:
    machine = Machine()
    (timed,) = run([machine.kernel(0, 1e-4, noise=0.5)], TimingPolicy(budget_s=100, max_repeats=40))
    assert len(timed.samples_s) == 40


def test_the_budget_ends_what_does_not_settle() -> None:
    machine = Machine()
    (timed,) = run([machine.kernel(0, 1e-4, noise=0.5)], TimingPolicy(budget_s=0.05))
    assert 0.05 <= timed.run_s < 0.05 + 0.03
    assert timed.run_s == pytest.approx(machine.now)


def test_a_kernel_beyond_the_budget_still_gives_a_sample() -> None:
    (timed,) = run([Machine().kernel(0, 0.5)])
    assert timed.samples_s == pytest.approx([0.5])
    assert timed.run_s == pytest.approx(1.0)  # one call to warm up


def test_a_stall_in_the_first_call_makes_no_time() -> None:
    """70 ms taken away by another program use up a search's budget before the calls are counted."""
    machine = Machine()
    (timed,) = run([stalling(machine, machine.kernel(0, 15e-6), {0: 0.07})])
    assert timed.samples_s == pytest.approx([15e-6] * 6)
    assert sum(timed.samples_s) * timed.calls >= 6 * 0.5 * SEARCH_POLICY.min_repeat_s


def test_a_stall_in_the_first_call_gives_nothing_up() -> None:
    machine = Machine()
    measure = stalling(machine, machine.kernel(0, 15e-6), {0: 0.07})
    (timed,) = run([measure], best_s=[15e-6])
    assert not timed.gave_up
    assert timed.samples_s == pytest.approx([15e-6] * 6)


def test_a_stalled_sample_does_not_use_up_the_budget() -> None:
    machine = Machine()
    (timed,) = run([stalling(machine, machine.kernel(0, 15e-6), {5: 0.2})])
    assert estimate(timed.samples_s).median_s == pytest.approx(15e-6)
    assert max(timed.samples_s) > 1e-3  # kept, as all are


def test_stalls_that_go_on_end_at_a_multiple_of_the_budget() -> None:
    machine = Machine()
    (timed,) = run([stalling(machine, machine.kernel(0, 15e-6), dict.fromkeys(range(4, 999), 0.2))])
    assert timed.done and len(timed.samples_s) >= 6
    assert machine.now < STALLED * SEARCH_POLICY.budget_s + 9 * 0.21


class Neighbour(msgspec.Struct):
    """A machine shared with others, as hypothesis draws it; no more than one repeat in four is hit."""

    # By the number of the call to `measure`, in seconds; at least five apart, as a call between may be no repeat.
    stalls: dict[int, float]
    drift: float  # by how much its speed changes, from the beginning to half a second on
    resolution_s: float


@st.composite
def neighbours(draw: st.DrawFn) -> Neighbour:
    gaps = draw(st.lists(st.integers(5, 40), max_size=30))
    first = draw(st.integers(0, 10))
    places = list(itertools.accumulate(gaps, initial=first))
    lengths = st.floats(1e-4, 1.0)  # a slice of the scheduler, up to a machine that swaps
    return Neighbour(
        stalls={place: draw(lengths) for place in places},
        drift=draw(st.floats(-0.2, 0.25)),
        resolution_s=draw(st.sampled_from([0.0, 1e-9, 1e-6, 5e-5])),
    )


POLICIES = st.sampled_from([SEARCH_POLICY, CONFIRM_POLICY, TimingPolicy(min_repeats=1, budget_s=0.01)])


@given(neighbours(), st.floats(-7.7, -0.5).map(lambda x: 10**x), POLICIES, st.booleans())
def test_estimates_hold_to_the_true_median_on_a_busy_machine(
    place: Neighbour, per_call_s: float, policy: TimingPolicy, has_best: bool
) -> None:
    """Within the drift and a tick of the clock; within a factor of two where few calls fill the budget."""
    machine = Machine(resolution_s=place.resolution_s)
    machine.drift = lambda now: 1 + place.drift * min(now / 0.5, 1)
    measure = Recorded(stalling(machine, machine.kernel(0, per_call_s), place.stalls))
    (timed,) = run([measure], policy, best_s=[per_call_s] if has_best else [])
    assert timed.done and timed.error is None and not timed.gave_up
    # No sample is shorter than its repeat was: a time that nobody saw.
    ratios = {took / calls for calls, took in measure.seen}
    assert ratios >= set(timed.samples_s)
    tick = place.resolution_s / (0.5 * policy.min_repeat_s)
    fastest, slowest = sorted((1.0, 1 + place.drift))
    found = estimate(timed.samples_s).median_s / per_call_s
    rounding = 1e-9
    assert all(s >= per_call_s * fastest * (1 - tick - rounding) for s in timed.samples_s)
    few = len(timed.samples_s) < 3
    assert found <= slowest * (1 + tick + rounding) * (2 if few else 1)


class Recorded:
    """A kernel whose calls and seconds are written down."""

    def __init__(self, measure: Callable[[int], float]) -> None:
        self._measure = measure
        self.seen: list[tuple[int, float]] = []

    def __call__(self, calls: int) -> float:
        took = self._measure(calls)
        self.seen.append((calls, took))
        return took


def stalling(
    machine: Machine, measure: Callable[[int], float], stalls: dict[int, float]
) -> Callable[[int], float]:
    """A kernel whose calls with these numbers are held up for so many seconds."""
    numbers = itertools.count()

    def held(calls: int) -> float:
        stall_s = stalls.get(next(numbers), 0.0)
        machine.now += stall_s
        return measure(calls) + stall_s

    return held


def test_what_is_faster_than_the_device_is_no_time_and_no_best() -> None:
    machine = Machine()
    broken, good = run(
        [machine.kernel(0, 1e-8), machine.kernel(1, 1e-5)],
        TimingPolicy(give_up_ratio=2.0),
        least_s=1e-7,
    )
    assert isinstance(broken.error, ImplausibleError)
    assert "1e-08 s a call is implausible, the device needs 1e-07 s at its peak" in str(broken.error)
    assert good.error is None and not good.gave_up
    assert good.samples_s == pytest.approx([1e-5] * 6)


def test_what_is_a_little_faster_than_the_device_is_no_time() -> None:
    machine = Machine()
    broken, good = run([machine.kernel(0, 0.9e-5), machine.kernel(1, 1.1e-5)], least_s=1e-5)
    assert isinstance(broken.error, ImplausibleError)
    assert good.error is None


def test_the_median_withstands_spikes() -> None:
    machine = Machine(seed=1)
    (timed,) = run([machine.kernel(0, 1e-4, noise=0.002, spikes=0.15)], CONFIRM_POLICY)
    assert estimate(timed.samples_s).median_s == pytest.approx(1e-4, rel=0.01)
    assert max(timed.samples_s) > 2e-4  # all samples are kept


def test_a_clock_that_ticks_coarsely_is_given_more_calls() -> None:
    machine = Machine(resolution_s=1e-3)
    (timed,) = run([machine.kernel(0, 1e-7)], TimingPolicy(min_repeat_s=0.02, budget_s=1))
    assert timed.error is None
    assert estimate(timed.samples_s).median_s == pytest.approx(1e-7, rel=0.06)


def test_a_clock_that_stands_still_is_an_error() -> None:
    (timed,) = run([lambda calls: 0.0])
    assert isinstance(timed.error, ValueError)
    assert not timed.samples_s


def test_what_is_far_slower_than_the_best_is_given_up() -> None:
    machine = Machine()
    fast, slow, hopeless = run(
        [machine.kernel(0, 1e-4), machine.kernel(1, 3e-4), machine.kernel(2, 0.1)],
        best_s=[1e-4] * 3,
    )
    assert not fast.gave_up and len(fast.samples_s) == 6
    assert slow.gave_up and len(slow.samples_s) == 2
    assert hopeless.gave_up and hopeless.samples_s == pytest.approx([0.1])
    assert [index for index, _ in machine.calls].count(2) == 2  # the first may have been a stall


def test_one_slow_sample_gives_nothing_up() -> None:
    machine = Machine()
    kernel, slow = machine.kernel(0, 1e-4), itertools.count()

    def stalled(calls: int) -> float:
        took = kernel(calls)
        return 5 * took if calls > 1 and next(slow) == 3 else took

    (timed,) = run([stalled], best_s=[1e-4])
    assert max(timed.samples_s) > 4e-4
    assert not timed.gave_up
    assert len(timed.samples_s) >= 6


def test_what_is_shorter_than_half_of_a_repeat_is_no_sample() -> None:
    machine = Machine()
    machine.drift = lambda now: 8.0 if now < 0.004 else 1.0  # calls are counted while the core is slow
    (timed,) = run([machine.kernel(0, 1e-5)], TimingPolicy(budget_s=1))
    assert timed.samples_s
    assert timed.calls * 1e-5 >= TimingPolicy().min_repeat_s / 2


def test_the_best_of_the_session_counts_for_its_own_task_only() -> None:
    machine = Machine()
    timed = run(
        [machine.kernel(0, 1e-4), machine.kernel(1, 1e-2), machine.kernel(2, 1e-2)],
        TimingPolicy(give_up_ratio=2.0, budget_s=10, min_repeats=20, max_repeats=200),
        tasks=[1, 1, 2],
    )
    # Task 1 has no best until its first kernel is done, a few turns on.
    assert [t.gave_up for t in timed] == [False, True, False]
    assert len(timed[1].samples_s) < len(timed[2].samples_s)


def test_without_a_ratio_all_are_refined_alike() -> None:
    machine = Machine()
    policy = msgspec.structs.replace(CONFIRM_POLICY, beaten_ratio=None)
    timed = run([machine.kernel(0, 1e-4), machine.kernel(1, 1e-3)], policy, best_s=[1e-5] * 2)
    assert [len(t.samples_s) for t in timed] == [CONFIRM_POLICY.min_repeats] * 2


def test_finals_time_what_is_beaten_until_its_interval_is_bounded() -> None:
    times = (1e-3, 1.02e-3, 1.5e-3, 4e-3)

    def samples(policy: TimingPolicy, noise: float) -> list[Timed]:
        machine = Machine()
        return run([machine.kernel(i, t, noise=noise) for i, t in enumerate(times)], policy)

    fully = msgspec.structs.replace(CONFIRM_POLICY, beaten_ratio=None)
    for noise in (0.0, 0.03):
        best, near, *beaten = samples(CONFIRM_POLICY, noise)
        assert min(len(best.samples_s), len(near.samples_s)) >= CONFIRM_POLICY.min_repeats
        for found, whole in zip(beaten, samples(fully, noise)[2:], strict=True):
            assert 12 <= len(found.samples_s) < len(whole.samples_s)
            assert estimate(found.samples_s).is_bounded
            assert not found.gave_up


def test_a_kernel_that_failed_beats_none() -> None:
    machine = Machine()
    timed = run([machine.kernel(0, 1e-6), machine.kernel(1, 1e-3)], CONFIRM_POLICY, least_s=1e-5)
    assert timed[0].error is not None
    assert len(timed[1].samples_s) == CONFIRM_POLICY.min_repeats


def test_kernels_take_turns_and_each_turn_begins_uncounted() -> None:
    machine = Machine()
    timed = run([machine.kernel(i, 1e-3) for i in range(3)])
    turns = machine.turns()
    # In each round each kernel once, in an order that changes.
    rounds = [sorted(turns[i : i + 3]) for i in range(0, len(turns), 3)]
    assert rounds.count([0, 1, 2]) >= len(rounds) - 1
    calls = [count for index, count in machine.calls if index == 0]
    assert calls[-TURN - 1 :] == [1, 2, 2, 2]
    assert all(len(t.samples_s) == 6 for t in timed)


def test_the_order_of_each_round_is_drawn_anew() -> None:
    machine = Machine()
    policy = TimingPolicy(min_repeats=60, max_repeats=60, budget_s=1)
    run([machine.kernel(i, 1e-3, noise=0.5) for i in range(3)], policy)
    turns = machine.turns()
    followers = set(itertools.pairwise(turns))
    assert len(followers) == 6  # every kernel has followed every other


def test_a_drift_falls_on_all_alike() -> None:
    """The machine slows down by half on the way: the order of near equals is still right."""

    def ratio(session: list[Timed]) -> float:
        a, b = (estimate(t.samples_s).median_s for t in session)
        return b / a

    policy = TimingPolicy(min_repeats=60, max_repeats=60, budget_s=10)
    together = Machine()
    together.drift = lambda now: 1 + now
    found = run([together.kernel(0, 1e-3), together.kernel(1, 1.03e-3)], policy)
    assert ratio(found) == pytest.approx(1.03, rel=0.01)
    # The same, one after the other, gets it wrong: this is what the interleaving is for.
    apart = Machine()
    apart.drift = lambda now: 1 + now
    slower = apart.kernel(1, 1.03e-3)
    first = run([slower], policy)
    second = run([apart.kernel(0, 1e-3)], policy)
    assert ratio([*second, *first]) < 1.0


def test_what_settles_early_drops_out() -> None:
    machine = Machine()
    ended: list[int] = []
    run(
        [machine.kernel(0, 1e-3, noise=0.3), machine.kernel(1, 1e-3)],
        TimingPolicy(budget_s=1),
        finished=lambda index, timed: ended.append(index),
    )
    assert ended == [1, 0]
    last = [index for index, _ in machine.calls][-5 * TURN :]
    assert set(last) == {0}


def test_a_kernel_that_raises_fails_alone() -> None:
    machine = Machine()
    failing = machine.kernel(1, 1e-3)

    def breaks(calls: int) -> float:
        if len(machine.calls) > 8:
            raise RuntimeError("no")
        return failing(calls)

    good, bad = run([machine.kernel(0, 1e-3), breaks], CONFIRM_POLICY)
    assert good.error is None and len(good.samples_s) == CONFIRM_POLICY.min_repeats
    assert str(bad.error) == "no"


def test_one_repeat_of_a_fixed_length_is_a_policy_too() -> None:
    """MetaSchedule's: at least 100 ms, once."""
    machine = Machine()
    policy = TimingPolicy(
        warmup_s=0, min_repeat_s=0.1, min_repeats=1, max_repeats=1, spread=1, budget_s=10
    )
    (timed,) = run([machine.kernel(0, 3e-3)], policy)
    assert len(timed.samples_s) == 1
    assert timed.calls == 34


def test_a_wall_clock_that_is_set_meanwhile_has_the_repeat_timed_again() -> None:
    seconds = iter((-18_000.0, 18_000.0, 0.0))
    assert _steadily(lambda: next(seconds)) == 0.0
    assert next(seconds, None) is None
