"""Common parts of the benchmarks against PyTorch: tuning, timing both sides in turns, and the table.

Each side is one process for all workloads, stopped while the other runs: threads that spin for work
would take the cores from each other. A process prepares what it is told to, then times bursts.
"""
# Over 300 lines: what one race needs, from tuning to its table.

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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.fixture import follow, make_parser, natural, need
from benchmarks.result import Cell, Table

if TYPE_CHECKING:
    from plevel.client import Client
    from strategy.compile.artefact import Artefact
    from strategy.target import Target
    from strategy.workload import Workload

BURST_S = 0.03
# Variables that change the speed of one side only.
OVERRIDES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_VERBOSE", "OPENBLAS_MAIN_FREE")
Call = Callable[[], Any]


class Layer(Protocol):
    """One workload of a benchmark, a tuple of plain values."""

    @property
    def name(self) -> str: ...

    def workload(self) -> Workload: ...


def benchmark(
    script: str,
    description: str,
    kind: Callable[..., Layer],
    groups: Mapping[str, Sequence[Layer]],
    sides: Mapping[str, Callable[..., dict[str, Call]]],
) -> int:
    """Run a benchmark as its command line says.

    Args:
        script: its file, which is started again for each side.
        kind: makes a layer from its values.
        sides: for `plevel` and `torch`, the function of (layer, threads, configurations by
            implementation) that gives the calls to time, in the side's own process.
    """
    arguments = _arguments(description, groups)
    if arguments.side:
        make = sides[arguments.side]
        return serve(lambda what: make(kind(*what["layer"]), arguments.threads, what["best"]))
    layers = [
        layer
        for group, found in groups.items()
        for layer in found
        if not arguments.layers or group in arguments.layers or layer.name in arguments.layers
    ]
    if unknown := set(arguments.layers or ()) - groups.keys() - {layer.name for layer in layers}:
        print(f"no group or layer {' '.join(sorted(unknown))}; groups: {' '.join(groups)}", file=sys.stderr)
        return 2
    if not arguments.tune_only:
        need("torch")
    tuned = _read_tuned(arguments.tuned)
    if arguments.trials:
        _tune_all([layer for layer in layers if layer.name not in tuned], tuned, arguments)
    if not arguments.tune_only:
        table = Table({
            "workload": "", "selected": "", "plevel": "s", "GFLOP/s": "", "PyTorch": "s", "ratio": "×",
            "fastest / selected": "×", "the others": "",
        })
        asked = arguments.layers or ()
        known = set(asked) <= groups.keys()
        with table.saved(keep=known, variant="-".join(asked), peer="PyTorch", runs=arguments.rounds):
            rows = _race_all(script, layers, tuned, arguments, table)
        _print_summary(rows)
    return 0


def _arguments(description: str, groups: Mapping[str, Any]) -> argparse.Namespace:
    parser = make_parser(description)
    parser.add_argument("--layers", nargs="+", metavar="NAME", help=f"{', '.join(groups)}, or names of layers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trials", type=natural, default=64, help="for each implementation; 0: fallbacks are taken")
    parser.add_argument("--rounds", type=int, default=9, help="bursts of each contender")
    parser.add_argument("--tuned", help="file with what earlier runs found; what is new is added")
    parser.add_argument("--tune-only", action="store_true", help="time nothing beside PyTorch")
    parser.add_argument("--json", help="write the rows to this file too")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    return parser.parse_args()


def _tune_all(layers: Sequence[Layer], tuned: dict[str, Any], arguments: argparse.Namespace) -> None:
    if not layers:
        return
    with tempfile.TemporaryDirectory(prefix="plevel-bench-") as folder, tuning(
        f"sqlite:///{folder}/bench.db", arguments.threads
    ) as client:
        for layer in layers:
            found = tune(layer.workload(), arguments.threads, client, arguments.trials)
            tuned[layer.name] = found
            print(f"tuned {layer.name}: {found['trials']} trials in {found['tuning_s']:.0f} s", flush=True)
            if arguments.tuned:
                Path(arguments.tuned).write_text(json.dumps(tuned, indent=1))


