"""Versions of the installed implementations of a workload, by which records are current or stale."""

from __future__ import annotations

from service.dashboard.workload_text import FAULTS
from strategy.op import find_op
from strategy.op_strategy import candidates
from strategy.target import Target
from strategy.workload import Workload


def installed_versions(workload: Workload, target: Target) -> dict[str, str] | None:
    """The version of each implementation of a workload on a target; None if its operator is not installed.

    Empty if the installed operator refuses the workload, which an older one has measured.
    """
    if find_op(workload.op) is None:
        return None
    try:
        return {c.implementation: c.version for c in candidates(workload, target)}
    except FAULTS:
        return {}
