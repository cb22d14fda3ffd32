"""Lengths of files: one of more than 300 lines says at its top why it is not split."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("strategy", "service", "workers", "plevel", "benchmarks")
_MOST = 300
_REASON = re.compile(r"^# Over 300 lines: \S", re.MULTILINE)


def fault(source: str) -> str | None:
    """The fault in a file's length and the reason for it, None where there is none."""
    head, _, _ = source.partition("\nfrom __future__")
    stated, lines = _REASON.search(head) is not None, source.count("\n")
    if lines > _MOST and not stated:
        return f"{lines} lines: split it, or say why not below its docstring: '# Over 300 lines: …'"
    if lines <= _MOST and stated:
        return f"{lines} lines, and a reason for more: leave it out"
    return None


@pytest.mark.parametrize("package", _PACKAGES)
def test_long_files_say_why(package: str) -> None:
    files = sorted((_ROOT / package).rglob("*.py"))
    assert files
    found = {str(file.relative_to(_ROOT)): fault(file.read_text()) for file in files}
    wrong = [f"{name}: {text}" for name, text in found.items() if text is not None]
    assert not wrong, "\n".join(wrong)


def test_a_reason_stands_at_the_top_and_only_in_long_files() -> None:
    reason, code = "# Over 300 lines: one table.\n", "from __future__ import annotations\n"
    assert fault('"""Doc."""\n' + code + "x = 1\n" * 290) is None
    assert fault('"""Doc."""\n\n' + code + "x = 1\n" * 300) is not None
    assert fault('"""Doc."""\n' + reason + "\n" + code + "x = 1\n" * 300) is None
    assert fault('"""Doc."""\n\n' + code + reason + "x = 1\n" * 300) is not None
    assert fault('"""Doc."""\n' + reason + "\n" + code) is not None
