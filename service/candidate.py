"""Which implementations a selection is among: installed, sent with the question, or foreign."""

from __future__ import annotations

from collections.abc import Sequence

from service import runs
from service.evidence import RecordDatabase
from strategy.op import find_op
from strategy.op_strategy import Candidate, candidates
from strategy.target import Target
from strategy.workload import Workload


def normal(asked: Workload) -> Workload:
    """The workload in normal form, where its operator is installed here."""
    return asked if find_op(asked.op) is None else asked.checked()


def gather(
    database: RecordDatabase,
    asked: Workload,
    on: Target,
    given: Sequence[Candidate] | None,
    *,
    foreign: bool,
    field: str,
) -> list[Candidate]:
    """The candidates of a workload in normal form.

    `foreign` adds those that are known by other tools' logs.

    Raises:
        InvalidError: the operator is not installed here and there are no candidates of it.
    """
    others = database.foreign(asked, on) if foreign else []
    if given is not None:
        known = list(given)
    elif find_op(asked.op) is not None:
        known = candidates(asked, on)
    elif others:
        return others
    else:
        raise runs.not_installed(asked, field)
    names = {c.implementation for c in known}
    return [*known, *(c for c in others if c.implementation not in names)]
