"""URLs and folders of SQLite files. Any path has a URL that leads back to it; clients need no SQLAlchemy for them."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

from service.errors import DatabaseError


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


def default_url() -> str:
    """The SQLite file in this user's data directory, which may not exist yet."""
    return url_of(_data_folder() / "plevel.db")


def _data_folder() -> Path:
    from platformdirs import user_data_path

    return user_data_path("plevel", appauthor=False)


def make_folder(path: Path) -> None:
    """Create the folder of this user's own database; another must exist, as its name may be mistyped.

    Raises:
        DatabaseError: there is no such folder, or it cannot be created.
    """
    if path.parent.is_dir():
        return
    if path.parent != _data_folder():
        raise DatabaseError(
            f"database {path} cannot be created: there is no folder {path.parent}: create it, or name another file"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(
            f"database {path} cannot be created ({error.strerror}): name another in PLEVEL_DATABASE"
        ) from error
