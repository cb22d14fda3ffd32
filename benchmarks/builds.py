"""The cost of building on a Dask cluster, and the share of a run that times when artefacts come from elsewhere.

    python benchmarks/builds.py                       # the overhead of a build on loopback
    python benchmarks/builds.py --share               # a run whose artefacts were built beforehand
    python benchmarks/builds.py --cubins 200          # by nvcc, on this host and on a cluster of it

The overhead: configurations of dense, through a scheduler and a builder of this host, which are processes of their own;
beside the same builds by a child of this process. One after the other, each waits for its artefact to come back before
the next is ordered; of many that are ordered at once, a builder has the next before it is done, as in a run. The
cluster's own time for a build is taken from its answer.

The share: all configurations of a part of the space, three values a knob, are built beforehand; a run within that part
then takes them from the builder, on the core that builds.

The cubins: an nvcc each, by as many children of this process as there are cores, and by as many builders.

The overhead takes a minute or two, the share five, 200 cubins ten.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from distributed import Client
from msgspec.structs import replace

from benchmarks.fixture import dense, make_parser, running
from benchmarks.overhead import tabulate, tune
from benchmarks.result import Table
from strategy.op_strategy import Candidate, candidates
from strategy.record import Job, JobEntry, Phase, TimingPolicy
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from workers.builder_pool import BuilderPool
from workers.cluster.client import Cluster, secure
from workers.cpu import assign, parse_cores
from workers.sandbox import ForkServer

BUILDS = 60
START_S = 60.0
# Implementations of the run whose artefacts are built beforehand.
NARROWED = ("dense_pack.cpu", "dense_large_m.cpu", "dense_cblas.cpu")
GOAL_S, GOAL_PART, GOAL_SHARE = 0.008, 0.10, 0.85
NEVER = threading.Event()
WORKLOAD = dense(128, 3072, 768)


@contextmanager
def cluster(folder: Path, cores: tuple[int, ...], builders: int = 1) -> Iterator[str]:
    """A scheduler and builders with one thread each, processes on these cores; the scheduler's address.

    Args:
        folder: for artefacts.
    """
    file = folder / "scheduler.json"
    folder.mkdir()
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    with ExitStack() as stack, (folder / "log").open("w") as log:

        def start(command: list[str]) -> None:
            stack.enter_context(running(command, stdout=log, stderr=log))

        try:
            start([*command, "--no-dashboard", "--scheduler-file", str(file)])
            _wait_for(lambda: file.exists() and file.read_text().endswith("}"), "the scheduler")
            address = str(json.loads(file.read_text())["address"])
            builder = [sys.executable, "-m", "plevel", "builder", "--scheduler", address, "--threads", "1"]
            for _ in range(builders):
                start([*builder, "--artefacts", str(folder / "artefacts")])
        finally:
            os.sched_setaffinity(0, allowed)
        with Client(address) as client:
            client.wait_for_workers(builders, timeout=START_S)
        yield address


def _wait_for(ready: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + START_S
    while not ready():
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not start in {START_S:g} s")
        time.sleep(0.05)


def connect(address: str) -> Cluster:
    return Cluster(address, secure(address, None, None, None))


def one_job(found: Candidate, target: Target, configs: Sequence[Config]) -> Job:
    """A job of these configurations of an implementation."""
    entries = [
        JobEntry(index=i, task_id=0, implementation=found.implementation, version=found.version, config=config)
        for i, config in enumerate(configs)
    ]
    return Job(
        id=0, run_id=0, workload=WORKLOAD, target=target, phase=Phase.SEARCH, seed=0, entries=tuple(entries),
        policy=TimingPolicy(),
    )


def spread(implementation: str, target: Target, count: int) -> Job:
    """A job of so many configurations, spread over the space of an implementation."""
    (found,) = [c for c in candidates(WORKLOAD, target) if c.implementation == implementation]
    assert found.space is not None
    configs = list(found.space)
    return one_job(found, target, configs[:: max(1, len(configs) // count)][:count])


def narrow(found: Candidate) -> Candidate:
    """The candidate with the part of its space that is around the fallback: three values a knob."""
    if found.space is None:
        return found
    knobs = []
    for k in found.space.knobs:
        usual = k.values.index(found.space.fallback[k.name])
        near = sorted(range(len(k.values)), key=lambda place, usual=usual: abs(place - usual))[:3]
        knobs.append(Knob(k.name, [k.values[place] for place in sorted(near)], k.kind))
    space = ConfigSpace(knobs, found.space.constraints, found.space.derived, found.space.fallback)
    return replace(found, space=space)


def time_each(pool: BuilderPool, given: Job) -> list[tuple[float, float]]:
    """The seconds of each build, the first two excepted: as its caller sees it, and as its builder does."""
    found = []
    for entry in given.entries:
        began = time.perf_counter()
        (built,) = pool.build(replace(given, entries=(entry,)), NEVER)
        assert built.error is None, built.message
        found.append((time.perf_counter() - began, built.build_s))
    return found[2:]


def time_together(pool: BuilderPool, given: Job) -> tuple[float, float]:
    """The mean seconds of a build of many that are ordered at once: the wall's, and those of their builder."""
    began = time.perf_counter()
    built = pool.build(given, NEVER)
    wall_s = time.perf_counter() - began
    assert all(one.error is None for one in built), next(one.message for one in built if one.error)
    return wall_s / len(built), statistics.fmean(one.build_s for one in built)


