"""The best of another version, and of another epilogue, is tried first, where the space has it."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa

from service.search.child import InlineModel
from service.search.search import Search
from service.store.db import Store
from service.tuning import sources
from service.tuning.tuning_run import load
from strategy.op_strategy import Candidate
from strategy.space import Config, ConfigSpace, Knob
from strategy.workload import EpilogueStep
from tests.integration.scene import FAST, TARGET, WORKLOAD, Scene, configs, device, timed
from tests.integration.test_sources import asked, measured, shape

pytestmark = pytest.mark.in_turn("url")

BEST = Config({"x": 8, "y": 3})  # by the formula of the scene


def version(number: int, *knobs: Knob) -> Candidate:
    space = ConfigSpace(list(knobs), fallback={k.name: k.values[0] for k in knobs})
    return msgspec.structs.replace(FAST, version=f"{number}.{space.digest}", space=space)


def champions(store: Store, candidate: Candidate) -> list[Config]:
    scene = Scene.make(store, asked(WORKLOAD, candidate, force=True))
    with store.read() as c:
        return sources.find_champions(c, scene.tasks[FAST.implementation], "Model A")


def test_the_best_of_older_versions_newest_first(store: Store) -> None:
    x, y = Knob("x", range(12)), Knob("y", range(12))
    assert champions(store, FAST) == []
    measured(store, asked(WORKLOAD, version(1, x, y)), [BEST, Config({"x": 0, "y": 0})])
    measured(store, asked(WORKLOAD, version(2, x, y)), [Config({"x": 9, "y": 3})])
    assert champions(store, version(3, x, y)) == [Config({"x": 9, "y": 3}), BEST]
    assert champions(store, version(2, x, y)) == [BEST]


def test_the_best_that_was_timed_otherwise_comes_behind_the_target_s_own(store: Store) -> None:
    x, y = Knob("x", range(12)), Knob("y", range(12))
    inside = TARGET.in_network()
    warm, own, other = (Config({"x": i, "y": 3}) for i in (8, 7, 6))
    measured(store, asked(WORKLOAD, FAST), [warm])
    measured(store, msgspec.structs.replace(asked(WORKLOAD, FAST), target=TARGET.with_threads(7)), [other])
    measured(store, msgspec.structs.replace(asked(WORKLOAD, version(2, x, y)), target=inside), [own])
    scene = Scene.make(store, msgspec.structs.replace(asked(WORKLOAD, FAST, force=True), target=inside))
    with store.read() as c:
        assert sources.find_champions(c, scene.tasks[FAST.implementation], "Model A") == [own, warm]


def test_the_best_of_the_device_model_comes_before_a_faster_one_s(store: Store) -> None:
    x, y = Knob("x", range(12)), Knob("y", range(12))
    first, faster = Config({"x": 0, "y": 0}), BEST
    scene = Scene.make(store, asked(WORKLOAD, version(1, x, y)))
    scene.enqueue([first])
    held = scene.leased(scene.register())
    scene.report(held, [timed(e) for e in held.job.entries])
    scene.enqueue([faster])
    place = device("host-b/cpu:0-1", model="Model B")
    held = scene.leased(scene.register(place), place.identity)
    scene.report(held, [timed(e) for e in held.job.entries])
    later = Scene.make(store, asked(WORKLOAD, version(2, x, y), force=True))
    with store.read() as c:
        task_id = later.tasks[FAST.implementation]
        assert sources.find_champions(c, task_id, "Model A") == [first, faster]
        assert sources.find_champions(c, task_id, "Model B") == [faster, first]


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ((Knob("x", range(4, 20)), Knob("y", range(12))), [BEST]),
        ((Knob("x", range(4)), Knob("y", range(12))), []),
        ((Knob("x", range(12)), Knob("y", range(12)), Knob("z", (1, 2))), []),
        ((Knob("x", ("8", "9")), Knob("y", range(12))), []),
    ],
)
def test_it_is_carried_by_value(space: tuple[Knob, ...], expected: list[Config]) -> None:
    search = Search(ConfigSpace(space), seed=1, first=[BEST, BEST])
    first, *others = search.ask(6)
    assert [first][: len(expected)] == expected
    assert len({first, *others}) == 6
    assert BEST not in search.ask(6)


def test_then_those_of_the_call_with_other_epilogues(store: Store) -> None:
    x, y = Knob("x", range(12)), Knob("y", range(12))
    relu, tanh = (EpilogueStep(name, (None,)) for name in ("relu", "tanh"))
    rows = [Config({"x": i, "y": 3}) for i in range(8)]
    for i, (steps, begin) in enumerate((((), version(1, x, y)), ((tanh,), FAST), ((relu,), version(2, x, y)))):
        workload = msgspec.structs.replace(WORKLOAD, epilogue=steps)
        measured(store, asked(workload, begin), rows[: 8 - i])
    measured(store, asked(shape(64, 128)), configs(8))
    scene = Scene.make(store, asked(msgspec.structs.replace(WORKLOAD, epilogue=(relu,)), force=True))
    with store.read() as c:
        (task_id,) = scene.tasks.values()
        assert [found["x"] for found in sources.find_champions(c, task_id, "Model A")] == [5, 6, 7]
        # Their knobs mean the same: only another shape is learnt from by its dimensions.
        read = sources.find_sources(c, task_id, sa.false(), "Model A")
    assert [len(s.configs) for s in read if s.workload is None] == [8]
    assert [s.workload for s in read if s.workload] == [shape(64, 128)]


def test_a_run_begins_with_it(store: Store) -> None:
    x, y = Knob("x", range(12)), Knob("y", range(12))
    measured(store, asked(WORKLOAD, version(1, x, y)), [BEST, Config({"x": 1, "y": 1})])
    for tuner in ("random", "model"):
        request = asked(WORKLOAD, version(2, x, y), tuner=tuner, force=True)
        scene = Scene.make(store, request)
        with store.read() as c:
            (tuned,) = load(c, scene.run_id, InlineModel()).tasks
        assert tuned.search is not None
        assert tuned.search.ask(4)[0] == BEST
