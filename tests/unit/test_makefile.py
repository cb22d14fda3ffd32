"""`make install` in a folder in which an earlier one was interrupted."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.limit import HANG_S

ROOT = Path(__file__).parents[2]


def test_a_virtual_environment_without_pip_is_made_again(tmp_path: Path) -> None:
    made = tmp_path / "made"
    maker, python = tmp_path / "maker", tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    for script, text in ((python, "exit 1"), (maker, f'echo "$@" > {made}\nexit 1')):
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    done = subprocess.run(
        ["make", "install", f"VENV={tmp_path}/venv", f"PYTHON={maker}"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANG_S,
    )
    assert done.returncode != 0
    assert made.read_text() == f"-m venv {tmp_path}/venv\n"
    assert f"{maker} cannot make a virtual environment" in done.stderr
