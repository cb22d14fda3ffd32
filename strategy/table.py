"""Tables of times, for runs, tasks and selections in notebooks.

All names and messages are escaped, as they are untrusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Protocol


class Times(Protocol):
    """A median with its 95 % interval, in seconds."""

    @property
    def median_s(self) -> float: ...
    def show_spread(self) -> str: ...


def time_cells(found: Times | None) -> tuple[str, str]:
    """The median, and half the interval's share of it; empty if not measured."""
    if found is None:
        return "", ""
    return show_seconds(found.median_s), found.show_spread()


def html_table(head: str, columns: Sequence[str], rows: Iterable[tuple[Sequence[str], bool]]) -> str:
    """An HTML table with a caption; marked rows are bold."""
    lines = [f"<table><caption>{escape(head)}</caption>"]
    lines.append(f"<thead><tr>{''.join(f'<th>{c}</th>' for c in columns)}</tr></thead><tbody>")
    for cells, stands_out in rows:
        mark = "b" if stands_out else "span"
        lines.append(f"<tr>{''.join(f'<td><{mark}>{escape(c)}</{mark}></td>' for c in cells)}</tr>")
    return "".join([*lines, "</tbody></table>"])


def show_number(count: int, noun: str) -> str:
    """`1 trial`, `2 trials`: a count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def show_seconds(seconds: float) -> str:
    """A time with three significant figures and its unit."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 0.9995:  # rounds to 1.00, instead of 1000 of the next unit
            # Keep trailing zeros: 1.30, not 1.3.
            return f"{seconds * factor:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds * 1e9:#.3g}".rstrip(".") + " ns"
