"""The connection of a tool's process to a service: reports in the background, and questions with a time limit.

A report that cannot be delivered is kept in a folder of this user and sent later, by this process or another; the
service stores nothing twice. At the first question about a kernel its known problems are read in the background, and
again in the background after a minute; they answer further questions about it, without a request. Nothing here raises
into the tool.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs

from plevel.client import Client, ServiceError, UnreachableError
from plevel.environment import read_token
from plevel.hooks.known import Kernel, Known
from plevel.hooks.lean_client import LeanClient
from plevel.hooks.settings import service_url
from plevel.hooks.spool import FullError, Spool
from strategy.foreign import foreign_workload
from strategy.workload import Workload

T = TypeVar("T")
ANSWER_S = 2.0  # of a question
AHEAD = 500  # problems of a kernel that are read ahead; further ones are asked one by one
REST_S = 30.0  # after a failure, before the service is asked, or sent reports, again
REFUSED = (400, 413, 422)  # of a report that no later request could store
LAST_S = 5.0  # at the end of the process, for what was not sent yet
BATCH_BYTES = 1 << 20
log = logging.getLogger("plevel.hooks")
_encode = msgspec.json.Encoder(enc_hook=str).encode


class Reporter:
    """Reports to one service, and questions to it. Thread-safe; made anew in a forked process.

    Args:
        url: the service; default: `PLEVEL_URL`.
        token: default: of `PLEVEL_TOKEN_FILE`, else `PLEVEL_TOKEN`.
        namespace: default: `PLEVEL_NAMESPACE`, else the token's.
        folder: where undelivered reports wait; default: of this user.

    Raises:
        ValueError: no service is named, or not by a URL.
        UnreachableError: PLEVEL_TOKEN_FILE or PLEVEL_TOKEN is set to no token.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        namespace: str | None = None,
        folder: Path | None = None,
    ) -> None:
        self.url = service_url(url)
        self.worker = socket.gethostname()[:200]
        self._token = token or read_token()
        self._namespace = namespace or os.environ.get("PLEVEL_NAMESPACE") or None
        self._folder = folder or platformdirs.user_state_path("plevel") / "hooks"
        self._warned: set[str] = set()
        self._spool = Spool(self._folder, f"{self.url} {self._namespace}")
        self._start()
        os.register_at_fork(after_in_child=self._begin_anew)
        atexit.register(self.close)
        self._close_with_child()
        register_after_fork(self, Reporter._close_with_child)

    def _close_with_child(self) -> None:
        """Close at the end of a child of multiprocessing, which leaves out `atexit`."""
        Finalize(self, self.close, exitpriority=0)

    def _begin_anew(self) -> None:
        self._spool.reopen()
        self._start()

    def _start(self) -> None:
        """Begin with nothing to send, and no thread."""
        self._lock = threading.Lock()
        self._ask_lock = threading.Lock()  # another, as a report never waits for an answer
        self._asking: Client | None = None
        self._away_until = 0.0
        self._hold_until = 0.0  # reports only: a token may read and not submit, or the reverse
        self._waiting: queue.SimpleQueue[bytes | Kernel | None] = queue.SimpleQueue()
        self._kernels: dict[Kernel, Known] = {}
        self._reported: set[str] = set()  # problems
        self._sending = b""
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()

    def report(self, line: Mapping[str, Any]) -> None:
        """Send a foreign line (docs/formats.md) in the background."""
        with self.spared():
            problem = foreign_workload(line["tool"], line["kernel"], line["attrs"])
            self._reported.add(problem.key)
            self._put(_encode({"kind": "foreign", "worker": self.worker, **line}) + b"\n")

    def _put(self, item: bytes | Kernel) -> None:
        with self._lock:
            self._idle.clear()
            self._waiting.put(item)
            if self._thread is None:
                thread = threading.Thread(target=self._send_all, name="plevel", daemon=True)
                thread.start()
                self._thread = thread

    @contextlib.contextmanager
    def spared(self) -> Iterator[None]:
        """Warn of an error in place of raising it into the tool."""
        try:
            yield
        except Exception as error:
            self._warn(type(error).__name__, f"{type(error).__name__}: {error}; tuning goes on without plevel")

    def best(self, tool: str, workload: Workload, **terms: Any) -> dict[str, Any] | None:
        """The answer of `Client.foreign_best`, None if the service is away."""
        return self._ask(lambda client: client.foreign_best(tool, workload, **terms))

    def likest(self, tool: str, workload: Workload, **terms: Any) -> dict[str, Any] | None:
        """As `best`, of the likest device that has an answer; it may be `USABLE_S` old.

        A problem that this process has reported is asked for each time.
        """
        with self.spared():
            return self._likest(tool, workload, **terms)
        return None

    def _likest(self, tool: str, workload: Workload, **terms: Any) -> dict[str, Any] | None:
        kernel = Kernel(tool, workload.op.partition(".")[2], tuple(terms.items()))
        known = self._kernels.get(kernel)
        if known is not None and known.is_usable():
            if known.falls_due():
                with self.spared():
                    self._put(kernel)
            if known.has(workload.key) and workload.key not in self._reported:
                return known.problems.get(workload.key)
            found = self.best(tool, workload, **terms)
        else:
            self._kernels[kernel] = Known(time.monotonic())
            found = self.best(tool, workload, **terms)
            with self.spared():
                self._put(kernel)  # not before, as the service would answer both at once
        if found is not None and found["answers"]:
            places = [(a["likeness"], a["device_model"]) for a in found["answers"]]
            del found["answers"][places.count(places[0]) :]
        return found

    def kernels(self, tool: str, limit: int, **wanted: Any) -> list[dict[str, Any]]:
        """The newest kernels of `Client.iter_foreign`, none if the service is away."""

        def read(client: Client) -> list[dict[str, Any]]:
            found = client.iter_foreign(tool, limit=min(limit, 1000), **wanted)
            return list(islice(found, limit))

        return self._ask(read) or []

    def _ask(self, read: Callable[[Client], T]) -> T | None:
        with self._ask_lock:
            if time.monotonic() < self._away_until:
                return None
            try:
                if self._asking is None:
                    if not self._spool.is_empty():
                        with self.spared():
                            self._put(b"")  # a process that only asks delivers it, too
                    self._asking = LeanClient(
                        self.url, timeout_s=ANSWER_S, token=self._token, namespace=self._namespace
                    )
                return read(self._asking)
            except Exception as error:
                self._failed(error)
                return None

    def _client(self) -> Client:
        return Client(self.url, patience_s=0.0, token=self._token, namespace=self._namespace)

    def _failed(self, error: Exception) -> None:
        """Warn once of each kind of failure; leave the service alone for a while if it is away."""
        if isinstance(error, UnreachableError) or (isinstance(error, ServiceError) and error.status >= 500):
            self._away_until = time.monotonic() + REST_S
        self._warn(type(error).__name__, f"{error}; tuning goes on without plevel")

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("plevel: %s", text)  # not `warnings`, which may be errors of the tool

    def flush(self, timeout_s: float = LAST_S) -> bool:
        """Wait until all reports are delivered or kept; return whether they are."""
        return self._idle.wait(timeout_s)

    def close(self) -> None:
        """Deliver or keep the last reports, and end the thread."""
        if self._thread is None and self._waiting.empty():
            return
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(LAST_S)
        left: list[bytes | Kernel | None] = [self._sending]
        with contextlib.suppress(queue.Empty):
            while True:
                left.append(self._waiting.get_nowait())
        self._keep(b"".join(data for data in left if isinstance(data, bytes)))
        self._spool.close()
        self._thread = None

    def _send_all(self) -> None:
        waiting, client = self._waiting, None
        with contextlib.ExitStack() as stack:
            ended = False
            while not ended:
                taken = [waiting.get()]
                while not waiting.empty() and sum(len(d) for d in taken if isinstance(d, bytes)) < BATCH_BYTES:
                    taken.append(waiting.get())
                ended = None in taken
                reports = [d for d in taken if isinstance(d, bytes)]
                self._sending = b"".join(reports)
                try:
                    client = client or stack.enter_context(self._client())
                    if reports or ended:
                        self._deliver(client, self._sending)
                except Exception as error:  # the tool goes on, whatever happens here
                    self._keep(self._sending)
                    self._hold_until = time.monotonic() + REST_S
                    self._failed(error)
                self._sending = b""
                for kernel in taken:
                    if client and isinstance(kernel, Kernel):
                        self._read_ahead(client, kernel)
                with self._lock:
                    if waiting.empty():
                        self._idle.set()

    def _read_ahead(self, client: Client, kernel: Kernel) -> None:
        if time.monotonic() < self._away_until:
            return
        known = Known(time.monotonic())
        found = client.iter_foreign_problems(kernel.tool, kernel.name, **dict(kernel.terms))
        try:
            known.problems = {p["workload"]: p for p in islice(found, AHEAD)}
        except Exception as error:
            self._failed(error)
            return
        known.complete = len(known.problems) < AHEAD
        self._kernels[kernel] = known

    def _deliver(self, client: Client, data: bytes) -> None:
        """Send what was kept earlier, and this; keep what cannot be sent."""
        if time.monotonic() < max(self._away_until, self._hold_until):
            self._keep(data)
            return
        try:
            self._spool.deliver(partial(self._send, client))
        except UnreachableError:  # an OSError, too
            raise
        except OSError as error:
            self._warn("unsent", f"earlier results are not sent, as {self._folder} cannot be listed: {error}")
        if data:
            self._send(client, data)

    def _send(self, client: Client, data: bytes) -> None:
        rejected: list[Mapping[str, Any]] = []
        try:
            client.import_records([data], name="hook.ndjson", put_aside=rejected.append)
        except ServiceError as error:
            if error.status not in (REFUSED if error.kind else (413,)):  # a proxy judges the size alone
                raise
            lines = data.splitlines(keepends=True)
            if error.status == 413 and len(lines) > 1:  # too large for a proxy in between
                for part in (lines[: len(lines) // 2], lines[len(lines) // 2 :]):
                    self._send(client, b"".join(part))
                return
            self._warn("refused", f"{self.url} refused a report: {error}")
        for found in rejected[:1]:
            self._warn("rejected", f"a result was rejected: {found['detail']}")

    def _keep(self, data: bytes) -> None:
        try:
            if data:
                self._spool.keep(data)
        except FullError:
            self._warn("full", f"{self._folder} is full: results are dropped until {self.url} answers")
        except OSError as error:
            self._warn("spool", f"results are lost, as {self._folder} cannot be written: {error}")
