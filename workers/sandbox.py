"""Killable children: handles on a fork server, which loads TVM once, and on the children it forks.

The daemon never imports TVM, but starts one fork server, which does. A handle distinguishes a time-out
(`Late`), a death (`Died`), a lack of this host (`SandboxError`), and an error of the job (an ordinary answer of the
child's code).
"""
# Over 300 lines: the server's handle and its children's, which end each other.

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec

from workers.fork import LENGTH, PROGRESS_BYTES, UNFIT, Channel, Limits, kill_session, receive, send

_POLL_S = 0.25
_MESSAGE_S = 60.0  # in which the rest of a message comes, once it has begun
_LOG_TAIL = 4000
_LONGEST = 1000  # characters of the last line of a trace
UNKNOWN = 2**62  # the stage of a child that has damaged its mark
_logger = logging.getLogger(__name__)


class SandboxError(RuntimeError):
    """This host cannot run children, or not these; the message has the cause and the remedy."""


class Died(Exception):
    """A child has died. `signal` is the signal that killed it, 0 if it exited.

    `log` is the end of its output. If that is a Python traceback, the message has the last line, and the rest is
    logged. `fault` is the address whose access killed it, 0 if unknown; `note` is its note
    (`Channel.leave`).
    """

    def __init__(
        self, signal_number: int, code: int, log: str, fault: int = 0, note: Any = None
    ) -> None:
        self.signal = signal_number
        self.code = code
        self.log = log
        self.fault = fault
        self.note = note
        self.cause = _signal_name(signal_number) if signal_number else f"exit status {code}"
        said = _last_words(log)
        if said != log:
            _logger.info("a child died (%s): %s", self.cause, log)
        super().__init__(f"the child died ({self.cause})" + (f": {said}" if said else ""))

    @property
    def out_of_memory(self) -> bool:
        """True if it reached its memory limit, or the OOM killer killed it."""
        words = ("bad_alloc", "Cannot allocate memory", "MemoryError", "out of memory")
        return self.signal == signal.SIGKILL or any(word in self.log for word in words)


def _last_words(log: str) -> str:
    """The error at the end of a Python traceback, or all of the text if there is none."""
    frames, _, rest = f"\n{log}".rpartition('\n  File "')
    if not frames:
        return log
    after = [line for line in rest.splitlines()[1:] if line and not line[0].isspace()]
    return after[0][:_LONGEST] if after else log


class Late(Exception):
    """A child exceeded the time limit of a stage and was killed."""


class Interrupted(Exception):
    """The caller interrupted the wait; the child was killed."""


class Interrupt(Protocol):
    """The end of a wait, such as an event."""

    def is_set(self) -> bool: ...


class Child:
    """A handle on a forked child. Not thread-safe."""

    def __init__(self, server: ForkServer, pid: int, channel: Channel, log: Path) -> None:
        self._server = server
        self.pid = pid
        self.channel = channel
        self._log = log
        self._sent_at = 0.0  # the last message
        self.alive = True

    def send(self, message: Any) -> None:
        """Raise `Died` if the child is gone, `SandboxError` if this host cannot run it."""
        self._sent_at = time.monotonic()
        self.channel.mark(-1)
        try:
            self.channel.send(message)
        except OSError:
            raise self._death() from None

    def receive(
        self, stage_s: float, interrupt: Interrupt | None = None, *, first_s: float | None = None
    ) -> Any:
        """The child's next message.

        Time for which this process was stopped does not count, as by SIGSTOP or in a paused container: the child may
        have been stopped, too.

        Args:
            stage_s: the time limit of each stage (see `Channel.mark`).
            interrupt: ends the wait promptly when set.
            first_s: the time limit before the first stage; default: `stage_s`.

        Raises:
            Died, Late, Interrupted: the child is dead.
            SandboxError: it is dead, as this host cannot run it.
        """
        stage_at, stopped_s = 0.0, 0.0
        answers = select.poll()  # `select` itself fails where this process has a thousand files open
        answers.register(self.channel, select.POLLIN)
        while True:
            stage, since = self.channel.progress
            if since != stage_at:
                stage_at, stopped_s = since, 0.0
            limit_s = stage_s if stage >= 0 or first_s is None else first_s
            began = time.monotonic()
            if not self._sent_at <= since <= began:  # NaN, too: no time would be over
                self.kill()
                self.channel.mark(UNKNOWN)  # the damaged one may be any, such as that of an earlier stage
                raise Died(0, 0, "it has damaged the memory that it shares with its worker")
            left_s = since + limit_s + stopped_s - began
            wait_s = max(0.0, min(left_s, _POLL_S))
            ready = answers.poll(1000 * wait_s)
            stopped_s += max(0.0, time.monotonic() - began - wait_s)
            if ready:
                try:
                    return self.channel.receive()
                except (TimeoutError, ValueError) as error:
                    self.kill()
                    raise Died(0, 0, f"it sent what is no message: {error}") from None
                except (EOFError, OSError):
                    raise self._death() from None
            if interrupt is not None and interrupt.is_set():
                self.kill()
                raise Interrupted
            if left_s <= 0:
                self.kill()
                raise Late(f"took longer than {limit_s:g} s and was killed")

    @property
    def stage(self) -> int:
        """The stage last marked by the child, -1 before the first of a request; `UNKNOWN` if it has damaged that."""
        return self.channel.progress[0]

    def _death(self) -> Died | SandboxError:
        number, code = self._end()
        log = ""
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL))
            log = file.read().decode(errors="replace").strip()
        self._log.unlink(missing_ok=True)
        if code == UNFIT and (self.stage < 0 or self.channel.note == UNFIT):  # else by what it ran
            return SandboxError(log.rpartition("\n")[2] or "a child cannot run on this host: see `plevel doctor`")
        return Died(number, code, log, self.channel.fault, self.channel.note)

    def kill(self) -> None:
        """End the child and its descendants."""
        self._end()
        self._log.unlink(missing_ok=True)

    def _end(self) -> tuple[int, int]:
        """The signal that killed it, and its exit status."""
        if not self.alive:
            return 0, 0
        self.alive = False
        kill_session(self.pid)
        self.channel.close()
        status = self._server.wait(self.pid)
        return (status & 0x7F, status >> 8) if status >= 0 else (signal.SIGKILL, 0)


