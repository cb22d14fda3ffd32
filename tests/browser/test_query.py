"""Agreement of the pages with the store and the rule, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from service.dashboard import run as run_page
from service.dashboard.listing import order
from service.dashboard.query import device as device_query
from service.dashboard.query import model as model_query
from service.dashboard.query import op as op_query
from service.dashboard.query import overview as overview_query
from service.dashboard.query import record as record_query
from service.dashboard.query import run as run_query
from service.dashboard.query import run_list
from service.dashboard.query import task as task_query
from service.dashboard.start import _read_trials
from service.dashboard.view import op_url
from service.predict import learner
from service.records import log_page
from service.records.log import REFERENCE
from service.records.ranking import of_one_model
from service.selection.database import RecordDatabase
from service.store import backup, catalogue, migration
from service.store.db import Store
from service.store.sql import now
from service.store.tables import best, cost_model, job, record, run_task, target, task, workload
from service.tuning import run as runs
from service.tuning.tally import tally
from strategy.record import Phase, RunWorkload, convert
from strategy.select import select
from strategy.target import Target
from strategy.workload import Workload
from tests.browser import seed
from tests.browser.visitor import Site
from tests.limit import HANG_S
from tests.serve import serve


@pytest.fixture(scope="module", params=[pytest.param("sqlite", marks=pytest.mark.full), "postgresql"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Store, str, dict[str, int]]]:
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{tmp_path_factory.mktemp('filled') / 'plevel.db'}"
        if request.param == "postgresql":
            url = stack.enter_context(request.getfixturevalue("new_postgres")())
        migration.upgrade(url)
        store = Store(url)
        ids = seed.fill(store, trials=6)
        yield store, url, ids
        store.close()


def test_the_pages_agree_with_the_store(filled: tuple[Store, str, dict[str, int]], full: bool) -> None:
    store, url, ids = filled
    with store.write() as c:
        # Of one shape all intervals overlap: the highest plevel wins, whatever is the fastest.
        noisy = sa.select(task.c.id).where(
            task.c.workload_id
            == sa.select(sa.func.min(workload.c.id) + 1).where(workload.c.op == "dense").scalar_subquery()
        )
        c.execute(
            sa.update(best).where(best.c.task_id.in_(noisy))
            .values(low_s=best.c.median_s / 9, high_s=best.c.median_s * 9)
        )
    with store.read() as c:
        _check_winners(c)
        _check_curve(c, ids["task"])
        _check_points(c, ids["task"])
        _check_filters(c, ids)
        _check_progress(c, ids)
        _check_drift(c, ids["device"])
        _check_models(c, ids["model"])
    paths = [
        "/", "/faster", "/runs?state=live&op=dense", f"/runs/{ids['done']}", f"/runs/{ids['live']}",
        f"/runs/{ids['done']}/curve.json", f"/tasks/{ids['task']}", f"/tasks/{ids['hostile_task']}",
        *(f"/tasks/{ids['task']}/curve.json?by={by}" for by in get_args(task_query.By)),
        f"/tasks/{ids['task']}/points.json",
        f"/tasks/{ids['task']}/spread", f"/tasks/{ids['task']}/failures", "/ops", "/ops/dense", op_url(seed.HOSTILE_OP),
        "/select", "/devices", "/records?error=any&op=dense", f"/records/{ids['failed_record']}",
        f"/devices/{ids['device']}", "/import", "/models",
        *(f"/models/{m}" for m in range(ids["model"] - 2, ids["model"] + 2)),
        *(f"{path}?since=2020-01-01&until=2100-12-31&sort={sign}{name}"
          for path, of in (("/runs", run_list), ("/records", record_query), ("/devices", device_query),
                           ("/tasks", task_query))
          for n, name in enumerate(of.SORTS) for sign in (("", "-") if full else "-"[n % 2 :])),
    ]
    with serve(url) as site:
        for path in paths:
            response = httpx.get(site + path, headers={"accept": "text/html"}, timeout=HANG_S)
            assert response.status_code == 200, (path, response.text[-500:])


def _check_models(c: sa.Connection, newest: int) -> None:
    """One for each operator and target, the newest; all versions beside each."""
    assert [(m.op, m.version) for m in model_query.page(c, 0)] == [(seed.HOSTILE_OP, 1), ("dense", 3)]
    assert model_query.page(c, 2) == []
    assert [m.op for m in model_query.page(c, 0, "ENS", "znver4")] == ["dense"]
    assert [m.op for m in model_query.page(c, 0, seed.HOSTILE_OP, seed.TARGET.key)] == [seed.HOSTILE_OP]
    assert model_query.page(c, 0, "d_nse") == model_query.page(c, 0, "", "znver3") == []
    for answers, op in ((True, seed.HOSTILE_OP), (False, "dense")):
        assert [m.op for m in model_query.page(c, 0, answers=answers)] == [op]
    row = model_query.head(c, newest - 1)
    assert row.version == 2
    assert [v.id for v in model_query.versions(c, row)] == [newest, newest - 1, newest - 2]


def _check_winners(c: sa.Connection) -> None:
    """The heat map's winner is what selection takes, at every shape."""
    target_id = op_query.targets(c, "dense")[0].id
    models = [m.model for m in op_query.models(c, "dense", target_id)]
    judged = op_query.judge(c, target_id, models[0], op_query.newest_shapes(c, "dense", target_id))
    shapes = c.execute(sa.select(workload.c.id, workload.c.body).where(workload.c.op == "dense")).all()
    target = Target.parse({**seed.TARGET.to_json(), "model": models[0]})
    differ = 0
    for s in shapes:
        asked = convert(s.body, Workload)
        answer = select(asked, target, RecordDatabase(c))
        own = judged[s.id]
        # A task of a version that the code has left behind is on the page, and not selected.
        if any(r.version == "0.00000000" for r in own.values()):
            continue
        (winner,) = [name for name, r in own.items() if r.wins]
        (static,) = [name for name, r in own.items() if r.by_plevel]
        assert winner == answer.implementation, asked
        differ += winner != static and own[static].ratio is not None  # what has no time costs nothing known
    assert 0 < differ < len(shapes)
    cost = op_query.plevel_cost(judged)
    assert cost["wrong"] >= differ
    listed = op_query.find_mistakes(c, judged)
    assert [m.cost for m in listed] == sorted((m.cost for m in listed), reverse=True)


