"""`dense` on this host's CPU: plevel's best after a few trials beside OpenBLAS and MetaSchedule.

    python benchmarks/dense_cpu.py                     # all shapes, 1 and 2 threads
    python benchmarks/dense_cpu.py --only 512x512x512 --threads 1
    python benchmarks/dense_cpu.py --metaschedule      # the peer tuner too: minutes per shape

For each shape and number of threads plevel tunes as `plevel tune` does, with its own service and
worker, for as many trials in total as MetaSchedule gets, the library being measured besides. What
it selects among its own implementations, what it selects with the library among them, and the peers
are then timed again, plevel and each peer in a process of its own, in short bursts that alternate, while
the other processes are stopped: threads that spin for work would take the cores from each other. Weights are
constant. OpenBLAS may take the weight in either layout, packed by rows or by columns, and sgemv for
one row; the faster counts. Overrides such as OPENBLAS_CORETYPE, which can halve its speed, are
dropped for all.

Prints medians, and ratios of peer's time to plevel's: above 1, plevel is faster.

A row takes about a minute, all an hour; `--metaschedule` adds minutes to each.
"""
# Over 300 lines: one race, with the process of each contender.

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.fixture import dense, follow, make_parser, need
from benchmarks.metaschedule import NEEDED, tune_product
from benchmarks.race import OVERRIDES, Call, Side, race, serve, tuning
from benchmarks.result import Table

if TYPE_CHECKING:
    from plevel.client import Client

Shape = tuple[int, int, int]

_PROJECTIONS = [(768, 768), (3072, 768), (768, 3072), (1024, 1024), (4096, 1024), (1024, 4096)]
SHAPES: list[Shape] = [
    *((m, n, k) for m in (1, 16, 128, 384) for n, k in _PROJECTIONS),
    (512, 512, 512), (768, 768, 768), (1000, 1000, 1000), (37, 1003, 531),
]


def goal(shape: Shape) -> float:
    """The ratio to OpenBLAS that this shape must reach."""
    if shape[0] == 1:
        return 0.97
    return 1.3 if shape[0] == 16 or shape == (37, 1003, 531) else 1.02


def main() -> int:
    arguments = _arguments()
    if arguments.side:
        return serve(SIDES[arguments.side])
    dropped = [name for name in OVERRIDES if os.environ.pop(name, None) is not None]
    if dropped:
        print(f"dropped from the environment: {', '.join(dropped)}")
    shapes = [s for s in SHAPES if not arguments.only or _name(s) in arguments.only]
    if unknown := set(arguments.only or ()) - set(map(_name, shapes)):
        print(f"no shape {' '.join(sorted(unknown))}; known: {' '.join(map(_name, SHAPES))}", file=sys.stderr)
        return 2
    if arguments.metaschedule:
        need(*NEEDED)
    rows: list[dict[str, Any]] = []
    table = Table({
        "m×n×k": "", "threads": "", "plevel": "s", "GFLOP/s": "", "OpenBLAS": "s", "ratio": "×", "goal": "×",
        "unpacked": "×", "MetaSchedule": "×", "select": "×",
    })
    with (
        tempfile.TemporaryDirectory(prefix="plevel-bench-") as folder,
        table.saved(keep=not arguments.only, peer="OpenBLAS", runs=arguments.rounds),
    ):
        database = arguments.database or f"sqlite:///{folder}/dense.db"
        for threads in arguments.threads:
            with ExitStack() as stack:
                client = stack.enter_context(tuning(database, threads))
                kinds = SIDES if arguments.metaschedule else SIDES.keys() - {"metaschedule"}
                sides = {kind: stack.enter_context(closing(Side(__file__, kind, threads))) for kind in sorted(kinds)}
                for shape in shapes:
                    r = _compare(shape, threads, client, sides, Path(folder), arguments)
                    rows.append(r)
                    table.add(
                        r["shape"].replace("x", "×"), threads, r["own_s"], round(r["flops"] / r["own_s"] * 1e-9),
                        r["openblas_s"], r["ratio"], r["goal"], r["unpacked_ratio"], r["metaschedule_ratio"],
                        r["selection_ratio"],
                    )
                    if arguments.json:
                        Path(arguments.json).write_text(json.dumps(rows, indent=1))
    _print_summary(rows)
    return 0


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--trials", type=int, default=64, help="in total, for each tuner")
    parser.add_argument("--rounds", type=int, default=15, help="bursts of each contender")
    parser.add_argument("--only", nargs="+", metavar="MxNxK")
    parser.add_argument("--metaschedule", action="store_true")
    parser.add_argument(
        "--unpacked", action=argparse.BooleanOptionalAction, default=True,
        help="also with weights that are packed inside of the timed function",
    )
    parser.add_argument("--database", help="where plevel's records go; dropped at the end if not given")
    parser.add_argument("--json", help="write the rows, and by which implementation they are, to this file too")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    return parser.parse_args()


