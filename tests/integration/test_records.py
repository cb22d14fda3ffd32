"""The log and what derives from it, on both databases: the best, the levels of selection, the pages."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from service.dashboard.query import run as run_page
from service.dashboard.query import task as task_page
from service.dashboard.query.overview import faster
from service.dashboard.query.run import leaders
from service.errors import NotFoundError
from service.formats import ImportedRecord, Task
from service.queue import fleet
from service.queue import job as jobs
from service.queue import report as reporting
from service.records import best as deriving
from service.records import exporter, log_page, ranking, retention
from service.records.coverage import cover
from service.records.filter import Tasks, Wanted
from service.records.importer import import_items
from service.selection.database import RecordDatabase
from service.store.db import Store
from service.store.sql import now
from service.store.tables import best, environment, job, record, run_task, task
from service.store.tables import device as device_table
from service.tuning import plan as planning
from service.tuning import run as runs
from service.tuning import run_status
from service.tuning.tally import tally
from strategy.record import (
    REFUTING,
    SEARCH_POLICY,
    ErrorKind,
    Phase,
    Reference,
    Report,
    Result,
    Results,
)
from strategy.select import History, Level, Measured, Reason, select
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Input, Workload
from tests.integration.derived import assert_derived
from tests.integration.scene import (
    CANDIDATES,
    FAST,
    LIBRARY,
    OTHER_TARGET,
    SLOW,
    SPACE,
    TARGET,
    TERMS,
    WORKLOAD,
    Scene,
    configs,
    device,
    failed,
    request,
    timed,
)
from tests.integration.test_import import made

pytestmark = pytest.mark.in_turn("url")

DEVICES = {"a": "Model A", "b": "Model A", "c": "Model C"}
_numbers = itertools.count()


@pytest.fixture
def scene(store: Store) -> Scene:
    return Scene.make(store)


def measure(
    scene: Scene,
    task: str,
    results: dict[Config, tuple[float, ...] | ErrorKind],
    phase: Phase = Phase.SEARCH,
    place: str = "a",
    target: Target = TARGET,
    model: str | None = None,
) -> None:
    """Run one job of these configurations on a device, with these samples or failures."""
    identity = f"{place}/cpu:0"
    worker_id = scene.register(device(identity, target, model or DEVICES.get(place, place)))
    job_id = scene.enqueue(list(results), task, phase)
    with scene.store.write() as c:  # long ago: a final waits for no other device
        c.execute(sa.update(job).where(job.c.id == job_id).values(available_at=0.0))
    held = scene.leased(worker_id, identity)
    outcomes = []
    for entry, outcome in zip(held.job.entries, results.values(), strict=True):
        if isinstance(outcome, ErrorKind):
            outcomes.append(failed(entry.index, outcome))
        else:
            outcomes.append(Result(entry=entry.index, samples_s=outcome))
    scene.report(held, outcomes)


SAMPLES = st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0]), min_size=1, max_size=3).map(tuple)
FAILURES = st.sampled_from([ErrorKind.COMPILE, *REFUTING])
JOB = st.tuples(
    st.sampled_from([Phase.SEARCH, Phase.SEARCH, Phase.CONFIRM]),
    st.sampled_from(sorted(DEVICES)),
    st.dictionaries(
        st.sampled_from(configs(4)), st.one_of(SAMPLES, SAMPLES, FAILURES), min_size=1, max_size=4
    ),
)


# The best becomes worse while the last of its equals comes in: the one between them is the best now.
_one, _two, _three = sorted(configs(3), key=lambda c: c.digest)
EQUALS = [
    (Phase.SEARCH, "a", {_one: (3.0,), _two: (3.0,)}),
    (Phase.SEARCH, "a", {_one: (4.0,), _three: (3.0,)}),
]


@pytest.mark.full
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(JOB, min_size=1, max_size=5))
@example(EQUALS)
def test_best_is_what_all_records_say(store: Store, jobs: list[Any]) -> None:
    workload = Workload(f"op{next(_numbers)}", (Input("data", "float32[4]"),))
    scene = Scene.make(store, request(workload))
    for phase, place, results in jobs:
        measure(scene, FAST.implementation, results, phase, place)
        assert_derived(store)


STATES = st.sampled_from(["Model A", "Model B", "Model C"])
CHANGE = st.one_of(
    st.tuples(st.just("measured"), st.sampled_from("ab"), STATES, JOB.map(lambda j: j[::2])),
    st.tuples(st.just("imported"), st.sampled_from("ab"), STATES, st.integers(1, 3)),
    st.tuples(st.just("renamed"), st.sampled_from([("a", "b"), ("b", "c")])),
    st.tuples(st.just("purged"), st.sampled_from("ab")),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(CHANGE, min_size=2, max_size=6))
@example([  # an honest change of name, and what was measured under the old one is no longer of use
    ("measured", "a", "Model A", (Phase.SEARCH, {_one: (1.0,)})),
    ("measured", "a", "Model B", (Phase.SEARCH, {_two: (2.0,)})),
])
def test_best_is_what_all_records_say_whatever_becomes_of_devices(
    store: Store, changes: list[Any]
) -> None:
    number = next(_numbers)
    workload = Workload(f"op{number}", (Input("data", "float32[4]"),))
    scene = Scene.make(store, request(workload))
    imported = Task(
        workload=workload, target=TARGET, implementation=FAST.implementation, version=FAST.version,
        space=SPACE.digest,
    )
    for change in changes:
        match change:
            case "measured", place, model, (phase, results):
                measure(scene, FAST.implementation, results, phase, f"{number}{place}", model=model)
            case "imported", place, model, median_s:
                described = device(f"{number}{place}/cpu:0", model=model)
                item = made(median_s, (float(median_s),), task=imported, device=described)
                import_items(store, [item])
            case "renamed", (old, new):
                with contextlib.suppress(NotFoundError), store.write() as c:
                    fleet.rename(c, f"{number}{old}/cpu:0", f"{number}{new}/cpu:0")
            case "purged", place:
                with store.write() as c:
                    which = retention.Doubtful(device=f"{number}{place}/cpu:0")
                    retention.purge_doubtful(c, which, "hot")
        assert_derived(store)


def test_a_device_that_has_changed_begins_a_new_history(scene: Scene) -> None:
    """The old one is kept, as that of what it was; as it was before it goes on with that."""
    one, two = configs(2)
    measure(scene, FAST.implementation, {one: (1.0,)}, place="a", model="Model A")
    measure(scene, FAST.implementation, {two: (2.0,)}, place="a", model="Model B")
    assert {m.level: m.config for m in measured(scene, "a/cpu:0")} == {
        Level.DEVICE: two, Level.MODEL: two, Level.TARGET: one,
    }
    of_a = Target.parse({**TARGET.to_json(), "model": "Model A"})
    assert {m.level: m.config for m in measured(scene, None, of_a)}[Level.MODEL] == one
    scene.register(device("a/cpu:0", model="Model A"))
    assert {m.level: m.config for m in measured(scene, "a/cpu:0")} == {
        Level.DEVICE: one, Level.MODEL: one, Level.TARGET: two,  # of the other model
    }
    assert len({r.device_id for r in scene.records()}) == 2
    with scene.store.read() as c:
        assert len(log_page.page(c, Wanted(device="a/cpu:0")).records) == 2, "the log has both"


def test_failures_have_no_cost_and_are_never_the_best(scene: Scene) -> None:
    one, two = configs(2)
    measure(scene, FAST.implementation, {one: ErrorKind.RUNTIME, two: ErrorKind.OOM})
    assert [(r.median_s, r.mean_s, r.samples_s) for r in scene.records()] == [(None, None, [])] * 2
    with scene.store.read() as c:
        assert c.execute(sa.select(best)).all() == []
    with pytest.raises(sa.exc.IntegrityError), scene.store.write() as c:
        c.execute(sa.update(record).values(median_s=1e9))


@pytest.mark.parametrize("kind", [ErrorKind.WRONG_ANSWER, ErrorKind.OUT_OF_BOUNDS])
def test_code_that_must_not_run_unseats_the_best(scene: Scene, kind: ErrorKind) -> None:
    one, two = configs(2)
    measure(scene, FAST.implementation, {one: (1.0,), two: (2.0,)})
    measure(scene, FAST.implementation, {one: kind}, Phase.CONFIRM)
    found = measured(scene, "a/cpu:0")
    assert {m.config for m in found} == {two}


def measured(
    scene: Scene, identity: str | None = None, target: Target = TARGET, workload: Workload = WORKLOAD
) -> list[Measured]:
    with scene.store.read() as c:
        return RecordDatabase(c).measured(workload, target, identity)


@pytest.fixture
def two_models(store: Store) -> tuple[int, dict[str, int]]:
    """A run, and its tasks: the slow implementation was timed on a fast model too."""
    times = {
        (FAST, "Model A"): 2.0, (SLOW, "Model A"): 3.0, (LIBRARY, "Model A"): 4.0, (SLOW, "Model B"): 1.0,
    }
    rows = [
        ImportedRecord(
            source="test", config_key="{}", samples_s=(s,) * 6, device_model=model,
            task=Task(workload=WORKLOAD, target=TARGET, implementation=of.implementation, version=of.version),
        )
        for (of, model), s in times.items()
    ]
    import_items(store, rows)
    with store.write() as c:
        run_id = runs.create(c, request(), planning.plan(request()))
        ids = {r.implementation: r.id for r in c.execute(sa.select(task).order_by(task.c.id.desc()))}
        c.execute(sa.delete(run_task).where(run_task.c.run_id == run_id))
        c.execute(
            sa.insert(run_task),
            [{"run_id": run_id, "task_id": i, "weight": 1.0, "state": "active"} for i in ids.values()],
        )
    return run_id, ids


def test_runs_and_coverage_rank_within_one_device_model(
    store: Store, two_models: tuple[int, dict[str, int]]
) -> None:
    """The slow implementation is not the faster because a fast model timed it too."""
    run_id, ids = two_models
    with store.read() as c:
        told: list[list[Any]] = [
            list(run_status.status(c, run_id, 60.0).tasks), list(cover(c, Tasks()).tasks),
            [run_status.task_status(c, i) for i in ids.values()],
        ]
        of_page = leaders(c, run_id, next(iter(c.scalars(sa.select(task.c.workload_id)))))
    assert [(r.implementation, r.model, r.ratio) for r in of_page] == [
        (FAST.implementation, "Model A", 1.0), (SLOW.implementation, "Model A", 1.5),
        (LIBRARY.implementation, "Model A", 2.0), (SLOW.implementation, "Model B", 1.0),
    ]
    for tasks in told:
        measured = [t for t in tasks if t.models]
        assert {(t.implementation, t.device_model, t.best and t.best.median_s) for t in measured} == {
            (FAST.implementation, "Model A", 2.0), (SLOW.implementation, "Model A", 3.0),
            (LIBRARY.implementation, "Model A", 4.0),
        }
        (slow,) = (t for t in measured if t.implementation == SLOW.implementation)
        assert [(m.device_model, m.best.median_s) for m in slow.models] == [
            ("Model A", 3.0), ("Model B", 1.0),
        ]


def test_the_pages_of_a_run_and_a_task_show_one_device_model(
    store: Store, two_models: tuple[int, dict[str, int]]
) -> None:
    run_id, ids = two_models
    slow = ids[SLOW.implementation]
    with store.write() as c:
        of = c.execute(sa.select(task).where(task.c.id == slow)).one()
        entries = [jobs.NewEntry(slow, config) for config in configs(1)]
        job_id = jobs.enqueue(
            c, run_id, of.workload_id, of.target_id, Phase.SEARCH, entries, SEARCH_POLICY, seed=1
        )
        own = {"run_id": run_id, "job_id": job_id, "entry": record.c.id}
        c.execute(sa.update(record).values(phase=Phase.SEARCH.value, **own))
        model = run_page.device_model(c, run_id)
        (found,) = run_page.workloads(c, run_id, 0, model)
        head = task_page.head(c, slow)
        assert (model, found.median_s, head.model, head.median_s) == ("Model A", 2.0, "Model A", 3.0)
        timed_on_it = [s.median_s for s in task_page.siblings(c, head) if s.median_s is not None]
        assert timed_on_it == [2.0, 3.0, 4.0]
        assert task_page.spread(c, head)["low_s"] == 3.0
        assert [p.median_s for p in task_page.points(c, head)] == [3.0]
        for by in ("all", "run", "version"):
            assert [p[2] for curve in task_page.curves(c, head, by) for p in curve.points] == [3.0]
        assert sorted(p[2] for x in task_page.curves(c, head, "device") for p in x.points) == [1.0, 3.0]
        curves = run_page.curves(c, run_id, found.id)
        assert {x.name: [p[2] for p in x.points] for x in curves}[SLOW.implementation] == [3.0]
        portions = run_page.portions(c, run_id, tally(c, run_id), "Model B")
        assert portions[found.id].of_time == 1.0
        assert run_page.workloads(c, run_id, 0, "Model B")[0].median_s == 1.0


def test_an_earlier_time_of_another_device_model_is_no_slower_past(
    store: Store, two_models: tuple[int, dict[str, int]]
) -> None:
    with store.write() as c:
        of_fast = sa.select(device_table.c.id).where(device_table.c.model == "Model B")
        old = record.c.device_id.not_in(of_fast)
        c.execute(sa.update(record).where(old).values(recorded_at=record.c.recorded_at - 8 * 86_400.0))
        assert faster(c) == []  # 3 s on Model A a week ago, 1 s on Model B now
        c.execute(sa.update(best).where(best.c.scope_value == "Model A").values(median_s=best.c.median_s / 2))
        assert {(f.implementation, f.model, f.before_s / f.median_s) for f in faster(c)} == {
            (of.implementation, "Model A", 2.0) for of in (FAST, SLOW, LIBRARY)
        }


def test_levels_from_the_device_to_another_target(scene: Scene) -> None:
    one, two, three = configs(3)
    measure(scene, FAST.implementation, {one: (3.0,)}, place="a")
    measure(scene, FAST.implementation, {two: (2.0,)}, place="b")
    measure(scene, FAST.implementation, {three: (1.0,)}, place="c")
    by_level = {m.level: m for m in measured(scene, "a/cpu:0")}
    assert {level: m.config for level, m in by_level.items()} == {
        Level.DEVICE: one, Level.MODEL: two, Level.TARGET: three,
    }
    assert by_level[Level.DEVICE].device == "a/cpu:0"
    assert {m.level for m in measured(scene)} == {Level.TARGET}
    with_model = Target.parse({**TARGET.to_json(), "model": "Model A"})
    assert {m.level: m.config for m in measured(scene, None, with_model)} == {
        Level.MODEL: two, Level.TARGET: three,
    }
    elsewhere = measured(scene, None, OTHER_TARGET)
    assert [(m.level, m.config, m.target, m.model) for m in elsewhere] == [
        (Level.TRANSFERRED, two, TARGET.key, "Model A"),
        (Level.TRANSFERRED, three, TARGET.key, "Model C"),
    ]
    assert measured(scene, None, Target.parse("cuda -arch=sm_90")) == []
    other_workload = Workload("filter", (Input("data", "float32[65,64]"),))
    assert measured(scene, None, TARGET, other_workload) == []


def test_each_other_target_is_transferred_by_itself(scene: Scene) -> None:
    third = Target.parse("llvm -mcpu=znver2 -num-cores=2")
    others = Scene.make(scene.store, request(target=OTHER_TARGET))
    one, two = configs(2)
    measure(scene, FAST.implementation, {one: (1.0,)}, place="a")
    measure(others, FAST.implementation, {two: (2.0,)}, place="d", target=OTHER_TARGET)
    found = {m.target: m for m in measured(scene, None, third)}
    assert {t: (m.level, m.config) for t, m in found.items()} == {
        TARGET.key: (Level.TRANSFERRED, one), OTHER_TARGET.key: (Level.TRANSFERRED, two),
    }


def test_select_over_the_database(scene: Scene) -> None:
    one, two = configs(2)
    measure(scene, FAST.implementation, {one: (2.0, 2.1, 1.9), two: (1.0, 1.1, 0.9)})
    measure(scene, SLOW.implementation, {one: (3.0, 3.1, 2.9)})
    with scene.store.read() as c:
        answer = select(WORKLOAD, TARGET, RecordDatabase(c), offered=CANDIDATES)
        assert (answer.implementation, answer.config) == (FAST.implementation, two)
        assert answer.level is Level.TARGET
        assert answer.unmeasured == (LIBRARY.implementation,)
        tvm = select(WORKLOAD, TARGET, RecordDatabase(c), offered=CANDIDATES, policy="tvm")
        assert (tvm.implementation, tvm.config) == (FAST.implementation, two)


def test_history_is_the_lowest_mean_per_model(scene: Scene) -> None:
    one, two = configs(2)
    # By the median the first is better, by the mean the second.
    measure(scene, FAST.implementation, {one: (1.0, 1.0, 9.0), two: (2.0, 2.0, 2.0)}, place="a")
    measure(scene, FAST.implementation, {one: (4.0,)}, place="c")
    with scene.store.read() as c:
        found = RecordDatabase(c).history(WORKLOAD)
    assert found == [
        History(implementation=FAST.implementation, config=two, mean_s=2.0, model="Model A", keys=("cpu",)),
        History(implementation=FAST.implementation, config=one, mean_s=4.0, model="Model C", keys=("cpu",)),
    ]


def test_instances_of_a_symbolic_workload(scene: Scene) -> None:
    larger = Workload("filter", (Input("data", "float32[128,64]"),))
    second = Scene.make(scene.store, request(larger))
    one = configs(1)[0]
    measure(scene, FAST.implementation, {one: (1.0,)})
    measure(second, FAST.implementation, {one: (2.0,)})
    with scene.store.read() as c:
        database = RecordDatabase(c)
        symbolic = Workload("filter", (Input("data", "float32[n,64]"),))
        found = {w.key: [m.estimate.median_s for m in ms]
                 for w, ms in database.instances(symbolic, TARGET, None)}
        assert found == {WORKLOAD.key: [1.0], larger.key: [2.0]}
        other = Workload("filter", (Input("data", "float32[n,32]"),))
        assert database.instances(other, TARGET, None) == []


def test_stale_versions_are_kept_apart(scene: Scene) -> None:
    import msgspec

    one = configs(1)[0]
    measure(scene, FAST.implementation, {one: (1.0,)})
    newer = msgspec.structs.replace(FAST, version=f"2.{FAST.version.partition('.')[2]}")
    with scene.store.read() as c:
        answer = select(WORKLOAD, TARGET, RecordDatabase(c), offered=(newer, SLOW))
    assert (answer.implementation, answer.reason) == (FAST.implementation, Reason.STALE)
    assert answer.stale == {FAST.implementation: FAST.version}
    assert all(r.estimate is None for r in answer.rivals)
    assert {m.version for m in measured(scene)} == {FAST.version}


def test_a_record_keeps_everything(scene: Scene) -> None:
    scene.enqueue(configs(1))
    held = scene.leased(scene.register())
    result = Result(
        entry=0, samples_s=(1.0, 2.0, 3.0), prepare_s=0.5, build_s=0.1, check_s=0.2, run_s=0.3,
        code_digest="abc", measured_at=12.5, message="nul \0 and ü",
    )
    sent = Results(
        token=held.token, session="s", results=(result,), environment={"driver": "1"}, done=True
    )

    with scene.store.write() as c:
        reporting.report(c, Report(lease_id=held.id, results=sent), TERMS)
    with scene.store.read() as c:
        row = log_page.page(c, Wanted(run_id=scene.run_id)).records[0]
        assert c.scalar(sa.select(sa.func.count()).select_from(environment)) == 1
    assert (row.samples_s, row.prepare_s, row.build_s, row.check_s, row.run_s) == (
        (1.0, 2.0, 3.0), 0.5, 0.1, 0.2, 0.3,
    )
    assert (row.session, row.code_digest, row.measured_at) == ("s", "abc", 12.5)
    assert (row.workload, row.target) == (WORKLOAD.key, TARGET.key)
    assert (row.implementation, row.version) == (FAST.implementation, FAST.version)
    assert (row.device, row.environment, row.seed) == ("host-a/cpu:0-1", {"driver": "1"}, 1)
    assert row.message == "nul  and ü"
    assert row.estimate is not None
    assert row.estimate.median_s == 2.0


def test_a_filter_has_its_first_instant_and_not_its_last(scene: Scene) -> None:
    scene.enqueue(configs(1))
    held = scene.leased(scene.register())
    scene.report(held, [timed(e) for e in held.job.entries])  # measured at 1.0
    with scene.store.read() as c:
        found = [len(log_page.page(c, Wanted(since=a, until=b)).records) for a, b in ((1.0, None), (None, 1.0))]
    assert found == [1, 0]


def test_a_result_without_an_instant_was_measured_when_it_came(scene: Scene) -> None:
    scene.enqueue(configs(1))
    held = scene.leased(scene.register())
    scene.report(held, [msgspec.structs.replace(timed(e), measured_at=0.0) for e in held.job.entries])
    (row,) = scene.records()
    assert row.measured_at == pytest.approx(row.recorded_at, abs=60)


def test_the_last_page_of_tasks_has_no_cursor(scene: Scene) -> None:
    tasks = sorted(scene.tasks.values())
    with scene.store.read() as c:
        assert Tasks(limit=len(tasks)).find(c) == (tasks, None)
        assert Tasks(limit=2).find(c) == (tasks[:2], tasks[1])
        assert Tasks(limit=2, cursor=tasks[1]).find(c) == (tasks[2:], None)


@pytest.mark.parametrize("newest", [False, True])
def test_pages_go_through_all_records_once(scene: Scene, newest: bool) -> None:
    scene.enqueue(configs(7))
    held = scene.leased(scene.register())
    entries = held.job.entries
    scene.report(held, [timed(e) if e.index % 2 else failed(e.index) for e in entries])
    seen: list[int] = []
    cursor: int | None = 0
    with scene.store.read() as c:
        while cursor is not None:
            page = log_page.page(c, Wanted(run_id=scene.run_id), limit=3, cursor=cursor, newest=newest)
            seen += [r.id for r in page.records]
            cursor = page.next
        assert seen == sorted(set(seen), reverse=newest)
        assert len(seen) == 7
        assert len(log_page.page(c, Wanted(error="any")).records) == 4
        assert len(log_page.page(c, Wanted(error="none")).records) == 3
        assert len(log_page.page(c, Wanted(error=ErrorKind.COMPILE)).records) == 4
        assert log_page.page(c, Wanted(error=ErrorKind.OOM)).records == ()
        assert log_page.page(c, Wanted(phase=Phase.CONFIRM)).records == ()
        assert len(log_page.page(c, Wanted(task_id=scene.tasks[FAST.implementation])).records) == 7


@pytest.mark.sample(1)
@pytest.mark.parametrize(("by_op", "newest"), [(False, False), (True, False), (False, True)])
def test_what_no_index_finds_is_looked_for_a_part_at_a_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, by_op: bool, newest: bool
) -> None:
    monkeypatch.setattr(log_page, "SCAN", 3)
    scene.enqueue(configs(7))
    held = scene.leased(scene.register())
    scene.report(held, [failed(e.index) if e.index == 5 else timed(e) for e in held.job.entries])
    wanted = {"op": WORKLOAD.op, "error": "any"} if by_op else {"error": "any"}
    found, pages, cursor = [], 0, 0
    with scene.store.read() as c:
        while cursor is not None:
            page = log_page.page(c, Wanted(**wanted), limit=2, cursor=cursor, newest=newest)
            found += [r.error for r in page.records]
            pages, cursor = pages + 1, page.next
        assert (found, pages) == ([ErrorKind.COMPILE], 3)
        page = log_page.page(c, Wanted(run_id=scene.run_id, error="any"), limit=2)
        assert (len(page.records), page.next) == (1, None)
        assert log_page.page(c, Wanted(op="nothing"), cursor=3).next == 6
        assert log_page.page(c, Wanted(op="nothing"), cursor=7, newest=True).next == 4
        assert log_page.page(c, Wanted(op="nothing"), cursor=4, newest=True).next is None


def test_times_of_two_device_models_are_apart_in_curves_lists_and_champions(store: Store) -> None:
    """The second model is faster by far; the first has more trials."""
    times = {"Model A": (3.0, 4.0, 2.0, 2.5), "Model B": (0.1, 0.3, 0.01)}
    rows = [
        made(number, (s,), device_model=model)
        for model, of in times.items()
        for number, s in enumerate(of, 0 if model == "Model A" else 10)
    ]
    import_items(store, [rows[i] for i in (4, 0, 1, 5, 2, 3, 6)])
    with store.read() as c:
        ((task_id,),) = c.execute(sa.select(task.c.id))
        curve = [(p.trial, p.median_s, p.device_model) for p in log_page.curve(c, task_id)]
        assert curve == [(1, 3.0, "Model A"), (3, 2.0, "Model A")]
        other = [(p.trial, p.median_s) for p in log_page.curve(c, task_id, None, "Model B")]
        assert other == [(1, 0.1), (3, 0.01)]
        assert log_page.curve(c, task_id, None, "Model C") == []
        champions = {
            models: [r.config_digest for r in deriving.find_champions(c, task_id, models)]
            for models in (("Model A",), ("Model B",), ("Model C",))
        }
        assert champions[("Model A",)] == [rows[2].config_digest]
        assert champions[("Model B",)] == [rows[6].config_digest]
        assert sorted(champions[("Model C",)]) == sorted([rows[2].config_digest, rows[6].config_digest])
        (listed,) = task_page.page(c)
        assert (listed.median_s, listed.model) == (0.01, "Model B")
        of_devices = task_page.curves(c, task_page.head(c, task_id), "device")
    assert {(x.device_model, min(p[2] for p in x.points)) for x in of_devices} == {("Model A", 2.0), ("Model B", 0.01)}


def test_a_curve_is_of_the_device_model_that_ranks_its_task_and_not_one_of_another_namespace(store: Store) -> None:
    rows = [made(0, (3.0,), device_model="Model A"), *(made(i, (1.0 / i,), device_model="Model B") for i in (1, 2, 3))]
    import_items(store, rows)
    import_items(store, rows[1:], namespace="others")
    with store.read() as c:
        ((task_id,),) = c.execute(sa.select(task.c.id).where(task.c.namespace == "default"))
        assert ranking.rank(c, [task_id])[task_id].models[0].device_model == "Model A"
        assert [p.device_model for p in log_page.curve(c, task_id)] == ["Model A"]


def test_the_curve_falls(scene: Scene) -> None:
    a, b, d, e = configs(4)
    results: dict[Config, Any] = {a: (3.0,), b: ErrorKind.CRASH, d: (4.0,), e: (2.0,)}
    measure(scene, FAST.implementation, results)
    with scene.store.read() as c:
        points = log_page.curve(c, scene.tasks[FAST.implementation])
    assert [(p.trial, p.median_s) for p in points] == [(1, 3.0), (4, 2.0)]


def test_reference_times_are_records_of_their_own(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(2))
    worker_id = scene.register()

    def finish(entry: int, *samples_s: float) -> None:
        held = scene.leased(worker_id)
        result = msgspec.structs.replace(
            timed(held.job.entries[0]), entry=entry, drift=0.08 if entry else None
        )
        references = tuple(
            Reference(samples_s=(s, s, s), measured_at=5.0, state={"load": 0.5}) for s in samples_s
        )
        sent = Results(
            token=held.token, session=f"s{held.id}", results=(result,), done=True,
            references=references,
        )
        with store.write() as c:
            reporting.report(c, Report(lease_id=held.id, results=sent), TERMS)
            if entry:  # the lease ended whole: sent again it changes nothing
                reporting.report(c, Report(lease_id=held.id, results=sent), TERMS)
            c.execute(sa.update(job).values(available_at=now() - 1.0))

    finish(0, 1e-5, 1.01e-5)
    finish(1, 1e-5, 1.2e-5, 1e-5, 1.1e-5)
    with store.read() as c:
        page = log_page.page(c, Wanted(phase=Phase.REFERENCE))
        kept = log_page.page(c, Wanted(phase=Phase.SEARCH))
        best_tasks = set(c.scalars(sa.select(best.c.task_id)))
    assert [r.samples_s[0] for r in page.records] == [1e-5, 1.01e-5, 1e-5, 1.2e-5, 1e-5, 1.1e-5]
    assert {r.implementation for r in page.records} == {"reference.sqrt"}
    assert len({r.session for r in page.records}) == 2
    assert [r.drift for r in kept.records] == [None, 0.08]
    assert not best_tasks & {r.task_id for r in page.records}
    assert scene.states() == ["done"]
    with store.read() as c:
        lines = list(exporter.export_items(store))
    assert sum(getattr(i, "phase", None) == Phase.REFERENCE for i in lines) == 6
