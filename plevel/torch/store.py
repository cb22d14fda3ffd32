"""Folder of what is built once for this user: kernels, the runtime, and verdicts, each by its digest.

Its size is bounded: what was not used for longest goes first.
"""

from __future__ import annotations

import _ctypes
import hashlib
import os
import shutil
import stat
import struct
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from workers.scratch import is_executable

LIMIT_BYTES = 2**30
YOUNG_S = 86_400.0
_FOLDER_MODE = 0o755
MOVED_BY = "XDG_CACHE_HOME"  # the environment's name of another place
SIGNATURE = ".so.json"  # of a kernel, beside it
# Folders of packages with the code that imports, plans and compiles graphs. Operators have versions.
_COMPILERS = ("plevel", "plevel/torch", "strategy", "strategy/compile", "strategy/network")
_SOURCES = (".py", ".c", ".h")


class FolderError(OSError):
    """The folder cannot be used; the message has the cause and the remedy."""

    def __init__(self, path: Path, why: str, error: OSError | None = None) -> None:
        said = f" ({error.strerror or type(error).__name__})" if error else ""
        super().__init__(f"{path} {why}{said}: name another folder in {MOVED_BY}")
        self.errno = None if error is None else error.errno


def folder() -> Path:
    """The folder, made where there is none; `XDG_CACHE_HOME` moves it.

    Its files are run as code: whatever the umask is, no other user may write to a folder that is made here.

    Raises:
        FolderError: it cannot be made, every user may write to it, or no kernel can run from it.
    """
    from platformdirs import user_cache_path

    of_all = user_cache_path("plevel", appauthor=False)
    found = of_all / "torch"
    for place in (of_all, found):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(mode=_FOLDER_MODE, exist_ok=True)
            is_open = place.stat().st_mode & stat.S_IWOTH
        except OSError as error:
            raise FolderError(place, "cannot be made", error) from error
        if is_open:
            raise FolderError(place, "may be written by every user, and its files are run as code (delete it)")
    if not is_executable(found):
        raise FolderError(found, "is mounted with noexec, and kernels cannot run from it")
    return found


def make_temporary(prefix: str = "") -> Path:
    """A new folder, from which files can be moved into the folder at once.

    Raises:
        FolderError: nothing can be written there.
    """
    kept = folder()
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=kept))
    except OSError as error:
        raise FolderError(kept, "cannot be written", error) from error


@contextmanager
def temporary() -> Iterator[Path]:
    """As `make_temporary`, removed at the end."""
    made = make_temporary()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def move(made: Path, place: Path) -> None:
    """Move a new file to its place in the folder, where no other user may change it, whatever the umask is."""
    made.chmod(made.stat().st_mode & _FOLDER_MODE)
    made.replace(place)


def touch(path: Path) -> None:
    """Notes that a file is used."""
    with suppress(OSError):
        os.utime(path)


@contextmanager
def keeping(what: str) -> Iterator[None]:
    """Warn, and go on without, where the folder is full or read-only."""
    try:
        yield
    except OSError as error:
        warnings.warn(f"plevel: {what} is not kept, and the next process times again: {error}", stacklevel=3)


def is_library(path: Path) -> bool:
    """Return whether a file is a shared library up to its end.

    A full disk or a machine that stops may leave a part of one, which kills the process that loads it.
    """
    with suppress(OSError, struct.error):
        with path.open("rb") as file:
            head = file.read(64)
        # ELF of 64 bits: the begin of its table of sections, which ends the file, and their size and number.
        (begin,), (size, count) = struct.unpack_from("=Q", head, 0x28), struct.unpack_from("=HH", head, 0x3A)
        return head.startswith(b"\x7fELF\2") and path.stat().st_size >= begin + size * count > 0
    return False


def is_loadable(path: Path) -> bool:
    """Return whether this process can load a shared library.

    Hosts that share a folder may have another C library, which lacks what one was linked with on a newer system.
    """
    if not is_library(path):
        return False
    try:
        _ctypes.dlclose(_ctypes.dlopen(os.fspath(path), os.RTLD_NOW | os.RTLD_LOCAL))
    except OSError:
        return False
    return True


def prune(limit_bytes: int = LIMIT_BYTES) -> None:
    """Removes what was not used for longest until the rest is within the limit, but nothing used within a day.

    A process that has loaded a kernel keeps it. What a killed process left half made goes after a day, too.
    """
    before = time.time() - YOUNG_S
    found = []
    for path in folder().iterdir():
        with suppress(OSError):  # another process prunes, too
            status = path.stat()
            if path.is_dir():
                if status.st_mtime < before:
                    shutil.rmtree(path, ignore_errors=True)
            elif not path.name.endswith(SIGNATURE):
                found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        if total <= limit_bytes or used >= before:
            break
        with suppress(OSError):  # it may be read-only
            path.unlink(missing_ok=True)
            path.with_name(path.name + ".json").unlink(missing_ok=True)  # after it: a kernel has a signature
        total -= size


def digest_of(*parts: Any) -> str:
    """32 hexadecimal digits for values that JSON can hold."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]


@cache
def compiler_code() -> str:
    """Digest of the code that compiles graphs, of which two commits may have the same version of the package."""
    return code_of(*_COMPILERS)


def code_of(*folders: str) -> str:
    """Digest of the names and texts of the sources in folders of packages, without the folders within them."""
    places = (files(package).joinpath(*parts) for package, *parts in (f.split("/") for f in folders))
    found = (path for place in places for path in sorted(place.iterdir(), key=lambda p: p.name))
    sources = (path for path in found if path.name.endswith(_SOURCES))
    return digest_of(*((path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in sources))
