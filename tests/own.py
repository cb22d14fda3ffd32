"""plevel's own operators, whatever packages of others are installed beside it."""

from __future__ import annotations

import importlib.metadata
from typing import Any


def hide_packages() -> None:
    """Have the first look-up of an operator load no package of the entry-point group `plevel.ops`, in this process."""
    found = importlib.metadata.entry_points

    def entry_points(**wanted: Any) -> Any:
        return () if wanted.get("group") == "plevel.ops" else found(**wanted)

    importlib.metadata.entry_points = entry_points
