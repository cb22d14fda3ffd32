"""The share of a tuning run's wall time that the timing core spends timing, and what the rest goes to.

    python benchmarks/overhead.py                        # BERT-base's feed-forward, 128 trials
    python benchmarks/overhead.py --shape 512x512x512 --threads 2

The service runs as a process of its own, as in `plevel tune`; the worker runs in this process, so
that it can be asked what its timing thread did. The wall time is that from the request to the end
of the run, confirmation included. Time in which the core has nothing to time does not count as
timing. Warming up does: it is part of a measurement.

It takes about two minutes. There is no peer: the goal is a share of 70 %.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.fixture import dense, follow, make_parser
from benchmarks.result import Table
from plevel.client import Client
from plevel.embedded import Embedded
from strategy.op_strategy import Candidate
from strategy.record import RunRequest, RunStatus, RunWorkload
from strategy.workload import Workload
from workers.builder_pool import Elsewhere
from workers.client import Client as WorkerClient
from workers.cpu import assign, describe_device, parse_cores
from workers.daemon import Daemon, describe_worker
from workers.spool import Spool

GOAL = 0.70


def main() -> int:
    arguments = _arguments()
    workload = dense(*arguments.shape)
    with tempfile.TemporaryDirectory(prefix="plevel-overhead-") as folder:
        run, wall_s, spent = tune(workload, arguments.threads, arguments.trials, Path(folder))
    print(f"{workload}, {arguments.threads} thread(s): {run.trials_done} trials in {wall_s:.1f} s")
    table = tabulate(run, wall_s, spent, GOAL)
    table.save(variant=f"{arguments.threads}-threads")
    return 0 if spent["timing"] / wall_s >= GOAL else 1


def tabulate(run: RunStatus, wall_s: float, spent: dict[str, float], goal: float) -> Table:
    """The parts of a run's time, the largest first; `goal` is that of the share that times."""
    table = Table({"": "", "share of the run": "%", "per trial": "s", "goal": ""})
    parts = spent | {"before the first and after the last job": wall_s - sum(spent.values())}
    for what, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        reach = f"≥ {goal:.0%}" if what == "timing" else None
        table.add(what, seconds / wall_s, seconds / run.trials_done, reach)
    table.add("the whole run", None, (wall_s, "s"), None)
    return table


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--shape", type=shape, default="128x3072x768", help="m x n x k; default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="of the kernels; default: 1")
    parser.add_argument("--trials", type=int, default=128, help="default: %(default)s")
    return parser.parse_args()


def shape(text: str) -> tuple[int, int, int]:
    m, n, k = map(int, text.split("x"))
    return m, n, k


def tune(
    workload: Workload,
    threads: int,
    trials: int,
    folder: Path,
    cluster: Elsewhere | None = None,
    candidates: tuple[Candidate, ...] | None = None,
) -> tuple[RunStatus, float, dict[str, float]]:
    """One run: how it ended, its wall time, and what the timing thread's seconds went to."""
    cores = assign(parse_cores("cpu"), threads)
    device = describe_device(cores, threads)
    stop = threading.Event()
    with Embedded(f"sqlite:///{folder}/overhead.db") as embedded:
        worker = WorkerClient(embedded.url, stop, rng=random.Random())
        spool = Spool(folder / "spool", embedded.url)
        info = describe_worker("overhead", device)
        daemon = Daemon(worker, spool, info, cores, stop, cluster=cluster)
        thread = threading.Thread(target=daemon.run, args=(30.0,))
        thread.start()
        try:
            with Client(embedded.url) as client:
                while not client.workers():
                    time.sleep(0.05)
                before = dict(daemon.spent)
                asked = RunWorkload(workload=workload, candidates=candidates)
                request = RunRequest(workloads=(asked,), target=device.target, trials=trials)
                began = time.monotonic()
                run = follow(client, client.create_run(request))
                wall_s = time.monotonic() - began
                spent = {what: s - before.get(what, 0.0) for what, s in daemon.spent.items()}
        finally:
            daemon.drain()
            thread.join()
            stop.set()  # one of its threads may still be waiting for a job
            spool.close()
            worker.close()
    return run, wall_s, spent


if __name__ == "__main__":
    sys.exit(main())
