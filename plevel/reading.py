"""Files that a user names, read whole within a limit: a pipe or a device may have no end, and any file may be wrong."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strategy.select.lock import Lock

_MOST_OF_LOCK = 64 << 20


def read_file(path: Path, most: int, instead: str) -> bytes:
    """The bytes of a file, a pipe or a device.

    Args:
        most: its limit in bytes, whole MiB.
        instead: the end of the message about one that is larger: what it is not, or the remedy.

    Raises:
        OSError: it cannot be read, or is larger.
    """
    with path.open("rb") as file:
        data = b"" if (large := os.fstat(file.fileno()).st_size > most) else file.read(most + 1)
    if large or len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB: {instead}")
    return data


def load_lock(path: Path) -> Lock:
    """The lock in a file; raise `OSError` for a file that cannot be read, `LockError` for one that is no lock."""
    from strategy.select.lock import Lock

    return Lock.read(read_file(path, _MOST_OF_LOCK, "this is no lock file"))
