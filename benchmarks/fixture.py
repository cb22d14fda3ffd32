"""Common parts of the benchmarks: options, a workload, a new database, a service as a process, medians and orders."""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plevel.client import Client
    from service.store.db import Store
    from strategy.record import RunStatus
    from strategy.workload import Workload


def make_parser(about: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a script's docstring, and whose numbers are above zero, but for those of `natural`."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)

    def positive(kind: type[int | float], text: str) -> int | float:
        if (value := kind(text)) > 0:
            return value
        raise argparse.ArgumentTypeError(f"{text} is not above zero")

    for kind in (int, float):
        made.register("type", kind, partial(positive, kind))
    return made


def natural(text: str) -> int:
    """An option's integer that may be zero."""
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is below zero")
    return value


def need(*packages: str) -> None:
    """End the program if one of these is not installed."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise SystemExit(f"{Path(sys.argv[0]).name} needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def dense(m: int, n: int, k: int, *, constant: bool = True, dtype: str = "float32") -> Workload:
    """A product of m×k by n×k, whose weight is constant."""
    from strategy.workload import Workload

    types = {"data": f"{dtype}[{m},{k}]", "weight": f"{dtype}[{n},{k}]"}
    return Workload.make("qdense" if dtype == "int8" else "dense", types, constants=["weight"] if constant else [])


@contextmanager
def new_store() -> Iterator[Store]:
    """A store on an empty SQLite database, which ends with it."""
    from service.store import migration
    from service.store.db import Store

    with tempfile.TemporaryDirectory(prefix="plevel-bench-") as folder:
        url = f"sqlite:///{folder}/plevel.db"
        migration.upgrade(url)
        with closing(Store(url)) as store:
            yield store


@contextmanager
def serve(database: str, **settings: str) -> Iterator[tuple[str, int]]:
    """The address and the process id of a service over a database, with these settings in its environment."""
    with tempfile.TemporaryDirectory(prefix="plevel-bench-") as folder:
        ready = Path(folder, "ready")
        command = [sys.executable, "-m", "service", "--database", database, "--port", "0", "--ready-file", str(ready)]
        with running(command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL) as child:
            while not ready.exists():
                if child.poll() is not None:
                    raise SystemExit("the service did not start: it says above why")
                time.sleep(0.01)
            yield ready.read_text().strip(), child.pid


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that ends with the block."""
    with subprocess.Popen(command, **options) as child:
        try:
            yield child
        finally:
            child.terminate()


def statuses(client: Client, run: RunStatus) -> Iterator[RunStatus]:
    """A run at each change; what it waits for is said on standard error, as a list of old versions."""
    said = run.message
    for status in client.follow(run.id):
        if status.waiting and status.message != said:
            print(f"run {run.id}: {status.message}", file=sys.stderr)
        said = status.message
        yield status


def follow(client: Client, run: RunStatus) -> RunStatus:
    """The end of a run; see `statuses`."""
    *_, last = statuses(client, run)
    return last


def median_s(call: Callable[[Any], object], given: Iterable[Any], *, warm_up: int = 0) -> float:
    """The median seconds of a call with each of what is given; the first ones may be left out."""
    taken = []
    for one in given:
        began = time.perf_counter()
        call(one)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[warm_up:])


def tau(order: Sequence[float]) -> float:
    """Kendall's tau between where values stand and their order."""
    pairs = list(itertools.combinations(order, 2))
    return sum((b > a) - (b < a) for a, b in pairs) / max(1, len(pairs))