# Modules that children of workers and builders run, with the operators: loading takes each half a second.
WORKER_IMPORTS = ("numpy", "tvm", "strategy.ops", "workers.builder", "workers.runner")


class ForkServer:
    """The process that forks children. Thread-safe.

    Args:
        imports: modules to load before the first fork.
        directory: a scratch directory of the caller's, for the children's output.

    Raises:
        SandboxError: a module cannot be imported.
    """

    def __init__(self, directory: Path, imports: tuple[str, ...] = WORKER_IMPORTS) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._count = 0
        self._stuck: int | None = None  # the first that was killed and does not end
        ours, theirs = socket.socketpair()
        environment = os.environ | {
            # One thread while modules load, as a multi-threaded process must not fork.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "TVM_NUM_THREADS": "1",
            "TVM_BIND_THREADS": "0",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        code = f"from workers.fork import serve_forks; serve_forks({theirs.fileno()}, {list(imports)!r})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._control = ours
        try:
            answer = receive(self._control)
        except EOFError:
            self.close()
            raise SandboxError(
                "the fork server died while it loaded " + ", ".join(imports)
            ) from None
        except BaseException:  # Ctrl-C, which does not reach its session
            self._process.kill()
            self.close()
            raise
        if "error" in answer:
            self.close()
            raise SandboxError(answer["error"])

    def spawn(self, limits: Limits) -> Child:
        """Fork a new child; raise `SandboxError` if the server is gone, or one that was killed does not end."""
        if self._stuck is not None:  # not before: what it did is still reported, so that no other host does it, too
            raise SandboxError(
                f"process {self._stuck}, or one that it started, was killed but does not end, as where a driver or a "
                "disk hangs: see `dmesg`, and restart this host"
            )
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("plevel-progress")
        try:
            os.ftruncate(memory, PROGRESS_BYTES)
            progress = mmap.mmap(memory, PROGRESS_BYTES)
            with self._lock, theirs:
                self._count += 1
                log = self._directory / f"child-{self._count}.log"
                request = msgspec.json.encode({"spawn": limits, "log": str(log)})
                try:
                    socket.send_fds(
                        self._control, [LENGTH.pack(len(request))], [theirs.fileno(), memory]
                    )
                    self._control.sendall(request)
                    answer = receive(self._control)
                except (OSError, EOFError) as error:
                    ours.close()
                    status = self._process.poll()
                    why = error if status is None else f"exit status {status}"
                    raise SandboxError(f"the fork server has died ({why}): restart the worker") from None
        finally:
            os.close(memory)
        if "error" in answer:
            ours.close()
            raise SandboxError(answer["error"])
        ours.settimeout(_MESSAGE_S)
        channel = Channel(ours, progress)
        channel.mark(-1)
        return Child(self, int(answer["pid"]), channel, log)

    def wait(self, pid: int) -> int:
        """The wait status of a dead or dying child; -1 if the server is gone, or the kernel does not let it end."""
        with self._lock:
            try:
                send(self._control, {"wait": pid})
                status = receive(self._control)["status"]
            except (OSError, EOFError):
                return -1
            if status is None:
                self._stuck = self._stuck or pid
                return -1
        return int(status)

    def close(self) -> None:
        """End the server and all children."""
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
