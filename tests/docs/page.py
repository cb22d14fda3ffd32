"""A page of the documentation as the program that its blocks are.

Blocks of `sh` and `python` run in the order in which they stand, in one shell, in an empty folder;
`<!-- not run: why -->` before a block leaves it out. A block with `title="name"` is a file that is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])
_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n+)?^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<body>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
_TITLE = re.compile(r'title="([\w./-]+)"')
_RUNS = ("sh", "python")
_END = "THE-END-OF-THIS-BLOCK"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what it holds, and why it is not run, if so."""

    language: str
    body: str
    line: int
    file: str | None = None
    why_not: str | None = None

    @property
    def runs(self) -> bool:
        return self.why_not is None and (self.language in _RUNS or self.file is not None)


def read_blocks(text: str) -> list[Block]:
    found = []
    for match in _FENCE.finditer(text):
        title = _TITLE.search(match["info"])
        indent = len(match["indent"])
        body = "".join(line[indent:] for line in match["body"].splitlines(keepends=True))
        found.append(
            Block(
                language=match["info"].split(" ")[0], body=body, why_not=match["why"],
                line=text.count("\n", 0, match.start("info")) + 1, file=title and title[1],
            )
        )
    return found


def make_script(blocks: list[Block]) -> str:
    """The blocks as one shell script that ends with the first that fails, and says which."""
    parts = ["set -eo pipefail", "trap 'echo \"the block at line $at failed\" >&2' ERR"]
    for block in blocks:
        if not block.runs:
            continue
        parts.append(f"at={block.line}")
        if block.file is not None:
            parts.append(_here(f"mkdir -p $(dirname {block.file}) && cat > {block.file}", block.body))
        elif block.language == "python":
            parts.append(_here("python -W error -", block.body))
        else:
            parts.append(block.body.rstrip("\n"))
    return "\n".join(parts) + "\n"


def _here(command: str, body: str) -> str:
    return f"{command} <<'{_END}'\n{body}{_END}"
