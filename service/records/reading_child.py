"""The process that reads logs: bytes from a pipe in, records as data out.

A line that takes longer than `LINE_S` is rejected.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import IO, Any

import msgspec

from service.formats import Attachment, FormatError, Item, Reason, Rejected, Source, read
from service.formats.entry import RejectError
from service.records import reading_message as wire
from strategy.record import decode, encode

LINE_S = 5.0  # CPU time for one line or entry
MEMORY = 2 << 30
TOGETHER = 500  # items in one message
AHEAD = 2  # parts of a log requested before they are needed
MAX_SHARED = 20_000
KEPT = 2_000  # shared values from one log to the next
KEPT_BYTES = 1 << 21
_begins = msgspec.msgpack.Decoder(wire.Begin)


class Answers:
    """Writer of items to the service, of one log after the other: shared values are told once for all of them."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._held: list[wire.Reply] = []
        # By id(): shared values are one object, kept alive so that its id is not reused.
        self._numbers: dict[int, tuple[int, object]] = {}
        self._bytes = 0

    def end(self) -> None:
        """End a log: keep what it shares with the next ones, if that is little."""
        if len(self._numbers) > KEPT or self._bytes > KEPT_BYTES:
            self._forget()

    def add(self, item: Item) -> None:
        if isinstance(item, Attachment):
            self._held.append(wire.Attached(item))
        elif isinstance(item, Rejected):
            self._held.append(wire.Aside(item))
        else:
            if len(self._numbers) > MAX_SHARED:
                self._forget()
            values = dict(zip(wire.FIELDS, msgspec.structs.astuple(item), strict=True))
            for name in wire.KINDS:
                values[name] = self._number(name, values[name])
            self._held.append(wire.Row(**values))
        if len(self._held) >= TOGETHER:
            self.flush()

    def _number(self, what: Any, value: object) -> int | None:
        if not value:
            return None
        known = self._numbers.get(id(value))
        if known is None:
            known = self._numbers[id(value)] = len(self._numbers), value
            text = encode(value)
            self._bytes += len(text)
            self._held.append(wire.Shared(what, text))
        return known[0]

    def _forget(self) -> None:
        self._numbers.clear()
        self._bytes = 0
        self._held.append(wire.Forget())

    def flush(self, *last: wire.Reply) -> None:
        _write(self._stream, wire.pack([*self._held, *last]))
        self._held.clear()


class _Parts:
    """The log as a stream, whose parts are requested before they are needed.

    Args:
        begin: called when a part has arrived.
    """

    def __init__(
        self, log: wire.Begin, requests: IO[bytes], answers: Answers, begin: Callable[[], object]
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
        self._answers.flush(*[wire.More()] * count)

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
    out = Answers(answers)
    while True:
        log = _begins.decode(_read(requests))
        order = decode(log.order, wire.Order)
        parts = _Parts(log, requests, out, begin)
        end = wire.End()
        try:
            for item in read(Source(parts, order.name), order.form, order.target, order.device_model):
                out.add(item)
                begin()
        except FormatError as error:
            end = wire.End(str(error))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        parts.pass_over()
        out.end()
        out.flush(end)


def _give_up(*_: object) -> None:
    """Abort the reading of a line; regular expressions check for signals, too."""
    raise RejectError(Reason.SLOW, f"takes over {LINE_S:g} s to read")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with contextlib.suppress(EOFError, BrokenPipeError):
        _write(sys.stdout.buffer, b"")  # signals that the process is ready
        serve(sys.stdin.buffer, sys.stdout.buffer)
