"""Namespaces: projects on one database that do not see each other, and tokens of one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from plevel import plevel_database
from plevel.client import ServiceError
from plevel.direct import connect
from service.access import audit, token
from service.errors import ForbiddenError, InvalidError
from service.formats import Attachment, ImportedRecord, Task, metaschedule, native
from service.records import exporter
from service.records.coverage import cover, list_best
from service.records.filter import Tasks, Wanted
from service.records.importer import import_items
from service.records.log_page import page
from service.selection.database import RecordDatabase
from service.store import catalogue
from service.store.db import Store
from service.store.namespace import DEFAULT, check, within
from service.store.tables import TokenScope, record, task, timing_policy
from service.tuning import plan as planning
from service.tuning import run as runs
from service.tuning import run_status, sources
from service.tuning.run_filter import OfRun
from strategy.op_strategy import Candidate
from strategy.record import RunStatus, decode, encode, to_json
from strategy.select import Reason
from strategy.space import ConfigSpace, Knob
from strategy.workload import Input, Workload
from tests.integration.scene import FAST, TARGET, WORKLOAD, Scene, configs, device, request, timed
from tests.integration.test_auth import _enqueue, bearer, routes
from tests.integration.test_import import made
from tests.limit import HANG_S
from tests.serve import serve

pytestmark = pytest.mark.in_turn("url")

ROWS = [made(i, (1.0 + i,)) for i in range(4)]
MADE = Candidate(FAST.implementation, "1.0", 5)  # what `made` measures
SYMBOLIC = Workload("filter", (Input("data", "float32[m,64]"),))
OTHER = "vision.2"
# Routes that a token of a namespace may ask, written down once more: a new route must be added here, and
# tell namespaces apart, or be refused.
SEEN = {
    ("GET", "/v1/runs"), ("POST", "/v1/runs"), ("GET", "/v1/runs/1"), ("GET", "/v1/runs/1/events"),
    ("POST", "/v1/runs/1/cancel"), ("POST", "/v1/select"), ("POST", "/v1/select:batch"),
    ("POST", "/v1/dispatch"), ("POST", "/v1/evidence"), ("GET", "/v1/records"),
    ("GET", "/v1/records:export"), ("POST", "/v1/records:import"), ("GET", "/v1/records/best"),
    ("GET", "/v1/tasks/1"), ("GET", "/v1/tasks/1/curve"), ("GET", "/v1/coverage"),
    ("GET", "/v1/jobs/1/why"), ("GET", "/v1/foreign/1/best"), ("GET", "/v1/foreign/1/list"),
    ("GET", "/v1/foreign/1/problems"), ("POST", "/v1/foreign/1/best:batch"),
    ("GET", "/v1/networks"), ("POST", "/v1/networks"), ("GET", "/v1/networks/1"),
    # These have nothing of any namespace.
    ("GET", "/v1/workers"), ("GET", "/v1/pauses"), ("GET", "/openapi.json"), ("GET", "/docs"),
    ("GET", "/docs/oauth2-redirect"), ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/static/1"),
}


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "ä", "a" * 65, "a\n"])
def test_what_is_no_namespace_is_refused(name: str) -> None:
    with pytest.raises(InvalidError, match="namespace"):
        check(name)
    assert check(f"{'a' * 60}.b-_") == "a" * 60 + ".b-_"


def test_the_same_log_is_read_into_several(store: Store) -> None:
    assert import_items(store, ROWS).new == 4
    for _ in range(2):
        summary = import_items(store, ROWS[:3], namespace=OTHER)
    assert (summary.new, summary.known) == (0, 3)
    with store.read() as c:
        assert len(page(c, Wanted(namespace=OTHER)).records) == 3
        assert len(page(c, Wanted(namespace=DEFAULT)).records) == 4
        assert len(page(c, Wanted()).records) == 7
        assert c.scalar(sa.select(sa.func.count(task.c.id))) == 2
        mine, other = cover(c, Tasks()).tasks, cover(c, Tasks(namespace=OTHER)).tasks
        assert [(t.trials, t.stale) for t in (*mine, *other)] == [(4, False), (3, False)]
        assert {b.task_id for b in list_best(c, Tasks(namespace=OTHER)).best} == {other[0].task_id}
    lines = b"".join(native.write(exporter.export_items(store, Wanted(namespace=OTHER))))
    assert lines.count(b"\n") == 1 + 3
    # In the default one a record is what it was before there were namespaces.
    with store.read() as c:
        known = set(c.scalars(sa.select(record.c.identity)))
    assert known == {r.identity for r in ROWS} | {within(OTHER, r.identity) for r in ROWS[:3]}
    with pytest.raises(InvalidError, match="namespace"):
        import_items(store, ROWS, namespace="No")


def test_a_selection_rests_on_its_own_records(store: Store) -> None:
    import_items(store, [made(3, (3.0,))])
    import_items(store, [made(2, (2.0,))], namespace=OTHER)
    with store.write() as c:
        clock = c.scalar(sa.select(sa.func.max(record.c.recorded_at)))
    for as_of in (None, clock):
        with store.read() as c:
            found = {
                name: (
                    [m.estimate.median_s for m in database.measured(WORKLOAD, TARGET, None)],
                    [h.mean_s for h in database.history(WORKLOAD)],
                )
                for name in (DEFAULT, OTHER, "nobody")
                for database in [RecordDatabase(c, as_of=as_of, namespace=name)]
            }
        assert found == {DEFAULT: ([3.0], [3.0]), OTHER: ([2.0], [2.0]), "nobody": ([], [])}
    with store.read() as c:
        assert RecordDatabase(c).ranker is not None
        assert RecordDatabase(c, namespace=OTHER).ranker is None


def test_equal_requests_are_runs_of_their_own(store: Store) -> None:
    def create(**where: str) -> int:
        asked = request()
        with store.write() as c:
            return runs.create(c, asked, planning.plan(asked), **where)

    first, other = create(), create(namespace=OTHER)
    assert (create(), create(namespace=OTHER)) == (first, other)
    assert first != other
    with store.read() as c:
        mine, theirs = (
            {t.task_id for t in run_status.status(c, i, 60.0).tasks} for i in (first, other)
        )
        assert mine.isdisjoint(theirs)
        assert [r.id for r in run_status.recent(c, 10, 60.0)] == [first]
        assert [r.id for r in run_status.recent(c, 10, 60.0, OfRun(namespace=OTHER))] == [other]
        assert runs.newest(c, WORKLOAD, TARGET, OTHER) == other
        assert runs.newest(c, WORKLOAD, TARGET, "nobody") is None


def test_what_a_worker_measures_goes_where_its_run_is(store: Store) -> None:
    """And another project's search starts from nothing of it."""
    scene = Scene.make(store, namespace=OTHER)
    worker_id = scene.register()
    scene.enqueue(configs(10))
    held = scene.leased(worker_id)
    scene.report(held, [timed(e) for e in held.job.entries])
    before = {r.identity for r in scene.records()}
    lines = list(exporter.export_items(store, Wanted(namespace=OTHER)))
    assert import_items(store, lines, namespace=OTHER).new == 0
    newer = msgspec.structs.replace(FAST, version="2.0")
    with store.write() as c:
        places = [
            catalogue.put_task(c, scene.workload_id, scene.target_id, newer, None, name)
            for name in (OTHER, DEFAULT)
        ]
        known = device().model
        found = [
            (len(sources.find_sources(c, i, sa.false(), known)), len(sources.find_champions(c, i, known)))
            for i in places
        ]
    assert found == [(1, 1), (0, 0)]
    assert {r.identity for r in scene.records()} == before


