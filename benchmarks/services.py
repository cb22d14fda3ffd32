"""Two services on one PostgreSQL beside one: what they cost each other.

Each service has as many of the simulated workers of `farm.py`, in a process of their own, as a proxy would give it.
Where services, database and load share a few cores, two services cannot lease twice as many jobs as one. So beside the
rate stand the processor time of a job, and the limit of the cores: the rate at which that time would take all of them.
The limit for two services, divided by the leases of one, is the largest ratio that this machine allows. The shares of
waits for locks and for the disk in what sessions of the database do tell whether more cores would help.

    python benchmarks/services.py --postgresql URL [--seconds S]

An empty database is needed, of a server on this host. It takes a minute.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import sqlalchemy as sa
import uvloop

from benchmarks.farm import SETTINGS, WARM_UP_S, fill, round_trips, spread
from benchmarks.fixture import make_parser, serve
from benchmarks.result import Table
from service.store.db import Store

EVERY_S = 0.01
_SESSIONS = sa.text(
    "SELECT coalesce(wait_event_type, 'none') FROM pg_stat_activity WHERE datname = current_database() "
    "AND state = 'active' AND pid <> pg_backend_pid()"
)
_SERVER = sa.text("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
_DONE = sa.text("SELECT count(*) FROM record")


@contextmanager
def watched(store: Store) -> Iterator[Counter[str]]:
    """Count what sessions wait for, at intervals, until the block ends."""
    seen: Counter[str] = Counter()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(EVERY_S):
            with store.read() as c:
                seen.update(c.scalars(_SESSIONS))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def processor_s(processes: Iterable[int]) -> dict[int, float]:
    """The processor time that each process has taken."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = {pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in processes}
    return {pid: (int(fields[11]) + int(fields[12])) / ticks for pid, fields in stats.items()}


def load(url: str, batch: int, seconds: float) -> tuple[float, list[float], float]:
    """The jobs a second of one service's workers, the seconds of each lease, and the processor time."""
    began = time.process_time()
    rate, trips = uvloop.run(round_trips(url, batch, seconds, name=f"{url}-"))
    return rate, trips.leases_s, time.process_time() - began


def measure(table: Table, database: str, services: int, batch: int, seconds: float) -> None:
    fill(database, jobs=int((seconds + WARM_UP_S) * services * (8000 if batch > 1 else 4000)))
    store = Store(database)
    with store.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as c:
        c.execute(sa.text("VACUUM ANALYZE"))  # no measurement inherits the rows of the one before

    def look() -> tuple[int, dict[int, float]]:
        """The number of records, and the processor time of the server's processes."""
        with store.read() as c:
            return c.scalar(_DONE) or 0, processor_s(c.scalars(_SERVER).all())

    with ExitStack() as stack:
        urls, pids = zip(*(stack.enter_context(serve(database, **SETTINGS)) for _ in range(services)), strict=True)
        (done, server), served = look(), processor_s(pids)
        loads = stack.enter_context(ProcessPoolExecutor(services, multiprocessing.get_context("spawn")))
        with watched(store) as seen:
            loaded = list(loads.map(load, urls, [batch] * services, [seconds] * services))
        (all_done, server_now), served_now = look(), processor_s(pids)
    store.close()
    jobs = all_done - done
    took_s = [sum(now.values()) - sum(before.get(pid, 0.0) for pid in now)
              for now, before in ((served_now, served), (server_now, server))]
    took_s.append(sum(load_s for _, _, load_s in loaded))
    limit = round(len(os.sched_getaffinity(0)) * jobs / sum(took_s))
    name = f"{services} service{'s' if services > 1 else ''}, batches of {batch}"
    leases_s = [lease_s for _, times_s, _ in loaded for lease_s in times_s]
    waits = [sum(seen[k] for k in kinds) / max(1, seen.total()) for kinds in (("Lock", "LWLock"), ("IO",))]
    rate = round(sum(rate for rate, _, _ in loaded))
    table.add(
        name, (rate, "jobs/s"), *spread(leases_s), *(time_s / jobs for time_s in took_s), (limit, "jobs/s"), *waits,
    )


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--postgresql", metavar="URL", required=True, help="an empty database")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    return parser.parse_args()


def main() -> None:
    options = parse()
    table = Table({
        "": "", "leases": "", "p50": "s", "p99": "s", "services, a job": "s", "PostgreSQL, a job": "s",
        "load, a job": "s", "limit of the cores": "", "waits for locks": "%",
        "waits for the disk": "%",
    })
    with table.saved():
        for batch in (8, 1):
            for services in (1, 2):
                measure(table, options.postgresql, services, batch, options.seconds)


if __name__ == "__main__":
    main()
