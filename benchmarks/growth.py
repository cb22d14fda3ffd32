"""How selection and the update of a best grow with the log: they should not.

Goal: from 10⁴ records on, each tenth power within 1.5× of the first, on SQLite. Every task has 100
records. A selection is of a random workload of five implementations, an update the transaction that
stores one more record of a random task; both in this process, without HTTP, medians of 300.

    python benchmarks/growth.py [--most 1000000]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from benchmarks.store import IMPLEMENTATIONS, TARGET, records, workload
from service import candidate, migration
from service.db import Store
from service.evidence import RecordDatabase
from service.importer import import_items
from strategy.select import select

FIRST = 10_000
PER_TASK = 100
ASKED = 300


def median_s(act: Callable[[], None]) -> float:
    taken = []
    for _ in range(ASKED):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def measure(store: Store, size: int) -> tuple[float, float]:
    """Medians of a selection and of an update, in seconds."""
    rng = random.Random(size)
    tasks = size // PER_TASK

    def ask() -> None:
        asked = workload(rng.randrange(tasks // IMPLEMENTATIONS))
        with store.read() as connection:
            database = RecordDatabase(connection)
            known = candidate.gather(database, asked, TARGET, None, foreign=True, field="workload")
            select(asked, TARGET, database, offered=known)

    new = iter([
        replace(r, measured_at=1.6e9 + rng.random()) for r in records(8 * ASKED, tasks, seed=size)
    ][::8])  # fmt: skip

    def update() -> None:
        import_items(store, [next(new)])

    return median_s(ask), median_s(update)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, help="records")
    given = parser.parse_args()
    first: tuple[float, float] | None = None
    size = FIRST
    with tempfile.TemporaryDirectory() as folder:
        while size <= given.most:
            url = f"sqlite:///{Path(folder) / f'{size}.db'}"
            migration.upgrade(url)
            store = Store(url)
            import_items(store, records(size, size // PER_TASK))
            taken = measure(store, size)
            store.close()
            first = first or taken
            ask, update = (1e3 * t for t in taken)
            print(
                f"{size:>11,} records: select {ask:.2f} ms ({taken[0] / first[0]:.2f}×), "
                f"update {update:.2f} ms ({taken[1] / first[1]:.2f}×); goal 1.5×", flush=True,
            )  # fmt: skip
            size *= 10


if __name__ == "__main__":
    main()
