"""Recordings for benchmarks of the search: configurations that are timed once, stored, and replayed.

A task is one implementation of a workload on a target with its space. What is timed goes line by line to
a log, so that a recording can be stopped and taken up again; `pack` makes of it the small file that a
replay reads. Kernels are built and run in this process, with one thread where nothing else is said, in
rounds of a few neighbours that take turns. What else the machine does only ever adds time: the least of
the rounds is what counts, and how far the second lowest lies above it says how much to trust it.
"""

from __future__ import annotations

import os

# NumPy and the kernels of OpenBLAS read these when they are loaded.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["TVM_NUM_THREADS"] = "1"
os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)

import gzip
import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from strategy.space import Config, ConfigSpace
    from strategy.target import Target
    from strategy.workload import Workload

DATA = Path(__file__).resolve().parent / "data"
TOGETHER = 16  # kernels that take turns
ROUNDS = 5
BURST_S = 0.001
Digits = NDArray[np.int32]
Key = tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """One implementation of a workload on a target; its space, where nothing else is given, is its own."""

    workload: Workload
    target: Target
    implementation: str
    recorded: ConfigSpace | None = None

    @property
    def name(self) -> str:
        return f"{self.workload.key} on {self.target.key} by {self.implementation}"

    @cached_property
    def space(self) -> ConfigSpace | None:
        from strategy.op_strategy import candidates

        if self.recorded is not None:
            return self.recorded
        found = {c.implementation: c for c in candidates(self.workload, self.target)}
        return found[self.implementation].space

    def config(self, key: Key) -> Config:
        from strategy.space import Config

        knobs = self.space.knobs if self.space is not None else ()
        return Config({k.name: k.values[d] for k, d in zip(knobs, key, strict=True)})

    @property
    def fallback(self) -> Key:
        return () if self.space is None else self.space.digits(self.space.fallback)

    def draw(self, n: int, seed: int) -> list[Key]:
        """The fallback, and up to `n` others at random."""
        if self.space is None:
            return [()]
        drawn = self.space.sample(random.Random(seed), n)
        return list(dict.fromkeys([self.fallback, *map(self.space.digits, drawn)]))


@dataclass
class Recording:
    """The recorded seconds of a task's configurations, None for a failure."""

    task: Task
    seconds: dict[Key, float | None] = field(default_factory=dict)
    doubt: dict[Key, float] = field(default_factory=dict)  # relative

    @property
    def best_s(self) -> float:
        return min(t for t in self.seconds.values() if t is not None)

    @property
    def worked(self) -> dict[Key, float]:
        return {k: t for k, t in self.seconds.items() if t is not None}

    @property
    def digits(self) -> Digits:
        """A row per configuration that ran."""
        rows = list(self.worked)
        return np.array(rows, dtype=np.int32).reshape(len(rows), -1 if rows and rows[0] else 0)

    def add(self, key: Key, samples: Sequence[float] | None) -> None:
        """One more timing; the lower counts."""
        if samples is None:
            self.seconds.setdefault(key, None)
            return
        lowest, second = sorted(samples)[:2]
        known = self.seconds.get(key)
        if known is None or lowest < known:
            self.seconds[key] = lowest
        self.doubt[key] = min(self.doubt.get(key, math.inf), second / lowest - 1)


def or_nan(seconds: float | None) -> float:
    return math.nan if seconds is None else seconds


