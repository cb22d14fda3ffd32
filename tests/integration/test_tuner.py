"""The tuner over both databases, step by step, with a worker whose times come from a formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from plevel.cli.tune_report import _ending
from service.dashboard import run as run_page
from service.dashboard.view import render
from service.queue import fleet, heartbeat, pause, retry
from service.queue import job as queue
from service.queue import report as reporting
from service.queue.explain import explain
from service.records.importer import import_items
from service.records.retention import Doubtful, prune, purge_doubtful
from service.search.child import ChildModel, CostModel
from service.search.pool import LOOK_THROUGH
from service.search.search import Search
from service.selection.database import RecordDatabase
from service.settings import Settings
from service.store.db import Store
from service.store.sql import now
from service.store.tables import LIVE, TaskState, job, job_entry, lease, run, run_task, worker
from service.store.wakeup import Wakeup
from service.tuning import crossing, intake, other_run, run_status, tuning_run
from service.tuning import plan as planning
from service.tuning import run as runs
from service.tuning.budget import PATIENCE
from service.tuning.final import CONFIRM_SESSIONS, FINALISTS, MORE_SESSIONS
from service.tuning.ownership import Ownership
from service.tuning.tuner import Tuner
from strategy.op_strategy import Candidate
from strategy.record import (
    UNBUILDABLE,
    Device,
    ErrorKind,
    JobEntry,
    Phase,
    Report,
    Result,
    Results,
    RunRequest,
    RunState,
    RunStatus,
    RunWorkload,
    TimingPolicy,
)
from strategy.select import select
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.workload import Input, Workload
from tests.integration.scene import (
    CANDIDATES,
    FAST,
    LIBRARY,
    SLOW,
    SPACE,
    TARGET,
    TERMS,
    WORKLOAD,
    Scene,
    configs,
    device,
    drawn,
    failed,
    info,
    lease_jobs,
    request,
    seconds,
    timed,
)
from tests.integration.test_import import made

pytestmark = pytest.mark.in_turn("url")


class Farm:
    """A tuner and one worker, taking turns."""

    def __init__(
        self, store: Store, url: str, model: CostModel, answer: Callable[[JobEntry], Result] = timed
    ) -> None:
        self.store = store
        self.model = model
        self.settings = Settings(database=url, tune=False)
        self.tuner = self.fresh_tuner()
        self.answer = answer
        self.phases: list[Phase] = []
        self.jobs: list[list[JobEntry]] = []
        self.move_to(device())

    def move_to(self, place: Device) -> None:
        """Another worker is to take the jobs from now on."""
        self.identity = place.identity
        with self.store.write() as c:
            self.worker_id = fleet.register(c, info(place))

    def fresh_tuner(self) -> Tuner:
        return Tuner(self.store, self.settings, self.model, Wakeup(), Wakeup())

    def ask(self, asked: RunRequest) -> RunStatus:
        with self.store.write() as c:
            run_id = runs.create(c, asked, planning.plan(asked))
        return self.status(run_id)

    def status(self, run_id: int) -> RunStatus:
        with self.store.read() as c:
            return run_status.status(c, run_id, 60.0)

    def work(self) -> bool:
        """Take one job and report it; False where there is none."""
        with self.store.write() as c:
            held = next(iter(lease_jobs(c, self.worker_id, self.identity)), None)
            if held is None:
                return False
            results = tuple(self.answer(e) for e in held.job.entries)
            sent = Results(token=held.token, session=str(held.id), results=results, done=True)
            reporting.report(c, Report(lease_id=held.id, results=sent), TERMS)
        self.phases.append(held.job.phase)
        self.jobs.append(list(held.job.entries))
        return True

    def go(self, run_id: int, turns: int = 1000) -> RunStatus:
        """Turn by turn until the run has ended, at most so many jobs."""
        for _ in range(turns):
            self.tuner.step()
            status = self.status(run_id)
            if status.state not in LIVE:
                return status
            self.work()
        return self.status(run_id)

    def open_jobs(self, run_id: int) -> int:
        with self.store.read() as c:
            return queue.open_jobs(c, run_id)


@pytest.fixture(scope="module")
def model() -> Iterator[CostModel]:
    with ChildModel() as child:
        yield child


@pytest.fixture
def farm(store: Store, url: str, model: CostModel) -> Farm:
    return Farm(store, url, model)


def test_a_run_from_its_request_to_the_selection(farm: Farm) -> None:
    status = farm.ask(request(trials=60))
    assert status.state is RunState.RUNNING
    status = farm.go(status.id)
    assert status.state is RunState.DONE, status.message
    assert status.trials_done == 60
    tasks = {t.implementation: t for t in status.tasks}
    assert tasks[FAST.implementation].trials + tasks[SLOW.implementation].trials == 60
    assert tasks[LIBRARY.implementation].trials == 1
    assert not tasks[LIBRARY.implementation].tunable
    assert tasks[FAST.implementation].confirmed
    # The untunable came first, and the finals last, all implementations in each.
    assert [e.implementation for e in farm.jobs[0]] == [LIBRARY.implementation]
    assert farm.phases[-CONFIRM_SESSIONS:] == [Phase.CONFIRM] * CONFIRM_SESSIONS
    assert farm.phases.count(Phase.CONFIRM) == CONFIRM_SESSIONS
    # The search has one draw of inputs, and each of the finals another.
    with farm.store.read() as c:
        seeds = c.execute(sa.select(job.c["phase", "seed"]).where(job.c.run_id == status.id)).all()
    assert len({seed for phase, seed in seeds if phase == Phase.SEARCH}) == 1
    assert len({seed for _, seed in seeds}) == 1 + CONFIRM_SESSIONS
    final = Counter(e.implementation for e in farm.jobs[-1])
    assert final[FAST.implementation] == FINALISTS + 1
    assert final[LIBRARY.implementation] == 1
    assert farm.jobs[-1] == farm.jobs[-2]
    # The three of lowest time on record, by the formula itself, and the fallback, which is not among them.
    tried = {e.config for entries in farm.jobs for e in entries
             if e.implementation == FAST.implementation}
    ranked = sorted(tried, key=lambda c: seconds(FAST.implementation, c))
    finalists = {e.config for e in farm.jobs[-1] if e.implementation == FAST.implementation}
    finalists.remove(SPACE.fallback)
    worst = max(seconds(FAST.implementation, c) for c in finalists)
    assert worst <= seconds(FAST.implementation, ranked[FINALISTS - 1])
    with farm.store.read() as c:
        answer = select(WORKLOAD, TARGET, RecordDatabase(c), offered=CANDIDATES)
    assert (answer.implementation, answer.config) == (FAST.implementation, ranked[0])


def unsure(entry: JobEntry) -> Result:
    """As `timed`, where the library's times scatter by half."""
    result = timed(entry)
    if entry.implementation != LIBRARY.implementation:
        return result
    factors = (0.5, 0.6, 0.8, 1.0, 1.1, 1.3, 1.5)
    samples = tuple(0.35 * f * result.samples_s[4] for f in factors)
    return msgspec.structs.replace(result, samples_s=samples)


def test_what_is_too_uncertain_to_choose_by_is_measured_again(farm: Farm) -> None:
    farm.answer = unsure
    status = farm.ask(request(trials=20))
    finals = 0
    while status.state in LIVE:
        status = farm.go(status.id, 1)
        finals = farm.phases.count(Phase.CONFIRM)
        if finals == CONFIRM_SESSIONS + 1:
            farm.answer = timed  # the neighbour has gone
    assert status.state is RunState.DONE
    assert "not known within" not in status.message
    again = farm.jobs[-1]
    assert farm.phases.count(Phase.CONFIRM) > CONFIRM_SESSIONS
    # The uncertain one, beside the one it has to beat.
    assert {e.implementation for e in again} == {LIBRARY.implementation, FAST.implementation}


