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
    """The message about what cannot be written, with the remedy."""
    remedy = "free some space, or write to another disk" if error.errno in FULL else "name another place"
    return f"{named} cannot be written: {error.strerror}: {remedy}"


def explain(error: OSError) -> tuple[int, str]:
    """The exit code and the message of an error of a file that no command has named."""
    if error.filename is None:  # other files are named by what writes them
        return 1, unwritten("the output", error) if error.errno in FULL else " ".join(str(error).split())
    if error.errno == errno.ENAMETOOLONG:
        return 2, f"{error.filename!r:.80}: too long for the name of a file: shorten it"
    if error.filename2:  # of a file that is moved or copied, the place where it goes
        return 1, unwritten(error.filename2, error)
    return 1, f"{error.filename}: {error.strerror}: name another, or let this user use it"


def make_folder(folder: Path) -> None:
    """Create the folder of `--out`, unless it is there; raise `CommandError` if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(unwritten(f"--out {folder}", error)) from error


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
