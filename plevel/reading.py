"""Files that a user names: read whole, unless they may have no end."""

from __future__ import annotations

import errno
from pathlib import Path

_MOST = 256 << 20


def read_file(path: Path) -> bytes:
    """The bytes of a file; raise `OSError` for one that cannot be read, or a pipe or device of more than 256 MiB."""
    with path.open("rb") as file:
        if path.is_file():
            return file.read()
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise OSError(errno.EFBIG, f"a pipe or device of more than {_MOST >> 20} MiB: write a file and name that")
    return data
