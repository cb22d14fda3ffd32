"""One function for every size, beside functions made for one size, on this host's CPU.

    python benchmarks/symbolic_cpu.py
    python benchmarks/symbolic_cpu.py --sizes 1 16 128

Operators of BERT-base whose leading dimension is known at run time only, float32, untuned: the fallback of
the highest plevel that takes the dimension as a symbol, beside the same implementation lowered for the
size itself, and beside the plain schedule for any size. Bursts of the three alternate.

Prints medians, and the ratio of the time of the function for one size to that of the one for all: above 1,
nothing is lost.

It takes about a minute.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.fixture import make_parser
from benchmarks.result import Table

if TYPE_CHECKING:
    from strategy.workload import Workload

CASES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "gelu": ({"data": "float32[m,3072]"}, {}),
    "add": ({"lhs": "float32[m,768]", "rhs": "float32[768]"}, {}),
    "softmax": ({"data": "float32[m,384]"}, {}),
    "layer_norm": ({"data": "float32[m,768]", "gamma": "float32[768]", "beta": "float32[768]"}, {}),
    "sum": ({"data": "float32[m,768]"}, {"axis": [1]}),
    "dense": ({"data": "float32[m,768]", "weight": "float32[768,768]"}, {}),
    "batch_matmul": ({"x": "float32[m,128,64]", "y": "float32[m,128,64]"}, {}),
}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 16, 128])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help="bursts of each contender")
    arguments = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(arguments.threads)
    ratios = []
    table = Table({
        "operator": "", "m": "", "implementation": "", "any m": "s", "this m": "s", "ratio": "×",
        "plain schedule, any m": "s",
    })
    with table.saved(peer="the same implementation lowered for the size", runs=arguments.rounds):
        for op in CASES:
            for size, name, (for_all, for_one, plain) in _times(op, arguments):
                ratios.append(for_one / for_all)
                table.add(op, size, name, for_all, for_one, ratios[-1], plain)
    print(f"{len(ratios)} rows: {statistics.geometric_mean(ratios):.2f}× on average (geometric)")
    return 0


def _times(op: str, arguments: argparse.Namespace) -> Any:
    """For each size: what is chosen, its median for all sizes and for this one, and that of the plain schedule."""
    from benchmarks.race import burst
    from strategy.op_strategy import candidates
    from strategy.target import Target
    from strategy.workload import Workload

    target = Target.parse("cpu").with_threads(arguments.threads)
    inputs, attrs = CASES[op]
    constants = [name for name in inputs if name == "weight"]
    whole = Workload.make(op, inputs, attrs, constants)
    usable = [c for c in candidates(whole, target) if c.symbolic and c.condition is None and c.library is None]
    name = max(usable, key=lambda c: c.plevel).implementation
    plain = next((c.implementation for c in usable if not c.tunable and c.implementation != name), None)
    for size in arguments.sizes:
        sized = {n: kind.replace("m", str(size)) for n, kind in inputs.items()}
        one = Workload.make(op, sized, attrs, constants)
        calls = [_call(whole, one, target, name), _call(one, one, target, name)]
        if plain is not None:
            calls.append(_call(whole, one, target, plain))
        rounds = [[burst(call) for call in calls] for _ in range(arguments.rounds + 1)][1:]  # the first warms up
        medians = [statistics.median(found) for found in zip(*rounds, strict=True)]
        yield size, name, (*medians, None)[:3]


def _call(lowered: Workload, called: Workload, target: Any, name: str) -> Callable[[], Any]:
    """A call of an implementation lowered for one workload with the tensors of another."""
    import tvm

    from strategy.compile.lower import lower
    from workers.reference import random_inputs

    artefact = lower(lowered, target, name).compile()
    given = random_inputs(called, 0)
    inputs = [artefact.prepare(a, tvm.runtime.tensor(given[a.name])) for a in artefact.arguments[:-1]]
    main = artefact.main
    out = tvm.runtime.empty(called.out_type.concrete_shape, called.out_type.dtype)
    return lambda: main(*inputs, out)


if __name__ == "__main__":
    sys.exit(main())
