"""Growth of selection and of the update of a best with the log: there should be none.

Goal: from 10⁴ records on, each tenth power up to 10⁷ within 1.5× of the first, on SQLite. Every task has 100
records. A selection is of a random workload of five implementations, an update the transaction that
stores one more record of a random task; both in this process, without HTTP, medians of 300.

    python benchmarks/growth.py [--most 10000000]

Up to a million records each size is imported; beyond, the database of a million is repeated under other
workloads, by SQL, which leaves the same rows in a tenth of the time. 10⁷ records take some 8 GB on disk.

10⁶ records take some three minutes.
"""

from __future__ import annotations

import random

import sqlalchemy as sa
from msgspec.structs import replace

from benchmarks.fixture import make_parser, median_s, new_store
from benchmarks.result import Table
from benchmarks.store import IMPLEMENTATIONS, TARGET, records, workload
from service.records.importer import import_items
from service.selection import candidate
from service.selection.database import RecordDatabase
from service.store import catalogue
from service.store.db import Store
from service.store.tables import best, history, record, task
from strategy.select import select

FIRST = 10_000
PER_TASK = 100
IMPORTED = 1_000_000  # at most
ASKED = 300


def measure(store: Store, size: int) -> tuple[float, float]:
    """Medians of a selection and of an update, in seconds."""
    rng = random.Random(size)
    tasks = size // PER_TASK

    def ask(_: int) -> None:
        asked = workload(rng.randrange(tasks // IMPLEMENTATIONS))
        with store.read() as connection:
            database = RecordDatabase(connection)
            known = candidate.gather(database, asked, TARGET, None, foreign=True, field="workload")
            select(asked, TARGET, database, offered=known)

    new = [replace(r, measured_at=1.6e9 + rng.random()) for r in records(8 * ASKED, tasks, seed=size)][::8]
    return median_s(ask, range(ASKED)), median_s(lambda one: import_items(store, [one]), new)


def fill(store: Store, size: int) -> None:
    """Records of `size // PER_TASK` tasks."""
    part = min(size, IMPORTED)
    import_items(store, records(part, part // PER_TASK))
    for copy in range(1, size // part):
        with store.write() as connection:
            repeat(connection, copy, part // PER_TASK)


def repeat(connection: sa.Connection, copy: int, tasks: int) -> None:
    """The first tasks with all that is theirs once more, under the workloads that follow."""
    count = tasks // IMPLEMENTATIONS
    first = [workload(i) for i in range(count)]
    ids = catalogue.put_workloads(connection, first)
    more = catalogue.put_workloads(connection, [workload(i + copy * count) for i in range(count)])
    places = {ids[w.digest]: more[workload(i + copy * count).digest] for i, w in enumerate(first)}
    rows = connection.execute(sa.select(task).order_by(task.c.id).limit(tasks)).mappings().all()
    offset = copy * tasks
    connection.execute(
        sa.insert(task),
        [
            {**row, "id": row["id"] + offset, "workload_id": places[row["workload_id"]]}
            for row in rows
        ],
    )
    # An event's identity is as good as random.
    for table, changed in (
        (record, {"id": record.c.id + offset * PER_TASK, "identity": sa.func.randomblob(16)}),
        (best, {}), (history, {}),
    ):
        moved = {"task_id": table.c.task_id + offset, **changed}
        query = sa.select(*(moved.get(c.name, c) for c in table.c)).where(
            table.c.task_id <= rows[-1]["id"]
        )
        connection.execute(sa.insert(table).from_select([c.name for c in table.c], query))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, help="records")
    given = parser.parse_args()
    if given.most < FIRST:
        parser.error(f"--most {given.most}: {FIRST:,} at least")
    first: tuple[float, float] | None = None
    table = Table({
        "records": "", "select": "s", "over the first": "×", "record": "s", "over the first record": "×", "goal": "",
    })
    size = FIRST
    with table.saved(peer=f"a database of {FIRST:,} records"):
        while size <= given.most:
            with new_store() as store:
                fill(store, size)
                select_s, update_s = measure(store, size)
            first = first or (select_s, update_s)
            table.add(size, select_s, select_s / first[0], update_s, update_s / first[1], "≤ 1.5×")
            size *= 10


if __name__ == "__main__":
    main()
