"""Texts without what commands a terminal: names on record, and in files, may be others'."""

from __future__ import annotations

import functools
import re
from typing import Any

# Control characters but tabs and line ends, and those that change the direction of a text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """The text with its control characters as escapes."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


@functools.cache
def console_class() -> Any:
    """Rich's console, which prints texts by `plain`; a function, as rich takes long to load."""
    from rich.console import Console

    class PlainConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*(plain(o) if isinstance(o, str) else o for o in objects), **options)

    return PlainConsole


class PlainStream:
    """A terminal's stream that writes texts by `plain`; all else is the given stream's."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        written: int = self.stream.write(plain(text))
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