def _name(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _tune(shape: Shape, threads: int, client: Client, trials: int, *, constant: bool) -> dict[str, Any]:
    """The confirmed best of plevel, as contenders: `own` without the library, `all` with it, and `singles`."""
    from strategy.op_strategy import candidates
    from strategy.record import RunRequest, RunWorkload
    from strategy.target import Target

    workload = dense(*shape, constant=constant)
    target = Target.parse("cpu").with_threads(threads)
    asked = (RunWorkload(workload=workload),)
    run = follow(client, client.create_run(RunRequest(workloads=asked, target=target, trials=trials, force=True)))
    best = client.select(workload, target, candidates=[c for c in candidates(workload, target) if c.library is None])
    either = client.select(workload, target)

    def contender(implementation: str, config: Any) -> dict[str, Any]:
        return {"implementation": implementation, "config": config.to_json(), "constant": constant}

    return {
        "own": contender(best.implementation, best.config),
        "all": contender(either.implementation, either.config),
        "singles": [contender(t.implementation, t.best_config) for t in run.tasks if t.best_config is not None],
        "trials": run.trials_done,
        "reason": str(best.reason),
    }


def _compare(
    shape: Shape, threads: int, client: Client, sides: dict[str, Side], folder: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    begin = time.monotonic()
    tuned = _tune(shape, threads, client, arguments.trials, constant=True)
    tuning_s = time.monotonic() - begin
    contenders: dict[str, dict[str, Any]] = {"own": tuned["own"]}
    if arguments.unpacked:
        contenders["unpacked"] = _tune(shape, threads, client, arguments.trials, constant=False)["own"]
    if tuned["all"] != tuned["own"]:
        contenders["all"] = tuned["all"]
    for single in tuned["singles"]:
        if single not in contenders.values():
            contenders[single["implementation"]] = single
    library = folder / f"metaschedule-{_name(shape)}-{threads}.so"
    begin = time.monotonic()
    if arguments.metaschedule:
        tune_product(shape, threads, arguments.trials, library, num_trials_per_iter=32, seed=0)
    metaschedule_s = time.monotonic() - begin
    what = {"shape": shape, "threads": threads, "contenders": contenders, "library": str(library)}
    times = race(sides, what, arguments.rounds)
    ours, openblas = times["plevel"], times["openblas"]
    best_library = min(openblas, key=openblas.__getitem__)
    peer_s, unpacked_s = openblas[best_library], ours.pop("unpacked", None)
    m, n, k = shape
    return {
        "shape": _name(shape),
        "threads": threads,
        "flops": 2 * m * n * k,
        "own_s": ours["own"],
        "own": tuned["own"]["implementation"],
        "config": tuned["own"]["config"],
        "reason": tuned["reason"],
        "trials": tuned["trials"],
        "tuning_s": tuning_s,
        "openblas_s": peer_s,
        "openblas": best_library,
        "ratio": peer_s / ours["own"],
        "goal": goal(shape),
        "unpacked_ratio": peer_s / unpacked_s if unpacked_s else None,
        "metaschedule_ratio": times["metaschedule"]["library"] / ours["own"] if arguments.metaschedule else None,
        "metaschedule_tuning_s": metaschedule_s if arguments.metaschedule else None,
        "selected": tuned["all"]["implementation"],
        # The loss of selection to the best single implementation, the library included.
        "selection_ratio": min(ours.values()) / ours.get("all", ours["own"]),
    }


# ------------------------------------------------------- a side's process


def _pinned(make: Callable[[dict[str, Any]], dict[str, Call]]) -> Callable[[dict[str, Any]], dict[str, Call]]:
    """A side's calls, on the last cores."""

    def calls(what: dict[str, Any]) -> dict[str, Call]:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # to prepare on all of them
        made = make(what)
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-what["threads"] :])
        return made

    return calls


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


