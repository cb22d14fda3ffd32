"""The queue on both databases: claims, fencing, expiry, quarantine."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from service.errors import DeviceBusyError, InvalidError, LeaseLostError, NotFoundError
from service.queue import claim, fleet, heartbeat, renewal, retry, worker_status
from service.queue import job as jobs
from service.queue import lease as leasing
from service.queue import report as reporting
from service.queue.place import LeaseAsk
from service.store.db import Store
from service.store.sql import now
from service.store.tables import event, job, job_entry, lease, worker
from strategy.record import (
    ALL,
    ErrorKind,
    Reference,
    Renewal,
    Renewed,
    Report,
    Result,
    Results,
    RunRequest,
    RunState,
    WireError,
    convert,
    encode,
)
from tests.integration.scene import (
    FAST,
    OTHER_TARGET,
    SLOW,
    TERMS,
    Scene,
    configs,
    device,
    failed,
    lease_jobs,
    request,
    seconds,
    timed,
)
from tests.serve import serve

pytestmark = pytest.mark.in_turn("url")


@pytest.fixture
def scene(store: Store) -> Scene:
    return Scene.make(store)


def renew(scene: Scene, lease_id: int, token: int, timing: bool = False) -> Renewed:
    with scene.store.write() as c:
        return renewal.renew(c, lease_id, token, timing, TERMS)


def test_a_job_goes_round(scene: Scene) -> None:
    job_id = scene.enqueue(configs(3))
    held = scene.leased(scene.register())
    assert held.job.id == job_id
    assert [e.config for e in held.job.entries] == configs(3)
    assert [e.index for e in held.job.entries] == [0, 1, 2]
    assert held.job.entries[0].implementation == FAST.implementation
    assert held.job.attempt == 1
    assert renew(scene, held.id, held.token, timing=True).expires_in_s == TERMS.lease_s
    accepted = scene.report(held, [timed(e) for e in held.job.entries])
    assert (accepted.accepted, accepted.known) == (3, 0)
    assert scene.states() == ["done"]
    assert [r.entry for r in scene.records()] == [0, 1, 2]


@pytest.mark.in_turn
def test_two_claim_one_job_and_one_wins(scene: Scene) -> None:
    workers = [scene.register(device(f"host-{i}/cpu:0")) for i in range(8)]
    for _ in range(5):
        scene.enqueue(configs(1))
        barrier = threading.Barrier(len(workers))

        def claim(i: int, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            return scene.lease(workers[i], f"host-{i}/cpu:0") is not None

        with ThreadPoolExecutor(len(workers)) as pool:
            assert sum(pool.map(claim, range(len(workers)))) == 1
        with scene.store.write() as c:
            c.execute(sa.update(lease).values(ended_at=now()))


@pytest.mark.in_turn
def test_many_claim_many_jobs_and_each_goes_once(scene: Scene) -> None:
    for _ in range(24):
        scene.enqueue(configs(1))
    workers = [scene.register(device(f"host-{i}/cpu:0")) for i in range(6)]

    def work(i: int) -> list[int]:
        taken = []
        while (held := scene.lease(workers[i], f"host-{i}/cpu:0")) is not None:
            scene.report(held, [timed(e) for e in held.job.entries])
            taken.append(held.job.id)
        return taken

    with ThreadPoolExecutor(len(workers)) as pool:
        taken = [job_id for ids in pool.map(work, range(len(workers))) for job_id in ids]
    assert len(taken) == len(set(taken)) == 24
    assert len(scene.records()) == 24


@pytest.mark.in_turn
def test_sixteen_threads_write_and_none_is_locked_out(scene: Scene) -> None:
    workers = [scene.register(device(f"host-{i}/cpu:0")) for i in range(16)]

    def write(i: int) -> None:
        for _ in range(20):
            with scene.store.write() as c:
                heartbeat.store(c, [workers[i]], 0.0)
                c.execute(
                    sa.insert(event).values(at=now(), kind="test", worker_id=workers[i], detail={})
                )

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, range(16)))
    with scene.store.read() as c:
        count = sa.select(sa.func.count()).where(event.c.kind == "test")
        assert c.scalar(count) == 16 * 20


def test_a_device_builds_one_job_and_times_another(scene: Scene) -> None:
    for _ in range(3):
        scene.enqueue(configs(1))
    worker_id = scene.register()
    first = scene.leased(worker_id)
    assert scene.lease(worker_id) is None
    renew(scene, first.id, first.token, timing=True)
    second = scene.leased(worker_id)
    assert second.job.id != first.job.id
    assert scene.lease(worker_id) is None
    with pytest.raises(DeviceBusyError):
        renew(scene, second.id, second.token, timing=True)
    renew(scene, second.id, second.token)
    scene.report(first, [timed(e) for e in first.job.entries])
    renew(scene, second.id, second.token, timing=True)


def test_two_workers_on_one_device_time_one_after_the_other(scene: Scene) -> None:
    for _ in range(2):
        scene.enqueue(configs(1))
    one, other = scene.register(), scene.register()
    first = scene.leased(one)
    renew(scene, first.id, first.token, timing=True)
    second = scene.leased(other)
    with pytest.raises(DeviceBusyError):
        renew(scene, second.id, second.token, timing=True)


def test_a_renewal_that_has_to_wait_for_the_device_extends_the_lease_all_the_same(scene: Scene, url: str) -> None:
    for _ in range(2):
        scene.enqueue(configs(1))
    worker_id = scene.register()
    first = scene.leased(worker_id)
    renew(scene, first.id, first.token, timing=True)
    second = scene.leased(worker_id)
    times = sa.select(lease.c.expires_at, worker.c.seen_at).where(
        lease.c.id == second.id, worker.c.id == lease.c.worker_id
    )
    with scene.store.write() as c:
        c.execute(sa.update(worker).values(seen_at=now() - 50.0))
        before = c.execute(times).one()
    asked = encode(Renewal(token=second.token, timing=True))
    with serve(url, lease_s=600.0) as place:
        answer = httpx.post(f"{place}/v1/leases/{second.id}/renew", content=asked)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:plevel:device-busy")
    with scene.store.read() as c:
        after = c.execute(times).one()
        assert c.scalars(sa.select(lease.c.id).where(lease.c.timing)).all() == [first.id]
    assert after.expires_at > before.expires_at
    assert after.seen_at > before.seen_at


@pytest.mark.in_turn
def test_the_database_itself_allows_one_live_lease_of_a_job(scene: Scene) -> None:
    scene.enqueue(configs(1))
    held = scene.leased(scene.register())
    other = scene.register(device("host-b/cpu:0"))
    with scene.store.read() as c:
        row = c.execute(sa.select(lease).where(lease.c.id == held.id)).one()
        device_id = c.execute(sa.text("SELECT id FROM device WHERE identity = 'host-b/cpu:0'"))
        values = {**row._asdict(), "device_id": device_id.scalar_one(), "worker_id": other}
    del values["id"]
    with pytest.raises(sa.exc.IntegrityError), scene.store.write() as c:
        c.execute(sa.insert(lease).values(values))


def test_a_late_result_is_refused_and_changes_nothing(scene: Scene) -> None:
    scene.enqueue(configs(2))
    slow, quick = scene.register(), scene.register(device("host-b/cpu:0"))
    late = scene.leased(slow)
    scene.lose(late)
    held = scene.leased(quick, "host-b/cpu:0")
    assert held.token > late.token
    assert held.job.attempt == 2
    with pytest.raises(LeaseLostError):
        scene.report(late, [timed(late.job.entries[0])])
    with pytest.raises(LeaseLostError):
        renew(scene, late.id, late.token)
    with pytest.raises(LeaseLostError):
        renew(scene, held.id, late.token)
    assert scene.records() == []
    assert scene.states() == ["leased"]
    scene.report(held, [timed(e) for e in held.job.entries])
    assert len(scene.records()) == 2


def test_a_late_result_is_kept_for_the_record(scene: Scene) -> None:
    scene.enqueue(configs(2))
    worker_id = scene.register()
    late = scene.leased(worker_id)
    scene.lose(late)
    sent = Results(token=late.token, session="s", results=(timed(late.job.entries[0]), failed(1)))
    unknown = Results(token=late.token + 7, session="s", results=sent.results)
    reports = [Report(lease_id=late.id, results=r) for r in (sent, unknown)]
    with scene.store.write() as c:
        answers = reporting.report_many(c, reports, TERMS)
        (kept,) = c.execute(sa.select(event).where(event.c.kind == "late")).all()
    assert all(isinstance(a, LeaseLostError) for a in answers)
    assert (kept.run_id, kept.job_id, kept.worker_id) == (scene.run_id, late.job.id, worker_id)
    first, second = kept.detail["results"]
    assert first["median_s"] == pytest.approx(seconds(FAST.implementation, configs(1)[0]))
    assert (second["entry"], second["error"], second["median_s"]) == (1, "compile", None)
    assert scene.records() == []
    assert scene.states() == ["queued"]


def test_a_lease_whose_time_is_over_lasts_until_it_is_ended(scene: Scene) -> None:
    scene.enqueue(configs(2))
    held = scene.leased(scene.register())
    past = sa.update(lease).values(expires_at=now() - 0.5)
    with scene.store.write() as c:
        c.execute(past)
    # Nobody else has the job yet.
    assert scene.report(held, [timed(held.job.entries[0])], done=False).accepted == 1
    with scene.store.write() as c:
        c.execute(past)
        assert retry.expire(c, TERMS) == 1
    with pytest.raises(LeaseLostError):
        scene.report(held, [timed(held.job.entries[1])])
    assert len(scene.records()) == 1


def test_results_sent_again_change_nothing(scene: Scene) -> None:
    scene.enqueue(configs(2))
    held = scene.leased(scene.register())
    first, second = held.job.entries
    assert scene.report(held, [timed(first)], done=False).accepted == 1
    again = scene.report(held, [failed(0), timed(second)], done=False)
    assert (again.accepted, again.known) == (1, 1)
    assert scene.report(held, [], done=True).accepted == 0
    after_the_end = scene.report(held, [timed(first), timed(second)], done=True)
    assert (after_the_end.accepted, after_the_end.known) == (0, 2)
    assert [r.error for r in scene.records()] == [None, None]
    assert scene.states() == ["done"]


def test_what_is_sent_again_with_more_is_named(scene: Scene) -> None:
    scene.enqueue(configs(3))
    held = scene.leased(scene.register())
    sent = [timed(e) for e in held.job.entries]
    scene.report(held, sent[:1], done=False)
    more = scene.report(held, sent[:2], done=False)
    assert (more.accepted, more.known, more.repeated) == (1, 1, (0,))
    again = scene.report(held, sent[:2], done=False)
    assert (again.accepted, again.known, again.repeated) == (0, 2, ())


def test_two_requests_for_one_device_get_no_more_than_one(scene: Scene) -> None:
    for _ in range(3):
        scene.enqueue(configs(1))
    asked = LeaseAsk(scene.register(), "host-a/cpu:0-1", 1)
    with scene.store.write() as c:
        answers = leasing.lease_many(c, [asked, asked], TERMS)
    assert [len(leases) for leases in answers if isinstance(leases, list)] == [1, 0]


def test_a_lost_job_comes_back_without_what_is_known(scene: Scene) -> None:
    scene.enqueue(configs(4))
    one, other = scene.register(), scene.register(device("host-b/cpu:0"))
    held = scene.leased(one)
    scene.report(held, [timed(e) for e in held.job.entries[:2]], done=False)
    scene.lose(held)
    again = scene.leased(other, "host-b/cpu:0")
    assert [e.index for e in again.job.entries] == [2, 3]
    scene.report(again, [timed(e) for e in again.job.entries])
    assert [r.entry for r in scene.records()] == [0, 1, 2, 3]


def test_giving_back_is_nobodys_fault(scene: Scene) -> None:
    scene.enqueue(configs(2))
    worker_id = scene.register()
    for _ in range(5):
        held = scene.leased(worker_id)
        assert held.job.attempt == 1
        with scene.store.write() as c:
            leasing.release(c, held.id, held.token, TERMS)
    held = scene.leased(worker_id)
    with scene.store.write() as c:
        fleet.end(c, worker_id)
        leasing.release_worker(c, worker_id, TERMS)
    assert scene.states() == ["queued"]
    with pytest.raises(NotFoundError):
        scene.lease(worker_id)


def test_a_worker_that_ends_a_job_without_results_is_held_to_it(scene: Scene) -> None:
    scene.enqueue(configs(1))
    held = scene.leased(scene.register())
    scene.report(held, [], done=True)
    with scene.store.read() as c:
        row = c.execute(sa.select(job)).one()
    assert (row.state, row.attempts) == ("queued", 1)


def test_backoff_keeps_a_lost_job_away_for_a_while(scene: Scene) -> None:
    scene.enqueue(configs(1))
    worker_id = scene.register()
    held = scene.leased(worker_id)
    with scene.store.write() as c:
        c.execute(sa.update(lease).where(lease.c.id == held.id).values(expires_at=now() - 1.0))
        assert retry.expire(c, TERMS) == 1
        left = c.scalar(sa.select(job.c.available_at - now()))
    assert left is not None
    assert 0.1 < left <= retry.MAX_BACKOFF_S
    assert scene.lease(worker_id) is None


def test_backoff_doubles_with_each_loss(scene: Scene) -> None:
    scene.enqueue(configs(1))
    worker_id, left = scene.register(), []
    for _ in range(2):
        held = scene.leased(worker_id)
        with scene.store.write() as c:
            c.execute(sa.update(lease).where(lease.c.id == held.id).values(expires_at=now() - 1.0))
            retry.expire(c, TERMS)
            left.append(c.scalar(sa.select(job.c.available_at - now())))
            c.execute(sa.update(job).values(available_at=now() - 1.0))
    assert left[1] == pytest.approx(2 * left[0], rel=0.4)


def test_a_job_that_is_given_back_keeps_the_reason_of_its_loss(scene: Scene) -> None:
    scene.enqueue(configs(1))
    worker_id = scene.register()
    scene.lose(scene.leased(worker_id))
    held = scene.leased(worker_id)
    with scene.store.write() as c:
        leasing.release(c, held.id, held.token, TERMS)
        assert c.scalar(sa.select(job.c.reason)) == f"worker {worker_id} was lost"


def test_parts_of_a_lost_job_go_to_a_device_that_has_not_lost_it(scene: Scene) -> None:
    scene.enqueue(configs(2))
    worker_id, other = scene.register(), scene.register(device("host-b/cpu:0"))
    for _ in range(retry.SPLIT_ATTEMPTS):
        scene.lose(scene.leased(worker_id))
    assert scene.states() == ["done", "queued", "queued"]
    assert scene.lease(worker_id) is None
    assert scene.leased(other, "host-b/cpu:0").job.attempt == retry.SPLIT_ATTEMPTS + 1


def test_a_timing_lease_is_renewed_as_one(scene: Scene) -> None:
    scene.enqueue(configs(1))
    held = scene.leased(scene.register())
    for _ in range(2):
        assert not renew(scene, held.id, held.token, timing=True).cancelled


@pytest.mark.parametrize("run_priority", [0, 1, 3])
def test_a_job_that_a_run_needs_is_not_behind_that_run_s_own(run_priority: int) -> None:
    last = jobs.lowest(run_priority)
    for priority in range(-400, 400, 7):
        found = jobs.raised(priority, run_priority)
        assert found == priority if priority <= last else last - jobs.RUN_PRIORITY < found <= last


def test_backoff_has_a_limit_however_often_a_job_was_lost(scene: Scene) -> None:
    """By one device, while another that lives does not take it."""
    scene.enqueue(configs(1))
    scene.register(device("host-b/cpu:0"))
    with scene.store.write() as c:
        c.execute(sa.update(job).values(attempts=5000))
    scene.lose(scene.leased(scene.register()))
    assert scene.states() == ["queued"]


def test_what_kills_its_workers_is_isolated_and_quarantined(scene: Scene) -> None:
    """Eight entries, of which number 5 kills whoever takes it: the others all get their results."""
    scene.enqueue(configs(8))
    workers = {i: scene.register(device(f"host-{i}/cpu:0")) for i in range(2)}
    deaths = 0
    for turn in range(60):
        i = turn % 2
        held = scene.lease(workers[i], f"host-{i}/cpu:0")
        if held is None:
            if {"queued", "leased"}.isdisjoint(scene.states()):
                break
            continue
        if any(e.index == 5 for e in held.job.entries):
            deaths += 1
            scene.lose(held)
        else:
            scene.report(held, [timed(e) for e in held.job.entries])
    by_entry = {r.entry: r for r in scene.records()}
    assert sorted(by_entry) == list(range(8))
    assert {entry: r.error for entry, r in by_entry.items() if r.error} == {5: ErrorKind.LOST}
    assert deaths == retry.MAX_ATTEMPTS
    assert sorted(set(scene.states())) == ["done", "quarantined"]
    with scene.store.read() as c:
        reason = c.scalar(sa.select(job.c.reason).where(job.c.state == "quarantined"))
    assert reason is not None
    assert "3 times" in reason
    assert by_entry[5].message == reason


def test_one_device_alone_decides_after_three_losses(scene: Scene) -> None:
    scene.enqueue(configs(1))
    worker_id = scene.register()
    for _ in range(3):
        scene.lose(scene.leased(worker_id))
    assert scene.states() == ["quarantined"]
    assert [r.error for r in scene.records()] == [ErrorKind.LOST]


def test_a_job_is_not_blamed_where_its_devices_lose_workers_anyway(scene: Scene) -> None:
    scene.enqueue(configs(1))
    other: int | None = None
    for loss in range(retry.MOST_ATTEMPTS):
        assert scene.states()[0] == "queued"
        worker_id = scene.register()
        scene.lose(scene.leased(worker_id))
        if loss == 0:  # another worker there is killed with a job that is then finished
            other = scene.enqueue(configs(2)[1:], priority=5)
            held = scene.leased(scene.register())
            assert held.job.id == other
            scene.lose(held)
            again = scene.leased(scene.register())
            assert again.job.id == other
            scene.report(again, [timed(again.job.entries[0])])
    assert scene.states() == ["quarantined", "done"]
    with scene.store.read() as c:
        reason = c.scalar(sa.select(job.c.reason).where(job.c.state == "quarantined"))
    assert reason is not None
    assert f"{retry.MOST_ATTEMPTS} times" in reason


def test_a_second_device_is_heard_before_the_verdict(scene: Scene) -> None:
    scene.enqueue(configs(1))
    one, other = scene.register(), scene.register(device("host-b/cpu:0"))
    for _ in range(2):
        scene.lose(scene.leased(one))
    assert scene.lease(one) is None, "it waits for the device that has not lost it"
    held = scene.leased(other, "host-b/cpu:0")
    scene.report(held, [timed(held.job.entries[0])])
    assert [r.error for r in scene.records()] == [None]


def test_a_suspect_runs_alone_on_its_worker(scene: Scene) -> None:
    suspect = scene.enqueue(configs(1))
    worker_id = scene.register()
    scene.lose(scene.leased(worker_id))
    scene.enqueue(configs(1))
    held = scene.leased(worker_id)
    assert held.job.id == suspect
    renew(scene, held.id, held.token, timing=True)
    assert scene.lease(worker_id) is None
    scene.report(held, [timed(held.job.entries[0])])
    assert scene.lease(worker_id) is not None


def test_a_worker_gets_what_it_can_build(scene: Scene) -> None:
    scene.enqueue(configs(1))
    version = int(FAST.version.partition(".")[0])
    for operators, fits in (
        ({"filter": {FAST.implementation: version + 1}}, False),
        ({"filter": {}}, False),
        ({"dense": {"dense_pack.cpu": 1}}, False),
        ({"dense": {ALL: 0}}, False),
        ({"filter": {FAST.implementation: version + 1, ALL: 0}}, False),
        ({"filter": {FAST.implementation: version}}, True),
    ):
        held = scene.lease(scene.register(operators=operators))
        assert (held is not None) == fits
    scene.enqueue(configs(1))
    other = scene.register(device("host-b/cpu:0"), operators={"filter": {ALL: 0}})
    assert scene.lease(other, "host-b/cpu:0") is not None
    scene.enqueue(configs(1))  # of another package, which has added it to an operator that has others
    third = scene.register(device("host-d/cpu:0"), operators={"filter": {SLOW.implementation: 7, ALL: 0}})
    assert scene.lease(third, "host-d/cpu:0") is not None


def test_what_a_worker_cannot_build_does_not_hide_what_it_can(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "NEXT", 1)
    for _ in range(3):
        scene.enqueue(configs(1))
    wanted = [scene.enqueue(configs(1), task=SLOW.implementation) for _ in range(2)]
    worker_id = scene.register(operators={"filter": {SLOW.implementation: 1}})
    assert [held.job.id for held in scene.lease_many(worker_id, 3)] == wanted


def test_a_worker_gets_jobs_of_its_target_only(scene: Scene) -> None:
    scene.enqueue(configs(1))
    elsewhere = scene.register(device("host-c/cpu:0", OTHER_TARGET))
    assert scene.lease(elsewhere, "host-c/cpu:0") is None
    with pytest.raises(InvalidError, match="host-c"):
        scene.lease(scene.register(), "host-c/cpu:0")


def test_urgent_jobs_go_first(scene: Scene) -> None:
    scene.enqueue(configs(1))
    urgent = scene.enqueue(configs(1), priority=jobs.URGENT)
    assert scene.leased(scene.register()).job.id == urgent


def test_a_result_of_no_entry_is_refused(scene: Scene) -> None:
    scene.enqueue(configs(1))
    held = scene.leased(scene.register())
    with pytest.raises(InvalidError, match=r"results\[1\].entry = 7"):
        scene.report(held, [timed(held.job.entries[0]), failed(7)])
    assert scene.records() == []


def test_a_cancelled_run_is_told_to_its_workers(scene: Scene) -> None:
    from service.tuning import run as runs

    scene.enqueue(configs(2))
    scene.enqueue(configs(2))
    held = scene.leased(scene.register())
    with scene.store.write() as c:
        runs.cancel(c, scene.run_id)
    assert scene.states() == ["leased", "cancelled"]
    assert renew(scene, held.id, held.token).cancelled
    assert scene.report(held, [timed(held.job.entries[0])], done=True).cancelled
    assert scene.states() == ["cancelled", "cancelled"]
    assert len(scene.records()) == 1


def test_jobs_of_a_run_that_failed_are_not_queued_again(scene: Scene) -> None:
    from service.tuning import run as runs

    scene.enqueue(configs(2))
    scene.enqueue(configs(2))
    held = scene.leased(scene.register())
    with scene.store.write() as c:
        runs.finish(c, scene.run_id, RunState.FAILED, "the tuner failed")
        jobs.cancel(c, scene.run_id, "its run failed")
    assert renew(scene, held.id, held.token).cancelled
    scene.lose(held)
    assert scene.states() == ["cancelled", "cancelled"]
    with scene.store.read() as c:
        assert set(c.scalars(sa.select(job.c.reason))) == {"its run failed"}


def test_the_report_that_ended_a_lease_unfinished_may_come_again(scene: Scene) -> None:
    scene.enqueue(configs(3))
    held = scene.leased(scene.register())
    sent = [timed(e) for e in held.job.entries[:2]]
    first = scene.report(held, sent)
    again = scene.report(held, sent)
    assert (first.accepted, again.accepted, again.known) == (2, 0, 2)
    assert len(scene.records()) == 2
    with scene.store.read() as c:
        assert c.scalar(sa.select(sa.func.count()).select_from(event).where(event.c.kind == "late")) == 0


def test_a_lease_that_ended_unfinished_takes_no_further_part(scene: Scene) -> None:
    scene.enqueue(configs(3))
    held = scene.leased(scene.register())
    scene.report(held, [timed(held.job.entries[0])])
    with pytest.raises(LeaseLostError):
        scene.report(held, [timed(held.job.entries[1])], done=False)
    assert len(scene.records()) == 1


def test_a_lease_of_before_a_restore_is_not_one_of_after_it(scene: Scene) -> None:
    """Ids of jobs and leases come again then, tokens do not."""
    worker_id = scene.register()
    fences = set()
    for _ in range(3):
        scene.enqueue(configs(1))
        held = scene.leased(worker_id)
        fences.add(held.token)
        scene.report(held, [timed(e) for e in held.job.entries])
    assert len(fences) == 3
    assert min(fences) > 1000


def test_a_lease_that_a_crash_or_a_restore_has_lost_is_not_the_next_of_its_job(scene: Scene) -> None:
    """The next may have its id, as in a copy from before it."""

    worker_id = scene.register()
    scene.enqueue(configs(1))
    tokens = []
    for _ in range(3):
        with scene.store.write() as c:
            (held,) = lease_jobs(c, worker_id, "host-a/cpu:0-1")
            tokens.append(held.token)
            c.rollback()
    held = scene.leased(worker_id)
    assert len({*tokens, held.token}) == 4
    assert max(tokens) < 2**53


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"environment": {"a": [{"b": 2**64}]}}, "environment"),
        ({"environment": {"x": -(2**63) - 1}}, "environment"),
    ],
)
def test_integers_beyond_64_bits_are_refused_by_name(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: -?[0-9]+ is beyond 64 bits"):
        Results(token=1, session="s", results=(), **values)
    with pytest.raises(ValueError, match="state: 1[0-9]+ is beyond"):
        Reference(samples_s=(1.0,), measured_at=1.0, state={"load": 10**30})
    with pytest.raises(WireError, match="max_jobs"):
        convert({**json.loads(encode(request())), "max_jobs": 2**64}, RunRequest)
    with pytest.raises(WireError, match="samples_s"):
        convert({"entry": 0, "samples_s": [1e308, 1e308]}, Result)
    with pytest.raises(WireError, match="measured_at"):
        convert({"entry": 0, "samples_s": [1.0], "measured_at": 1e300}, Result)


def test_a_result_has_a_time_or_an_error_never_both() -> None:
    with pytest.raises(ValueError, match="exactly one of them"):
        Result(entry=0, error=ErrorKind.COMPILE, samples_s=(1.0,))
    with pytest.raises(ValueError, match="exactly one of them"):
        Result(entry=0)


def test_who_is_alive(scene: Scene) -> None:
    worker_id = scene.register()
    with scene.store.write() as c:
        assert fleet.count_alive(c, scene.target_id, 10.0) == 1
        c.execute(sa.update(worker).values(seen_at=now() - 60.0))
        assert fleet.count_alive(c, scene.target_id, 10.0) == 0
        assert [w.alive for w in worker_status.statuses(c, 10.0)] == [False]
        assert heartbeat.store(c, [worker_id, worker_id + 1000], 10.0) == {worker_id}
        assert fleet.count_alive(c, scene.target_id, 10.0) == 1


def test_live_workers_are_listed_before_those_that_are_gone(scene: Scene) -> None:
    live, gone, newest = (scene.register(device(f"host-{i}/cpu:0")) for i in range(3))
    with scene.store.write() as c:
        c.execute(sa.update(worker).where(worker.c.id == gone).values(seen_at=now() - 60.0))
        assert [w.id for w in worker_status.statuses(c, 10.0)] == [newest, live, gone]


def test_every_live_worker_is_listed_and_the_newest_that_are_silent(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_status, "SILENT", 1)
    live, *silent, newest = (scene.register(device(f"host-{i}/cpu:0")) for i in range(5))
    with scene.store.write() as c:
        c.execute(sa.update(worker).where(worker.c.id.in_(silent)).values(seen_at=now() - 60.0))
        assert [w.id for w in worker_status.statuses(c, 10.0)] == [newest, live, silent[-1]]


def test_every_change_of_state_leaves_an_event(scene: Scene) -> None:
    job_id = scene.enqueue(configs(2))
    worker_id = scene.register()
    scene.lose(scene.leased(worker_id))
    held = scene.leased(worker_id)
    renew(scene, held.id, held.token, timing=True)
    scene.report(held, [timed(e) for e in held.job.entries])
    with scene.store.read() as c:
        kinds = list(
            c.scalars(sa.select(event.c.kind).where(event.c.job_id == job_id).order_by(event.c.id))
        )
        assert c.scalar(sa.select(sa.func.count()).select_from(job_entry)) == 2
    assert kinds == ["enqueued", "leased", "expired", "requeued", "leased", "timing", "done"]
