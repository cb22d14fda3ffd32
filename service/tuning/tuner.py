"""The tuner, which joins search, queue and records: propose → enqueue → absorb → refit.

One thread of each service process tunes the live runs that it owns (see `ownership`). Its state can be
rebuilt from the database: after a restart, or when another service takes a run over, it reads records and
open jobs, and continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from service.errors import DatabaseError
from service.queue import fleet, retry
from service.queue import job as jobs
from service.queue.overdue import Overdue
from service.records import best, log_page
from service.search.child import CostModel
from service.settings import Settings
from service.store import catalogue, event
from service.store.background import Background
from service.store.db import Connection, Store
from service.store.wakeup import Wakeup
from service.tuning import (
    crossing,
    decision,
    final,
    intake,
    other_run,
    remeasure,
    state,
    tuning_run,
)
from service.tuning import run as runs
from service.tuning.decision import Proposal
from service.tuning.final import CONFIRM_SESSIONS, MORE_SESSIONS
from service.tuning.ownership import Ownership
from service.tuning.tuning_run import TuningRun
from strategy.record import BOUND, Phase, RunState
from strategy.select import doubtful, unsettled

MIN_OPEN_JOBS = 2  # one being timed, one being built
REMEASURE_EVERY_S = 60.0  # interval of looking for finals to repeat
log = logging.getLogger(__name__)


class Tuner(Background):
    """Tuner of all live runs of a database.

    Args:
        settings: batch size, lease terms and intervals.
        model: the cost model, for runs that request one.
        changed: notified of results and of created or cancelled runs, also by the tuner.
        queued: notified when jobs are enqueued.
    """

    def __init__(
        self, store: Store, settings: Settings, model: CostModel, changed: Wakeup, queued: Wakeup
    ) -> None:
        super().__init__("tuner", settings.poll_s, changed)
        self.store = store
        self.settings = settings
        self.model = model
        self.changed = changed
        self.queued = queued
        self._terms = retry.Terms(settings.lease_s, settings.alive_s, Overdue(settings.grace_s))
        self._ownership = Ownership(settings.lease_s)
        self._runs: dict[int, TuningRun] = {}
        self._remeasure_at = 0.0  # time.monotonic

    def stop(self) -> None:
        """End the thread after the step that it is in, and give its runs to other services."""
        super().stop()
        try:
            self._ownership.give_up(self.store)
        except DatabaseError as error:
            log.warning("runs were not released; other services take them over when their leases expire: %s", error)

    def step(self) -> None:
        """Take expired leases back, and bring each live run one step further."""
        try:
            self._step()
        except Exception:
            self._runs.clear()  # what they have seen may have been rolled back
            raise

    def _step(self) -> None:
        with self.store.write() as connection:
            expired = retry.expire(connection, self._terms)
            runs.bound_creation(connection)
        live = self._ownership.hold(self.store)
        held, held_at = set(live), time.monotonic()
        for run_id in self._runs.keys() - held:
            del self._runs[run_id]
        for run_id in live:
            if time.monotonic() - held_at > self._ownership.term_s / 4:  # by a slow answer of a model
                held, held_at = set(self._ownership.hold(self.store)), time.monotonic()
            if run_id not in held:
                continue
            try:
                self._step_run(run_id)
            except DatabaseError:
                raise  # not caused by the run
            except Exception as error:
                log.exception("run %d failed in the tuner", run_id)
                self._runs.pop(run_id, None)
                with self.store.write() as connection:
                    message = f"the tuner failed: {type(error).__name__}: {error}"
                    if not self._ownership.lasts(connection, run_id):
                        continue
                    runs.finish(connection, run_id, RunState.FAILED, message)
                    jobs.cancel(connection, run_id, "its run failed")
                self.changed.notify()
        if expired or self._remeasure():
            self.queued.notify()

    def _remeasure(self) -> bool:
        """Enqueue finals of an earlier day, at intervals; return whether there were any."""
        if not self.settings.remeasure_s or time.monotonic() < self._remeasure_at:
            return False
        self._remeasure_at = time.monotonic() + REMEASURE_EVERY_S
        terms = self.settings.remeasure_s, self.settings.alive_s
        with self.store.read() as connection:
            if not remeasure.is_due(connection, *terms):
                return False
        with self.store.write() as connection:
            return bool(remeasure.enqueue_due(connection, *terms))

    def _step_run(self, run_id: int) -> None:
        with self.store.read() as connection:
            if run_id not in self._runs:
                self._runs[run_id] = tuning_run.load(connection, run_id, self.model)
            tuning = self._runs[run_id]
            intake.absorb(connection, tuning)
            if tuning.is_overtaken:
                tuning = self._runs[run_id] = tuning_run.load(connection, run_id, self.model)
                intake.absorb(connection, tuning)
            row = state.read_state(connection, run_id)
            tuning.join(row.priority)
            open_jobs = jobs.open_jobs(connection, run_id)
            behind, beside = other_run.find_behind(connection, decision.find_needed(tuning), row.priority)
            ahead = other_run.find_ahead(connection, run_id, tuning.request)
            held = fleet.count_held(connection, tuning.target_id, self.settings.alive_s)
        if row.state == RunState.CONFIRMING:
            if not open_jobs:
                self._finish(tuning)
            return
        timeout_s = tuning.request.timeout_s
        timed_out = timeout_s is not None and row.age_s > timeout_s
        proposals: list[Proposal] = []
        if not timed_out:
            decision.judge(tuning)
            room = max(MIN_OPEN_JOBS, held) - open_jobs
            proposals = decision.propose(self.store, tuning, room, self.settings.batch)
        if row.max_jobs is not None:  # what it waits for counts as its own
            behind = behind[: max(0, row.max_jobs - open_jobs - len(proposals) - beside)]
        waiting = not timed_out and decision.is_waiting(tuning)
        idle = not (open_jobs or waiting)
        self._write(tuning, proposals, behind, ahead, timed_out=timed_out, waiting=waiting, idle=idle)

    def _write(
        self, tuning: TuningRun, proposals: Sequence[Proposal], behind: Sequence[int],
        ahead: Mapping[int, int], *, timed_out: bool, waiting: bool, idle: bool,
    ) -> None:
        if not (proposals or behind or ahead or tuning.changed or timed_out or idle):
            return
        by_id = {t.id: t for t in tuning.tasks}
        with self.store.write() as connection:
            row = state.lock_state(connection, tuning.id)
            if row.state != RunState.RUNNING or not self._ownership.lasts(connection, tuning.id):
                return  # cancelled, or taken over by another service
            tuning.join(row.priority)
            for t in tuning.changed:
                state.set_task_state(connection, tuning.id, t)
            tuning.changed.clear()
            entries = [e for p in proposals for e in p.entries]
            if entries and crossing.is_crossed(connection, tuning, entries):
                del self._runs[tuning.id]  # to be loaded again, with what another service has enqueued meanwhile
                return
            for p in proposals:
                self._enqueue(connection, tuning, p, Phase.SEARCH)
            if timed_out:
                jobs.cancel(connection, tuning.id, "its run reached its time limit")
            ended = not (proposals or waiting or jobs.open_jobs(connection, tuning.id))
            if ended:
                self._confirm(connection, tuning, timed_out=timed_out)
            elif not timed_out:
                # The last, as a claim may wait for them.
                other_run.fall_back(connection, ahead, row.priority)
                other_run.bring_forward(connection, behind, row.priority)
        for e in entries:
            by_id[e.task_id].referenced = True
        self.queued.notify()
        if ended:
            self.changed.notify()

    def _enqueue(
        self, connection: Connection, tuning: TuningRun, p: Proposal, phase: Phase, number: int = 0
    ) -> None:
        """Enqueue a proposal; a search has one draw of inputs, which workers keep, each of the finals its own.

        Args:
            number: of the final, from 1.
        """
        request = tuning.request
        policy = request.search_policy if phase is Phase.SEARCH else request.confirm_policy
        jobs.enqueue(
            connection, tuning.id, p.workload_id, tuning.target_id, phase, p.entries, policy,
            seed=(request.seed * 1_000_003 + number) % 2**31,
            priority=p.priority - jobs.RUN_PRIORITY * request.priority,
        )
        if phase is Phase.SEARCH and tuning.policy_id is None:
            tuning.policy_id = catalogue.put_policy(connection, policy)

    def _confirm(self, connection: Connection, tuning: TuningRun, *, timed_out: bool) -> None:
        """Enqueue the finals: the best of all implementations and their fallbacks, interleaved."""
        why = decision.explain_end(tuning, timed_out=timed_out)
        state.begin_finals(connection, tuning.id, why, complete=not timed_out)
        for workload_id, group in tuning.by_workload().items():
            entries = [e for t in group for e in final.find_finalists(connection, tuning, t)]
            for number in range(1, CONFIRM_SESSIONS + 1 if entries else 0):
                proposal = Proposal(workload_id, tuple(entries), jobs.URGENT)
                self._enqueue(connection, tuning, proposal, Phase.CONFIRM, number)

    def _finish(self, tuning: TuningRun) -> None:
        with self.store.write() as connection:
            row = state.lock_state(connection, tuning.id)
            if row.state != RunState.CONFIRMING or not self._ownership.lasts(connection, tuning.id):
                return
            tuning.join(row.priority)
            again, doubt = self._settle(connection, tuning, out_of_time=not row.complete)
            if not again:
                self._close_run(connection, tuning, row, doubt)
        (self.queued if again else self.changed).notify()

    def _close_run(
        self, connection: Connection, tuning: TuningRun, row: Any, doubt: set[str]
    ) -> None:
        """End a run whose finals are done."""
        failed = [
            w for w, group in tuning.by_workload().items()
            if not best.is_measured(connection, [t.id for t in group])
        ]
        if len(failed) == len(tuning.by_workload()):
            why = f"{row.message}; nothing ran: {_first_failure(connection, tuning)}"
            runs.finish(connection, tuning.id, RunState.FAILED, why)
        else:
            names = catalogue.find_workload_keys(connection, failed)
            message = row.message
            if doubt:
                message += f"; times not known within ±{BOUND:.1%}: {', '.join(sorted(doubt))}"
            if names:
                message += f"; nothing ran of {', '.join(names)}"
            runs.finish(
                connection, tuning.id, RunState.DONE, message,
                complete=bool(row.complete) and not failed,
            )

    def _settle(
        self, connection: Connection, tuning: TuningRun, *, out_of_time: bool
    ) -> tuple[bool, set[str]]:
        """Enqueue another final of each workload whose estimates are unbounded.

        Returns whether there are any, and the implementations that stay unbounded.
        """
        again = False
        doubt: set[str] = set()
        for workload_id, group in tuning.by_workload().items():
            found = final.find_estimates(connection, tuning.id, [t.id for t in group])
            names = set().union(*map(unsettled, found))
            most = CONFIRM_SESSIONS + MORE_SESSIONS
            spent = out_of_time or final.count(connection, tuning.id, workload_id) >= most
            if not names or spent:
                doubt.update(*map(doubtful, found))
                continue
            again = True
            uncertain = [t for t in group if t.implementation in names]
            entries = [e for t in uncertain for e in final.find_finalists(connection, tuning, t)]
            proposal = Proposal(workload_id, tuple(entries), jobs.URGENT)
            number = final.count(connection, tuning.id, workload_id) + 1
            self._enqueue(connection, tuning, proposal, Phase.CONFIRM, number)
            event.note(
                connection, "measuring again", run_id=tuning.id, workload_id=workload_id,
                implementations=sorted(names),
            )
        return again, doubt


def _first_failure(connection: Connection, tuning: TuningRun) -> str:
    counted = runs.trials_of(tuning.id, tuning.request.force, tuning.policy_id)
    failed = log_page.find_first_failure(connection, tuning.id, [t.id for t in tuning.tasks], counted)
    if failed is None:
        return "no worker for this target leased a job"
    first = (failed.message.strip().splitlines() or [""])[0]
    return f"the first failure is {failed.error}: {first}"
