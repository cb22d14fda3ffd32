"""In-process selection with records loaded: microseconds when cached, and for a new workload.

Goals: at most 20 µs when the answer is kept, at most 200 µs for a workload not asked before. The
peers, in the same run: a bare dictionary from key to answer, which is the least that any cache can
take, and the rule without a `Selector`, which evaluates the strategy each time.

    python benchmarks/selection.py

It takes a quarter of a minute.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.fixture import dense, make_parser, median_s
from benchmarks.result import Table
from strategy.op_strategy import candidates
from strategy.record import estimate
from strategy.select import Level, Measured, Selection, Selector, select
from strategy.select.evidence import NoRecords
from strategy.target import Target
from strategy.workload import Workload

WORKLOADS = 1000
TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2 -libs=cblas")


class Records(NoRecords):
    """Measurements in memory, by workload."""

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


def main() -> None:
    make_parser(__doc__).parse_args()
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

    def ask(workload: Workload) -> Selection:
        return selector.select(workload, TARGET)

    rows = [
        ("on record, not asked before, parts of its spaces known", median_s(keep, on_record), 200e-6),
        ("never measured, not asked before", median_s(ask, never_measured), 200e-6),
        ("never measured, every dimension new", median_s(ask, strange), 200e-6),
        ("asked before", median_s(ask, on_record), 20e-6),
        ("asked before, the workload made anew", median_s(ask, again), 20e-6),
    ]
    bare = median_s(lambda w: known[w.key, TARGET.key], on_record)
    plain = median_s(lambda w: select(w, TARGET, records), on_record)
    print(f"{WORKLOADS} workloads of dense on record; {len(ask(on_record[0]).rivals)} implementations each\n")
    table = Table({
        "": "", "median": "s", "goal": "s", "over a bare dict": "×", "over the rule without a Selector": "×",
    })
    for name, found, goal in rows:
        table.add(name, found, goal, found / bare, found / plain)
    table.save(peer="a bare dict, and the rule without a Selector")
    print(f"\npeers: bare dict {1e6 * bare:.2f} µs, the rule without a Selector {1e6 * plain:.0f} µs")


if __name__ == "__main__":
    main()
