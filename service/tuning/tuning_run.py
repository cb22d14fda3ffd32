"""The tuner's state of a live run, which can be rebuilt from the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import sqlalchemy as sa

from service.search.child import CostModel
from service.search.search import Search
from service.store import catalogue
from service.store.db import Store
from service.store.tables import TaskState, job, job_entry, run, run_task, task, workload
from service.tuning import budget, other_run
from service.tuning import run as runs
from service.tuning import sources as relative
from strategy.record import RunRequest, StoredRequest, convert
from strategy.space import Config, ConfigSpace
from strategy.workload import Workload


@dataclass
class TuningTask:
    """The tuner's state of a task of a live run; its times are those of the run's device model."""

    id: int
    implementation: str
    workload_id: int
    weight: float
    search: Search | None  # None if it is untunable
    state: TaskState
    message: str = ""
    cursor: int = 0  # the id of the last absorbed record
    best_s: float | None = None
    told: int = 0  # absorbed trials, including failures and configurations outside of the search
    earlier: int = 0  # those of them that other runs have made
    chance: int = 0  # absorbed trials whose failure says nothing of the configuration
    elsewhere: int = 0  # absorbed trials that were timed on another device model
    failed_elsewhere: int = 0  # absorbed trials that failed there, by their own fault
    ran_elsewhere: int = 0  # those of them that were built, and need not fail here
    pending: int = 0
    # Configurations that other runs have in the queue (`other_run`); for an untunable one its only.
    awaited: dict[other_run.Entry, Config] = field(default_factory=dict)
    referenced: bool = False  # an untunable one's job of this run was enqueued
    taught: int = 0  # records of the run's other workloads when its sources were read
    bests_s: list[float | None] = field(default_factory=list)  # the best after each trial by which it is judged

    def arm(self, lead_s: float | None) -> budget.Arm:
        """The task's state for the budget, relative to the lowest time of its workload."""
        search = self.search
        assert search is not None
        return budget.Arm(
            trials=self.told + self.pending, told=self._compared, elsewhere=self.elsewhere, best_s=self.best_s,
            lower_bound_s=search.lower_bound_s,
            gain=None if lead_s is None else search.expected_gain(lead_s),
            exhausted=(search.exhausted and not self.awaited) or self.state is TaskState.EXHAUSTED,
            dropped=self.state is TaskState.DROPPED, waiting=search.exhausted and bool(self.awaited),
        )

    @property
    def is_unmeasured(self) -> bool:
        """True for an untunable one that this run has not enqueued, and no other has measured."""
        return self.search is None and not self.referenced and self.best_s is None

    @property
    def _compared(self) -> int:
        """The trials by which it is judged.

        Failures on other device models count if they hold for the target, and only while it has no success there.
        """
        own = self.told - self.chance - self.elsewhere
        return own - (self.failed_elsewhere if self.elsewhere else self.ran_elsewhere)

    @property
    def earlier_best_s(self) -> float | None:
        """The best time before the last `budget.PATIENCE` trials."""
        return self.bests_s[-budget.PATIENCE - 1] if len(self.bests_s) > budget.PATIENCE else None


def arms_of(group: Sequence[TuningTask]) -> tuple[list[budget.Arm], float | None]:
    """The tunable implementations of one workload, and the lowest time of all."""
    lead_s = lead_of(group)
    return [t.arm(lead_s) for t in group if t.search is not None], lead_s


def lead_of(group: Sequence[TuningTask]) -> float | None:
    """The lowest time of a workload's implementations; None if nothing has run."""
    return min([t.best_s for t in group if t.best_s is not None], default=None)


