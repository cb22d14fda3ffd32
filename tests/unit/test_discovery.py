"""Operators are found by walking their package, whoever asks first and in whatever order they are met."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.limit import HANG_S

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=HANG_S, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_look_up_imports_every_module_of_the_operators() -> None:
    files = (ROOT / "strategy" / "ops").rglob("*.py")
    modules = {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for f in files}
    code = "import sys\nfrom strategy.op import get_op\nget_op('dense')\nprint(*sys.modules, sep='\\n')"
    found = set(run(code).splitlines())
    assert len(modules) > 30
    assert modules <= found, sorted(modules - found)


ORDER = """
import pkgutil
from strategy.op import all_ops
from strategy.op_strategy import evaluate
from strategy.target import Target
from strategy.workload import Workload

names = pkgutil.iter_modules
pkgutil.iter_modules = lambda *where: {order}(names(*where), key=lambda m: m.name)
workloads = [
    Workload.make(op, {{"data": "float32[4,4]"}}, {{"axis": axis}})
    for op, axis in (("sum", [0]), ("max", [1]), ("cumsum", 0), ("softmax", 1), ("argsort", 1), ("topk", 1))
]
for target in ("cpu", "cuda -arch=sm_90"):
    for workload in workloads:
        print(workload, [i.name for _, i in evaluate(workload, Target.parse(target))])
"""


def test_implementations_are_offered_in_one_order() -> None:
    backwards = "(lambda found, key: sorted(found, key=key, reverse=True))"
    assert run(ORDER.format(order="sorted")) == run(ORDER.format(order=backwards))
