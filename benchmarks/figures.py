"""The tables of the documentation, made of the results in `results/`.

    python benchmarks/figures.py          # or: make figures

A page names a result in `<!-- figures: NAME -->`. What stands between that line and `<!-- end -->` is replaced
by the table of `results/NAME.json` and a line that says how it was taken; the prose around is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.result import Result, read, show

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
_BLOCK = re.compile(r"^<!-- figures: (\S+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def render(page: str) -> str:
    """The text of a page with its tables as the results have them."""
    return _BLOCK.sub(lambda found: f"<!-- figures: {found[1]} -->\n\n{_show(read(found[1]))}\n\n<!-- end -->", page)


def find_names(page: str) -> list[str]:
    """The results that a page shows."""
    return [found[1] for found in _BLOCK.finditer(page)]


def _show(result: Result) -> str:
    units = list(result.columns.values())
    lines = [list(result.columns), ["---"] * len(units)]
    lines += [[show(cell, unit) for cell, unit in zip(row, units, strict=True)] for row in result.rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{_caption(result)}"


def _caption(result: Result) -> str:
    machine = result.machine
    parts = [
        result.command and f"`{result.command}`",
        result.date,
        f"{machine.processor}, {machine.cores} cores of {machine.llvm}",
        result.commit and f"commit {result.commit}",
        result.peer and f"beside {result.peer}",
        result.runs and f"medians of {result.runs}",
        result.note,
    ]  # fmt: skip
    return "; ".join(part for part in parts if part) + "."


def main() -> None:
    for page in PAGES:
        before = page.read_text()
        after = render(before)
        if after != before:
            page.write_text(after)
            print(f"{page.relative_to(page.parents[1])}: {len(find_names(after))} tables")


if __name__ == "__main__":
    main()
