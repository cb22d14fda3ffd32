"""MetaSchedule, the peer, in a process without PyTorch: on a product, and on a Relax module built as a library.

    python -m benchmarks.metaschedule MODULE.json LIBRARY.so THREADS TRIALS
    python -m benchmarks.metaschedule '{"shape": [512, 512, 512], "threads": 2, "trials": 64}'

TVM imports PyTorch where it is installed, and MetaSchedule's intrinsics then take a minute to import, in each of its
builders: longer than it waits for one. So the processes of this script find no PyTorch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NEEDED = ("cloudpickle", "psutil", "tornado")  # by MetaSchedule, beside TVM
COMMAND = (sys.executable, "-m", "benchmarks.metaschedule")
FAILED_S = 1e9  # its time of what could not be run
_BUILD_S = 300.0  # its default of 30 s is over before it has built what it unrolls most, on a slow machine


def tune_product(
    shape: Sequence[int], threads: int, trials: int, library: Path | None = None, **options: int
) -> float:
    """Tune a product of m×k by n×k in float32 in a child; trials per minute.

    Args:
        library: where the best is written, if anywhere.
        options: of `tune_tir`, whose defaults hold for the others.
    """
    what = {"shape": shape, "threads": threads, "trials": trials, "library": library and str(library), **options}
    with without_torch(threads) as environment:
        command = [*COMMAND, json.dumps(what)]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"MetaSchedule failed; --help says how to go without it\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return float(done.stdout.splitlines()[-1])


def build(module: Path, library: Path, threads: int, trials: int) -> None:
    """Tune and build a module in a child; its output goes to this process's."""
    with without_torch(threads) as environment:
        subprocess.run([*COMMAND, module, library, str(threads), str(trials)], env=environment, check=True)


@contextmanager
def without_torch(threads: int) -> Iterator[dict[str, str]]:
    """The environment of a process that finds no PyTorch, for kernels of so many threads."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "torch.py").write_text("raise ImportError('hidden from TVM')\n")
        path = os.pathsep.join([folder, *(p for p in sys.path if p)])
        yield {**os.environ, "PYTHONPATH": path, "TVM_NUM_THREADS": str(threads)}


def _target(threads: int) -> Any:
    import tvm

    from strategy.target import Target

    return tvm.target.Target(Target.parse("cpu").with_threads(threads).to_tvm())


def _tune_product(shape: Sequence[int], threads: int, trials: int, library: str | None = None, **options: int) -> float:
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule

    m, n, k = shape
    x, w, r = te.placeholder((m, k), name="data"), te.placeholder((n, k), name="weight"), te.reduce_axis((0, k), "r")
    y = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[j, r], axis=r), name="dense")
    function, target = te.create_prim_func([x, w, y]).with_attr("global_symbol", "main"), _target(threads)
    with tempfile.TemporaryDirectory(prefix="metaschedule-") as folder:
        began = time.monotonic()
        builder = meta_schedule.builder.LocalBuilder(timeout_sec=_BUILD_S)
        database = meta_schedule.tune_tir(
            function, target, work_dir=folder, max_trials_global=trials, builder=builder, **options
        )
        took_s = time.monotonic() - began
        times = [min(map(float, r.run_secs)) for r in database.get_all_tuning_records() if r.run_secs]
        if library is not None:
            schedule = meta_schedule.tir_integration.compile_tir(database, function, target)
            if schedule is None:
                raise RuntimeError("MetaSchedule found no schedule")
            tvm.compile(schedule.mod, target=target).export_library(library)
    return sum(t < FAILED_S for t in times) / took_s * 60


def _build(source: str, library: str, threads: int, trials: int) -> None:
    import tvm
    from tvm import relax

    module, target = tvm.ir.load_json(Path(source).read_text()), _target(threads)
    with tempfile.TemporaryDirectory() as folder:
        tuned = relax.get_pipeline(
            "static_shape_tuning", total_trials=trials, target=target, work_dir=folder, cpu_weight_prepack=True
        )(module)
    tvm.compile(tuned, target).export_library(library)


def main() -> None:
    first, *more = sys.argv[1:]
    if not more:
        print(_tune_product(**json.loads(first)))
    else:
        library, threads, trials = more
        _build(first, library, int(threads), int(trials))


if __name__ == "__main__":
    main()
