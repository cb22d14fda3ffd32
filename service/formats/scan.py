"""Streaming split of one large JSON object into entries.

A streaming parser stops at the first byte that is not JSON. This one finds the entries of one member (Kernel
Tuner's `cache` or `results`), leaves parsing them to the caller, and resumes after damage at the next entry,
found by its first key.

Its time is linear in the length of the document: no pattern rescans a text from each position, and the bytes
scanned in vain for the ends of entries are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator

import msgspec

from service.formats.entry import Reason

MAX_ENTRY = 1 << 20
MAX_FRAME = 1 << 24
MAX_DEPTH = 64
MAX_BEGIN = 4096  # bytes of an entry up to its first key
MAX_LOST = 1 << 22  # bytes scanned in vain for ends of entries, beyond twice the consumed ones

# A bracket, or a string, which contains no line end. An unclosed string extends to the end of its line or of the
# window.
_TOKEN = re.compile(rb'[{}\[\]]|"(?:[^"\\\n]++|\\.)*+("|\\?)')
# The possible begin of an object with its first key; the first group is its own name, if it is a member.
_OBJECT = rb'\{\s*+"([^"\n]*+)"\s*+:'
_ELEMENT = re.compile(_OBJECT)
_MEMBER = re.compile(rb'"[^"\n]*+"\s*+:\s*+' + _OBJECT)
_OPENS = {b"}": b"{", b"]": b"["}
_BLANK = b", \t\r\n"
_BLANKS = re.compile(rb"[, \t\r\n]*")


class Frame(msgspec.Struct, frozen=True):
    """The object around the entries: its other members, and an empty one instead of the entries.

    Its end may be missing.
    """

    text: bytes


class Entry(msgspec.Struct, frozen=True):
    """The text of one entry, or the reason why it has no end."""

    line: int
    text: bytes
    fault: Reason | None = None


FirstKeys = Callable[[bytes], Container[bytes] | None]


def scan(
    chunks: Iterable[bytes], member: str, first_keys: FirstKeys, *, last: bool = True
) -> Iterator[Frame | Entry]:
    """Yield the frame before the entries, the entries, then the complete frame.

    Args:
        chunks: the document.
        member: the name of the object or array of entries.
        first_keys: the possible first keys of an entry, given the frame before the entries; None: any.
        last: no other member begins like an entry, so that an extra closing bracket among the entries
            does not end them.
    """
    return _Scanner(iter(chunks), last).run(member.encode(), first_keys)


class _Scanner:
    """A window of the document: `_text` from `_at` on is not consumed yet."""

    def __init__(self, chunks: Iterator[bytes], last: bool) -> None:
        self._chunks = chunks
        self._last = last
        self._text = b""
        self._at = 0
        self._line = 1
        self._ended = False
        self._taken = self._lost = 0  # bytes consumed, and bytes scanned in vain
        self._begin = _ELEMENT
        self._keys: Container[bytes] | None = None

    def _more(self) -> bool:
        chunk = next(self._chunks, b"")
        self._ended = not chunk
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return not self._ended

    def _take(self, end: int) -> bytes:
        """Consume and return the text up to the offset `end` in the window."""
        taken = self._text[self._at : self._at + end]
        self._at += end
        self._taken += len(taken)
        self._line += taken.count(b"\n")
        return taken

    def _token(self, begin: int) -> tuple[bytes, bool, int] | None:
        """The next token from `begin` on, True if it is complete, and its end."""
        last = begin + MAX_ENTRY
        while True:
            found = _TOKEN.search(self._text, self._at + begin)
            size = len(self._text) - self._at
            # At the window's end, more text might change the match.
            if (found is not None and found.end() < len(self._text)) or self._ended or size > last:
                break
            begin = size if found is None else begin
            self._more()
        if found is None:
            return None
        return found[0], found[1] in (None, b'"'), found.end() - self._at

    def _next_begin(self, begin: int, reach: int) -> int | None:
        """The offset of the next entry from `begin` on, reading up to `reach` more bytes."""
        last = begin + reach
        while True:
            for at in self._begins(begin):
                return at
            size = len(self._text) - self._at
            if size > last or not self._more():
                return None
            begin = max(begin, size - MAX_BEGIN)  # it may be cut at the window's end

    def _begins(self, begin: int) -> Iterator[int]:
        """Offsets of entries in the window, found by their first keys."""
        at = self._at + begin
        while (found := self._begin.search(self._text, at)) is not None:
            if self._is_first(found):
                yield found.start() - self._at
            at = found.start(1) - 1  # the key may be the name of an entry

    def _is_first(self, found: re.Match[bytes]) -> bool:
        return self._keys is None or found[1] in self._keys

    def run(self, member: bytes, first_keys: FirstKeys) -> Iterator[Frame | Entry]:
        end = self._find(member)
        before = self._take(len(self._text) - self._at if end is None else end)
        if end is not None:
            opened = before[-1:]
            before += b"}" if opened == b"{" else b"]"
            yield Frame(before)
            # After yielding the frame, from which the caller may derive them.
            self._keys = first_keys(before)
            self._begin = _MEMBER if opened == b"{" else _ELEMENT
            yield from self._entries()
            while len(self._text) - self._at <= MAX_FRAME and self._more():
                pass
        after = self._take(len(self._text) - self._at)
        # The text after the bracket that closes the member.
        yield Frame(before + after.lstrip(_BLANK).removeprefix(before[-1:]))

    def _find(self, member: bytes) -> int | None:
        """The offset of the entries, after the bracket that opens their member."""
        depth, at, last = 0, 0, b""
        while at < MAX_FRAME and (found := self._token(at)) is not None:
            token, _, at = found
            if token in {b"{", b"["}:
                if depth == 1 and last == b'"%s"' % member:
                    return at
                depth += 1
            elif token in _OPENS:
                depth -= 1
            elif depth == 1:
                last = token
        return None

    def _entries(self) -> Iterator[Entry]:
        while True:
            self._pass_blanks()
            end, fault = self._end_of_entry()
            if fault is None:
                if end is None:
                    return
                yield Entry(self._line, self._take(end))
                continue
            line, text = self._line, self._skip()
            if fault is Reason.TRUNCATED and self._at < len(self._text):
                fault = Reason.JSON  # the entry has no end, but the file goes on
            yield Entry(line, text, fault)

    def _pass_blanks(self) -> None:
        while (found := _BLANKS.match(self._text, self._at)) is not None:
            self._take(found.end() - self._at)
            if self._at < len(self._text) or self._ended:
                return
            self._more()

    def _end_of_entry(self) -> tuple[int | None, Reason | None]:
        """The offset of the next entry's end; None at the end of the member."""
        brackets: list[bytes] = []
        at = 0
        while True:
            found = self._token(at)
            if found is None or (not found[1] and self._ended):
                rest = self._text[self._at :]
                return self._fail(len(rest), Reason.TRUNCATED) if rest.strip(_BLANK) else (None, None)
            token, whole, end = found
            if end > MAX_ENTRY:
                return self._fail(end, Reason.TOO_LONG)
            if not whole:
                return self._fail(end, Reason.JSON)
            if token in {b"{", b"["}:
                if brackets and self._opens_entry(end - 1):
                    return self._fail(end, Reason.JSON)  # an entry begins within one that has no end
                brackets.append(token)
                if len(brackets) > MAX_DEPTH:
                    return self._fail(end, Reason.DEPTH)
            elif token in _OPENS:
                if not brackets:
                    # Entries that are no objects may precede the member's end.
                    if self._text[self._at : self._at + end - 1].strip(_BLANK):
                        return end - 1, None
                    goes_on = self._last and self._next_begin(end, MAX_ENTRY) is not None
                    return self._fail(end, Reason.JSON) if goes_on else (None, None)
                if brackets.pop() != _OPENS[token]:
                    return self._fail(end, Reason.JSON)
                if not brackets:
                    return end, None
            at = end

    def _fail(self, end: int, fault: Reason) -> tuple[None, Reason]:
        """Count the bytes of an entry without an end, which will be scanned again."""
        self._lost += end
        return None, fault

    def _look_ahead(self, at: int) -> None:
        """Read until a possible begin of an entry at `at` is complete in the window."""
        while len(self._text) - self._at - at < MAX_BEGIN and not self._ended:
            self._more()

    def _opens_entry(self, at: int) -> bool:
        self._look_ahead(at)
        found = None if self._keys is None else _ELEMENT.match(self._text, self._at + at)
        return found is not None and self._is_first(found)

    def _skip(self) -> bytes:
        """Skip an entry without an end, up to the next entry; return its text, cut to `MAX_ENTRY`."""
        self._look_ahead(0)
        own = self._begin.match(self._text, self._at)
        begin = 1 if own is None or not self._is_first(own) else own.end() - self._at
        kept = b""
        while True:
            found = None
            if self._lost <= MAX_LOST + 2 * self._taken:
                found = self._next_begin(begin, 2 * MAX_ENTRY)
            if found is not None:
                return (kept + self._take(found))[:MAX_ENTRY]
            size = len(self._text) - self._at
            # The begin of an entry may be cut at the window's end.
            passed = self._take(size if self._ended else max(size - MAX_BEGIN, 0))
            kept = (kept + passed)[:MAX_ENTRY]
            begin = 0
            if self._ended or not self._more():
                return (kept + self._take(len(self._text) - self._at))[:MAX_ENTRY]