@pytest.mark.full
def test_what_stays_uncertain_ends_the_run_all_the_same(farm: Farm) -> None:
    farm.answer = unsure
    status = farm.go(farm.ask(request(trials=20)).id)
    assert status.state is RunState.DONE
    assert farm.phases.count(Phase.CONFIRM) == CONFIRM_SESSIONS + MORE_SESSIONS
    assert f"times not known within ±1.5%: {LIBRARY.implementation}" in status.message
    with farm.store.read() as c:
        seeds = c.scalars(sa.select(job.c.seed).where(job.c.phase == Phase.CONFIRM)).all()
        answer = select(WORKLOAD, TARGET, RecordDatabase(c), offered=CANDIDATES)
    assert len(seeds) == len(set(seeds))  # each has inputs of its own
    assert answer.implementation == FAST.implementation
    assert LIBRARY.implementation in answer.explanation


@pytest.mark.full
def test_what_is_uncertain_on_another_device_model_is_not_measured_again(farm: Farm) -> None:
    farm.answer = unsure
    farm.go(farm.ask(drawn(trials=20)).id)
    farm.answer = timed
    farm.move_to(device("host-b/cpu:0-1", model="Model B"))
    finals = farm.phases.count(Phase.CONFIRM)
    status = farm.go(farm.ask(drawn(trials=20, force=True)).id)
    assert status.state is RunState.DONE
    assert "not known within" not in status.message
    assert farm.phases.count(Phase.CONFIRM) == finals + CONFIRM_SESSIONS


@pytest.mark.full
def test_each_device_model_has_finalists_of_its_own(farm: Farm) -> None:
    """On the second model, which is slower, the fastest are those that are the slowest on the first."""
    farm.go(farm.ask(drawn(trials=20)).id)
    slower = device("host-b/cpu:0-1", model="Model B")
    farm.move_to(slower)
    farm.answer = lambda e: msgspec.structs.replace(timed(e), samples_s=tuple(1 / s for s in timed(e).samples_s))
    farm.jobs.clear()
    farm.phases.clear()
    assert farm.go(farm.ask(drawn(trials=40, force=True)).id).state is RunState.DONE
    searched, finals = (
        {(e.implementation, e.config) for entries, p in zip(farm.jobs, farm.phases, strict=True) if p is phase
         for e in entries}
        for phase in (Phase.SEARCH, Phase.CONFIRM)
    )
    assert max((s for s in searched if s[0] == FAST.implementation), key=lambda s: seconds(*s)) in finals


@pytest.mark.sample(1)
@pytest.mark.parametrize("second", [10.0, 0.1])
def test_times_of_different_device_models_are_not_compared(farm: Farm, second: float) -> None:
    """Two models take jobs of both implementations; the second takes ten times, or a tenth, as long."""
    places = device(), device("host-b/cpu:0-1", model="Model B")
    status = farm.ask(drawn(trials=64))
    told: dict[str, list[tuple[float | None, float]]] = {p.model: [] for p in places}
    best_s: dict[str, dict[str, float]] = {p.model: {} for p in places}
    for turn in range(1000):
        farm.tuner.step()
        if farm.status(status.id).state is not RunState.RUNNING:
            break
        place = places[turn > 2 and turn % 4 in (0, 3)]
        farm.move_to(place)
        factor = 1.0 if place is places[0] else second

        def answer(e: JobEntry, factor: float = factor) -> Result:
            result = timed(e)
            return msgspec.structs.replace(result, samples_s=tuple(factor * s for s in result.samples_s))

        farm.answer = answer
        if farm.work():
            known = best_s[place.model]
            for e in farm.jobs[-1]:
                if e.best_s is not None:
                    told[place.model].append((e.best_s, known[e.implementation]))
            for e in farm.jobs[-1]:
                took = factor * seconds(e.implementation, e.config)
                known[e.implementation] = min(took, known.get(e.implementation, took))
    # Workers are told what to beat on their own device model.
    assert all(len(found) > 4 for found in told.values())
    assert all(given >= known * 0.999 for found in told.values() for given, known in found)
    tuning = farm.tuner._runs[status.id]
    assert tuning.device_model == "Model A"
    assert [given for given, _ in told["Model B"]] == pytest.approx([known for _, known in told["Model B"]])
    assert tuning.timed.keys() == {p.model for p in places}
    for t in tuning.tasks:
        if t.search is not None:
            assert t.best_s == pytest.approx(best_s[tuning.device_model][t.implementation])
            assert t.search.best_s == pytest.approx(t.best_s)
            assert t.elsewhere > 0


@pytest.mark.full
def test_failures_on_another_device_model_do_not_count_where_there_are_successes(farm: Farm) -> None:
    """The second model takes the jobs of one implementation, three of four of whose configurations fail there.

    That with the first of each implementation is the other model's, where this one's fails.
    """
    places = device(), device("host-b/cpu:0-1", model="Model B")
    status = farm.ask(drawn(trials=100))
    names = {t.task_id: t.implementation for t in status.tasks}
    following = (
        sa.select(job_entry.c.task_id)
        .join(job, job.c.id == job_entry.c.job_id)
        .where(job.c.state == "queued")
        .order_by(*job.c["priority", "turn", "id"])
        .limit(1)
    )

    def answer(e: JobEntry) -> Result:
        if e.implementation != SLOW.implementation:
            return timed(e)
        return failed(e.index) if e.config["x"] % 4 or farm.identity == places[0].identity else timed(e)

    farm.answer = answer
    for _ in range(1000):
        farm.tuner.step()
        with farm.store.read() as c:
            task_id = c.scalar(following)
        if task_id is None or Phase.CONFIRM in farm.phases:
            break
        farm.move_to(places[names[task_id] == SLOW.implementation])
        farm.work()
        tuning = farm.tuner._runs[status.id]
        assert tuning.device_model == "Model A"
    (slow,) = (t for t in tuning.tasks if t.implementation == SLOW.implementation)
    assert (slow.state, slow.best_s) == (TaskState.ACTIVE, None)
    assert slow.elsewhere > 0
    assert slow.failed_elsewhere > 25
    assert slow.arm(None).told == 1
    assert "dropped" not in farm.go(status.id).message
    # Without a success there, failures to compile say the same on any device model.
    slow.elsewhere = 0
    assert slow.arm(None).told > 25


