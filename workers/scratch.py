"""Room for libraries on this host's disk, whose lack is no fault of a configuration."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from strategy.fault import CompileError
from strategy.folder import scratch
from workers.sandbox import SandboxError

_building = threading.Lock()
_ROOM_BYTES = 4 << 20  # a library has 30 KB, its compiler's temporary files some more
# In messages of a worker's log, which `plevel tune` repeats.
WAITS = "waits for room on the disk"
GOES_ON = "there is room on the disk again"
NOT_EXECUTABLE = "is mounted with noexec, and kernels cannot run from it: name another folder in TMPDIR"


class ScratchError(OSError):
    """The folder of libraries cannot be written; the message has the cause and the remedy."""


def temporary_root() -> Path:
    """The folder of temporary files; raise `ScratchError` if there is none."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:  # TMPDIR and the folders that Python tries after it cannot be written
        raise ScratchError(
            f"temporary files cannot be written ({error.strerror}): free some space, or name another folder in TMPDIR"
        ) from error


def check_room(folder: Path, moved_by: str = "TMPDIR") -> None:
    """Raise `ScratchError` if a library cannot be written: the disk or a quota is full, or it is read-only.

    Called after a failed build, whose own message may be lost: LLVM aborts, and its last words go to the same disk.

    Args:
        moved_by: the environment variable that names another folder in place of this one.

    Raises:
        ScratchError: see above.
        SandboxError: the folder was deleted.
    """
    # C compilers write to TMPDIR, which Python leaves for another folder where it is full.
    of_compilers = os.environ.get("TMPDIR", "")
    places = [(folder, moved_by)]
    if os.access(of_compilers, os.W_OK):
        places.append((Path(of_compilers), "TMPDIR"))
    for place, named in places:
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(bytes(_ROOM_BYTES))
        except FileNotFoundError as error:
            raise SandboxError(
                f"{place} was deleted, as by a cleaner of temporary files: start again, or name another in {named}"
            ) from error
        except OSError as error:
            raise ScratchError(
                f"{place} cannot be written ({error.strerror}): free some space, or name another folder in {named}"
            ) from error


def is_executable(folder: Path) -> bool:
    """Return whether libraries in a folder can be loaded: it is not mounted with `noexec`."""
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC


def check_executable() -> None:
    """Raise `ScratchError` if no kernel could run from the folder of temporary files.

    Else each configuration would fail, and its failure stay on record.
    """
    folder = temporary_root()
    if not is_executable(folder):
        raise ScratchError(f"{folder} {NOT_EXECUTABLE}")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A temporary folder; raise `ScratchError` in place of an error that may come of a full disk."""
    with scratch("draft") as folder:  # a model's constants fill it: what a killed command left is deleted
        try:
            yield folder
        except Exception:
            check_room(folder.parent)
            raise


def find_or_build(folder: Path, build: Callable[[Path], Path]) -> str:
    """The path of a library that is built once, in a folder of its own. Thread-safe.

    Raises:
        ScratchError: the disk is full.
        CompileError: as `build`.
    """
    found = folder / "library.so"
    try:
        folder.mkdir(exist_ok=True)
        with _building:
            return str(found if found.exists() else build(folder))
    except (CompileError, OSError):
        check_room(folder.parent)
        raise
