"""`dense` on this host's CPU: plevel's best after a few trials beside OpenBLAS and MetaSchedule.

    python benchmarks/dense_cpu.py                     # all shapes, 1 and 2 threads
    python benchmarks/dense_cpu.py --only 512x512x512 --threads 1
    python benchmarks/dense_cpu.py --metaschedule      # the peer tuner too: minutes per shape

For each shape and number of threads plevel tunes as `plevel tune` does, with its own service and
worker, for as many trials in total as MetaSchedule gets, the library being measured besides. What
it selects among its own implementations, what it selects with the library among them, and the peers
are then timed again, each in a process of its own, in short bursts that alternate, while the other
processes are stopped: threads that spin for work would take the cores from each other. Weights are
constant. OpenBLAS may take the weight in either layout, packed by rows or by columns, and sgemv for
one row; the faster counts. Overrides such as OPENBLAS_CORETYPE, which can halve its speed, are
dropped for all.

Prints medians, and ratios of peer's time to plevel's: above 1, plevel is faster.
"""
# Over 300 lines: one race, with the process of each contender.

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from race import BURST_S, OVERRIDES, tuning

from benchmarks.metaschedule import without_torch
from benchmarks.result import save

if TYPE_CHECKING:
    from plevel.client import Client

Shape = tuple[int, int, int]

_PROJECTIONS = [(768, 768), (3072, 768), (768, 3072), (1024, 1024), (4096, 1024), (1024, 4096)]
SHAPES: list[Shape] = [
    *((m, n, k) for m in (1, 16, 128, 384) for n, k in _PROJECTIONS),
    (512, 512, 512), (768, 768, 768), (1000, 1000, 1000), (37, 1003, 531),
]  # fmt: skip


def goal(shape: Shape) -> float:
    """The ratio to OpenBLAS that this shape must reach."""
    if shape[0] == 1:
        return 0.97
    return 1.3 if shape[0] == 16 or shape == (37, 1003, 531) else 1.02


def main() -> int:
    arguments = _arguments()
    if arguments.contender:
        return _serve(json.loads(arguments.contender))
    dropped = [name for name in OVERRIDES if os.environ.pop(name, None) is not None]
    if dropped:
        print(f"dropped from the environment: {', '.join(dropped)}")
    shapes = [s for s in SHAPES if not arguments.only or _name(s) in arguments.only]
    if not shapes:
        print(f"no such shape; known: {' '.join(map(_name, SHAPES))}", file=sys.stderr)
        return 2
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="plevel-bench-") as folder:
        database = arguments.database or f"sqlite:///{folder}/dense.db"
        for threads in arguments.threads:
            _print_head(threads, metaschedule=arguments.metaschedule)
            with tuning(database, threads) as client:
                for shape in shapes:
                    row = _compare(shape, threads, client, Path(folder), arguments)
                    rows.append(row)
                    _print_row(row)
                    if arguments.json:
                        Path(arguments.json).write_text(json.dumps(rows, indent=1))
    _print_summary(rows)
    if not arguments.only:
        _save(rows, arguments.rounds)
    return 0


def _save(rows: list[dict[str, Any]], rounds: int) -> None:
    save(
        {
            "m×n×k": "", "threads": "", "plevel": "s", "GFLOP/s": "", "OpenBLAS": "s", "ratio": "×", "goal": "×",
            "unpacked": "×", "MetaSchedule": "×", "select": "×",
        },
        [
            (
                r["shape"].replace("x", "×"), r["threads"], r["own_s"], round(r["flops"] / r["own_s"] * 1e-9),
                r["openblas_s"], r["ratio"], r["goal"], r["unpacked_ratio"], r["metaschedule_ratio"],
                r["selection_ratio"],
            )
            for r in rows
        ],
        peer="OpenBLAS", runs=rounds,
    )  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--trials", type=int, default=64, help="in total, for each tuner")
    parser.add_argument("--rounds", type=int, default=15, help="bursts of each contender")
    parser.add_argument("--only", nargs="+", metavar="MxNxK")
    parser.add_argument("--metaschedule", action="store_true")
    parser.add_argument(
        "--unpacked", action=argparse.BooleanOptionalAction, default=True,
        help="also with weights that are packed inside of the timed function",
    )  # fmt: skip
    parser.add_argument("--database", help="where plevel's records go; dropped at the end if not given")
    parser.add_argument("--json", help="write the rows to this file too")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    return parser.parse_args()


def _name(shape: Shape) -> str:
    return "x".join(map(str, shape))


# ------------------------------------------------------------------ tuning


