"""Filters by words of workloads and targets, on both databases: records, tasks, operators, runs, and their requests."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from service.dashboard.query import op as op_page
from service.dashboard.query import record as record_page
from service.dashboard.query import run_list
from service.dashboard.query import task as task_page
from service.errors import InvalidError
from service.formats import ImportedRecord, Task
from service.records import exporter, log_page, retention
from service.records.coverage import cover, list_best
from service.records.filter import MAX_WORDS, OfTask, Tasks, Wanted, has_words
from service.records.importer import import_items
from service.store.db import Store
from service.store.tables import workload as workload_table
from service.tuning import run_status
from service.tuning.run_filter import OfRun
from strategy.record import ErrorKind
from strategy.target import Target
from strategy.workload import Workload
from strategy.workload_text import parse_workload
from tests.integration.process import Service, Start
from tests.integration.scene import Scene, drawn
from tests.integration.test_import import made

SHAPES = [
    parse_workload(text) for text in (
        "dense(data=float32[1,768],weight=float32[768,768]:const)",
        "dense(data=float16[1,768],weight=float16[768,768]:const)",
        "dense(data=float16[64,768],weight=float16[768,768]:const)",
        "softmax(data=float16[64,768])",
        "soft_max%(data=float16[64,100])",
    )
]
# The key of the first is the beginning of the second's.
TARGETS = [Target.parse(f"llvm -mcpu=znver4 -num-cores={n}") for n in (2, 24)]


def on(workload: Workload, target: Target, **values: Any) -> ImportedRecord:
    of = Task(workload=workload, target=target, implementation=f"{workload.op}_a.cpu", version="1.0")
    return made(1, task=of, **values)


@pytest.fixture
def filled(store: Store) -> Store:
    """Each workload on each target, and the last one on the second target as failures alone."""
    rows = [on(w, t) for w in SHAPES for t in TARGETS if (w, t) != (SHAPES[-1], TARGETS[1])]
    failed = on(SHAPES[-1], TARGETS[1], samples=(), error=ErrorKind.COMPILE, message="no")
    import_items(store, [*rows, failed])
    return store


# The words, and the places of the workloads that have them all.
WORDS = [
    ("", {0, 1, 2, 3, 4}), ("FLOAT16", {1, 2, 3, 4}), ("float16 64,768", {2, 3}), ("64,768  dense", {2}),
    (f" {SHAPES[0].key} ", {0}), ("dense(data=float32[1, 768], weight=float32[768, 768]", {0}), ("t_m", {4}),
    ("%", {4}), ("x%", {4}), ("float_2", set()), ("\\", set()), ("dense softmax", set()),
]


@pytest.mark.parametrize(("text", "expected"), WORDS)
def test_every_list_has_the_workloads_that_have_all_words(filled: Store, text: str, expected: set[int]) -> None:
    keys = {SHAPES[i].key for i in expected}
    with filled.read() as c:
        which = OfTask(workload_has=text)
        assert {t.key for t in task_page.page(c, which)} == keys
        assert {o.op for o in op_page.ops(c, which)} == {SHAPES[i].op for i in expected}
        assert sum(o.workloads for o in op_page.ops(c, which)) == len(expected)
        assert {r.key for r in record_page.page(c, record_page.Filter(workload_has=text)).rows} == keys
        assert {r.workload for r in log_page.page(c, Wanted(workload_has=text)).records} == keys
        assert {t.workload for t in cover(c, Tasks(workload_has=text)).tasks} == keys
        assert {b.workload for b in list_best(c, Tasks(workload_has=text)).best} == keys
        for target in op_page.targets(c, "dense"):
            shapes = op_page.shapes(c, "dense", target.id, 0, text)
            assert {s.key for s in shapes} == {key for key in keys if key.startswith("dense(")}
            assert set(op_page.newest_shapes(c, "dense", target.id, text)) == {s.id for s in shapes}
    lines = b"".join(exporter.export(filled, "native", Wanted(workload_has=text)))
    assert lines.count(b'"kind":"record"') == 2 * len(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", {0, 1}), ("znver4", {0, 1}), ("LLVM threads", {0, 1}), (TARGETS[0].key, {0}), (f"{TARGETS[1].key} ", {1}),
     ("threads=24", {1}), ("znver3", set()), ("_", set())],
)
def test_a_target_is_named_by_its_key_or_by_words_of_it(filled: Store, text: str, expected: set[int]) -> None:
    keys = {TARGETS[i].key for i in expected}
    with filled.read() as c:
        assert {t.target for t in task_page.page(c, OfTask(target_has=text))} == keys
        assert {t.target for t in task_page.page(c, OfTask(target_has=text), sort="target")} == keys
        assert {o.targets for o in op_page.ops(c, OfTask(target_has=text))} == ({len(keys)} if keys else set())
        rows = record_page.page(c, record_page.Filter(target_has=text)).rows
        assert len(rows) == len(SHAPES) * len(keys)


def test_tasks_by_their_status_in_any_order(filled: Store) -> None:
    """Pages have what was timed, what only failed, and what was never tried or whose records were purged."""
    untried = set(Scene.make(filled, drawn()).tasks.values())
    with filled.read() as c:
        every = {t.id: (t.key, t.target) for t in task_page.page(c)}
        for sort in task_page.SORTS:
            found = {s: {t.id for t in task_page.page(c, status=s, sort=sort)} for s in task_page.STATUSES}
            assert {every[i] for i in found["failed"]} == {(SHAPES[-1].key, TARGETS[1].key)}
            assert found["untried"] == untried
            assert found["timed"] == every.keys() - found["failed"] - untried
        for status, found_all in ((None, every), *((s, found[s]) for s in task_page.STATUSES)):
            assert task_page.count(c, OfTask(), status=status) == len(found_all)
        failing = OfTask(workload_has="soft_max%", target_has="threads=24")
        assert [t.id for t in task_page.page(c, failing, status="failed")] == list(found["failed"])
    with filled.write() as c:
        retention.purge_doubtful(c, retention.Doubtful(source="plevel"), "wrong")
    with filled.read() as c:
        assert {t.id for t in task_page.page(c, status="untried")} == every.keys()


def test_too_many_words_are_refused() -> None:
    column = workload_table.c.key
    assert len(has_words(column, " ".join(map(str, range(MAX_WORDS))) + " 1 2")) == MAX_WORDS
    with pytest.raises(InvalidError, match=f"at most {MAX_WORDS}"):
        has_words(column, " ".join(map(str, range(MAX_WORDS + 1))))


def test_runs_by_state_workload_and_namespace_page_by_page(store: Store) -> None:
    ids = [Scene.make(store, drawn(seed=n)).run_id for n in range(4)]
    other = Scene.make(store, drawn(), "vision").run_id
    with store.write() as c:
        c.execute(sa.text("UPDATE run SET state = 'done' WHERE id = :id"), {"id": ids[1]})
    with store.read() as c:
        def find(cursor: int | None = None, limit: int = 10, **values: Any) -> list[int]:
            return list(run_status.find_ids(c, OfRun(namespace="default", **values), limit, cursor))

        assert find() == ids[::-1]
        assert find(state="done") == [ids[1]]
        assert find(state="live") == find(state="running") == [ids[3], ids[2], ids[0]]
        assert find(workload_has="64,64 filter") == find(op="filter") == ids[::-1]
        assert find(workload_has="65") == find(target="llvm/none") == []
        assert find(cursor=ids[2], limit=1) == [ids[1]]
        with pytest.raises(InvalidError, match="did you mean filter"):
            find(op="filtr")
        shown = [r.id for r in run_list.page(c, OfRun(workload_has="FILTER float32"))]
        assert shown == [other, *ids[::-1]]
        assert [r.id for r in run_status.recent(c, 2, 60.0, OfRun(namespace="default", state="live"))] == find()[:2]


def test_an_empty_list_loads_no_operators_where_no_name_is_given(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.records.known.installed", lambda: pytest.fail("all operators are loaded"))
    with store.read() as c:
        assert run_status.recent(c, 20, 60.0) == []
        assert cover(c, Tasks(workload_has="dense")).tasks == ()


@pytest.mark.in_turn("url")
def test_the_same_by_requests(url: str, start: Start) -> None:
    store = Store(url)
    import_items(store, [on(w, TARGETS[0]) for w in SHAPES])
    ids = [Scene.make(store, drawn(seed=n)).run_id for n in range(3)]
    store.close()
    service: Service = start(url)

    def ask(path: str, **params: Any) -> Any:
        answer = service.http.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    for path, of in (("/v1/coverage", "tasks"), ("/v1/records/best", "best"), ("/v1/records", "records")):
        found = {r["workload"] for r in ask(path, workload_has="float16 768")[of]}
        assert found == {w.key for w in SHAPES[1:4]}, path
    exported = service.http.get("/v1/records:export", params={"workload_has": "float16 768"}).text
    assert exported.count('"kind":"record"') == 3
    first = ask("/v1/runs", limit=2, workload_has="filter")
    second = ask("/v1/runs", limit=2, workload_has="filter", cursor=first["next"])
    assert [r["id"] for r in (*first["runs"], *second["runs"])] == ids[::-1]
    assert second["next"] is None
    assert ask("/v1/runs", state="live", op="filter", limit=1)["runs"][0]["id"] == ids[-1]
    assert ask("/v1/runs", state="failed") == {"runs": [], "next": None}
    many = " ".join(map(str, range(60)))
    for path in ("/v1/runs", "/v1/coverage", "/v1/records"):
        assert service.http.get(path, params={"workload_has": many}).status_code == 422