def test_a_token_of_a_namespace_allows_no_more_than_that(store: Store) -> None:
    with store.write() as c:
        for scope in (TokenScope.WORKER, TokenScope.ADMIN):
            with pytest.raises(InvalidError, match="read and submit"):
                token.create(c, "t", [TokenScope.READ, scope], namespace=OTHER)
        with pytest.raises(InvalidError, match="up to 64"):
            token.create(c, "t", [TokenScope.READ], namespace="No")


@pytest.fixture
def http(store: Store, url: str) -> Iterator[httpx.Client]:
    with serve(url) as place, httpx.Client(base_url=place, timeout=HANG_S) as client:
        yield client


class Asker:
    """Requests with one token."""

    def __init__(self, http: httpx.Client, store: Store, namespace: str | None) -> None:
        with store.write() as c:
            scopes = [TokenScope.READ, TokenScope.SUBMIT]
            made = token.create(c, f"of {namespace}", scopes, namespace=namespace)
        self._http, self._headers = http, bearer(made.secret)

    def __call__(self, method: str, path: str, body: Any = None, **params: Any) -> httpx.Response:
        content = body if body is None or isinstance(body, bytes) else encode(body)
        return self._http.request(
            method, path, content=content, params=params, headers=self._headers
        )


def test_a_token_sees_and_writes_only_its_namespace(store: Store, http: httpx.Client) -> None:
    mine, other, every = (Asker(http, store, name) for name in ("mine", OTHER, None))
    lines = b"".join(native.write(ROWS))
    ours: list[ImportedRecord] = [*ROWS, made(9, (0.5,))]
    assert mine("POST", "/v1/records:import", lines).json()["new"] == 4
    assert other("POST", "/v1/records:import", b"".join(native.write(ours))).json()["new"] == 5
    assert every("POST", "/v1/records:import", lines, namespace="third").json()["new"] == 4

    def counts(ask: Asker, **params: str) -> list[int]:
        exported = ask("GET", "/v1/records:export", **params)
        return [
            len(ask("GET", "/v1/records", **params).json()["records"]),
            0 if exported.status_code == 404 else exported.content.count(b"\n") - 1,
            ask("GET", "/v1/records", format="csv", **params).content.count(b"\n") - 1,
            sum(t["trials"] for t in ask("GET", "/v1/coverage", **params).json()["tasks"]),
            len(ask("GET", "/v1/records/best", scope="target", **params).json()["best"]),
        ]

    assert counts(mine) == counts(mine, namespace="mine") == [4, 4, 4, 4, 1]
    assert counts(other) == [5, 5, 5, 5, 1]
    assert counts(every) == [0, 0, 0, 0, 0]
    assert counts(every, namespace=OTHER) == [5, 5, 5, 5, 1]

    question = {"workload": WORKLOAD, "target": TARGET, "candidates": (MADE,)}
    for ask, median_s in ((mine, 1.0), (other, 0.5)):
        found = ask("POST", "/v1/select", question).json()
        assert found["rivals"][0]["estimate"]["median_s"] == median_s
        batch = ask("POST", "/v1/select:batch", {"requests": [question]}).json()["answers"]
        assert batch[0]["selection"] == found
        known = ask("POST", "/v1/evidence", {"workload": WORKLOAD, "target": TARGET}).json()
        assert {m["estimate"]["median_s"] for m in known["measured"]} == {median_s}
        table = ask("POST", "/v1/dispatch", question | {"workload": SYMBOLIC}).json()
        shapes = [s["median_s"] for row in table["rows"] for s in row["shapes"]]
        assert shapes == [{FAST.implementation: median_s}]
    assert every("POST", "/v1/select", question).json()["reason"] == "plevel"

    missed = question | {"workload": {**to_json(WORKLOAD), "op": "unfiltered"}, "tune_on_miss": True}
    where = mine("POST", "/v1/select", missed).headers["location"]
    assert other("POST", "/v1/select", missed).headers["location"] != where
    run_id = decode(mine("POST", "/v1/runs", request()).content, RunStatus).id
    _enqueue(store, run_id)
    task_id = mine("GET", "/v1/coverage").json()["tasks"][0]["task_id"]
    for path in (f"/v1/runs/{run_id}", f"/v1/tasks/{task_id}", f"/v1/tasks/{task_id}/curve",
                 "/v1/jobs/1/why"):
        assert [ask("GET", path).status_code for ask in (mine, every, other)] == [200, 200, 404]
    assert other("GET", f"/v1/runs/{run_id}/events").status_code == 404
    assert other("POST", f"/v1/runs/{run_id}/cancel").status_code == 404
    listed = [[r["id"] for r in ask("GET", "/v1/runs").json()["runs"]] for ask in (mine, other)]
    assert run_id in listed[0]
    assert set(listed[0]).isdisjoint(listed[1])
    assert mine("GET", f"/v1/runs/{run_id}").json()["state"] == "running"
    assert mine("POST", f"/v1/runs/{run_id}/cancel").json()["state"] == "cancelled"


