"""The limits of this host's processor: float32 multiply-adds in registers, and reading from memory.

    python benchmarks/peak.py

Figures of products, convolutions and models are to be read beside them. The multiply-adds are of 12 vectors that
depend on nothing but themselves; memory is read by a sum over 512 MB for each thread. Each thread has a core of its
own, and all begin at once. Medians of bursts, with the largest in a column of its own. It takes ten seconds, and needs
a C compiler with the vectors of GCC and Clang.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks.fixture import make_parser
from benchmarks.result import Table

# So many vectors hide the latency of two multiply-adds a cycle, and fit the sixteen registers of AVX2.
ROUNDS, STEPS, BYTES, VECTORS = 31, 1_000_000, 512 << 20, 12
CODE = """
#ifdef __AVX512F__
#define WIDTH 64
#else
#define WIDTH 32
#endif
typedef float vector __attribute__((vector_size(WIDTH)));
typedef long whole __attribute__((vector_size(WIDTH), aligned(8)));

int lanes(void) { return WIDTH / 4; }

float multiply(long steps, float factor) {
    vector by = factor - (vector){};
    START
    while (steps--) { STEP }
    return (TOTAL)[0];
}

long sum(const whole *data, long bytes) {
    whole sums[8] = {};
    for (long i = 0; i < bytes / WIDTH; i += 8) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) sums[j] += data[i + j];
    }
    for (int i = 1; i < 8; ++i) sums[0] += sums[i];
    return sums[0][0];
}

long sum_pieces(const whole *const *data, const long *bytes, long count) {
    long total = 0;
    for (long i = 0; i < count; ++i) total += sum(data[i], bytes[i]);
    return total;
}
"""


def build(folder: str) -> ctypes.CDLL:
    source, library = Path(folder, "peak.c"), Path(folder, "peak.so")
    # Variables of their own: the sums of an array would be computed one after another.
    sums = [f"sum{i}" for i in range(VECTORS)]
    code = CODE.replace("START", " ".join(f"vector {name} = by * {i}.0f;" for i, name in enumerate(sums)))
    code = code.replace("STEP", " ".join(f"{name} = {name} * by + by;" for name in sums))
    source.write_text(code.replace("TOTAL", " + ".join(sums)), encoding="ascii")
    options = ["-O2", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]
    subprocess.run(["cc", *options, source, "-o", library], check=True)
    made = ctypes.CDLL(str(library))
    made.multiply.argtypes = [ctypes.c_long, ctypes.c_float]
    made.sum.argtypes = [ctypes.c_void_p, ctypes.c_long]
    return made


def rates(work: float, calls: Sequence[Callable[[], object]], rounds: int = ROUNDS) -> list[float]:
    """The work of all threads per second, in each burst; `work` is that of a call, each in a thread of its own."""
    cores, barrier = sorted(os.sched_getaffinity(0)), threading.Barrier(len(calls))

    def run(number: int) -> list[tuple[float, float]]:
        os.sched_setaffinity(0, {cores[number % len(cores)]})
        times = []
        for _ in range(rounds):
            barrier.wait()
            begun = time.perf_counter()
            calls[number]()
            times.append((begun, time.perf_counter()))
        return times

    with ThreadPoolExecutor(len(calls)) as pool:
        bursts = zip(*pool.map(run, range(len(calls))), strict=True)
    return [work * len(calls) / (max(end for _, end in b) - min(begun for begun, _ in b)) for b in bursts]


def multiply(made: ctypes.CDLL, threads: int) -> list[float]:
    """Floating-point operations per second."""
    flops = 2.0 * made.lanes() * VECTORS * STEPS
    return rates(flops, [partial(made.multiply, STEPS, 0.5)] * threads)


def read(made: ctypes.CDLL, threads: int, rounds: int = ROUNDS) -> list[float]:
    """Bytes per second."""
    return rates(BYTES, [partial(made.sum, memory(i).ctypes.data, BYTES) for i in range(threads)], rounds)


@cache
def memory(number: int) -> np.ndarray:
    """The bytes that a thread reads."""
    return np.ones(BYTES, np.uint8)


def main() -> int:
    make_parser(__doc__).parse_args()
    table = Table({"threads": "", "GFLOP/s": "", "largest": "", "GB/s": "", "largest ": ""})
    with table.saved(runs=ROUNDS), tempfile.TemporaryDirectory() as folder:
        made = build(folder)
        for threads in range(1, len(os.sched_getaffinity(0)) + 1):
            found = [[x / 1e9 for x in burst] for burst in (multiply(made, threads), read(made, threads))]
            table.add(str(threads), *(cell for each in found for cell in (statistics.median(each), max(each))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
