"""The tuner, which joins search, queue and records: propose → enqueue → absorb → refit.

One thread of each service process tunes the live runs that it owns (see `ownership`). Its state can be
rebuilt from the database: after a restart, or when another service takes a run over, it reads records and
open jobs, and continues.
"""
# Over 300 lines: one thread's steps over the runs that it holds.

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
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
from service.store.tables import Scope, TaskState
from service.store.wakeup import Wakeup
from service.tuning import budget, crossing, final, other_run, remeasure, state, tuning_run
from service.tuning import run as runs
from service.tuning.ownership import Ownership
from service.tuning.tuning_run import TuningRun, TuningTask, arms_of
from strategy.record import BOUND, Phase, RunState
from strategy.select import doubtful, unsettled
from strategy.space import Config
from strategy.table import show_number

FINALISTS = 3
CONFIRM_SESSIONS = 2
MORE_SESSIONS = 3  # maximum of finals, for estimates that two have left unbounded
MOST_NAMED = 8  # implementations in a run's message
MIN_OPEN_JOBS = 2  # one being timed, one being built
REMEASURE_EVERY_S = 60.0  # interval of looking for finals to repeat
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Proposal:
    """A job to enqueue."""

    workload_id: int
    entries: tuple[jobs.NewEntry, ...]
    priority: int = jobs.NORMAL


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
        """Ends the thread after the step that it is in, and gives its runs to other services."""
        super().stop()
        try:
            self._ownership.give_up(self.store)
        except DatabaseError as error:
            log.warning("runs were not released; other services take them over when their leases expire: %s", error)

    def step(self) -> None:
        """Takes expired leases back, and brings each live run one step further."""
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
            tuning_run.absorb(connection, tuning)
            if tuning.is_overtaken:
                tuning = self._runs[run_id] = tuning_run.load(connection, run_id, self.model)
                tuning_run.absorb(connection, tuning)
            row = state.read_state(connection, run_id)
            tuning.join(row.priority)
            open_jobs = jobs.open_jobs(connection, run_id)
            behind, beside = other_run.find_behind(connection, _needed(tuning), row.priority)
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
            self._judge(tuning)
            room = max(MIN_OPEN_JOBS, held) - open_jobs
            proposals = self._propose(tuning, room)
        if row.max_jobs is not None:  # what it waits for counts as its own
            behind = behind[: max(0, row.max_jobs - open_jobs - len(proposals) - beside)]
        waiting = not timed_out and self._is_waiting(tuning)
        idle = not (open_jobs or waiting)
        self._write(tuning, proposals, behind, ahead, timed_out=timed_out, waiting=waiting, idle=idle)

    # Decisions

    def _judge(self, tuning: TuningRun) -> None:
        """Drop the implementations that cannot win, and mark those with nothing left to try."""
        parts = tuning.parts()
        for workload_id, group in tuning.by_workload().items():
            arms, lead_s = arms_of(group)
            first = budget.share(arms, parts[workload_id])
            for t, arm in zip([t for t in group if t.search is not None], arms, strict=True):
                why = budget.hopeless(arm, lead_s, first)
                if why:
                    _close(tuning, t, TaskState.DROPPED, why)
                elif arm.exhausted:
                    _close(tuning, t, TaskState.EXHAUSTED, "all of its configurations have been tried")

    def _propose(self, tuning: TuningRun, room: int) -> list[Proposal]:
        proposals: list[Proposal] = []
        groups = tuning.by_workload()
        # Untunable implementations are measured first, as the others may have to beat them.
        for workload_id, group in groups.items():
            fixed = [jobs.NewEntry(t.id, Config()) for t in group if t.is_unmeasured and not t.awaited]
            if fixed:
                proposals.append(Proposal(workload_id, tuple(fixed), jobs.URGENT))
        parts = tuning.parts()
        while len(proposals) < room:
            stands = [budget.Stand(g[0].weight, parts[w], *arms_of(g)) for w, g in groups.items()]
            left = tuning.request.trials - tuning.spent
            made = None
            for i in budget.order(stands) if left > 0 else ():
                workload_id = list(groups)[i]
                made = self._propose_one(tuning, workload_id, parts[workload_id], left)
                if made is not None:
                    break
            if made is None:
                return proposals
            proposals.append(made)
        return proposals

    def _propose_one(
        self, tuning: TuningRun, workload_id: int, part: int, left: int
    ) -> Proposal | None:
        group = tuning.by_workload()[workload_id]
        tunable = [t for t in group if t.search is not None]
        if entries := self._begin(tuning, tunable, min(left, max(part, 1))):  # of few trials each workload has its part
            return Proposal(workload_id, entries)
        while True:
            arms, lead_s = arms_of(group)
            chosen = budget.next_arm(arms, part)
            if chosen is None:
                return None
            t = tunable[chosen]
            assert t.search is not None
            room = left
            first = budget.share(arms, part)
            if arms[chosen].trials < first:
                room = min(room, first - arms[chosen].trials)
            tuning_run.teach(self.store, tuning, t)
            configs = t.search.ask(min(self.settings.batch, room))
            least = tuning.request.until_gain
            if least and budget.settled(t.arm(lead_s), t.earlier_best_s, lead_s, least):
                # This proposal only shows the expected gain; it is not enqueued.
                why = f"no trial is expected to gain {100 * least:g} %"
                _close(tuning, t, TaskState.EXHAUSTED, why)
            elif configs:
                t.pending += len(configs)
                entries = tuple(jobs.NewEntry(t.id, c, t.best_s) for c in configs)
                return Proposal(workload_id, entries)
            elif not t.search.exhausted:
                # Too large to count, and no new configuration was found: practically exhausted.
                _close(tuning, t, TaskState.EXHAUSTED, "no further valid configuration was found")

    def _begin(
        self, tuning: TuningRun, tunable: Sequence[TuningTask], most: int
    ) -> tuple[jobs.NewEntry, ...]:
        """The first trial of each implementation, in one job: a run that ends early has tried all of them."""
        arms = [(t, t.arm(None)) for t in tunable]
        fresh = [t for t, arm in arms if arm.is_open and not arm.waiting and not arm.trials][:most]
        entries: list[jobs.NewEntry] = []
        for t in fresh if len(fresh) > 1 else ():
            assert t.search is not None
            tuning_run.teach(self.store, tuning, t)
            configs = t.search.ask(1)
            t.pending += len(configs)
            entries += [jobs.NewEntry(t.id, c, t.best_s) for c in configs]
        return tuple(entries)

    def _is_waiting(self, tuning: TuningRun) -> bool:
        """Return whether other runs have in the queue what is left for this one to measure."""
        more = tuning.spent < tuning.request.trials
        arms = [t.arm(None) for t in tuning.tasks if t.search is not None] if more else []
        return any(a.waiting and a.is_open for a in arms) or any(t.awaited and t.is_unmeasured for t in tuning.tasks)

    # Writing

    def _write(
        self, tuning: TuningRun, proposals: Sequence[Proposal], behind: Sequence[int],
        ahead: Mapping[int, int], *, timed_out: bool, waiting: bool, idle: bool,
    ) -> None:  # fmt: skip
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
        self, connection: Connection, tuning: TuningRun, p: Proposal, phase: Phase, final: int = 0
    ) -> None:
        """Enqueue a proposal; a search has one draw of inputs, which workers keep, each of the finals its own."""
        request = tuning.request
        policy = request.search_policy if phase is Phase.SEARCH else request.confirm_policy
        jobs.enqueue(
            connection, tuning.id, p.workload_id, tuning.target_id, phase, p.entries, policy,
            seed=(request.seed * 1_000_003 + final) % 2**31, priority=p.priority - jobs.RUN_PRIORITY * request.priority,
        )  # fmt: skip
        if phase is Phase.SEARCH and tuning.policy_id is None:
            tuning.policy_id = catalogue.put_policy(connection, policy)

    def _confirm(self, connection: Connection, tuning: TuningRun, *, timed_out: bool) -> None:
        """Enqueue the finals: the best of all implementations and their fallbacks, interleaved."""
        why = _why_stopped(tuning, timed_out=timed_out)
        state.begin_finals(connection, tuning.id, why, complete=not timed_out)
        for workload_id, group in tuning.by_workload().items():
            entries = [e for t in group for e in self._finalists(connection, tuning, t)]
            for number in range(1, CONFIRM_SESSIONS + 1 if entries else 0):
                proposal = Proposal(workload_id, tuple(entries), jobs.URGENT)
                self._enqueue(connection, tuning, proposal, Phase.CONFIRM, number)

    def _finalists(
        self, connection: Connection, tuning: TuningRun, t: TuningTask
    ) -> list[jobs.NewEntry]:
        models = final.find_models(connection, t.id)
        # Times of different device models do not compare: each of this run has finalists of its own.
        here = (final.find_models(connection, t.id, tuning.id) or models) if len(models) > 1 else []
        places = [(Scope.MODEL, m) for m in here] or [(Scope.TARGET, "")]
        by_place = [best.rank_configs(connection, t.id, *place, Phase.SEARCH) for place in places]
        # Dropped ones are confirmed too, so that all are compared in the same way.
        most = 1 if t.state is TaskState.DROPPED else FINALISTS
        chosen = {digest: ranked[digest] for ranked in by_place for digest in islice(ranked, most)}
        if t.search is not None and t.state is not TaskState.DROPPED:
            # The fallback too, so that the answer is never slower than without tuning.
            fallback = t.search.space.fallback.digest
            for ranked in by_place:
                if fallback in ranked:
                    chosen[fallback] = ranked[fallback]
        read = best.read_configs(connection, set(chosen.values()))
        configs = {digest: read[record_id] for digest, record_id in chosen.items()}
        # The best of earlier runs on these device models, too.
        for champion in best.find_champions(connection, t.id, here or models):
            configs.setdefault(champion.config_digest, champion.config)
        return [jobs.NewEntry(t.id, Config(c)) for c in configs.values()]

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
        ]  # fmt: skip
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
            )  # fmt: skip

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
            entries = [e for t in group if t.implementation in names for e in self._finalists(connection, tuning, t)]
            proposal = Proposal(workload_id, tuple(entries), jobs.URGENT)
            number = final.count(connection, tuning.id, workload_id) + 1
            self._enqueue(connection, tuning, proposal, Phase.CONFIRM, number)
            event.note(
                connection, "measuring again", run_id=tuning.id, workload_id=workload_id,
                implementations=sorted(names),
            )  # fmt: skip
        return again, doubt


