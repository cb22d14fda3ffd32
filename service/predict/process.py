"""The process that trains a cost model, as seen from the one that starts it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import IO

import msgspec

from service.errors import InvalidError
from service.predict.training import OWNER, PROGRESS_MARK, Model, Progress, temporary_root
from service.store.db import Store
from strategy.folder import sweep


def start(
    store: Store, op: str, target_key: str, *, afresh: bool = False, errors: IO[bytes] | None = None
) -> subprocess.Popen[str]:
    """Train in a process of its own, at a lower priority than timing.

    Args:
        afresh: as for `train`.
        errors: gets what it writes to standard error. Without it, errors are logged, and its progress is discarded.
    """
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "service.predict.learner", op, target_key, *(["--afresh"] if afresh else [])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE if errors else subprocess.DEVNULL, stderr=errors,
        text=True,
    )
    assert child.stdin is not None
    with child.stdin:
        child.stdin.write(store.url.render_as_string(hide_password=False))
    return child


def train_apart(
    store: Store, op: str, target_key: str, *, afresh: bool = False, progress: Progress = lambda text: None
) -> Model:
    """Train in a process of its own and wait for it; raise as `train` does."""
    with tempfile.TemporaryFile() as errors:
        child = start(store, op, target_key, afresh=afresh, errors=errors)
        assert child.stdout is not None
        line = ""
        try:
            with child.stdout:
                for line in child.stdout:
                    if line.startswith(PROGRESS_MARK):
                        progress(line.removeprefix(PROGRESS_MARK).rstrip("\n"))
            child.wait()
        finally:
            stop(child)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    if child.returncode:
        raise InvalidError((said or ["the training process died"])[-1])
    return msgspec.json.decode(line, type=Model)


def stop(child: subprocess.Popen[str]) -> None:
    """End a training, and delete its files."""
    if child.poll() is None:
        child.kill()
    child.wait()
    sweep(OWNER, temporary_root())
