"""Training on a Dask cluster: its workers hold the pages, and grow the trees together by XGBoost's collective.

A lost worker costs the trees since the last checkpoint: its parts, of which this host has copies, go to the others.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
import xgboost
from distributed import Client, Future
from distributed.client import ClosedClientError

from service.errors import InvalidError
from service.predict import share
from service.predict.share import Order
from service.predict.training import Progress
from service.search.description import Layout

ATTEMPTS = 3  # without a new checkpoint between them
WORKERS_S = 60.0  # wait for a worker
_LOOK_S = 1.0  # between two looks at the workers
_AWAY = (OSError, ClosedClientError)  # the scheduler is gone, as Dask says it


class LostError(Exception):
    """A share of the training has ended; the message names the worker and the reason."""


class Cluster:
    """A Dask cluster, and a training on it.

    Args:
        client: connected to its scheduler.
        warn: called with what goes wrong and is mended.
    """

    def __init__(self, client: Client, warn: Progress) -> None:
        self.client = client
        self.address = client.scheduler.address
        self.warn = warn
        self.training = uuid4().hex

    def forest(
        self, folder: Path, parts: Sequence[Path], layout: Layout, held_below: float, progress: Progress
    ) -> ClusterForest:
        """The forest of some parts, which replace those before. Raises InvalidError."""
        self.clear()
        with self.reached():
            return ClusterForest(self, parts, layout, held_below, progress)

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Turn the loss of the scheduler into an InvalidError."""
        try:
            yield
        except _AWAY as error:
            raise InvalidError(
                f"{self.address}: the Dask scheduler is gone ({error}): start it, and train again"
            ) from error

    def workers(self) -> list[str]:
        """The addresses of the cluster's workers; wait for one. Raises InvalidError."""
        give_up = time.monotonic() + WORKERS_S
        while True:
            found: Mapping[str, int] = self.client.nthreads()
            if found:
                return sorted(found)
            if time.monotonic() > give_up:
                raise InvalidError(
                    f"{self.address} has no workers: start some, as `dask worker`, and train again"
                )
            time.sleep(_LOOK_S)

    def clear(self) -> None:
        """Delete the files of this training on the workers, and end what runs."""
        with suppress(*_AWAY):  # they go with the worker at the latest
            self.client.run(share.clear, self.training, on_error="ignore")


class ClusterForest:
    """As `service.predict.forest.LocalForest`, of a cluster.

    Args:
        cluster: where.
        parts: of trials, on this host.
        layout: of the columns.
        held_below: see `Pages`.
        progress: called with a line at each step.
    """

    def __init__(
        self, cluster: Cluster, parts: Sequence[Path], layout: Layout, held_below: float, progress: Progress
    ) -> None:
        self._cluster = cluster
        self._parts = parts
        self._layout = layout
        self._held_below = held_below
        self._progress = progress
        self._place: dict[int, str] = {}  # workers by part
        self._rows: dict[int, tuple[int, int]] = {}  # learned from, and all, by part
        self._distribute()
        learned, every = (sum(r[i] for r in self._rows.values()) for i in (0, 1))
        self.held_share = 1 - learned / every

    def grow(self, name: str, *, everything: bool, start: bytes | None, rounds: int) -> bytes:
        done = failures = 0
        while True:
            attempt = _Attempt(self._cluster, self._progress, f"{name}: %d of {rounds} trees", done)
            with self._cluster.reached():
                try:
                    return attempt.run(self._orders(everything, rounds - done), start)
                except LostError as error:
                    failures = 0 if attempt.done > done else failures + 1
                    start, done = attempt.trees or start, attempt.done
                    if failures == ATTEMPTS:
                        raise InvalidError(f"training on {self._cluster.address}: {error}") from error
                    self._cluster.warn(f"{error}: training again from tree {done} on")
                self._distribute()

    def _orders(self, everything: bool, rounds: int) -> dict[str, Order]:
        """The shares of the workers that have rows."""
        have = {self._place[n] for n, rows in self._rows.items() if rows[everything]}
        return {
            worker: Order(
                columns=self._layout.columns, everything=everything, rounds=rounds, workers=len(have),
                first=i == 0, host=str(urlsplit(worker).hostname), name=str(i), threads=1,
            )
            for i, worker in enumerate(sorted(have))
        }

    def _distribute(self) -> None:
        """Give each part to a worker, unless a living one has it."""
        lost = None
        refusing: set[str] = set()  # workers that did not keep a part, such as those of full disks
        for attempt in range(ATTEMPTS + 1):
            alive = self._cluster.workers()
            missing = [n for n in range(len(self._parts)) if self._place.get(n) not in alive]
            if not missing:
                return
            if attempt < ATTEMPTS:
                lost = self._send(missing, [w for w in alive if w not in refusing] or alive, refusing) or lost
        raise InvalidError(
            f"{self._cluster.address}: its workers do not keep the records: {lost or 'they end at once'}"
        ) from lost

    def _send(self, missing: Sequence[int], alive: Sequence[str], refusing: set[str]) -> LostError | None:
        """Send parts; return why one of them did not arrive, and add its worker to `refusing`."""
        lost = None
        client = self._cluster.client
        self._check(client.run(share.versions, workers=list(alive), on_error="return"))
        counts = {worker: sum(w == worker for w in self._place.values()) for worker in alive}
        for i in range(0, len(missing), len(alive)):  # one part to each at a time, to bound memory
            futures: dict[int, tuple[str, Future]] = {}
            for n in missing[i : i + len(alive)]:
                worker = min(counts, key=lambda w: counts[w])
                counts[worker] += 1
                data = self._parts[n].read_bytes()
                order = (self._cluster.training, n, data, self._layout, self._held_below)
                futures[n] = worker, client.submit(share.keep, *order, workers=[worker], pure=False)
            for n, (worker, future) in futures.items():
                try:
                    self._rows[n] = _result(client, worker, future)
                    self._place[n] = worker
                except LostError as error:
                    lost = error
                    refusing.add(worker)
            self._progress(f"sending: {len(self._place)} of {len(self._parts)} parts")
        return lost

    def _check(self, found: Mapping[str, Any]) -> None:
        for worker, version in found.items():
            if version != xgboost.__version__:
                said = f"has XGBoost {version}" if isinstance(version, str) else f"cannot train ({version})"
                raise InvalidError(
                    f"Dask worker {worker} {said}: install plevel[service] there, with XGBoost {xgboost.__version__}"
                )


