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
# Over 300 lines: all GPU figures come from one run on one device.

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import multiprocessing
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.fixture import make_parser, natural
from benchmarks.result import save
from plevel.cli.model_file import write_model
from plevel.database import plevel_database
from strategy.op_strategy import Candidate, candidates
from strategy.record import (
    SEARCH_POLICY,
    Device,
    Job,
    JobEntry,
    Phase,
    RunWorkload,
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
from workers.builder import Built
from workers.builder_pool import BuilderPool
from workers.cpu import DeviceError
from workers.cuda.kernel import COPIES, REPLAYED, CudaKernel
from workers.data import Data
from workers.reference import numpy_dtype, random_inputs, reference, tolerances
from workers.runner import Session
from workers.sandbox import ForkServer
from workers.timing import time_kernels

BERT = ((768, 768), (3072, 768), (768, 3072))  # n, k
LLAMA = ((4096, 4096), (11008, 4096), (4096, 11008))
ATTENTION = (  # batch, heads, groups of them, queries, keys, depth, causal
    (8, 12, 12, 512, 512, 64, False), (16, 12, 12, 197, 197, 64, False), (1, 32, 32, 2048, 2048, 128, True),
    (1, 32, 8, 1, 4096, 128, False), (16, 32, 8, 1, 2048, 128, False),
)  # fmt: skip
EXPERTS = ((64, 1024, 2048, (64, 512, 8192)), (8, 4096, 4096, (16, 512, 4096)))  # groups, n, k, and numbers of rows
RESNET = (  # data, out channels, window, stride, padding
    ((3, 224, 224), 64, 7, 2, 3), ((64, 56, 56), 64, 1, 1, 0), ((64, 56, 56), 64, 3, 1, 1),
    ((256, 56, 56), 128, 1, 2, 0), ((128, 28, 28), 128, 3, 1, 1), ((512, 28, 28), 256, 1, 2, 0),
    ((256, 14, 14), 256, 3, 1, 1), ((1024, 14, 14), 512, 1, 2, 0), ((512, 7, 7), 512, 3, 1, 1),
)  # fmt: skip


def cases(most: int | None = None) -> list[tuple[str, Workload]]:
    """Pairs of a goal's name and what is measured for it; with all extents cut to `most`, where given."""
    found: list[tuple[str, Workload]] = []

    def add(
        goal: str, op: str, shapes: dict[str, tuple[str, list[int]]], attrs: Any = None, *constant: str
    ) -> None:
        inputs = {
            name: f"{dtype}[{','.join(str(min(e, most or e)) for e in shape)}]"
            for name, (dtype, shape) in shapes.items()
        }
        case = goal, Workload.make(op, inputs, attrs, constant)
        if case not in found:
            found.append(case)

    for m, n, k in [(m, n, k) for n, k in LLAMA for m in (1, 16, 512)]:
        add("dense bfloat16", "dense", {"data": ("bfloat16", [m, k]), "weight": ("bfloat16", [n, k])})
    for dtype in ("float32", "float16"):
        shapes = [(1024, 1024, 1024), (4096, 4096, 4096), (511, 513, 1023)]
        shapes += [(m, n, k) for n, k in (*BERT, *LLAMA) for m in (1, 16, 512)]
        for m, n, k in shapes:
            operands = {"data": (dtype, [m, k]), "weight": (dtype, [n, k])}
            add(f"dense {dtype}", "dense", operands)
        for (c, h, w), out, window, stride, padding in RESNET:
            operands = {"data": (dtype, [1, c, h, w]), "weight": (dtype, [out, c, window, window])}
            attrs = {"strides": stride, "padding": padding}
            add(f"conv2d {dtype}", "conv2d", operands, attrs, "weight")
    single = "float32"
    affine = {"gamma": (single, [768]), "beta": (single, [768])}
    add("rows", "softmax", {"data": (single, [8192, 1024])})
    add("rows", "softmax", {"data": ("float16", [3072, 512])})
    add("rows", "layer_norm", {"data": (single, [8192, 768]), **affine})
    add("scan", "cumsum", {"data": (single, [16777216])})
    add("scan", "cumsum", {"data": (single, [4096, 4096])}, {"axis": 1})
    add("scan", "cumsum", {"data": (single, [64, 1048576])}, {"axis": 1})
    for batch, heads, groups, m, n, d, causal in ATTENTION:
        operands = {
            name: ("bfloat16", [batch, count, length, d])
            for name, count, length in (("query", heads, m), ("key", groups, n), ("value", groups, n))
        }
        add("attention", "attention", operands, {"is_causal": causal})
    for m, n, k in ((1, 4096, 4096), (1, 11008, 4096), (8, 11008, 4096)):
        count = -(-min(k, most or k) // 32)
        blocks = {"weight": ("uint8", [n, count, 16]), "scales": ("bfloat16", [n, count])}
        add("4 bits", "matmul_nbits", {"data": ("bfloat16", [m, k]), **blocks}, {"block_size": 32})
    for groups, n, k, m in [(g, n, k, m) for g, n, k, rows in EXPERTS for m in rows]:
        operands = {"data": ("bfloat16", [m, k]), "weight": ("bfloat16", [groups, n, k]), "ends": ("int32", [groups])}
        add("experts", "grouped_dense", operands)
    for rows, length, k in ((4096, 4096, 16), (1, 1000000, 50), (32, 128256, 50)):
        add("topk", "topk", {"data": (single, [rows, length])}, {"k": min(k, most or k)})
    add("sort", "argsort", {"data": (single, [1048576])})
    add("memory", "add", {"lhs": (single, [64, 1048576]), "rhs": (single, [1048576])})
    add("memory", "sum", {"data": (single, [8192, 8192])}, {"axis": [1]})
    return found


SMALL = 24  # extents of `--small` at most
LIBRARIES = ("_cublas.cuda", "_cudnn.cuda")
WITHOUT_PEER = ("matmul_nbits",)
MEMORY_BOUND = ("rows", "scan", "memory", "4 bits")
FINAL = TimingPolicy(min_repeats=10, max_repeats=100, spread=0.01, budget_s=0.1)


def draw(
    workload: Workload, target: Target, trials: int, seed: int, database: Path | None = None
) -> tuple[JobEntry, ...]:
    """Configurations of all implementations in turn, their fallbacks first; then a database's best, or random ones."""
    lists: list[tuple[Candidate, list[Config]]] = []
    tuned = None if database is None else best_of(workload, target, database)
    for candidate in candidates(workload, target):
        if holds(candidate, workload):
            configs = [candidate.fallback]
            if tuned is not None:
                configs += [tuned[name] for name in {candidate.implementation} & tuned.keys()]
            elif candidate.space is not None:
                configs += candidate.space.sample(random.Random(seed), trials - 1)
            lists.append((candidate, list(dict.fromkeys(configs))))
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


def best_of(workload: Workload, target: Target, database: Path) -> dict[str, Config]:
    """The fastest configuration of each implementation in a database."""
    with plevel_database(database) as records:
        return {m.implementation: m.config for m in records.measured(workload, target, None)}


def tune(chosen: Sequence[tuple[str, Workload]], options: argparse.Namespace, folder: Path) -> Path:
    """Tune all cases by `plevel tune`; the database."""
    database, model = folder / "tuned.db", folder / "cases.toml"
    model.write_text(write_model([RunWorkload(workload=w) for _, w in chosen], "", "cuda:0"))
    command = [sys.executable, "-P", "-m", "plevel", "tune", "-f", model, "--database", database]
    command += ["--trials", str(options.tuned * len(chosen)), "--timeout", str(options.total)]
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
    )  # fmt: skip
    late = threading.Event()
    timer = threading.Timer(seconds, late.set)
    timer.start()
    try:
        return Session(job=job, built=tuple(pool.build(job, late)), cores=(0,))
    finally:
        timer.cancel()


def measure(
    session: Session, driver: Any, seconds: float, tell: Callable[[int], None], *, peer: bool
) -> dict[str, Any]:
    """One case, in this process: shares of valid and correct, the best, selection, and the peer.

    Args:
        tell: called with each entry before it is tried, and with -1 after the last.
    """
    until = time.monotonic() + seconds
    job = session.job
    workload = job.workload
    inputs = random_inputs(workload, job.seed)
    expected = tuple(reference(workload, inputs))
    data = Data(inputs, {}, expected, tolerances(workload, inputs, expected))
    entries = {entry.index: entry for entry in job.entries}
    fallbacks = len({entry.task_id for entry in job.entries})
    shares: dict[str, dict[str, int]] = {}
    failures: list[str] = []
    best: dict[str, tuple[float, Built]] = {}
    overheads: list[float] = []
    tried = 0
    for built in session.built:
        if time.monotonic() > until and tried >= fallbacks:
            break
        tried += 1
        entry = entries[built.entry]
        name = entry.implementation
        share = shares.setdefault(name, dict.fromkeys(("tried", "built", "correct"), 0))
        share["tried"] += 1
        if built.error is not None:
            failures.append(f"{name} {entry.config.to_json()}: {built.error.value}: {built.message}")
            continue
        share["built"] += 1
        tell(built.entry)
        kernel = CudaKernel(built, data, driver)
        try:
            began = time.perf_counter() - driver.waking_s
            kernel.load()
            kernel.check()
            share["correct"] += 1
            ((median, timed_s),) = timed([kernel], SEARCH_POLICY)
            spent = time.perf_counter() - driver.waking_s - began
            overheads.append(spent - kernel.check_s - timed_s)
        except Exception as error:
            driver.synchronize()  # raises where the context is lost, and ends this process
            failures.append(f"{name} {entry.config.to_json()}: {type(error).__name__}: {error}")
            continue
        finally:
            kernel.release()
        if name not in best or median < best[name][0]:
            best[name] = (median, built)
    tell(-1)
    result: dict[str, Any] = {
        **{what: sum(s[what] for s in shares.values()) for what in ("tried", "built", "correct")},
        "shares": shares, "failures": failures,
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
        if peer and workload.op not in WITHOUT_PEER:
            result |= against_peer(workload, inputs, driver.l2_bytes, result["best_s"])
    return result


def against_peer(
    workload: Workload, inputs: dict[str, Any], l2_bytes: int, best_s: float
) -> dict[str, Any]:
    """The peer's time and its ratio to ours, or why there is none: that does not cost us our row."""
    try:
        seconds = time_peer(workload, inputs, l2_bytes)
    except Exception as error:
        return {"peer_error": f"{type(error).__name__}: {error}"}
    return {"peer_s": seconds, "ratio": seconds / best_s}


def finals(kernels: dict[str, CudaKernel]) -> dict[str, Any]:
    """The best of each implementation, three times more; which of them selection takes, and its speed."""
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


def copy_bandwidth(driver: Any) -> float:
    """Bytes per second, read and written, that the device copies a quarter of a gibibyte at."""
    size = 1 << 28
    source, to = driver.allocate(size), driver.allocate(size)

    def measure(calls: int) -> float:
        def queue() -> None:
            for _ in range(calls):
                driver.copy(to, source, size)

        return float(driver.time(queue))

    seconds = median_of(measure)
    driver.free(source)
    driver.free(to)
    return 2 * size / seconds


def median_of(measure: Callable[[int], float]) -> float:
    (found,) = time_kernels([measure], FINAL, rng=random.Random(0))
    if found.error is not None:
        raise found.error
    return estimate(found.samples_s).median_s


def time_on_device(torch: Any, run: Callable[[int], Any], copies: int) -> float:
    """The median of a call of PyTorch's, given its number, by CUDA events; many are replayed as a graph."""
    size = -(-REPLAYED // copies) * copies
    graph: Any = None

    def queue(calls: int) -> None:
        for i in range(calls):
            run(i % copies)

    def replay(times: int) -> None:
        for _ in range(times):
            graph.replay() if graph else queue(size)

    def measure(calls: int) -> float:
        nonlocal graph
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = calls // size
        if times and graph is None:
            graph = captured(torch, lambda: queue(size)) or False
        begin.record()
        replay(times) if times else queue(calls)
        end.record()
        end.synchronize()
        took = float(begin.elapsed_time(end)) * 1e-3
        return took * calls / (times * size) if times else took

    return median_of(measure)


def captured(torch: Any, queue: Callable[[], None]) -> Any:
    """A CUDA graph of what `queue` does; None where PyTorch cannot make one of it."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            queue()
    except RuntimeError:
        return None
    return graph


def time_peer(workload: Workload, inputs: dict[str, Any], l2_bytes: int) -> float:
    """PyTorch's time for the same, by CUDA events, in its default precision without TF32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    size = sum(a.nbytes for a in inputs.values())
    copies = min(COPIES, max(1, math.ceil(2 * l2_bytes / size)))
    sets = [
        {name: tensor_of(torch, array) for name, array in inputs.items()}
        for _ in range(copies)
    ]
    run = peer_of(workload, torch)
    with torch.inference_mode():
        run(sets[0])
        return time_on_device(torch, lambda i: run(sets[i]), copies)


def tensor_of(torch: Any, array: Any) -> Any:
    """A tensor on the device; PyTorch does not know NumPy's bfloat16."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16).cuda()
    return torch.from_numpy(array).cuda()


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
        "argsort": lambda x: torch.argsort(x["data"], dim=attrs.axis, stable=True),
        "attention": lambda x: functional.scaled_dot_product_attention(
            x["query"],
            x["key"],
            x["value"],
            is_causal=attrs.is_causal,
            enable_gqa=x["key"].shape[1] != x["query"].shape[1],
        ),
        "grouped_dense": lambda x: functional.grouped_mm(x["data"], x["weight"].transpose(1, 2), offs=x["ends"]),
        "add": lambda x: torch.add(x["lhs"], x["rhs"]),
        "sum": lambda x: torch.sum(x["data"], attrs.axis),
    }[workload.op]


def _serve(pipe: Any, peer: bool) -> None:
    """The child's loop: a device, and cases until one fails, after which the context may be lost."""
    from workers.cuda.driver import open_driver

    def tell(entry: int) -> None:
        pipe.send({"trying": entry})

    try:
        driver = open_driver(0)
        pipe.send({"copy_bytes_per_s": copy_bandwidth(driver)})
        while True:
            seconds, session = pipe.recv_bytes().split(b" ", 1)
            case = decode(session, Session)
            pipe.send(measure(case, driver, float(seconds), tell, peer=peer))
    except EOFError:
        return
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"})


class ChildError(Exception):
    """A process with the device that failed, or said nothing any more."""


class Child:
    """A process with the device's context; another where that is lost, or hangs."""

    START_S, SILENT_S = 90.0, 40.0  # to load everything; to try one configuration, or make a reference

    def __init__(self, *, peer: bool) -> None:
        self._peer = peer
        self._process: Any = None
        self.copy_bytes_per_s: float | None = None

    def ask(self, session: Session, seconds: float) -> dict[str, Any]:
        """The row of a case; a configuration that ends the process is left out, and the rest is tried again."""
        until = time.monotonic() + seconds
        lost: list[str] = []
        while True:
            trying = -1
            try:
                if self._process is None:
                    self._start()
                left = max(0.1, until - time.monotonic())
                self._pipe.send_bytes(b"%f " % left + encode(session))
                while "trying" in (answer := self._answer(self.SILENT_S)):
                    trying = answer["trying"]
                return answer | ({"lost": lost} if lost else {})
            except (EOFError, OSError, ChildError) as error:
                self.close()
                said = str(error) or "its process died"
            entry = next((e for e in session.job.entries if e.index == trying), None)
            if entry is None or len(lost) == 3:
                return {"error": said, "lost": lost}
            lost.append(f"{entry.implementation} {entry.config.to_json()}: {said}")
            built = tuple(b for b in session.built if b.entry != trying)
            session = msgspec.structs.replace(session, built=built)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._peer))
        self._process.start()
        theirs.close()
        self.copy_bytes_per_s = self._answer(self.START_S)["copy_bytes_per_s"]

    def _answer(self, limit_s: float) -> dict[str, Any]:
        if not self._pipe.poll(limit_s):
            raise ChildError(f"nothing after {limit_s:.0f} s")
        answer: dict[str, Any] = self._pipe.recv()
        if "error" in answer:
            raise ChildError(answer["error"])
        return answer

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


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
        }  # fmt: skip
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
        ]  # fmt: skip
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


