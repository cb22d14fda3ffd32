"""The spread of files over processes: each to one, and those of PyTorch to two, which alone load it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.conftest import _compile

TESTS = Path(__file__).parents[1]
OF_TORCH = {"gw0", "gw1"}


def _run(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    for name in ("torch", "unit"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        for n in range(4):
            path = tmp_path / "tests" / name / f"test_{name}_{n}.py"
            path.write_text("import pytest\n\n\n@pytest.mark.parametrize('n', range(6))\ndef test_one(n): ...\n")
    shutil.copy(TESTS / "allowed_skips.txt", tmp_path / "tests")
    copy = (TESTS / "conftest.py").read_text()
    (found,) = [line for line in copy.splitlines() if line.startswith("PARTS = ")]
    (tmp_path / "tests" / "conftest.py").write_text(copy.replace(found, 'PARTS = ("json",)'))
    spread = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-v", *spread, *options],
        cwd=tmp_path, env={"PYTHONPATH": str(TESTS.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, check=False,
    )


def test_files_are_compiled_by_one_process_without_being_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    for name in "abcd":
        (folder / f"test_{name}.py").write_text("raise SystemExit\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.syspath_prepend(tmp_path)
    _compile(folder, 1, 3)
    assert [path.name.partition(".")[0] for path in folder.rglob("*.pyc")] == ["test_b"]


@pytest.mark.full
def test_tests_of_pytorch_alone_are_found_though_the_last_process_collects_none(tmp_path: Path) -> None:
    done = _run(tmp_path, "-k", "torch_0")
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_processes_take_the_files_of_pytorch_and_each_runs_whole(tmp_path: Path) -> None:
    done = _run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    ran: defaultdict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        if " PASSED " in line:
            process, _, test = line.partition(" PASSED ")
            ran[test.partition("::")[0]].append(process[1:4])
    assert len(ran) == 8
    assert all(len(processes) == 6 and len({*processes}) == 1 for processes in ran.values()), ran
    assert {p for path, (p, *_) in ran.items() if path.startswith("tests/torch/")} == OF_TORCH
