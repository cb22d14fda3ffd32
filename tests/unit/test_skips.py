"""Skips: the last lines of a session name them, and one that is not listed fails it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHY = "no chromium on this host (Debian: apt install chromium)"


def test_the_last_lines_name_what_was_skipped(tmp_path: Path) -> None:
    for folder in ("browser", "unit"):  # a reason of the first alone
        path = tmp_path / "tests" / folder / f"test_{folder}.py"
        path.parent.mkdir(parents=True)
        path.write_text(
            f"import pytest\n\n\ndef test_one():\n    pytest.skip({WHY!r})\n\n\ntest_two = test_one\n"
        )
    (tmp_path / "pytest.ini").touch()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "xdist", *arguments],
            cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True, text=True, check=False,
        )

    listed = run("tests/browser", "-n", "1")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert listed.stdout.splitlines()[-1] == f"not tested: 2 skipped: {WHY}"
    not_listed = run("tests/unit")
    assert not_listed.returncode == 1, not_listed.stdout + not_listed.stderr
    assert f"tests/unit/test_unit.py::test_two | {WHY}" in not_listed.stdout