class Told(Search):
    """A search that remembers the failures that it is told."""

    failed: tuple[Config, ...] = ()

    def tell(self, config: Mapping[str, object], seconds: float | None) -> None:
        if seconds is None:
            self.failed = (*self.failed, Config(config))
        super().tell(config, seconds)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [
    pytest.param(k, marks=[] if k in (*UNBUILDABLE, ErrorKind.CRASH, ErrorKind.IMPLAUSIBLE) else [pytest.mark.full])
    for k in ErrorKind if k not in (ErrorKind.LOST, ErrorKind.CANCELLED)
])
def test_a_failure_on_another_device_model_is_told_only_if_it_holds_here(
    farm: Farm, kind: ErrorKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second model fails whatever it gets, the first nothing."""
    monkeypatch.setattr(tuning_run, "Search", Told)
    status = farm.ask(drawn(trials=48))
    farm.go(status.id, 3)
    farm.move_to(device("host-b/cpu:0-1", model="Model B"))
    farm.answer = lambda e: failed(e.index, kind)
    farm.go(status.id, 3)
    tuning = farm.tuner._runs[status.id]
    assert tuning.device_model == "Model A"
    theirs = {(e.implementation, e.config) for entries in farm.jobs[3:] for e in entries}
    holds = kind in (ErrorKind.INVALID, ErrorKind.INSTANTIATION, ErrorKind.COMPILE)
    told = {(t.implementation, c) for t in tuning.tasks if isinstance(t.search, Told) for c in t.search.failed}
    assert told == (told & theirs)
    assert bool(told) == holds
    assert any(t.ran_elsewhere for t in tuning.tasks) != (holds or kind is ErrorKind.IMPLAUSIBLE)
    for t in tuning.tasks:  # and only those that say something of the run's device model are without a gain
        assert len(t.bests_s) == t.told - t.chance - t.ran_elsewhere
    # Either way it is not tried again.
    farm.move_to(device())
    farm.answer = timed
    farm.go(status.id)
    tried = [(e.implementation, e.config) for entries, phase in zip(farm.jobs, farm.phases, strict=True)
             for e in entries if phase is Phase.SEARCH]
    assert len(tried) == len(set(tried))


@pytest.mark.full
def test_a_run_turns_to_the_device_model_that_times_most(farm: Farm) -> None:
    status = farm.ask(request(trials=48))
    farm.go(status.id, 2)
    assert farm.tuner._runs[status.id].device_model == "Model A"
    farm.move_to(device("host-b/cpu:0-1", model="Model B"))
    farm.go(status.id, 5)
    tuning = farm.tuner._runs[status.id]
    assert tuning.device_model == "Model B"
    # Configurations that the first has timed are a source, and not tried again.
    farm.go(status.id)
    searched = [(e.implementation, e.config)
                for entries, phase in zip(farm.jobs, farm.phases, strict=True)
                for e in entries if phase is Phase.SEARCH]
    assert len(searched) == len(set(searched)) == 49


def test_a_run_out_of_time_measures_nothing_again(farm: Farm) -> None:
    farm.answer = unsure
    status = farm.ask(request(trials=60, timeout_s=1e-6))
    farm.go(status.id)
    assert farm.phases.count(Phase.CONFIRM) <= CONFIRM_SESSIONS


def test_no_configuration_is_tried_twice(farm: Farm) -> None:
    farm.go(farm.ask(request(trials=100)).id)
    searched = [
        (e.implementation, e.config)
        for entries, phase in zip(farm.jobs, farm.phases, strict=True)
        for e in entries
        if phase is Phase.SEARCH
    ]
    assert len(searched) == len(set(searched)) == 101


def searched(farm: Farm) -> list[tuple[str, Config]]:
    """Trials of searches, in order."""
    return [
        (e.implementation, e.config)
        for entries, phase in zip(farm.jobs, farm.phases, strict=True) if phase is Phase.SEARCH
        for e in entries
    ]


@pytest.mark.full
@pytest.mark.parametrize("priority", [0, 1])
def test_two_live_runs_of_a_workload_try_no_configuration_twice(farm: Farm, priority: int) -> None:
    first, second = farm.ask(drawn(trials=60)).id, farm.ask(drawn(trials=61, priority=priority)).id
    assert first != second
    assert farm.go(first).state is farm.go(second).state is RunState.DONE
    tried = searched(farm)
    # A result counts for both; what is under way as both come to their ends is more.
    assert 62 <= len(set(tried)) <= 62 + 2 * farm.settings.batch
    assert len(tried) == len(set(tried))
    for run_id, trials in ((first, 60), (second, 61)):
        assert farm.status(run_id).trials_done == trials


def test_who_joins_a_run_brings_a_higher_priority_and_more_jobs(farm: Farm) -> None:
    run_id = farm.ask(drawn(trials=60, max_jobs=1, priority=-1)).id
    farm.tuner.step()
    farm.ask(drawn(trials=61))  # goes before it
    assert farm.ask(drawn(trials=60, max_jobs=3, priority=1)).id == run_id
    with farm.store.read() as c:
        assert c.scalar(sa.select(run.c.max_jobs).where(run.c.id == run_id)) == 3
        queued = c.scalars(sa.select(job.c.priority).where(job.c.run_id == run_id, job.c.state == "queued")).all()
    assert {queue.URGENT - queue.RUN_PRIORITY, queue.NORMAL - queue.RUN_PRIORITY} == set(queued)
    # Jobs enqueued from now on have it, too; one of a lower priority changes nothing.
    assert farm.ask(drawn(trials=60, max_jobs=1, priority=-5)).id == run_id
    farm.work()
    farm.tuner.step()
    with farm.store.read() as c:
        later = c.scalars(sa.select(job.c.priority).where(job.c.run_id == run_id, job.c.state == "queued")).all()
        assert c.scalar(sa.select(run.c.max_jobs).where(run.c.id == run_id)) == 3
    assert set(later) == {queue.NORMAL - queue.RUN_PRIORITY}
    assert farm.ask(drawn(trials=60)).id == run_id
    with farm.store.read() as c:
        assert c.scalar(sa.select(run.c.max_jobs).where(run.c.id == run_id)) is None


def test_what_a_run_of_a_higher_priority_waits_for_goes_before_others(farm: Farm) -> None:
    low = farm.ask(drawn(trials=60)).id
    farm.tuner.step()
    elsewhere = RunWorkload(workload=Workload("filter", (Input("data", "float32[32,32]"),)), candidates=CANDIDATES)
    other = farm.ask(drawn(workloads=(elsewhere,), trials=60)).id
    farm.tuner.step()
    high = farm.ask(drawn(trials=61, priority=2)).id
    farm.tuner.step()
    with farm.store.read() as c:
        queued = c.execute(sa.select(*job.c["run_id", "priority"]).where(job.c.state == "queued")).all()
    by_run = {run_id: sorted(p for r, p in queued if r == run_id) for run_id in (low, other, high)}
    # The library is measured before what is tuned, as without the other run.
    raised = [p - 2 * queue.RUN_PRIORITY for p in (queue.URGENT, queue.NORMAL)]
    assert by_run[low] == raised
    assert by_run[other] == [queue.URGENT, queue.NORMAL]
    assert set(by_run[high]) == {raised[1]}


def priorities(farm: Farm, run_id: int) -> set[int]:
    with farm.store.read() as c:
        return set(c.scalars(sa.select(job.c.priority).where(job.c.run_id == run_id, job.c.state == "queued")))


@pytest.mark.full
def test_what_is_brought_forward_falls_back_when_runs_that_wait_for_it_are_cancelled(farm: Farm) -> None:
    low = farm.ask(drawn(trials=60)).id
    farm.tuner.step()
    middle, high = (farm.ask(drawn(trials=60 + n, priority=n)).id for n in (1, 2))
    own = {queue.URGENT, queue.NORMAL}
    for steps, highest, ended in ((2, 2, high), (2, 1, middle), (1, 0, None)):
        for _ in range(steps):
            farm.tuner.step()
        assert priorities(farm, low) == {p - highest * queue.RUN_PRIORITY for p in own}
        if ended is not None:
            with farm.store.write() as c:
                runs.cancel(c, ended)


def test_what_falls_back_has_the_priority_that_a_request_gives_meanwhile(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = farm.ask(drawn(trials=60)).id
    farm.tuner.step()
    high = farm.ask(drawn(trials=61, priority=1)).id
    farm.tuner.step()
    with farm.store.write() as c:
        runs.cancel(c, high)
    find = other_run.find_ahead

    def find_first(*asked: Any) -> dict[int, int]:
        found = find(*asked)
        assert farm.ask(drawn(trials=60, priority=3)).id == low
        return found

    monkeypatch.setattr(other_run, "find_ahead", find_first)
    farm.tuner.step()
    assert priorities(farm, low) == {p - 3 * queue.RUN_PRIORITY for p in (queue.URGENT, queue.NORMAL)}


def test_what_a_run_waits_for_counts_beside_what_it_enqueues_against_its_maximum_of_jobs(farm: Farm) -> None:
    low = farm.ask(drawn(trials=60)).id
    farm.tuner.step()
    high = farm.ask(drawn(trials=90, max_jobs=2, priority=2)).id
    farm.tuner.step()
    assert farm.open_jobs(high) == 2
    assert priorities(farm, low) == {queue.URGENT, queue.NORMAL}


def test_what_is_brought_forward_leaves_its_own_run_its_maximum_of_jobs(farm: Farm) -> None:
    low = farm.ask(drawn(trials=60, max_jobs=1)).id
    farm.tuner.step()
    with farm.store.write() as c:
        first, second = c.scalars(sa.select(job.c.id).where(job.c.run_id == low).order_by(job.c.id))
        other_run.bring_forward(c, [first], 2)
        held = lease_jobs(c, farm.worker_id, farm.identity, most=9)
        assert [h.job.id for h in held] == [first]
        assert "max_jobs" not in explain(c, second, 60.0).reasons[0]
        assert [h.job.id for h in lease_jobs(c, farm.worker_id, farm.identity, most=9)] == [second]


@pytest.mark.full
@pytest.mark.parametrize("most", [None, 1])
def test_what_a_more_urgent_run_waits_for_is_held_to_that_one_s_maximum_of_jobs(farm: Farm, most: int | None) -> None:
    low = farm.ask(drawn(trials=60, max_jobs=1)).id
    farm.tuner.step()

    def lease_some() -> int:
        """Lease jobs; return how many of the first run's are leased."""
        with farm.store.write() as c:
            lease_jobs(c, farm.worker_id, farm.identity, most=9)
            heartbeat.store(c, {farm.worker_id}, 60.0, {farm.worker_id: 1})  # no run has more jobs for it
            leased = sa.select(sa.func.count()).where(job.c.run_id == low, job.c.state == "leased")
            return int(c.scalar(leased) or 0)

    assert (lease_some(), lease_some()) == (1, 1)
    farm.ask(drawn(trials=61, max_jobs=most, priority=2))
    farm.tuner.step()
    lease_some()  # what goes before it
    assert lease_some() == (1 if most else 2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("end", ["trials", "time"])
def test_a_run_that_needs_no_more_brings_nothing_forward(farm: Farm, end: str) -> None:
    high = farm.ask(drawn(trials=1 if end == "trials" else 61, priority=2, timeout_s=1000.0)).id
    farm.tuner.step()
    with farm.store.write() as c:
        assert next(iter(lease_jobs(c, farm.worker_id, farm.identity)))  # while it is timed, the run is live
    low = farm.ask(drawn(trials=60)).id
    farm.tuner.step()
    if end == "time":
        with farm.store.write() as c:
            c.execute(sa.update(run).where(run.c.id == high).values(created_at=run.c.created_at - 2000.0))
    farm.tuner.step()
    with farm.store.read() as c:
        queued = c.scalars(sa.select(job.c.priority).where(job.c.run_id == low, job.c.state == "queued")).all()
    assert farm.status(high).state in LIVE
    assert set(queued) == {queue.NORMAL}


def test_a_lost_job_returns_to_the_queue_with_the_priority_that_its_run_has_now(farm: Farm) -> None:
    run_id = farm.ask(drawn(trials=60)).id
    farm.tuner.step()
    with farm.store.write() as c:
        lost = next(iter(lease_jobs(c, farm.worker_id, farm.identity)))
    assert farm.ask(drawn(trials=60, priority=1)).id == run_id
    with farm.store.write() as c:
        c.execute(sa.update(lease).where(lease.c.id == lost.id).values(expires_at=now() - 1.0))
        retry.expire(c, TERMS)
        found = c.execute(sa.select(*job.c["state", "priority"]).where(job.c.id == lost.job.id)).one()
    assert found == ("queued", queue.URGENT - queue.RUN_PRIORITY)


@pytest.mark.full
def test_a_forced_run_tries_again_what_another_has_in_the_queue(farm: Farm) -> None:
    farm.ask(drawn(trials=20))
    again = farm.ask(drawn(trials=20, force=True)).id
    farm.go(again)
    tried = searched(farm)
    assert len(set(tried)) < len(tried)


@pytest.mark.full
def test_pruning_leaves_a_live_run_its_trials(farm: Farm) -> None:
    """On SQLite, ids of deleted rows come again, which a tuner that has seen them would take for old ones."""
    run_id = farm.ask(drawn(trials=40)).id
    farm.go(run_id, 3)
    with farm.store.read() as c:
        ahead_s = c.scalar(sa.select(now())) + 60.0
    found = prune(farm.store, 1, ahead_s, dry=False)
    assert (found.records, found.kept) == (0, len([e for of in farm.jobs for e in of]))
    assert farm.go(run_id).trials_done == 40
    assert len(searched(farm)) == 41
    assert prune(farm.store, 1, ahead_s, dry=False).records > 0


FEW = ConfigSpace([Knob("x", range(6)), Knob("y", range(4))], fallback={"x": 1, "y": 1})


def of_few(**values: Any) -> RunRequest:
    """A request of a space that a job or two exhaust."""
    offered = (msgspec.structs.replace(FAST, space=FEW), LIBRARY)
    return drawn(workloads=(RunWorkload(workload=WORKLOAD, candidates=offered),), **values)


@pytest.mark.sample(1)
@pytest.mark.parametrize("end", ["measured", "cancelled"])
def test_a_run_waits_for_what_another_has_in_the_queue_and_tries_what_that_gives_up(farm: Farm, end: str) -> None:
    farm.settings = farm.settings.model_copy(update={"batch": 24})
    farm.tuner = farm.fresh_tuner()
    first = farm.ask(of_few(trials=100)).id
    farm.tuner.step()
    second = farm.ask(of_few(trials=101)).id
    for _ in range(3):
        farm.tuner.step()
    assert farm.open_jobs(first) == 2
    assert farm.open_jobs(second) == 0
    assert farm.status(second).state is RunState.RUNNING
    if end == "cancelled":
        with farm.store.write() as c:
            runs.cancel(c, first)
    status = farm.go(second)
    assert (status.state, status.trials_done) == (RunState.DONE, 24)
    tried = searched(farm)
    assert len(tried) == len(set(tried)) == 24 + 1
    assert "all of its configurations have been tried" in status.message


def test_a_run_whose_trials_another_has_made_says_why_they_failed(farm: Farm) -> None:
    farm.settings = farm.settings.model_copy(update={"batch": 24})
    farm.tuner, farm.answer = farm.fresh_tuner(), lambda e: failed(e.index)
    offered = (msgspec.structs.replace(FAST, space=FEW),)
    asked = drawn(workloads=(RunWorkload(workload=WORKLOAD, candidates=offered),), trials=100)
    first, second = farm.ask(asked), farm.ask(msgspec.structs.replace(asked, trials=101))
    ended = [farm.go(r.id) for r in (first, second)]
    assert len(searched(farm)) == 24
    for status in ended:
        assert status.state is RunState.FAILED
        assert "nothing ran: the first failure is compile: it did not work" in status.message


def test_tasks_of_any_number_are_locked_and_looked_up(store: Store) -> None:
    """PostgreSQL's table of locks has 6,400 places by default, and SQLite takes 32,766 parameters."""
    tasks = range(20_000)
    with store.write() as c:
        crossing.lock(c, tasks)
        assert not other_run.find_awaited(c, 1, False, 1, tasks)


@pytest.mark.sample(1)
@pytest.mark.parametrize("late_by", ["the first jobs", "later jobs", "results"])
def test_two_services_propose_no_configuration_twice(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, late_by: str
) -> None:
    """The other enqueues for its run between what this one reads and what it writes, and may have the results."""
    farm.ask(drawn(trials=30))
    if late_by == "later jobs":
        farm.tuner.step()
        farm.work()
    second = farm.ask(drawn(trials=31)).id
    mine = farm.fresh_tuner()
    mine._ownership, farm.tuner._ownership = Ownership(60.0, "mine"), Ownership(60.0, "theirs")
    with farm.store.write() as c:
        owner = sa.case((run.c.id == second, "mine"), else_="theirs")
        c.execute(sa.update(run).values(tuner=owner, tuner_until=now() + 60.0))
    write, crossed = mine._write, []

    def late(*args: Any, **values: Any) -> None:
        if not crossed:
            crossed.append(farm.tuner.step())
            while late_by == "results" and farm.work():
                pass
        write(*args, **values)

    monkeypatch.setattr(mine, "_write", late)
    for _ in range(200):
        mine.step()
        farm.tuner.step()
        if not farm.work():
            break
    assert farm.status(second).state is RunState.DONE
    tried = searched(farm)
    assert len(tried) == len(set(tried))


def test_two_jobs_wait_at_most(farm: Farm) -> None:
    status = farm.ask(request(trials=100))
    for _ in range(6):
        farm.tuner.step()
        assert farm.open_jobs(status.id) == 2
        farm.work()
    with farm.store.write() as c:
        assert heartbeat.store(c, {farm.worker_id}, 60.0, {farm.worker_id: 3}) == {farm.worker_id}
    farm.tuner.step()
    assert farm.open_jobs(status.id) == 4  # one that it times, and three that it builds
    farm.work()
    with farm.store.read() as c:
        assert c.scalars(sa.select(worker.c.ahead)).all() == [1]  # it asks for one again


def test_the_search_tells_workers_what_to_beat(farm: Farm) -> None:
    farm.go(farm.ask(request(trials=60)).id)
    assert all(e.best_s is None for e in farm.jobs[0])
    last = [e for entries, phase in zip(farm.jobs, farm.phases, strict=True)
            for e in entries if phase is Phase.SEARCH][-1]
    assert last.best_s is not None


@pytest.mark.full
def test_tuned_enough_spends_nothing(farm: Farm) -> None:
    first = farm.go(farm.ask(request(trials=20)).id)
    jobs = len(farm.jobs)
    for same in (request(trials=20), request(trials=12), request(trials=20, seed=5)):
        again = farm.ask(same)
        assert again.state is RunState.DONE
        assert f"run {first.id}" in again.message
        assert again.finished_at is not None
    farm.tuner.step()
    assert not farm.work()
    assert len(farm.jobs) == jobs
    other_policy = TimingPolicy(min_repeats=7)
    for different in (
        request(trials=40),
        request(trials=20, search_policy=other_policy),
        request(trials=20, force=True),
        request(
            workloads=(RunWorkload(workload=WORKLOAD, candidates=(
                *CANDIDATES[:2], msgspec.structs.replace(LIBRARY, version="2.0"))),),
            trials=20,
        ),
    ):
        assert farm.ask(different).state is RunState.RUNNING


@pytest.mark.parametrize("pruned", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_run_whose_records_were_purged_is_tuned_again(farm: Farm, pruned: bool) -> None:
    first = farm.go(farm.ask(request(trials=20)).id)
    with farm.store.write() as c:
        purged = purge_doubtful(c, Doubtful(worker="worker"), "a fan was broken")
    assert purged.records > 20
    if pruned:  # which deletes the marks with their records, but for SQLite's newest
        import_items(farm.store, [made(1)])
        assert prune(farm.store, 1, 1e12, dry=False).records >= purged.records
    second = farm.go(farm.ask(request(trials=20)).id)
    assert (second.state, second.trials_done) == (RunState.DONE, 20)
    with farm.store.read() as c:
        assert select(WORKLOAD, TARGET, RecordDatabase(c), offered=CANDIDATES).implementation == FAST.implementation
    # Which counts for the next, where the first does not.
    third = farm.ask(request(trials=20))
    assert f"in run {second.id}:" in third.message
    assert first.id < second.id < third.id


@pytest.mark.full
def test_a_larger_budget_goes_on_from_the_smaller(farm: Farm) -> None:
    farm.go(farm.ask(request(trials=20)).id)
    jobs = len(farm.jobs)
    status = farm.go(farm.ask(request(trials=32)).id)
    assert status.state is RunState.DONE
    assert status.trials_done == 32
    new = [e for entries, phase in zip(farm.jobs[jobs:], farm.phases[jobs:], strict=True)
           for e in entries if phase is Phase.SEARCH and e.config]
    assert len(new) == 12


def test_a_workload_that_is_tuned_already_takes_no_trials_from_the_others(farm: Farm) -> None:
    farm.go(farm.ask(request(trials=40)).id)
    new = Workload.make("dense", {"data": "float32[64,64]", "weight": "float32[64,64]"})
    both = [RunWorkload(workload=w, candidates=CANDIDATES) for w in (WORKLOAD, new)]
    jobs = len(farm.jobs)
    asked = farm.ask(request(workloads=tuple(both), trials=20))
    assert asked.trials_done <= 10
    status = farm.go(asked.id)
    assert (status.state, status.trials_done) == (RunState.DONE, 20)
    assert sum(t.trials for t in status.tasks if t.workload == new.key and t.tunable) >= 10
    made = sum(len(e) for e, phase in zip(farm.jobs[jobs:], farm.phases[jobs:], strict=True) if phase is Phase.SEARCH)
    assert made <= 20 + 2


def test_an_implementation_with_a_new_version_gets_its_share_of_what_earlier_runs_have_spent(farm: Farm) -> None:
    """Trials of the others took all of the budget, and the new version was never measured."""
    farm.go(farm.ask(drawn(trials=40)).id)
    newer = msgspec.structs.replace(FAST, version=f"2.{SPACE.digest}")
    one = RunWorkload(workload=WORKLOAD, candidates=(newer, SLOW, LIBRARY))
    asked = farm.ask(drawn(workloads=(one,), trials=8))
    assert (asked.state, asked.trials_done) == (RunState.RUNNING, 4)
    status = farm.go(asked.id)
    assert {t.implementation: t.trials for t in status.tasks}[newer.implementation] == 4
    with farm.store.read() as c:
        found = select(WORKLOAD, TARGET, RecordDatabase(c), offered=one.candidates)
    assert (found.implementation, found.version, found.reason) == (newer.implementation, newer.version, "measured")


def test_force_begins_anew(farm: Farm) -> None:
    farm.go(farm.ask(request(trials=16)).id)
    jobs = len(farm.jobs)
    status = farm.go(farm.ask(request(trials=16, force=True)).id)
    assert status.trials_done == 16
    assert sum(len(entries) for entries, phase in zip(farm.jobs[jobs:], farm.phases[jobs:], strict=True)
               if phase is Phase.SEARCH) == 17


def test_an_equal_request_joins_the_run_under_way(farm: Farm) -> None:
    first = farm.ask(request())
    assert farm.ask(request()).id == first.id
    assert farm.ask(request(force=True)).id != first.id


def test_a_request_with_fields_of_a_newer_service_is_joined_tuned_and_read(farm: Farm) -> None:
    run_id = farm.ask(drawn(trials=16)).id
    stored = sa.select(run.c.request).where(run.c.id == run_id)
    with farm.store.write() as c:
        body = c.scalar(stored)
        newer = {"energy_j": 5.0, "workloads": [w | {"tolerance": 0.1} for w in body["workloads"]]}
        c.execute(sa.update(run).where(run.c.id == run_id).values(request=body | newer))
    assert farm.ask(drawn(trials=16, priority=2)).id == run_id
    with farm.store.read() as c:
        assert c.scalar(stored) == body | newer | {"priority": 2}
        assert runs.request_of(c, run_id, "default").trials == 16
    assert farm.go(run_id).state == RunState.DONE
    assert farm.ask(drawn(trials=16)).state == RunState.DONE  # by what this run has measured


@pytest.mark.sample(1)
@pytest.mark.parametrize("turns", [1, 4, 9])
def test_a_killed_service_goes_on_where_it_was(farm: Farm, turns: int) -> None:
    """Another tuner, which has nothing but the database, takes over in the middle of the run."""
    status = farm.ask(request(trials=48))
    farm.go(status.id, turns)
    farm.tuner = farm.fresh_tuner()
    status = farm.go(status.id)
    assert status.state is RunState.DONE
    assert status.trials_done == 48
    searched = [(e.implementation, e.config)
                for entries, phase in zip(farm.jobs, farm.phases, strict=True)
                for e in entries if phase is Phase.SEARCH]
    assert len(searched) == len(set(searched)) == 49
    assert farm.phases.count(Phase.CONFIRM) == CONFIRM_SESSIONS


@pytest.mark.full
def test_a_killed_service_goes_on_at_every_single_step(farm: Farm) -> None:
    status = farm.ask(request(trials=24))
    for _ in range(100):
        farm.tuner = farm.fresh_tuner()
        farm.tuner.step()
        farm.work()
        if farm.status(status.id).state not in LIVE:
            break
    status = farm.status(status.id)
    assert (status.state, status.trials_done) == (RunState.DONE, 24)
    assert farm.phases.count(Phase.CONFIRM) == CONFIRM_SESSIONS


def test_runs_are_held_while_others_take_long_and_left_alone_once_another_has_them(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [farm.ask(request(seed=seed, force=True)).id for seed in range(4)]
    term_s = farm.settings.lease_s
    other = Ownership(term_s, "other")
    clock, stepped = [0.0], []

    def step_slowly(run_id: int) -> None:
        """Take more than half of a term; meanwhile another service looks for runs, and is given one of these."""
        stepped.append(run_id)
        clock[0] += 0.6 * term_s
        with farm.store.write() as c:
            c.execute(sa.update(run).values(tuner_until=run.c.tuner_until - 0.6 * term_s))
            if run_id == ids[1]:
                c.execute(sa.update(run).where(run.c.id == ids[2]).values(tuner="other"))
        assert set(other.hold(farm.store)) <= {ids[2]}

    monkeypatch.setattr("service.tuning.tuner.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(farm.tuner, "_step_run", step_slowly)
    farm.tuner.step()
    assert stepped == [ids[0], ids[1], ids[3]]


def test_an_interrupted_run_is_taken_up_by_the_next(farm: Farm) -> None:
    first = farm.ask(request(trials=40))
    farm.go(first.id, 4)
    with farm.store.write() as c:
        runs.cancel(c, first.id)
    done = farm.status(first.id).trials_done
    assert 0 < done < 40
    farm.tuner.step()
    assert not farm.work()
    second = farm.ask(request(trials=40))
    assert second.trials_done == done
    assert farm.go(second.id).trials_done == 40
    tried = [(e.implementation, e.config) for entries, phase in
             zip(farm.jobs, farm.phases, strict=True)
             for e in entries if phase is Phase.SEARCH and e.config]
    assert len(tried) == len(set(tried)) == 40


def test_interruptions_do_not_count_as_time_of_the_run(farm: Farm) -> None:
    status = farm.ask(drawn(trials=40))
    with farm.store.write() as c:  # its first worker came after an hour
        c.execute(sa.update(run).values(created_at=run.c.created_at - 3600))
    assert farm.status(status.id).idle_s == 0
    assert farm.go(status.id, 4).idle_s == 0
    with farm.store.write() as c:  # it is three hours later
        for table, names in ((lease, ("created_at", "expires_at", "ended_at")), (run, ("created_at",))):
            c.execute(sa.update(table).values({name: table.c[name] - 10_800 for name in names}))
        # The worker was killed, which is noticed now.
        last = sa.select(sa.func.max(lease.c.id)).scalar_subquery()
        c.execute(sa.update(lease).where(lease.c.id == last).values(ended_at=now(), expires_at=now() - 10_790))
    status = farm.go(status.id)
    assert status.state is RunState.DONE
    assert 10_700 < status.idle_s <= 10_800
    assert status.finished_at is not None
    assert status.finished_at - status.created_at - status.idle_s < 3900
    # All listed runs' are asked at once.
    asked: list[str] = []
    sa.event.listen(farm.store.engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    other = farm.ask(drawn(trials=8, force=True))
    asked.clear()
    with farm.store.read() as c:
        listed = run_status.recent(c, 10, 60.0)
    assert [(s.id, s.idle_s) for s in listed] == [(other.id, 0.0), (status.id, status.idle_s)]
    assert sum("FROM lease" in text or "JOIN lease" in text for text in asked) == 1
    with farm.store.write() as c:  # a lease that ends before an earlier one leaves no gap
        first = sa.select(sa.func.min(lease.c.id)).scalar_subquery()
        c.execute(sa.update(lease).where(lease.c.id == first).values(ended_at=now() + 1, expires_at=now() + 1))
    assert farm.status(status.id).idle_s == 0
    assert " of them timing, beside interruptions of 2:59 h: " in _ending(msgspec.structs.replace(status, timing_s=1.0))


@pytest.mark.full
def test_hopeless_implementations_are_dropped_and_named(farm: Farm) -> None:
    status = farm.go(farm.ask(request(trials=90)).id)
    tasks = {t.implementation: t for t in status.tasks}
    assert tasks[FAST.implementation].trials > 1.5 * tasks[SLOW.implementation].trials
    assert f"dropped {SLOW.implementation}" in status.message
    with farm.store.read() as c:
        state = c.scalar(
            sa.select(run_task.c.state).where(
                run_task.c.run_id == status.id,
                run_task.c.task_id == tasks[SLOW.implementation].task_id,
            )
        )
    assert state == "dropped"
    # It gets one place in the finals: all are compared by the same measure.
    assert [e.implementation for e in farm.jobs[-1]].count(SLOW.implementation) == 1


@pytest.mark.full
def test_implementations_dropped_in_several_workloads_are_counted(farm: Farm) -> None:
    second = Workload("filter", (Input("data", "float32[32,32]"),))
    both = tuple(RunWorkload(workload=w, candidates=(FAST, SLOW)) for w in (WORKLOAD, second))
    status = farm.go(farm.ask(request(workloads=both, trials=180)).id)
    assert "; dropped 2 implementations that cannot win" in status.message
    assert SLOW.implementation not in status.message


def test_a_small_space_is_exhausted_and_the_run_stops(farm: Farm) -> None:
    small = ConfigSpace([Knob("x", range(5))])
    only = Candidate(FAST.implementation, f"1.{small.digest}", 5, None, small)
    asked = request(workloads=(RunWorkload(workload=WORKLOAD, candidates=(only,)),), trials=500)
    status = farm.go(farm.ask(asked).id)
    assert status.state is RunState.DONE
    assert (status.trials_done, status.trials) == (5, 500)
    assert "configurations have been tried" in status.message
    larger = request(workloads=(RunWorkload(workload=WORKLOAD, candidates=(only,)),), trials=900)
    assert farm.ask(larger).state is RunState.DONE


def test_a_space_too_large_to_count_is_exhausted_where_nothing_new_is_found(farm: Farm) -> None:
    large = ConfigSpace([Knob(f"x{i}", range(9)) for i in range(8)], [knob(f"x{i}") == 0 for i in range(1, 8)])
    assert large.size > LOOK_THROUGH
    only = Candidate(FAST.implementation, f"1.{large.digest}", 5, None, large)
    asked = request(workloads=(RunWorkload(workload=WORKLOAD, candidates=(only,)),), trials=100, tuner="random")
    status = farm.go(farm.ask(asked).id)
    assert (status.state, status.trials_done) == (RunState.DONE, 9)
    assert "stopped after 9 of 100 trials: no further valid configuration was found" in status.message
    with farm.store.read() as c:
        assert c.scalar(sa.select(run_task.c.state)) == TaskState.EXHAUSTED
    assert len(farm.jobs[-1]) >= FINALISTS  # where one that was dropped has one


def test_without_anything_to_tune_the_libraries_are_confirmed(farm: Farm) -> None:
    asked = request(workloads=(RunWorkload(workload=WORKLOAD, candidates=(LIBRARY,)),))
    status = farm.go(farm.ask(asked).id)
    assert status.state is RunState.DONE
    assert status.tasks[0].confirmed
    assert "nothing to tune" in status.message


def test_a_run_of_which_nothing_works_says_why(store: Store, url: str, model: CostModel) -> None:
    farm = Farm(store, url, model, lambda e: failed(e.index))
    status = farm.go(farm.ask(request(trials=40)).id)
    assert status.state is RunState.FAILED
    assert "compile: it did not work" in status.message
    assert status.tasks[0].failures == {"compile": status.tasks[0].trials}
    assert farm.ask(request(trials=40)).state is RunState.RUNNING


def test_failed_configurations_cost_trials_and_are_not_finalists(store: Store, url: str, model: CostModel) -> None:
    def picky(e: JobEntry) -> Result:
        x = e.config.get("x", 0)
        assert isinstance(x, int)
        return failed(e.index) if x > 6 else timed(e)

    farm = Farm(store, url, model, picky)
    status = farm.go(farm.ask(request(trials=60)).id)
    assert status.trials_done == 60
    assert sum(t.failed for t in status.tasks) > 0
    assert all(e.config.get("x", 0) <= 6 for e in farm.jobs[-1])


def test_a_run_of_few_trials_has_tried_each_implementation(farm: Farm) -> None:
    farm.go(farm.ask(drawn(trials=2)).id)
    tried = [e for e, phase in zip(farm.jobs, farm.phases, strict=True) if phase is Phase.SEARCH][-1]
    assert [(e.implementation, e.config) for e in tried] == [(c.implementation, c.fallback) for c in (FAST, SLOW)]


def test_a_run_of_one_trial_a_workload_tries_each_workload(farm: Farm) -> None:
    sizes = [Workload("filter", (Input("data", f"float32[{n},32]"),)) for n in (32, 64, 96, 128)]
    asked = drawn(workloads=tuple(RunWorkload(workload=w, candidates=(FAST, SLOW)) for w in sizes), trials=4)
    status = farm.go(farm.ask(asked).id)
    assert {t.workload for t in status.tasks if t.trials} == {w.key for w in sizes}


def test_time_limit_ends_the_search_and_confirms(farm: Farm) -> None:
    status = farm.ask(request(trials=500, timeout_s=60.0))
    farm.go(status.id, 4)
    with farm.store.write() as c:
        c.execute(sa.update(run).values(created_at=now() - 61.0))
    status = farm.go(status.id)
    assert status.state is RunState.DONE
    assert "time limit of 60 s" in status.message
    assert status.trials_done < 100
    assert status.tasks[0].confirmed
    # It was cut short: an equal request goes on.
    assert farm.ask(request(trials=500, timeout_s=60.0)).state is RunState.RUNNING


def teach(farm: Farm, versions: Mapping[str, Mapping[str, int]]) -> None:
    """Have another worker with these operators in place of the farm's."""
    with farm.store.write() as c:
        fleet.end(c, farm.worker_id)
        farm.worker_id = fleet.register(c, info(device(), operators=versions))


def page_of(farm: Farm, run_id: int) -> str:
    """The live part of a run's page."""
    context: Any = SimpleNamespace(settings=farm.settings)
    with farm.store.read() as c:
        return bytes(render("run_live.html", **run_page._values(c, context, run_id, None)).body).decode()


def test_a_run_that_no_live_worker_can_go_on_with_says_so(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = farm.ask(drawn(trials=60)).id
    farm.tuner.step()
    teach(farm, {"filter": {"other": 1}})
    assert not farm.status(run_id).message  # a worker of an upgraded fleet may register now
    monkeypatch.setattr("service.queue.explain.REST_S", -1.0)
    assert not farm.work()
    status = farm.status(run_id)
    assert status.waiting
    assert "waiting for a worker that can build" in status.message
    assert f"{LIBRARY.implementation} of version 1 for filter (they do not have it)" in status.message
    assert "run `make operators`" in status.message
    assert "Waiting for a worker that can build" in page_of(farm, run_id)
    teach(farm, {"other": {}})
    assert "lack filter (they do not have it): install the package" in farm.status(run_id).message


def test_a_run_of_an_older_version_than_all_workers_says_how_to_go_on(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.queue.explain.REST_S", -1.0)
    run_id = farm.ask(drawn(trials=60)).id
    farm.tuner.step()
    teach(farm, {"filter": {FAST.implementation: 2, SLOW.implementation: 1, LIBRARY.implementation: 1}})
    message = farm.status(run_id).message
    assert "1 of 2 queued jobs" in message  # beside the other, which goes on
    assert f"{FAST.implementation} of version 1 for filter (they have version 2)" in message
    assert f"run {run_id} is of an older plevel" in message
    assert f"`plevel cancel {run_id}`" in message
    assert SLOW.implementation not in message


def test_finals_that_no_live_worker_can_build_are_told(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = farm.ask(drawn(trials=2)).id
    while farm.status(run_id).state is RunState.RUNNING:
        farm.tuner.step()
        farm.work()
    status = farm.status(run_id)
    assert (status.state, status.waiting) == (RunState.CONFIRMING, False)
    monkeypatch.setattr("service.queue.explain.REST_S", -1.0)
    teach(farm, {"filter": {}})
    status = farm.status(run_id)
    assert status.waiting
    assert "that can build 1 queued job" in status.message or "that can build 2 queued jobs" in status.message


def test_a_run_that_waits_for_jobs_of_another_says_why_they_wait(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    farm.settings = farm.settings.model_copy(update={"batch": 24})
    farm.tuner = farm.fresh_tuner()
    offered = (msgspec.structs.replace(FAST, space=FEW),)
    asked = drawn(workloads=(RunWorkload(workload=WORKLOAD, candidates=offered),), trials=100)
    first, second = farm.ask(asked), farm.ask(msgspec.structs.replace(asked, trials=101))
    farm.tuner.step()
    assert (farm.open_jobs(first.id), farm.open_jobs(second.id)) == (1, 0)
    monkeypatch.setattr("service.queue.explain.REST_S", -1.0)
    teach(farm, {"filter": {}})
    message = farm.status(second.id).message
    assert "1 queued job" in message
    assert f"{FAST.implementation} of version 1" in message


def test_a_run_whose_jobs_no_rule_gives_to_a_worker_says_why(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.queue.explain.REST_S", -1.0)
    run_id = farm.ask(drawn(trials=60)).id
    farm.tuner.step()
    assert farm.status(run_id).message == "waiting for a worker to ask for its jobs: see the log of worker"
    with farm.store.write() as c:
        pause.create(c, pause.PauseRequest(target=TARGET.key, reason="new fans"))
    message = farm.status(run_id).message
    assert message == f"waiting: {TARGET.key} is paused: new fans"
    assert message in page_of(farm, run_id).replace("Waiting", "waiting")
    monkeypatch.setattr("service.queue.explain.REST_S", 5.0)
    assert not farm.status(run_id).message


def test_a_time_limit_without_any_worker_ends_too(store: Store, url: str, model: CostModel) -> None:
    farm = Farm(store, url, model)
    with store.write() as c:
        fleet.end(c, farm.worker_id)
    status = farm.ask(request(timeout_s=60.0))
    farm.tuner.step()
    assert "waiting for a worker for target llvm/znver4/threads=2" in farm.status(status.id).message
    with store.write() as c:
        c.execute(sa.update(run).values(created_at=now() - 61.0))
    for _ in range(3):
        farm.tuner.step()
    status = farm.status(status.id)
    assert status.state is RunState.FAILED
    assert "no worker" in status.message


def test_workloads_share_the_budget_by_weight(farm: Farm) -> None:
    second = Workload("filter", (Input("data", "float32[32,32]"),))
    asked = request(
        workloads=(
            RunWorkload(workload=WORKLOAD, candidates=(FAST,), weight=3.0),
            RunWorkload(workload=second, candidates=(FAST,), weight=1.0),
        ),
        trials=40,
    )
    status = farm.go(farm.ask(asked).id)
    trials = {t.workload: t.trials for t in status.tasks}
    assert sum(trials.values()) == 40
    # Half of its part is sure; the rest goes where more is expected to be gained.
    assert trials[WORKLOAD.key] >= 15
    assert trials[second.key] >= 5
    assert farm.phases.count(Phase.CONFIRM) == 2 * CONFIRM_SESSIONS
    # One of them alone is tuned enough now, within its share of the budget.
    alone = request(workloads=(RunWorkload(workload=WORKLOAD, candidates=(FAST,)),), trials=30)
    assert farm.ask(alone).state is RunState.DONE
    alone = request(workloads=(RunWorkload(workload=second, candidates=(FAST,)),), trials=30)
    assert farm.ask(alone).state is RunState.RUNNING


def test_a_run_stops_where_little_is_to_be_gained_and_says_so(farm: Farm) -> None:
    asked = request(workloads=(RunWorkload(workload=WORKLOAD, candidates=(FAST,)),), trials=140)
    until = msgspec.structs.replace(asked, until_gain=0.01)
    status = farm.go(farm.ask(until).id)
    assert status.state is RunState.DONE
    assert PATIENCE < status.trials_done < 120
    assert "no trial is expected to gain 1 %" in status.message
    assert status.tasks[0].confirmed
    assert len(farm.jobs[-1]) == FINALISTS + 1
    # Stopped by its own rule: the same again is tuned enough, one that wants more is not.
    assert farm.ask(until).state is RunState.DONE
    assert farm.ask(msgspec.structs.replace(until, until_gain=0.02)).state is RunState.DONE
    assert farm.ask(msgspec.structs.replace(until, until_gain=0.005)).state is RunState.RUNNING
    spent = len(farm.jobs)
    assert farm.go(farm.ask(asked).id).trials_done == 140
    assert len(farm.jobs) > spent


def test_random_search_needs_no_model(farm: Farm) -> None:
    class NoModel:
        def score(self, *_: object) -> None:
            raise AssertionError("the model was asked")

    farm.tuner.model = NoModel()
    status = farm.go(farm.ask(request(trials=40, tuner="random")).id)
    assert (status.state, status.trials_done) == (RunState.DONE, 40)


def test_only_the_implementations_asked_for(farm: Farm) -> None:
    status = farm.go(farm.ask(request(implementations=(SLOW.implementation,))).id)
    assert [t.implementation for t in status.tasks] == [SLOW.implementation]


def test_lost_configurations_are_not_proposed_again(farm: Farm) -> None:
    """A quarantined job's entries count as trials, and the run goes on."""
    status = farm.ask(request(trials=24))
    farm.tuner.step()
    with farm.store.write() as c:
        first = c.execute(sa.select(job.c.id).order_by(job.c.priority.desc(), job.c.id)).first()
        assert first is not None
        entries = c.execute(sa.select(job_entry).where(job_entry.c.job_id == first.id)).all()
        owner = c.execute(sa.select(job).where(job.c.id == first.id)).one()
        from service.records import log

        log.append_lost(c, owner, entries, "its workers died")
        c.execute(sa.update(job).where(job.c.id == first.id).values(state="quarantined"))
    status = farm.go(status.id)
    assert (status.state, status.trials_done) == (RunState.DONE, 24)
    task = {t.implementation: t for t in status.tasks}
    assert sum(t.failures.get("lost", 0) for t in task.values()) == len(entries) == 2


def test_an_implausible_time_is_not_measured_again_by_a_service_that_takes_the_run_over(
    store: Store, model: CostModel
) -> None:
    scene = Scene.make(store, drawn())
    scene.enqueue(configs(2))
    scene.report(scene.leased(scene.register()), [failed(i, ErrorKind.IMPLAUSIBLE) for i in range(2)])
    with store.read() as c:
        tuning = tuning_run.load(c, scene.run_id, model)
        intake.absorb(c, tuning)
    (t,) = (t for t in tuning.tasks if t.id == scene.tasks[FAST.implementation])
    assert t.search is not None
    proposed = t.search.ask(SPACE.count() or 0)
    assert (t.told, t.chance, len(proposed)) == (2, 2, (SPACE.count() or 0) - 2)
    assert not set(proposed) & set(configs(2))


def test_what_is_reported_while_a_run_is_read_is_not_missed(store: Store, model: CostModel) -> None:
    """A tuner that has just started reads what is under way, and what is on record, one after the other."""
    scene = Scene.make(store, request(tuner="random"))
    scene.enqueue(configs(2))
    held = scene.leased(scene.register())
    reports = [[timed(e) for e in held.job.entries]]

    def report(_c: object, _cursor: object, statement: str, given: Any, *_rest: object) -> None:
        values = given.values() if isinstance(given, dict) else given
        read = "FROM job_entry" in statement or (
            "FROM record" in statement and scene.tasks[FAST.implementation] in values
        )
        if read and reports:
            scene.report(held, reports.pop())

    with store.read() as c:
        tuning = tuning_run.load(c, scene.run_id, model)
        sa.event.listen(store.engine, "after_cursor_execute", report)
        intake.absorb(c, tuning)
        sa.event.remove(store.engine, "after_cursor_execute", report)
    assert not reports
    for _ in range(2):
        (t,) = (t for t in tuning.tasks if t.id == scene.tasks[FAST.implementation])
        assert (t.told + t.pending, t.search is not None) == (2, True)
        with store.read() as c:
            intake.absorb(c, tuning)
    assert t.told == 2
    assert t.search is not None and not set(t.search.ask(SPACE.count() or 0)) & set(configs(2))


@pytest.mark.sample(1)
@pytest.mark.parametrize("device_model", ["Model A", "Model B"])
def test_a_time_that_the_finals_of_an_earlier_run_refuted_leads_no_search(
    store: Store, model: CostModel, device_model: str
) -> None:
    """A wrong answer of another device model says nothing of the run's own."""
    earlier = Scene.make(store, request(trials=20))
    good, wrong = sorted(configs(2), key=lambda c: -seconds(FAST.implementation, c))
    for found, phase in (([good, wrong], Phase.SEARCH), ([wrong], Phase.CONFIRM)):
        earlier.enqueue(found, phase=phase)
        final = phase is Phase.CONFIRM
        place = device("host-b/cpu:0-1", model=device_model) if final else device()
        held = earlier.leased(earlier.register(place), place.identity)
        earlier.report(held, [failed(0, ErrorKind.WRONG_ANSWER)] if final else [timed(e) for e in held.job.entries])
    with store.write() as c:
        runs.finish(c, earlier.run_id, RunState.DONE, "done")
    later = Scene.make(store, request(trials=40))
    with store.read() as c:
        tuning = tuning_run.load(c, later.run_id, model)
        intake.absorb(c, tuning)
    (t,) = (t for t in tuning.tasks if t.id == later.tasks[FAST.implementation])
    assert (tuning.device_model, t.told) == ("Model A", 2)
    fastest = good if device_model == "Model A" else wrong
    assert t.best_s == pytest.approx(seconds(FAST.implementation, fastest))
    assert t.search is not None
    assert t.search.best_s == pytest.approx(t.best_s)
