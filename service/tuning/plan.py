"""Plans of runs: the candidates of each workload asked for."""

from __future__ import annotations

from dataclasses import dataclass

from service.errors import InvalidError
from service.selection.candidate import known_candidates
from service.store import catalogue
from strategy.op_strategy import Candidate
from strategy.record import RunRequest, RunWorkload
from strategy.select import holds, require_some
from strategy.suggestion import suggest
from strategy.workload import Workload


@dataclass(frozen=True)
class Planned:
    """A workload of a run with the candidates that are valid for it."""

    workload: Workload
    weight: float
    candidates: tuple[Candidate, ...]
    # The number of valid configurations of each candidate; None without a space, or if too many to count.
    space_sizes: tuple[int | None, ...]


def plan(request: RunRequest) -> list[Planned]:
    """Resolve a request to candidates; raises `InvalidError` that names the field at fault."""
    planned = []
    for i, asked in enumerate(request.workloads):
        field = f"workloads[{i}]"
        planned.append(_plan_one(asked, request, field))
    keys = [p.workload.key for p in planned]
    for i, key in enumerate(keys):
        if key in keys[:i]:
            raise InvalidError(f"workloads[{i}]: {key} is listed twice: list it once, with a weight")
    return planned


def _plan_one(asked: RunWorkload, request: RunRequest, field: str) -> Planned:
    wanted, known = known_candidates(
        asked.workload, request.target, asked.candidates, f"{field}.workload"
    )
    if not wanted.is_constant:
        raise InvalidError(
            f"{field}.workload: {wanted} has symbolic dimensions: give numbers, only constant shapes can be timed"
        )
    require_some(wanted, request.target, known)
    names = [c.implementation for c in known]
    if len(set(names)) != len(names):
        raise InvalidError(f"{field}.candidates: an implementation is listed twice: list each once")
    for name in request.implementations or ():
        if name not in names:
            raise InvalidError(
                f"implementations: {wanted.op} has no {name!r:.80} on {request.target}{suggest(name, names)}; "
                f"it has: {', '.join(names)}"
            )
    valid = [
        c for c in known
        if holds(c, wanted) and c.implementation in (request.implementations or names)
    ]  # fmt: skip
    if not valid:
        raise InvalidError(
            f"{field}: no implementation of {wanted.op} is valid for {wanted} on {request.target}"
        )
    # Counted outside of the transaction, as it takes long.
    sizes = tuple(None if c.space is None else c.space.count(catalogue.COUNT_LIMIT) for c in valid)
    return Planned(wanted, asked.weight, tuple(valid), sizes)
