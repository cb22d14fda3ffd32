"""Folders that die with their process, and a cap on what is kept."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from strategy.cuda.compiler import Nvcc
from strategy.fault import CompileError
from strategy.folder import hold, keep_newest, scratch, taken_over

HOLDER = """
import sys
from strategy.folder import scratch
with scratch() as folder:
    (folder / "library.so").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_what_a_killed_worker_left_goes_when_another_starts(temporary: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert process.stdout is not None
    left = Path(process.stdout.readline().strip())
    with scratch() as own:
        assert own.is_dir()
        assert (left / "library.so").exists(), "its worker lives"
    assert not own.exists()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert left.exists()
    with scratch():
        assert not left.exists()


def test_an_interrupted_deletion_is_finished_when_another_starts(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a second Ctrl-C, while the folders of many children are deleted."""
    delete = shutil.rmtree

    def interrupt(path: Path, **options: Any) -> None:
        (path / "lock").unlink(missing_ok=True)  # as one that has begun
        raise KeyboardInterrupt

    interrupted = scratch()
    left = interrupted.__enter__()
    (left / "pool").mkdir()
    monkeypatch.setattr(shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        interrupted.__exit__(None, None, None)
    assert (left / "pool").exists()
    monkeypatch.setattr(shutil, "rmtree", delete)
    with scratch():
        assert not left.exists()


def test_what_a_killed_builder_left_goes_at_the_next_compilation(temporary: Path) -> None:
    left = temporary / "plevel-nvcc-killed"
    left.mkdir()
    hold(left).close()
    with pytest.raises(CompileError):
        Nvcc("false").compile("", "sm_90")
    assert not list(temporary.iterdir())


def test_what_is_not_a_workers_stays(temporary: Path) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    hold(elsewhere).close()
    (temporary / "plevel-worker-link").symlink_to(elsewhere)
    (temporary / "plevel-worker-new").mkdir()  # of one that is about to start
    with scratch():
        assert elsewhere.exists()
        assert (temporary / "plevel-worker-new").exists()


def test_one_takes_over(tmp_path: Path) -> None:
    held = hold(tmp_path)
    with taken_over(tmp_path) as ours:
        assert not ours
    held.close()
    with taken_over(tmp_path) as ours:
        assert ours
        with taken_over(tmp_path) as also:
            assert not also


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for i in range(5):
        path = tmp_path / f"{i}"
        path.write_bytes(b"x" * 100)
        os.utime(path, (1000 - i, 1000 - i))
    keep_newest(tmp_path, 250)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1"]
    (tmp_path / "folder").mkdir()  # no file, and kept
    keep_newest(tmp_path, 0)
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]
