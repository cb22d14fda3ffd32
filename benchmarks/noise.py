"""The spread of measurements through the whole path, beside a bare timing loop in the same minutes.

Goals: the medians of one kernel measured 50 times spread no wider than 1.2× those of the bare loop (60
repeats each, in a process of its own on the same core); ten kernels whose work differs in steps of 3 %
are ranked with Kendall's tau ≥ 0.9, also while the other cores compile; and the median of a kernel
bound by one core moves by no more than 4 % while they do. Of configurations timed while a neighbour takes
the same core in bursts, what is chosen is more than 5 % slower than the fastest in 1 % of the rounds at
most, though the slower has the higher plevel; beside it stands a rule whose intervals are not bounded.
The medians of a kernel bound by one core, and of one that reads its weight from the last-level cache, move by no more
than 4 % while the other cores check libraries, as a worker does with those of the next job: of the largest product
whose checks it has there, up to BERT-base's feed-forward.

    python benchmarks/noise.py [--sessions N] [--rounds N] [--only path|busy|neighbour]

The path takes five minutes, the busy neighbour a quarter of an hour, the one that checks two minutes.
"""
# Over 300 lines: one experiment, and the disturbances that it makes.

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import msgspec

from benchmarks.fixture import dense, make_parser, running, tau
from benchmarks.result import Table
from service.tuning.final import CONFIRM_SESSIONS, MORE_SESSIONS
from strategy.op_strategy import Candidate, candidates
from strategy.record import Estimate, Job, JobEntry, Phase, Result, TimingPolicy, estimate
from strategy.select import Level, Measured, choose, unsettled
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload
from workers.builder import Built
from workers.builder_pool import BuilderPool
from workers.cgroup import machine_memory
from workers.checker import Checker
from workers.cpu import assign, parse_cores, timing_lock
from workers.sandbox import ForkServer
from workers.timing_runner import TimingRunner
from workers.turn import Turn

TARGET = Target.parse("cpu").with_threads(1)
KERNELS = 10
STEP = 1.03
REPEATS = 60
QUIET = 4  # finals before the neighbour comes, and after
# A final's, with a sixth of its time, so that many rounds fit into minutes.
FINAL = TimingPolicy(min_repeats=20, max_repeats=200, spread=0.01, budget_s=0.1)
NEVER = threading.Event()
NEIGHBOUR_ROUNDS = 9
WIDEST = 3072  # BERT-base's feed-forward

_BARE = """
import json, sys, time
from pathlib import Path
import os
os.sched_setaffinity(0, {int(sys.argv[2])})
import numpy as np, tvm
from strategy.compile.artefact import load
from strategy.signature import Role
artefact = load(Path(sys.argv[1]))
arguments = []
for a in artefact.arguments:
    shape = a.tensor.concrete_shape
    array = np.random.default_rng(0).standard_normal(shape).astype(a.tensor.dtype)
    arguments.append(artefact.prepare(a, tvm.runtime.tensor(array)))
print("ready", flush=True)
for line in sys.stdin:
    calls = int(line)
    samples = []
    for _ in range(60 + 3):
        began = time.perf_counter()
        for _ in range(calls):
            artefact.main(*arguments)
        samples.append((time.perf_counter() - began) / calls)
    print(json.dumps(samples[3:]), flush=True)
"""


def kernel(work: int) -> Workload:
    """A product whose work is in proportion to `work`, and whose data stays the same size per row."""
    return dense(work, 64, 256)


def job_of(number: int, workload: Workload) -> Job:
    found = next(c for c in candidates(workload, TARGET) if c.implementation == "dense_pack.cpu")
    config = found.space.fallback if found.space is not None else Config()
    entry = JobEntry(
        index=0, task_id=number, implementation=found.implementation, version=found.version,
        config=config,
    )
    return Job(
        id=number, run_id=1, workload=workload, target=TARGET, phase=Phase.SEARCH, entries=(entry,),
        policy=TimingPolicy(min_repeats=REPEATS, max_repeats=REPEATS, budget_s=2.0), seed=1,
    )


