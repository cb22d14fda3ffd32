"""Trials to the best of three spaces of this host's CPU, beside other tuners' ways; and warm starts.

    python benchmarks/search_cpu.py                        replays benchmarks/data/search_cpu.json.gz
    python benchmarks/search_cpu.py --warm                 the same spaces, with transfer learning
    python benchmarks/search_cpu.py --record --seconds 380 times what is missing, and writes that file
    python benchmarks/search_cpu.py --record --threads 2   the same for another number of threads

The spaces are whole: every valid configuration of dense, conv2d and softmax at one shape was timed, with
one thread. The search is replayed on them in batches of 8, and beside it chance, AutoTVM's tuner and
MetaSchedule's evolution (`peer_search.py`) in plans of 64, as they do it. These are their strategies on our
space: what MetaSchedule reaches in a space of its own is another question (`dense_cpu.py --metaschedule`).

An untuned configuration is written with each space, and is tried first. It is so good on some that it is
searched without it too, from one at random in its place.

Warm, without it: for dense, records of six other shapes, each from a search of 64 trials; for all three, 300
configurations at random of the same workload with AVX2 in place of what this host has, and as many with
another number of threads (search_cpu_threads.json.gz). What it costs to record: half an hour of one core; five
minutes with other threads, which need their cores to themselves. The least of five interleaved bursts
counts, so with one thread other programs may run.

A replay takes some minutes.
"""
# Over 300 lines: one experiment over recorded and live searches.

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fixture, result
from benchmarks.peer_search import AutoTVM, Chance, MetaSchedule, Table, Tuner
from benchmarks.recording import (
    DATA,
    Digits,
    Key,
    Log,
    Recording,
    Task,
    or_nan,
    pack,
    record,
    unpack,
)

FILE, THREADS_FILE = DATA / "search_cpu.json.gz", DATA / "search_cpu_threads.json.gz"
NAMES = ("dense 37×64×512", "conv2d 32→64@28,3×3", "softmax 8×8192")
TRIALS = 400
BATCH = 8
WITHIN = (1.10, 1.05, 1.01)
AT = (32, 64, 128)
OTHER = "llvm -mcpu=x86-64-v3"
OTHER_RECORDS = 300
SEVENTH = (37, 64, 512)
SIX = [(16, 64, 256), (32, 128, 512), (64, 64, 256), (24, 96, 384), (48, 32, 512), (100, 64, 1024)]
SIX_TRIALS = 64


def dense(m: int, n: int, k: int, target: Any) -> Task:
    return Task(fixture.dense(m, n, k), target, "dense_pack.cpu")


def conv2d(channels: int, out_channels: int, size: int, target: Any) -> Task:
    from strategy.workload import Workload

    types = {"data": f"float32[1,{channels},{size},{size}]", "weight": f"float32[{out_channels},{channels},3,3]"}
    workload = Workload.make("conv2d", types, {"padding": 1}, ["weight"])
    return Task(workload, target, "conv2d_nchw_spatial_pack.cpu")


def softmax(rows: int, extent: int, target: Any) -> Task:
    from strategy.workload import Workload

    return Task(Workload.make("softmax", {"data": f"float32[{rows},{extent}]"}), target, "softmax_row.cpu")


def spaces(target: Any) -> dict[str, Task]:
    tasks = dense(*SEVENTH, target), conv2d(32, 64, 28, target), softmax(8, 8192, target)
    return dict(zip(NAMES, tasks, strict=True))


def record_all(path: Path, seconds: float) -> bool:
    """Time what the log lacks; write the file once it is whole."""
    from strategy.target import Target

    here = Target.parse("cpu").with_threads(1)
    other = Target.parse(OTHER).with_threads(1)
    log, until = Log(path), time.monotonic() + seconds
    found: dict[str, Recording] = {}
    for name, task in spaces(here).items():
        keys = _all(task)
        random.Random(0).shuffle(keys)
        if not record(log, task, keys, until):
            return _missing(log, task, keys)
        found[name] = log.recording(task)
    for name, task in spaces(other).items():
        keys = task.draw(OTHER_RECORDS, 0)
        if not record(log, task, keys, until):
            return _missing(log, task, keys)
        found[f"{name} AVX2"] = log.recording(task)
    for shape in SIX:
        task = dense(*shape, here)
        tuned = _tune(log, task, until)
        if tuned is None:
            return False
        found[f"dense {'×'.join(map(str, shape))}"] = tuned
    pack(FILE, found)
    print(f"{FILE}: {FILE.stat().st_size / 1024:.0f} KiB")
    return True


