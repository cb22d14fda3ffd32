"""Products with weights of 4 and 8 bits for one token, beside the time in which memory is read.

    python benchmarks/low_precision_cpu.py

One row by weights of LLaMA-7B, in blocks of 32, by the configuration that runs untuned, through copies that together
are larger than the caches, as the layers of a network are. In turns with it the sum of `peak.py` reads the same copies
in as many threads: other memory may be faster or slower, by where the host has it.

Prints medians, and that of the time of reading the weight and its scales over the product's, turn by turn: 1 is the
limit that memory sets.

It takes about a minute.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks import peak
from benchmarks.fixture import make_parser
from benchmarks.result import Table
from strategy.compile import huge_page
from strategy.compile.lower import lower
from strategy.target import Target
from strategy.workload import Workload
from workers.reference import compare, random_inputs, reference, tolerances

BLOCK, CACHES = 32, peak.BYTES
STEP = 512  # bytes of a step of the sum
SHAPES = ((4096, 4096), (11008, 4096))
Call = Callable[[], Any]


def product(n: int, k: int, bits: int, level: int) -> Workload:
    inputs = {
        "data": f"float32[1,{k}]", "weight": f"uint8[{n},{k // BLOCK},{BLOCK * bits // 8}]",
        "scales": f"float32[{n},{k // BLOCK}]",
    }
    attrs = {"bits": bits, "block_size": BLOCK, "accuracy_level": level}
    return Workload.make("matmul_nbits", inputs, attrs, ["weight", "scales"])


def calls(workload: Workload, target: Target, name: str, copies: int) -> tuple[list[Call], list[np.ndarray]]:
    """A call of each copy of the inputs, checked once, and the copies."""
    import tvm

    inputs = random_inputs(workload, 0)
    (right,) = reference(workload, inputs)
    artefact = lower(workload, target, name).compile(checks=False)
    *given, out = artefact.arguments
    output = tvm.runtime.empty(out.tensor.concrete_shape, out.tensor.dtype)
    first = [artefact.prepare(a, tvm.runtime.tensor(inputs[a.name])) for a in given]
    artefact.main(*first, output)
    compare(output.numpy(), right, tolerances(workload, inputs, [right])[0])
    found: list[Call] = []
    read: list[np.ndarray] = []
    for _ in range(copies):
        own = [tvm.runtime.tensor(x.numpy()) for x in first]
        views = [np.from_dlpack(x) for x in own]  # `numpy()` copies
        for x in views:  # as a network's are
            huge_page.collapse(x.ctypes.data, x.nbytes)
        found.append(partial(artefact.main, *own, output))
        read += views
    return found, read


def reading(made: ctypes.CDLL, memory: Sequence[np.ndarray], threads: int) -> Callable[[], float]:
    """A function that reads all of the memory, each thread its share of each piece; bytes per second."""
    shares = [x.nbytes // threads // STEP * STEP for x in memory]
    sizes = (ctypes.c_long * len(shares))(*shares)
    pieces = [
        (ctypes.c_void_p * len(shares))(*(x.ctypes.data + i * n for x, n in zip(memory, shares, strict=True)))
        for i in range(threads)
    ]
    calls = [partial(made.sum_pieces, each, sizes, len(shares)) for each in pieces]
    return lambda: peak.rates(sum(shares), calls, 1)[0]


def times(read: Callable[[], float], own: Sequence[Call], rounds: int) -> tuple[float, float, float]:
    """The medians of the bytes per second of reading, of the seconds of a call, and of their products, in turns."""
    samples: list[tuple[float, float]] = []
    cores = os.sched_getaffinity(0)
    for _ in range(rounds + 1):
        rate = read()
        # TVM binds its threads to the other cores, and this one to none: for seconds it may share the core of another.
        os.sched_setaffinity(0, {min(cores)})
        begin = time.perf_counter()
        for call in own:
            call()
        samples.append((rate, (time.perf_counter() - begin) / len(own)))
        os.sched_setaffinity(0, cores)
    rates, seconds = zip(*samples[1:], strict=True)
    # Memory is faster in some seconds than in others: neighbours in time are compared.
    beside = statistics.median(rate * s for rate, s in samples[1:])
    return statistics.median(rates), statistics.median(seconds), beside


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    # Before TVM's runtime starts, whose own count is half of the cores.
    os.environ["TVM_NUM_THREADS"] = str(arguments.threads)
    target = Target.parse("cpu").with_threads(arguments.threads)
    table = Table({"workload": "", "plevel": "s", "memory": "s", "GB/s": "", "ratio": "×"})
    about = {"peer": "reading the same bytes", "runs": arguments.rounds}
    with table.saved(**about), tempfile.TemporaryDirectory() as folder:
        made = peak.build(folder)
        for n, k in SHAPES:
            for bits, level in ((4, 0), (4, 4), (8, 0), (8, 4)):
                workload = product(n, k, bits, level)
                size = sum(i.tensor.size * (1 if i.name == "weight" else 4) for i in workload.inputs)
                products, memory = calls(workload, target, "matmul_nbits_panel.cpu", -(-CACHES // size))
                rate, own, beside = times(reading(made, memory, arguments.threads), products, arguments.rounds)
                label = f"1×{n}×{k},int{bits}" + (",int8 data" if level else "")
                table.add(label, own, size / rate, round(rate * 1e-9, 1), size / beside)


if __name__ == "__main__":
    main()
