"""All GPU figures in one run: correctness, best against the vendor, selection, repeatability, the runner's cost.

    python benchmarks/gpu.py --small              # a minute: does everything work on this host?
    python benchmarks/gpu.py                      # everything, under ten minutes; writes gpu.json
    python benchmarks/gpu.py --only 'dense float16' --trials 64
    python benchmarks/gpu.py --only conv2d --tuned 64   # after `plevel tune`, with 64 trials a case
    python benchmarks/gpu.py --no-peer            # without PyTorch, the peer
    python benchmarks/gpu.py --plan               # what would be measured; needs no GPU

Needs a GPU with its driver, TVM (plevel[worker]), nvcc or NVRTC and pycuda (docs/gpu.md); for the
peer's figures PyTorch with CUDA, whose products and convolutions are cuBLAS's and cuDNN's. Both are
timed by CUDA events, the peer over as many copies of its operands as fill the L2 cache twice, as
plevel's are; what is short is replayed as a CUDA graph in both.

Configurations are drawn at random after the fallback, as many as can be built and timed in the time of
a case; those of the next case are built meanwhile. The best of each implementation are timed three times
more, taking turns: selection takes the fastest of the first time, and is judged by the other two, against
the peer and against the one implementation that would be the best single choice for all cases of its
kind. With `--tuned` the configurations are, beside the fallbacks, the best of each implementation that
`plevel tune` finds in a database of its own. The spread of the three medians is the repeatability. Rows,
scans and what is bound by memory are held against the bandwidth of a copy, too. Every case prints a line,
and after each the file is written with device, driver and date. A configuration that loses the context, or
hangs, is left out, and its case goes on in a new process; a case that fails says so in its row. What is left
of the time is shared by the cases that are left.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.fixture import make_parser, natural
from benchmarks.gpu_case import SMALL, cases, draw
from benchmarks.gpu_child import Child, ChildError
from benchmarks.gpu_summary import show, summarise
from benchmarks.result import save
from plevel.cli.model_file import write_model
from strategy.record import SEARCH_POLICY, Device, Job, Phase, RunWorkload
from strategy.target import Target, TargetError
from strategy.workload import Workload
from workers.__main__ import describe_cuda
from workers.builder_pool import BuilderPool
from workers.cpu import DeviceError
from workers.runner import Session
from workers.sandbox import ForkServer

LIBRARIES = ("_cublas.cuda", "_cudnn.cuda")


def tune(chosen: Sequence[tuple[str, Workload]], options: argparse.Namespace, folder: Path) -> Path:
    """Tune all cases by `plevel tune`; the database."""
    database, model = folder / "tuned.db", folder / "cases.toml"
    model.write_text(write_model([RunWorkload(workload=w) for _, w in chosen], "", "cuda:0"))
    command = [sys.executable, "-P", "-m", "plevel", "tune", "-f", model, "--database", database]
    command += ["--trials", str(options.tuned * len(chosen)), "--timeout", f"{math.ceil(options.total)}s"]
    subprocess.run(command, check=True)
    return database


def build(
    pool: BuilderPool,
    workload: Workload,
    target: Target,
    options: argparse.Namespace,
    database: Path | None,
    seconds: float,
) -> Session:
    """Build as many configurations of a case as its time allows, on all builders."""
    job = Job(
        id=0, run_id=0, workload=workload, target=target, phase=Phase.SEARCH,
        entries=draw(workload, target, options.trials, options.seed, database),
        policy=SEARCH_POLICY, seed=options.seed,
    )
    late = threading.Event()
    timer = threading.Timer(seconds, late.set)
    timer.start()
    try:
        return Session(job=job, built=tuple(pool.build(job, late)), cores=(0,))
    finally:
        timer.cancel()


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression of the command line."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--only", type=pattern, default="", help="cases whose goal and workload match this")
    parser.add_argument("--trials", type=int, default=24, help="configurations per implementation")
    parser.add_argument("--tuned", type=int, metavar="TRIALS", help="tune first, with so many trials a case on average")
    parser.add_argument("--total", type=float, default=540, help="seconds for everything, of a search before as many")
    parser.add_argument("--small", action="store_true", help=f"extents of {SMALL} at most")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--plan", metavar="TARGET", nargs="?", const="cuda -arch=sm_90 -libs=cublas,cudnn")
    parser.add_argument("--seed", type=natural, default=0)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    options = parser.parse_args()
    offered = cases(SMALL if options.small else None)
    chosen = [(n, w) for n, w in offered if options.only.search(f"{n} {w}")]
    if not chosen:
        parser.error(f"--only {options.only.pattern}: one of {', '.join(dict.fromkeys(n for n, _ in cases()))}")
    if options.plan is not None:
        return plan(chosen, options)
    if not options.no_peer and find_spec("torch") is None:
        print("the peer, PyTorch with CUDA, is not installed: --no-peer goes without", file=sys.stderr)
        return 1
    try:
        device = describe_cuda("cuda:0")
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="plevel-gpu-") as folder:
        database = tune(chosen, options, Path(folder)) if options.tuned else None
        return report(chosen, device, options, database)


def report(
    chosen: Sequence[tuple[str, Workload]],
    device: Device,
    options: argparse.Namespace,
    database: Path | None,
) -> int:
    """Measure all cases, print them, and write their files; the exit code."""
    began = time.monotonic()
    results: list[dict[str, Any]] = []

    def write(found: dict[str, Any], copied: float | None) -> None:
        results.append(found)
        written = {
            "date": dt.datetime.now(dt.UTC).isoformat(), "device": device.model,
            "fingerprint": device.fingerprint, "copy_bytes_per_s": copied, "cases": results,
        }
        aside = options.out.with_suffix(".part")
        aside.write_text(json.dumps(written, indent=1))
        aside.replace(options.out)

    copied = run(chosen, device.target, options, database, began + options.total, write)
    summarise(results, copied)
    print(f"{options.out} is written, after {time.monotonic() - began:.0f} s")
    if not options.small and (database is not None or not options.only.pattern):
        times = {"best": "s", "best own": "s", "PyTorch": "s", "ratio": "×"}
        rows = [
            (r["goal"], f"`{r['workload']}`", r["selected"], r["best_s"], own(r), r.get("peer_s"), r.get("ratio"))
            for r in results if "best_s" in r
        ]
        variant = "" if database is None else "tuned"
        columns = {"goal": "", "workload": "", "selected": ""} | times
        save(columns, rows, variant=variant, peer=None if options.no_peer else "PyTorch", device=device.model)
    return int(not any(r.get("correct") for r in results))


def own(row: dict[str, Any]) -> float | None:
    """The time of the fastest kernel that is not NVIDIA's."""
    times = [b["median_s"] for name, b in row["best"].items() if not name.endswith(LIBRARIES)]
    return min(times, default=None)


