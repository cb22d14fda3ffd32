"""Options of the backend of `torch.compile`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

_Named = Annotated[str, msgspec.Meta(min_length=1)]  # empty, as of an unset variable, it would name another place


class OptionError(TypeError):
    """An option that the backend does not have, or of the wrong type."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`options` of `torch.compile`.

    Args:
        database: a service, a database or an SQLite file; this user's own where not given.
        lock: a lock file: what is locked is taken from it, the rest from `database` if that is named.
        confirm: whether kernels stay only where the timed graph is faster with them.
        again: whether the graph is timed although a verdict on it is on disk or on record, for as long as it takes.
    """

    database: _Named | None = None
    lock: _Named | None = None
    confirm: bool = True
    again: bool = False

    @classmethod
    def read(cls, given: Any) -> Options:
        """Raises `OptionError`, which names the option."""
        try:
            if not isinstance(given, Mapping | None):
                raise msgspec.ValidationError(f"Expected a dictionary, got `{type(given).__name__}`")
            plain = {k: str(v) if isinstance(v, Path) else v for k, v in (given or {}).items()}
            return msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            raise OptionError(
                f"options of backend 'plevel': {error}; they are database, lock, confirm and again"
            ) from error
