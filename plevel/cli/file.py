"""Files that commands write: complete, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from plevel.cli.error import CommandError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # a write's errors, which name no file


def unwritten(named: object, error: OSError) -> str:
    """The message about what cannot be written, with the remedy of a full disk."""
    remedy = ": free some space, or write to another disk" if error.errno in FULL else ""
    return f"{named} cannot be written: {error.strerror}{remedy}"


@contextlib.contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` once it is complete; a device or a pipe itself.

    Raises:
        CommandError: it cannot be written, or the disk is full.
    """
    named = path
    itself = path.exists() and not path.is_file()
    if not itself:  # of /dev/stdout, a pipe's would lead to no file
        path = path.resolve()  # a link stays one
    # Its name has room for a part of the other: file systems take 255 bytes.
    part = path if itself else path.with_name(f".{path.name[:50]}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        if not itself:
            part.replace(path)
    except OSError as error:
        # Others are of what is written, such as a service that is away.
        if error.filename == str(part) or (error.filename is None and error.errno in FULL):
            raise CommandError(unwritten(named, error)) from error
        raise
    finally:
        if not itself:
            with contextlib.suppress(OSError):  # of a file system that is read-only, which the error has said
                part.unlink(missing_ok=True)
