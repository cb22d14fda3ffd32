"""A tuning database for the selection rule: a service, an SQL database, or a lock file.

    with plevel_database("http://farm:8765") as database:
        answer = strategy.select.select(workload, target, database)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from plevel.client import BUSY, Client, ServiceError, UnreachableError
from plevel.direct import open_store
from plevel.environment import read_namespace, read_token
from plevel.reading import load_lock
from service.address import url_of
from service.errors import DatabaseError
from service.store.namespace import DEFAULT
from strategy.select import Advised, Evidence, Failed, History, Measured, RevisedDatabase
from strategy.select.lock import LockDatabase, LockError
from strategy.target import Target
from strategy.workload import Workload

if TYPE_CHECKING:
    from service.store.db import Store

CACHED = 4096  # answers kept, the least recently used dropped first
REST_S = 30.0  # without a question, after one that nothing answered


class RestingError(UnreachableError):
    """Nothing answered at a place of records a short while ago, with this message, and it is not asked again yet."""


class Rest:
    """Back-off from places of records: once nothing answers at one, further questions to it fail at once for a while.

    A model has tens of them, each of which would wait as long as the first.
    """

    def __init__(self) -> None:
        self._away: dict[str, tuple[str, float]] = {}  # why, and until when

    def reset(self) -> None:
        self._away.clear()

    def is_for(self, why: str) -> bool:
        """Return whether a place is not asked now as it failed with this message."""
        return any(message == why and time.monotonic() < until for message, until in self._away.values())

    @contextmanager
    def asking(self, place: str) -> Iterator[None]:
        """Note a failure of the place meanwhile.

        Raises:
            RestingError: it failed a short while ago.
        """
        why, until = self._away.get(place, ("", 0.0))
        if time.monotonic() < until:
            raise RestingError(why)
        try:
            yield
        except (UnreachableError, ServiceError, DatabaseError) as error:
            if not isinstance(error, ServiceError) or error.status in BUSY:
                self._away[place] = str(error), time.monotonic() + REST_S
            raise


@contextmanager
def plevel_database(
    where: str | Path, *, namespace: str | None = None, rest: Rest | None = None
) -> Iterator[RevisedDatabase]:
    """The database at `where`, for `strategy.select.select`, `strategy.select.dispatch.dispatch` and a `Selector`.

    Answers are cached until the end of the `with`: open it again to see new records.

    Args:
        where: a service (`http://…`), a database (`postgresql://…`, `sqlite:///…`, or the path of an
            SQLite file), or the path of a lock file.
        namespace: the namespace of records; default: the environment's, else the token's, else `default`.
        rest: a back-off that this database shares with others, which are opened before or after it.

    Raises:
        LockError: the file is neither a database nor a lock.
        ServiceError, UnreachableError: the service or the database cannot be used, or the file does not exist.
    """
    text = str(where)
    rest = rest or Rest()
    with ExitStack() as stack:
        if text.startswith(("http://", "https://")):
            client = Client(text, token=read_token(), namespace=read_namespace(namespace))
            yield _Cached(stack.enter_context(client).evidence, text, rest)
        elif "://" not in text and is_lock(Path(text)):
            try:
                lock = load_lock(Path(text))
            except LockError as error:
                raise LockError(f"{text}: {error}") from error
            yield LockDatabase(lock)
        else:
            url = text if "://" in text else url_of(text)
            with rest.asking(text):
                store = stack.enter_context(open_store(url))
            if store is None:
                raise UnreachableError(f"{text}: no such file: name a service (http://…), a database or a lock file")
            yield _Cached(_reader(store, read_namespace(namespace) or DEFAULT), text, rest)


def is_lock(path: Path) -> bool:
    """Return whether a file is there that is no SQLite database."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(16) != b"SQLite format 3\0"


def _reader(store: Store, namespace: str) -> Callable[[Workload, Target, str | None], Evidence]:
    def read(workload: Workload, target: Target, device: str | None) -> Evidence:
        from service.selection.database import RecordDatabase

        with store.read() as connection:
            database = RecordDatabase(connection, namespace=namespace)
            return Evidence.read(database, workload, target, device)

    return read


class _Cached:
    """`strategy.select.Database` that caches the evidence of each workload, but not that nothing answered."""

    revision = 0  # answers are cached (`strategy.select.RevisedDatabase`)

    def __init__(self, ask: Callable[[Workload, Target, str | None], Evidence], place: str, rest: Rest) -> None:
        def asked(workload: Workload, target: Target, device: str | None) -> Evidence:
            with rest.asking(place):
                return ask(workload, target, device)

        self._ask = lru_cache(maxsize=CACHED)(asked)
        # Of the shapes of symbolic workloads, with which a service tells it.
        self._failed: dict[tuple[Workload, Target, str | None], Sequence[Failed]] = {}

    def measured(
        self, workload: Workload, target: Target, device: str | None
    ) -> Sequence[Measured]:
        return self._ask(workload, target, device).measured

    def failed(self, workload: Workload, target: Target, device: str | None) -> Sequence[Failed]:
        told = self._failed.get((workload, target, device))
        return self._ask(workload, target, device).failed if told is None else told

    def advised(self, workload: Workload, target: Target, device: str | None) -> Sequence[Advised]:
        return self._ask(workload, target, device).advised

    def instances(
        self, workload: Workload, target: Target, device: str | None
    ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
        found = self._ask(workload, target, device).instances
        told = {(one.workload, target, device): one.failed for one in found if one.failed is not None}
        self._failed.update(told)
        return [(instance.workload, instance.measured) for instance in found]

    def history(self, workload: Workload) -> Sequence[History]:
        return self._ask(workload, _ANY, None).history


_ANY = Target.parse({"kind": "llvm"})  # a history is of all targets
