"""The candidates of a selection: installed implementations, sent ones, or imported ones; and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import InvalidError
from service.selection.database import RecordDatabase
from strategy.attrs import AttrsError
from strategy.condition import ExpressionError
from strategy.op import OpError, TypeRelationError, all_ops, find_op
from strategy.op_strategy import Candidate, candidates
from strategy.select import Policy, Selection, SelectionError, select
from strategy.space import ConfigError, SpaceError
from strategy.suggestion import suggest
from strategy.target import Target, TargetError
from strategy.types import TypeSyntaxError
from strategy.workload import Workload, WorkloadError

# Errors of what is asked, whose messages can be shown as they are.
FAULTS = (
    AttrsError, ConfigError, ExpressionError, OpError, SelectionError, SpaceError, TargetError,
    TypeRelationError, TypeSyntaxError, WorkloadError,
)


def normal(asked: Workload) -> Workload:
    """The workload in normal form, checked if its operator is installed here."""
    return asked.unsigned() if find_op(asked.op) is None else asked.checked()


def choose(
    database: RecordDatabase,
    asked: Workload,
    on: Target,
    given: Sequence[Candidate] | None,
    *,
    device: str | None = None,
    policy: Policy = "plevel",
    foreign: bool = False,
    field: str = "workload",
) -> Selection:
    """The selection among the candidates of `gather`; the policy `tvm` adds those of other tools' logs, too."""
    known = gather(database, asked, on, given, foreign=foreign or policy == "tvm", field=field)
    return select(asked, on, database, device=device, ranker=database.ranker, policy=policy, offered=known)


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

    `foreign` adds implementations of other tools' logs.

    Raises:
        InvalidError: the operator is not installed here and has no candidates on record.
    """
    others = database.foreign(asked, on) if foreign else []
    if given is not None:
        known = list(given)
    elif find_op(asked.op) is not None:
        known = candidates(asked, on)
    elif others:
        return others
    elif foreign:
        raise InvalidError(
            f"{field}: operator {asked.op!r:.80} is not installed here, and no imported record of this workload is for "
            f"a target like {on.key}: 'plevel coverage --op {asked.op:.80}' lists those on record"
        )
    else:
        raise not_installed(asked, field)
    names = {c.implementation for c in known}
    return [*known, *(c for c in others if c.implementation not in names)]


def known_candidates(
    asked: Workload, on: Target, given: Sequence[Candidate] | None, field: str
) -> tuple[Workload, list[Candidate]]:
    """The workload in normal form, and its given or installed candidates.

    Raises:
        InvalidError: the operator is not installed here and no candidates are given.
    """
    wanted = normal(asked)
    if given is not None:
        return wanted, list(given)
    if find_op(asked.op) is None:
        raise not_installed(asked, field)
    return wanted, candidates(wanted, on)


def not_installed(asked: Workload, field: str) -> InvalidError:
    """The error for an operator that is not installed, without candidates."""
    return InvalidError(
        f"{field}.op: operator {asked.op!r:.80} is not installed here"
        f"{suggest(asked.op, all_ops()) or ': install it, or send its candidates with the workload'}"
    )
