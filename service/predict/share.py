"""A worker's share of a training on a Dask cluster: its part of the pages, and the process that grows trees on it.

XGBoost ends the process of a training that has lost another one, so that it runs in a child. Dask calls the
functions by name; `python -m service.predict.share` is the child.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import xgboost
from distributed import get_worker

from service.predict.forest import grow_trees
from service.predict.spool import Pages, read_part
from service.search.description import Layout
from service.search.predictor import safe

CHECKPOINT = 10  # trees
_running: dict[str, subprocess.Popen[str]] = {}  # by the training


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The share of one worker in growing trees.

    Attributes:
        columns: of the pages.
        everything: include the held-out workloads.
        start: trees to continue, in a file of the training's folder; empty for none.
        workers: the number of shares.
        first: this share opens the tracker, and tells of checkpoints.
        host: this worker's address.
        name: of the share, by which they are ordered.
        tracker: where the shares find each other, as the first one has announced.
    """

    columns: tuple[str, ...]
    everything: bool
    rounds: int
    threads: int
    workers: int
    first: bool
    host: str
    name: str
    start: str = ""
    tracker: dict[str, Any] = {}


def versions() -> str:
    """The version of XGBoost, which must be the same everywhere."""
    return str(xgboost.__version__)


def keep(training: str, number: int, data: bytes, layout: Layout, held_below: float) -> tuple[int, int]:
    """Make the pages of a part on this worker's disk; return the rows that are learned from, and all."""
    folder = _folder(training, get_worker()) / str(number)
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was cut off
    folder.mkdir(parents=True)
    pages = Pages(folder)
    pages.write(read_part(data), layout, held_below)
    return pages.find(everything=False)[1], pages.find(everything=True)[1]


def grow(training: str, topic: str, order: Order, start: bytes | None) -> bytes | None:
    """Grow trees with the other shares; the first share returns them.

    Raises:
        RuntimeError: the child has ended, by its own fault or another share's.
    """
    worker = get_worker()
    task = worker.state.tasks[worker.get_current_task()]
    folder = _folder(training, worker)
    if start is not None:
        (folder / "start").write_bytes(start)
        order = msgspec.structs.replace(order, start="start")
    order = msgspec.structs.replace(order, threads=worker.state.nthreads)
    with (folder / "errors").open("w+b") as errors:
        child = _running[training] = subprocess.Popen(
            [sys.executable, "-P", "-m", "service.predict.share", str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        with child.stdin:
            child.stdin.write(msgspec.json.encode(order).decode())
        with child.stdout:
            for line in child.stdout:
                if task.state == "cancelled":  # by the scheduler, where the command was killed
                    child.kill()
                    break
                if not line.startswith("{"):  # XGBoost's own
                    continue
                message = json.loads(line)
                if message.get("checkpoint"):
                    message["trees"] = (folder / "checkpoint").read_bytes()
                worker.log_event(topic, message)
        code = child.wait()
        _running.pop(training, None)
        if code:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(f"status {code}: {(said or ['killed'])[-1]}")
    return (folder / "trees").read_bytes() if order.first else None


def cancel(training: str) -> None:
    """End the child of a training."""
    child = _running.pop(training, None)
    if child is not None:
        child.kill()


def clear(training: str, dask_worker: Any) -> None:
    """End the child of a training, and delete its files."""
    cancel(training)
    shutil.rmtree(_folder(training, dask_worker), ignore_errors=True)


def _folder(training: str, worker: Any) -> Path:
    """The folder of a training, which goes with its Dask worker at the latest."""
    return Path(worker.local_directory) / f"plevel-training-{training}"


def _tell(**message: object) -> None:
    print(json.dumps(message), flush=True)


def main(folder: Path) -> None:
    from xgboost.collective import CommunicatorContext
    from xgboost.tracker import RabitTracker

    order = msgspec.json.decode(sys.stdin.read(), type=Order)
    where: Mapping[str, Any] = order.tracker
    tracker = None
    if order.first and order.workers > 1:
        tracker = RabitTracker(n_workers=order.workers, host_ip=order.host, sortby="task")
        tracker.start()
        where = tracker.worker_args()
    if order.first:
        _tell(tracker=where)

    def after_round(done: int, trees: xgboost.Booster) -> None:
        if not order.first:
            return
        full = done % CHECKPOINT == 0
        if full:
            trees.save_model(folder / "checkpoint.draft.ubj")
            (folder / "checkpoint.draft.ubj").rename(folder / "checkpoint")
        _tell(done=done, checkpoint=full)

    pages, rows = Pages(folder).find(everything=order.everything)
    start = (folder / order.start).read_bytes() if order.start else None
    task = {"dmlc_task_id": order.name, "dmlc_communicator": "rabit"}
    with CommunicatorContext(**where, **task) if order.workers > 1 else nullcontext():
        trees = grow_trees(
            folder, pages, rows, safe(order.columns), start=start, rounds=order.rounds,
            threads=order.threads, after_round=after_round,
        )
        if order.first:
            (folder / "trees").write_bytes(trees)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
