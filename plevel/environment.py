"""The token and the namespace that the environment gives."""

from __future__ import annotations

import os
from pathlib import Path

from plevel.client import UnreachableError
from plevel.reading import read_file

_MOST_BYTES = 1 << 20


def read_namespace(given: str | None) -> str | None:
    """The given namespace, else the environment's; None for the token's or the default."""
    return given or os.environ.get("PLEVEL_NAMESPACE") or None


def read_token(file: Path | None = None) -> str | None:
    """The token of the file of --token-file, else of the file PLEVEL_TOKEN_FILE, else PLEVEL_TOKEN itself.

    Raises:
        UnreachableError: the file cannot be read, or what is given is no token.
    """
    named, name = ("--token-file", file) if file else ("PLEVEL_TOKEN_FILE", os.environ.get("PLEVEL_TOKEN_FILE"))
    if not name:
        given = os.environ.get("PLEVEL_TOKEN")
        if given and not _is_token(given.strip()):
            raise UnreachableError("PLEVEL_TOKEN: not a token: set it to one, without a space in it")
        return given.strip() if given else None
    try:
        token = read_file(Path(name), _MOST_BYTES, "this is no token file").decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UnreachableError(f"{named} {name}: {why}: name a readable file with one token") from error
    if not _is_token(token):
        raise UnreachableError(f"{named} {name}: no token file: write one token on one line")
    return token


def _is_token(text: str) -> bool:
    return text.isascii() and text.isprintable() and len(text.split()) == 1
