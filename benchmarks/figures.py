"""The tables of the documentation, made of the results in `results/`.

    python benchmarks/figures.py          # or: make figures

A page names a result in `<!-- figures: NAME -->`. What stands between that line and `<!-- end -->` is replaced
by the table of `results/NAME.json` and a line that says how it was taken; the prose around is written by hand.
`<!-- models without NAME NAME -->` begins one table of all other results of `models.py`, a row for each model.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from benchmarks.result import FOLDER, Cell, Result, read, show

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
_BLOCK = re.compile(r"^<!-- figures: (\S+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
_MODELS = re.compile(r"^<!-- models without ([^\n]+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
_RATIOS = (
    "Inductor / confirmed", "ONNX Runtime / confirmed", "OpenVINO / confirmed",
    "ONNX Runtime / model.so", "OpenVINO / model.so",
)


def render(page: str) -> str:
    """The text of a page with its tables as the results have them."""
    page = _BLOCK.sub(lambda found: f"<!-- figures: {found[1]} -->\n\n{_show(read(found[1]))}\n\n<!-- end -->", page)
    return _MODELS.sub(
        lambda found: f"<!-- models without {found[1]} -->\n\n{_span(found[1].split())}\n\n<!-- end -->", page
    )


def find_names(page: str) -> list[str]:
    """The results that a page shows."""
    return [found[1] for found in _BLOCK.finditer(page)]


def _show(result: Result) -> str:
    units = result.columns.values()
    rows = [[show(cell, unit) for cell, unit in zip(row, units, strict=True)] for row in result.rows]
    return f"{_table(list(result.columns), rows)}\n\n{_caption(result)}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def _span(without: Collection[str]) -> str:
    """The least and the largest ratio of each model in all runs, tuned and untuned ones apart."""
    runs: defaultdict[tuple[Cell, str], list[dict[str, Cell]]] = defaultdict(list)
    for name in sorted({path.stem for path in FOLDER.glob("models-*.json")} - set(without)):
        result = read(name)
        state = "untuned" if (result.note or "").startswith("untuned") else "tuned"
        for row in result.rows:
            runs[row[0], state].append(dict(zip(result.columns, row, strict=True)))
    rows = [
        [str(model), state, str(len(found)), *(_range([run.get(ratio) for run in found]) for ratio in _RATIOS)]
        for (model, state), found in sorted(runs.items())
    ]
    return _table(["model", "", "runs", *_RATIOS], rows)


def _range(cells: list[Cell]) -> str:
    """In bold if one is below 1."""
    found = sorted(round(cell, 2) for cell in cells if isinstance(cell, float))
    if not found:
        return ""
    text = " to ".join(show(ratio, "×") for ratio in dict.fromkeys((found[0], found[-1])))
    return f"**{text}**" if found[0] < 1 else text


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
    ]
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