def record_threads(path: Path, threads: int, seconds: float) -> bool:
    """Time some configurations of each space with so many threads; write the file once all are there."""
    from strategy.target import Target

    # Before TVM starts; its idle threads are not to keep the cores from what is timed next.
    os.environ |= {"TVM_NUM_THREADS": str(threads), "TVM_THREAD_POOL_SPIN_COUNT": "4000"}
    log, until = Log(path), time.monotonic() + seconds
    found: dict[str, Recording] = {}
    for name, task in spaces(Target.parse("cpu").with_threads(threads)).items():
        keys = task.draw(OTHER_RECORDS, 0)
        if not record(log, task, keys, until):
            return _missing(log, task, keys)
        found[name] = log.recording(task)
    pack(THREADS_FILE, found)
    print(f"{THREADS_FILE}: {THREADS_FILE.stat().st_size / 1024:.0f} KiB")
    return True


def _missing(log: Log, task: Task, keys: Sequence[Key]) -> bool:
    known = len(log.recording(task).seconds)
    print(f"{task.name}: {known} of {len(keys)}; start it again for the rest")
    return False


def _all(task: Task) -> list[Key]:
    from service.search.pool import Candidates

    assert task.space is not None
    table = Candidates(task.space, np.random.default_rng(0)).table
    assert table is not None
    return [tuple(row) for row in table.tolist()]


def _tune(log: Log, task: Task, until: float) -> Recording | None:
    """A search of some trials, which goes on from what the log knows of it; None where time is up."""
    tuner = Ours(task, 0)
    done: list[Key] = []
    while len(done) < SIX_TRIALS:
        keys = tuner.ask(BATCH)
        if not record(log, task, keys, until):
            return None
        known = log.recording(task).seconds
        tuner.tell(keys, [or_nan(known[k]) for k in keys])
        done += keys
    whole = log.recording(task)
    return Recording(task, {k: whole.seconds[k] for k in done}, whole.doubt)


class Ours:
    """plevel's search, as the service drives it."""

    def __init__(self, task: Task, seed: int, sources: Sequence[Recording] = ()) -> None:
        from service.search.child import InlineModel
        from service.search.search import Search
        from service.search.transfer import Source

        assert task.space is not None
        self._task = task
        told = []
        for r in sources:
            configs, seconds = [r.task.config(k) for k in r.seconds], list(r.seconds.values())
            same = r.task.workload == task.workload
            told.append(Source(configs, seconds, *(() if same else (r.task.workload, "", r.task.space))))
        self._search = Search(task.space, seed, InlineModel(), told, workload=task.workload)

    def ask(self, n: int) -> list[Key]:
        assert self._task.space is not None
        return [self._task.space.digits(c) for c in self._search.ask(n)]

    def tell(self, keys: Sequence[Key], seconds: Sequence[float]) -> None:
        for key, s in zip(keys, seconds, strict=True):
            self._search.tell(self._task.config(key), None if np.isnan(s) else s)


