"""Peers of the GPU's figures: PyTorch's functions, and a copy of memory."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from strategy.record import TimingPolicy, estimate
from strategy.workload import Workload
from workers.cuda.kernel import COPIES, REPLAYED
from workers.timing import time_kernels

WITHOUT_PEER = ("matmul_nbits",)
FINAL = TimingPolicy(min_repeats=10, max_repeats=100, spread=0.01, budget_s=0.1)


def copy_bandwidth(driver: Any) -> float:
    """Bytes per second, read and written, that the device copies a quarter of a gibibyte at."""
    size = 1 << 28
    source, to = driver.allocate(size), driver.allocate(size)

    def measure(calls: int) -> float:
        def queue() -> None:
            for _ in range(calls):
                driver.copy(to, source, size)

        return float(driver.time(queue))

    seconds = _median_of(measure)
    driver.free(source)
    driver.free(to)
    return 2 * size / seconds


def _median_of(measure: Callable[[int], float]) -> float:
    (found,) = time_kernels([measure], FINAL, rng=random.Random(0))
    if found.error is not None:
        raise found.error
    return estimate(found.samples_s).median_s


def against_peer(
    workload: Workload, inputs: dict[str, Any], l2_bytes: int, best_s: float
) -> dict[str, Any]:
    """The peer's time and its ratio to ours, or why there is none: that does not cost us our row."""
    try:
        seconds = _time_peer(workload, inputs, l2_bytes)
    except Exception as error:
        return {"peer_error": f"{type(error).__name__}: {error}"}
    return {"peer_s": seconds, "ratio": seconds / best_s}


def _time_peer(workload: Workload, inputs: dict[str, Any], l2_bytes: int) -> float:
    """PyTorch's time for the same, by CUDA events, in its default precision without TF32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    size = sum(a.nbytes for a in inputs.values())
    copies = min(COPIES, max(1, math.ceil(2 * l2_bytes / size)))
    sets = [
        {name: _tensor_of(torch, array) for name, array in inputs.items()}
        for _ in range(copies)
    ]
    run = _peer_of(workload, torch)
    with torch.inference_mode():
        run(sets[0])
        return _time_on_device(torch, lambda i: run(sets[i]), copies)


def _time_on_device(torch: Any, run: Callable[[int], Any], copies: int) -> float:
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
            graph = _captured(torch, lambda: queue(size)) or False
        begin.record()
        replay(times) if times else queue(calls)
        end.record()
        end.synchronize()
        took = float(begin.elapsed_time(end)) * 1e-3
        return took * calls / (times * size) if times else took

    return _median_of(measure)


def _captured(torch: Any, queue: Callable[[], None]) -> Any:
    """A CUDA graph of what `queue` does; None where PyTorch cannot make one of it."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            queue()
    except RuntimeError:
        return None
    return graph


def _tensor_of(torch: Any, array: Any) -> Any:
    """A tensor on the device; PyTorch does not know NumPy's bfloat16."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16).cuda()
    return torch.from_numpy(array).cuda()


def _peer_of(workload: Workload, torch: Any) -> Callable[[dict[str, Any]], Any]:
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
