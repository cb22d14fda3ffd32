"""Where the next trials of a workload go: which implementations can still win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_SHARE = 8
HOPELESS_RATIO = 1.5
ALL_FAILED = 16  # trials, all of them failed, after which an implementation is given up


@dataclass(frozen=True)
class Arm:
    """How one tunable implementation of a workload stands.

    Attributes:
        trials: told and under way; `told` without the latter.
        lower_bound_s: the most optimistic time that its model predicts anywhere.
    """

    trials: int = 0
    told: int = 0
    best_s: float | None = None
    lower_bound_s: float | None = None
    exhausted: bool = False
    dropped: bool = False

    @property
    def is_open(self) -> bool:
        return not (self.exhausted or self.dropped)


def split(total: int, weights: Sequence[float]) -> list[int]:
    """`total` in whole parts proportional to `weights` (largest remainders)."""
    if not weights:
        return []
    exact = [total * w / sum(weights) for w in weights]
    parts = [int(x) for x in exact]
    by_rest = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_rest[: total - sum(parts)]:
        parts[i] += 1
    return parts


def share(arms: Sequence[Arm], budget: int) -> int:
    """The trials that each implementation gets before any is judged."""
    n = max(len(arms), 1)
    return min(max(MIN_SHARE, budget // (2 * n)), max(budget // n, 1))


def leader(arms: Sequence[Arm], others_s: Sequence[float] = ()) -> float | None:
    """The lowest time of all implementations, those without a space among them."""
    return min([a.best_s for a in arms if a.best_s is not None] + list(others_s), default=None)


def hopeless(arm: Arm, lead_s: float | None, arms_share: int) -> str | None:
    """Why an implementation cannot win any more, None while it can."""
    if arm.told < arms_share or not arm.is_open:
        return None
    if arm.best_s is None:
        if arm.told < ALL_FAILED:
            return None
        return f"all of its {arm.told} trials failed"
    if lead_s is None or arm.lower_bound_s is None:
        return None
    ratio = arm.best_s / lead_s
    if ratio > HOPELESS_RATIO and arm.lower_bound_s > lead_s:
        return (
            f"after {arm.told} trials its best takes {ratio:.2f}× as long as the leader, "
            f"and its model sees nothing below {arm.lower_bound_s / lead_s:.2f}×"
        )
    return None


def next_arm(arms: Sequence[Arm], budget: int, others_s: Sequence[float] = ()) -> int | None:
    """The implementation that gets the next trials, None where the budget is spent or all are closed.

    Even at first; then in proportion to the fourth power of how close each is to the leader.
    """
    if sum(a.trials for a in arms) >= budget:
        return None
    open_arms = [i for i, a in enumerate(arms) if a.is_open]
    if not open_arms:
        return None
    first = share(arms, budget)
    young = [i for i in open_arms if arms[i].trials < first]
    if young:
        return min(young, key=lambda i: (arms[i].trials, i))
    lead = leader(arms, others_s)

    def served(i: int) -> tuple[float, int]:
        best = arms[i].best_s
        weight = 1e-3 if best is None or lead is None else max((lead / best) ** 4, 1e-3)
        return ((arms[i].trials - first + 1) / weight, i)

    return min(open_arms, key=served)
