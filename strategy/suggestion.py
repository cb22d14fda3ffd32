"""Suggestions for mistyped names: "did you mean dense?"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(word: str, known: Iterable[str]) -> str:
    """`, did you mean dense?` with the nearest of the known names; empty where none is near."""
    near = get_close_matches(word[:80], [*known], 1)
    return f", did you mean {near[0]}?" if near else ""
