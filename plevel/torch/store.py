"""Folder of what is built once for this user: kernels, the runtime, and verdicts, each by its digest."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec


def folder() -> Path:
    """The folder, made where there is none; `XDG_CACHE_HOME` moves it."""
    from platformdirs import user_cache_path

    found = user_cache_path("plevel", appauthor=False) / "torch"
    found.mkdir(parents=True, exist_ok=True)
    return found


def digest_of(*parts: Any) -> str:
    """32 hexadecimal digits for values that JSON can hold."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]
