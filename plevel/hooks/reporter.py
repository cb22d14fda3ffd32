"""The connection of a tool's process to a service: reports in the background, and questions with a time limit.

A report that cannot be delivered is kept in a folder of this user and sent later, by this process or another; the
service stores nothing twice.
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
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs

from plevel.client import Client, ServiceError, UnreachableError

T = TypeVar("T")
ANSWER_S = 2.0  # of a question
REST_S = 30.0  # after a failure, before the service is asked again
LAST_S = 5.0  # at the end of the process, for what was not sent yet
BATCH_BYTES = 1 << 20
SPOOL_BYTES = 64 << 20
log = logging.getLogger("plevel.hooks")
_encode = msgspec.json.Encoder(enc_hook=str).encode


def is_off() -> bool:
    """Return whether `PLEVEL_HOOKS=0` switches all hooks off."""
    return os.environ.get("PLEVEL_HOOKS", "1").lower() in ("0", "off", "false", "no")


class Reporter:
    """Reports to one service, and questions to it. Thread-safe; made anew in a forked process.

    Args:
        url: the service; default: `PLEVEL_URL`.
        token: default: `PLEVEL_TOKEN`.
        namespace: default: `PLEVEL_NAMESPACE`, else the token's.
        folder: where undelivered reports wait; default: of this user.

    Raises:
        ValueError: no service is named.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        namespace: str | None = None,
        folder: Path | None = None,
    ) -> None:
        url = url or os.environ.get("PLEVEL_URL")
        if not url:
            raise ValueError("no service is named: set PLEVEL_URL=http://host:port, or give its url")
        self.url = url
        self.worker = socket.gethostname()[:200]
        self._token = token or os.environ.get("PLEVEL_TOKEN") or None
        self._namespace = namespace or os.environ.get("PLEVEL_NAMESPACE") or None
        self._folder = folder or platformdirs.user_state_path("plevel") / "hooks"
        self._warned: set[str] = set()
        self._start()
        os.register_at_fork(after_in_child=self._start)
        atexit.register(self.close)

    def _start(self) -> None:
        """Begin with nothing to send, and no thread."""
        self._lock = threading.Lock()
        self._ask_lock = threading.Lock()  # another, as a report never waits for an answer
        self._asking: Client | None = None
        self._away_until = 0.0
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._sending = b""
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()

    def report(self, line: Mapping[str, Any]) -> None:
        """Send a foreign line (docs/formats.md) in the background."""
        data = _encode({"kind": "foreign", "worker": self.worker, **line}) + b"\n"
        with self._lock:
            self._idle.clear()
            self._waiting.put(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_all, name="plevel", daemon=True)
                self._thread.start()

    def best(self, tool: str, **question: Any) -> dict[str, Any] | None:
        """The answer of `Client.foreign_best`, None if the service is away."""

        def read(client: Client) -> dict[str, Any]:
            return client.foreign_best(tool, **question)

        return self._ask(read)

    def kernels(self, tool: str, limit: int, **wanted: Any) -> list[dict[str, Any]]:
        """The newest kernels of `Client.iter_foreign`, none if the service is away."""

        def read(client: Client) -> list[dict[str, Any]]:
            found = client.iter_foreign(tool, limit=min(limit, 1000), **wanted)
            return [kernel for kernel, _ in zip(found, range(limit), strict=False)]

        return self._ask(read) or []

    def _ask(self, read: Callable[[Client], T]) -> T | None:
        with self._ask_lock:
            if time.monotonic() < self._away_until:
                return None
            if self._asking is None:
                self._asking = self._client(ANSWER_S)
            try:
                return read(self._asking)
            except (UnreachableError, ServiceError) as error:
                self._failed(error)
                return None

    def _client(self, timeout_s: float) -> Client:
        return Client(
            self.url, timeout_s=timeout_s, patience_s=0.0, token=self._token,
            namespace=self._namespace,
        )  # fmt: skip

    def _failed(self, error: Exception) -> None:
        """Leave the service alone for a while, and warn once of each kind of failure."""
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
        if self._thread is None:
            return
        self._waiting.put(None)
        self._thread.join(LAST_S)
        left: list[bytes | None] = [self._sending]
        with contextlib.suppress(queue.Empty):
            while True:
                left.append(self._waiting.get_nowait())
        self._keep(b"".join(data for data in left if data is not None))
        self._thread = None

    def _send_all(self) -> None:
        waiting, client = self._waiting, self._client(30.0)
        with client:
            ended = False
            while not ended:
                taken = [waiting.get()]
                while not waiting.empty() and sum(len(d) for d in taken if d) < BATCH_BYTES:
                    taken.append(waiting.get())
                ended = None in taken
                self._sending = b"".join(d for d in taken if d is not None)
                try:
                    self._deliver(client, self._sending)
                except Exception as error:  # the tool goes on, whatever happens here
                    self._keep(self._sending)
                    self._failed(error)
                self._sending = b""
                with self._lock:
                    if waiting.empty():
                        self._idle.set()

    def _deliver(self, client: Client, data: bytes) -> None:
        """Send what was kept earlier, and this; keep what cannot be sent."""
        if time.monotonic() < self._away_until:
            self._keep(data)
            return
        for path, kept in self._kept():
            self._send(client, kept)
            path.unlink(missing_ok=True)
        if data:
            self._send(client, data)

    def _send(self, client: Client, data: bytes) -> None:
        rejected: list[Mapping[str, Any]] = []
        try:
            client.import_records([data], name="hook.ndjson", put_aside=rejected.append)
        except ServiceError as error:
            # Refused, and so it would be again.
            if not 400 <= error.status < 500 or error.status in (401, 403, 408, 429):
                raise
            self._warn("refused", f"{self.url} refused a report: {error}")
        for found in rejected[:1]:
            self._warn("rejected", f"a result was rejected: {found['detail']}")

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            size = sum(p.stat().st_size for p in self._folder.glob("*.ndjson"))
            if size + len(data) > SPOOL_BYTES:
                self._warn("full", f"{self._folder} is full: results are dropped until {self.url} answers")
                return
            part = self._folder / f".{uuid.uuid4().hex}"
            part.write_bytes(data)
            part.rename(self._folder / f"{self._place}-{time.time_ns()}-{part.name[1:9]}.ndjson")
        except OSError as error:
            self._warn("spool", f"results are lost, as {self._folder} cannot be written: {error}")

    @property
    def _place(self) -> str:
        """A name for this service and namespace, whose reports are kept apart."""
        return uuid.uuid5(uuid.NAMESPACE_URL, f"{self.url} {self._namespace}").hex[:12]

    def _kept(self) -> Iterator[tuple[Path, bytes]]:
        paths: Sequence[Path] = sorted(self._folder.glob(f"{self._place}-*.ndjson"))
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # another process was quicker
                yield path, path.read_bytes()
