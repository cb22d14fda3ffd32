"""Selection with a cache, for processes that select often."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from strategy.op_strategy import candidates
from strategy.select.evidence import Database, Ranker
from strategy.select.rule import Policy, select
from strategy.select.selection import Selection
from strategy.target import Target
from strategy.workload import Workload


class RevisedDatabase(Database, Protocol):
    """A database with a revision, which changes when its answers may have."""

    @property
    def revision(self) -> int:
        """A number that changes whenever a record or a cost model has changed."""
        ...


class Selector:
    """`select` over one database, for the installed operators. Thread-safe.

    Args:
        size: the number of cached answers, of which the least recently used are dropped.
    """

    def __init__(
        self, database: RevisedDatabase, ranker: Ranker | None = None, size: int = 4096
    ) -> None:
        self._database = database
        self._ranker = ranker
        # The revision is part of the key, so that an answer computed while records arrive is not
        # used for the new revision.
        self._answer = lru_cache(maxsize=size)(self._select)
        self._candidates = lru_cache(maxsize=size)(candidates)

    def select(
        self,
        workload: Workload,
        target: Target,
        *,
        device: str | None = None,
        policy: Policy = "plevel",
    ) -> Selection:
        """Return the answer of `strategy.select.select`; raise as it does."""
        return self._answer(self._database.revision, workload, target, device, policy)

    def _select(
        self, revision: int, workload: Workload, target: Target, device: str | None, policy: Policy
    ) -> Selection:
        return select(
            workload,
            target,
            self._database,
            device=device,
            ranker=self._ranker,
            policy=policy,
            offered=self._candidates(workload, target),
        )
