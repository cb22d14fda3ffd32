"""The timing of kernels: pure functions over a callable that runs a kernel and returns its seconds.

The kernels of a job are timed in one session, in rounds that take each in turn, so that a slow
drift of the machine (temperature, neighbours) falls on all alike and their order can be trusted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from strategy.record import TimingPolicy, estimate

# Runs a kernel that many times; returns the seconds that all of them took together.
Measure = Callable[[int], float]

# Samples taken in one turn. Each turn begins with a call that is not counted, as the others'
# kernels have used the caches since; a turn of several samples keeps that cheap.
TURN = 3
MAX_CALLS = 10_000_000
# From so many samples on a median withstands that a third of them were held up.
_SOUND = 6
# A machine that stalls on and on ends a kernel's timing at this multiple of its budget.
STALLED = 10
# A measurement of this length tells how many calls fill a repeat.
_RELIABLE_S = 0.0005


class ImplausibleError(Exception):
    """A sample that no device of its kind can reach: its clock or its calls are wrong."""


@dataclass
class Timed:
    """The timing state of one kernel. `samples_s` has all samples, each the mean of its calls."""

    samples_s: list[float] = field(default_factory=list)
    run_s: float = 0.0  # all the time that its calls took, those to warm up included
    calls: int = 1  # of the next sample
    called: int = 0  # in all
    fastest_s: float = math.inf  # per call, in any repeat of more than one tick of the clock
    gave_up: bool = False
    error: Exception | None = None
    done: bool = False


def time_kernels(
    kernels: Sequence[Measure],
    policy: TimingPolicy,
    *,
    tasks: Sequence[int] = (),
    best_s: Sequence[float | None] = (),
    least_s: float = 0.0,
    rng: random.Random,
    finished: Callable[[int, Timed], None] = lambda index, timed: None,
) -> list[Timed]:
    """Time kernels interleaved, each until its interval is narrow enough or its budget ends.

    Args:
        kernels: what to time; one that raises ends with that error, the others go on.
        policy: see `TimingPolicy`; its budget counts the time of each kernel's own calls, stalls
            of the machine left out.
        tasks: which kernels compete with each other, for `give_up_ratio`; all where empty.
        best_s: the best median of each kernel's task before this session, where there is one.
        least_s: the shortest time of a call that is believed; a kernel with a sample below it ends
            with an `ImplausibleError`, and is no best that others are given up against.
        rng: the order within each round, so that no kernel always follows the same other one.
        finished: called with a kernel's index as soon as it is done, right after its last call.
    """
    timed = [Timed() for _ in kernels]
    best: dict[int, float] = {}
    groups = list(tasks) or [0] * len(kernels)
    for group, known in zip(groups, best_s, strict=False):
        if known is not None:
            best[group] = min(known, best.get(group, math.inf))

    def turn(index: int) -> None:
        state, group = timed[index], groups[index]
        limit = _limit(policy, best.get(group))
        try:
            if not state.samples_s:
                _warm_up(kernels[index], policy, state, limit)
            else:
                _repeat(kernels[index], state, 1)
            _sample(kernels[index], policy, state, limit)
            fastest_s = min(state.samples_s, default=math.inf)
            if fastest_s < least_s:
                raise ImplausibleError(
                    f"{fastest_s:.3g} s a call, and the device needs {least_s:.3g} s at its peak: "
                    "its clock or the count of calls is wrong; check the host by `plevel doctor`"
                )
        except Exception as error:
            state.error, state.done = error, True
        if state.done and state.error is None and not state.gave_up:
            median = estimate(state.samples_s).median_s
            best[group] = min(median, best.get(group, math.inf))
        if state.done:
            finished(index, state)

    live = list(range(len(kernels)))
    while live:
        for index in rng.sample(live, len(live)):
            turn(index)
        live = [index for index in live if not timed[index].done]
    return timed


def _limit(policy: TimingPolicy, best_s: float | None) -> float:
    """Seconds per call from which a kernel is given up."""
    if policy.give_up_ratio is None or best_s is None:
        return math.inf
    return policy.give_up_ratio * best_s


def _repeat(measure: Measure, state: Timed, calls: int) -> float:
    """Seconds that so many calls take together, which are counted."""
    took = measure(calls)
    state.run_s += took
    state.called += calls
    if took > 0:
        state.fastest_s = min(state.fastest_s, took / calls)
    return took


def _warm_up(measure: Measure, policy: TimingPolicy, state: Timed, limit_s: float) -> None:
    """Warm up and find how many calls fill a repeat.

    Two calls far beyond the limit are all there is to know of a kernel: the faster is its only
    sample. One may have been held up by the machine.
    """
    took = _repeat(measure, state, 1)
    # Twice the limit: the first calls find their code and operands in no cache.
    if took > 2 * limit_s and policy.min_repeat_s <= took:
        took = _repeat(measure, state, 1)
        if took > 2 * limit_s and policy.min_repeat_s <= took:
            state.samples_s.append(state.fastest_s)
            state.gave_up = state.done = True
            return
    calls = 1
    reliable_s = min(policy.min_repeat_s, _RELIABLE_S)
    while calls < MAX_CALLS and (state.run_s < policy.warmup_s or took < reliable_s):
        # At most tenfold at a time: a clock too coarse for one call says it takes no time.
        calls = min(_calls(policy, took / calls), calls * 10)
        took = _repeat(measure, state, calls)
    state.calls = _calls(policy, took / calls)


def _calls(policy: TimingPolicy, per_call_s: float) -> int:
    if per_call_s <= 0:
        return MAX_CALLS
    return max(1, min(MAX_CALLS, math.ceil(policy.min_repeat_s / per_call_s)))


def _sample(measure: Measure, policy: TimingPolicy, state: Timed, limit_s: float) -> None:
    for _ in range(TURN):
        if state.done:
            return
        calls = state.calls
        took = _repeat(measure, state, calls)
        if took < 0.5 * policy.min_repeat_s and calls < MAX_CALLS:
            # Too short to be a sample, whatever the budget: warmer than when the calls were counted,
            # or they were counted while the machine stalled. Doubling ends it.
            state.calls = min(MAX_CALLS, max(calls * 2, _calls(policy, took / calls)))
            state.done = bool(state.samples_s) and _spent(policy, state)
            continue
        if took <= 0:
            raise ValueError(f"{calls} calls took {took} s: the clock is too coarse")
        state.samples_s.append(took / calls)
        state.gave_up = len(state.samples_s) >= 2 and min(state.samples_s) > limit_s
        state.done = state.gave_up or _enough(policy, state)


def _enough(policy: TimingPolicy, state: Timed) -> bool:
    n = len(state.samples_s)
    found = estimate(state.samples_s)
    if n < min(_SOUND, policy.max_repeats) and found.median_s > 2 * state.fastest_s:
        return False  # the time of a stall
    if n >= policy.max_repeats or _spent(policy, state):
        return True
    if n < policy.min_repeats:
        return False
    widest = max(found.high_s - found.median_s, found.median_s - found.low_s)
    return widest <= policy.spread * found.median_s


def _spent(policy: TimingPolicy, state: Timed) -> bool:
    """The budget is used up by the kernel's own calls, or many times over by stalls.

    A repeat that took over twice as long as the fastest says was held up by the machine.
    """
    own_s = min(state.run_s, 2 * state.fastest_s * state.called)
    return own_s >= policy.budget_s or state.run_s >= STALLED * policy.budget_s
