"""The identity of the installed code: the version of the package, and a digest of its sources.

Commits share a version; the digest tells them apart. A wheel has the one of the checkout that it was built from.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("strategy", "service", "workers", "plevel", "migrations")
_SOURCES = (".py", ".c", ".h", ".json", ".html", ".js", ".css")
_DIGITS = 12


@cache
def code_identity() -> str:
    """Return the identity as `0.1.0+4f1d0b6a92ce`. The first call reads all sources."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for name in _PACKAGES for path in (root / name).rglob("*") if path.suffix in _SOURCES):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{_release()}+{digest.hexdigest()[:_DIGITS]}"


def _release() -> str:
    try:
        return version("plevel")
    except PackageNotFoundError:  # a checkout that is not installed
        return "0"