class Bench:
    """The builders and the runner as a worker has them."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self.cores = assign(parse_cores("cpu"), 1)
        self.pool = BuilderPool(server, self.cores.building, folder)
        self.runner = TimingRunner(server, self.cores.timing, machine_memory() // 2)
        self.retimed = 0

    def build(self, job: Job) -> Built:
        (built,) = self.pool.build(job, NEVER)
        assert built.error is None, built.message
        return built

    def measure(self, job: Job) -> float:
        results: list[Result] = []
        with timing_lock():
            conditions = self.runner.run(job, [self.build(job)], NEVER, results.append)
        self.retimed += len(conditions.references) > 2
        assert results[0].error is None, results[0].message
        return statistics.median(results[0].samples_s)


def spread(medians: list[float]) -> float:
    """The width of the middle 90 % of medians, over their median."""
    cuts = statistics.quantiles(medians, n=20)
    return (cuts[-1] - cuts[0]) / statistics.median(medians)


@contextmanager
def compiling(cores: tuple[int, ...]) -> Iterator[None]:
    """Keep these cores busy with a compiler's kind of work."""
    code = (
        "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\n"
        "import ast, inspect, typing\nsource = inspect.getsource(typing)\n"
        "while True: compile(ast.parse(source), 'x', 'exec')"
    )
    with ExitStack() as stack:
        for core in cores:
            stack.enter_context(running([sys.executable, "-c", code, str(core)]))
        yield


def bursting(core: int) -> AbstractContextManager[object]:
    """Take this core in bursts of 1 to 100 ms, a third of the time."""
    code = (
        "import os, sys, time, random; os.sched_setaffinity(0, {int(sys.argv[1])})\n"
        "while True:\n"
        "    burst = 10 ** random.uniform(-3, -1)\n"
        "    end = time.perf_counter() + burst\n"
        "    while time.perf_counter() < end: pass\n"
        "    time.sleep(random.expovariate(1 / (2 * burst)))"
    )
    return running([sys.executable, "-c", code, str(core)])


def final_of(workload: Workload, configs: Sequence[Config], number: int) -> Job:
    entries = tuple(
        msgspec.structs.replace(job_of(0, workload).entries[0], index=i, config=config)
        for i, config in enumerate(configs)
    )
    return msgspec.structs.replace(
        job_of(number, workload), phase=Phase.CONFIRM, entries=entries, policy=FINAL, seed=number
    )


def time_final(path: Bench, job: Job) -> dict[int, tuple[float, ...]]:
    found: list[Result] = []
    with timing_lock():
        path.runner.run(job, path.pool.build(job, NEVER), NEVER, found.append)
    failed = [f"entry {r.entry}: {r.error}: {r.message}" for r in found if r.error is not None]
    if failed:
        raise RuntimeError("; ".join(failed))
    return {r.entry: r.samples_s for r in found}


