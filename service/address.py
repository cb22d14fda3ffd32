"""URLs of SQLite files: any path has one that leads back to it. No SQLAlchemy, which clients may be without."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote


def url_of(path: str | Path) -> str:
    """The SQLAlchemy URL of an SQLite file: `?`, which begins a URL's query, and `%` are escaped."""
    text = str(Path(os.path.expanduser(path)).absolute())  # noqa: PTH111 - pathlib's raises for a user unknown
    return "sqlite:///" + text.replace("%", "%25").replace("?", "%3F")


def path_of(url: str) -> Path | None:
    """The file of an SQLite URL, None for another database or one in memory."""
    scheme, separator, rest = url.partition(":///")
    path = unquote(rest.partition("?")[0], errors="surrogateescape")
    if not separator or not scheme.startswith("sqlite") or path in ("", ":memory:"):
        return None
    return Path(path)
