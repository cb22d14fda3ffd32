"""Reading of uploaded logs in separate processes, so that a hostile log cannot stop the service.

`python -m service.records.reading` reads bytes from a pipe and answers with records as data, which are
validated again. A line that takes longer than `LINE_S` is rejected; a process that is silent for `STALL_S`,
or needs more than `MEMORY`, is ended, which fails this import alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import IO, Any, Literal

import msgspec

from service.errors import InvalidError, StoppedError
from service.formats import (
    Attachment,
    Format,
    FormatError,
    ImportedRecord,
    Item,
    Reason,
    Rejected,
    Source,
    Task,
    read,
)
from service.formats.entry import RejectError
from service.formats.source import CHUNK, Stream, read_fully
from strategy.record import Device, ErrorKind, Phase, TimingPolicy, decode, encode
from strategy.target import Target

LINE_S = 5.0  # CPU time for one line or entry
STALL_S = 60.0
MEMORY = 2 << 30
IDLE = 2  # idle processes kept for the next log
TOGETHER = 500  # items in one message
AHEAD = 2  # parts of a log requested before they are needed
MAX_SHARED = 20_000
_PIPE = 1 << 20
log = logging.getLogger(__name__)


class Order(msgspec.Struct, frozen=True):
    """The arguments of `service.formats.read`, and the file's name."""

    name: str = ""
    form: Format | None = None
    target: Target | None = None


class _Begin(msgspec.Struct, frozen=True, array_like=True):
    """The first part of a log, and True if it is complete; the `Order` is JSON."""

    order: bytes
    part: bytes
    whole: bool


class _Reply(msgspec.Struct, frozen=True, array_like=True):
    pass


class _Shared(_Reply, frozen=True, tag="shared"):
    """A value shared by many records, which refer to it by its number from 0."""

    what: Literal["task", "device", "policy", "environment"]
    text: bytes


class _Forget(_Reply, frozen=True, tag="forget"):
    """Restart the numbering of shared values."""


class _Row(_Reply, frozen=True, tag="row"):
    """The fields of an `ImportedRecord` in order, with shared values as numbers."""

    source: str
    task: int
    config_key: str
    samples_s: tuple[float, ...]
    error: ErrorKind | None
    message: str
    measured_at: float
    device_model: str
    device: int | None
    phase: Phase
    session: str
    worker: str
    run: int | None
    seed: int | None
    policy: int | None
    environment: int | None
    prepare_s: float | None
    build_s: float
    check_s: float
    run_s: float
    code_digest: str
    extra: bytes


class _Attached(_Reply, frozen=True, tag="attachment"):
    what: Literal["space", "module"]
    key: str
    text: str


class _Aside(_Reply, frozen=True, tag="aside"):
    line: int
    reason: Reason
    detail: str
    text: bytes


class _More(_Reply, frozen=True, tag="more"):
    """Request the next part; an empty one marks the end."""


class _End(_Reply, frozen=True, tag="end"):
    """The end of the log, or the reason why it cannot be read."""

    error: str = ""


_KINDS: dict[str, Any] = {
    "task": Task, "device": Device, "policy": TimingPolicy, "environment": dict[str, Any],
}  # fmt: skip
_FIELDS = ImportedRecord.__struct_fields__
_replies = msgspec.msgpack.Decoder(
    list[_Shared | _Forget | _Row | _Attached | _Aside | _More | _End]
)
_begins = msgspec.msgpack.Decoder(_Begin)
_encode = msgspec.msgpack.Encoder().encode


