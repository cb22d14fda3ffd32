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
    offered: dict[str, None] = {}  # of all workloads
    for i, asked in enumerate(request.workloads):
        field = f"workloads[{i}]"
        planned.append(_plan_one(asked, request, field, offered))
    for name in request.implementations or ():
        if name not in offered:
            raise InvalidError(
                f"implementations: no workload has {name!r:.80} on {request.target}{suggest(name, offered)}; "
                f"they have: {', '.join(offered)}"
            )
    keys = [p.workload.key for p in planned]
    for i, key in enumerate(keys):
        if key in keys[:i]:
            raise InvalidError(f"workloads[{i}]: {key} is listed twice: list it once, with a weight")
    return planned


def _plan_one(
    asked: RunWorkload, request: RunRequest, field: str, offered: dict[str, None]
) -> Planned:
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
    offered |= dict.fromkeys(names)
    named = request.implementations or names
    if not set(named) & set(names):
        missed = " or ".join(f"{n!r:.80}" for n in named)
        near = suggest(named[0], names) if len(named) == 1 else ""
        raise InvalidError(
            f"implementations: {wanted.op} has no {missed} on {request.target}{near}; "
            f"it has: {', '.join(names)}"
        )
    valid = [c for c in known if holds(c, wanted) and c.implementation in named]
    if not valid:
        raise InvalidError(
            f"{field}: no implementation of {wanted.op} is valid for {wanted} on {request.target}"
        )
    # Counted outside of the transaction, as it takes long.
    sizes = tuple(None if c.space is None else c.space.count(catalogue.COUNT_LIMIT) for c in valid)
    return Planned(wanted, asked.weight, tuple(valid), sizes)