def choose_busily(path: Bench, rounds: int) -> tuple[float, float, list[float], float]:
    """The shares of rounds in which plevel's rule, and the unbounded one, chose something over 5 % slower.

    And the ratios of all to the fastest, as a quiet core has them, and how much their times there changed.
    """
    workload = kernel(256)
    space = next(c for c in candidates(workload, TARGET) if c.implementation == "dense_pack.cpu").space
    assert space is not None
    drawn = final_of(workload, space.sample(random.Random(0), 24), 0)
    first = _medians(time_quietly(path, drawn, QUIET))
    order = sorted(first, key=lambda i: first[i])
    slower = [i for i in order if first[i] > 1.1 * first[order[0]]][:3]
    kept = [drawn.entries[i].config for i in (order[0], *slower)]
    job = final_of(workload, kept, 1)
    before = time_quietly(path, job, QUIET)
    known = [Candidate(str(i), "1", 10 + i) for i in range(len(kept))]
    chosen: list[int] = []
    unbounded: list[int] = []
    with bursting(path.cores.timing[0]):
        for _ in range(rounds):
            pooled: dict[int, list[float]] = {i: [] for i in range(len(kept))}
            names = {str(i) for i in pooled}
            for session in range(CONFIRM_SESSIONS + MORE_SESSIONS):
                entries = tuple(e for e in job.entries if str(e.index) in names)
                asked = msgspec.structs.replace(job, entries=entries)
                for i, samples in time_final(path, asked).items():
                    pooled[i] += samples
                found = {str(i): estimate(s) for i, s in pooled.items()}
                if session < CONFIRM_SESSIONS - 1:
                    continue
                if session == CONFIRM_SESSIONS - 1:
                    unbounded.append(choose_unbounded(found))
                names = unsettled(found)
                if not names:
                    break
            measured = [
                Measured(implementation=n, version="1", config=Config(), level=Level.MODEL, estimate=e)
                for n, e in found.items()
            ]
            chosen.append(int(choose(workload, TARGET, known, measured).implementation))
    after = time_quietly(path, job, QUIET)
    times = _medians({i: [*before[i], *after[i]] for i in before})
    ratios = [times[i] / min(times.values()) for i in sorted(times)]
    # A host that changes meanwhile is no truth to compare with.
    early, late = _medians(before), _medians(after)
    moved = max(abs(late[i] / early[i] - 1) for i in early)
    return _share(ratios, chosen), _share(ratios, unbounded), ratios, moved


def _share(ratios: Sequence[float], chosen: Sequence[int]) -> float:
    return sum(ratios[i] > 1.05 for i in chosen) / len(chosen)


def time_quietly(path: Bench, job: Job, finals: int) -> dict[int, list[float]]:
    """The median of each entry in each of some finals."""
    found: dict[int, list[float]] = {}
    for _ in range(finals):
        for i, samples in time_final(path, job).items():
            found.setdefault(i, []).append(statistics.median(samples))
    return found


def _medians(found: dict[int, list[float]]) -> dict[int, float]:
    return {i: statistics.median(times) for i, times in found.items()}


def choose_unbounded(found: dict[str, Estimate]) -> int:
    """The highest plevel of all whose intervals overlap the lowest median's, however wide."""
    lowest = min(found.values(), key=lambda e: e.median_s)
    return max(int(n) for n, e in found.items() if e.low_s <= lowest.high_s)


def rank(path: Bench, jobs: list[Job]) -> tuple[float, list[float]]:
    shuffled = random.Random(0).sample(range(KERNELS), KERNELS)
    medians = {i: path.measure(jobs[i]) for i in shuffled}
    return tau([medians[i] for i in range(KERNELS)]), [medians[i] for i in range(KERNELS)]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", choices=("path", "busy", "neighbour"), help="one of the three parts")
    options = parser.parse_args()
    if options.sessions < 2:
        parser.error("--sessions: two at least, as their spread is asked for")
    with tempfile.TemporaryDirectory(prefix="plevel-noise-") as name, ForkServer(Path(name)) as server:
        path = Bench(server, Path(name))
        if options.only in (None, "path"):
            show_path(path, options.sessions)
        if options.only in (None, "busy"):
            show_busy(path, options.rounds)
        if options.only in (None, "neighbour"):
            show_neighbour(path, server)
        path.pool.close()
        path.runner.close()


