"""All GPU figures in one run: correctness, best against the vendor, selection, repeatability, the runner's cost.

    python benchmarks/gpu.py                      # everything, under ten minutes; writes gpu.json
    python benchmarks/gpu.py --only dense --trials 64
    python benchmarks/gpu.py --no-peer            # without PyTorch, the peer
    python benchmarks/gpu.py --plan               # what would be measured; needs no GPU

Needs a GPU with its driver, TVM (plevel[worker]), nvcc or NVRTC and pycuda (docs/gpu.md); for the
peer's figures PyTorch with CUDA, whose products and convolutions are cuBLAS's and cuDNN's. Both are
timed by CUDA events, the peer over as many copies of its operands as fill the L2 cache twice, as
plevel's are.

Configurations are drawn at random after the fallback, as many as can be built and timed in the time of
a case; those of the next case are built meanwhile. The best of each implementation are timed three times
more, taking turns: selection takes the fastest of the first time, and is judged by the other two, against
the peer and against the one implementation that would be the best single choice for all cases of its
kind. The spread of the three medians is the repeatability. Rows, scans and what is bound by memory are
held against the bandwidth of a copy, too. Every case prints a line, and all are written with device,
driver and date. A session that loses its context is reported, and the next case has a new one.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from strategy.op_strategy import Candidate, candidates
from strategy.record import (
    SEARCH_POLICY,
    Job,
    JobEntry,
    Phase,
    TimingPolicy,
    decode,
    encode,
    estimate,
)
from strategy.select import holds
from strategy.space import Config
from strategy.target import Target, TargetError
from strategy.types import TupleType
from strategy.workload import Workload
from workers.__main__ import describe_cuda
from workers.builder import BuilderPool, Built
from workers.cpu import DeviceError
from workers.cuda_kernel import CudaKernel
from workers.kernel import Data
from workers.reference import numpy_dtype, random_inputs, reference, tolerances
from workers.runner import Session
from workers.sandbox import ForkServer
from workers.timing import time_kernels

BERT = ((768, 768), (3072, 768), (768, 3072))  # n, k
LLAMA = ((4096, 4096), (11008, 4096), (4096, 11008))
RESNET = (  # data, out channels, window, stride, padding
    ((3, 224, 224), 64, 7, 2, 3), ((64, 56, 56), 64, 1, 1, 0), ((64, 56, 56), 64, 3, 1, 1),
    ((256, 56, 56), 128, 1, 2, 0), ((128, 28, 28), 128, 3, 1, 1), ((512, 28, 28), 256, 1, 2, 0),
    ((256, 14, 14), 256, 3, 1, 1), ((1024, 14, 14), 512, 1, 2, 0), ((512, 7, 7), 512, 3, 1, 1),
)  # fmt: skip


def cases() -> list[tuple[str, Workload]]:
    """Pairs of a goal's name and what is measured for it."""
    found = []
    for dtype in ("float32", "float16"):
        shapes = [(1024, 1024, 1024), (4096, 4096, 4096), (511, 513, 1023)]
        shapes += [(m, n, k) for n, k in (*BERT, *LLAMA) for m in (1, 16, 512)]
        for m, n, k in shapes:
            inputs = {"data": f"{dtype}[{m},{k}]", "weight": f"{dtype}[{n},{k}]"}
            found.append((f"dense {dtype}", Workload.make("dense", inputs)))
        for (c, h, w), out, window, stride, padding in RESNET:
            inputs = {
                "data": f"{dtype}[1,{c},{h},{w}]",
                "weight": f"{dtype}[{out},{c},{window},{window}]",
            }
            attrs = {"strides": stride, "padding": padding}
            found.append((f"conv2d {dtype}", Workload.make("conv2d", inputs, attrs, ["weight"])))
    affine = {"gamma": "float32[768]", "beta": "float32[768]"}
    found += [
        ("rows", Workload.make("softmax", {"data": "float32[8192,1024]"})),
        ("rows", Workload.make("softmax", {"data": "float16[3072,512]"})),
        ("rows", Workload.make("layer_norm", {"data": "float32[8192,768]", **affine})),
        ("scan", Workload.make("cumsum", {"data": "float32[16777216]"})),
        ("scan", Workload.make("cumsum", {"data": "float32[4096,4096]"}, {"axis": 1})),
        ("topk", Workload.make("topk", {"data": "float32[4096,4096]"}, {"k": 16})),
        ("memory", Workload.make("add", {"lhs": "float32[64,1048576]", "rhs": "float32[1048576]"})),
        ("memory", Workload.make("sum", {"data": "float32[8192,8192]"}, {"axis": [1]})),
    ]
    return found


MEMORY_BOUND = ("rows", "scan", "memory")
FINAL = TimingPolicy(min_repeats=10, max_repeats=100, spread=0.01, budget_s=0.1)


