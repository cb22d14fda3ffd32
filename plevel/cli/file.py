"""Files that commands write: complete, or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` once it is complete; a device or a pipe itself."""
    path = path.resolve()  # a link stays one
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
