"""Validity of candidates: those whose conditions hold for a workload."""

from __future__ import annotations

from collections.abc import Sequence

from strategy.op import find_op
from strategy.op_strategy import Candidate, built_kinds
from strategy.target import Target
from strategy.workload import Workload


class SelectionError(ValueError):
    """No implementation can be selected for the workload on the target."""


def valid_candidates(workload: Workload, target: Target, known: Sequence[Candidate]) -> list[Candidate]:
    """The candidates whose conditions hold.

    Raises:
        SelectionError: there are none.
    """
    if len({c.implementation for c in known}) != len(known):
        raise SelectionError(f"candidates: an implementation of {workload.op} is listed twice: list each once")
    require_some(workload, target, known)
    valid = [c for c in known if holds(c, workload)]
    if not valid:
        or_symbolic = "" if workload.is_constant else ", or they need constant shapes"
        raise SelectionError(
            f"no implementation of {workload.op} is valid for {workload} on {target}"
            f": {len(known)} exist, but their conditions fail{or_symbolic}"
        )
    return valid


def require_some(workload: Workload, target: Target, known: Sequence[Candidate]) -> None:
    """Raise `SelectionError`, with the supported kinds of targets, if the target has no implementation."""
    if known:
        return
    kinds = built_kinds(workload) if find_op(workload.op) is not None else []
    remedy = (
        f"it has implementations for targets of kind {' and '.join(kinds)}"
        if kinds
        else "none is installed here"
    )
    raise SelectionError(f"no implementation of {workload.op} can be built for {target}: {remedy}")


def holds(candidate: Candidate, workload: Workload) -> bool:
    """Return whether the candidate's condition certainly holds, and it can be lowered; an undecidable one does not.

    Raises:
        SelectionError: the condition has a variable that is no dimension of the workload.
    """
    if not (candidate.symbolic or candidate.foreign or workload.is_constant):
        return False
    if candidate.condition is None:
        return True
    decided = candidate.condition.decide()
    if decided is None:
        bound = candidate.condition.substitute(workload.dims)
        decided = bound.decide()
        strange = sorted(bound.variables() - workload.symbols) if decided is None else ()
        if strange:
            raise SelectionError(
                f"{candidate.implementation}: its condition '{candidate.condition}' is over "
                f"{strange[0]!r:.80}, which is no dimension of {workload}"
            )
    return decided is True