class Readers:
    """The reading processes of a service, one for each log being read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._closed = False

    def read(
        self, stream: Stream, order: Order, silence_s: float | None = None
    ) -> Generator[Item, None, None]:
        """Yield the items of `service.formats.read`, in the caller's thread, which also reads the stream.

        Args:
            stream: the log.
            order: how to read it.
            silence_s: the time without an answer after which the process is ended; default: `STALL_S`.

        Raises:
            FormatError: the format is not known.
            SilentError: there was no answer for a given `silence_s`.
            InvalidError: reading it took too long or too much memory.
            StoppedError: the service is stopping.
        """
        child = self._take()
        try:
            yield from child.read(stream, order, STALL_S if silence_s is None else silence_s)
        except FormatError:
            self._give_back(child)
            raise
        except _GoneError as error:
            self._drop(child)
            if self._closed:
                raise StoppedError(
                    "the service is stopping: import again, nothing is stored twice"
                ) from error
            if silence_s is not None and isinstance(error, SilentError):
                raise
            log.warning("a log could not be read: its reading process %s", error)
            raise InvalidError(
                f"the log cannot be read: its reading process {error}; earlier records are stored: import "
                "parts of it to find the fault"
            ) from error
        except BaseException:  # of the stream, or the caller stops
            self._drop(child)
            raise
        self._give_back(child)

    def _take(self) -> _Child:
        with self._lock:
            if self._closed:
                raise StoppedError("the service is stopping: import again once it is back")
            while self._idle:
                child = self._idle.pop()
                if child.is_alive():
                    return child
                self._all.discard(child)
                child.close()
            child = _Child()
            self._all.add(child)
            return child

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            if len(self._idle) < IDLE and not self._closed:
                self._idle.append(child)
                return
        self._drop(child)

    def _drop(self, child: _Child) -> None:
        child.close()
        with self._lock:
            self._all.discard(child)

    def close(self) -> None:
        """End all processes; current reads raise `StoppedError`."""
        with self._lock:
            self._closed = True
            idle, busy = self._idle, self._all.difference(self._idle)
            self._idle, self._all = [], busy
        for child in idle:
            child.close()
        for child in busy:  # their readers close them
            child.kill()


class _GoneError(Exception):
    """The process has ended or hangs; the message continues a sentence about it."""


class SilentError(_GoneError):
    """The process did not answer in time."""


class _Child:
    """A process that reads one log at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "service.records.reading"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the parent, which then ends it
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._come = bytearray()
        self._ready = False
        self._silence_s = STALL_S
        self._poll = select.poll()
        for fd, event in ((self._in, 0), (self._out, select.POLLIN)):
            os.set_blocking(fd, False)
            self._poll.register(fd, event)
            with contextlib.suppress(OSError):  # more than this user may have
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.kill()
        with self._process:  # closes the pipes, and waits
            pass

    def read(self, stream: Stream, order: Order, silence_s: float) -> Iterator[Item]:
        """As `Readers.read`; raise `_GoneError` if the process fails."""
        if not self._ready:  # wait for its start, which takes longer than reading
            self._silence_s = STALL_S
            self._receive()
            self._ready = True
        self._silence_s = silence_s
        first = read_fully(stream, CHUNK)
        self._send(_encode(_Begin(encode(order), first, len(first) < CHUNK)))
        shared: list[Any] = []
        while True:
            for reply in _replies.decode(self._receive()):
                if isinstance(reply, _Row):
                    yield _record_of(reply, shared)
                elif isinstance(reply, _Shared):
                    shared.append(decode(reply.text, _KINDS[reply.what]))
                elif isinstance(reply, _Aside):
                    yield Rejected(
                        line=reply.line, reason=reply.reason, detail=reply.detail, text=reply.text
                    )
                elif isinstance(reply, _Attached):
                    yield Attachment(what=reply.what, key=reply.key, text=reply.text)
                elif isinstance(reply, _Forget):
                    shared.clear()
                elif isinstance(reply, _More):
                    self._send(stream.read(CHUNK))
                else:
                    if reply.error:
                        raise FormatError(reply.error)
                    return

    def _send(self, data: bytes) -> None:
        left = memoryview(struct.pack("<I", len(data)) + data)
        while True:
            with contextlib.suppress(BlockingIOError):
                try:
                    left = left[os.write(self._in, left) :]
                except BrokenPipeError as error:
                    raise _GoneError("ended") from error
            if not left:
                return
            self._poll.modify(self._in, select.POLLOUT)
            self._wait()
            self._poll.modify(self._in, 0)
            self._take_in()  # it may be blocked until its output is read

    def _receive(self) -> bytes:
        return self._exactly(struct.unpack("<I", self._exactly(4))[0])

    def _exactly(self, length: int) -> bytes:
        while len(self._come) < length:
            self._wait()
            self._take_in()
        data = bytes(self._come[:length])
        del self._come[:length]
        return data

    def _take_in(self) -> None:
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self._out, _PIPE)
            if not piece:
                raise _GoneError("ended")
            self._come += piece

    def _wait(self) -> None:
        if not self._poll.poll(self._silence_s * 1000):
            raise SilentError(f"was silent for {self._silence_s:g} s")