def summarise(results: list[dict[str, Any]], copied: float | None) -> None:
    """Print a line for all cases, and one for each goal."""
    sums = {k: sum(r.get(k, 0) for r in results) for k in ("tried", "built", "correct")}
    print(f"of {sums['tried']} tried, {sums['built']} were built and {sums['correct']} correct")
    shares: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in results:
        for name, share in row.get("shares", {}).items():
            shares[name].update(share)
    for name, share in sorted(shares.items()):
        tried, built, correct = (share[what] for what in ("tried", "built", "correct"))
        if correct < tried:
            print(f"  {name}: of {tried}, {built} were built and {correct} correct")
    overheads = [r["overhead_s"] for r in results if r.get("overhead_s") is not None]
    if overheads:
        print(f"the runner takes {1e3 * statistics.median(overheads):.1f} ms for a trial, beside its kernel")
    for goal in dict.fromkeys(r["goal"] for r in results):
        mine = [r for r in results if r["goal"] == goal and "best" in r]
        if not mine:
            continue
        spreads = [r["best"][r["selected"]]["spread"] for r in mine]
        said = [f"{len(mine)} cases", f"spread {100 * statistics.median(spreads):.1f} %"]
        ratios = [r["ratio"] for r in mine if "ratio" in r]
        if ratios:
            said.append(f"{statistics.geometric_mean(ratios):.2f} of PyTorch's speed in {len(ratios)}")
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
        return statistics.geometric_mean(r["best"][name]["median_s"] / r["best_s"] for r in results)

    if len(common) < 2:
        return None
    name = min(sorted(common), key=ratio)
    return name, ratio(name)


def show(name: str, found: dict[str, Any]) -> None:
    for lost in found.get("lost", ()):
        print(f"{found['workload']}: left out: {lost}", flush=True)
    for failed in found.get("failures", ())[:3]:
        print(f"{found['workload']}: {failed[:300]}", flush=True)
    if "error" in found:
        print(f"{found['workload']}: {found['error']}", flush=True)
        return
    line = f"{name:16} {found['workload']}: {found['correct']} of {found['tried']} correct"
    if "best_s" in found:
        which = found["selected"]
        line += f", best {found['best_s'] * 1e6:.1f} µs {which}"
        line += f", spread {100 * found['best'][which]['spread']:.1f} %"
    if "peer_error" in found:
        line += f", no peer: {found['peer_error']}"
    if "ratio" in found:
        line += f", peer {found['peer_s'] * 1e6:.1f} µs, ratio {found['ratio']:.2f}"
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
