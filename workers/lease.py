"""A worker's leases: renewal, results and release."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from strategy.record import (
    MOST_REFERENCES,
    Lease,
    Reference,
    Registered,
    Report,
    Result,
    Results,
    ResultsAccepted,
)
from workers.client import ANSWER_S, Client, LeaseLostError, ServiceError
from workers.sender import Sender
from workers.spool import Spool

log = logging.getLogger(__name__)

# Longest interval of renewals, and so of noticing that a run was cancelled.
_RENEW_S = 2.0
GOODBYE_S = 3.0


class Held:
    """A lease that this worker holds."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.session = uuid.uuid4().hex
        self.timing = False
        self.cancelled = False
        self.lost = False
        # Set when its work must stop: lost, cancelled, or the worker ends.
        self.ended = threading.Event()

    def end(self, *, lost: bool = False, cancelled: bool = False) -> None:
        """Mark the lease as ended, so that its work stops as soon as possible."""
        self.lost |= lost
        self.cancelled |= cancelled
        self.ended.set()

    @property
    def ids(self) -> dict[str, int]:
        """The ids of its run and job, for log records."""
        return {"run": self.lease.job.run_id, "job": self.lease.job.id}

    def __str__(self) -> str:
        job = self.lease.job
        return f"job {job.id} ({job.phase.value}, {job.workload})"


class Holdings:
    """The leases of a worker: renewal, results and release. Thread-safe.

    Args:
        client: the service's client.
        spool: keeps results until the service has accepted them.
        failed: see `Sender`.
    """

    def __init__(self, client: Client, spool: Spool, failed: Callable[[Exception], None] | None = None) -> None:
        self._client = client
        self._held: dict[str, Held] = {}  # by their sessions: ids of leases come again after a restored backup
        self._lock = threading.Lock()
        self._giving_back = threading.Lock()
        self._sender = Sender(client, spool, self._on_accepted, self._on_lost, failed=failed)

    def add(self, lease: Lease) -> Held:
        held = Held(lease)
        with self._lock:
            self._held[held.session] = held
        return held

    def all(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def report(self, held: Held, *results: Result) -> None:
        """Return once the results are on disk; they are sent soon."""
        if results:
            self._put(held, results=results)

    def finish(
        self,
        held: Held,
        environment: dict[str, Any],
        references: tuple[Reference, ...] = (),
        results: Sequence[Result] = (),
    ) -> None:
        """Report a job as done, with its last results."""
        try:  # it may wait for room on the disk: the lease is renewed meanwhile
            # Of a job with a session for each of many entries, the last.
            last = references[-MOST_REFERENCES:]
            self._put(held, results=tuple(results), environment=environment, references=last, done=True)
        finally:
            with self._lock:
                self._held.pop(held.session, None)

    def leave(self, held: Held) -> None:
        """End a lease whose work stopped before its end."""
        if held.cancelled and not held.lost:
            self.finish(held, {})
        elif held.lost:
            with self._lock:
                self._held.pop(held.session, None)
        else:
            self._sender.flush(GOODBYE_S)
            self.release(held)

    def release(self, held: Held) -> None:
        """Release a job, unless that was done; return once it is done."""
        with self._giving_back:
            if held not in self.all():
                return
            with contextlib.suppress(ServiceError):
                self._client.release(held.lease)
            with self._lock:
                self._held.pop(held.session, None)

    def flush(self, timeout_s: float) -> None:
        """Send pending results, if the service accepts them in time."""
        self._sender.flush(timeout_s)

    def close(self) -> None:
        """Send pending results, and release the remaining leases."""
        self._sender.close(GOODBYE_S)
        for held in self.all():
            self.release(held)

    def renew(self, held: Held, timeout_s: float = ANSWER_S) -> None:
        """Renew a lease; raise as `Client.renew` does, except for a loss, which is recorded."""
        try:
            answer = self._client.renew(held.lease, held.timing, timeout_s)
        except LeaseLostError as error:
            if not held.lost:  # two threads renew that of the job that is timed
                log.warning("%s: its lease is lost, stopping its work: %s", held, error, extra=held.ids)
            held.end(lost=True)
            return
        if answer.cancelled:
            log.info("%s: its run was cancelled, stopping its work", held, extra=held.ids)
            held.end(cancelled=True)

    def keep_alive(self, registered: Callable[[], Registered], stop: threading.Event) -> None:
        """Renew leases and send heartbeats until `stop`; for a thread of its own.

        A request that is not answered, as on a connection that a firewall has dropped, is made again within the term.
        """
        heartbeat_at = time.monotonic() + registered().heartbeat_s
        timeout_s = registered().lease_s / 3
        while not stop.wait(min(_RENEW_S, timeout_s)):
            for held in self.all():
                if held.ended.is_set():
                    continue
                try:
                    self.renew(held, timeout_s)
                except ServiceError as error:
                    log.debug("%s: renewal of its lease failed, retrying: %s", held, error)
            if time.monotonic() >= heartbeat_at:
                heartbeat_at = time.monotonic() + registered().heartbeat_s
                # An unknown worker registers again with its next request for a job.
                with contextlib.suppress(ServiceError):
                    self._client.heartbeat(registered().worker_id, timeout_s)

    def _put(self, held: Held, **content: Any) -> None:
        results = Results(token=held.lease.token, session=held.session, **content)
        self._sender.put(Report(lease_id=held.lease.id, results=results))

    def _on_accepted(self, session: str, answer: ResultsAccepted) -> None:
        held = self._held.get(session)
        if held is not None and answer.cancelled:
            held.end(cancelled=True)

    def _on_lost(self, session: str) -> None:
        held = self._held.get(session)
        if held is not None:
            held.end(lost=True)