def _check_curve(c: sa.Connection, task_id: int) -> None:
    (curve,) = task_query.curves(c, task_query.head(c, task_id), "all")
    wanted = [(p.trial, p.median_s) for p in log_page.curve(c, task_id)]
    assert [(trial, median_s) for trial, _, median_s in curve.points] == wanted


def _check_points(c: sa.Connection, task_id: int) -> None:
    lowest = c.scalar(
        sa.select(sa.func.min(record.c.median_s))
        .where(record.c.task_id == task_id, record.c.phase == Phase.SEARCH.value)
    )
    row = task_query.head(c, task_id)
    points = task_query.points(c, row)
    assert min(p.median_s for p in points) == lowest
    spread = task_query.spread(c, row)
    failed = sum(f.n for f in task_query.failures(c, task_id))
    assert len(points) == spread["timed"] == task_query.counts(c, task_id).trials - failed
    assert [n for _, n in spread["within"]] == sorted(n for _, n in spread["within"])


def _check_filters(c: sa.Connection, ids: dict[str, int]) -> None:
    wanted = record_query.Filter(op=seed.HOSTILE_OP, error="any")
    page = record_query.page(c, wanted, None)
    expected = c.scalars(
        sa.select(record.c.id)
        .where(record.c.run_id == ids["hostile"], record.c.error.is_not(None))
        .order_by(record.c.id.desc())
    ).all()
    assert expected
    assert [r.id for r in page.rows] == expected[: record_query.PAGE]
    assert page.further is None


def _check_progress(c: sa.Connection, ids: dict[str, int]) -> None:
    """Trials are counted as the run counts them: with `force` its own, else those of every run."""
    found = {}
    told = tally(c, ids["live"])
    for force in (True, False):
        asked = msgspec.structs.replace(
            run_query.request_of(run_query.head(c, ids["live"])), force=force
        )
        policy_id = catalogue.find_policy(c, asked.search_policy)
        tunable = sa.select(task.c.id).join(run_task, run_task.c.task_id == task.c.id).where(
            run_task.c.run_id == ids["live"], task.c.space.is_not(None)
        )
        wanted = c.scalar(
            sa.select(sa.func.count()).select_from(record)
            .where(runs.trials_of(ids["live"], asked.force, policy_id), record.c.task_id.in_(tunable))
        )
        progress = run_query.progress(c, ids["live"], asked, told)
        found[force] = progress["trials"]
        assert found[force] == wanted
        assert progress["own"] == found[True]
    assert 0 < found[True] < found[False]


