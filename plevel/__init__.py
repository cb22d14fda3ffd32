"""The user interface of plevel: the command line, the Python client, and the embedded mode.

    import plevel

    with plevel.Client("http://farm:8765") as client:
        answer = client.select(workload, target)

Importing this package loads no compiler, no web framework and no database.
"""

from __future__ import annotations

import os
import warnings
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # as in `plevel.__main__`
if TYPE_CHECKING:
    from typing import Any

    __version__: str
    from plevel.client import Client, NoWorkerError, ServiceError, UnreachableError
    from plevel.database import plevel_database
    from plevel.embedded import Embedded
    from plevel.extra import EmbeddedError

__all__ = [
    "Client", "Embedded", "EmbeddedError", "NoWorkerError", "ServiceError", "UnreachableError", "__version__",
    "plevel_database",
]

_HOMES = {
    "Client": "plevel.client",
    "NoWorkerError": "plevel.client",
    "ServiceError": "plevel.client",
    "UnreachableError": "plevel.client",
    "plevel_database": "plevel.database",
    "Embedded": "plevel.embedded",
    "EmbeddedError": "plevel.extra",
}


def _check_packages() -> None:
    """Tell of a user's own file or package that Python finds before one of plevel's packages of the same name.

    `ImportError` for `strategy`, which everything needs; a warning for the others, as the client works without them.
    """
    own = __file__.rpartition("/")[0]
    for name in ("strategy", "service", "workers", "migrations"):
        found = PathFinder.find_spec(name)
        place = found and found.origin
        # Folders, as files may be compiled (`.pyc`); and what links lead to, as one may lead to this package alone.
        folder = place and place.rpartition("/")[0]
        if not folder or any(of(folder) == f"{of(own).removesuffix('plevel')}{name}" for of in (str, os.path.realpath)):
            continue
        told = f"{place} hides the package {name!r} of plevel: rename it, or leave its folder out of sys.path"
        if name == "strategy":
            raise ImportError(told)
        warnings.warn(told, stacklevel=3)


_check_packages()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("plevel")
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'plevel' has no attribute {name!r}")
