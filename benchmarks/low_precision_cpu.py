"""Products with weights of 4 and 8 bits for one token, beside the time in which memory is read.

    python benchmarks/low_precision_cpu.py

One row by weights of LLaMA-7B, in blocks of 32, by the configuration that runs untuned; timed in turns with a sum over
as many bytes as the weight and its scales have, in as many threads. Both go through copies that together are larger
than the caches, as the layers of a network are.

Prints medians, and the ratio of the time of the sum to that of the product: 1 is the limit that memory sets.

It takes about a minute.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.fixture import make_parser
from benchmarks.result import Table
from strategy.compile.lower import lower
from strategy.target import Target
from strategy.workload import Workload
from workers.reference import compare, random_inputs, reference, tolerances

BLOCK, CACHES = 32, 128 << 20
SHAPES = ((4096, 4096), (11008, 4096))
Call = Callable[[], Any]


def product(n: int, k: int, bits: int, level: int) -> Workload:
    inputs = {
        "data": f"float32[1,{k}]", "weight": f"uint8[{n},{k // BLOCK},{BLOCK * bits // 8}]",
        "scales": f"float32[{n},{k // BLOCK}]",
    }
    attrs = {"bits": bits, "block_size": BLOCK, "accuracy_level": level}
    return Workload.make("matmul_nbits", inputs, attrs, ["weight", "scales"])


def calls(workload: Workload, target: Target, name: str, copies: int) -> list[Call]:
    """A call of each copy of the large inputs, checked once."""
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
    for _ in range(copies):
        own = [tvm.runtime.tensor(x.numpy()) for x in first]
        found.append(lambda own=own: artefact.main(*own, output))
    return found


def times(contenders: Sequence[Sequence[Call]], rounds: int) -> list[float]:
    """The median seconds of a call of each, in turns of all copies."""
    samples: list[list[float]] = [[] for _ in contenders]
    for turn in range(rounds + 1):
        for found, own in zip(samples, contenders, strict=True):
            begin = time.perf_counter()
            for call in own:
                call()
            if turn:
                found.append((time.perf_counter() - begin) / len(own))
    return [statistics.median(found) for found in samples]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    # Before TVM's runtime starts, whose own count is half of the cores.
    os.environ["TVM_NUM_THREADS"] = str(arguments.threads)
    target = Target.parse("cpu").with_threads(arguments.threads)
    table = Table({"workload": "", "plevel": "s", "memory": "s", "GB/s": "", "ratio": "×"})
    with table.saved(peer="a sum over as many bytes", runs=arguments.rounds):
        for n, k in SHAPES:
            for bits, level in ((4, 0), (4, 4), (8, 0), (8, 4)):
                workload = product(n, k, bits, level)
                size = sum(i.tensor.size * (1 if i.name == "weight" else 4) for i in workload.inputs)
                copies = -(-CACHES // size)
                total = Workload.make("sum", {"data": f"float32[64,{size // 256}]"}, {"axis": [1]})
                read = calls(total, target, "reduce_row.cpu", copies)
                memory, own = times([read, calls(workload, target, "matmul_nbits_panel.cpu", copies)], arguments.rounds)
                label = f"1×{n}×{k},int{bits}" + (",int8 data" if level else "")
                table.add(label, own, memory, round(size / memory * 1e-9, 1), memory / own)


if __name__ == "__main__":
    main()