def _check_drift(c: sa.Connection, device_id: int) -> None:
    drift = device_query.drift(c, device_id)
    assert drift is not None
    assert 4e-5 <= drift.median_s <= 4.1e-5
    assert drift.low >= 0.97
    assert 1.26 < drift.high < 1.32
    assert [at for at, _ in drift.points] == sorted(at for at, _ in drift.points)
    assert max(ratio for _, ratio in drift.points) == drift.high


@pytest.mark.parametrize(
    ("own", "left", "left_s"),
    [(20, 60, 180.0), (2, 98, 2940.0), (1, 99, None), (0, 0, None), (5, 0, 0.0)],
)
def test_time_left_goes_by_the_pace_of_the_run_s_own_trials(own: int, left: int, left_s: float | None) -> None:
    assert run_page.time_left_s(60.0, own, left) == left_s


class _Undo(Exception):
    """Rolls a transaction back."""


def test_calibration_kernels_are_no_trials_and_the_newest_are_of_this_minute(
    filled: tuple[Store, str, dict[str, int]],
) -> None:
    store = filled[0]
    own = record.c.job_id.is_not(None)
    with contextlib.suppress(_Undo), store.write() as c:
        c.execute(sa.update(record).where(own).values(recorded_at=now() - 35.0))
        every, busy_s = c.execute(sa.select(sa.func.count(), sa.func.sum(record.c.run_s)).where(own)).one()
        trials, failed = c.execute(
            sa.select(sa.func.count(), sa.func.count(record.c.error))
            .where(own, record.c.phase != Phase.REFERENCE.value)
        ).one()
        assert 0 < failed < trials < every
        pulse = overview_query.pulse(c)
        assert (pulse.trials_hour, pulse.per_minute[-1], pulse.failed_hour) == (trials, trials, failed)
        devices = device_query.page(c, HANG_S)
        assert (sum(d.trials for d in devices), sum(d.failed for d in devices)) == (trials, failed)
        assert sum(d.busy_s for d in devices) == pytest.approx(busy_s)
        c.execute(sa.update(record).where(own).values(recorded_at=now() - 400 * 86_400.0))
        assert overview_query.pulse(c).trials_hour == 0  # more milliseconds than an integer of 32 bits holds
        raise _Undo


