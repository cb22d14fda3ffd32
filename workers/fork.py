"""The fork server's process: it loads TVM once and forks children that serve requests.

It loads its modules while single-threaded, then forks a child within milliseconds for each requested `Limits`. A child
is a session of its own with limits on memory, files and processes; it serves JSON requests over its own socket until
that closes.
"""
# Over 300 lines: the server's loop, its children and what bounds them; its process loads few other modules.

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from strategy.fault import ToolError
from workers.confine import confine
from workers.cpu import DeviceError, pin
from workers.fault import store_faults

LENGTH = struct.Struct("<I")
_MAX_MESSAGE = 256 * 1024 * 1024
# Memory shared by a child and its handle: the stage and its start, the address of a fault, and a note after its length.
_PROGRESS, _FAULT, _NOTE = struct.Struct("<qd"), struct.Struct("<Q"), struct.Struct("<I")
_FAULT_AT = _PROGRESS.size
_NOTE_AT = _FAULT_AT + _FAULT.size
PROGRESS_BYTES = 1 << 16
_END_S = 60.0  # for a killed process to end: GPU drivers take seconds
UNFIT = os.EX_OSERR  # exit status of a child for which this host lacks something: no fault of its request


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """A child's entry point and resource limits.

    Args:
        module: the child runs its `serve(channel)`.
        cores: the cores it may run on.
        memory_bytes: of private memory (RLIMIT_DATA).
        environment: environment variables, set before the child's code runs.
        forks: allow its programs to fork, as nvcc does; the linker does not.
    """

    module: str
    cores: tuple[int, ...] = ()
    memory_bytes: int = 8 * 2**30
    file_bytes: int = 2 * 2**30
    environment: dict[str, str] = {}
    forks: bool = False


def send(to: socket.socket, message: Any) -> None:
    """Send a message: JSON after its length."""
    data = msgspec.json.encode(message)
    to.sendall(LENGTH.pack(len(data)) + data)


def receive(of: socket.socket, length: bytes = b"") -> Any:
    """The next message, whose length may have been read; raise `EOFError` at their end, `ValueError` for garbage."""
    (size,) = LENGTH.unpack(length or _exactly(of, LENGTH.size))
    if size > _MAX_MESSAGE:
        raise ValueError(f"its length is {size} bytes")
    return msgspec.json.decode(_exactly(of, size))


