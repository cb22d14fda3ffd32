"""Access to a database without a service, with the methods of a `Client`."""
# Over 300 lines: a method for each of the client's.

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from plevel.client import Client, ServiceError
from plevel.environment import read_namespace, read_token
from service.store.namespace import DEFAULT
from strategy import select as rule
from strategy.confirmation import Confirmation
from strategy.op_strategy import Candidate
from strategy.record import RunRequest, RunStatus, TaskStatus, to_json
from strategy.select import NO_RECORDS, Policy, Selection
from strategy.select.dispatch import DispatchTable, dispatch
from strategy.target import Target
from strategy.workload import Workload

T = TypeVar("T")
Row = dict[str, Any]
Rows = list[dict[str, Any]]

if TYPE_CHECKING:
    import sqlalchemy as sa

    from service.store.db import Store


@contextmanager
def connect(
    url: str | None, database: str | None, namespace: str | None = None
) -> Generator[Client | Direct, None, None]:
    """Connect to the service at `url`, or open the database, in the given or the environment's namespace.

    Raises:
        UnreachableError, ServiceError: it cannot be used; the message has the cause and the remedy.
    """
    namespace = read_namespace(namespace)
    if url is not None:
        with Client(url, token=read_token(), namespace=namespace) as client:
            yield client
        return
    assert database is not None
    with open_store(database) as store:
        yield Direct(store, namespace or DEFAULT)


@contextmanager
def open_store(database: str) -> Generator[Store | None, None, None]:
    """Open the database's store; None if the file does not exist, which is not created.

    An SQLite file that this user cannot write, or whose disk is full, is opened to read it.
    """
    from plevel.extra import require_service
    from service.address import path_of

    path = path_of(database)
    if path is not None and not path.exists():
        yield None
        return
    require_service()
    from service.store import migration
    from service.store.db import Store
    from service.store.foreign import is_full, may_write

    with _told():
        migration.check(database)
        reads = path is not None and (is_full(path) or not may_write(path))
        with closing(Store(database, read_only=reads)) as store:
            yield store