def test_a_token_of_a_namespace_is_refused_the_rest(store: Store, http: httpx.Client) -> None:
    mine = Asker(http, store, "mine")
    for method, path in routes():
        answer = mine(method, path)
        refused = answer.status_code == ForbiddenError.status
        assert refused is (("GET" if method == "HEAD" else method, path) not in SEEN), (method, path)
        if not refused and path.startswith("/v1/"):
            # Those of one run, task or job are told apart by it; 1 of `foreign` is a tool, and networks check both.
            named = "/1" in path and not path.startswith(("/v1/foreign/", "/v1/networks/"))
            namespaced = path not in ("/v1/workers", "/v1/pauses") and not named
            status = mine(method, path, b"{}" if method == "POST" else None, namespace=OTHER).status_code
            assert (status == ForbiddenError.status) is namespaced, (method, path, status)
    assert mine("GET", "/v1/records", namespace="A b").status_code == 422


def test_a_database_is_asked_without_a_service(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(None, url, OTHER) as there:
        assert there.import_records([b"".join(native.write(ROWS))])["new"] == 4
    Scene.make(store, namespace=OTHER)
    for namespace in (OTHER, "default"):
        monkeypatch.setenv("PLEVEL_NAMESPACE", namespace)
        known = namespace == OTHER
        with connect(None, url) as there:
            assert len(there.records()["records"]) == 4 * known
            if known:
                assert b"".join(there.export_records("native")).count(b"\n") == 5
            else:
                with pytest.raises(ServiceError, match="no record matches"):
                    there.export_records("native")
            assert len(there.runs()) == known
            assert len(list(there.iter_best(scope="target"))) == known
            found = there.select(WORKLOAD, TARGET, candidates=[MADE])
            assert found.reason == (Reason.MEASURED if known else Reason.PLEVEL)
        with plevel_database(url) as database:
            assert len(database.measured(WORKLOAD, TARGET, None)) == known
        with plevel_database(url, namespace=OTHER) as database:
            assert len(database.measured(WORKLOAD, TARGET, None)) == 1
    with pytest.raises(ServiceError, match="up to 64"), connect(None, url, "No such") as there:
        there.import_records([b"".join(native.write(ROWS))])


def test_what_is_changed_without_a_service_is_in_the_audit_log(url: str, store: Store) -> None:
    run_id = Scene.make(store).run_id
    with connect(None, url) as there:
        assert there.cancel(run_id).state == "cancelled"
        made = there.create_token("lab", ["read"])
        there.revoke_token(made["id"])
        with pytest.raises(ServiceError, match="pause 7"):
            there.resume(7)
    with store.read() as c:
        done = [(e.action, e.detail, e.actor.partition(" ")[0]) for e in reversed(audit.page(c, 10))]
    assert done == [
        ("run.cancel", {"run": run_id}, "user"),
        ("token.create", {"name": "lab", "scopes": ["read"], "namespace": None, "token": made["id"]}, "user"),
        ("token.revoke", {"token": made["id"]}, "user"),
    ]


def test_times_of_cold_caches_have_a_namespace_of_their_own(store: Store) -> None:
    warm = request()
    cold = msgspec.structs.replace(
        warm,
        search_policy=msgspec.structs.replace(warm.search_policy, cache_flush=True),
        confirm_policy=msgspec.structs.replace(warm.confirm_policy, cache_flush=True),
    )
    half = msgspec.structs.replace(cold, confirm_policy=warm.confirm_policy)
    planned = planning.plan(warm)
    with store.write() as c:
        with pytest.raises(InvalidError, match="search_policy.cache_flush"):
            runs.create(c, cold, planned)
        with pytest.raises(InvalidError, match="confirm_policy.cache_flush"):
            runs.create(c, half, planned, OTHER)
        run_id = runs.create(c, cold, planned, OTHER)
        assert runs.create(c, cold, planned, OTHER) == run_id
        assert runs.create(c, warm, planned, OTHER) != run_id


def test_a_policy_is_known_by_what_older_records_name(store: Store) -> None:
    policy = request().search_policy
    body = {k: v for k, v in to_json(policy).items() if k not in {"cache_flush", "beaten_ratio"}}
    cold = msgspec.structs.replace(policy, cache_flush=True)
    with store.write() as c:
        known = catalogue.put_policy(c, policy)
        digest = c.scalar(sa.select(timing_policy.c.digest).where(timing_policy.c.id == known))
        assert digest == catalogue.digest_of(body)
        assert catalogue.put_policy(c, cold) != known == catalogue.find_policy(c, policy)


def test_attachments_are_of_one_namespace(store: Store) -> None:
    """Two projects that call different modules and spaces by one key get each its own back."""

    def lines(text: str, upper: int) -> list[Any]:
        space = ConfigSpace([Knob("x", range(12)), Knob("y", range(12))], fallback={"x": upper, "y": 0})
        shared = metaschedule.attach("17", text)
        of = Workload("metaschedule.module", (), {"structural_hash": "17", "module": shared.key})
        module = ImportedRecord(
            source="metaschedule", config_key="{}", samples_s=(1.0,), extra=b'[[[],[]],[1.0],{"kind":"llvm"},[]]',
            task=Task(workload=of, target=TARGET, implementation="metaschedule:trace", version="1.0"),
        )
        return [
            shared, module,
            Attachment(what="space", key=space.digest, text=json.dumps(space.to_json())),
            made(1, space=space.digest),
        ]

    own = {DEFAULT: lines("bWluZQ==", 1), OTHER: lines("dGhlaXJz", 2)}
    for name, items in own.items():
        import_items(store, items, namespace=name)
    for name, items in own.items():
        found = list(exporter.export_items(store, Wanted(namespace=name)))
        texts = {(a.what, a.text) for a in found if isinstance(a, Attachment) and a.what == "module"}
        assert texts == {("module", items[0].text)}
        (space,) = (a for a in found if isinstance(a, Attachment) and a.what == "space")
        assert json.loads(space.text) == json.loads(items[2].text)
    # One that names a module which it did not bring gets nobody's.
    import_items(store, own[DEFAULT][1:2], namespace="third")
    found = list(exporter.export_items(store, Wanted(namespace="third")))
    assert [type(f) for f in found] == [ImportedRecord]