def draw(workload: Workload, target: Target, trials: int, seed: int) -> tuple[JobEntry, ...]:
    """Configurations of all implementations in turn, their fallbacks first."""
    lists: list[tuple[Candidate, list[Config]]] = []
    for candidate in candidates(workload, target):
        if holds(candidate, workload):
            configs = [candidate.fallback]
            if candidate.space is not None:
                configs += candidate.space.sample(random.Random(seed), trials - 1)
            lists.append((candidate, configs))
    drawn = [
        (number, candidate, configs[turn])
        for turn in range(trials)
        for number, (candidate, configs) in enumerate(lists)
        if turn < len(configs)
    ]
    return tuple(
        JobEntry(
            index=index, task_id=number, implementation=candidate.implementation,
            version=candidate.version, config=config,
        )
        for index, (number, candidate, config) in enumerate(drawn)
    )  # fmt: skip


def build(
    pool: BuilderPool, workload: Workload, target: Target, trials: int, seed: int, seconds: float
) -> Session:
    """What can be built of a case in its time, by all builders at once."""
    job = Job(
        id=0, run_id=0, workload=workload, target=target, phase=Phase.SEARCH,
        entries=draw(workload, target, trials, seed), policy=SEARCH_POLICY, seed=seed,
    )  # fmt: skip
    late = threading.Event()
    timer = threading.Timer(seconds, late.set)
    timer.start()
    try:
        return Session(job=job, built=tuple(pool.build(job, late)), cores=(0,))
    finally:
        timer.cancel()


def measure(session: Session, driver: Any, seconds: float, *, peer: bool) -> dict[str, Any]:
    """One case, in this process: shares of valid and correct, the best, selection, and the peer."""
    job = session.job
    workload = job.workload
    inputs = random_inputs(workload, job.seed)
    expected = tuple(reference(workload, inputs))
    data = Data(
        (workload.key, job.seed), inputs, {}, expected, tolerances(workload, inputs, expected)
    )
    entries = {entry.index: entry for entry in job.entries}
    failures: dict[str, int] = {}
    best: dict[str, tuple[float, Built]] = {}
    overheads: list[float] = []
    tried = correct = 0
    until = time.monotonic() + seconds
    for built in session.built:
        if time.monotonic() > until:
            break
        tried += 1
        if built.error is not None:
            failures[built.error.value] = failures.get(built.error.value, 0) + 1
            continue
        kernel = CudaKernel(built, data, driver)
        try:
            began = time.perf_counter()
            kernel.load()
            kernel.check()
            correct += 1
            ((median, timed_s),) = timed([kernel], SEARCH_POLICY)
            overheads.append(time.perf_counter() - began - kernel.check_s - timed_s)
        except Exception as error:
            failures[type(error).__name__] = failures.get(type(error).__name__, 0) + 1
            continue
        finally:
            kernel.release()
        name = entries[built.entry].implementation
        if name not in best or median < best[name][0]:
            best[name] = (median, built)
    result: dict[str, Any] = {
        "workload": str(workload), "tried": tried, "correct": correct,
        "built": sum(b.error is None for b in session.built[:tried]), "failures": failures,
        "overhead_s": statistics.median(overheads) if overheads else None,
        "state": driver.describe(),
    }  # fmt: skip
    if best:
        result |= finals({n: CudaKernel(b, data, driver) for n, (_, b) in best.items()})
        for name, (_, built) in best.items():
            result["best"][name]["config"] = entries[built.entry].config.to_json()
        if workload.flops is not None:
            result["tflops"] = workload.flops / result["best_s"] / 1e12
        out = workload.out_type
        kinds = out.fields if isinstance(out, TupleType) else (out,)
        written = sum(k.size * numpy_dtype(k.dtype).itemsize for k in kinds)
        moved = written + sum(a.nbytes for a in inputs.values())
        result["bytes_per_s"] = moved / result["best_s"]
        if peer:
            result["peer_s"] = time_peer(workload, inputs, driver.l2_bytes)
            result["ratio"] = result["peer_s"] / result["best_s"]
    return result


def finals(kernels: dict[str, CudaKernel]) -> dict[str, Any]:
    """The best of each implementation, three times more; what selection takes, and how fast it is."""
    for kernel in kernels.values():
        kernel.load()
        kernel.check()
    rounds = [[m for m, _ in timed(list(kernels.values()), FINAL)] for _ in range(3)]
    found = {}
    for name, medians in zip(kernels, zip(*rounds, strict=True), strict=True):
        middle = statistics.median(medians)
        found[name] = {
            "median_s": statistics.fmean(medians[1:]), "first_s": medians[0],
            "spread": (max(medians) - min(medians)) / middle,
        }  # fmt: skip
    for kernel in kernels.values():
        kernel.release()
    selected = min(found, key=lambda n: found[n]["first_s"])
    return {"best": found, "selected": selected, "best_s": found[selected]["median_s"]}


