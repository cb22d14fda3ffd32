"""Byte sources: decompressed if necessary, with a head for detection, in bounded pieces."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from service.formats.entry import Item, Reason, Rejected, RejectError, reject

CHUNK = 1 << 18
_PACKED = 1 << 14  # compressed bytes given to zlib at a time, as it copies the rest
MAX_LINE = 1 << 20  # of a record: thousands of samples, and the longest configuration
MAX_DEPTH = 64
KEPT = 1000  # bytes kept of overlong lines
# Real logs compress by 5 to 60; more indicates a decompression bomb.
MAX_RATIO = 300
_FREE = 1 << 24  # bytes that any file may unpack to
# An unclosed string extends to the end: rescanning from each of its quotes would take quadratic time.
_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}\[\]]', re.DOTALL)
# A null character, or a lone surrogate, in a text without escaped backslashes, which may stand before a u.
_BROKEN = re.compile(
    rb"\\u(?:0000|[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u)[dD][c-fC-F])"
)


class Joined:
    """Several files as one stream, each followed by a line end."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._open: BinaryIO | None = None

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; empty at the end of the last file only."""
        while True:
            if self._open is None:
                if not self._paths:
                    return b""
                self._open = self._paths.pop(0).open("rb")
            chunk = self._open.read(size)
            if chunk:
                return chunk
            self.close()
            if self._paths:
                return b"\n"

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


GZIP = b"\x1f\x8b\x08"  # the beginning of a packed log


class Stream(Protocol):
    """A readable byte stream: an open file, an upload, several files as one."""

    def read(self, size: int = ..., /) -> bytes: ...


class Pieces:
    """A stream of pieces: `take` gives the next one, None at the end."""

    def __init__(self, take: Callable[[], bytes | None]) -> None:
        self._take = take
        self._rest = b""
        self._ended = False

    def read(self, size: int = -1, /) -> bytes:
        while not self._ended and (size < 0 or len(self._rest) < size):
            piece = self._take()
            self._ended = piece is None
            self._rest += piece or b""
        size = len(self._rest) if size < 0 else size
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


def read_fully(stream: Stream, size: int) -> bytes:
    """Read `size` bytes or up to the end, so that detection does not depend on chunks."""
    pieces = []
    while size > 0 and (piece := stream.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join pieces to `CHUNK` bytes or more, as each costs its reader time."""
    held, size = [], 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _slices(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    for piece in pieces:
        for at in range(0, len(piece), size):
            yield piece[at : at + size]


class Source:
    """One file or upload, read once from front to back.

    gzip is detected by its first bytes. Memory is bounded by a chunk and a line.

    Raises:
        OSError: from the stream; errors of the content are never raised.
    """

    def __init__(self, stream: Stream, name: str = "") -> None:
        self.name = name.replace("\0", "")
        self._stream = stream
        self.fault: Rejected | None = None  # what stopped reading, known after it
        first = read_fully(stream, CHUNK)
        packed = first.startswith(GZIP)
        self._chunks = _gathered(self._unpacked(first)) if packed else self._plain(first)
        self.head = next(self._chunks, b"").removeprefix(b"\xef\xbb\xbf")
        self.ended_openly = False

    def _plain(self, first: bytes) -> Iterator[bytes]:
        chunk = first
        while chunk:
            yield chunk
            chunk = read_fully(self._stream, CHUNK)

    def _unpacked(self, first: bytes) -> Iterator[bytes]:
        unpacker, begun = zlib.decompressobj(wbits=31), False
        taken = given = 0
        for piece in _slices(self._plain(first), _PACKED):
            taken += len(piece)
            packed = piece
            while packed:
                try:
                    chunk = unpacker.decompress(packed, CHUNK)
                except zlib.error as error:
                    self._stop(Reason.GZIP, f"{error}: the rest was not read")
                    return
                begun = True
                given += len(chunk)
                if chunk:
                    yield chunk
                if given > _FREE and given > MAX_RATIO * taken:
                    self._stop(
                        Reason.RATIO,
                        f"unpacks to over {MAX_RATIO} times its size: the rest was not read",
                    )
                    return
                packed = unpacker.unconsumed_tail
                if unpacker.eof:  # another gzip member, or padding
                    packed = unpacker.unused_data.lstrip(b"\0")
                    unpacker, begun = zlib.decompressobj(wbits=31), False
        if begun:
            self._stop(Reason.TRUNCATED, "the gzip file is truncated: the part before was read")

    def _stop(self, reason: Reason, detail: str) -> None:
        self.fault = Rejected(line=0, reason=reason, detail=detail)

    def chunks(self) -> Iterator[bytes]:
        """The content, the head first."""
        if self.head:
            yield self.head
        yield from self._chunks

    def read_lines(
        self, read: Callable[[bytes], Item | list[Item] | None], limit: int = MAX_LINE
    ) -> Iterator[Item]:
        """Yield what `read` makes of each line that is not blank; reject the lines at which it fails.

        Rejected entries among several items of a line get its number.
        """
        for found in self.lines(limit):
            if isinstance(found, Rejected):
                yield found
                continue
            number, line = found
            if not line or line.isspace():
                continue
            try:
                item = read(line)
            except Exception as error:
                if self.ended_openly and _is_cut(error):
                    error = RejectError(Reason.TRUNCATED, "the file ends in the middle of this line")
                yield reject(number, error, line)
            else:
                if isinstance(item, list):
                    for one in item:
                        rejected = isinstance(one, Rejected)
                        yield msgspec.structs.replace(one, line=number) if rejected else one
                elif item is not None:
                    yield item

    def lines(self, limit: int = MAX_LINE) -> Iterator[tuple[int, bytes] | Rejected]:
        """Numbered lines without line ends, blank ones included; those over `limit` bytes are rejected.

        `ended_openly` is set before the last line if it has no line end.
        """
        number, pieces, size = 0, [b""], 0
        skipping = False
        for chunk in self.chunks():
            first, *rest = chunk.split(b"\n")
            pieces.append(first)
            size += len(first)
            if size > limit and not skipping:
                skipping = True
                yield _too_long(number + 1, b"".join(pieces), limit)
            if skipping:
                pieces, size = [b""], 0
            if not rest:
                continue
            number += 1
            if not skipping:
                yield number, b"".join(pieces)
            skipping = False
            last = rest.pop()
            for line in rest:
                number += 1
                yield (number, line) if len(line) <= limit else _too_long(number, line, limit)
            pieces, size = [last], len(last)
        if size and not skipping:
            self.ended_openly = True
            yield number + 1, b"".join(pieces)
        if self.fault is not None:
            yield self.fault


def _is_cut(error: Exception) -> bool:
    """Return whether the end of a line may be missing."""
    return isinstance(error, msgspec.DecodeError) or (
        isinstance(error, RejectError) and error.reason is Reason.JSON
    )


def _too_long(number: int, line: bytes, limit: int) -> Rejected:
    return Rejected(
        line=number,
        reason=Reason.TOO_LONG,
        detail=f"longer than {limit} bytes and was not read",
        text=line[:KEPT],
    )


def check(text: bytes) -> None:
    """Reject JSON that a database cannot store: not UTF-8, too deep, or with broken characters.

    Raises:
        RejectError: any of these; JSON syntax is not checked.
    """
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise RejectError(Reason.JSON, f"not UTF-8: {error}") from error
    if b"\0" in text:
        raise RejectError(Reason.JSON, "a character that databases cannot store: \\u0000")
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH:
        depth = 0
        for found in _BRACKET.finditer(text):
            bracket = found[0]
            depth += 1 if bracket in {b"[", b"{"} else -1 if bracket in {b"]", b"}"} else 0
            if depth > MAX_DEPTH:
                raise RejectError(Reason.DEPTH, f"nested deeper than {MAX_DEPTH} levels")
    if b"\\" in text and b"\\u" in text and _BROKEN.search(text.replace(b"\\\\", b"  ")):
        raise RejectError(Reason.JSON, "a character that databases cannot store: \\u0000, or a lone surrogate")


def load(text: bytes) -> Any:
    """Parse JSON with unique keys; NaN and infinities are accepted.

    Raises:
        RejectError: not JSON, a duplicate key, or refused by `check`.
    """
    check(text)
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RejectError:
        raise
    except ValueError as error:
        raise RejectError(Reason.JSON, str(error)) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise RejectError(Reason.DUPLICATE, f"key {twice!r:.80} is given twice")
    return found
