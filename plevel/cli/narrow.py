"""Tables on a terminal that is too narrow for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from plevel.cli.plain_text import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WORD = re.compile(r"^(?:→ |  )\S+|\S+")  # the mark of a selected implementation stays beside its name


def set_widths(console: Console, table: Table, lines: Sequence[Sequence[str]], whole: Collection[str]) -> None:
    """Fold a table's cells between words, where the longest word of each column has room.

    Args:
        lines: the head of the table and its rows.
        whole: columns whose cells are not folded.
    """
    from rich.cells import cell_len

    least, most = [], []
    for name, *others in zip(*lines, strict=True):
        cells = [plain(cell) for cell in (name, *others)]
        most.append(max(map(cell_len, cells)))
        words = [cell_len(word) for cell in cells for word in _WORD.findall(cell)]
        least.append(most[-1] if name in whole else max(words, default=0))
    unbounded = console.options.update(max_width=10_000)
    room = console.width - console.measure(table, options=unbounded).maximum + sum(most)
    # The widest columns are made narrower, as far as their words allow.
    for widest in range(room, -1, -1):
        widths = [max(low, min(high, widest)) for low, high in zip(least, most, strict=True)]
        if sum(widths) <= room:
            for column, width in zip(table.columns, widths, strict=True):
                column.width = width
            return


def print_lines(console: Console, cells: Sequence[tuple[str, str]]) -> None:
    """Print a row as a block of its first cell and a line with a name for each other one."""
    (head, first), *others = cells
    console.print(f"{head} {first}" if first.isdigit() else first, markup=False, soft_wrap=True)
    for name, cell in others:
        console.print(f"  {name}: {cell}" if name else f"  {cell}", markup=False, soft_wrap=True)
