"""Kernels of this checkout beside those of another, with the configurations used without tuning.

    git worktree add /tmp/before c33709d
    python benchmarks/revision.py /tmp/before

Each checkout compiles the same workloads in a process of its own; one process then times the two kernels
of each in turns, in short bursts with one thread. The least of the bursts counts, as only other programs make one
longer. Prints these, and the ratio of this checkout's time to the other's: below 1, this one is faster.

It takes three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fixture import make_parser
from benchmarks.race import burst
from benchmarks.result import Table

BURST_S = 0.003
THREADS = 1
# Operator, types and attributes; tails, strides and padding among them.
KERNELS: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("conv2d", {"data": "float32[1,3,224,224]", "weight": "float32[64,3,7,7]"}, {"strides": 2, "padding": 3}),
    ("conv2d", {"data": "float32[1,256,14,14]", "weight": "float32[256,256,3,3]"}, {"padding": 1}),
    ("conv2d", {"data": "float32[1,512,7,7]", "weight": "float32[2048,512,1,1]"}, {}),
    ("conv2d", {"data": "float32[1,144,56,56]", "weight": "float32[144,1,3,3]"}, {"padding": 1, "groups": 144}),
    ("dense", {"data": "float32[37,531]", "weight": "float32[1003,531]"}, {}),
    ("batch_matmul", {"x": "float32[12,127,63]", "y": "float32[12,125,63]"}, {}),
    ("softmax", {"data": "float32[64,1000]"}, {}),
    ("log_softmax", {"data": "float32[64,777]"}, {}),
    ("max", {"data": "float32[384,768]"}, {"axis": [1]}),
    ("max", {"data": "float32[1000,1003]"}, {"axis": [0]}),
    ("layer_norm", {"data": "float32[128,771]", "gamma": "float32[771]", "beta": "float32[771]"}, {}),
    ("transpose", {"data": "float32[768,3072]"}, {}),
    ("max_pool2d", {"data": "float32[1,64,112,112]"}, {"pool_size": 3, "strides": 2, "padding": 1}),
    ("sum", {"data": "float32[1000,1003]"}, {"axis": [0]}),
    ("cumsum", {"data": "float32[128,1000]"}, {"axis": 1}),
]


def build(checkout: Path, folder: Path) -> None:
    """Compile all that a checkout has for the workloads."""
    sys.path.insert(0, str(checkout))
    try:
        from strategy.compile.lower import lower
    except ModuleNotFoundError:  # where revisions before had it
        from strategy.lower import lower
    from strategy.op_strategy import candidates
    from strategy.target import Target
    from strategy.workload import Workload

    target = Target.parse("cpu").with_threads(THREADS)
    built: dict[str, list[str]] = {}
    for number, (op, inputs, attrs) in enumerate(KERNELS):
        work = Workload.make(op, inputs, attrs, ["weight"] if "weight" in inputs else [])
        for found in candidates(work, target):
            invalid = found.condition is not None and not found.condition.decide()
            if invalid or found.library or found.space is None:
                continue
            artefact = lower(work, target, found.implementation).compile(checks=False)
            name = f"{op} {' '.join(inputs.values())} {found.implementation}"
            path = folder / f"{number}_{found.implementation}"
            artefact.write_object(path.with_suffix(".o"))
            subprocess.run(["ld", "-shared", "-o", f"{path}.so", path.with_suffix(".o")], check=True)
            built[name] = [f"{path}.so", *(a.type for a in artefact.arguments)]
    (folder / "kernels.json").write_text(json.dumps(built))


def kernel(path: str, types: list[str]) -> Callable[[], Any]:
    """The call of a kernel on arrays of its own."""
    import numpy as np
    import tvm

    from strategy.types import TensorType

    rng = np.random.default_rng(0)
    kinds = [TensorType.parse(text) for text in types]
    arrays = [tvm.runtime.tensor(rng.uniform(-1, 1, k.concrete_shape).astype(k.dtype)) for k in kinds]
    main = tvm.runtime.load_module(path)["main"]
    return lambda: main(*arrays)


def main() -> int:
    """Compile both, and print a line for each kernel that both have."""
    parser = make_parser(__doc__)
    parser.add_argument("other", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.build:
        build(arguments.other, arguments.build)
        return 0
    if not (arguments.other / "strategy").is_dir():
        parser.error(f"{arguments.other} is no checkout of plevel")
    os.environ["TVM_NUM_THREADS"] = str(THREADS)
    here = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(prefix="plevel-bench-") as text:
        kernels = []
        for name, checkout in (("other", arguments.other.resolve()), ("own", here)):
            folder = Path(text) / name
            folder.mkdir()
            command = [sys.executable, __file__, str(checkout), "--build", str(folder)]
            subprocess.run(command, check=True, cwd=checkout, env={**os.environ, "PYTHONPATH": str(here)})
            kernels.append(json.loads((folder / "kernels.json").read_text()))
        table, ratios = Table({"kernel": "", "other": "s", "this": "s", "ratio": "×"}), []
        with table.saved(peer="the other checkout", note=f"the least of {arguments.rounds} bursts"):
            for name in sorted(kernels[0].keys() & kernels[1].keys()):
                other, own = (kernel(path, types) for path, *types in (found[name] for found in kernels))
                pairs = [(burst(other, BURST_S), burst(own, BURST_S)) for _ in range(arguments.rounds)]
                before, after = (min(times) for times in zip(*pairs, strict=True))
                ratios.append(after / before)
                table.add(name, before, after, ratios[-1])
            table.add(f"geometric mean of {len(ratios)}", None, None, statistics.geometric_mean(ratios))
    return 0


if __name__ == "__main__":
    sys.exit(main())