class Direct:
    """Access to a namespace of a database in this process, by the methods of a `Client`. Not thread-safe.

    What they do, give and raise is documented there; here, where it differs.
    A database that does not exist yet has no store, and no records: selection then needs no SQL.
    """

    def __init__(self, store: Store | None, namespace: str = DEFAULT) -> None:
        self._store = store
        self._namespace = namespace

    def select(
        self,
        workload: Workload,
        target: Target,
        *,
        device: str | None = None,
        candidates: Sequence[Candidate] | None = None,
        policy: Policy = "plevel",
        foreign: bool = False,
    ) -> Selection:
        """Select an implementation and a configuration, with the reason.

        Raises:
            SelectionError: no implementation is valid for the workload on the target.
        """
        if self._store is None:
            return rule.select(
                workload, target, NO_RECORDS, device=device, policy=policy, offered=candidates
            )
        from service.selection import candidate
        from service.selection.database import RecordDatabase

        with self._read() as connection:
            database = RecordDatabase(connection, namespace=self._namespace)
            asked = candidate.normal(workload)
            return candidate.choose(
                database, asked, target, candidates, device=device, policy=policy, foreign=foreign
            )

    def dispatch(
        self, workload: Workload, target: Target, *, device: str | None = None
    ) -> DispatchTable:
        if self._store is None:
            return dispatch(workload, target, NO_RECORDS, device=device)
        from service.selection.database import RecordDatabase

        with self._read() as connection:
            database = RecordDatabase(connection, namespace=self._namespace)
            return dispatch(workload, target, database, device=device)

    def runs(self, limit: int = 20, **wanted: Any) -> tuple[RunStatus, ...]:
        if self._store is None:
            return ()
        from service.tuning import run_status
        from service.tuning.run_filter import OfRun

        of = OfRun(namespace=self._namespace, **wanted)
        with self._read() as connection:
            return tuple(run_status.recent(connection, limit, _alive_s(), of))

    def request(self, run_id: int) -> RunRequest:
        """The request of a run."""
        self._require(f"run {run_id}")
        from service.tuning import run as runs

        with self._read() as connection:
            return runs.request_of(connection, run_id, self._namespace)

    def cancel(self, run_id: int) -> RunStatus:
        with self._change("run.cancel", run=run_id) as (connection, _):
            from service.tuning import run as runs
            from service.tuning import run_status

            runs.cancel(connection, run_id)
            return run_status.status(connection, run_id, _alive_s())

    def records(
        self, *, limit: int = 100, cursor: int = 0, newest: bool = False, **wanted: Any
    ) -> Row:
        if self._store is None:
            return {"records": [], "next": None}
        from service.records import log_page, settled
        from service.records.filter import Wanted

        which = Wanted(namespace=self._namespace, **wanted)
        with _told():
            last = None if newest else settled.find(self._store)
        ask = partial(log_page.page, wanted=which, limit=limit, cursor=cursor, newest=newest, last=last)
        return self._ask(Row, ask)

    def iter_best(self, *, scope: str | None = None, **wanted: Any) -> Iterator[Row]:
        if self._store is None:
            return
        from service.records import coverage

        yield from self._pages(partial(coverage.list_best, scope=scope), "best", wanted)

    def iter_foreign(self, tool: str, *, limit: int = 500, **wanted: Any) -> Iterator[Row]:
        if self._store is None:
            return
        from service.records import foreign

        cursor: int | None = None
        while True:
            with self._read() as connection:
                page = foreign.list_kernels(
                    connection, tool, self._namespace, limit=limit, cursor=cursor, **wanted
                )
            yield from to_json(page.kernels)
            if page.next is None:
                return
            cursor = page.next

    def iter_coverage(self, **wanted: Any) -> Iterator[Row]:
        if self._store is None:
            return
        from service.records import coverage

        yield from self._pages(coverage.cover, "tasks", wanted)

    def _pages(self, ask: Callable[..., Any], of: str, wanted: Mapping[str, Any]) -> Iterator[Row]:
        from service.records.filter import Tasks

        cursor: int | None = 0
        while cursor is not None:
            which = Tasks(namespace=self._namespace, limit=500, cursor=cursor, **wanted)
            with self._read() as connection:
                page = ask(connection, which)
            yield from to_json(getattr(page, of))
            cursor = page.next

    def task(self, task_id: int) -> TaskStatus:
        self._require(f"task {task_id}")
        from service.tuning import run_status

        with self._read() as connection:
            return run_status.task_status(connection, task_id)

    def curve(self, task_id: int, device_model: str | None = None) -> Rows:
        if self._store is None:
            return []
        from service.records import log_page

        return self._ask(Rows, log_page.curve, task_id, None, device_model)

    def import_records(
        self,
        parts: Iterable[bytes],
        *,
        name: str = "",
        target: str | None = None,
        device_model: str = "",
        put_aside: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Row:
        assert self._store is not None, "importing creates the database first"
        from service.formats import FormatError, Rejected, Source, read
        from service.formats.source import Pieces
        from service.records.importer import import_items

        def tell(found: Rejected) -> None:
            if put_aside is not None:
                text = found.text.decode(errors="replace")
                put_aside(
                    {"line": found.line, "reason": found.reason.value, "detail": found.detail,
                     "text": text}
                )

        on = None if target is None else Target.parse(target)
        try:
            stream = Pieces(partial(next, iter(parts), None))
            items = read(Source(stream, name), target=on, device_model=device_model)
        except FormatError as error:
            raise ServiceError(422, "The request is not valid", str(error)) from error
        return import_items(self._store, items, tell, namespace=self._namespace).to_json()

    def export_records(self, form: str, **wanted: Any) -> Iterator[bytes]:
        if self._store is None:
            return iter(())
        from service.records import exporter
        from service.records.filter import Wanted

        which = Wanted(namespace=self._namespace, **wanted)
        with _told():
            parts = exporter.export(self._store, cast("exporter.Writable", form), which)
            exporter.check_any(self._store, cast("exporter.Writable", form), which)
        return parts

    def record_network(self, confirmation: Confirmation) -> int:
        store = self._require("the database to record it in")
        from service.records import network

        with _told(), store.write() as connection:
            return network.put(connection, confirmation, self._namespace)

    def networks(self, limit: int = 20, **wanted: Any) -> Rows:
        if self._store is None:
            return []
        from service.records import network

        asked = partial(network.page, namespace=self._namespace, limit=limit, **wanted)
        return list(self._ask(Row, asked)["networks"])

    def network(self, network_id: int) -> Row:
        self._require(f"network {network_id}")
        from service.records import network

        return self._ask(Row, network.find, network_id, self._namespace)

    def models(self) -> Rows:
        if self._store is None:
            return []
        from service.predict import training

        return self._ask(Rows, training.find)

    def model(self, model_id: int) -> Row:
        self._require(f"model {model_id}")
        from service.predict import training

        return self._ask(Row, training.show, model_id)

    def train_model(
        self, op: str, target: Target, *, afresh: bool = False, progress: Callable[[str], None] = lambda text: None
    ) -> Row:
        """Train a cost model in a process of its own, and wait for it.

        Args:
            afresh: train from nothing, not from the newest model.
            progress: called with a line at each step.
        """
        store = self._require("a record of it")
        from service.predict import process

        with _told():
            return _json(process.train_apart(store, op, target.key, afresh=afresh, progress=progress))

    def train_on(
        self, client: Any, op: str, target: Target, *, afresh: bool, progress: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> Row:
        """Train a cost model on a Dask cluster.

        Args:
            client: connected to its scheduler.
            afresh: train from nothing, not from the newest model.
            progress: called with a line at each step.
            warn: called with what goes wrong and is mended.
        """
        store = self._require("a record of it")
        from service.predict import learner
        from service.predict.cluster import Cluster

        cluster = Cluster(client, warn)
        try:
            with _told():
                return _json(learner.train(store, op, target.key, afresh=afresh, progress=progress, cluster=cluster))
        finally:
            cluster.clear()

    def workers(self) -> Rows:
        if self._store is None:
            return []
        from service.queue import worker_status

        return self._ask(Rows, worker_status.statuses, _alive_s())

    def why(self, job_id: int) -> Row:
        self._require(f"job {job_id}")
        from service.queue import explain

        return self._ask(Row, explain.explain, job_id, _alive_s())

    def pauses(self) -> Rows:
        if self._store is None:
            return []
        from service.queue import pause

        return self._ask(Rows, pause.current)

    def pause(self, reason: str, **place: Any) -> Row:
        with self._change("pause") as (connection, detail):
            from service.queue import pause

            made = pause.create(connection, pause.PauseRequest(reason=reason, **place))
            detail |= {"pause": made.id, "device": made.device, "target": made.target}
        return _json(made)

    def resume(self, pause_id: int) -> None:
        with self._change("resume", pause=pause_id) as (connection, _):
            from service.queue import pause

            pause.end(connection, pause_id)

    def rename_device(self, old: str, new: str) -> None:
        with self._change("device.rename", old=old, new=new) as (connection, _):
            from service.queue import fleet

            fleet.rename(connection, old, new)

    def move_device(self, device: str, token: str) -> None:
        with self._change("device.move", device=device, token=token) as (connection, _):
            from service.queue import fleet

            fleet.move(connection, device, token)

    def create_token(
        self,
        name: str,
        scopes: Sequence[str],
        expires_in_s: float | None = None,
        namespace: str | None = None,
    ) -> Row:
        given = {"name": name, "scopes": scopes, "namespace": namespace}
        with self._change("token.create", **given) as (connection, detail):
            from service.access import token
            from service.store.tables import TokenScope

            allowed = [TokenScope(s) for s in scopes]
            made = token.create(connection, name, allowed, expires_in_s, namespace)
            detail["token"] = made.id
        return _json(made)

    def tokens(self) -> Rows:
        if self._store is None:
            return []
        from service.access import token

        return self._ask(Rows, token.list_all)

    def revoke_token(self, token_id: int) -> None:
        with self._change("token.revoke", token=token_id) as (connection, _):
            from service.access import token

            token.revoke(connection, token_id)

    def _ask(self, kind: type[T], question: Callable[..., object], *given: Any) -> T:
        """The JSON of what a question to the database finds."""
        with self._read() as connection:
            found: T = to_json(question(connection, *given))
        return found

    @contextmanager
    def _read(self) -> Generator[sa.Connection, None, None]:
        store = self._require()
        with _told(), store.read() as connection:
            yield connection

    @contextmanager
    def _change(
        self, action: str, **detail: Any
    ) -> Generator[tuple[sa.Connection, dict[str, Any]], None, None]:
        """A transaction that this user's `action` is noted in, with a `detail` that may be added to."""
        named = (f"{kind} {value}" for kind, value in detail.items() if kind in ("run", "pause", "device", "token"))
        store = self._require(next(named, "what this would change"))
        from service.access import audit

        with _told(), store.write() as connection:
            yield connection, detail
            audit.note(connection, audit.user(), action, **detail)

    def _require(self, what: str = "it") -> Store:
        if self._store is None:
            raise ServiceError(
                404, "Not found", f"{what} does not exist: the database does not exist yet"
            )
        return self._store


@contextmanager
def _told() -> Generator[None, None, None]:
    """Raise the service's errors as the client's `ServiceError`."""
    from service.errors import ServiceError as Failure

    try:
        yield
    except Failure as error:
        raise ServiceError(error.status, error.title, str(error)) from error


def _json(value: object) -> Row:
    found: Row = to_json(value)
    return found


def _alive_s() -> float:
    from pydantic import ValidationError

    from service.settings import Settings

    try:
        return Settings().alive_s
    except ValidationError as error:
        wrong = error.errors()[0]
        name = "_".join(map(str, wrong["loc"])).upper()
        raise ServiceError(422, "A setting is not valid", f"PLEVEL_{name}: {wrong['msg']}") from error