class _Attempt:
    """One attempt to grow trees.

    Attributes:
        done: the number of trees at the last checkpoint.
        trees: these; None if there was none.
    """

    def __init__(self, cluster: Cluster, progress: Progress, line: str, done: int) -> None:
        self._cluster = cluster
        self._progress = progress
        self._line = line
        self._before = self.done = done
        self.trees: bytes | None = None
        self._trackers: queue.Queue[dict[str, Any]] = queue.Queue()

    def run(self, orders: Mapping[str, Order], start: bytes | None) -> bytes:
        """The trees of all shares. Raises LostError."""
        client, topic = self._cluster.client, f"plevel-{uuid4().hex}"
        (first, order), *others = orders.items()

        def submit(worker: str, order: Order) -> Future:
            given = (self._cluster.training, topic, order, start)
            return client.submit(share.grow, *given, workers=[worker], pure=False)

        with _subscribed(client, topic, self._listen):
            futures = {first: submit(first, order)}
            try:
                while self._trackers.empty():
                    _look(client, futures)
                tracker = self._trackers.get()
                for worker, each in others:
                    futures[worker] = submit(worker, msgspec.structs.replace(each, tracker=tracker))
                while not all(future.done() for future in futures.values()):
                    _look(client, futures)
                results = [_result(client, w, f) for w, f in futures.items()]
                return bytes(results[0])
            finally:
                client.cancel(list(futures.values()), force=True)
                with suppress(*_AWAY):
                    client.run(share.cancel, self._cluster.training, on_error="ignore")

    def _listen(self, event: tuple[float, dict[str, Any]]) -> None:
        _, message = event
        if "tracker" in message:
            self._trackers.put(message["tracker"])
            return
        done = self._before + message["done"]
        if message["checkpoint"]:
            self.trees, self.done = message["trees"], done
        self._progress(self._line % done)


@contextmanager
def _subscribed(client: Client, topic: str, handler: Callable[[Any], None]) -> Iterator[None]:
    client.subscribe_topic(topic, handler)
    try:
        yield
    finally:
        client.unsubscribe_topic(topic)


def _look(client: Client, futures: Mapping[str, Future]) -> None:
    """Wait for a moment; raise LostError if a share failed, or its worker is gone."""
    time.sleep(_LOOK_S / 5)
    alive = client.nthreads()
    lost = next((worker for worker in futures if worker not in alive), None)
    if lost is not None:
        raise LostError(f"Dask worker {lost} is gone")
    for worker, future in futures.items():
        if future.status in ("error", "cancelled", "lost"):
            _result(client, worker, future)


def _result(client: Client, worker: str, future: Future) -> Any:
    """The result of a call. Raises LostError if it failed, or its worker is gone."""
    while not future.done():
        if worker not in client.nthreads():
            raise LostError(f"Dask worker {worker} is gone")
        time.sleep(_LOOK_S / 50)
    try:
        return future.result()
    except Exception as error:  # whatever the call has raised there
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LostError(f"Dask worker {worker}: {said}") from error