def show_path(path: Bench, sessions: int) -> None:
    """The spread of medians beside a bare loop's, and the order of ten kernels."""
    job = job_of(1, kernel(256))
    built = path.build(job)
    core = path.cores.timing[0]
    bare = subprocess.Popen(
        [sys.executable, "-c", _BARE, built.path, str(core)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env={**os.environ, "TVM_NUM_THREADS": "1"},
    )
    assert bare.stdin is not None
    assert bare.stdout is not None
    bare.stdout.readline()  # it is ready: what it loads takes the core from what is timed
    calls = max(1, round(0.002 / path.measure(job)))
    through: list[float] = []
    alone: list[float] = []
    for _ in range(sessions):
        through.append(path.measure(job))
        bare.stdin.write(f"{calls}\n")
        bare.stdin.flush()
        alone.append(statistics.median(json.loads(bare.stdout.readline())))
    bare.stdin.close()
    bare.wait()
    print(f"{path.retimed} of {sessions} sessions were timed again", flush=True)
    jobs = [job_of(10 + i, kernel(round(400 * STEP**i))) for i in range(KERNELS)]
    quiet, times = rank(path, jobs)
    with compiling(path.cores.building):
        loaded, busy = rank(path, jobs)
    moved = statistics.median(abs(b / q - 1) for q, b in zip(times, busy, strict=True))
    table = Table({"": "", "found": "", "goal": ""})
    table.add("median of one kernel through the whole path", (statistics.median(through), "s"), None)
    table.add("width of the middle 90 % of its medians", (spread(through), "%"), None)
    table.add("the same of a bare loop of 60 repeats, in the same minutes", (spread(alone), "%"), None)
    table.add("ratio of the widths", spread(through) / spread(alone), "≤ 1.2")
    table.add("Kendall's tau of ten kernels in steps of 3 %", quiet, "≥ 0.9")
    table.add("the same while the other core compiles", loaded, "≥ 0.9")
    table.add("change of their medians while it does", (moved, "%"), "≤ 4 %")
    table.save(variant="path", peer="a bare loop", runs=sessions)


def show_busy(path: Bench, rounds: int) -> None:
    """The shares of wrong selections beside a neighbour on the timing core."""
    wrong, unbounded, ratios, moved = choose_busily(path, rounds)
    table = Table({"": "", "found": "", "goal": ""})
    table.add("times over the fastest, on the quiet core", ", ".join(f"{r:.2f}×" for r in ratios), None)
    table.add("largest change of one of them from before to after", (moved, "%"), None)
    table.add("over 5 % slower chosen", (wrong, "%"), "≤ 1 %")
    table.add("the same by intervals without a bound", (unbounded, "%"), None)
    table.save(variant="busy", peer="intervals without a bound")


def show_neighbour(path: Bench, server: ForkServer) -> None:
    """Medians beside a core that compiles, and one that checks, over those beside an idle one."""
    checker = Checker(server, path.cores, Turn(path.cores.timing))
    widths = range(64, WIDEST + 1, 64)
    taken = [job for job in (job_of(2, dense(128, n, 768)) for n in widths) if checker.takes(job)]
    if not taken:
        raise SystemExit("this host checks nothing while it times: no core only builds, or its caches are unknown")
    drawn = taken[-1]
    built = path.build(drawn)

    @contextmanager
    def checking() -> Iterator[None]:
        done = threading.Event()

        def check() -> None:
            while not done.is_set():
                found = checker.check(drawn, [built], NEVER, lambda result: None, lambda: drawn)
                assert found[0] is not None, "the check failed"

        with ThreadPoolExecutor(1) as thread:
            checks = thread.submit(check)
            try:
                yield
            finally:
                done.set()
                checks.result()

    beside: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "idle": nullcontext, "compiles": lambda: compiling(path.cores.building), "checks": checking,
    }
    table = Table({"": "", "beside an idle core": "s", "one that compiles": "%", "one that checks": "%", "goal": ""})
    for what, job in (("bound by the core", job_of(1, kernel(256))), ("that is checked, too", drawn)):
        found: dict[str, list[float]] = {name: [] for name in beside}
        for _ in range(NEIGHBOUR_ROUNDS):
            for name, disturb in beside.items():
                with disturb():
                    found[name].append(path.measure(job))
        idle, compiles, checks = (statistics.median(found[name]) for name in beside)
        table.add(f"{job.workload}, {what}", idle, compiles / idle - 1, checks / idle - 1, "≤ 4 %")
    checker.close()
    table.save(variant="neighbour", runs=NEIGHBOUR_ROUNDS, peer="an idle core")


if __name__ == "__main__":
    main()
