"""Versions of the installed implementations of a workload, by which records are current or stale."""

from __future__ import annotations

import logging
from functools import lru_cache

from strategy.fault import find_fault
from strategy.op import find_op
from strategy.op_strategy import candidates
from strategy.target import Target
from strategy.workload import Workload

log = logging.getLogger(__name__)


def installed_versions(workload: Workload, target: Target) -> dict[str, str] | None:
    """The version of each implementation of a workload on a target; None if its operator is not installed, or fails.

    Empty if the installed operator refuses the workload, which an older one has measured.
    """
    if find_op(workload.op) is None:
        return None
    try:
        return {c.implementation: c.version for c in candidates(workload.checked(), target)}
    except ValueError:
        return {}
    except Exception as error:  # of a package's strategy or space, which must not hide all other records
        at = find_fault(error)
        _tell(f"{workload.op} on {target.key}", f"{f'{at}: ' if at else ''}{type(error).__name__}: {error}")
        return None


@lru_cache(256)
def _tell(of: str, fault: str) -> None:
    """Log a fault once."""
    log.warning(
        "the installed versions of %s are not known, as its strategy fails, and the newest on record is taken for "
        "current: %s: correct or remove the package", of, fault,
    )