@pytest.mark.full
def test_a_list_that_is_cut_says_so(
    seeded: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "plevel.db"
    with contextlib.closing(Store(seeded.database)) as store:
        backup.backup(store, copy)
    url = f"sqlite:///{copy}"
    of_live = job.c.run_id == seeded.ids["live"]
    with contextlib.closing(Store(url)) as store:
        seed.Farm(store).ask([RunWorkload(workload=seed.dense(64, 128, 96))], 40)
        with store.write() as c:
            values = {"key": "llvm/other", "keys": [], "body": {}}
            other = c.scalar(sa.insert(target).values(values).returning(target.c.id))
            c.execute(sa.update(job).where(of_live).values(state="queued"))
            first = sa.select(sa.func.min(job.c.id)).where(of_live).scalar_subquery()
            c.execute(sa.update(job).where(job.c.id == first).values(target_id=other))
            live = overview_query.count_live(c)
    told = {
        "/": ["all live runs</a>", "targets have the most jobs"], "/devices": ["These are the newest 1;"],
        "/ops": ['rel="next"'], "/ops/dense": ["implementations that win most"],
    }
    with serve(url) as site:
        shown = {path: httpx.get(site + path, timeout=HANG_S).text for path in told}
        assert not [text for path, texts in told.items() for text in texts if text in shown[path]]
        for module, name in (
            (overview_query, "RUNNING"), (overview_query, "QUEUE"), (device_query, "QUARANTINED"),
            (op_query, "OPS"), (op_query, "MAX_IMPLEMENTATIONS"),
        ):
            monkeypatch.setattr(module, name, 1)
        shown = {path: httpx.get(site + path, timeout=HANG_S).text for path in told}
        assert [text for path, texts in told.items() for text in texts if text not in shown[path]] == []
        assert f"<dt>Running</dt><dd><b>{live}</b>" in shown["/"]
        assert f"And {live - 1} more" in shown["/"]
        operators = re.findall(r'<th scope="row"><a class="mono" href="([^"]*)"', shown["/ops"])
        second = httpx.get(f"{site}/ops?page=2", timeout=HANG_S).text
        assert len({*operators, *re.findall(r'<th scope="row"><a class="mono" href="([^"]*)"', second)}) == 2


def test_a_filter_without_an_index_looks_at_so_many_and_goes_on(
    filled: tuple[Store, str, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled[0]
    monkeypatch.setattr(record_query, "SCAN", 40)
    wanted = record_query.Filter(error="any")
    seen, before, pages = [], None, 0
    with store.read() as c:
        while pages < 100:
            page = record_query.page(c, wanted, before)
            seen += [r.id for r in page.rows]
            pages += 1
            if page.further is None:
                break
            before = page.further
        every = c.scalars(
            sa.select(record.c.id).where(record.c.error.is_not(None)).order_by(record.c.id.desc())
        ).all()
    assert seen == every
    assert pages > 5


def test_what_was_never_measured_is_predicted_on_the_page_too(seeded: Site, tmp_path: Path) -> None:
    copy = tmp_path / "plevel.db"
    with contextlib.closing(Store(seeded.database)) as store:
        backup.backup(store, copy)
    url = f"sqlite:///{copy}"
    with contextlib.closing(Store(url)) as store:
        model = learner.train(store, "dense", seed.TARGET.key)
        with store.write() as c:  # the formula of the seed is not what is tested
            c.execute(sa.update(cost_model).where(cost_model.c.id == model.id).values(accuracy=0.99))
    asked = {"workload": seed.dense(200, 640, 320).key, "target": seed.TARGET.key}
    with serve(url) as site:
        page = httpx.get(f"{site}/select", params=asked, timeout=HANG_S).text
        shown = httpx.get(f"{site}/models/{model.id}").text
    assert '<span class="badge">predicted</span>' in page
    assert "dots" in shown
    assert "Importance of features" in shown


@pytest.mark.parametrize("sort", task_query.SORTS)
def test_tasks_are_listed_in_any_order(
    filled: tuple[Store, str, dict[str, int]], sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of any size have all tasks once, with their fastest model's best; those without one come last."""
    store, _, _ = filled
    with store.read() as c:
        shown = sa.select(best.c.task_id, best.c.median_s, best.c.updated_at, best.c.scope_value).where(of_one_model())
        fastest: dict[int, tuple[float, str, float]] = {}
        for row in c.execute(shown):
            found = (row.median_s, row.scope_value, row.updated_at)
            fastest[row.task_id] = min(found, fastest.get(row.task_id, found))
        known = c.execute(sa.select(task.c.id, workload.c.op).join(workload)).all()
        wanted = {row.id for row in known if row.op != REFERENCE.op}
        for direction in ("", "-"):
            monkeypatch.setattr(task_query, "PAGE", 10_000)
            whole = task_query.page(c, sort=direction + sort)
            assert {row.id for row in whole} == wanted
            assert [(row.median_s, row.model, row.updated_at) for row in whole] == [
                fastest.get(row.id, (None, None, None)) for row in whole
            ]
            column = {"task": "id", "median": "median_s", "updated": "updated_at"}.get(sort, sort)
            keys = [getattr(row, column) for row in whole]
            there = [k for k in keys if k is not None]
            assert keys == there + [None] * (len(keys) - len(there))
            if sort in ("task", "median", "updated"):  # of texts the collation decides
                assert there == sorted(there, reverse=bool(direction))
            monkeypatch.setattr(task_query, "PAGE", 3)
            pages = [task_query.page(c, sort=direction + sort, offset=n)[:3] for n in range(0, len(whole) + 4, 3)]
            assert [row.id for page in pages for row in page] == [row.id for row in whole]


def test_an_operators_page_sums_up_its_newest_shapes(
    filled: tuple[Store, str, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, _ = filled
    with store.read() as c:
        target_id = op_query.targets(c, "dense")[0].id
        every = c.scalars(
            sa.select(task.c.workload_id).distinct().join(workload)
            .where(workload.c.op == "dense", task.c.target_id == target_id)
        ).all()
        assert sorted(op_query.newest_shapes(c, "dense", target_id)) == sorted(every)
        monkeypatch.setattr(op_query, "JUDGED", 2)
        assert list(op_query.newest_shapes(c, "dense", target_id)) == sorted(every, reverse=True)[:2]


def test_targets_and_namespaces_are_kept_apart(filled: tuple[Store, str, dict[str, int]]) -> None:
    store = filled[0]
    with contextlib.suppress(_Undo), store.write() as c:
        timed = c.execute(
            sa.select(task, best.c.scope_value).join(best, best.c.task_id == task.c.id)
            .where(best.c.scope == "model", task.c.namespace == "default").limit(1)
        ).one()
        op = c.scalars(sa.select(workload.c.op).where(workload.c.id == timed.workload_id)).one()
        before = task_query.head(c, timed.id)
        siblings = task_query.siblings(c, before)
        shapes = op_query.newest_shapes(c, op, timed.target_id)
        cells = op_query.judge(c, timed.target_id, before.model, shapes)
        values = {"key": "llvm/apart", "keys": [], "body": {}}
        elsewhere = c.scalar(sa.insert(target).values(values).returning(target.c.id))
        columns = [n for n in task.c.keys() if n != "id"]  # noqa: SIM118
        for change in ({"target_id": elsewhere}, {"namespace": "apart"}):
            copy = {n: getattr(timed, n) for n in columns} | change
            new = c.scalar(sa.insert(task).values(copy).returning(task.c.id))
            of = c.execute(sa.select(best).where(best.c.task_id == timed.id)).mappings().all()
            for row in of:
                model = "A model of its own" if "target_id" in change else row["scope_value"]
                changed = {"task_id": new, "median_s": 1e-9, "scope_value": model}
                c.execute(sa.insert(best).values({**{k: v for k, v in row.items() if k != "id"}, **changed}))
        after = task_query.head(c, timed.id)
        assert (after.model, after.median_s) == (before.model, before.median_s)
        assert task_query.siblings(c, after) == siblings
        assert op_query.judge(c, timed.target_id, before.model, shapes) == cells
        raise _Undo


def test_a_runs_failures_are_by_kind_and_implementation(filled: tuple[Store, str, dict[str, int]]) -> None:
    store = filled[0]
    with store.read() as c:
        for run_id in c.scalars(sa.select(run_task.c.run_id).distinct()).all():
            told = tally(c, run_id)
            failures = run_query.failures(c, [t for one in told for t in [one] * 3])
            assert len({(f["error"], f["implementation"]) for f in failures}) == len(failures)
            assert sum(f["n"] for f in failures) == 3 * sum(t.standing for t in told if t.error is not None)


def test_a_message_is_found_in_either_case(filled: tuple[Store, str, dict[str, int]]) -> None:
    with filled[0].read() as c:
        message = c.scalar(sa.select(record.c.message).where(record.c.message.regexp_match("[a-z]")).limit(1))
        assert message is not None
        word = next(w for w in message.split() if w.isalpha())
        found = [record_query.page(c, record_query.Filter(message=w)).rows for w in (word.lower(), word.upper())]
    assert [r.id for r in found[0]] == [r.id for r in found[1]] != []


def test_a_list_in_the_order_of_its_ids_is_read_by_their_index() -> None:
    assert str(order("-record", {"record": record.c.id})) == "record.id DESC"
    assert str(order("-at", {"at": record.c.recorded_at})) == "record.recorded_at DESC NULLS LAST"


@pytest.mark.parametrize("text", ["0" * 19 + "199999999999", "1" * 5000, "0", "²"])
def test_a_budget_out_of_bounds_is_a_fault_of_its_field(text: str) -> None:
    faults: dict[str, str] = {}
    _read_trials(text, faults)
    assert faults["trials"].startswith("trials: ")