def _race_all(
    script: str, layers: Sequence[Layer], tuned: dict[str, Any], arguments: argparse.Namespace, table: Table
) -> list[dict[str, Any]]:
    rows = []
    own, peer = (Side(script, kind, arguments.threads) for kind in ("plevel", "torch"))
    with closing(own), closing(peer):
        for layer in layers:
            found = tuned.get(layer.name) or _untuned(layer.workload(), arguments.threads)
            rows.append(_compare(layer, found, {"plevel": own, "torch": peer}, arguments.rounds))
            table.add(*_cells(rows[-1]))
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(rows, indent=1))
    return rows


def _compare(
    layer: Layer, tuned: Mapping[str, Any], sides: Mapping[str, Side], rounds: int
) -> dict[str, Any]:
    times = race(sides, {"layer": layer, "best": tuned["best"]}, rounds)
    peer = min(times["torch"], key=times["torch"].__getitem__)
    own = times["plevel"]
    return {
        "layer": layer.name,
        "flops": layer.workload().flops,
        "selected": tuned["selected"],
        "reason": tuned["reason"],
        "selected_s": own[tuned["selected"]],
        "fastest": min(own, key=own.__getitem__),
        "times_s": own,
        "torch": peer,
        "torch_s": times["torch"][peer],
        "ratio": times["torch"][peer] / own[tuned["selected"]],
    }


@contextmanager
def tuning(database: str, threads: int) -> Iterator[Client]:
    """A client of a service with one worker, as `plevel tune` starts them."""
    from plevel.client import Client
    from plevel.embedded import Embedded

    with Embedded(database, threads=threads) as embedded:
        embedded.start_worker()
        with Client(embedded.url, timeout_s=120) as client:
            yield client


def tune(workload: Workload, threads: int, client: Client, trials: int) -> dict[str, Any]:
    """The best configuration of each implementation after `trials` each, and what is selected."""
    from strategy.op_strategy import candidates
    from strategy.record import RunRequest, RunWorkload
    from strategy.target import Target

    target = Target.parse("cpu").with_threads(threads)
    valid = [c for c in candidates(workload, target) if c.condition is None or c.condition.decide()]
    count = sum(trials if c.tunable else 1 for c in valid)
    begin = time.monotonic()
    asked = (RunWorkload(workload=workload),)
    run = follow(client, client.create_run(RunRequest(workloads=asked, target=target, trials=count, force=True)))
    selected = client.select(workload, target)
    kept = {c.implementation for c in valid if c.tunable or c.library} | {selected.implementation}
    return {
        "best": {
            t.implementation: t.best_config.to_json()
            for t in run.tasks
            if t.best_config is not None and t.implementation in kept
        },
        "selected": selected.implementation,
        "reason": str(selected.reason),
        "trials": run.trials_done,
        "tuning_s": time.monotonic() - begin,
    }


def _untuned(workload: Workload, threads: int) -> dict[str, Any]:
    """The fallback of each implementation, and what is selected without measurements."""
    from strategy.op_strategy import candidates
    from strategy.target import Target

    found = candidates(workload, Target.parse("cpu").with_threads(threads))
    valid = [c for c in found if c.condition is None or c.condition.decide()]
    selected = max(valid, key=lambda c: c.plevel).implementation
    # Any other implementation that is neither tunable nor a library exists for workloads that these refuse.
    timed = [c for c in valid if c.tunable or c.library or c.implementation == selected]
    return {
        "best": {c.implementation: c.fallback.to_json() for c in timed},
        "selected": selected,
        "reason": "plevel",
    }