def timed(kernels: Sequence[CudaKernel], policy: TimingPolicy) -> list[tuple[float, float]]:
    """Of each kernel the median, and the seconds that its calls took; they take turns."""
    found = time_kernels([k.measure for k in kernels], policy, rng=random.Random(0))
    for one in found:
        if one.error is not None:
            raise one.error
    return [(estimate(one.samples_s).median_s, one.run_s) for one in found]


def copy_bandwidth() -> float:
    """Bytes per second, read and written, that the device copies a gibibyte at."""
    import torch

    data = torch.empty(1 << 28, device="cuda")
    to = torch.empty_like(data)
    seconds = time_on_device(torch, lambda i: to.copy_(data))
    return 2 * data.nbytes / seconds


def time_on_device(torch: Any, run: Callable[[int], Any]) -> float:
    """The median of a call of PyTorch's, given its number, by CUDA events."""

    def measure(calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for i in range(calls):
            run(i)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    (found,) = time_kernels([measure], FINAL, rng=random.Random(0))
    if found.error is not None:
        raise found.error
    return estimate(found.samples_s).median_s


def time_peer(workload: Workload, inputs: dict[str, Any], l2_bytes: int) -> float:
    """PyTorch's time for the same, by CUDA events, in its default precision without TF32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    size = sum(a.nbytes for a in inputs.values())
    copies = min(16, max(1, math.ceil(2 * l2_bytes / size)))
    sets = [
        {name: torch.from_numpy(array).cuda() for name, array in inputs.items()}
        for _ in range(copies)
    ]
    run = peer_of(workload, torch)
    with torch.inference_mode():
        run(sets[0])
        return time_on_device(torch, lambda i: run(sets[i % copies]))


def peer_of(workload: Workload, torch: Any) -> Callable[[dict[str, Any]], Any]:
    """PyTorch's function for a workload."""
    attrs: Any = workload.attr_node
    functional = torch.nn.functional
    return {
        "dense": lambda x: functional.linear(x["data"], x["weight"]),
        "conv2d": lambda x: functional.conv2d(
            x["data"],
            x["weight"],
            None,
            attrs.strides,
            attrs.padding[:2],
            attrs.dilation,
            attrs.groups,
        ),
        "layer_norm": lambda x: functional.layer_norm(
            x["data"], x["data"].shape[-1:], x["gamma"], x["beta"], attrs.epsilon
        ),
        "softmax": lambda x: torch.softmax(x["data"], attrs.axis),
        "cumsum": lambda x: torch.cumsum(x["data"], attrs.axis or 0),
        "topk": lambda x: torch.topk(x["data"], attrs.k, attrs.axis),
        "add": lambda x: torch.add(x["lhs"], x["rhs"]),
        "sum": lambda x: torch.sum(x["data"], attrs.axis),
    }[workload.op]  # type: ignore[no-any-return]


def _serve(pipe: Any, seconds: float, peer: bool) -> None:
    """The child's loop: a device, and cases until one fails, after which the context may be lost."""
    from workers.cuda import open_driver

    try:
        driver = open_driver(0)
        pipe.send({"copy_bytes_per_s": copy_bandwidth() if peer else None})
        while True:
            pipe.send(measure(decode(pipe.recv_bytes(), Session), driver, seconds, peer=peer))
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"})


class ChildError(Exception):
    """A case that failed, or did not end."""


class Child:
    """A process with the device's context; another where that is lost, or hangs."""

    def __init__(self, seconds: float, *, peer: bool) -> None:
        self._arguments = (seconds, peer)
        self._limit_s = max(60.0, 6 * seconds)
        self._process: Any = None
        self.copy_bytes_per_s: float | None = None

    def ask(self, session: Session) -> dict[str, Any]:
        try:
            if self._process is None:
                self._start()
            self._pipe.send_bytes(encode(session))
            return self._answer()
        except (EOFError, OSError, ChildError) as error:
            self.close()
            return {"error": str(error) or "its process died"}

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments))
        self._process.start()
        theirs.close()
        self.copy_bytes_per_s = self._answer()["copy_bytes_per_s"]

    def _answer(self) -> dict[str, Any]:
        if not self._pipe.poll(self._limit_s):
            raise ChildError(f"nothing after {self._limit_s:.0f} s")
        answer: dict[str, Any] = self._pipe.recv()
        if "error" in answer:
            raise ChildError(answer["error"])
        return answer

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", help="cases whose name begins so")
    parser.add_argument("--trials", type=int, default=24, help="configurations per implementation")
    parser.add_argument("--total", type=float, default=540, help="seconds for all cases")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--plan", metavar="TARGET", nargs="?", const="cuda -arch=sm_90 -libs=cublas,cudnn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    options = parser.parse_args()
    chosen = [(n, w) for n, w in cases() if n.startswith(options.only or "")]
    if not chosen:
        parser.error(f"--only {options.only}: one of {', '.join(dict.fromkeys(n for n, _ in cases()))}")
    if options.plan is not None:
        return plan(chosen, options)
    peer = not options.no_peer
    if peer and find_spec("torch") is None:
        print("the peer, PyTorch with CUDA, is not installed: --no-peer goes without", file=sys.stderr)
        return 1
    try:
        device = describe_cuda("cuda:0")
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 1
    results, copied = run(chosen, device.target, options, peer=peer)
    summarise(results, copied)
    written = {
        "date": dt.datetime.now(dt.UTC).isoformat(), "device": device.model,
        "fingerprint": device.fingerprint, "copy_bytes_per_s": copied, "cases": results,
    }  # fmt: skip
    options.out.write_text(json.dumps(written, indent=1))
    print(f"{options.out} is written")
    return int(not any(r.get("correct") for r in results))


