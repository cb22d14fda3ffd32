"""One large JSON object, taken apart entry by entry without being held.

A streaming parser stops for good at the first byte that is not JSON. This one finds where the
entries of one member (Kernel Tuner's `cache` or `results`) begin and end, leaves reading them to
the caller, and after damage goes on at the next entry, known by its first key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from service.formats.entry import Reason

MAX_ENTRY = 1 << 20
MAX_FRAME = 1 << 24
MAX_DEPTH = 64
MAX_BEGIN = 4096  # bytes of an entry up to its first key
MAX_LOST = 1000  # entries without an end: each costs a search through MAX_ENTRY bytes

# A string, which holds no line end; a bracket; or a quote without its partner.
_STRING = rb'"(?:[^"\\\n]|\\.)*"'
_TOKEN = re.compile(_STRING + rb'|[{}\[\]]|"')
_OPENS = {b"}": b"{", b"]": b"["}
_BLANK = b", \t\r\n"
_BLANKS = re.compile(rb"[, \t\r\n]*")


class Frame(msgspec.Struct, frozen=True):
    """The object around the entries: its other members, and an empty one in the entries' place.

    It may lack its end where the file does.
    """

    text: bytes


class Entry(msgspec.Struct, frozen=True):
    """The text of one entry as it stands between its neighbours, or why it has no end."""

    line: int
    text: bytes
    fault: Reason | None = None


FirstKeys = Callable[[bytes], Sequence[str]]


def scan(
    chunks: Iterable[bytes], member: str, first_keys: FirstKeys, *, last: bool = True
) -> Iterator[Frame | Entry]:
    """The frame as far as it comes before the entries, the entries, and then the whole frame.

    Args:
        chunks: the document.
        member: the name of what holds the entries, an object or an array.
        first_keys: given the frame before the entries, the keys of which one is the first in an
            entry; none where that cannot be known.
        last: that no other member begins as an entry does. Then one bracket too many among the
            entries does not end them.
    """
    return _Scanner(iter(chunks), last).run(member.encode(), first_keys)


class _Scanner:
    """A window on the document: `_text` from `_at` on is not done with."""

    def __init__(self, chunks: Iterator[bytes], last: bool) -> None:
        self._chunks = chunks
        self._last = last
        self._text = b""
        self._at = 0
        self._line = 1
        self._ended = False
        self._lost = 0
        self._begin = self._inner = re.compile(b"")

    def _more(self) -> bool:
        chunk = next(self._chunks, b"")
        self._ended = not chunk
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return not self._ended

    def _take(self, end: int) -> bytes:
        """What stands before `end`, counted from the window's begin; the window goes on there."""
        taken = self._text[self._at : self._at + end]
        self._at += end
        self._line += taken.count(b"\n")
        return taken

    def _search(self, pattern: re.Pattern[bytes], begin: int, reach: int) -> tuple[int, int] | None:
        """Where the pattern stands, from `begin` on, reading on by up to `reach` bytes."""
        while True:
            found = pattern.search(self._text, self._at + begin)
            # At the window's end, more of the document might make it another match.
            if found is not None and (found.end() < len(self._text) or self._ended):
                return found.start() - self._at, found.end() - self._at
            if self._ended or len(self._text) - self._at - begin > reach or not self._more():
                return None if found is None else (found.start() - self._at, found.end() - self._at)

    def _token(self, begin: int) -> tuple[bytes, int] | None:
        """The next token and its end; a lone quote only where its line ends without a second."""
        while (found := self._search(_TOKEN, begin, MAX_ENTRY)) is not None:
            token = self._text[self._at + found[0] : self._at + found[1]]
            lone = token == b'"' and b"\n" not in self._text[self._at + found[1] :]
            if not lone or self._ended or len(self._text) - self._at - begin > MAX_ENTRY:
                return token, found[1]
            self._more()
        return None

    def run(self, member: bytes, first_keys: FirstKeys) -> Iterator[Frame | Entry]:
        end = self._find(member)
        before = self._take(len(self._text) - self._at if end is None else end)
        if end is not None:
            opened = before[-1:]
            before += b"}" if opened == b"{" else b"]"
            yield Frame(before)
            # Only now: whoever was given the frame may have learnt them from it.
            keys = first_keys(before)
            named = b"|".join(re.escape(k.encode()) for k in keys)
            name = b'"(?:%s)"' % named if keys else _STRING
            self._inner = re.compile(rb"\{\s*" + name + rb"\s*:" if keys else rb"(?!)")
            key = _STRING + rb"\s*:\s*" if opened == b"{" else b""
            self._begin = re.compile(key + rb"\{\s*" + name + rb"\s*:")
            yield from self._entries()
            while len(self._text) - self._at <= MAX_FRAME and self._more():
                pass
        after = self._take(len(self._text) - self._at)
        # What follows the bracket that closes the member.
        yield Frame(before + after.lstrip(_BLANK).removeprefix(before[-1:]))

    def _find(self, member: bytes) -> int | None:
        """Where the entries begin: after the bracket that opens their member."""
        depth, at, last = 0, 0, b""
        while at < MAX_FRAME and (found := self._token(at)) is not None:
            token, at = found
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
            line, self._lost = self._line, self._lost + 1
            text = self._skip()
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
        """Where the next entry ends; None where the member does."""
        brackets: list[bytes] = []
        at = 0
        while True:
            found = self._token(at)
            if found is None or (found[0] == b'"' and self._ended):
                rest = self._text[self._at :].strip(_BLANK)
                return None, Reason.TRUNCATED if rest else None
            token, end = found
            if end > MAX_ENTRY:
                return None, Reason.TOO_LONG
            if token == b'"':
                return None, Reason.JSON
            if token in {b"{", b"["}:
                if brackets and self._opens_entry(end - 1):
                    return None, Reason.JSON  # the next one, within one that has no end
                brackets.append(token)
                if len(brackets) > MAX_DEPTH:
                    return None, Reason.DEPTH
            elif token in _OPENS:
                if not brackets:
                    # Entries that are no objects may stand before the member's end.
                    if self._text[self._at : self._at + end - 1].strip(_BLANK):
                        return end - 1, None
                    goes_on = self._last and self._search(self._begin, end, MAX_ENTRY)
                    return None, Reason.JSON if goes_on else None
                if brackets.pop() != _OPENS[token]:
                    return None, Reason.JSON
                if not brackets:
                    return end, None
            at = end

    def _look_ahead(self, at: int) -> None:
        """Reads until what may begin at `at` is all there, however small the chunks are."""
        while len(self._text) - self._at - at < MAX_BEGIN and not self._ended:
            self._more()

    def _opens_entry(self, at: int) -> bool:
        self._look_ahead(at)
        return self._inner.match(self._text, self._at + at) is not None

    def _skip(self) -> bytes:
        """Passes over what has no end, up to the next entry; its text, cut to `MAX_ENTRY`."""
        self._look_ahead(0)
        own = self._begin.match(self._text, self._at)
        begin = 1 if own is None else own.end() - self._at
        kept = b""
        while True:
            reach = 2 * MAX_ENTRY if self._lost <= MAX_LOST else -1
            found = self._search(self._begin, begin, reach) if reach > 0 else None
            if found is not None:
                return (kept + self._take(found[0]))[:MAX_ENTRY]
            size = len(self._text) - self._at
            # The begin of an entry may stand at the window's end, in part.
            passed = self._take(size if self._ended else max(size - MAX_BEGIN, 0))
            kept = (kept + passed)[:MAX_ENTRY]
            begin = 0
            if self._ended or not self._more():
                return (kept + self._take(len(self._text) - self._at))[:MAX_ENTRY]
