"""Checks of what a command needs of this host: extras of plevel, a compiler, room for temporary files."""

from __future__ import annotations

import importlib.util


class EmbeddedError(RuntimeError):
    """The service or the worker did not start, or died, or an extra is missing; the message has the remedy."""


def require(extra: str, *modules: str) -> None:
    """Raise `EmbeddedError` if a module of an extra is not installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise EmbeddedError(
                f"the '{extra}' extra is not installed ({module} is missing): "
                f"pip install 'plevel[{extra}]'"
            )


def require_service() -> None:
    """Raise `EmbeddedError` if the extra `service` is not installed."""
    require("service", "fastapi", "uvicorn", "sqlalchemy", "alembic")


def require_worker() -> None:
    """Raise `EmbeddedError` if this host cannot build and time: no TVM, or no C compiler."""
    require("worker", "tvm")
    from strategy.compile.export import missing_compiler

    if missing := missing_compiler():
        raise EmbeddedError(f"compiler, which a worker needs: {missing}")


def require_both() -> None:
    """As `require_service` and `require_worker`, with one command where both extras are missing."""
    try:
        require_service()
    except EmbeddedError as error:
        if importlib.util.find_spec("tvm") is not None:
            raise
        raise EmbeddedError(
            "the extras 'service' and 'worker' are not installed: pip install 'plevel[service,worker]'"
        ) from error
    require_worker()


def require_room() -> None:
    """Raise `ScratchError`, which names the folder, if temporary files of a build cannot be written."""
    from workers.scratch import check_room, temporary_root

    check_room(temporary_root())