def plan(chosen: list[tuple[str, Workload]], options: argparse.Namespace) -> int:
    """Prints what would be measured."""
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
    chosen: list[tuple[str, Workload]], target: Target, options: argparse.Namespace, *, peer: bool
) -> tuple[list[dict[str, Any]], float | None]:
    """The results of all cases, and the bandwidth of a copy."""
    seconds = options.total / len(chosen)
    cores = sorted(os.sched_getaffinity(0))
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="plevel-gpu-") as folder,
        ForkServer(Path(folder)) as server,
        ThreadPoolExecutor(1) as ahead,
    ):
        pool = BuilderPool(server, cores[1:] or cores, Path(folder), forks=True)
        child = Child(0.5 * seconds, peer=peer)

        def start(workload: Workload) -> Any:
            given = (workload, target, options.trials, options.seed, 0.8 * seconds)
            return ahead.submit(build, pool, *given)

        try:
            waiting = start(chosen[0][1])
            for number, (goal, workload) in enumerate(chosen):
                session = waiting.result()
                if number + 1 < len(chosen):
                    waiting = start(chosen[number + 1][1])
                found = {"goal": goal, "workload": str(workload), **child.ask(session)}
                results.append(found)
                show(goal, found)
        finally:
            child.close()
            pool.close()
    return results, child.copy_bytes_per_s


def summarise(results: list[dict[str, Any]], copied: float | None) -> None:
    """Prints a line for all cases, and one for each goal."""
    sums = {k: sum(r.get(k, 0) for r in results) for k in ("tried", "built", "correct")}
    print(f"of {sums['tried']} tried, {sums['built']} were built and {sums['correct']} correct")
    overheads = [r["overhead_s"] for r in results if r.get("overhead_s") is not None]
    if overheads:
        print(f"the runner takes {1e3 * statistics.median(overheads):.1f} ms for a trial, beside its kernel")
    for goal in dict.fromkeys(r["goal"] for r in results):
        mine = [r for r in results if r["goal"] == goal and "best" in r]
        if not mine:
            continue
        spreads = [r["best"][r["selected"]]["spread"] for r in mine]
        said = [f"{len(mine)} cases", f"spread {100 * statistics.median(spreads):.1f} %"]
        if all("ratio" in r for r in mine):
            said.append(f"{statistics.geometric_mean(r['ratio'] for r in mine):.2f} of PyTorch's speed")
        if copied and goal in MEMORY_BOUND:
            shares = [r["bytes_per_s"] / copied for r in mine]
            said.append(f"{statistics.geometric_mean(shares):.2f} of a copy's bandwidth")
        single = best_single(mine)
        if single is not None:
            said.append(f"selection {single[1]:.2f} of always {single[0]}")
        print(f"{goal}: {', '.join(said)}")


def best_single(results: list[dict[str, Any]]) -> tuple[str, float] | None:
    """The implementation that is the best single choice for all of some cases, and selection's speed against it."""
    common = set.intersection(*(set(r["best"]) for r in results))

    def ratio(name: str) -> float:
        return statistics.geometric_mean(
            r["best"][name]["median_s"] / r["best_s"] for r in results
        )

    if len(common) < 2:
        return None
    name = min(sorted(common), key=ratio)
    return name, ratio(name)


def show(name: str, found: dict[str, Any]) -> None:
    if "error" in found:
        print(f"{found['workload']}: {found['error']}")
        return
    line = f"{name:16} {found['workload']}: {found['correct']} of {found['tried']} correct"
    if "best_s" in found:
        which = found["selected"]
        line += f", best {found['best_s'] * 1e6:.1f} µs {which}"
        line += f", spread {100 * found['best'][which]['spread']:.1f} %"
    if "ratio" in found:
        line += f", peer {found['peer_s'] * 1e6:.1f} µs, ratio {found['ratio']:.2f}"
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