def plan(chosen: list[tuple[str, Workload]], options: argparse.Namespace) -> int:
    """Print what would be measured."""
    try:
        target = Target.parse(options.plan)
    except TargetError as error:
        print(f"--plan: {error}", file=sys.stderr)
        return 1
    for goal, workload in chosen:
        entries = draw(workload, target, options.trials, options.seed)
        names = dict.fromkeys(e.implementation for e in entries)
        print(f"{goal:16} {workload}: {len(entries)} of {', '.join(names)}")
    print(f"{len(chosen)} cases, {options.total / len(chosen):.1f} s each")
    return 0


def run(
    chosen: Sequence[tuple[str, Workload]],
    target: Target,
    options: argparse.Namespace,
    database: Path | None,
    until: float,
    write: Callable[[dict[str, Any], float | None], None],
) -> float | None:
    """Give each case's row to `write` as it is there; the bandwidth of a copy."""
    cores = sorted(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory(prefix="plevel-gpu-") as folder,
        ForkServer(Path(folder)) as server,
        ThreadPoolExecutor(1) as ahead,
        closing(BuilderPool(server, cores[1:] or cores, Path(folder), forks=True)) as pool,
        closing(Child(peer=not options.no_peer)) as child,
    ):

        def share(number: int) -> float:
            """Seconds for each of the cases from this one on."""
            return (until - time.monotonic()) / (len(chosen) - number)

        def start(number: int) -> Any:
            seconds = max(1.0, 0.8 * share(number))
            return ahead.submit(build, pool, chosen[number][1], target, options, database, seconds)

        waiting = start(0)
        for number, (goal, workload) in enumerate(chosen):
            found: dict[str, Any] = {"goal": goal, "workload": str(workload)}
            built = waiting
            if number + 1 < len(chosen):
                waiting = start(number + 1)
            try:
                session = built.result()
                if time.monotonic() > until:
                    raise ChildError("no time was left")
                found |= child.ask(session, 0.5 * share(number))
            except Exception as error:
                found["error"] = f"{type(error).__name__}: {error}"
            write(found, child.copy_bytes_per_s)
            show(goal, found)
    return child.copy_bytes_per_s


if __name__ == "__main__":
    sys.exit(main())
