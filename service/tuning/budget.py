"""Allocation of trials: to implementations that can still win, and workloads that still gain."""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass

from strategy.table import show_number

MIN_SHARE = 8
HOPELESS_RATIO = 1.5
ALL_FAILED = 16  # failed trials without a success, after which an implementation is dropped
PATIENCE = 64  # trials without a gain, after which the model's estimate of none counts
EVEN = 0.5  # share of the budget split by time; the rest goes to the largest gains


@dataclass(frozen=True)
class Arm:
    """State of one tunable implementation of a workload.

    Attributes:
        trials: finished and pending ones; `told` has those of the former by which it is judged.
        elsewhere: successes on other device models, whose times are not compared.
        lower_bound_s: the lowest time that its model considers possible.
        gain: the share of the workload's lowest time that one trial is expected to save; None
            without a model.
        waiting: all that is left to try is under way in other runs.
    """

    trials: int = 0
    told: int = 0
    elsewhere: int = 0
    best_s: float | None = None
    lower_bound_s: float | None = None
    gain: float | None = None
    exhausted: bool = False
    dropped: bool = False
    waiting: bool = False

    @property
    def is_open(self) -> bool:
        return not (self.exhausted or self.dropped)

    @property
    def expected_gain(self) -> float:
        # Without a model: a random trial improves on the best of n with probability 1 / (n + 1).
        return 1 / (1 + self.trials) if self.gain is None else self.gain


@dataclass(frozen=True)
class Stand:
    """State of one workload of a run.

    Attributes:
        weight: its number of calls.
        part: its trials if the budget were split by `parts`.
        arms: its tunable implementations.
        lead_s: the lowest time of all implementations; None if nothing has run.
    """

    weight: float
    part: int
    arms: Sequence[Arm]
    lead_s: float | None

    @property
    def spent(self) -> int:
        return sum(a.trials for a in self.arms)

    @property
    def worth(self) -> float:
        """The time that a trial is expected to save, over all calls."""
        gain = max((a.expected_gain for a in self.arms if a.is_open), default=0.0)
        return math.inf if self.lead_s is None else self.weight * self.lead_s * gain


def split(total: int, weights: Sequence[float]) -> list[int]:
    """Split `total` into integers proportional to `weights` (largest remainders), evenly if all of them are 0."""
    if not weights:
        return []
    whole = sum(weights)
    exact = [total * w / whole if whole else total / len(weights) for w in weights]
    parts = [int(x) for x in exact]
    by_rest = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_rest[: total - sum(parts)]:
        parts[i] += 1
    return parts


def parts(total: int, weights: Sequence[float], leads_s: Sequence[float | None]) -> list[int]:
    """Split the trials by the time of each workload's calls; one that is not known counts as the longest."""
    longest = max((s for s in leads_s if s is not None), default=1.0)
    largest = max(weights, default=1.0)  # of which the others are shares, so that no sum is infinite
    timed = zip(weights, leads_s, strict=True)
    return split(total, [w / largest * (longest if s is None else s) for w, s in timed])


def charge(own: int, earlier: Sequence[int], part: int) -> int:
    """The trials of a workload that a run is charged: those of other runs up to the workload's part.

    So a workload that is tuned already takes no trials from the others. An implementation that no other run has tried,
    as one with a new version, still gets its share.

    Args:
        earlier: the trials of other runs of each tunable implementation.
    """
    untried = sum(n == 0 for n in earlier) * share(earlier, part)
    return own + min(sum(earlier), max(part - untried, 0))


def share(arms: Sized, budget: int) -> int:
    """The trials that each implementation gets before any may be dropped."""
    n = max(len(arms), 1)
    return min(max(MIN_SHARE, budget // (2 * n)), max(budget // n, 1))


def hopeless(arm: Arm, lead_s: float | None, arms_share: int) -> str | None:
    """Return the reason why an implementation can no longer win, None if it can."""
    if arm.told < arms_share or not arm.is_open:
        return None
    if arm.best_s is None:
        if arm.told < ALL_FAILED:
            return None
        if arm.elsewhere:
            return f"all of its {arm.told} trials on the run's device model failed; {arm.elsewhere} on others succeeded"
        return f"all of its {arm.told} trials failed"
    if lead_s is None or arm.lower_bound_s is None:
        return None
    ratio = arm.best_s / lead_s
    if ratio > HOPELESS_RATIO and arm.lower_bound_s > lead_s:
        return (
            f"after {show_number(arm.told, 'trial')} its best takes {ratio:.2f}× as long as the leader's, "
            f"and its model predicts at least {arm.lower_bound_s / lead_s:.2f}×"
        )
    return None


def settled(arm: Arm, before_s: float | None, lead_s: float | None, least_gain: float) -> bool:
    """Return whether an implementation is done: no recent gain, and none expected of any trial.

    Args:
        before_s: its best time `PATIENCE` trials ago; None if it had fewer, or none ran.
    """
    if arm.gain is None or before_s is None or arm.best_s is None or lead_s is None:
        return False
    of_late = (before_s - arm.best_s) / lead_s
    return of_late <= least_gain and arm.gain <= least_gain


def next_arm(arms: Sequence[Arm], budget: int) -> int | None:
    """The implementation that gets the next trials, None if all are closed or waiting.

    First each gets its `share` of the budget, then the one whose next trial is expected to save most.
    """
    open_arms = [i for i, a in enumerate(arms) if a.is_open and not a.waiting]
    if not open_arms:
        return None
    first = share(arms, budget)
    young = [i for i in open_arms if arms[i].trials < first]
    if young:
        return min(young, key=lambda i: (arms[i].trials, i))
    return max(open_arms, key=lambda i: (arms[i].expected_gain, -i))


def order(stands: Sequence[Stand]) -> list[int]:
    """Order the workloads by priority for the next trials.

    Half of the budget is split by the time of all calls, so that no workload that counts starves, and each gets a trial
    at least, without which its implementations are unknown; the rest goes to the workloads whose trials are expected to
    save most of that time.
    """

    def rank(i: int) -> tuple[bool, float, float, int]:
        stand = stands[i]
        own = EVEN * stand.part
        behind = stand.spent < max(own, 1.0)
        return (not behind, stand.spent / max(own, 1.0) if behind else -stand.worth, -own, i)

    return sorted(range(len(stands)), key=rank)
