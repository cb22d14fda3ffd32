"""Turns, limits, pauses, names and reasons: how jobs find devices, on both databases."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

import pytest
import sqlalchemy as sa

from service.errors import InvalidError, NotFoundError
from service.queue import claim, explain, fleet, heartbeat, pause, renewal, retry, rule
from service.queue import job as jobs
from service.queue import lease as leasing
from service.queue import report as reporting
from service.queue.place import Lack, LeaseAsk, lacking
from service.store.db import Store
from service.store.sql import now
from service.store.tables import RunState, job, run
from service.store.tables import device as device_table
from service.store.tables import pause as pause_table
from service.tuning import ownership, run_status
from service.tuning import run as runs
from service.tuning.ownership import Ownership
from strategy.record import ALL, Phase, Report, Results, ResultsAccepted
from tests.integration.scene import (
    FAST,
    OTHER_TARGET,
    SLOW,
    TARGET,
    TERMS,
    Scene,
    configs,
    device,
    lease_jobs,
    request,
    timed,
)
from tests.limit import HANG_S

pytestmark = pytest.mark.in_turn("url")

HOST = "host-a/cpu:0-1"


@pytest.fixture
def scene(store: Store) -> Scene:
    return Scene.make(store)


def other_run(scene: Scene, **values: object) -> Scene:
    return Scene.make(scene.store, request(seed=7, force=True, **values))


def work_off(scene: Scene, worker_id: int) -> list[int]:
    """The runs of the jobs as they are leased, one after the other, until there are none."""
    runs = []
    while (held := scene.lease(worker_id)) is not None:
        runs.append(held.job.run_id)
        scene.report(held, [timed(e) for e in held.job.entries])
    return runs


def reasons(scene: Scene, job_id: int) -> str:
    with scene.store.read() as c:
        return "; ".join(explain.explain(c, job_id, TERMS.alive_s).reasons)


def accepted(answers: Iterable[object]) -> list[ResultsAccepted]:
    return [a for a in answers if isinstance(a, ResultsAccepted)]


def test_runs_take_turns(scene: Scene) -> None:
    other = other_run(scene)
    for _ in range(6):
        scene.enqueue(configs(2))
    for _ in range(6):
        other.enqueue(configs(2))
    assert work_off(scene, scene.register()) == [scene.run_id, other.run_id] * 6


def test_turns_count_configurations(scene: Scene) -> None:
    other = other_run(scene)
    for _ in range(4):
        scene.enqueue(configs(1))
        other.enqueue(configs(4))
    order = work_off(scene, scene.register())
    assert order.index(other.run_id) == 1
    assert Counter(order[:5]) == {scene.run_id: 4, other.run_id: 1}


def test_who_comes_late_neither_waits_for_all_nor_goes_before_all(scene: Scene) -> None:
    worker_id = scene.register()
    for _ in range(8):
        scene.enqueue(configs(4))
    for _ in range(3):
        held = scene.leased(worker_id)
        scene.report(held, [timed(e) for e in held.job.entries])
    other = other_run(scene)
    for _ in range(5):
        other.enqueue(configs(4))
    order = work_off(scene, worker_id)
    # Each has three of the next six.
    assert Counter(order[:6]) == {scene.run_id: 3, other.run_id: 3}


def test_priority_goes_before_turns(scene: Scene) -> None:
    other = other_run(scene)
    scene.enqueue(configs(1))
    other.enqueue(configs(1), priority=jobs.NORMAL - 100)
    other.enqueue(configs(1), priority=jobs.NORMAL - 100)
    assert work_off(scene, scene.register()) == [other.run_id, other.run_id, scene.run_id]


def test_a_run_has_at_most_as_many_jobs_at_work_as_it_asked_for(store: Store) -> None:
    scene = Scene.make(store, request(max_jobs=1))
    ids = [scene.enqueue(configs(1)) for _ in range(2)]
    workers = [scene.register(device(f"host-{i}/cpu:0")) for i in range(2)]
    held = scene.leased(workers[0], "host-0/cpu:0")
    assert scene.lease(workers[1], "host-1/cpu:0") is None
    assert "max_jobs = 1" in reasons(scene, ids[1])
    other = other_run(scene)
    other.enqueue(configs(1))
    assert scene.leased(workers[1], "host-1/cpu:0").job.run_id == other.run_id
    scene.report(held, [timed(held.job.entries[0])])
    assert scene.leased(workers[0], "host-0/cpu:0").job.id == ids[1]


def test_several_jobs_in_one_lease_and_one_report(scene: Scene) -> None:
    for _ in range(5):
        scene.enqueue(configs(2))
    worker_id = scene.register()
    leases = scene.lease_many(worker_id, 3)
    assert len({held.job.id for held in leases}) == 3
    assert scene.lease_many(worker_id, 3) == []  # it builds three already
    assert len(scene.lease_many(worker_id, 4)) == 1
    reports = [
        Report(
            lease_id=held.id,
            results=Results(
                token=held.token + (held is leases[1]), session=f"s{held.id}", done=True,
                results=tuple(timed(e) for e in held.job.entries),
            ),
        )
        for held in leases
    ]
    with scene.store.write() as c:
        answers = reporting.report_many(c, reports, TERMS)
    assert [isinstance(a, ResultsAccepted) for a in answers] == [True, False, True]
    assert "is lost: it expired" in str(answers[1])
    assert len(scene.records()) == 4


def test_a_look_knows_whether_it_may_find_any(scene: Scene) -> None:
    worker_id = scene.register()
    elsewhere = scene.register(device("host-c/cpu:0", OTHER_TARGET))

    def may(worker: int = worker_id, identity: str = HOST) -> bool:
        with scene.store.read() as c:
            (found,) = leasing.may_lease(c, [LeaseAsk(worker, identity)])
            return found

    assert not may()
    scene.enqueue(configs(1))
    assert may()
    assert not may(elsewhere, "host-c/cpu:0")
    assert not may(worker_id, "host-c/cpu:0")
    with scene.store.write() as c:
        c.execute(sa.update(job).values(available_at=now() + 20.0))
    assert not may()


def test_jobs_of_one_lease_come_in_their_order(scene: Scene) -> None:
    last = scene.enqueue(configs(1), priority=jobs.NORMAL + 1)
    ids = [scene.enqueue(configs(1)) for _ in range(4)]
    leases = scene.lease_many(scene.register(), 8)
    assert [held.job.id for held in leases] == [*ids, last]
    assert all(held.job.entries for held in leases)


def test_one_lease_reported_twice_at_once_counts_once(scene: Scene) -> None:
    scene.enqueue(configs(2))
    held = scene.leased(scene.register())
    results = Results(
        token=held.token, session="s", done=True,
        results=tuple(timed(e) for e in held.job.entries),
    )
    report = Report(lease_id=held.id, results=results)
    with scene.store.write() as c:
        answers = reporting.report_many(c, [report, report], TERMS)
    assert [(a.accepted, a.known) for a in accepted(answers)] == [(2, 0), (0, 2)]
    assert len(scene.records()) == 2
    with scene.store.write() as c:  # and once more, when it has ended
        answers = reporting.report_many(c, [report], TERMS)
    assert [(a.accepted, a.known) for a in accepted(answers)] == [(0, 2)]


def test_a_part_and_a_whole_in_one_report(scene: Scene) -> None:
    for _ in range(2):
        scene.enqueue(configs(2))
    one, other = scene.lease_many(scene.register(), 2)
    reports = [
        Report(lease_id=held.id, results=Results(token=held.token, session="s", done=done,
               results=tuple(timed(e) for e in entries)))
        for held, entries, done in (
            (one, one.job.entries[:1], False), (other, other.job.entries, True)
        )
    ]
    with scene.store.write() as c:
        answers = reporting.report_many(c, reports, TERMS)
    assert [a.accepted for a in accepted(answers)] == [1, 2]
    assert scene.states() == ["leased", "done"]
    assert len(scene.records()) == 3


def test_many_ask_at_once_and_are_served_in_their_order(scene: Scene) -> None:
    names = [f"host-{i}/cpu:0" for i in range(4)]
    workers = [scene.register(device(name)) for name in names]
    ids = [scene.enqueue(configs(1)) for _ in range(7)]

    def ask(*most: int) -> list[list[int]]:
        asks = [LeaseAsk(w, name, n) for w, name, n in zip(workers, names, most, strict=True)]
        with scene.store.write() as c:
            return [[held.job.id for held in found] for found in leasing.lease_many(c, asks, TERMS)]

    with scene.store.write() as c:
        pause.create(c, pause.PauseRequest(reason="new fans", device=names[1]))
    assert ask(2, 2, 3, 1) == [ids[:2], [], ids[2:5], ids[5:6]]
    assert ask(2, 2, 4, 1) == [[], [], ids[6:], []]  # what they build already counts


def test_what_needs_a_closer_look_gets_it_where_many_ask(scene: Scene) -> None:
    names = [f"host-{i}/cpu:0" for i in range(4)]
    workers = [scene.register(device(name)) for name in names]
    suspect = scene.enqueue(configs(1))
    held = scene.leased(workers[0], names[0])
    scene.lose(held)
    plain = [scene.enqueue(configs(1)) for _ in range(4)]

    def ask() -> list[list[int]]:
        asks = [LeaseAsk(w, name, 2) for w, name in zip(workers, names, strict=True)]
        with scene.store.write() as c:
            return [[held.job.id for held in found] for found in leasing.lease_many(c, asks, TERMS)]

    assert ask() == [[suspect], plain[:2], plain[2:], []]
    more = [scene.enqueue(configs(1)) for _ in range(2)]
    assert ask() == [[], [], [], more], "a suspect runs alone"


def test_why_a_suspect_waits_and_what_is_behind_it(scene: Scene) -> None:
    one = scene.register()
    suspect = scene.enqueue(configs(1))
    scene.lose(scene.leased(one))
    behind = scene.enqueue(configs(1))
    held = scene.leased(one)
    assert held.job.id == suspect
    with scene.store.write() as c:
        renewal.renew(c, held.id, held.token, True, TERMS)
    assert scene.lease(one) is None
    assert "holds a job that was lost before" in reasons(scene, behind)
    scene.lose(held)
    assert scene.register(device("host-b/cpu:0"))
    assert "reserved for devices that have not lost it" in reasons(scene, suspect)
    assert scene.leased(one).job.id == behind
    assert "waits for a worker without other jobs" in reasons(scene, suspect)


def test_a_suspect_ends_a_batch(scene: Scene) -> None:
    worker_id = scene.register()
    scene.enqueue(configs(1))
    scene.lose(scene.leased(worker_id))
    for _ in range(2):
        scene.enqueue(configs(1))
    assert len(scene.lease_many(worker_id, 3)) == 1


def test_finals_go_to_two_devices_where_there_are_two(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "SPREAD_S", HANG_S)  # however long a busy host takes
    for module, name in ((claim, "_claim"), (explain, "_read_places")):  # their statements have it, and are kept
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)
    ids = [scene.enqueue(configs(2), phase=Phase.CONFIRM) for _ in range(2)]
    one, other = scene.register(), scene.register(device("host-b/cpu:0"))
    first = scene.lease_many(one, 4)
    assert [held.job.id for held in first] == ids[:1]
    scene.report(first[0], [timed(e) for e in first[0].job.entries])
    with scene.store.write() as c:
        c.execute(sa.update(job).values(available_at=now()))  # however long all that took
        assert lease_jobs(c, one, HOST) == [], "it waits for the other device"
        c.execute(sa.update(job).values(available_at=now()))
    assert "for devices without another final" in reasons(scene, ids[1])
    with scene.store.write() as c:  # which is gone, in vain
        fleet.end(c, other)
    assert scene.leased(one).job.id == ids[1]


def test_a_final_does_not_wait_for_ever(scene: Scene) -> None:
    for _ in range(2):
        scene.enqueue(configs(1), phase=Phase.CONFIRM)
    one = scene.register()
    scene.register(device("host-b/cpu:0"))  # alive, and it never asks
    held = scene.leased(one)
    scene.report(held, [timed(held.job.entries[0])])
    with scene.store.write() as c:
        c.execute(sa.update(job).values(available_at=now() - rule.SPREAD_S))
    assert scene.lease(one) is not None


@pytest.mark.parametrize("place", [{"device": HOST}, {"target": TARGET.key}])
def test_what_is_paused_gets_no_jobs(scene: Scene, place: dict[str, str]) -> None:
    worker_id, job_id = scene.register(), scene.enqueue(configs(1))
    with scene.store.write() as c:
        made = pause.create(c, pause.PauseRequest(reason="new fans", **place))
        assert pause.current(c) == [made]
    assert scene.lease(worker_id) is None
    assert "new fans" in reasons(scene, job_id)
    with scene.store.write() as c:
        pause.end(c, made.id)
        assert pause.current(c) == []
        with pytest.raises(NotFoundError, match="has ended or does not exist"):
            pause.end(c, made.id)
    assert scene.lease(worker_id) is not None


def test_a_pause_holds_whatever_the_device_has_become(scene: Scene) -> None:
    scene.register()
    with scene.store.write() as c:
        pause.create(c, pause.PauseRequest(reason="new fans", device=HOST))
    job_id = scene.enqueue(configs(1))
    workers = [scene.register(device(HOST, model=f"Model {m}")) for m in "BCD"]
    for _ in range(2):
        scene.enqueue(configs(1))
    assert scene.lease(workers[0]) is None
    with scene.store.write() as c:  # together, in other statements
        answers = leasing.lease_many(c, [LeaseAsk(w, HOST) for w in workers], TERMS)
    assert answers == [[], [], []]
    assert "new fans" in reasons(scene, job_id)


def test_a_window_to_come_and_one_that_is_over(scene: Scene) -> None:
    worker_id = scene.register()
    scene.enqueue(configs(1))
    with scene.store.write() as c:
        at = c.execute(sa.select(now())).scalar_one()
        for starts_at, ends_at in ((at + 1000, None), (at - 1000, at + 500)):
            made = pause.create(
                c, pause.PauseRequest(reason="power", device=HOST, starts_at=starts_at, ends_at=ends_at)
            )
        assert len(pause.current(c)) == 2
        c.execute(sa.update(pause_table).where(pause_table.c.id == made.id).values(ends_at=at - 500))
        assert len(pause.current(c)) == 1
    assert scene.lease(worker_id) is not None


def test_pauses_that_make_no_sense(scene: Scene) -> None:
    scene.register()
    for error, asked in (
        (InvalidError, pause.PauseRequest(reason="r")),
        (InvalidError, pause.PauseRequest(reason="r", device=HOST, target=TARGET.key)),
        (InvalidError, pause.PauseRequest(reason="r", device=HOST, starts_at=2.0, ends_at=1.0)),
        (NotFoundError, pause.PauseRequest(reason="r", device="nowhere")),
    ):
        with scene.store.write() as c, pytest.raises(error):
            pause.create(c, asked)


def test_the_database_s_clock_says_whether_a_pause_has_passed(scene: Scene) -> None:
    scene.register()
    with scene.store.write() as c:
        at = c.execute(sa.select(now())).scalar_one()
        for starts_at, ends_at, ago in ((None, at - 500, "50."), (at - 1000, at - 500, "50."), (None, 0.0, "[0-9]+")):
            over = pause.PauseRequest(reason="r", device=HOST, starts_at=starts_at, ends_at=ends_at)
            with pytest.raises(InvalidError, match=f"^ends_at: has passed, {ago} s ago by the database's clock"):
                pause.create(c, over)
        assert pause.current(c) == []


def test_a_device_with_a_new_name_keeps_its_history(scene: Scene) -> None:
    worker_id = scene.register()
    scene.enqueue(configs(1))
    held = scene.leased(worker_id)
    scene.report(held, [timed(held.job.entries[0])])
    before = scene.records()[0].device_id
    again = scene.register(device("host-b/cpu:0-1"))  # the same machine, installed anew
    with scene.store.write() as c:
        with pytest.raises(NotFoundError, match="nowhere"):
            fleet.rename(c, "nowhere", "host-b/cpu:0-1")
        for wrong in ("", "x" * 201):  # such as a variable of a shell that is not set
            with pytest.raises(InvalidError, match="name an identity of up to 200 characters"):
                fleet.rename(c, HOST, wrong)
        fleet.rename(c, HOST, "host-b/cpu:0-1")
        names = dict(c.execute(sa.select(device_table.c.id, device_table.c.identity)).all())
        assert heartbeat.store(c, [again], TERMS.alive_s) == set()  # its worker registers again
    assert names[before] == "host-b/cpu:0-1"
    assert sorted(names.values()) == sorted([HOST, "host-b/cpu:0-1"])
    scene.enqueue(configs(2)[1:])
    new = scene.register(device("host-b/cpu:0-1"))
    held = scene.leased(new, "host-b/cpu:0-1")
    scene.report(held, [timed(held.job.entries[0])])
    assert {r.device_id for r in scene.records()} == {before}


@pytest.mark.parametrize(("old", "new"), [(HOST, fleet.RENAMING), (fleet.RENAMING, HOST)])
def test_a_device_may_have_any_name_before_and_after(scene: Scene, old: str, new: str) -> None:
    for identity in (HOST, fleet.RENAMING):
        scene.register(device(identity))
    with scene.store.write() as c:
        before = dict(c.execute(sa.select(device_table.c.identity, device_table.c.id)).all())
        fleet.rename(c, old, new)
        after = dict(c.execute(sa.select(device_table.c.identity, device_table.c.id)).all())
    assert after == {old: before[new], new: before[old]}


def test_why_a_job_waits(scene: Scene) -> None:
    job_id = scene.enqueue(configs(1))
    assert "is alive: start one" in reasons(scene, job_id)
    scene.register(device("host-c/cpu:0", OTHER_TARGET))
    assert "is alive: start one" in reasons(scene, job_id)
    unable = scene.register(device("host-d/cpu:0"), operators={"filter": {FAST.implementation: 2}})
    assert reasons(scene, job_id).startswith(
        f"no live worker for its target (worker) has what it needs: {FAST.implementation} of version 1 for filter "
        "(they have version 2): "
    )
    assert scene.lease(unable, "host-d/cpu:0") is None
    worker_id = scene.register()
    assert "1 device can take it" in reasons(scene, job_id)
    behind = scene.enqueue(configs(1))
    assert "1 job ahead of it in the queue of 1 device" in reasons(scene, behind)
    held = scene.leased(worker_id)
    assert f"worker {worker_id} (worker) has been building it on {HOST}" in reasons(scene, job_id)
    assert "each is building another job" in reasons(scene, behind)
    with scene.store.write() as c:
        renewal.renew(c, held.id, held.token, True, TERMS)
    assert "has been timing it" in reasons(scene, job_id)
    with scene.store.write() as c:
        c.execute(sa.text("UPDATE lease SET expires_at = 0"))
    assert "s ago and ends soon unless it is renewed" in reasons(scene, job_id)
    with scene.store.write() as c:
        retry.expire(c, TERMS)
        # By 20 s more, as this test may be slow.
        c.execute(sa.update(job).where(job.c.id == job_id).values(available_at=job.c.available_at + 20.0))
    waiting = reasons(scene, job_id)
    assert "backing off for" in waiting and "was lost 1 time (" in waiting
    with scene.store.write() as c:
        jobs.cancel(c, scene.run_id)
    assert reasons(scene, job_id) == "its run was cancelled"
    with pytest.raises(NotFoundError, match="job 4711"):
        reasons(scene, 4711)


@pytest.mark.parametrize(
    ("listed", "had", "remedy"),
    [
        ({FAST.implementation: 2, ALL: 0}, "have version 2", "run {run} is of an older plevel: cancel it"),
        ({FAST.implementation: 0, ALL: 0}, "do not have it", "upgrade plevel there, or the package that has it"),
        ({SLOW.implementation: 1}, "do not have it", "upgrade plevel there, or the package that has it"),
    ],
)
def test_what_workers_with_other_packages_lack_is_told(
    scene: Scene, listed: dict[str, int], had: str, remedy: str
) -> None:
    job_id = scene.enqueue(configs(1))
    scene.register(operators={"filter": listed})
    told = f"{FAST.implementation} of version 1 for filter (they {had}): {remedy.format(run=scene.run_id)}"
    assert told in reasons(scene, job_id)


def test_what_another_package_may_have_is_not_lacking() -> None:
    needs = '{"op":"filter","versions":{"a":"2","b":"1"}}'
    assert lacking(needs, [{"filter": {"a": 1, ALL: 0}}]) == (Lack("filter", "a", "2", ("1",)),)


# Which service tunes


def ended(scene: Scene, name: str) -> None:
    with scene.store.write() as c:
        c.execute(sa.update(run).where(run.c.tuner == name).values(tuner_until=now() - 1.0))


def test_a_run_has_one_tuner(scene: Scene) -> None:
    one, other = Ownership(60.0, "one"), Ownership(60.0, "other")
    assert one.hold(scene.store) == [scene.run_id]
    assert other.hold(scene.store) == []
    assert one.hold(scene.store) == [scene.run_id]
    new = other_run(scene)
    assert other.hold(scene.store) == [new.run_id]
    assert one.hold(scene.store) == [scene.run_id]
    with scene.store.write() as c:
        runs_of_one = one.lasts(c, scene.run_id), one.lasts(c, new.run_id)
    assert runs_of_one == (True, False)


def test_a_dead_tuners_runs_are_taken_over_and_it_finds_out(scene: Scene) -> None:
    one, other = Ownership(60.0, "one"), Ownership(60.0, "other")
    one.hold(scene.store)
    ended(scene, "one")
    assert other.hold(scene.store) == [scene.run_id]
    with scene.store.write() as c:
        assert not one.lasts(c, scene.run_id)
    assert one.hold(scene.store) == []
    other.give_up(scene.store)
    assert one.hold(scene.store) == [scene.run_id]


def test_a_run_is_interrupted_from_its_tuners_end_until_the_next(scene: Scene) -> None:
    def interrupted() -> bool:
        with scene.store.read() as c:
            found = run_status.status(c, scene.run_id, TERMS.alive_s)
        assert found.message.startswith("interrupted") is found.interrupted
        return found.interrupted

    one, other = Ownership(60.0, "one"), Ownership(60.0, "other")
    assert not interrupted()  # nobody has begun it
    one.hold(scene.store)
    assert not interrupted()
    one.give_up(scene.store)
    assert interrupted()
    other.hold(scene.store)
    assert not interrupted()
    ended(scene, "other")
    assert interrupted()
    child = os.fork()
    if child == 0:
        os._exit(0)
    gone = ownership.process_name(child)
    Ownership(60.0, gone).hold(scene.store)
    assert not interrupted()
    os.waitpid(child, 0)
    assert interrupted()
    with scene.store.write() as c:
        runs.cancel(c, scene.run_id)
    assert not interrupted()


def test_a_run_whose_tuner_lives_but_is_late_is_not_said_to_have_lost_it(scene: Scene) -> None:
    def message() -> str:
        with scene.store.read() as c:
            return run_status.status(c, scene.run_id, TERMS.alive_s).message

    late = Ownership(60.0)  # of this process
    late.hold(scene.store)
    with scene.store.write() as c:
        c.execute(sa.update(run).values(tuner_until=now() - 1.0))
    assert message().startswith("interrupted: the service that tunes it was stopped or slow for a while")
    late.give_up(scene.store)
    assert message().startswith("interrupted: the service that tuned it has ended")


def test_a_run_that_ends_is_nobodys(scene: Scene) -> None:
    one = Ownership(60.0, "one")
    one.hold(scene.store)
    with scene.store.write() as c:
        c.execute(sa.update(run).values(state=RunState.CANCELLED))
    assert one.hold(scene.store) == []


def test_a_process_that_is_gone_is_not_waited_for(scene: Scene) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    gone = ownership.process_name(child)  # not waited for yet: it still has its number
    assert not ownership.is_gone(gone)
    os.waitpid(child, 0)
    assert ownership.is_gone(gone)
    assert not ownership.is_gone(ownership.process_name(os.getpid()))
    assert ownership.is_gone(ownership.process_name(os.getpid()) + "0")  # another that had this number
    elsewhere = f"another boot:pid:[1]/{child}/1"
    assert not ownership.is_gone(elsewhere) and not ownership.is_gone("one")
    Ownership(60.0, gone).hold(scene.store)
    assert Ownership(60.0, "other").hold(scene.store) == [scene.run_id]
    with scene.store.read() as c:
        assert c.scalar(sa.select(sa.func.count()).select_from(job)) == 0
