"""Which implementations a selection is among: installed, sent with the question, or foreign."""

from __future__ import annotations

from collections.abc import Sequence

from service import runs
from service.records import RecordDatabase
from strategy.op import find_op
from strategy.op_strategy import Candidate
from strategy.target import Target
from strategy.workload import Workload


def gather(
    database: RecordDatabase,
    asked: Workload,
    on: Target,
    given: Sequence[Candidate] | None,
    *,
    foreign: bool,
    field: str,
) -> tuple[Workload, list[Candidate]]:
    """The workload in normal form, and its candidates.

    `foreign` adds those that are known by other tools' logs.

    Raises:
        InvalidError: the operator is not installed here and there are no candidates of it.
    """
    others = database.foreign(asked, on) if foreign else []
    if given is None and others and find_op(asked.op) is None:
        return asked, others
    workload, known = runs.known_candidates(asked, on, given, field)
    names = {c.implementation for c in known}
    return workload, [*known, *(c for c in others if c.implementation not in names)]
