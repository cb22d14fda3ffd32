"""Room for libraries on this host's disk, whose lack is no fault of a configuration."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from strategy.fault import CompileError

_ROOM_BYTES = 4 << 20  # a library has 30 KB, its compiler's temporary files some more


class ScratchError(OSError):
    """The folder of libraries cannot be written; the message has the cause and the remedy."""


def check_room(folder: Path) -> None:
    """Raise `ScratchError` if a library cannot be written: the disk or a quota is full, or it is read-only.

    Called after a failed build, whose own message may be lost: LLVM aborts, and its last words go to the same disk.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_ROOM_BYTES))
    except OSError as error:
        raise ScratchError(f"{folder} cannot be written ({error.strerror}): free some space") from error


def find_or_build(folder: Path, build: Callable[[Path], Path]) -> str:
    """The path of a library that is built once, in a folder of its own.

    Raises:
        ScratchError: the disk is full.
        CompileError: as `build`.
    """
    found = folder / "library.so"
    try:
        folder.mkdir(exist_ok=True)
        return str(found if found.exists() else build(folder))
    except (CompileError, OSError):
        check_room(folder.parent)
        raise