def measure_overhead(folder: Path) -> bool:
    cores = assign(parse_cores("cpu"), 1).building
    both = spread("dense_pack.cpu", Target.parse("cpu").with_threads(1), 2 * BUILDS + 2)
    first, second = (replace(both, entries=part) for part in (both.entries[:-BUILDS], both.entries[-BUILDS:]))
    with ForkServer(folder) as server, cluster(folder / "cluster", cores) as address:

        def pool(name: str, children: int, there: Cluster | None = None) -> BuilderPool:
            (folder / name).mkdir()
            return BuilderPool(server, cores, folder / name, children=children, cluster=there)

        here, there, again = pool("here", 1), pool("there", 0, connect(address)), pool("again", 0, connect(address))
        local, remote, stored = (time_each(one, first) for one in (here, there, again))
        together_s, inside_s = time_together(there, second)
        for one in (here, there, again):
            one.close()
    child_s = statistics.median(seconds for seconds, _ in local)
    own_s = statistics.median(seconds for _, seconds in remote)
    alone_s = statistics.median(seconds - inside for seconds, inside in remote)
    added_s = together_s - inside_s
    stored_s = statistics.median(seconds for seconds, _ in stored)
    table = Table({"": "", "median": "s", "goal": ""})
    table.add("a build by a child of this process", child_s, None)
    table.add("a build on the cluster, in its builder", own_s, None)
    table.add("what the cluster adds to a single build", alone_s, None)
    table.add("what it adds to each of many builds", added_s, f"≤ {1e3 * GOAL_S:g} ms")
    table.add("the same as a share of a build", (added_s / child_s, "%"), f"≤ {GOAL_PART:.0%}")
    table.add("an artefact that was built before, from the store", stored_s, None)
    table.save(variant="overhead", runs=BUILDS, peer="a child of this process")
    return added_s <= GOAL_S and added_s <= GOAL_PART * child_s


def measure_share(folder: Path, trials: int) -> bool:
    cores = assign(parse_cores("cpu"), 1).building
    target = Target.parse("cpu").with_threads(1)
    offered = tuple(narrow(c) for c in candidates(WORKLOAD, target) if c.implementation in NARROWED)
    with cluster(folder / "cluster", cores) as address, ForkServer(folder) as server:
        (folder / "first").mkdir()
        pool = BuilderPool(server, cores, folder / "first", children=0, cluster=connect(address))
        count = 0
        for c in offered:
            count += len(pool.build(one_job(c, target, list(c.space or [Config({})])), NEVER))
        pool.close()
        print(f"{count} artefacts are built")
        (folder / "second").mkdir()
        stored = set((folder / "cluster" / "artefacts").iterdir())
        run, wall_s, spent = tune(WORKLOAD, 1, trials, folder / "second", connect(address), offered)
        built = set((folder / "cluster" / "artefacts").iterdir()) - stored
    if built:
        raise SystemExit(f"{len(built)} artefacts were built by the run: those built before answer other orders")
    table = tabulate(run, wall_s, spent, GOAL_SHARE)
    table.add("trials per minute", None, (60 * run.trials_done / wall_s, ""), None)
    table.save(variant="share")
    return spent["timing"] / wall_s >= GOAL_SHARE


def measure_cubins(folder: Path, count: int) -> bool:
    cores = tuple(sorted(os.sched_getaffinity(0)))
    both = spread("dense_tiled.cuda", Target.parse("cuda -arch=sm_90"), count + len(cores))
    first, given = (replace(both, entries=part) for part in (both.entries[count:], both.entries[:count]))
    table = Table({f"{count} cubins": "", "in": "s", "per minute": "", "one build": "s"})

    def measure(what: str, children: int, there: Cluster | None = None) -> None:
        place = folder / str(children)
        place.mkdir()
        with ForkServer(folder) as server:
            pool = BuilderPool(server, cores, place, forks=True, children=children, cluster=there)
            time_together(pool, first)  # children start, and nvcc is read from the disk
            wall_s, own_s = time_together(pool, given)
            pool.close()
        table.add(what, (count * wall_s, "s"), 60 / wall_s, own_s)

    with table.saved(variant="cubins", peer="one host's builder"):
        os.environ["XDG_CACHE_HOME"] = str(folder / "here")  # cubins are kept there
        measure(f"a builder of this host, {len(cores)} children", len(cores))
        os.environ["XDG_CACHE_HOME"] = str(folder / "there")
        with cluster(folder / "cluster", cores, len(cores)) as address:
            measure(f"{len(cores)} builders of a cluster", 0, connect(address))
    return True


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--share", action="store_true", help="a run whose artefacts were built beforehand")
    parser.add_argument("--cubins", type=int, metavar="N", help="so many cubins, by this host and by a cluster of it")
    parser.add_argument("--trials", type=int, default=128, help="of the run; default: %(default)s")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plevel-builds-") as folder:
        if given.cubins:
            good = measure_cubins(Path(folder), given.cubins)
        else:
            good = measure_share(Path(folder), given.trials) if given.share else measure_overhead(Path(folder))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
