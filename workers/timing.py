"""Timing of kernels: pure functions over a callable that runs a kernel and returns its seconds.

The kernels of a job are timed in one session, in rounds over all of them, so that slow drift of the host
(temperature, neighbours) affects all alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from strategy.record import TimingPolicy, estimate

# Runs a kernel that many times; returns the total seconds.
Measure = Callable[[int], float]

# Samples in one turn. Each turn begins with an uncounted call, as other kernels have used the caches since;
# several samples per turn amortise it.
TURN = 3
MAX_CALLS = 10_000_000
# From this many samples on, a median tolerates that a third of them were disturbed.
_SOUND = 6
# From this many samples on, their interval tells that a kernel is beaten: the third lowest and the third highest of 12.
_KNOWN = 12
# A kernel's timing ends at this multiple of its budget even if the host stalls.
STALLED = 10
# Length of the measurement that determines the calls of a repeat.
_RELIABLE_S = 0.0005


class ImplausibleError(Exception):
    """A sample is shorter than the device can reach: the clock or the count of calls is wrong."""


@dataclass
class Timed:
    """The timing state of one kernel. `samples_s` has all samples, each the mean of its calls."""

    samples_s: list[float] = field(default_factory=list)
    run_s: float = 0.0  # total time of its calls, warm-up included
    calls: int = 1  # of the next sample
    called: int = 0  # total
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
        kernels: the kernels to time; one that raises ends with that error, the others continue.
        policy: see `TimingPolicy`; its budget counts the time of each kernel's own calls, without stalls
            of the host.
        tasks: the task of each kernel; `give_up_ratio` compares within one; empty: one task for all.
        best_s: the best median of each kernel's task before this session, if any.
        least_s: the shortest plausible time of a call; a kernel with a shorter sample ends with an
            `ImplausibleError`, and is not compared with others.
        rng: for the order within each round, so that no kernel always follows the same other one.
        finished: called with a kernel's index right after its last call.
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
                    f"{fastest_s:.3g} s a call is implausible, the device needs {least_s:.3g} s at its "
                    "peak: check the host's clock with `plevel doctor`"
                )
        except Exception as error:
            state.error, state.done = error, True
        state.done = state.done or _is_beaten(policy, state, timed)
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


def _is_beaten(policy: TimingPolicy, state: Timed, session: Sequence[Timed]) -> bool:
    """Return whether a kernel is so much slower than the fastest of its session that a bounded interval is enough.

    It is needed: the kernel is compared with others where the fastest cannot run.
    """
    if policy.beaten_ratio is None or state.error is not None or len(state.samples_s) < _KNOWN:
        return False
    known = (t for t in session if t.error is None and len(t.samples_s) >= _KNOWN)
    fastest = estimate(min(known, key=lambda t: t.fastest_s).samples_s)
    found = estimate(state.samples_s)
    return found.is_bounded and found.low_s > policy.beaten_ratio * fastest.high_s


def _limit(policy: TimingPolicy, best_s: float | None) -> float:
    """Seconds per call above which the timing of a kernel is abandoned."""
    if policy.give_up_ratio is None or best_s is None:
        return math.inf
    return policy.give_up_ratio * best_s


def _repeat(measure: Measure, state: Timed, calls: int) -> float:
    """The total seconds of this many calls, which are counted."""
    took = measure(calls)
    state.run_s += took
    state.called += calls
    if took > 0:
        state.fastest_s = min(state.fastest_s, took / calls)
    return took


def _warm_up(measure: Measure, policy: TimingPolicy, state: Timed, limit_s: float) -> None:
    """Warm up and determine the number of calls of a repeat.

    After two calls far beyond the limit, the faster is the only sample of a kernel, as one call may have been
    disturbed.
    """
    took = _repeat(measure, state, 1)
    # Twice the limit, as the first calls find nothing in the caches.
    if took > 2 * limit_s and policy.min_repeat_s <= took:
        took = _repeat(measure, state, 1)
        if took > 2 * limit_s and policy.min_repeat_s <= took:
            state.samples_s.append(state.fastest_s)
            state.gave_up = state.done = True
            return
    calls = 1
    reliable_s = min(policy.min_repeat_s, _RELIABLE_S)
    while calls < MAX_CALLS and (state.run_s < policy.warmup_s or took < reliable_s):
        # At most tenfold at a time, as a coarse clock may report 0 for one call.
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
            # Too short for a sample: the number of calls was determined in a colder state or during a stall.
            # Double it.
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
        return False  # mostly a stall
    if n >= policy.max_repeats or _spent(policy, state):
        return True
    if n < policy.min_repeats:
        return False
    widest = max(found.high_s - found.median_s, found.median_s - found.low_s)
    return widest <= policy.spread * found.median_s


def _spent(policy: TimingPolicy, state: Timed) -> bool:
    """Return whether the budget is spent by the kernel's own calls, or many times over by stalls.

    A repeat of more than twice the fastest one's time counts as a stall.
    """
    own_s = min(state.run_s, 2 * state.fastest_s * state.called)
    return own_s >= policy.budget_s or state.run_s >= STALLED * policy.budget_s
