"""The sources of a search: records of its implementation on other shapes, targets and versions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import sqlalchemy as sa

from service.records import retention
from service.search.child import InlineModel
from service.search.transfer import SOURCES, Source
from service.store.db import Store
from service.store.tables import record
from service.tuning import run as runs
from service.tuning import sources as relative
from strategy.record import ErrorKind, Phase, RunRequest, RunWorkload
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.workload import Input, Workload
from tests.integration.scene import (
    FAST,
    OTHER_TARGET,
    TARGET,
    WORKLOAD,
    Scene,
    configs,
    device,
    failed,
    seconds,
    timed,
)
from tests.integration.test_tuner import Farm

pytestmark = pytest.mark.in_turn("url")


def shape(*extents: int) -> Workload:
    return Workload("filter", (Input("data", f"float32[{','.join(map(str, extents))}]"),))


def asked(workload: Workload, candidate: object = FAST, **values: object) -> RunRequest:
    one = RunWorkload(workload=workload, candidates=(candidate,))
    return RunRequest(**({"workloads": (one,), "target": TARGET, "trials": 9} | values))


def measured(
    store: Store, request: RunRequest, tried: Sequence[Config], *, fails: Sequence[int] = (),
    error: ErrorKind = ErrorKind.COMPILE,
) -> int:
    """Records of these configurations by a run of its own; its task."""
    scene = Scene.make(store, request)
    known = device(f"{request.target.host}/cpu:0-1", request.target.host)
    worker = scene.register(known)
    (name,) = scene.tasks
    scene.enqueue(tried, name)
    held = scene.leased(worker, known.identity)
    scene.report(
        held, [failed(e.index, error) if e.index in fails else timed(e) for e in held.job.entries]
    )
    return scene.tasks[name]


def found(store: Store, request: RunRequest) -> list[Source]:
    """The sources of a new run of this request."""
    scene = Scene.make(store, msgspec.structs.replace(request, force=True))
    with store.read() as c:
        (task_id,) = scene.tasks.values()
        counted = runs.trials_of(scene.run_id, True, None)
        return relative.find_sources(c, task_id, counted, "Model A")


def test_the_most_alike_come_first(store: Store) -> None:
    assert FAST.space is not None
    other_space = ConfigSpace([*FAST.space.knobs, Knob("z", (1, 2))])
    older = msgspec.structs.replace(FAST, version=f"0.{other_space.digest}", space=other_space)
    cases = [
        asked(shape(4096, 64)),
        asked(shape(256, 64)),
        asked(WORKLOAD, target=OTHER_TARGET),
        asked(WORKLOAD, older),
        asked(WORKLOAD),
    ]
    for x, case in enumerate(cases):
        measured(store, case, [Config({"x": x, "y": y}) for y in range(8)])
    sources = found(store, asked(WORKLOAD))
    assert [{c["x"] for c in s.configs} for s in sources] == [{4}, {3}, {2}, {1}, {0}]
    # Of other shapes it is said what they are.
    assert [s.workload for s in sources] == [None, None, None, shape(256, 64), shape(4096, 64)]
    assert all(s.space == (FAST.space if s.workload else None) for s in sources)
    assert len({s.target for s in sources[3:]}) == 1


def test_those_of_this_shape_and_those_of_others_have_room_of_their_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relative, "SHAPES", 2)
    assert FAST.space is not None
    for n in range(SOURCES + 1):
        other = ConfigSpace([*FAST.space.knobs, Knob("z", range(n + 1))])
        version = msgspec.structs.replace(FAST, version=f"0.{other.digest}", space=other)
        measured(store, asked(WORKLOAD, version), configs(8))
    for m in (128, 256, 512):
        measured(store, asked(shape(m, 64)), configs(8))
    sources = found(store, asked(WORKLOAD))
    assert [s.workload for s in sources] == [None] * SOURCES + [shape(128, 64), shape(256, 64)]


def test_a_shape_of_another_rank_counts_for_this_one(store: Store) -> None:
    measured(store, asked(shape(64, 64, 64)), configs(8))
    (source,) = found(store, asked(WORKLOAD))
    assert source.workload is None


def test_what_says_nothing_of_a_configuration_is_left_out(store: Store) -> None:
    lost = measured(store, asked(shape(32, 32)), configs(10), fails=(1, 2), error=ErrorKind.LOST)
    assert lost
    (source,) = found(store, asked(WORKLOAD))
    assert len(source.configs) == 8
    failures = measured(store, asked(shape(32, 16)), configs(10), fails=(1, 2))
    assert failures
    by_length = sorted(len(s.configs) for s in found(store, asked(WORKLOAD)))
    assert by_length == [8, 10]
    assert sorted(sum(t is None for t in s.seconds) for s in found(store, asked(WORKLOAD))) == [
        0,
        2,
    ]


@pytest.mark.parametrize("workload", [WORKLOAD, shape(96, 96)])
def test_a_configuration_whose_answer_was_wrong_later_is_a_failure(store: Store, workload: Workload) -> None:
    tried = configs(9)
    measured(store, asked(workload, target=OTHER_TARGET), tried)
    final = Scene.make(store, asked(workload, target=OTHER_TARGET, force=True))
    final.enqueue(tried[3:4], phase=Phase.CONFIRM)
    known = device("host-b/cpu:0-1", OTHER_TARGET)
    held = final.leased(final.register(known), known.identity)
    final.report(held, [failed(0, ErrorKind.WRONG_ANSWER)])
    (source,) = found(store, asked(WORKLOAD))
    assert [c for c, s in zip(source.configs, source.seconds, strict=True) if s is None] == [tried[3]]


def test_trials_of_the_run_itself_are_no_source(store: Store) -> None:
    task_id = measured(store, asked(WORKLOAD), configs(9))
    scene = Scene.make(store, asked(WORKLOAD, trials=20))
    with store.read() as c:
        policy = c.scalar(sa.select(record.c.policy_id).limit(1))
        counted = runs.trials_of(scene.run_id, False, policy)
        assert relative.find_sources(c, task_id, counted, "Model A") == []
        (own,) = relative.find_sources(c, task_id, sa.false(), "Model A")
    assert len(own.configs) == 9


def test_each_device_model_is_a_source_of_its_own(store: Store) -> None:
    for workload in (WORKLOAD, shape(96, 96)):
        for model in ("Model B", "Model A"):
            scene = Scene.make(store, asked(workload, force=True))
            known = device(f"{model}/cpu:0-1", model=model)
            worker = scene.register(known)
            scene.enqueue(configs(9 if model == "Model A" else 12), FAST.implementation)
            held = scene.leased(worker, known.identity)
            scene.report(held, [timed(e) for e in held.job.entries])
    scene = Scene.make(store, asked(WORKLOAD, force=True))
    (task_id,) = scene.tasks.values()
    with store.read() as c:
        read = relative.find_sources(c, task_id, sa.false(), "Model A")
        trials = relative.find_sources(c, task_id, sa.true(), "Model A")
    assert [(len(s.configs), s.workload is None) for s in read] == [(9, True), (12, True), (9, False), (12, False)]
    assert len({s.target for s in read[2:]}) == 2
    # Trials of another device model are a source beside the search's own.
    assert [len(s.configs) for s in trials] == [12, 9, 12]


def test_imported_records_are_no_trials_though_they_have_the_policy(store: Store) -> None:
    measured(store, asked(WORKLOAD), configs(9))
    scene = Scene.make(store, asked(WORKLOAD, trials=20))
    with store.write() as c:
        c.execute(sa.update(record).values(run_id=None, job_id=None, entry=None))
    with store.read() as c:
        for policy in (c.scalar(sa.select(record.c.policy_id).limit(1)), None):
            counted = runs.trials_of(scene.run_id, False, policy)
            assert c.scalar(sa.select(sa.func.count()).select_from(record).where(counted)) == 0


def test_purged_records_are_no_source(store: Store) -> None:
    measured(store, asked(shape(32, 32)), configs(12))
    assert len(found(store, asked(WORKLOAD))) == 1
    with store.write() as c:
        retention.purge_doubtful(c, retention.Doubtful(worker="worker"), "a broken fan")
    assert found(store, asked(WORKLOAD)) == []


def test_too_few_records_are_no_source(store: Store) -> None:
    measured(store, asked(shape(32, 32)), configs(relative.LEAST_RECORDS - 1))
    assert found(store, asked(WORKLOAD)) == []


@pytest.mark.full
@pytest.mark.parametrize("target", [TARGET, OTHER_TARGET])
def test_a_run_begins_where_another_shape_or_target_was_fast(
    store: Store, url: str, target: Target
) -> None:
    """The formula is the same for all shapes: the first proposal is as good as the best known."""
    farm = Farm(store, url, InlineModel())
    measured(store, asked(shape(96, 96), target=target), configs(144))
    status = farm.go(farm.ask(asked(WORKLOAD, trials=8)).id)
    assert status.trials_done == 8
    first = farm.jobs[farm.phases.index(Phase.SEARCH)][0]
    optimum = min(seconds(FAST.implementation, c) for c in configs(144))
    assert seconds(FAST.implementation, first.config) <= 1.03 * optimum


def test_the_workloads_of_a_run_learn_from_each_other(store: Store, url: str) -> None:
    """The formula is the same for all: the third begins when the first has been measured."""
    farm = Farm(store, url, InlineModel())
    layers = [RunWorkload(workload=shape(m, 64), candidates=(FAST,)) for m in (64, 96, 128)]
    farm.go(farm.ask(RunRequest(workloads=tuple(layers), target=TARGET, trials=48)).id)
    begun: dict[int, list[Config]] = {}
    for entries in farm.jobs:
        begun.setdefault(entries[0].task_id, [e.config for e in entries])
    first, second, third = begun.values()
    assert FAST.space is not None
    # A run without knowledge begins with the fallback, another with the configurations it expects to be fast.
    assert first[0] == second[0] == third[-1] == FAST.space.fallback
    times = [[seconds(FAST.implementation, c) for c in batch[1:-1]] for batch in (first, third)]
    assert sum(times[1]) < sum(times[0])