@dataclass
class TuningRun:
    """The tuner's state of a live run, which can be rebuilt from the database.

    Attributes:
        policy_id: the timing policy of the search; None while nothing was timed under it.
        device_model: the device model whose times are compared, the one with most trials when the run was loaded. Those
            of others are sources of transfer learning.
        timed, tried: trials with a time, and all trials, by device model.
    """

    id: int
    request: RunRequest
    target_id: int
    policy_id: int | None
    tasks: list[TuningTask]
    device_model: str = ""
    timed: Counter[str] = field(default_factory=Counter)
    tried: Counter[str] = field(default_factory=Counter)
    changed: list[TuningTask] = field(default_factory=list)

    @property
    def is_overtaken(self) -> bool:
        """True if another device model has more than twice as many trials: the run is to be loaded again.

        Failed ones count where nothing has run anywhere.
        """
        counted = self.timed if self.timed.total() else self.tried
        return max(counted.values(), default=0) > 2 * counted[self.device_model]

    def join(self, priority: int) -> None:
        """Take over the priority that an equal request has raised."""
        if priority != self.request.priority:
            self.request = msgspec.structs.replace(self.request, priority=priority)

    def parts(self) -> dict[int, int]:
        """The run's trials, split over its workloads by the time of their calls."""
        groups = self.by_workload()
        weights, leads_s = zip(*((g[0].weight, lead_of(g)) for g in groups.values()), strict=True)
        return dict(zip(groups, budget.parts(self.request.trials, weights, leads_s), strict=True))

    @property
    def spent(self) -> int:
        """The trials that the run is charged, those under way included."""
        parts, total = self.parts(), 0
        for workload_id, group in self.by_workload().items():
            tunable = [t for t in group if t.search is not None]
            earlier = [t.earlier for t in tunable]
            own = sum(t.told + t.pending for t in tunable) - sum(earlier)
            total += budget.charge(own, earlier, parts[workload_id])
        return total

    def find_policy(self, connection: sa.Connection) -> None:
        """Find the id of the search's policy, if another run may have enqueued its first job."""
        if self.policy_id is None:
            self.policy_id = catalogue.find_policy(connection, self.request.search_policy)

    def by_workload(self) -> dict[int, list[TuningTask]]:
        grouped: dict[int, list[TuningTask]] = {}
        for t in self.tasks:
            grouped.setdefault(t.workload_id, []).append(t)
        return grouped


def load(connection: sa.Connection, run_id: int, model: CostModel) -> TuningRun:
    """Load a run from the database, without its records."""
    row = connection.execute(sa.select(run).where(run.c.id == run_id)).one()
    request = convert(row.request, StoredRequest)
    rows = connection.execute(
        sa.select(task, workload.c.body, *run_task.c["weight", "state", "message"])
        .join(run_task, run_task.c.task_id == task.c.id)
        .join(workload, workload.c.id == task.c.workload_id)
        .where(run_task.c.run_id == run_id)
        .order_by(run_task.c.id)
    ).all()
    policy_id = catalogue.find_policy(connection, request.search_policy)
    counted = runs.trials_of(run_id, request.force, policy_id)
    device_model = relative.find_device_model(connection, row.target_id, [r.id for r in rows], counted)
    tasks = []
    for r in rows:
        search = None
        if r.space is not None:
            seed = request.seed * 1_000_003 + r.id
            space = convert(r.space, ConfigSpace)
            champions = relative.find_champions(connection, r.id, device_model)
            if request.tuner == "model":
                sources = relative.find_sources(connection, r.id, counted, device_model)
                search = Search(
                    space, seed, model, sources, first=champions,
                    workload=convert(r.body, Workload), target=relative.place_name(r.target_id, device_model),
                )
            else:
                search = Search(space, seed, first=champions)
        tasks.append(
            TuningTask(
                r.id, r.implementation, r.workload_id, r.weight, search, TaskState(r.state),
                r.message,
            )
        )
    fixed = {t.id: t for t in tasks if t.search is None}
    of_run = sa.select(job_entry.c.task_id).distinct().join(job, job.c.id == job_entry.c.job_id)
    for task_id in connection.scalars(of_run.where(job.c.run_id == run_id, job_entry.c.task_id.in_(fixed))):
        fixed[task_id].referenced = True
    return TuningRun(run_id, request, row.target_id, policy_id, tasks, device_model)


def teach(store: Store, tuning: TuningRun, t: TuningTask) -> None:
    """Give a search the records of the run's other workloads and device models as sources of transfer learning.

    They are read again whenever their number has doubled.
    """
    others = sum(
        o.told if o.workload_id != t.workload_id else o.elsewhere + o.ran_elsewhere
        for o in tuning.tasks
        if o.implementation == t.implementation
    )
    if t.search is None or tuning.request.tuner != "model":
        return
    if others < max(relative.LEAST_RECORDS, 2 * t.taught):
        return
    t.taught = others
    counted = runs.trials_of(tuning.id, tuning.request.force, tuning.policy_id)
    with store.read() as connection:
        t.search.teach(relative.find_sources(connection, t.id, counted, tuning.device_model))