class Log:
    """Timings as they come: a line of JSON each, with the task's name, digits and samples."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.samples: dict[str, list[tuple[Key, list[float] | None]]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                name, key, samples = json.loads(line)
                self.samples.setdefault(name, []).append((tuple(key), samples))

    def add(self, task: Task, key: Key, samples: list[float] | None) -> None:
        self.samples.setdefault(task.name, []).append((key, samples))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps([task.name, list(key), samples]) + "\n")

    def recording(self, task: Task) -> Recording:
        found = Recording(task)
        for key, samples in self.samples.get(task.name, ()):
            found.add(key, samples)
        return found


def record(log: Log, task: Task, keys: Sequence[Key], until: float, *, again: bool = False) -> bool:
    """Time those that the log lacks, or all where `again`; whether none is missing at `until`.

    Args:
        until: by `time.monotonic`.
    """
    known = () if again else log.recording(task).seconds
    missing = [key for key in keys if key not in known]
    timer = Timer(task) if missing else None
    for i in range(0, len(missing), TOGETHER):
        if time.monotonic() > until:
            return False
        assert timer is not None
        batch = missing[i : i + TOGETHER]
        for key, samples in zip(batch, timer.time([task.config(k) for k in batch]), strict=True):
            log.add(task, key, samples)
    return True


class Timer:
    """Builds, checks and times configurations of one task."""

    def __init__(self, task: Task) -> None:
        import tvm

        from workers.reference import random_inputs, reference, tolerances

        self._task = task
        inputs = random_inputs(task.workload, 0)
        self._tensors = {name: tvm.runtime.tensor(given) for name, given in inputs.items()}
        self._right = [np.asarray(x) for x in reference(task.workload, inputs)]
        self._tolerance = tolerances(task.workload, inputs, self._right)
        self._random = random.Random(0)

    def time(self, configs: Sequence[Config]) -> list[list[float] | None]:
        """Seconds of a call, one for each round; None for what cannot be built or is wrong."""
        kernels = [self._build(config) for config in configs]
        calls = [0 if k is None else max(1, math.ceil(BURST_S / k.seconds(1))) for k in kernels]
        samples: list[list[float]] = [[] for _ in kernels]
        order = [i for i, kernel in enumerate(kernels) if kernel is not None]
        for _ in range(ROUNDS):
            self._random.shuffle(order)
            for i in order:
                kernel = kernels[i]
                assert kernel is not None
                kernel.seconds(1)  # its operands come back into the cache
                samples[i].append(kernel.seconds(calls[i]))
        return [s or None for s in samples]

    def _build(self, config: Config) -> _Kernel | None:
        import tvm

        from strategy.compile.lower import lower
        from strategy.fault import CompileError, InstantiationError
        from strategy.signature import Role
        from workers.reference import WrongAnswerError, compare, poison

        task = self._task
        try:
            lowered = lower(task.workload, task.target, task.implementation, config)
            artefact = lowered.compile(checks=False)
        except (CompileError, InstantiationError):
            return None
        outputs: list[Any] = []
        arguments: list[Any] = []
        for a in artefact.arguments:
            if a.role is Role.OUTPUT:
                outputs.append(tvm.runtime.tensor(poison(self._right[len(outputs)], a.tensor.dtype)))
                arguments.append(outputs[-1])
            else:
                arguments.append(artefact.prepare(a, self._tensors[a.name]))
        kernel = _Kernel(artefact, arguments)
        kernel.seconds(1)
        try:
            for found, right, tolerance in zip(outputs, self._right, self._tolerance, strict=True):
                compare(found.numpy(), right, tolerance)
        except WrongAnswerError:
            return None
        return kernel


class _Kernel:
    def __init__(self, artefact: Any, arguments: Sequence[Any]) -> None:
        import tvm

        self._main, self._arguments = artefact.main, arguments
        module = artefact.executable.jit()
        self._evaluate = lambda calls: module.time_evaluator("main", tvm.cpu(), number=calls, repeat=1)

    def seconds(self, calls: int) -> float:
        """Seconds of a call, the mean of so many."""
        if calls < 32:
            began = time.perf_counter()
            for _ in range(calls):
                self._main(*self._arguments)
            return (time.perf_counter() - began) / calls
        return float(self._evaluate(calls)(*self._arguments).results[0])


def pack(path: Path, recordings: Mapping[str, Recording]) -> None:
    """Write recordings as compressed JSON: the same bytes for the same recordings."""
    from strategy.record import to_json

    tasks = {}
    for name, r in recordings.items():
        task = r.task
        tasks[name] = {
            "workload": to_json(task.workload),
            "target": task.target.to_json(),
            "implementation": task.implementation,
            "space": None if task.space is None else task.space.to_json(),
            "digits": list(r.seconds),
            "ns": [None if t is None else round(t * 1e9) for t in r.seconds.values()],
            "doubt": [round(r.doubt.get(k, 0.0), 3) for k in r.seconds],
        }
    path.parent.mkdir(exist_ok=True)
    data = json.dumps({"tasks": tasks}, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, compresslevel=9, mtime=0))


def unpack(path: Path) -> dict[str, Recording]:
    """Read the file that `pack` wrote."""
    from strategy.record import convert
    from strategy.space import ConfigSpace
    from strategy.target import Target
    from strategy.workload import Workload

    found = {}
    for name, one in json.loads(gzip.decompress(path.read_bytes()))["tasks"].items():
        space = None if one["space"] is None else ConfigSpace.from_json(one["space"])
        task = Task(
            convert(one["workload"], Workload), Target.parse(one["target"]), one["implementation"], space
        )
        keys = [tuple(row) for row in one["digits"]]
        seconds = [None if ns is None else ns * 1e-9 for ns in one["ns"]]
        found[name] = Recording(
            task, dict(zip(keys, seconds, strict=True)), dict(zip(keys, one["doubt"], strict=True))
        )
    return found
