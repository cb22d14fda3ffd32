"""The openings of docstrings: a noun phrase or an imperative, never a question word."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("strategy", "service", "workers", "plevel", "migrations", "benchmarks", "tests", ".ci")
_QUESTION = re.compile(r"(What|Who|Whether|Where|How|Which|Why)\b")
_QUOTED = re.compile(rf"[\"'][\s\\]*{_QUESTION.pattern}")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def questions(source: str) -> list[tuple[int, str]]:
    """The line and first line of each docstring that opens with a question word."""
    found = []
    if not _QUOTED.search(source):  # which takes a tenth of the time of parsing it
        return found
    for node in ast.walk(ast.parse(source)):
        text = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
        if text and _QUESTION.match(text):
            found.append((node.body[0].lineno, text.partition("\n")[0]))
    return found


@pytest.mark.parametrize("package", _PACKAGES)
def test_docstrings_open_with_a_noun_phrase_or_an_imperative(package: str) -> None:
    files = sorted((_ROOT / package).rglob("*.py"))
    assert files
    found = [
        f"{file.relative_to(_ROOT)}:{line}: {text}"
        for file in files
        for line, text in questions(file.read_text())
    ]
    assert not found, "\n".join(found)


def test_question_words_are_found_in_all_kinds_of_docstrings() -> None:
    source = '"""Which one."""\nclass A:\n  """Whose."""\n  async def f(self):\n    r"""How far it is."""\n'
    assert questions(source) == [(1, "Which one."), (5, "How far it is.")]