def _record_of(row: _Row, shared: list[Any]) -> ImportedRecord:
    values = dict(zip(_FIELDS, msgspec.structs.astuple(row), strict=True))
    for name in _KINDS:
        number = values[name]
        if number is not None:
            values[name] = shared[number]
    if row.environment is None:
        del values["environment"]
    return ImportedRecord(**values)


class _Answers:
    """Writer of items to the service."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._held: list[_Reply] = []
        # By id(): shared values are one object, kept alive so that its id is not reused.
        self._numbers: dict[int, tuple[int, object]] = {}

    def add(self, item: Item) -> None:
        if isinstance(item, Attachment):
            self._held.append(_Attached(item.what, item.key, item.text))
        elif isinstance(item, Rejected):
            self._held.append(_Aside(item.line, item.reason, item.detail, item.text))
        else:
            if len(self._numbers) > MAX_SHARED:
                self._numbers.clear()
                self._held.append(_Forget())
            values = dict(zip(_FIELDS, msgspec.structs.astuple(item), strict=True))
            for name in _KINDS:
                values[name] = self._number(name, values[name])
            self._held.append(_Row(**values))
        if len(self._held) >= TOGETHER:
            self.flush()

    def _number(self, what: Any, value: object) -> int | None:
        if not value:
            return None
        known = self._numbers.get(id(value))
        if known is None:
            known = self._numbers[id(value)] = len(self._numbers), value
            self._held.append(_Shared(what, encode(value)))
        return known[0]

    def flush(self, *last: _Reply) -> None:
        _write(self._stream, _encode([*self._held, *last]))
        self._held.clear()


class _Parts:
    """The log as a stream, whose parts are requested before they are needed.

    Args:
        begin: called when a part has arrived.
    """

    def __init__(
        self, log: _Begin, requests: IO[bytes], answers: _Answers, begin: Callable[[], object]
    ) -> None:
        self._first = log.part
        self._requests = requests
        self._answers = answers
        self._begin = begin
        self._owed = 0
        self._ended = log.whole
        if not log.whole:
            self._ask(AHEAD)

    def read(self, size: int = -1, /) -> bytes:
        part, self._first = self._first, b""
        if not part and not self._ended:
            self._ask(1)
            part = self._next()
        self._begin()
        return part

    def _ask(self, count: int) -> None:
        self._owed += count
        self._answers.flush(*[_More()] * count)

    def _next(self) -> bytes:
        self._owed -= 1
        part = _read(self._requests)
        self._ended = not part
        return part

    def pass_over(self) -> None:
        """Read and discard the requested parts."""
        while self._owed:
            self._next()


def _write(stream: IO[bytes], data: bytes) -> None:
    stream.write(struct.pack("<I", len(data)) + data)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes:
    header = stream.read(4)
    if len(header) < 4:
        raise EOFError
    (length,) = struct.unpack("<I", header)
    return stream.read(length)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Read one log after the other until the pipe is closed."""
    signal.signal(signal.SIGVTALRM, _give_up)
    begin = partial(signal.setitimer, signal.ITIMER_VIRTUAL, LINE_S, LINE_S)
    while True:
        log = _begins.decode(_read(requests))
        order = decode(log.order, Order)
        out = _Answers(answers)
        parts = _Parts(log, requests, out, begin)
        end = _End()
        try:
            for item in read(Source(parts, order.name), order.form, order.target):
                out.add(item)
                begin()
        except FormatError as error:
            end = _End(str(error))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        parts.pass_over()
        out.flush(end)


def _give_up(*_: object) -> None:
    """Abort the reading of a line; regular expressions check for signals, too."""
    raise RejectError(Reason.SLOW, f"takes over {LINE_S:g} s to read")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with contextlib.suppress(EOFError, BrokenPipeError):
        _write(sys.stdout.buffer, b"")  # signals that the process is ready
        serve(sys.stdin.buffer, sys.stdout.buffer)