def _plevel_calls(what: dict[str, Any]) -> dict[str, Call]:
    from strategy.compile.lower import lower
    from strategy.target import Target

    target = Target.parse("cpu").with_threads(what["threads"])

    def call(implementation: str, config: dict[str, Any], constant: bool) -> Call:
        artefact = lower(dense(*what["shape"], constant=constant), target, implementation, config).compile()
        return _checked(artefact.main, what["shape"], lambda i, x: artefact.prepare(artefact.arguments[i], x))

    return {name: call(**contender) for name, contender in what["contenders"].items()}


def _library_call(what: dict[str, Any]) -> dict[str, Call]:
    import tvm

    return {"library": _checked(tvm.runtime.load_module(what["library"])["main"], what["shape"], lambda i, x: x)}


def _checked(main: Any, shape: Shape, prepare: Callable[[int, Any], Any]) -> Call:
    """A call of a function of TVM's that is right."""
    import tvm

    x, w, expected = _data(shape)
    out = tvm.runtime.empty(expected.shape, "float32")
    inputs = [prepare(i, tvm.runtime.tensor(given)) for i, given in enumerate((x, w))]
    main(*inputs, out)
    _check(out.numpy(), expected)
    return lambda: main(*inputs, out)


def _openblas_calls(what: dict[str, Any]) -> dict[str, Call]:
    from strategy.extern import load_library

    load_library("cblas").set_threads(what["threads"])
    routines = ("sgemm", "sgemv") if what["shape"][0] == 1 else ("sgemm",)
    return {
        f"{routine} {layout}": _openblas_call(tuple(what["shape"]), routine, by_rows=layout == "rows")
        for layout in ("rows", "columns")
        for routine in routines
    }


def _openblas_call(shape: Shape, routine_name: str, *, by_rows: bool) -> Call:
    import ctypes

    import numpy as np

    from strategy.extern import load_library

    m, n, k = shape
    x, w, expected = _data(shape)
    weight = w if by_rows else np.ascontiguousarray(w.T)
    out = np.empty((m, n), np.float32)
    pointer = [a.ctypes.data_as(ctypes.c_void_p) for a in (x, weight, out)]
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    arguments: tuple[Any, ...]
    if routine_name == "sgemv":
        rows, columns = weight.shape
        arguments = (
            101, 111 if by_rows else 112, rows, columns, one, pointer[1], columns,
            pointer[0], 1, zero, pointer[2], 1,
        )
    else:
        arguments = (
            101, 111, 112 if by_rows else 111, m, n, k, one, pointer[0], k,
            pointer[1], weight.shape[1], zero, pointer[2], n,
        )
    routine = load_library("cblas").function(f"cblas_{routine_name}")
    routine(*arguments)
    _check(out, expected)
    return lambda: (routine(*arguments), x, weight)  # the arrays live as long as the call


SIDES = {
    "plevel": _pinned(_plevel_calls), "openblas": _pinned(_openblas_calls), "metaschedule": _pinned(_library_call),
}


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