class _Rows:
    """A tuner of keys as one of rows."""

    def __init__(self, tuner: Ours, keys: Sequence[Key]) -> None:
        self._tuner, self._keys = tuner, keys
        self._row = {key: i for i, key in enumerate(keys)}

    def ask(self, n: int) -> list[int]:
        return [self._row[key] for key in self._tuner.ask(n)]

    def tell(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        self._tuner.tell([self._keys[r] for r in rows], seconds)


class Replay:
    """A whole space, on which tuners are run."""

    def __init__(self, recording: Recording) -> None:
        from service.search.features import SpaceFeatures

        assert recording.task.space is not None
        self.recording = recording
        self.keys = list(recording.seconds)
        self.seconds = np.array([or_nan(t) for t in recording.seconds.values()])
        digits: Digits = np.array(self.keys, dtype=np.int32)
        self.table = Table(digits, SpaceFeatures(recording.task.space).matrix(digits))

    def ours(self, seed: int, sources: Sequence[Recording] = ()) -> Tuner:
        return _Rows(Ours(self.recording.task, seed, sources), self.keys)

    def ours_unaided(self, seed: int, sources: Sequence[Recording] = ()) -> Tuner:
        """The same, with a configuration at random in the place of the fallback."""
        task = self.recording.task
        space = task.space
        assert space is not None
        anywhere = task.config(self.keys[random.Random(seed).randrange(len(self.keys))])
        other = type(space)(space.knobs, space.constraints, space.derived, anywhere)
        return _Rows(Ours(replace(task, recorded=other), seed, sources), self.keys)

    def run(self, tuner: Tuner) -> list[float]:
        """Return the ratio of the best so far to the best of all, after each trial."""
        best, curve = np.inf, []
        while len(curve) < TRIALS and (rows := tuner.ask(min(BATCH, TRIALS - len(curve)))):
            seconds = self.seconds[rows].tolist()
            tuner.tell(rows, seconds)
            for s in seconds:
                best = min(best, np.inf if np.isnan(s) else s)
                curve.append(best / np.nanmin(self.seconds))
        return curve


def trials_to(curve: Sequence[float], ratio: float) -> float:
    return next((i + 1 for i, x in enumerate(curve) if x <= ratio), np.inf)


def add(table: result.Table, name: str, way: str, curves: Sequence[Sequence[float]]) -> list[float]:
    """A row: medians of the trials within each ratio, which are returned, and of the best after some trials."""
    to = [statistics.median(trials_to(c, ratio) for c in curves) for ratio in WITHIN]
    at = [statistics.median(c[min(n, len(c)) - 1] for c in curves) for n in AT]
    table.add(name, way, *(f">{TRIALS}" if np.isinf(trials) else trials for trials in to), *at)
    return to


def compare(table: result.Table, found: dict[str, Recording], seeds: int, only: str) -> None:
    for name, replay in _wanted(found, only):
        ways: dict[str, Callable[[int], Tuner]] = {
            "plevel": replay.ours,
            "plevel, its fallback not told": replay.ours_unaided,
            "MetaSchedule's evolution": lambda s, r=replay: MetaSchedule(r.table, s),
            "AutoTVM's XGBoost and annealing": lambda s, r=replay: AutoTVM(r.table, s),
            "chance": lambda s, r=replay: Chance(r.table, s),
        }
        for way, make in ways.items():
            add(table, name, way, [replay.run(make(seed)) for seed in range(seeds)])


def compare_warm(table: result.Table, found: dict[str, Recording], seeds: int, only: str) -> None:
    six = [found[f"dense {'×'.join(map(str, shape))}"] for shape in SIX]
    other_threads = unpack(THREADS_FILE) if THREADS_FILE.exists() else {}
    for name, replay in _wanted(found, only):
        ways = {"cold": [], "from AVX2": [found[f"{name} AVX2"]]}
        if name in other_threads:
            threads = other_threads[name].task.target.threads
            ways[f"from {threads} threads"] = [other_threads[name]]
        if name.startswith("dense"):
            ways["from six other shapes"] = six
        to = {
            way: add(table, name, way, [replay.run(replay.ours_unaided(seed, sources)) for seed in range(seeds)])
            for way, sources in ways.items()
        }
        for way in list(ways)[1:]:
            both = zip(WITHIN, to[way], to["cold"], strict=True)
            shares = [f"{ratio - 1:.0%} in {warm / cold:.2f}" for ratio, warm, cold in both]
            print(f"  {way}: within {', '.join(shares)} of the trials of a cold start")


def _wanted(found: dict[str, Recording], only: str) -> Any:
    for name in (n for n in found if n in NAMES and only in n):
        replay = Replay(found[name])
        near = np.nanmean(replay.seconds <= 1.05 * np.nanmin(replay.seconds))
        print(
            f"{name}: {len(replay.keys)} configurations, {np.isnan(replay.seconds).sum()} of them fail, "
            f"{near:.1%} within 5 % of the best ({np.nanmin(replay.seconds) * 1e6:.1f} µs; median "
            f"{np.nanmedian(replay.seconds) * 1e6:.1f} µs)"
        )
        yield name, replay


def main() -> int:
    parser = fixture.make_parser(__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--seconds", type=float, default=3600, help="after which recording stops")
    parser.add_argument("--log", type=Path, default=Path("build/search_cpu.jsonl"), help="of the recording")
    parser.add_argument("--threads", type=int, default=1, help="to record with; others are sources only")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="spaces whose name contains this")
    given = parser.parse_args()
    if not any(given.only in name for name in NAMES):
        parser.error(f"--only {given.only}: part of {', '.join(NAMES)}")
    if given.record:
        if given.threads == 1:
            return 0 if record_all(given.log, given.seconds) else 3
        return 0 if record_threads(given.log, given.threads, given.seconds) else 3
    table = result.Table({
        "space": "", "start" if given.warm else "search": "", **{f"to {ratio - 1:.0%}": "" for ratio in WITHIN},
        **{f"best after {n}": "×" for n in AT},
    })
    with table.saved(
        keep=not given.only, variant="warm" if given.warm else "", runs=given.seeds,
        peer="a cold start" if given.warm else "the strategies of AutoTVM and MetaSchedule, and chance",
    ):
        (compare_warm if given.warm else compare)(table, unpack(FILE), given.seeds, given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
