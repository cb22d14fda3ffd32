"""Files that one process of a run makes for all of them, as each takes seconds to make."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

FOLDER = "TESTS_FOLDER"  # the environment's name of the folder of a run, which its first process makes


def make_once(name: str, make: Callable[[Path], None]) -> Path:
    """The path of what the first process that asks makes there; the others wait until it is whole."""
    path = Path(os.environ[FOLDER], name)
    done = path.with_name(f"{name}.done")
    with path.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(path)
            done.touch()
    return path
