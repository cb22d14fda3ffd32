"""All GPU figures in one run: correctness, best against the vendor, repeatability, the runner's cost.

    python benchmarks/gpu.py                      # everything, under ten minutes; writes gpu.json
    python benchmarks/gpu.py --only dense --trials 64
    python benchmarks/gpu.py --no-peer            # without PyTorch, the peer

Needs a GPU with its driver, TVM (plevel[worker]), nvcc or NVRTC and pycuda (docs/gpu.md); for the
peer's figures PyTorch with CUDA, whose products and convolutions are cuBLAS's and cuDNN's. Both are
timed by CUDA events, the peer over as many copies of its operands as fill the L2 cache twice, as
plevel's are.

Configurations are drawn at random after the fallback, as many as fit the time of each case; the best is
timed once more by the confirm policy. Every case prints a line, and all are written with device,
driver and date. A case that fails is reported and the others go on; a session that loses its context
ends, and is reported, too: each case runs in a child of its own.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strategy.cuda.build import compile_cuda
from strategy.lower import lower
from strategy.op_strategy import Candidate, candidates
from strategy.record import CONFIRM_POLICY, SEARCH_POLICY, TimingPolicy, estimate
from strategy.select import holds
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload
from workers.builder import Built
from workers.cuda_kernel import CudaKernel
from workers.kernel import Data
from workers.reference import random_inputs, reference, tolerances
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
            "data": f"float32[1,{c},{h},{w}]",
            "weight": f"float32[{out},{c},{window},{window}]",
        }
        attrs = {"strides": stride, "padding": padding}
        found.append(("conv2d float32", Workload.make("conv2d", inputs, attrs, ["weight"])))
    found += [
        ("rows", Workload.make("softmax", {"data": "float32[8192,1024]"})),
        ("rows", Workload.make("softmax", {"data": "float16[3072,512]"})),
        ("scan", Workload.make("cumsum", {"data": "float32[16777216]"})),
        ("scan", Workload.make("cumsum", {"data": "float32[4096,4096]"}, {"axis": 1})),
        ("topk", Workload.make("topk", {"data": "float32[4096,4096]"}, {"k": 16})),
        ("memory", Workload.make("add", {"lhs": "float32[64,1048576]", "rhs": "float32[1048576]"})),
        ("memory", Workload.make("sum", {"data": "float32[8192,8192]"}, {"axis": [1]})),
    ]
    return found


def measure(
    workload: Workload, trials: int, seconds: float, peer: bool, seed: int
) -> dict[str, Any]:
    """One case, in this process: shares of valid and correct, the best, and the peer."""
    from workers.cuda import open_driver

    driver = open_driver(0)
    target = driver.target()
    inputs = random_inputs(workload, seed)
    expected = tuple(reference(workload, inputs))
    data = Data((workload.key, seed), inputs, {}, expected, tolerances(workload, inputs, expected))
    folder = tempfile.TemporaryDirectory(prefix="plevel-gpu-")

    def make(candidate: Candidate, config: Config) -> CudaKernel:
        path = Path(folder.name, "kernel.json")
        compile_cuda(lower(workload, target, candidate.implementation, config)).save(path)
        return CudaKernel(Built(entry=0, path=str(path)), data, driver)

    counts = {"tried": 0, "built": 0, "correct": 0}
    failures: dict[str, int] = {}
    best: dict[str, tuple[float, Config]] = {}
    overheads = []
    for candidate, config in draw(workload, target, trials, seconds, seed):
        counts["tried"] += 1
        try:
            kernel = make(candidate, config)
            counts["built"] += 1
            began = time.perf_counter()
            kernel.load()
            kernel.check()
            counts["correct"] += 1
            median, timed_s = timed(kernel, SEARCH_POLICY)
            overheads.append(time.perf_counter() - began - kernel.check_s - timed_s)
            kernel.release()
        except Exception as error:
            failures[type(error).__name__] = failures.get(type(error).__name__, 0) + 1
            continue
        name = candidate.implementation
        if name not in best or median < best[name][0]:
            best[name] = (median, config)
    result: dict[str, Any] = {"workload": str(workload), **counts, "failures": failures}
    result["device"] = target.model
    result["state"] = driver.describe()
    result["overhead_s"] = statistics.median(overheads) if overheads else None
    finals = {}
    for name, (_, config) in best.items():
        candidate = next(c for c in candidates(workload, target) if c.implementation == name)
        kernel = make(candidate, config)
        kernel.load()
        kernel.check()
        medians = [timed(kernel, CONFIRM_POLICY)[0] for _ in range(3)]
        finals[name] = {
            "median_s": statistics.median(medians), "config": config.to_json(),
            "spread": (max(medians) - min(medians)) / statistics.median(medians),
        }  # fmt: skip
        kernel.release()
    result["best"] = finals
    if finals:
        result["best_s"] = min(f["median_s"] for f in finals.values())
        if workload.flops is not None:
            result["tflops"] = workload.flops / result["best_s"] / 1e12
        if peer:
            result["peer_s"] = time_peer(workload, inputs, driver.l2_bytes)
            result["ratio"] = result["peer_s"] / result["best_s"]
    folder.cleanup()
    return result


def draw(workload: Workload, target: Target, trials: int, seconds: float, seed: int) -> Any:
    """Candidates with configurations, in turn, until either bound is reached."""
    began = time.monotonic()
    lists: list[tuple[Candidate, list[Config]]] = []
    for candidate in candidates(workload, target):
        if holds(candidate, workload):
            configs = [candidate.fallback]
            if candidate.space is not None:
                configs += candidate.space.sample(random.Random(seed), trials)
            lists.append((candidate, configs))
    for turn in range(trials):
        for candidate, configs in lists:
            if turn < len(configs):
                if time.monotonic() - began > seconds:
                    return
                yield candidate, configs[turn]


def timed(kernel: CudaKernel, policy: TimingPolicy) -> tuple[float, float]:
    """The median of one kernel, and the seconds that its calls took."""
    (found,) = time_kernels([kernel.measure], policy, rng=random.Random(0))
    if found.error is not None:
        raise found.error
    return estimate(found.samples_s).median_s, found.run_s


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

        def measure(calls: int) -> float:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for i in range(calls):
                run(sets[i % copies])
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e-3

        (found,) = time_kernels([measure], CONFIRM_POLICY, rng=random.Random(0))
    if found.error is not None:
        raise found.error
    return estimate(found.samples_s).median_s


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
        "softmax": lambda x: torch.softmax(x["data"], attrs.axis),
        "cumsum": lambda x: torch.cumsum(x["data"], attrs.axis or 0),
        "topk": lambda x: torch.topk(x["data"], attrs.k, attrs.axis),
        "add": lambda x: torch.add(x["lhs"], x["rhs"]),
        "sum": lambda x: torch.sum(x["data"], attrs.axis),
    }[workload.op]  # type: ignore[no-any-return]


def _child(
    pipe: Any, workload: Workload, trials: int, seconds: float, peer: bool, seed: int
) -> None:
    try:
        pipe.send(measure(workload, trials, seconds, peer, seed))
    except BaseException as error:  # a lost context, or what is not installed
        pipe.send({"workload": str(workload), "error": f"{type(error).__name__}: {error}"})


def in_child(*arguments: Any, limit_s: float) -> dict[str, Any]:
    """`measure` in a process of its own: a context that is lost takes its process with it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs, *arguments))
    child.start()
    theirs.close()
    try:
        if ours.poll(limit_s):
            return ours.recv()  # type: ignore[no-any-return]
        return {"workload": str(arguments[0]), "error": f"nothing after {limit_s:.0f} s"}
    except EOFError:
        return {"workload": str(arguments[0]), "error": "its process died"}
    finally:
        child.kill()
        child.join()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", help="cases whose name begins so")
    parser.add_argument("--trials", type=int, default=24, help="configurations per implementation")
    parser.add_argument("--total", type=float, default=540, help="seconds for all cases")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    options = parser.parse_args()
    chosen = [(n, w) for n, w in cases() if n.startswith(options.only or "")]
    # A third for starting, finals and the peer.
    seconds = options.total / len(chosen) * 0.6
    results = []
    for name, workload in chosen:
        found = in_child(
            workload, options.trials, seconds, not options.no_peer, options.seed,
            limit_s=max(60, 4 * seconds),
        )  # fmt: skip
        results.append({"goal": name, **found})
        show(name, found)
    sums = {k: sum(r.get(k, 0) for r in results) for k in ("tried", "built", "correct")}
    print(f"of {sums['tried']} tried, {sums['built']} were built and {sums['correct']} correct")
    for goal in dict.fromkeys(name for name, _ in chosen):
        ratios = [r["ratio"] for r in results if r["goal"] == goal and "ratio" in r]
        if ratios:
            print(
                f"{goal}: {statistics.geometric_mean(ratios):.2f} of PyTorch's speed ({len(ratios)} cases)"
            )
    written = {"date": dt.datetime.now(dt.UTC).isoformat(), "cases": results}
    options.out.write_text(json.dumps(written, indent=1))
    print(f"{options.out} is written")
    return int(sums["correct"] == 0)


def show(name: str, found: dict[str, Any]) -> None:
    if "error" in found:
        print(f"{found['workload']}: {found['error']}")
        return
    line = f"{name:16} {found['workload']}: {found['correct']} of {found['tried']} correct"
    if "best_s" in found:
        which = min(found["best"], key=lambda n: found["best"][n]["median_s"])
        line += f", best {found['best_s'] * 1e6:.1f} µs {which}"
        line += f", spread {100 * found['best'][which]['spread']:.1f} %"
    if "ratio" in found:
        line += f", peer {found['peer_s'] * 1e6:.1f} µs, ratio {found['ratio']:.2f}"
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
