"""The identity of the installed code: of what is read as sources, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strategy import installed_code
from strategy.installed_code import code_identity
from workers.cpu import environment

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packages as a wheel has them, of which the identity is taken."""
    code_identity()  # of the code itself, before it is taken of the copy
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in installed_code._PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    monkeypatch.setattr(installed_code, "__file__", str(tmp_path / "strategy" / "installed_code.py"))
    return tmp_path


def test_copies_of_the_code_have_one_identity(copy: Path) -> None:
    own = code_identity()
    assert code_identity.__wrapped__() == own
    version, _, digest = own.partition("+")
    assert version
    assert len(digest) == 12
    assert environment()["plevel"] == own


def test_all_code_counts_and_nothing_else(copy: Path) -> None:
    found = [code_identity.__wrapped__()]
    (copy / "service" / "__pycache__").mkdir()
    for name in ("service/__pycache__/app.cpython-311.pyc", "plevel/.client.py.swp", "tests.py"):
        (copy / name).write_text("other")
    assert code_identity.__wrapped__() == found[0]
    for name in ("migrations/env.py", "workers/cuda/driver.py", "service/dashboard/templates/base.html"):
        with (copy / name).open("a") as file:
            file.write("\n")
        found.append(code_identity.__wrapped__())
    (copy / "plevel" / "client.py").rename(copy / "plevel" / "clients.py")
    found.append(code_identity.__wrapped__())
    assert len(set(found)) == len(found)