def _tune(shape: Shape, threads: int, client: Client, trials: int, *, constant: bool) -> dict[str, Any]:
    """The confirmed best of plevel: `own` without the library, `all` with it, as contenders."""
    from strategy.op_strategy import candidates
    from strategy.record import RunRequest, RunWorkload
    from strategy.target import Target
    from strategy.workload import Workload

    m, n, k = shape
    workload = Workload.make(
        "dense",
        {"data": f"float32[{m},{k}]", "weight": f"float32[{n},{k}]"},
        constants=["weight"] if constant else [],
    )
    target = Target.parse("cpu").with_threads(threads)
    own = tuple(c for c in candidates(workload, target) if c.library is None)
    request = RunRequest(
        workloads=(RunWorkload(workload=workload),), target=target, trials=trials, force=True
    )
    run = client.create_run(request)
    for status in client.follow(run.id):
        run = status
    best = client.select(workload, target, candidates=own)
    either = client.select(workload, target)
    singles = [
        {"kind": "plevel", "implementation": t.implementation, "config": t.best_config.to_json()}
        for t in run.tasks
        if t.best_config is not None
    ]
    common = {"shape": shape, "threads": threads, "constant": constant}
    return {
        "own": {**common, **_as_contender(best)},
        "all": {**common, **_as_contender(either)},
        "singles": [{**common, **s} for s in singles],
        "trials": run.trials_done,
        "reason": str(best.reason),
    }


def _as_contender(selection: Any) -> dict[str, Any]:
    return {
        "kind": "plevel",
        "implementation": selection.implementation,
        "config": selection.config.to_json(),
    }


def _tune_metaschedule(shape: Shape, threads: int, trials: int, folder: Path) -> dict[str, Any]:
    """MetaSchedule's best for the plain definition, as a library on disk."""
    path = folder / f"metaschedule-{_name(shape)}-{threads}.so"
    spec = {"kind": "metaschedule-tune", "shape": shape, "threads": threads, "trials": trials, "path": str(path)}
    begin = time.monotonic()
    with without_torch() as own:
        environment = _environment(threads) | {"PYTHONPATH": own["PYTHONPATH"]}
        done = subprocess.run(_command(spec), check=False, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"MetaSchedule failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return {
        "kind": "library", "path": str(path), "shape": shape, "threads": threads,
        "tuning_s": time.monotonic() - begin,
    }  # fmt: skip


# -------------------------------------------------------------- comparison


