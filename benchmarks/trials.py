"""Candidates compiled, checked, timed and stored per minute, beside MetaSchedule's `tune_tir`.

    python benchmarks/trials.py                  # dense 512×512×512 float32, two threads, 64 trials
    python benchmarks/trials.py --skip-peer      # plevel alone
    python benchmarks/trials.py --trials 16      # a short look

plevel tunes with its service and worker as processes of their own, with a new database, once with
its default search policy and once with MetaSchedule's (one repeat of at least 100 ms, no early end).
Counted is the search: from the request until its last trial is stored, without the confirmation that
follows, of which MetaSchedule has none. The peer tunes the same product with its local builder and
runner and its own defaults, all of its wall time counted.

The default policy is quicker than the peer's because it measures for less long; that this costs no
trust in the order is shown by Kendall's tau between the order that it gives to 30 candidates and the
order of a confirmation of the same. Needs cloudpickle, psutil and tornado for MetaSchedule.
It takes five minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from benchmarks.fixture import dense, make_parser, natural, need, statuses, tau
from benchmarks.metaschedule import NEEDED, tune_product
from benchmarks.race import OVERRIDES
from benchmarks.result import Table
from strategy.op_strategy import candidates
from strategy.record import (
    CONFIRM_POLICY,
    SEARCH_POLICY,
    Job,
    JobEntry,
    Phase,
    Result,
    RunRequest,
    RunState,
    RunWorkload,
    TimingPolicy,
    estimate,
)
from strategy.select import holds
from strategy.target import Target
from strategy.workload import Workload

SIDE = 512
PEER_POLICY = TimingPolicy(
    warmup_s=0, min_repeat_s=0.1, min_repeats=1, max_repeats=1, spread=1, budget_s=3600
)
GOALS = {"default": 10.0, "peer's": 6.0}
TAU_GOAL = 0.9
BATCH = 8


def main() -> int:
    arguments = _arguments()
    if not arguments.skip_peer:
        need(*NEEDED)
    for name in OVERRIDES:
        os.environ.pop(name, None)
    workload = dense(SIDE, SIDE, SIDE, constant=False)
    target = Target.parse("cpu").with_threads(arguments.threads)
    print(f"{workload} on {target}, {arguments.trials} trials")
    # First, as the peer's tuner can leave processes behind that take time from others.
    agreement = order_agreement(workload, target, arguments.candidates, arguments.seed)
    peer = None if arguments.skip_peer else tune_product((SIDE,) * 3, arguments.threads, arguments.trials)
    table = Table({"": "", "per minute": "", "ratio": "×", "goal": ""})
    if peer is not None:
        table.add("MetaSchedule, local builder and runner", peer, None, None)
    good = True
    for name, policy in (("peer's", PEER_POLICY), ("default", SEARCH_POLICY)):
        rate = search_rate(workload, target, policy, arguments.trials)
        good &= peer is None or rate >= GOALS[name] * peer
        table.add(f"plevel, {name} policy", rate, None if peer is None else rate / peer, f"{GOALS[name]:g}×")
    what = f"Kendall's tau of {arguments.candidates}, search against confirmed"
    table.add(what, (agreement, ""), None, f"{TAU_GOAL}")
    if peer is not None:
        table.save(variant=f"{arguments.threads}-threads", peer="MetaSchedule")
    return 0 if good and agreement >= TAU_GOAL else 1


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--trials", type=int, default=64, help="of each tuner; default: 64")
    parser.add_argument("--threads", type=int, default=2, help="of the kernels; default: 2")
    parser.add_argument("--candidates", type=int, default=30, help="whose order is compared; 30")
    parser.add_argument("--seed", type=natural, default=0, help="of the candidates drawn; default: 0")
    parser.add_argument("--skip-peer", action="store_true", help="no MetaSchedule")
    return parser.parse_args()


def search_rate(workload: Workload, target: Target, policy: TimingPolicy, trials: int) -> float:
    """Trials per minute from the request until the last one is stored."""
    from plevel.client import Client
    from plevel.embedded import Embedded

    asked = (RunWorkload(workload=workload),)
    request = RunRequest(workloads=asked, target=target, trials=trials, search_policy=policy)
    with (
        tempfile.TemporaryDirectory(prefix="plevel-trials-") as folder,
        Embedded(f"sqlite:///{folder}/trials.db", threads=target.threads, logs=Path(folder)) as embedded,
    ):
        embedded.start_worker()
        with Client(embedded.url) as client:
            began = time.monotonic()
            run = client.create_run(request)
            for status in statuses(client, run):
                run = status
                if run.state is not RunState.RUNNING or run.trials_done >= trials:
                    break
            took_s = time.monotonic() - began
            client.cancel(run.id)
    return run.trials_done / took_s * 60


def order_agreement(workload: Workload, target: Target, count: int, seed: int) -> float:
    """Kendall's tau between the search's medians and those of one interleaved confirmation."""
    from workers.builder_pool import BuilderPool
    from workers.cgroup import machine_memory
    from workers.cpu import assign, parse_cores
    from workers.sandbox import ForkServer
    from workers.timing_runner import TimingRunner

    rng = random.Random(seed)
    offered = [
        c for c in candidates(workload, target) if c.space is not None and holds(c, workload)
    ]
    share = -(-count // len(offered))
    drawn = [
        (task, c, config)
        for task, c in enumerate(offered)
        for config in (c.space.sample(rng, share) if c.space is not None else ())
    ]
    rng.shuffle(drawn)
    entries = [
        JobEntry(
            index=i, task_id=t, implementation=c.implementation, version=c.version, config=config
        )
        for i, (t, c, config) in enumerate(drawn[:count])
    ]
    cores = assign(parse_cores("cpu"), target.threads)
    never = threading.Event()
    with tempfile.TemporaryDirectory(prefix="plevel-trials-") as name:
        folder = Path(name)
        with ForkServer(folder) as server:
            pool = BuilderPool(server, cores.building, folder)
            runner = TimingRunner(server, cores.timing, machine_memory() // 2)

            def medians(
                phase: Phase, policy: TimingPolicy, batch: Sequence[JobEntry]
            ) -> dict[int, float]:
                job = Job(
                    id=0, run_id=0, workload=workload, target=target, phase=phase,
                    entries=tuple(batch), policy=policy, seed=seed,
                )
                found: list[Result] = []
                built = [b for b in pool.build(job, never) if b.error is None]
                runner.run(job, built, never, found.append)
                return {r.entry: estimate(r.samples_s).median_s for r in found if r.samples_s}

            searched: dict[int, float] = {}
            best: dict[int, float] = {}
            for first in range(0, len(entries), BATCH):
                batch = [replace(e, best_s=best.get(e.task_id)) for e in entries[first : first + BATCH]]
                found = medians(Phase.SEARCH, SEARCH_POLICY, batch)
                searched |= found
                for e in batch:
                    if e.index in found:
                        best[e.task_id] = min(found[e.index], best.get(e.task_id, found[e.index]))
            confirmed = medians(Phase.CONFIRM, CONFIRM_POLICY, entries)
            pool.close()
            runner.close()
    both = sorted(searched.keys() & confirmed.keys())
    return tau([searched[i] for i in sorted(both, key=confirmed.__getitem__)])


if __name__ == "__main__":
    sys.exit(main())
