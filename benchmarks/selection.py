"""In-process selection with records loaded: microseconds when cached, and for a new workload.

Goals: at most 20 µs when the answer is kept, at most 200 µs for a workload not asked before. The
peers, in the same run: a bare dictionary from key to answer, which is the least that any cache can
take, and the rule without a `Selector`, which evaluates the strategy each time.

    python benchmarks/selection.py
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

from benchmarks.result import save
from strategy.op_strategy import candidates
from strategy.record import estimate
from strategy.select import Advised, History, Level, Measured, Selection, Selector, select
from strategy.target import Target
from strategy.workload import Workload

WORKLOADS = 1000
TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2 -libs=cblas")


class Records:
    """Measurements in memory, by workload."""

    revision = 1

    def __init__(self) -> None:
        self._measured: dict[str, list[Measured]] = {}

    def load(self, workload: Workload, rng: random.Random) -> None:
        """Confirmed records of every implementation that is valid for the workload."""
        self._measured[workload.key] = [
            Measured(
                implementation=c.implementation,
                version=c.version,
                config=c.fallback,
                level=level,
                estimate=estimate([rng.lognormvariate(-7, 0.02) for _ in range(20)]),
                device="host/cpu:0-1",
                target=TARGET.key,
            )
            for c in candidates(workload, TARGET)
            if c.condition is None or c.condition.decide()
            for level in (Level.DEVICE, Level.MODEL, Level.TARGET)
        ]

    def measured(
        self, workload: Workload, target: Target, device: str | None
    ) -> Sequence[Measured]:
        return self._measured.get(workload.key, ())

    def advised(self, workload: Workload, target: Target, device: str | None) -> Sequence[Advised]:
        return ()

    def instances(
        self, workload: Workload, target: Target, device: str | None
    ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
        return ()

    def history(self, workload: Workload) -> Sequence[History]:
        return ()


def dense(m: int, n: int, k: int) -> Workload:
    shapes = {"data": f"float32[{m},{k}]", "weight": f"float32[{n},{k}]"}
    return Workload.make("dense", shapes, constants=["weight"])


def microseconds(ask: Callable[[Workload], object], workloads: Iterable[Workload]) -> float:
    """Median time of one question."""
    times = []
    for workload in workloads:
        start = time.perf_counter_ns()
        ask(workload)
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def main() -> None:
    rng = random.Random(0)
    sizes = [
        (m, n, k)
        for m in range(1, 201)
        for n, k in ((768, 768), (2304, 768), (3072, 768), (768, 3072), (1000, 2048))
    ]
    shapes = rng.sample(sizes, WORKLOADS)
    records = Records()
    for shape in shapes:
        records.load(dense(*shape), rng)
    on_record = [dense(*shape) for shape in shapes]  # no answer about these is kept yet
    again = [dense(*shape) for shape in shapes]
    never_measured = [dense(m + 1000, n, k) for m, n, k in shapes]
    # Parts of spaces are kept by dimension: the worst case has none that came before.
    fresh = zip(*(rng.sample(range(1201, 9000), WORKLOADS) for _ in "mnk"), strict=True)
    strange = [dense(*shape) for shape in fresh]
    selector = Selector(records)
    known: dict[tuple[str, str], Selection] = {}

    def keep(workload: Workload) -> None:
        known[workload.key, TARGET.key] = selector.select(workload, TARGET)

    rows = [
        ("on record, not asked before, parts of its spaces known", microseconds(keep, on_record), 200),
        (
            "never measured, not asked before",
            microseconds(lambda w: selector.select(w, TARGET), never_measured),
            200,
        ),
        (
            "never measured, every dimension new",
            microseconds(lambda w: selector.select(w, TARGET), strange),
            200,
        ),
        ("asked before", microseconds(lambda w: selector.select(w, TARGET), on_record), 20),
        ("asked before, the workload made anew", microseconds(lambda w: selector.select(w, TARGET), again), 20),
    ]  # fmt: skip
    bare = microseconds(lambda w: known[w.key, TARGET.key], on_record)
    plain = microseconds(lambda w: select(w, TARGET, records), on_record)
    answer = selector.select(on_record[0], TARGET)
    print(f"{WORKLOADS} workloads of dense on record; {len(answer.rivals)} implementations each\n")
    print(f"{'':38}{'median':>10}{'goal':>9}{'bare dict':>12}{'no Selector':>13}")
    for name, found, goal in rows:
        verdict = "" if found <= goal else "  missed"
        print(
            f"{name:38}{found:7.1f} µs{goal:6} µs{found / bare:10.1f} ×{found / plain:11.3f} ×{verdict}"
        )
    save(
        {"": "", "median": "s", "goal": "s", "over a bare dict": "×", "over the rule without a Selector": "×"},
        [(name, 1e-6 * us, 1e-6 * goal, us / bare, us / plain) for name, us, goal in rows],
        peer="a bare dict, and the rule without a Selector",
    )  # fmt: skip
    print(f"\npeers: bare dict {bare:.2f} µs, the rule without a Selector {plain:.0f} µs")


if __name__ == "__main__":
    main()