def _compare(
    shape: Shape, threads: int, client: Client, folder: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    begin = time.monotonic()
    tuned = _tune(shape, threads, client, arguments.trials, constant=True)
    tuning_s = time.monotonic() - begin
    contenders: dict[str, dict[str, Any]] = {"own": tuned["own"]}
    if arguments.unpacked:
        unpacked = _tune(shape, threads, client, arguments.trials, constant=False)
        contenders["unpacked"] = unpacked["own"]
    if tuned["all"] != tuned["own"]:
        contenders["all"] = tuned["all"]
    for layout in ("rows", "columns"):
        for routine in ("sgemm", "sgemv") if shape[0] == 1 else ("sgemm",):
            contenders[f"openblas {routine} {layout}"] = {
                "kind": "openblas", "routine": routine, "layout": layout,
                "shape": shape, "threads": threads,
            }  # fmt: skip
    for single in tuned["singles"]:
        if single not in contenders.values():
            contenders[single["implementation"]] = single
    if arguments.metaschedule:
        contenders["metaschedule"] = _tune_metaschedule(shape, threads, arguments.trials, folder)
    times = _race(contenders, threads, arguments.rounds)
    median = {name: statistics.median(samples) for name, samples in times.items()}
    library = {name: t for name, t in median.items() if name.startswith("openblas")}
    best_library = min(library, key=library.__getitem__)
    ours = {n: t for n, t in median.items() if not n.startswith(("openblas", "metaschedule", "unpacked"))}
    selected = median.get("all", median["own"])
    m, n, k = shape
    return {
        "shape": _name(shape),
        "threads": threads,
        "flops": 2 * m * n * k,
        "own_s": median["own"],
        "own": tuned["own"]["implementation"],
        "config": tuned["own"]["config"],
        "reason": tuned["reason"],
        "trials": tuned["trials"],
        "tuning_s": tuning_s,
        "openblas_s": library[best_library],
        "openblas": best_library.removeprefix("openblas "),
        "ratio": library[best_library] / median["own"],
        "goal": goal(shape),
        "unpacked_ratio": library[best_library] / median["unpacked"] if "unpacked" in median else None,
        "metaschedule_ratio": median["metaschedule"] / median["own"] if "metaschedule" in median else None,
        "metaschedule_tuning_s": contenders.get("metaschedule", {}).get("tuning_s"),
        "selected": tuned["all"]["implementation"],
        # What selection loses to the best single implementation, the library included.
        "selection_ratio": min(ours.values()) / selected,
        "spread": _spread(times["own"]),
    }


def _spread(samples: list[float]) -> float:
    """Half of the middle half of the samples, relative to their median."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / 2 / middle


def _race(
    contenders: dict[str, dict[str, Any]], threads: int, rounds: int
) -> dict[str, list[float]]:
    """Seconds per call of each contender, in bursts that alternate."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with _started(contenders, threads) as children:
        for child in children.values():
            _answer(child)  # ready
            child.send_signal(signal.SIGSTOP)
        for turn in range(rounds + 1):
            for name, child in children.items():
                assert child.stdin is not None
                child.send_signal(signal.SIGCONT)
                child.stdin.write(f"{BURST_S}\n")
                child.stdin.flush()
                seconds = float(_answer(child))
                # Threads of a pool spin after a call, TVM's for a tenth of a second.
                child.send_signal(signal.SIGSTOP)
                if turn:  # the first warms up
                    times[name].append(seconds)
    return times


@contextmanager
def _started(
    contenders: dict[str, dict[str, Any]], threads: int
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    children: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, spec in contenders.items():
            children[name] = subprocess.Popen(
                _command(spec),
                env=_environment(threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        yield children
    finally:
        for child in children.values():
            assert child.stdin is not None
            child.stdin.close()
            child.send_signal(signal.SIGCONT)
        for child in children.values():
            child.wait(timeout=20)


def _answer(child: subprocess.Popen[str]) -> str:
    output: IO[str] | None = child.stdout
    assert output is not None
    line = output.readline()
    if not line:
        raise RuntimeError(f"a contender died: {child.args!r}")
    return line


def _command(spec: dict[str, Any]) -> list[str]:
    return [sys.executable, __file__, "--contender", json.dumps(spec)]


def _environment(threads: int) -> dict[str, str]:
    return {**os.environ, "TVM_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}


# -------------------------------------------------- a contender's process


def _serve(spec: dict[str, Any]) -> int:
    """Prepares one contender, then times a burst for each number of seconds on standard input."""
    if spec["kind"] == "metaschedule-tune":
        _run_metaschedule(spec)
        return 0
    call = {"plevel": _plevel_call, "openblas": _openblas_call, "library": _library_call}[spec["kind"]](spec)
    # Only now: contenders prepare themselves at the same time.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-spec["threads"]:])
    calls = 1
    print("ready", flush=True)
    for line in sys.stdin:
        budget = float(line)
        call()
        done, spent, begin = 0, 0.0, time.perf_counter()
        while spent < budget:
            for _ in range(calls):
                call()
            done += calls
            spent = time.perf_counter() - begin
            # As many calls between two looks at the clock as take a fifth of a millisecond.
            calls = max(1, min(1000, int(done * 2e-4 / spent)))
        print(spent / done, flush=True)
    return 0


def _data(shape: Shape) -> tuple[Any, Any, Any]:
    """Random data and weight, and their product in float64."""
    import numpy as np

    m, n, k = shape
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (m, k)).astype("float32")
    w = generator.uniform(-1, 1, (n, k)).astype("float32")
    return x, w, x.astype("float64") @ w.T.astype("float64")


def _check(got: Any, expected: Any) -> None:
    import numpy as np

    error = float(np.abs(got - expected).max() / np.abs(expected).max())
    if not error < 1e-5:
        raise RuntimeError(f"wrong answer: error {error}")


def _plevel_call(spec: dict[str, Any]) -> Callable[[], Any]:
    import tvm

    from strategy.compile.lower import lower
    from strategy.target import Target
    from strategy.workload import Workload

    shape = (m, n, k) = tuple(spec["shape"])
    workload = Workload.make(
        "dense",
        {"data": f"float32[{m},{k}]", "weight": f"float32[{n},{k}]"},
        constants=["weight"] if spec["constant"] else [],
    )
    target = Target.parse("cpu").with_threads(spec["threads"])
    artefact = lower(workload, target, spec["implementation"], spec["config"]).compile()
    x, w, expected = _data(shape)
    out = tvm.runtime.empty((m, n), "float32")
    sources = (tvm.runtime.tensor(x), tvm.runtime.tensor(w))
    inputs = [artefact.prepare(a, s) for a, s in zip(artefact.arguments, sources, strict=False)]
    main = artefact.main
    main(*inputs, out)
    _check(out.numpy(), expected)
    return lambda: main(*inputs, out)


def _openblas_call(spec: dict[str, Any]) -> Callable[[], Any]:
    import ctypes

    import numpy as np

    from strategy.extern import load_library

    loaded = load_library("cblas")
    loaded.set_threads(spec["threads"])
    shape = (m, n, k) = tuple(spec["shape"])
    x, w, expected = _data(shape)
    by_rows = spec["layout"] == "rows"
    weight = w if by_rows else np.ascontiguousarray(w.T)
    out = np.empty((m, n), np.float32)
    pointer = [a.ctypes.data_as(ctypes.c_void_p) for a in (x, weight, out)]
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    arguments: tuple[Any, ...]
    if spec["routine"] == "sgemv":
        rows, columns = weight.shape
        arguments = (
            101, 111 if by_rows else 112, rows, columns, one, pointer[1], columns,
            pointer[0], 1, zero, pointer[2], 1,
        )  # fmt: skip
    else:
        arguments = (
            101, 111, 112 if by_rows else 111, m, n, k, one, pointer[0], k,
            pointer[1], weight.shape[1], zero, pointer[2], n,
        )  # fmt: skip
    routine = loaded.function(f"cblas_{spec['routine']}")
    routine(*arguments)
    _check(out, expected)
    return lambda: (routine(*arguments), x, weight)  # the arrays live as long as the call


def _library_call(spec: dict[str, Any]) -> Callable[[], Any]:
    import tvm

    main = tvm.runtime.load_module(spec["path"])["main"]
    m, n, _ = spec["shape"]
    x, w, expected = _data(tuple(spec["shape"]))
    out = tvm.runtime.empty((m, n), "float32")
    inputs = [tvm.runtime.tensor(x), tvm.runtime.tensor(w)]
    main(*inputs, out)
    _check(out.numpy(), expected)
    return lambda: main(*inputs, out)


def _run_metaschedule(spec: dict[str, Any]) -> None:
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule

    from strategy.target import Target

    m, n, k = spec["shape"]
    x = te.placeholder((m, k), name="data")
    w = te.placeholder((n, k), name="weight")
    r = te.reduce_axis((0, k), name="r")
    y = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[j, r], axis=r), name="dense")
    function = te.create_prim_func([x, w, y]).with_attr("global_symbol", "main")
    target = tvm.target.Target(Target.parse("cpu").with_threads(spec["threads"]).to_tvm())
    with tempfile.TemporaryDirectory() as folder:
        database = meta_schedule.tune_tir(
            function, target, folder, max_trials_global=spec["trials"], num_trials_per_iter=32, seed=0
        )
        schedule = meta_schedule.tir_integration.compile_tir(database, function, target)
    if schedule is None:
        raise RuntimeError("MetaSchedule found no schedule")
    tvm.compile(schedule.mod, target=target).export_library(spec["path"])


# ---------------------------------------------------------------- printing


def _print_head(threads: int, *, metaschedule: bool) -> None:
    from strategy.extern import load_library
    from strategy.target import Target

    kernels = load_library("cblas").describe()
    print(f"\n{threads} thread(s), {Target.parse('cpu').model}; OpenBLAS kernels: {kernels['kernels']}")
    print(
        f"{'shape':>15} {'plevel':>9} {'GFLOP/s':>8} {'OpenBLAS':>9} {'ratio':>6} {'goal':>5} "
        f"{'no pack':>7} {'select':>6}" + (f" {'MetaS.':>6}" if metaschedule else "") + "  by"
    )


def _print_row(row: dict[str, Any]) -> None:
    peer = "" if row["metaschedule_ratio"] is None else f" {row['metaschedule_ratio']:6.2f}"
    print(
        f"{row['shape']:>15} {row['own_s'] * 1e6:7.1f}µs {row['flops'] / row['own_s'] * 1e-9:8.1f} "
        f"{row['openblas_s'] * 1e6:7.1f}µs {row['ratio']:6.3f} {row['goal']:5.2f} "
        f"{row['unpacked_ratio'] or float('nan'):7.2f} {row['selection_ratio']:6.2f}{peer}"
        f"  {row['own']} ({row['reason']}, {row['trials']} trials in {row['tuning_s']:.0f} s); "
        f"selected {row['selected']}; OpenBLAS {row['openblas']}",
        flush=True,
    )


def _print_summary(rows: list[dict[str, Any]]) -> None:
    missed = [r for r in rows if r["ratio"] < r["goal"]]
    print(f"\n{len(rows) - len(missed)} of {len(rows)} reach their goal against OpenBLAS")
    for r in missed:
        print(f"  below: {r['shape']} at {r['threads']} thread(s): {r['ratio']:.3f}, goal {r['goal']}")
    lost = [r for r in rows if r["selection_ratio"] < 0.97]
    print(f"selection with the library is below 0.97 of the best single one in {len(lost)} of {len(rows)}")
    compared = [r["metaschedule_ratio"] for r in rows if r["metaschedule_ratio"] is not None]
    if compared:
        mean = statistics.geometric_mean(compared)
        print(f"against MetaSchedule: {mean:.2f}× on average, {min(compared):.2f}× at least; goal 1.5×")


if __name__ == "__main__":
    sys.exit(main())