def _first_failure(connection: Connection, tuning: TuningRun) -> str:
    counted = runs.trials_of(tuning.id, tuning.request.force, tuning.policy_id)
    failed = log_page.find_first_failure(connection, tuning.id, [t.id for t in tuning.tasks], counted)
    if failed is None:
        return "no worker for this target leased a job"
    first = (failed.message.strip().splitlines() or [""])[0]
    return f"the first failure is {failed.error}: {first}"


def _close(tuning: TuningRun, t: TuningTask, state: TaskState, why: str) -> None:
    if t.state is TaskState.ACTIVE:
        t.state, t.message = state, why
        tuning.changed.append(t)


def _needed(tuning: TuningRun) -> set[int]:
    """The jobs of other runs that a run waits for, not those whose trials would be more than it was asked for."""
    more = tuning.spent < tuning.request.trials
    searched = [t for t in tuning.tasks if more and t.search is not None and t.state is TaskState.ACTIVE]
    fixed = [t for t in tuning.tasks if t.is_unmeasured]
    return {job_id for t in (*searched, *fixed) for job_id, _ in t.awaited}


def _why_stopped(tuning: TuningRun, *, timed_out: bool) -> str:
    trials = tuning.spent
    dropped = [f"{t.implementation}: {t.message}" for t in tuning.tasks
               if t.state is TaskState.DROPPED]  # fmt: skip
    tunable = [t for t in tuning.tasks if t.search is not None]
    if timed_out:
        why = f"the time limit of {tuning.request.timeout_s:g} s was reached after {show_number(trials, 'trial')}"
    elif not tunable:
        why = "nothing to tune: only untunable implementations are valid"
    elif trials < tuning.request.trials:
        reasons = dict.fromkeys(t.message for t in tunable if t.state is TaskState.EXHAUSTED)
        why = f"stopped after {trials} of {show_number(tuning.request.trials, 'trial')}: "
        why += ", ".join(reasons) or "all configurations have been tried"
    else:
        why = show_number(trials, "trial")
    if len(dropped) > MOST_NAMED:
        return f"{why}; dropped {show_number(len(dropped), 'implementation')} that cannot win"
    return "; ".join([why, *(f"dropped {d}" for d in dropped)])
