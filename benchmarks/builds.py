"""The cost of building on a Dask cluster, and the share of a run that times when artefacts come from elsewhere.

    python benchmarks/builds.py                       # the overhead of a build on loopback
    python benchmarks/builds.py --share               # a run whose artefacts were built beforehand

The overhead: orders of empty work, and of configurations of dense, one after the other, through a scheduler and a
builder of this host; beside the same builds by a child of this process. The cluster's own time for a build is taken
from its answer.

The share: a run is tuned once, so that the builder has all of its artefacts; the same run, with the same seed and a
fresh database, then takes them from there. A configuration that it has not is built by the builder, on the core that
builds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed import LocalCluster

from benchmarks.overhead import tune
from benchmarks.result import save
from strategy.op_strategy import candidates
from strategy.record import Job, JobEntry, Phase, TimingPolicy
from strategy.target import Target
from strategy.workload import Workload
from workers.builder_pool import BuilderPool
from workers.cluster.client import Cluster, secure
from workers.cluster.site import ARTEFACTS
from workers.cpu import assign, parse_cores
from workers.sandbox import ForkServer

BUILDS = 60
GOAL_S, GOAL_PART, GOAL_SHARE = 0.008, 0.10, 0.85
NEVER = threading.Event()


@contextmanager
def cluster(folder: Path, cores: tuple[int, ...]) -> Iterator[str]:
    """A scheduler and a builder with one thread, on these cores; its address."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        with LocalCluster(
            n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None,
            env={ARTEFACTS: str(folder)}, preload="workers.cluster.site",
        ) as found:  # fmt: skip
            os.sched_setaffinity(0, allowed)
            yield found.scheduler_address
    finally:
        os.sched_setaffinity(0, allowed)


def workload() -> Workload:
    types = {"data": "float32[128,768]", "weight": "float32[3072,768]"}
    return Workload.make("dense", types, constants=["weight"])


def jobs(count: int) -> list[Job]:
    """Jobs of one configuration each, spread over the space of the packed dense."""
    target = Target.parse("cpu").with_threads(1)
    (found,) = [c for c in candidates(workload(), target) if c.implementation == "dense_pack.cpu"]
    assert found.space is not None
    configs = list(found.space)
    return [
        Job(
            id=i, run_id=0, workload=workload(), target=target, phase=Phase.SEARCH, policy=TimingPolicy(), seed=0,
            entries=(
                JobEntry(index=0, task_id=0, implementation=found.implementation, version=found.version, config=config),
            ),
        )
        for i, config in enumerate(configs[:: max(1, len(configs) // count)][:count])
    ]  # fmt: skip


def time_each(pool: BuilderPool, given: list[Job]) -> list[tuple[float, float]]:
    """The seconds of each build as its caller sees it, and as its builder does."""
    found = []
    for job in given:
        began = time.perf_counter()
        (built,) = pool.build(job, NEVER)
        assert built.error is None, built.message
        found.append((time.perf_counter() - began, built.build_s))
    return found


def measure_overhead(folder: Path) -> bool:
    cores = assign(parse_cores("cpu"), 1).building
    given = jobs(BUILDS + 2)
    with ForkServer(folder) as server, cluster(folder / "artefacts", cores) as address:
        here = BuilderPool(server, cores, folder / "here", children=1)
        there = BuilderPool(
            server, cores, folder / "there", children=0, cluster=Cluster(address, secure(address, None, None, None))
        )
        again = BuilderPool(
            server, cores, folder / "again", children=0, cluster=Cluster(address, secure(address, None, None, None))
        )
        for name in ("here", "there", "again"):
            (folder / name).mkdir()
        local, remote, stored = (time_each(pool, given)[2:] for pool in (here, there, again))
        for pool in (here, there, again):
            pool.close()
    child_s = statistics.median(seconds for seconds, _ in local)
    own_s = statistics.median(seconds for _, seconds in remote)
    added_s = statistics.median(seconds - inside for seconds, inside in remote)
    stored_s = statistics.median(seconds for seconds, _ in stored)
    rows = [
        ("a build by a child of this process", child_s, None),
        ("a build on the cluster, in its builder", own_s, None),
        ("what the cluster adds to it", added_s, f"≤ {1e3 * GOAL_S:g} ms"),
        ("the same as a share of a build", (added_s / child_s, "%"), f"≤ {GOAL_PART:.0%}"),
        ("an artefact that was built before, from the store", stored_s, None),
    ]
    for what, value, goal in rows:
        shown = f"{value[0]:.1%}" if isinstance(value, tuple) else f"{1e3 * value:.1f} ms"
        print(f"  {shown}  {what}" + (f" (goal {goal})" if goal else ""))
    save({"": "", "median": "s", "goal": ""}, rows, variant="overhead", runs=BUILDS, peer="a child of this process")
    return added_s <= GOAL_S and added_s <= GOAL_PART * child_s


def measure_share(folder: Path, trials: int) -> bool:
    cores = assign(parse_cores("cpu"), 1).building
    rows = []
    with cluster(folder / "artefacts", cores) as address:
        for name in ("first", "second"):
            (folder / name).mkdir()
            given = Cluster(address, secure(address, None, None, None))
            run, wall_s, spent = tune(workload(), 1, trials, folder / name, given)
            share = spent["timing"] / wall_s
            print(f"{name}: {share:.1%} of {wall_s:.1f} s timing, {60 * run.trials_done / wall_s:.0f} trials a minute")
    spent["before the first and after the last job"] = wall_s - sum(spent.values())
    for what, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        goal = f"≥ {GOAL_SHARE:.0%}" if what == "timing" else None
        rows.append((what, seconds / wall_s, seconds / run.trials_done, goal))
        print(f"  {seconds / wall_s:6.1%}  {what}")
    rows.append(("the whole run", None, (wall_s, "s"), None))
    save({"": "", "share of the run": "%", "per trial": "s", "goal": ""}, rows, variant="share")
    return share >= GOAL_SHARE


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--share", action="store_true", help="a run whose artefacts were built beforehand")
    parser.add_argument("--trials", type=int, default=128, help="of the run; default: %(default)s")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plevel-builds-") as folder:
        good = measure_share(Path(folder), given.trials) if given.share else measure_overhead(Path(folder))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
