"""The calibration kernel: the same work right before and after each batch, to detect changes of the host.

It computes square roots over 512 KB, so that its time depends on the core's frequency and caches, and on
other programs on the core. On a quiet host its medians agree within one percent. A program on the core's hyper-thread
that slows products by half slows it by 3 % only. Products of 64×64 in its place saw that, and had every other batch on
a shared virtual machine timed twice: a run took 1.6 times as long there, and its intervals were as wide.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from strategy.record import Reference

DRIFT = 0.05  # a batch above this is timed once more, and noisy if it drifts again
REPEATS = 9
_CALLS = 20  # 0.4 ms on a core of 2025
_SIZE = 65536


def time_reference() -> tuple[float, ...]:
    """The seconds of one warm call in each of several repeats; to be called in the timing process."""
    data = np.linspace(1, 2, _SIZE, dtype=np.float32)
    out = np.empty_like(data)
    samples = []
    for _ in range(REPEATS + 2):
        began = time.perf_counter()
        for _ in range(_CALLS):
            np.sqrt(data, out=out)
        samples.append((time.perf_counter() - began) / _CALLS)
    return tuple(samples[2:])


def drift(references: Sequence[Reference]) -> float:
    """The relative excess of the slowest median over the fastest; 0 for fewer than two."""
    medians = [statistics.median(r.samples_s) for r in references]
    return max(medians) / min(medians) - 1 if medians else 0.0
