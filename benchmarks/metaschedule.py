"""A Relax module tuned by MetaSchedule and built as a library, in a process without PyTorch.

    python -m benchmarks.metaschedule MODULE.json LIBRARY.so THREADS TRIALS

TVM imports PyTorch where it is installed, and MetaSchedule's intrinsics then take a minute to import, in each of its
builders: longer than it waits for one. So the processes of this script find no PyTorch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NEEDED = ("cloudpickle", "psutil", "tornado")  # by MetaSchedule, beside TVM


def product(m: int, n: int, k: int) -> Any:
    """The plain definition of a product of m×k by n×k in float32."""
    from tvm import te

    x, w, r = te.placeholder((m, k), name="data"), te.placeholder((n, k), name="weight"), te.reduce_axis((0, k), "r")
    y = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[j, r], axis=r), name="dense")
    return te.create_prim_func([x, w, y]).with_attr("global_symbol", "main")


def build(module: Path, library: Path, threads: int, trials: int) -> None:
    """Tune and build a module in a child; its output goes to this process's."""
    with without_torch() as environment:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.metaschedule", module, library, str(threads), str(trials)],
            env=environment | {"TVM_NUM_THREADS": str(threads)}, check=True,
        )  # fmt: skip


@contextmanager
def without_torch() -> Iterator[dict[str, str]]:
    """The environment of a process that finds no PyTorch."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "torch.py").write_text("raise ImportError('hidden from TVM')\n")
        yield {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *(p for p in sys.path if p)])}


def main() -> None:
    import tvm
    from tvm import relax

    from strategy.target import Target

    source, library, threads, trials = sys.argv[1:]
    module = tvm.ir.load_json(Path(source).read_text())
    target = tvm.target.Target(Target.parse("cpu").with_threads(int(threads)).to_tvm())
    with tempfile.TemporaryDirectory() as folder:
        tuned = relax.get_pipeline(
            "static_shape_tuning", total_trials=int(trials), target=target, work_dir=folder, cpu_weight_prepack=True
        )(module)
    tvm.compile(tuned, target).export_library(library)


if __name__ == "__main__":
    main()