def _exactly(of: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = of.recv(min(size, 1 << 20))
        if not part:
            raise EOFError("the other side has closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Channel:
    """Messages over a socket, and memory that outlives the process that writes to it."""

    def __init__(self, connection: socket.socket, progress: mmap.mmap) -> None:
        self._socket = connection
        self._progress = progress

    def send(self, message: Any) -> None:
        send(self._socket, message)

    def receive(self) -> Any:
        """The next message; raise `EOFError` if the other side has closed."""
        return receive(self._socket)

    def mark(self, stage: int) -> None:
        """Record that `stage` begins now, without waking the other side."""
        # In one copy: `pack_into` clears the place first, and the other side may look at that moment.
        self._progress[: _PROGRESS.size] = _PROGRESS.pack(stage, time.monotonic())

    @property
    def progress(self) -> tuple[int, float]:
        """The last marked stage, and its time (`time.monotonic`)."""
        stage, since = _PROGRESS.unpack(self._progress[: _PROGRESS.size])
        return stage, since

    def leave(self, note: Any) -> None:
        """Store a note that survives this process, such as addresses of buffers; `None` clears it."""
        text = msgspec.json.encode(note)
        room = len(self._progress) - _NOTE_AT - _NOTE.size
        if len(text) > room:
            text = b"null"
        at = _NOTE_AT + _NOTE.size
        self._progress[at : at + len(text)] = text
        _NOTE.pack_into(self._progress, _NOTE_AT, len(text))

    @property
    def note(self) -> Any:
        """The last note, None if there is none."""
        (length,) = _NOTE.unpack_from(self._progress, _NOTE_AT)
        at = _NOTE_AT + _NOTE.size
        try:
            return msgspec.json.decode(self._progress[at : at + length])
        except msgspec.DecodeError:  # none, or damaged by a stray write
            return None

    def store_faults(self) -> None:
        """Record the address of a memory fault that kills this process."""
        store_faults(ctypes.addressof(ctypes.c_char.from_buffer(self._progress)) + _FAULT_AT)

    @property
    def fault(self) -> int:
        """The address whose access killed the process, 0 if unknown."""
        (address,) = _FAULT.unpack_from(self._progress, _FAULT_AT)
        return int(address)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def kill_session(pid: int) -> None:
    """Kill a child and its descendants. Its pid is not reused before the server has waited for it."""
    for kill in (os.kill, os.killpg):  # a fresh child may not have a session yet
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Hide PyTorch from an import of TVM, which loads it where it is installed: seconds, and 200 MB.

    Afterwards it can be imported: an operator's code may need it.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


def serve_forks(fileno: int, imports: list[str]) -> None:
    """Run the fork server, single-threaded, until its control socket closes."""
    control = socket.socket(fileno=fileno)
    libc = ctypes.CDLL(None, use_errno=True)
    # Become the parent of orphans, so that they can be found and killed.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # children, too: the daemon decides
    gc.disable()  # nothing that modules load is garbage
    try:
        with without_torch():
            for name in imports:
                importlib.import_module(name)
    except ImportError as error:
        send(control, {"error": f"{error}: install plevel[worker]"})
        return
    gc.freeze()  # keeps pages shared with children (copy-on-write)
    gc.enable()
    children: set[int] = set()
    with contextlib.suppress(ConnectionError, EOFError):  # the requester has gone
        send(control, {})
        _answer(control, children)
    for pid in list(children):
        kill_session(pid)
        _reap(pid, children)


def _answer(control: socket.socket, children: set[int]) -> None:
    """Serve requests to fork and to wait, until the socket is closed."""
    while True:
        header, fds, _, _ = socket.recv_fds(control, LENGTH.size, 2)
        if len(header) < LENGTH.size:
            break
        request = receive(control, header)
        if "wait" in request:
            send(control, {"status": _reap(request["wait"], children)})
            continue
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or no memory
            send(control, {"error": f"this host cannot start a process ({error.strerror}): see `plevel doctor`"})
        else:
            if pid == 0:
                control.close()
                _become(request, fds)  # does not return
            children.add(pid)
            send(control, {"pid": pid})
        for fd in fds:
            os.close(fd)


def _reap(pid: int, children: set[int]) -> int | None:
    """Wait for a killed child, and kill its descendants that left its session; None if one of them does not end."""
    if not _ends(pid):
        return None
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        status = -1
    children.discard(pid)
    while True:
        orphans = [p for p in _own_children() if p not in children]
        if not orphans:
            return status
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
            if not _ends(orphan):
                children.add(orphan)  # so that it is waited for once
                return None
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, 0)


def _ends(pid: int) -> bool:
    """Return whether a killed process ends in time; True if this kernel does not tell."""
    try:
        process = os.pidfd_open(pid)
    except OSError:  # an older kernel, or a container's filter; or there is no such process
        return True
    try:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        return bool(ended.poll(1000 * _END_S) or ended.poll(1000))  # again, as both may have been stopped meanwhile
    finally:
        os.close(process)


def _own_children() -> list[int]:
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return []
    return [int(word) for word in text.split()]


def _become(request: dict[str, Any], fds: list[int]) -> None:
    """Turn a fresh fork into the requested child. Never returns."""
    code = UNFIT  # of which the last line of its output is the reason
    try:
        limits = msgspec.convert(request["spawn"], Limits)
        os.setsid()
        try:
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        except OSError:  # the disk is full: its last words are lost, but what it does is no failure
            log = os.open(os.devnull, os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.update(limits.environment)
        if limits.cores:
            pin(0, limits.cores)
        _restrict(limits)
        channel = Channel(socket.socket(fileno=fds[0]), mmap.mmap(fds[1], PROGRESS_BYTES))
        os.close(fds[1])
        serve: Callable[[Channel], None] = importlib.import_module(limits.module).serve
        code = 1
        with contextlib.suppress(EOFError, BrokenPipeError):
            serve(channel)
        code = 0
    except (DeviceError, ToolError) as error:
        if code != UNFIT:
            channel.leave(UNFIT)  # as what was served may exit with any status itself
        code = UNFIT
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _restrict(limits: Limits) -> None:
    bounds = {
        resource.RLIMIT_CORE: 0, resource.RLIMIT_DATA: limits.memory_bytes, resource.RLIMIT_FSIZE: limits.file_bytes,
    }
    for kind, wanted in bounds.items():
        _, own = resource.getrlimit(kind)
        most = wanted if own == resource.RLIM_INFINITY else min(wanted, own)  # only root can raise its own
        resource.setrlimit(kind, (most, most))
    with contextlib.suppress(OSError):
        # Out of memory, the kernel should kill a child, not the daemon.
        Path("/proc/self/oom_score_adj").write_text("900")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    confine(forks=limits.forks)


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
