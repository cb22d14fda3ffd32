"""The embedded mode: a service and one worker on this machine, for the duration of one command.

Both are child processes of the caller, use a free loopback port, and write log files. They end when the
caller ends, in whatever way.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from plevel.client import Client, UnreachableError
from plevel.extra import EmbeddedError, require_service, require_worker
from service import address
from service.address import path_of
from service.errors import DatabaseError

READY_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 1.0
STOP_TIMEOUT_S = 15.0
KEPT_LOGS = 20
KEPT_LOG_BYTES = 64 * 2**20
_LOG_ROOM = 1 << 16
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


class Embedded:
    """A service over `database` and, once `start_worker` is called, a worker: a context manager.

    Args:
        database: an SQLAlchemy URL.
        slot: the device of this machine that the worker times on, `cpu` or `cuda:0`.
        threads: of a kernel on a processor; default: all cores.
        early: load the worker while the service starts, which saves its seconds of `start_worker`.
        logs: the folder for log files; default: this user's state directory.

    Raises:
        EmbeddedError: on entry, if the service does not start.
    """

    def __init__(
        self, database: str, *, slot: str = "cpu", threads: int | None = None, early: bool = False,
        logs: Path | None = None,
    ) -> None:
        self.database = database
        self.slot = slot
        self.url = ""
        self._threads = threads
        self._early = early
        self._logs = logs
        self._children: list[_Child] = []
        self._loaded: _Child | None = None  # a worker that nobody has waited for

    def __enter__(self) -> Self:
        require_service()
        make_folder(self.database)
        try:
            self._start_service()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start_service(self) -> None:
        with tempfile.TemporaryDirectory(prefix="plevel-") as folder:
            ready = Path(folder) / "ready"
            with socket.create_server(("127.0.0.1", 0)) as listening:
                self.url = "http://{}:{}".format(*listening.getsockname())
                number = listening.fileno()
                child = self._spawn(
                    "service", "--host", "127.0.0.1", "--fd", str(number), "--ready-file", str(ready), "--auth", "open",
                    database=self.database, inherited=(number,),
                )
                self._children.append(child)
            if self._early:
                self._loaded = self._spawn_worker()  # its requests wait for the service's answers
            child.wait_for(
                ready.exists, "to start, as where another process holds the database locked, or a large one has an "
                "older schema (run 'plevel db upgrade' first)",
            )

    def start_worker(self) -> None:
        """Start the worker, unless it is loaded, and wait until it has registered.

        Raises:
            EmbeddedError: this host cannot build, or the worker does not start.
        """
        require_worker()
        # A loaded one has given up where the service took long, as to upgrade a large database.
        child = self._loaded if self._loaded and self._loaded.is_alive else self._spawn_worker()
        self._loaded = None
        self._children.append(child)
        with Client(self.url) as client:

            def is_registered() -> bool:
                return any(w["pid"] == child.pid and w["alive"] for w in client.workers())

            try:
                child.wait_for(is_registered, "to register")
            except UnreachableError:
                self.check()
                raise

    def check(self, leaving_s: float = 0.0) -> None:
        """Raise `EmbeddedError` if the service or the worker has died.

        Args:
            leaving_s: the time to wait for the worker's end, if it has left the service.
        """
        self._children[-1].wait(leaving_s)
        for child in self._children:
            child.check()

    @property
    def worker_log(self) -> Path:
        """The log of the worker, once it is started."""
        return self._children[-1].log

    def last_words(self) -> str:
        """The last line of the service's log, with the log's path."""
        log = self._children[0].log
        return f"{_last_line(log)} (log: {log})"

    def close(self) -> None:
        """Stop the worker, so that it releases its leases, then the service; an interrupt kills what is left."""
        if self._loaded:
            self._children.append(self._loaded)  # it may have leased jobs of earlier runs
            self._loaded = None
        try:
            while self._children:
                self._children[-1].stop()
                self._children.pop()
        finally:
            while self._children:
                self._children.pop().kill()

    def _spawn_worker(self) -> _Child:
        chosen = [str(self._threads)] if self._threads and self.slot == "cpu" else []
        return self._spawn("workers", self.url, self.slot, *chosen)

    def _spawn(
        self, module: str, *arguments: str, database: str | None = None, inherited: Sequence[int] = ()
    ) -> _Child:
        from platformdirs import user_state_path

        logs = self._logs or user_state_path("plevel", appauthor=False) / "log"
        return _Child(module, arguments, logs, database, inherited)


# Settings of a service for others, with which this one would not tune, or not be found.
_OF_A_FARM = frozenset(f"PLEVEL_{name}" for name in ("TUNE", "MIGRATE", "PORT", "AUTH", "TLS_CERT", "TLS_KEY"))


class _Child:
    """A `python -P -m module` in a session of its own, so that Ctrl-C reaches only its parent.

    With `-P` it takes no module from the current folder, where a project may have a `service` or `workers` of its own.
    The database is passed in the environment: other users can read arguments, and a URL may have a password.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], logs: Path, database: str | None, inherited: Sequence[int]
    ) -> None:
        self.name = {"workers": "worker"}.get(module, module)
        self.log = logs / f"{self.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        try:
            logs.mkdir(parents=True, exist_ok=True)
            _drop_old(logs)
            out = open(self.log, "wb", opener=_open_privately)  # noqa: SIM115 - closed below
            os.posix_fallocate(out.fileno(), 0, _LOG_ROOM)
            os.ftruncate(out.fileno(), 0)
        except OSError as error:
            raise EmbeddedError(
                f"log {self.log} cannot be written ({error.strerror}): name another folder in "
                "XDG_STATE_HOME"
            ) from error
        with out:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherited,
                preexec_fn=_die_with_parent(os.getpid()),  # noqa: PLW1509 - one prctl, no locks
                env={
                    **{k: v for k, v in os.environ.items() if k not in _OF_A_FARM}, "PYTHONUNBUFFERED": "1",
                    **({} if database is None else {"PLEVEL_DATABASE": database}),
                },
            )
        self.pid = self._process.pid

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + READY_TIMEOUT_S
        while not condition():
            self.check()
            if time.monotonic() > give_up:
                raise EmbeddedError(
                    f"the {self.name} took longer than {READY_TIMEOUT_S:.0f} s {what}: see {self.log}"
                )
            time.sleep(_POLL_S)

    def check(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        last = _last_line(self.log)
        said = last.removeprefix(f"plevel {self.name}: ")
        if said != last:  # its own error message
            raise EmbeddedError(f"{said} (log: {self.log})")
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        raise EmbeddedError(f"the {self.name} ended ({how}): {last} (log: {self.log})")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, patience_s: float) -> None:
        """Return at the end of the child, or after so long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)

    def stop(self) -> None:
        """Stop the child: SIGTERM, SIGTERM again, then SIGKILL to its session."""
        # A second SIGTERM makes a worker abandon what it is timing.
        for patience_s in (DRAIN_TIMEOUT_S, STOP_TIMEOUT_S):
            if self._process.poll() is None:
                self._process.terminate()
                self.wait(patience_s)
        self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def _open_privately(path: str, flags: int) -> int:
    """An `opener` of files that only this user can read: a log may quote what is confidential."""
    return os.open(path, flags, 0o600)


def _die_with_parent(parent: int) -> Callable[[], None]:
    """A `preexec_fn` that has the kernel terminate the child when its parent dies (Linux)."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def ask() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # the parent died before prctl
                os._exit(1)

    return ask


def _drop_old(logs: Path) -> None:
    newest = sorted(logs.glob("*.log"), key=lambda p: p.name.partition("-")[2], reverse=True)
    total = 0
    for i, path in enumerate(newest):
        with suppress(FileNotFoundError):  # another process deletes it now
            total += path.stat().st_size
        if i >= KEPT_LOGS or total > KEPT_LOG_BYTES:
            path.unlink(missing_ok=True)


def _last_line(log: Path) -> str:
    """The last line that is not blank, mostly the reason of a failure."""
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:  # another command keeps the newest logs only
        return "its log was deleted"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "no output"


def make_folder(database: str) -> None:
    """Create the folder of this user's own SQLite file; raise `EmbeddedError` if that fails."""
    path = path_of(database)
    try:
        if path is not None:
            address.make_folder(path)
    except DatabaseError as error:
        raise EmbeddedError(str(error)) from error
