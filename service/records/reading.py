"""Reading of uploaded logs in separate processes, so that a hostile log cannot stop the service.

A process (`reading_child`) reads bytes from a pipe and answers with records as data, which are validated again. One
that is silent for `STALL_S`, or needs too much memory, is ended, which fails this import alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from service.errors import InvalidError, StoppedError
from service.formats import FormatError, ImportedRecord, Item
from service.formats.source import CHUNK, Stream, read_fully
from service.records import reading_message as wire
from strategy.record import decode, encode

STALL_S = 60.0
IDLE = 2  # idle processes kept for the next log
_PIPE = 1 << 20
log = logging.getLogger(__name__)
_NOTHING = io.BytesIO()
_replies = msgspec.msgpack.Decoder(list[wire.AnyReply])


class Readers:
    """The reading processes of a service, one for each log being read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._closed = False

    def read(self, stream: Stream, order: wire.Order) -> Generator[Item, None, None]:
        """Yield the items of `service.formats.read`, in the caller's thread, which also reads the stream.

        Args:
            stream: the log.
            order: how to read it.

        Raises:
            FormatError: the format is not known.
            InvalidError: reading it took too long or too much memory.
            StoppedError: the service is stopping.
        """
        child = self._take()
        try:
            yield from child.read(stream, order)
        except FormatError:
            self._give_back(child)
            raise
        except _GoneError as error:
            self._drop(child)
            raise self._explain(error) from error
        except BaseException:  # of the stream, or the caller stops
            self._drop(child)
            raise
        self._give_back(child)

    def read_each(
        self, logs: Sequence[tuple[bytes, wire.Order]], silence_s: float
    ) -> list[list[Item] | Exception]:
        """The items of each small log, or the error that `read` would raise for it.

        A process gets all logs before it answers; if one of them ends it, another gets those behind.

        Args:
            logs: of less than `CHUNK` bytes each.
            silence_s: the time without an answer after which a process is ended, with a `SilentError` for its log.
        """
        found: list[list[Item] | Exception] = []
        while left := logs[len(found) :]:
            child = self._take()
            try:
                child.await_start(silence_s)
                with contextlib.suppress(_GoneError):  # its answers show which log it ended at
                    child.begin(wire.Begin(encode(order), data, True) for data, order in left)
                for _ in left:
                    try:
                        found.append(list(child.items()))
                    except FormatError as error:
                        found.append(error)
            except _GoneError as error:
                self._drop(child)
                silent = isinstance(error, SilentError) and not self._closed
                found.append(error if silent else self._explain(error))
            except BaseException:  # of an answer that is none
                self._drop(child)
                raise
            else:
                self._give_back(child)
        return found

    def _explain(self, error: _GoneError) -> StoppedError | InvalidError:
        if self._closed:
            return StoppedError("the service is stopping: import again, nothing is stored twice")
        log.warning("a log could not be read: its reading process %s", error)
        return InvalidError(
            f"the log cannot be read: its reading process {error}; earlier records are stored: import "
            "parts of it to find the fault"
        )

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
    """A process that reads one log after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "service.records.reading_child"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            start_new_session=True,  # Ctrl-C goes to the parent, which ends it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._come = bytearray()
        self._shared: list[Any] = []  # values that records of this log and later ones refer to, by number
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

    def read(self, stream: Stream, order: wire.Order) -> Iterator[Item]:
        """As `Readers.read`; raise `_GoneError` if the process fails."""
        first = read_fully(stream, CHUNK)
        self.await_start(STALL_S)
        self.begin([wire.Begin(encode(order), first, len(first) < CHUNK)])
        yield from self.items(stream)

    def await_start(self, silence_s: float) -> None:
        """Wait for its start, which takes longer than reading, and end one that is later silent for `silence_s`."""
        if not self._ready:
            self._silence_s = STALL_S
            self._receive()
            self._ready = True
        self._silence_s = silence_s

    def begin(self, logs: Iterable[wire.Begin]) -> None:
        """Send the beginnings of logs, whose items are then asked for in this order."""
        self._send(*map(wire.pack, logs))

    def items(self, stream: Stream = _NOTHING) -> Iterator[Item]:
        """The items of the next log, whose further parts are in `stream`."""
        shared = self._shared
        while True:
            for reply in _replies.decode(self._receive()):
                if isinstance(reply, wire.Row):
                    yield _record_of(reply, shared)
                elif isinstance(reply, wire.Shared):
                    shared.append(decode(reply.text, wire.KINDS[reply.what]))
                elif isinstance(reply, wire.Aside | wire.Attached):
                    yield reply.item
                elif isinstance(reply, wire.Forget):
                    shared.clear()
                elif isinstance(reply, wire.More):
                    self._send(stream.read(CHUNK))
                else:
                    if reply.error:
                        raise FormatError(reply.error)
                    return

    def _send(self, *messages: bytes) -> None:
        left = memoryview(b"".join([struct.pack("<I", len(data)) + data for data in messages]))
        while True:
            with contextlib.suppress(BlockingIOError):
                try:
                    left = left[os.write(self._in, left) :]
                except BrokenPipeError as error:
                    raise _GoneError("ended") from error
            if not left:
                return
            self._poll.modify(self._in, select.POLLOUT)
            try:
                self._wait()
            finally:
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


def _record_of(row: wire.Row, shared: list[Any]) -> ImportedRecord:
    values = dict(zip(wire.FIELDS, msgspec.structs.astuple(row), strict=True))
    for name in wire.KINDS:
        number = values[name]
        if number is not None:
            values[name] = shared[number]
    if row.environment is None:
        del values["environment"]
    return ImportedRecord(**values)
