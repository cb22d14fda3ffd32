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

from service.errors import DeviceBusyError, LeaseLostError, ServiceError
from service.queue import job as queue
from service.queue import lease as leasing
from service.queue import renewal, retry
from service.queue import report as reporting
from service.store.db import Store
from service.store.sql import now
from service.store.tables import EntryState, JobState, job, job_entry, lease, record
from service.tuning import run as runs
from strategy.record import Lease, Report, Results
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
        """As the service does: together with others, and by a transaction of its own where that does not serve it."""
        asked = data.draw(st.lists(st.sampled_from(self.held), min_size=1, max_size=3))
        live = [self.is_live(held) for held in asked]
        with self.store.write() as c:
            answers = renewal.renew_many(c, [(held.id, held.token, timing) for held in asked], TERMS)
        for held, answer, was_live in zip(asked, answers, live, strict=True):
            assert answer is None or was_live
            if answer is not None:
                continue
            try:
                with self.store.write() as c:
                    renewal.renew(c, held.id, held.token, timing, TERMS)
            except (LeaseLostError, DeviceBusyError):
                pass

    @precondition(lambda self: self.held)
    @rule(data=st.data(), number=st.integers(1, 3))
    def report(self, data: Any, number: int) -> None:
        """Some results of some leases, perhaps again, perhaps late, perhaps with another's token."""
        sent, fresh, lies, live = [], [], [], []
        for _ in range(number):
            held = data.draw(st.sampled_from(self.held))
            some = data.draw(st.lists(st.sampled_from(held.job.entries), max_size=3))
            done, lie, good = (data.draw(st.booleans()) for _ in range(3))
            results = Results(
                token=held.token + lie, session=f"s{held.id}", done=done,
                results=tuple(timed(e) if good else failed(e.index) for e in some),
            )
            sent.append(Report(lease_id=held.id, results=results))
            fresh.append({e.index for e in some})
            lies.append(lie)
            live.append(self.is_live(held))
        with self.store.write() as c:
            answers = reporting.report_many(c, sent, TERMS)
        for one, answer, entries, lie, was_live in zip(sent, answers, fresh, lies, live, strict=True):
            if isinstance(answer, ServiceError):
                assert isinstance(answer, LeaseLostError)
                # Another report of the batch may have ended the lease.
                assert lie or not was_live or sum(other.lease_id == one.lease_id for other in sent) > 1
                continue
            assert not lie
            assert answer.accepted + answer.known == len(entries)
            if not was_live:
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
    )
    run_state_machine_as_test(Machine, settings=sizes)


def test_the_machine_finds_a_queue_that_breaks_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that takes late results must not pass."""
    monkeypatch.setattr(renewal, "_is_live", lambda lease_id, token: lease.c.id == lease_id)

    class Machine(QueueMachine):
        pass

    Machine.store = store
    sizes = settings(
        max_examples=30, stateful_step_count=25, deadline=None, derandomize=True, print_blob=False,
        suppress_health_check=list(HealthCheck), database=None, phases=[Phase.generate],
    )
    with pytest.raises(BaseException):
        run_state_machine_as_test(Machine, settings=sizes)
