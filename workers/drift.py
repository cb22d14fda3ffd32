"""The calibration kernel: the same work right before and after each batch, to detect changes of the host.

It computes square roots over 512 KB, so that it depends on the core's frequency, on other programs on the core,
and on the caches next to it. On a quiet host its medians lie within one percent.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from strategy.record import Reference

DRIFT = 0.05  # beyond this a batch is timed once more, and is noisy where it drifts again
REPEATS = 9
_CALLS = 20  # 0.4 ms on a core of 2025
_SIZE = 65536


def time_reference() -> tuple[float, ...]:
    """The seconds that one call took in each of some repeats, warm; in the process that times."""
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
    """By how much the slowest of the medians exceeds the fastest; 0 of fewer than two."""
    medians = [statistics.median(r.samples_s) for r in references]
    return max(medians) / min(medians) - 1 if medians else 0.0