class Side:
    """One process, which answers a line of JSON for each line of JSON; stopped in between."""

    def __init__(self, script: str, kind: str, threads: int) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in OVERRIDES}
        environment |= {f"{pool}_NUM_THREADS": str(threads) for pool in ("TVM", "OPENBLAS", "OMP")}
        # Else OpenBLAS's idle threads spin for 2²⁶ cycles on a core of the next contender; OpenBLAS is no slower so.
        environment |= {"OPENBLAS_THREAD_TIMEOUT": "20"}
        # A large result of one call is memory for the next, not fresh pages: else its faults are what is timed.
        environment |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
        self._child = subprocess.Popen(
            [sys.executable, script, "--side", kind, "--threads", str(threads)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )

    def ask(self, **what: Any) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.send_signal(signal.SIGCONT)
        self._child.stdin.write(json.dumps(what) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"a side died of {what}: it says above why")
        self._child.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def close(self) -> None:
        self._child.send_signal(signal.SIGCONT)
        self._child.stdin.close()
        self._child.wait(timeout=20)


def serve(make: Callable[[dict[str, Any]], Mapping[str, Call]]) -> int:
    """A side's process: `make` gives the calls by name for what is to be prepared."""
    calls: Mapping[str, Call] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if "prepare" in asked:
            calls = make(asked["prepare"])
            answer: Any = list(calls)
        else:
            answer = burst(calls[asked["burst"]])
        print(json.dumps(answer), flush=True)
    return 0


def burst(call: Call, length_s: float = BURST_S) -> float:
    """Seconds per call, over calls that take a burst's length together after one that warms up."""
    call()
    done, count, begin = 0, 1, time.perf_counter()
    while True:
        for _ in range(count):
            call()
        done += count
        spent = time.perf_counter() - begin
        if spent >= length_s:
            return spent / done
        count = max(1, min(1000, int(done * 2e-4 / spent)))


def race(sides: Mapping[str, Side], what: Mapping[str, Any], rounds: int) -> dict[str, dict[str, float]]:
    """The median of each call of each side, in bursts that alternate."""
    names = {side: sides[side].ask(prepare=what) for side in sides}
    times: dict[str, dict[str, list[float]]] = {s: {n: [] for n in names[s]} for s in sides}
    for turn in range(rounds + 1):
        for side, calls in times.items():
            for name, samples in calls.items():
                seconds = sides[side].ask(burst=name)
                if turn:  # the first warms up
                    samples.append(seconds)
    return {s: {n: statistics.median(x) for n, x in calls.items()} for s, calls in times.items()}


def plevel_calls(workload: Workload, threads: int, best: Mapping[str, Any]) -> dict[str, Call]:
    """A call of each implementation with its configuration."""
    from strategy.target import Target

    target = Target.parse("cpu").with_threads(threads)
    return {name: plevel_call(workload, target, name, config) for name, config in best.items()}


def plevel_call(workload: Workload, target: Target, name: str, config: Any) -> Call:
    """A call of one configuration with tensors of its own."""
    import tvm

    from strategy.compile.lower import lower
    from workers.reference import random_inputs

    artefact = lower(workload, target, name, config).compile()
    arguments = bind(artefact, {n: tvm.runtime.tensor(x) for n, x in random_inputs(workload, 0).items()})
    main = artefact.main
    return lambda: main(*arguments)


def bind(artefact: Artefact, inputs: Mapping[str, Any]) -> list[Any]:
    """Arguments of a kernel: new outputs, and inputs, prepared where it wants that."""
    import tvm

    from strategy.signature import Role

    return [
        tvm.runtime.empty(a.tensor.concrete_shape, a.tensor.dtype)
        if a.role is Role.OUTPUT
        else artefact.prepare(a, inputs[a.name])
        for a in artefact.arguments
    ]


def _read_tuned(path: str | None) -> dict[str, Any]:
    """The results of an earlier run, by layer."""
    if path is None or not Path(path).exists():
        return {}
    found: dict[str, Any] = json.loads(Path(path).read_text())
    return found


def _cells(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    others = sorted((item for item in row["times_s"].items() if item[0] != row["selected"]), key=lambda item: item[1])
    return (
        row["layer"], _short(row["selected"]), row["selected_s"],
        round(row["flops"] / row["selected_s"] * 1e-9) if row["flops"] else None, row["torch_s"], row["ratio"],
        min(row["times_s"].values()) / row["selected_s"],
        ", ".join(f"{_short(name)} {seconds * 1e6:.0f} µs" for name, seconds in others),
    )


def _short(name: str) -> str:
    return name.removesuffix(".cpu").replace("_conv2d", "").replace("conv2d_nchw", "").strip("_") or "direct"


def _print_summary(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    ratios = [row["ratio"] for row in rows]
    print(
        f"\n{len(rows)} layers: {statistics.geometric_mean(ratios):.2f}× on average (geometric), "
        f"{min(ratios):.2f}× at least; faster on {sum(r > 1 for r in ratios)}"
    )
    for what in ("fastest", "selected"):
        found = Counter(_short(row[what]) for row in rows)
        print(f"{what}: " + ", ".join(f"{name} on {count}" for name, count in found.most_common()))
    lost = [min(row["times_s"].values()) / row["selected_s"] for row in rows]
    near = sum(share >= 1 / 1.05 for share in lost)
    print(
        f"what is selected reaches {statistics.geometric_mean(lost):.2f} of the fastest, "
        f"and is within 5 % of it on {near} of {len(lost)}"
    )
