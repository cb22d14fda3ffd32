"""Finals of one device are measured again on a later day, where nothing else is to be done."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from service.search.child import InlineModel
from service.settings import Settings
from service.store.db import Store
from service.store.sql import now
from service.store.tables import best, job, run, worker
from service.store.wakeup import Wakeup
from service.tuning import remeasure, run_status
from service.tuning import run as runs
from service.tuning.tuner import Tuner
from strategy.record import ALL, Lease, Phase, RunState
from tests.integration.scene import FAST, TERMS, Scene, configs, device, timed

pytestmark = pytest.mark.in_turn("url")

DAY_S = 86_400.0
FINALS = configs(3)


@pytest.fixture
def scene(store: Store) -> Scene:
    return Scene.make(store)


def measure(scene: Scene, *places: tuple[int, str]) -> None:
    """The finals of the run, each by another place, and its end, long ago."""
    for number, (worker_id, identity) in enumerate(places, 1):
        final = scene.enqueue(FINALS, phase=Phase.CONFIRM)
        with scene.store.write() as c:
            c.execute(sa.update(job).where(job.c.id == final).values(seed=number))
        held = scene.leased(worker_id, identity)
        scene.report(held, [timed(e) for e in held.job.entries])
    with scene.store.write() as c:
        runs.finish(c, scene.run_id, RunState.DONE, "done")
    pass_time(scene)


def pass_time(scene: Scene) -> None:
    """Two days, for all that has an end."""
    with scene.store.write() as c:
        c.execute(sa.update(run).values(finished_at=run.c.finished_at - 2 * DAY_S))
        c.execute(sa.update(job).values(created_at=job.c.created_at - 2 * DAY_S))


def look(scene: Scene, after_s: float = DAY_S) -> list[int]:
    with scene.store.write() as c:
        return remeasure.enqueue_due(c, after_s, TERMS.alive_s)


def again(scene: Scene, worker_id: int) -> Lease:
    (job_id,) = look(scene)
    held = scene.leased(worker_id)
    assert held.job.id == job_id
    return held


def test_finals_of_one_device_come_again_once(scene: Scene) -> None:
    worker_id = scene.register()
    place = worker_id, "host-a/cpu:0-1"
    measure(scene, place, place)
    held = again(scene, worker_id)
    assert (held.job.phase, held.job.run_id) == (Phase.CONFIRM, scene.run_id)
    assert [e.config for e in held.job.entries] == FINALS
    assert held.job.seed not in (1, 2)  # on other inputs than either of them
    assert look(scene) == []  # it waits already
    before = scene.records()
    scene.report(held, [timed(e) for e in held.job.entries])
    assert len(scene.records()) == len(before) + len(FINALS)
    with scene.store.read() as c:
        chosen = c.execute(sa.select(best).where(best.c.task_id == scene.tasks[FAST.implementation]))
        assert {row.phase for row in chosen} == {"confirm"}
        assert run_status.status(c, scene.run_id, TERMS.alive_s).state is RunState.DONE
    assert look(scene) == []
    pass_time(scene)
    assert look(scene) == []  # and was measured again


def test_finals_of_two_devices_do_not(scene: Scene) -> None:
    here, there = scene.register(), scene.register(device("host-b/cpu:0"))
    measure(scene, (here, "host-a/cpu:0-1"), (there, "host-b/cpu:0"))
    assert look(scene) == []


def test_not_before_the_day_is_over(scene: Scene) -> None:
    place = scene.register(), "host-a/cpu:0-1"
    measure(scene, place)
    assert look(scene, 3 * DAY_S) == []
    assert len(look(scene)) == 1


def test_a_run_on_the_target_goes_first(scene: Scene) -> None:
    worker_id = scene.register()
    measure(scene, (worker_id, "host-a/cpu:0-1"))
    other = Scene.make(scene.store)
    assert look(scene) == []
    with scene.store.write() as c:
        runs.finish(c, other.run_id, RunState.DONE, "done")
    assert look(scene) == []  # it has only just ended
    pass_time(scene)
    assert len(look(scene)) == 1
    # A job that comes meanwhile goes before it.
    urgent = other.enqueue(configs(1))
    assert scene.leased(worker_id).job.id == urgent


@pytest.mark.sample(1)
@pytest.mark.parametrize("operators", [{"filter": {FAST.implementation: 2}}, {"other": {ALL: 1}}])
def test_only_where_a_worker_can_build_it(scene: Scene, operators: dict[str, dict[str, int]]) -> None:
    place = scene.register(), "host-a/cpu:0-1"
    measure(scene, place)
    with scene.store.write() as c:
        c.execute(sa.update(worker).values(operators=operators))
    assert look(scene) == []
    with scene.store.write() as c:
        c.execute(sa.update(worker).values(operators={}, ended_at=now()))
    assert look(scene) == []


def test_a_run_that_no_worker_can_build_leaves_the_others_their_turn(scene: Scene) -> None:
    worker_id = scene.register()
    measure(scene, (worker_id, "host-a/cpu:0-1"))
    other = Scene.make(scene.store)
    measure(other, (worker_id, "host-a/cpu:0-1"))
    with scene.store.write() as c:
        needs = '{"op":"filter","versions":{"' + FAST.implementation + '":7}}'
        c.execute(sa.update(job).where(job.c.run_id == other.run_id).values(needs=needs))
        c.execute(sa.update(worker).values(operators={"filter": {FAST.implementation: 1}}))
    (job_id,) = look(scene)
    with scene.store.read() as c:
        assert c.scalar(sa.select(job.c.run_id).where(job.c.id == job_id)) == scene.run_id


def test_finals_that_were_split_are_left_out(scene: Scene) -> None:
    worker_id = scene.register()
    scene.enqueue(FINALS, phase=Phase.CONFIRM)
    for _ in range(2):
        scene.lose(scene.leased(worker_id))
    while (held := scene.lease(worker_id)) is not None:
        scene.report(held, [timed(e) for e in held.job.entries])
    with scene.store.write() as c:
        runs.finish(c, scene.run_id, RunState.DONE, "done")
    pass_time(scene)
    assert look(scene) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize(("after_s", "jobs"), [(DAY_S, 1), (0.0, 0)])
def test_the_tuner_looks(scene: Scene, after_s: float, jobs: int) -> None:
    place = scene.register(), "host-a/cpu:0-1"
    measure(scene, place)
    settings = Settings(database=str(scene.store.url), remeasure_s=after_s)
    tuner = Tuner(scene.store, settings, InlineModel(), Wakeup(), Wakeup())
    for _ in range(2):
        tuner.step()
    assert scene.states().count("queued") == jobs
