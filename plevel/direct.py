"""Reading a database without a service: the same questions that a `Client` asks over HTTP."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plevel.client import Client, ServiceError
from strategy import select as rule
from strategy.dispatch import DispatchTable, dispatch
from strategy.op_strategy import Candidate
from strategy.record import ErrorKind, Phase, RunStatus, to_json
from strategy.select import Policy, Selection
from strategy.target import Target
from strategy.workload import Workload

if TYPE_CHECKING:
    from service.db import Store


@contextmanager
def connect(url: str | None, database: str | None) -> Generator[Client | Direct, None, None]:
    """The service at `url`, or the database itself.

    Raises:
        UnreachableError, ServiceError: neither can be used; the message says why, and the remedy.
    """
    if url is not None:
        with Client(url) as client:
            yield client
        return
    assert database is not None
    with _open(database) as store:
        yield Direct(store)


@contextmanager
def _open(database: str) -> Generator[Store | None, None, None]:
    """The database's store, None where there is no file yet: asking does not make one."""
    from plevel.embedded import require_service, sqlite_path

    path = sqlite_path(database)
    if path is not None and not path.exists():
        yield None
        return
    require_service()
    from service import migration
    from service.db import Store
    from service.errors import ServiceError as Failure

    try:
        migration.check(database)
        store = Store(database)
        try:
            yield store
        finally:
            store.close()
    except Failure as error:
        raise ServiceError(error.status, error.title, str(error)) from error


class Direct:
    """Answers from a database in this process. One thread uses it at a time."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    def select(
        self,
        workload: Workload,
        target: Target,
        *,
        device: str | None = None,
        candidates: Sequence[Candidate] | None = None,
        policy: Policy = "plevel",
    ) -> Selection:
        """Which implementation, with which configuration, and why.

        Raises:
            SelectionError: nothing is valid for the workload on the target.
        """
        if self._store is None:
            return rule.select(
                workload, target, _Nothing(), device=device, policy=policy, offered=candidates
            )
        from service.records import RecordDatabase

        with self._store.read() as connection:
            return rule.select(
                workload, target, RecordDatabase(connection), device=device, policy=policy,
                offered=candidates,
            )  # fmt: skip

    def dispatch(
        self, workload: Workload, target: Target, *, device: str | None = None
    ) -> DispatchTable:
        """The dispatch table of a workload with symbolic dimensions; raises as `select` does."""
        if self._store is None:
            return dispatch(workload, target, _Nothing(), device=device)
        from service.records import RecordDatabase

        with self._store.read() as connection:
            return dispatch(workload, target, RecordDatabase(connection), device=device)

    def runs(self, limit: int = 20) -> tuple[RunStatus, ...]:
        """The latest runs, the newest first."""
        if self._store is None:
            return ()
        from service import runs

        with self._store.read() as connection:
            return tuple(runs.recent(connection, limit, _alive_s()))

    def cancel(self, run_id: int) -> RunStatus:
        """Stops a run; what it measured is kept."""
        if self._store is None:
            raise ServiceError(404, "There is no such thing", f"there is no run {run_id}")
        from service import runs

        with self._store.write() as connection:
            runs.cancel(connection, run_id)
            return runs.status(connection, run_id, _alive_s())

    def records(
        self,
        *,
        run_id: int | None = None,
        task_id: int | None = None,
        phase: str | None = None,
        error: str | None = None,
        limit: int = 100,
        cursor: int = 0,
    ) -> dict[str, Any]:
        """One page of the log: `records`, and `next`, the cursor of the following page."""
        if self._store is None:
            return {"records": [], "next": None}
        from service import records

        with self._store.read() as connection:
            page = records.page(
                connection, run_id=run_id, task_id=task_id,
                phase=None if phase is None else Phase(phase),
                error=None if error is None else ErrorKind(error),
                limit=limit, cursor=cursor,
            )  # fmt: skip
        found: dict[str, Any] = to_json(page)
        return found

    def workers(self) -> list[dict[str, Any]]:
        """The workers that have registered and not left."""
        if self._store is None:
            return []
        from service import fleet

        with self._store.read() as connection:
            found: list[dict[str, Any]] = to_json(fleet.statuses(connection, _alive_s()))
        return found


def _alive_s() -> float:
    from service.settings import Settings

    return Settings().alive_s


class _Nothing:
    """A database without records."""

    def measured(
        self, workload: Workload, target: Target, device: str | None
    ) -> list[rule.Measured]:
        return []

    def instances(
        self, workload: Workload, target: Target, device: str | None
    ) -> list[tuple[Workload, list[rule.Measured]]]:
        return []

    def history(self, workload: Workload) -> list[rule.History]:
        return []
