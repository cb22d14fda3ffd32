"""The queue under every order of what workers, their losses and their lies can do, on both databases."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from service.errors import DeviceBusyError, LeaseLostError
from service.queue import job as queue
from service.queue import lease as leasing
from service.queue import retry
from service.store.db import Store
from service.store.sql import now
from service.store.tables import EntryState, JobState, job, job_entry, lease, record
from service.tuning import run as runs
from strategy.record import Lease
from strategy.target import Target
from tests.integration.scene import TERMS, Scene, configs, device, failed, request, timed

pytestmark = pytest.mark.in_turn("url")

DEVICES = 3
_numbers = itertools.count(1)


class QueueMachine(RuleBasedStateMachine):
    """One run on a target of its own, and three devices."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        number = next(_numbers)
        self.target = Target.parse(f"llvm -mcpu=znver4 -num-cores={number}")
        self.scene = Scene.make(self.store, request(target=self.target, force=True))
        self.names = [f"host-{number}-{i}/cpu:0" for i in range(DEVICES)]
        self.workers = [self.register(i) for i in range(DEVICES)]
        self.held: list[Lease] = []  # all leases that there ever were, the newest last
        self.configs = 0

    def register(self, i: int) -> int:
        return self.scene.register(device(self.names[i], self.target))

    @rule(entries=st.integers(1, 3))
    def enqueue(self, entries: int) -> None:
        wanted = configs(144)[self.configs % 140 : self.configs % 140 + entries]
        self.configs += entries
        self.scene.enqueue(wanted)

    @rule(i=st.integers(0, DEVICES - 1), most=st.integers(1, 3))
    def ask(self, i: int, most: int) -> None:
        found = self.scene.lease_many(self.workers[i], most, self.names[i])
        assert len(found) <= most
        self.held += found

    @precondition(lambda self: self.held)
    @rule(data=st.data(), timing=st.booleans())
    def renew(self, data: Any, timing: bool) -> None:
        held = data.draw(st.sampled_from(self.held))
        try:
            with self.store.write() as c:
                leasing.renew(c, held.id, held.token, timing, TERMS)
        except (LeaseLostError, DeviceBusyError):
            pass

    @precondition(lambda self: self.held)
    @rule(data=st.data(), done=st.booleans(), lie=st.booleans(), good=st.booleans())
    def report(self, data: Any, done: bool, lie: bool, good: bool) -> None:
        """Some results, perhaps again, perhaps late, perhaps with another's token."""
        held = data.draw(st.sampled_from(self.held))
        some = data.draw(st.lists(st.sampled_from(held.job.entries), max_size=3))
        sent = held if not lie else Lease(
            id=held.id, token=held.token + 1, expires_in_s=0.0, job=held.job
        )  # fmt: skip
        live = self.is_live(held)
        try:
            answer = self.scene.report(
                sent, [timed(e) if good else failed(e.index) for e in some], done=done
            )
        except LeaseLostError:
            assert lie or not live
            return
        assert not lie
        fresh = {e.index for e in some}
        assert answer.accepted + answer.known == len(fresh)
        if not live:
            assert answer.accepted == 0  # the lease's last report, sent again

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: Any) -> None:
        held = data.draw(st.sampled_from(self.held))
        try:
            with self.store.write() as c:
                leasing.release(c, held.id, held.token, TERMS)
        except LeaseLostError:
            assert not self.is_live(held)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def lose(self, data: Any) -> None:
        self.scene.lose(data.draw(st.sampled_from(self.held)))

    @rule(i=st.integers(0, DEVICES - 1))
    def restart(self, i: int) -> None:
        """A worker that begins anew while its former self still has leases."""
        self.workers[i] = self.register(i)

    @rule()
    def rest(self) -> None:
        with self.store.write() as c:
            c.execute(sa.update(job).values(available_at=now() - 1.0))

    def is_live(self, held: Lease) -> bool:
        query = sa.select(lease.c.id).where(lease.c.id == held.id, lease.c.ended_at.is_(None))
        with self.store.read() as c:
            return c.scalar(query) is not None

    @invariant()
    def a_leased_job_has_one_live_lease_and_no_other_has_any(self) -> None:
        live = sa.select(lease.c.job_id).where(lease.c.ended_at.is_(None))
        with self.store.read() as c:
            jobs = self.jobs(c)
            leased = sorted(j for j in c.scalars(live) if j in jobs)
        assert leased == sorted(j for j, state in jobs.items() if state == JobState.LEASED)

    @invariant()
    def a_device_times_one_job(self) -> None:
        query = sa.select(lease.c.device_id).where(lease.c.ended_at.is_(None), lease.c.timing)
        with self.store.read() as c:
            timing = c.scalars(query).all()
        assert len(timing) == len(set(timing))

    @invariant()
    def an_entry_is_done_where_it_has_a_record_and_open_otherwise(self) -> None:
        with self.store.read() as c:
            jobs = self.jobs(c)
            entries = c.execute(sa.select(job_entry).where(job_entry.c.job_id.in_(jobs))).all()
            written = c.execute(
                sa.select(record.c.job_id, record.c.entry).where(record.c.run_id == self.scene.run_id)
            ).all()
        done = {(e.job_id, e.entry) for e in entries if e.state == EntryState.DONE}
        assert sorted(done) == sorted(tuple(r) for r in written)
        waiting = {e.job_id for e in entries if e.state == EntryState.PENDING}
        queued = {j for j, state in jobs.items() if state == JobState.QUEUED}
        leased = {j for j, state in jobs.items() if state == JobState.LEASED}
        # Of a leased one all may be there, and only the word that this is all not yet.
        assert queued <= waiting <= queued | leased

    def jobs(self, c: sa.Connection) -> dict[int, str]:
        rows = c.execute(sa.select(job.c.id, job.c.state).where(job.c.run_id == self.scene.run_id))
        return {row.id: row.state for row in rows}

    def teardown(self) -> None:
        """Whatever happened, one good worker finishes it: nothing is stuck."""
        with self.store.write() as c:
            c.execute(sa.update(lease).where(lease.c.ended_at.is_(None)).values(expires_at=now() - 1))
            retry.expire(c, TERMS)
        good = self.workers[0] = self.register(0)
        for _ in range(10_000):
            with self.store.write() as c:
                c.execute(sa.update(job).values(available_at=now() - 1.0))
            held = self.scene.lease(good, self.names[0]) or self._elsewhere()
            if held is None:
                break
            self.scene.report(held, [timed(e) for e in held.job.entries])
        with self.store.write() as c:
            states = set(self.jobs(c).values())
            assert states <= {JobState.DONE, JobState.QUARANTINED}, states
            assert not queue.open_jobs(c, self.scene.run_id)
            entries = c.scalar(
                sa.select(sa.func.count()).where(job_entry.c.job_id.in_(self.jobs(c)))
            )
            written = c.scalar(
                sa.select(sa.func.count()).where(record.c.run_id == self.scene.run_id)
            )
            assert entries == written
            runs.cancel(c, self.scene.run_id)

    def _elsewhere(self) -> Lease | None:
        """A suspect that this device has lost twice goes to another."""
        for i in range(1, DEVICES):
            self.workers[i] = self.register(i)
            held = self.scene.lease(self.workers[i], self.names[i])
            if held is not None:
                return held
        return None


def test_the_queue_keeps_its_promises(store: Store, full: bool) -> None:
    class Machine(QueueMachine):
        pass

    Machine.store = store
    sizes = settings(
        max_examples=100 if full else 6, stateful_step_count=40 if full else 25, deadline=None,
        derandomize=not full, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(Machine, settings=sizes)


def test_the_machine_finds_a_queue_that_breaks_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that takes late results must not pass."""
    monkeypatch.setattr(leasing, "_is_live", lambda lease_id, token: lease.c.id == lease_id)

    class Machine(QueueMachine):
        pass

    Machine.store = store
    sizes = settings(
        max_examples=30, stateful_step_count=25, deadline=None, derandomize=True, print_blob=False,
        suppress_health_check=list(HealthCheck), database=None, phases=[Phase.generate],
    )  # fmt: skip
    with pytest.raises(BaseException):
        run_state_machine_as_test(Machine, settings=sizes)
