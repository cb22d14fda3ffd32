"""The cost of a call of a kernel in a graph of `torch.compile`, beside PyTorch's own operators.

    python benchmarks/call_cost.py

The kernels are of sixteen numbers, so that hardly more than the call is left: `plevel_run`, as the code that Inductor
writes calls it with its output, and PyTorch's operator with `out=`. Medians of bursts that take turns, less the loop's
own time. The goal is 0.3 µs a call. It takes half a minute, and needs torch==2.13.0.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.fixture import make_parser
from benchmarks.result import Table

GOAL_S = 0.3e-6
CALLS, ROUNDS = 20_000, 31
OPERANDS = {"relu": ("data",), "add": ("lhs", "rhs")}


def burst(call: Callable[[], Any]) -> float:
    """Seconds of a call."""
    begun = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begun) / CALLS


def make_calls(name: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The call of the kernel, and that of PyTorch's operator."""
    import torch

    from plevel.torch import kernel, operation
    from plevel.torch.plan import model_target
    from strategy.select import NO_RECORDS, select
    from strategy.workload import Workload

    workload = Workload.make(name, dict.fromkeys(OPERANDS[name], "float32[16]"))
    kernels, errors = kernel.build([select(workload, model_target(), NO_RECORDS)])
    if errors:
        sys.exit(f"{workload}: {errors[workload]}")
    operation.load(built := kernels[workload])
    given, out = [torch.randn(16) for _ in OPERANDS[name]], torch.empty(16)
    own = partial(operation.native().run, *given, built.digest, out=out)
    return own, partial(getattr(torch.ops.aten, name).out, *given, out=out)


def main() -> int:
    make_parser(__doc__).parse_args()
    table = Table({"call": "", "plevel": "s", "PyTorch": "s", "ratio": "×", "goal": "s"})
    with table.saved(peer="PyTorch", runs=ROUNDS):
        for name, operands in OPERANDS.items():
            calls = (partial(int), *make_calls(name))
            rounds = [[burst(call) for call in calls] for _ in range(ROUNDS)]
            loop, own, peer = (statistics.median(times) for times in zip(*rounds, strict=True))
            own_s, peer_s = own - loop, peer - loop
            table.add(f"{name}, {len(operands) + 1} tensors", own_s, peer_s, peer_s / own_s, GOAL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
