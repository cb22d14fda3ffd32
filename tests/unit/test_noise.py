"""Selection on machines with busy neighbours: what is chosen is not slower than it need be."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from strategy.op_strategy import Candidate
from strategy.record import CONFIRM_POLICY, Estimate, estimate
from strategy.select import Level, Measured, Selection, choose, unsettled
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Input, Workload
from workers.timing import time_kernels

TARGET = Target.parse("llvm -num-cores=2")
WORKLOAD = Workload("filter", (Input("data", "float32[64,64]"),))
SESSIONS, MORE_SESSIONS = 2, 3  # as the tuner has them


class Neighbour:
    """A clock beside a neighbour that comes and goes, and takes a core or caches while it is there."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._now = 0.0
        self._turns_at = 0.0
        self._load = 0.0  # of the time that passes, the neighbour's part
        self._calm_s = self._rng.choice([0.05, 0.5, 5.0])
        self._busy_s = self._rng.choice([0.005, 0.05, 0.5])
        self._heaviest = self._rng.choice([0.1, 0.5, 0.8])

    def kernel(self, per_call_s: float) -> Callable[[int], float]:
        def measure(calls: int) -> float:
            began, left = self._now, calls * per_call_s * (1 + abs(self._rng.gauss(0, 0.004)))
            while left > 0:
                if self._now >= self._turns_at:
                    busy = self._load == 0.0
                    self._load = self._rng.uniform(0, self._heaviest) if busy else 0.0
                    mean_s = self._busy_s if busy else self._calm_s
                    self._turns_at = self._now + self._rng.expovariate(1 / mean_s)
                step = min(left / (1 - self._load), self._turns_at - self._now)
                self._now += step
                left -= step * (1 - self._load)
            return self._now - began

        return measure


def finals(machine: Neighbour, true_s: dict[str, float], seed: int) -> dict[str, Estimate]:
    """The estimates at the end of a run: two finals, and more of what is too uncertain."""
    pooled: dict[str, list[float]] = {name: [] for name in true_s}
    names = set(true_s)
    for session in range(SESSIONS + MORE_SESSIONS):
        order = sorted(names)
        kernels = [machine.kernel(true_s[name]) for name in order]
        rng = random.Random(1000 * seed + session)
        for name, timed in zip(order, time_kernels(kernels, CONFIRM_POLICY, rng=rng), strict=True):
            pooled[name] += timed.samples_s
        found = {name: estimate(samples) for name, samples in pooled.items()}
        if session >= SESSIONS - 1:
            names = unsettled(found)
            if not names:
                break
    return found


def answer(estimates: dict[str, Estimate], plevels: dict[str, int]) -> Selection:
    known = [Candidate(name, "1.0", plevels[name]) for name in estimates]
    measured = [
        Measured(implementation=n, version="1.0", config=Config(), level=Level.MODEL, estimate=e)
        for n, e in estimates.items()
    ]
    return choose(WORKLOAD, TARGET, known, measured)


@pytest.mark.sample(1)
@pytest.mark.parametrize("rivals", [(1.06, 1.08), (1.03, 1.055, 1.3), (1.1, 1.2, 1.8, 3.0)])
def test_what_is_chosen_beside_a_busy_neighbour_is_hardly_ever_slower(
    rivals: tuple[float, ...],
) -> None:
    """The slower a rival, the higher its plevel: the rule is tempted as much as it can be."""
    runs = 200
    slower = 0
    for seed in range(runs):
        base_s = random.Random(seed).choice([20e-6, 4e-4, 5e-3])
        true_s = {"fast": base_s} | {f"slow{i}": base_s * r for i, r in enumerate(rivals)}
        plevels = {name: 10 + i for i, name in enumerate(true_s)}
        chosen = answer(finals(Neighbour(seed), true_s, seed), plevels).implementation
        slower += true_s[chosen] > 1.05 * base_s
    assert slower <= 0.01 * runs
