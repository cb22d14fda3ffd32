"""The spaces of tunable implementations on this host's CPU: how large they are, and how good at random.

    python benchmarks/space_cpu.py                      # all groups
    python benchmarks/space_cpu.py --only images axes   # some, kept as a table of their own
    python benchmarks/space_cpu.py --only conv2d --samples 64

For each implementation and some of its workloads: the size of the space, the share of it that is valid, and
of configurations drawn at random the share within 10 % of the best found; how much slower than that
best the median is, and the fallback, which is used without tuning. The best is that of those drawn and
the fallback, so that it is a lower bound. Each is timed for a few milliseconds in every round, all in turn:
a moment in which something else ran counts against none of them alone.

All groups take more than an hour.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.fixture import make_parser
from benchmarks.low_precision_cpu import SHAPES, product
from benchmarks.operators_cpu import GROUPS
from benchmarks.race import Layer, burst, plevel_call
from benchmarks.result import Table

if TYPE_CHECKING:
    from strategy.space import ConfigSpace
    from strategy.workload import Workload


class Bits(NamedTuple):
    """A row by a weight of few bits; at accuracy level 4 its numbers are rounded to 8 bits."""

    n: int
    k: int
    bits: int
    level: int

    @property
    def name(self) -> str:
        return f"1×{self.n}×{self.k},int{self.bits}" + ",int8 data" * (self.level == 4)

    def workload(self) -> Workload:
        return product(self.n, self.k, self.bits, self.level)


BURST_S = 0.005
ROUNDS = 5
WORKLOADS: dict[str, Sequence[Layer]] = {
    "conv2d": [
        row
        for group, names in {
            "resnet50": ("64→64@56,3×3", "512→512@7,3×3", "128→128@56,3×3/2", "256→1024@14,1×1"),
            "depthwise": ("96dw@112,3×3/2", "576dw@14,3×3"),
            "pointwise": ("144→24@56,1×1",),
        }.items()
        for row in GROUPS[group]
        if row.name in names
    ],
    "batch_matmul": [row for row in GROUPS["bert"] if "×384" in row.name and row.op == "batch_matmul"],
    "memory": GROUPS["memory"],
    "first": [row for row in GROUPS["first"] if row.name in ("3→32@640,6×6/2", "3→64@224,7×7/2")],
    "images": GROUPS["images"],
    "axes": GROUPS["axes"],
    "chains": GROUPS["chains"],
    "glue": GROUPS["glue"],
    "attention": [row for row in GROUPS["attention"] if row.op == "attention"],
    "narrow": [row for row in GROUPS["narrow"] if row.dtype != "float32"],
    "groups": [row for row in GROUPS["windows"] if ",g" in row.name],
    "experts": GROUPS["experts"],
    "bits": [Bits(*SHAPES[0], bits, level) for bits in (4, 8) for level in (0, 4)],
}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--implementations", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(arguments.threads)
    table = Table({
        "": "", "workload": "", "size": "", "valid": "%", "within 10 %": "%", "median": "×", "fallback": "×",
    })
    fallbacks: dict[str, list[float]] = {}
    variant = "" if arguments.only == list(WORKLOADS) else "-".join(arguments.only)
    with table.saved(keep=not arguments.implementations, variant=variant, peer="the best of those drawn", runs=ROUNDS):
        for layer in (layer for op in arguments.only for layer in WORKLOADS[op]):
            for name, *figures, fallback in _rows(layer, arguments):
                fallbacks.setdefault(name, []).append(fallback)
                table.add(f"`{name}`", layer.name, *figures, fallback)
    for name, ratios in fallbacks.items():
        print(f"{name}: the fallback takes {statistics.geometric_mean(ratios):.2f}× the best (geometric mean)")
    return 0


def _rows(layer: Layer, arguments: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """Of each implementation the name, the size, the shares that are valid and near the best, and two ratios to it."""
    from strategy.op_strategy import candidates
    from strategy.target import Target

    workload, target = layer.workload(), Target.parse("cpu").with_threads(arguments.threads)
    for candidate in candidates(workload, target):
        name, space = candidate.implementation, candidate.space
        if space is None or (arguments.implementations and name not in arguments.implementations):
            continue
        if candidate.condition is not None and not candidate.condition.decide():
            continue
        drawn = space.sample(random.Random(0), arguments.samples)
        calls = [plevel_call(workload, target, name, config) for config in (*drawn, space.fallback)]
        rounds = [[burst(call, BURST_S) for call in calls] for _ in range(ROUNDS)]
        *times, fallback = map(min, zip(*rounds, strict=True))
        best = min(*times, fallback)
        near = sum(t <= 1.1 * best for t in times) / len(times)
        size = math.prod(len(k.values) for k in space.knobs)
        yield name, size, _valid_share(space), near, statistics.median(times) / best, fallback / best


def _valid_share(space: ConfigSpace) -> float:
    """By counting, or of many drawn where there are too many."""
    size = math.prod(len(k.values) for k in space.knobs)
    count = space.count(limit=50_000)
    if count is not None:
        return count / size
    rng, tries = random.Random(0), 20_000
    return sum(space.allows({k.name: rng.choice(k.values) for k in space.knobs}) for _ in range(tries)) / tries


if __name__ == "__main__":
    sys.exit(main())
