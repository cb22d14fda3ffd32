"""Ask/tell: never twice, always valid, deterministic, better than chance, and not afraid of size."""

from __future__ import annotations

import math
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.search.child import ChildModel, CostModelError, InlineModel
from service.search.proposal import Proposal, Request
from service.search.search import Search
from service.search.transfer import Source
from strategy.space import Config, ConfigSpace, Knob, knob, split

BOWL = ConfigSpace(
    [Knob("a", range(24)), Knob("b", range(24)), Knob("c", (1, 2, 4, 8)), Knob("mode", ("x", "y", "z"))],
    constraints=[knob("a") + knob("b") <= 34],
    derived={"sum": knob("a") + knob("b")},
    fallback={"a": 0, "b": 0, "c": 1, "mode": "x"},
)
HUGE = ConfigSpace([Knob(f"k{i}", range(32)) for i in range(9)], [knob("k0") <= knob("k1")])


def bowl_s(config: Config) -> float | None:
    a, b, c = (float(config[k]) for k in "abc")
    if a == 3:
        return None
    slow = {"x": 1.0, "y": 1.3, "z": 0.9}[str(config["mode"])]
    return 1e-4 * slow * (1 + (a - 17) ** 2 / 60 + (b - 11) ** 2 / 60 + abs(math.log2(c) - 2) / 4)


@pytest.fixture(scope="module")
def model() -> Iterator[ChildModel]:
    with ChildModel() as child:
        yield child


def tune(search: Search, trials: int, batch: int = 8, goal_s: float = 0.0) -> list[float]:
    """The best after each trial, until it is no more than the goal."""
    best, curve = math.inf, []
    while best > goal_s and len(curve) < trials:
        configs = search.ask(min(batch, trials - len(curve)))
        if not configs:
            break
        for config in configs:
            seconds = bowl_s(config)
            search.tell(config, seconds)
            best = min(best, seconds or math.inf)
            curve.append(best)
    return curve


def test_the_fallback_comes_first() -> None:
    assert Search(BOWL, seed=3).ask(3)[0] == BOWL.fallback


@pytest.mark.parametrize("guided", [False, True])
def test_every_configuration_once_and_then_no_more(model: ChildModel, guided: bool) -> None:
    space = ConfigSpace([Knob("a", range(9)), Knob("b", range(9))], [knob("a") < knob("b")])
    search = Search(space, 1, model if guided else None)
    seen: list[Config] = []
    while configs := search.ask(7):
        seen += configs
        for config in configs:
            search.tell(config, 1.0 + float(config["a"]))
    assert len(seen) == len(set(seen)) == 36
    assert all(space.contains(c) for c in seen)
    assert search.exhausted


@given(st.integers(0, 2**20), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_never_twice_in_any_order_of_results(seed: int, batches: list[int], data: st.DataObject) -> None:
    search = Search(BOWL, seed, _Flat())
    seen: set[Config] = set()
    waiting: list[Config] = []
    for n in batches:
        configs = search.ask(n)
        assert len(configs) == n
        assert seen.isdisjoint(configs)
        assert all(BOWL.contains(c) for c in configs)
        seen.update(configs)
        waiting += configs
        for _ in range(data.draw(st.integers(0, len(waiting)))):
            config = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            search.tell(config, bowl_s(config))


class _Flat(InlineModel):
    """A model that knows nothing; these tests are about the search around it."""

    def propose(self, request: Request) -> Proposal:
        return Proposal(np.arange(min(request.n, len(request.pool))), np.zeros((0, 2)), request.theta)


def test_the_same_seed_gives_the_same_proposals(model: ChildModel) -> None:
    runs = []
    for _ in range(2):
        search = Search(BOWL, 11, model)
        tune(search, 48)
        runs.append(list(search._told))
    assert runs[0] == runs[1]
    other = Search(BOWL, 12, model)
    tune(other, 48)
    assert list(other._told) != runs[0]


def test_the_model_finds_what_chance_does_not(model: ChildModel) -> None:
    optimum = min(t for c in BOWL if (t := bowl_s(c)) is not None)
    guided = [tune(Search(BOWL, seed, model), 120)[-1] for seed in range(3)]
    chance = [tune(Search(BOWL, seed), 120)[-1] for seed in range(9)]
    assert max(guided) <= 1.03 * optimum
    assert statistics.median(chance) > 1.05 * optimum


def test_failures_are_avoided_once_they_are_known(model: ChildModel) -> None:
    def half_fails(config: Config) -> float | None:
        return None if config["mode"] != "x" else bowl_s(config)

    search = Search(BOWL, 5, model)
    outcomes = []
    while len(outcomes) < 120:
        for config in search.ask(8):
            seconds = half_fails(config)
            search.tell(config, seconds)
            outcomes.append(seconds is None)
    assert sum(outcomes[:8]) > 3
    assert sum(outcomes[-40:]) < 10
    assert search.best_s is not None


def test_what_is_told_or_under_way_is_not_proposed() -> None:
    space = ConfigSpace([Knob("a", range(10))])
    search = Search(space, 1)
    search.tell(Config({"a": 3}), 1.0)
    search.avoid([Config({"a": 4}), Config({"a": 99}), Config({"b": 1})])
    assert {c["a"] for c in search.ask(50)} == set(range(10)) - {3, 4}


def test_what_another_run_has_in_the_queue_stays_skipped_once_it_is_released() -> None:
    search = Search(ConfigSpace([Knob("a", range(4))]), 1)
    search.skip(Config({"a": 1}))
    search.avoid([Config({"a": 1}), Config({"a": 2})])
    for a in (1, 2):
        search.release(Config({"a": a}))
    assert {c["a"] for c in search.ask(9)} == {0, 2, 3}


IDLE = ConfigSpace(
    [Knob("order", ("rows", "panels")), Knob("a", (1, 2, 3)), Knob("ahead", (False, True)), Knob("b", (1, 2))],
    [knob("a") + knob("b") <= 4],
    fallback={"order": "panels", "a": 2, "ahead": True, "b": 2},
    idle={"ahead": knob("b") == 1, "order": (knob("a") == 1) | (knob("b") * (knob("ahead") + 1) == 2)},
)


def settled(config: Config) -> tuple[object, ...]:
    """The values on which the code of a configuration of `IDLE` depends."""
    a, b, ahead = config["a"], config["b"], config["ahead"] or config["b"] == 1
    order = None if a == 1 or (b, ahead) in ((1, True), (2, False)) else config["order"]
    return order, a, ahead, b


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("guided", [False, True])
def test_of_configurations_with_the_same_code_one_is_proposed(
    monkeypatch: pytest.MonkeyPatch, guided: bool, table: bool
) -> None:
    if not table:
        monkeypatch.setattr("service.search.pool.LOOK_THROUGH", 0)
    search = Search(IDLE, 3, InlineModel() if guided else None)
    twin = Config({"order": "rows", "a": 1, "ahead": False, "b": 1})
    search.tell(twin, 1.0)
    proposed: list[Config] = []
    while configs := search.ask(2):
        proposed += configs
        for config in configs:
            search.tell(config, 1.0 + float(config["a"]))
    every = {settled(c) for c in IDLE}
    assert IDLE.fallback == proposed[0]
    assert sorted(map(repr, map(settled, proposed))) == sorted(map(repr, every - {settled(twin)}))
    assert all(IDLE.contains(c) for c in proposed)
    assert search.trials == len(every)


def test_a_twin_of_what_is_under_way_is_not_proposed_until_it_is_released() -> None:
    search, twin = Search(IDLE, 1), Config({"order": "rows", "a": 1, "ahead": False, "b": 2})
    search.avoid([twin])
    other = Config({**twin.plain, "order": "panels"})
    assert other not in search.ask(99)
    search.release(twin)
    assert search.ask(99) == [other]


def test_strangers_are_passed_over() -> None:
    search = Search(ConfigSpace([Knob("a", range(4))]), 1)
    search.tell(Config({"a": 9}), 1.0)
    search.tell(Config({"z": 1}), 1.0)
    assert (search.trials, search.best_s) == (0, None)


def test_told_twice_the_lower_counts() -> None:
    search = Search(ConfigSpace([Knob("a", range(4))]), 1)
    for seconds in (None, 2.0, 1.0, 3.0, None):
        search.tell(Config({"a": 1}), seconds)
    assert search.best_s == pytest.approx(1.0)
    assert search.trials == 1


def test_a_failing_model_leaves_random_search_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(InlineModel):
        def propose(self, request: Request) -> Proposal:
            raise CostModelError("it died")

    search = Search(BOWL, 1, Broken())
    assert len(tune(search, 64)) == 64
    assert search.lower_bound_s is None
    assert [r.message for r in caplog.records] == ["proposals for a space are random until it answers: it died"]
    caplog.clear()
    search.model = InlineModel()
    tune(search, 8)
    search.model = Broken()
    tune(search, 8)
    assert len(caplog.records) == 1


def test_the_lower_bound_is_below_the_best_while_there_is_hope(model: ChildModel) -> None:
    search = Search(BOWL, 2, model)
    tune(search, 40)
    assert search.lower_bound_s is not None
    assert search.best_s is not None
    assert 0 < search.lower_bound_s < 2 * search.best_s


@pytest.mark.full
def test_little_is_expected_once_the_best_is_found(model: ChildModel) -> None:
    search = Search(BOWL, 2, model)
    assert search.expected_gain(1.0) is None
    tune(search, 24)
    early = search.expected_gain(search.best_s or 0.0)
    tune(search, 200)
    late = search.expected_gain(search.best_s or 0.0)
    assert early is not None
    assert late is not None
    assert late < early / 10 < early < 1
    # A time that is easily beaten is expected to be.
    assert (search.expected_gain(3 * (search.best_s or 0.0)) or 0.0) > 0.5


def test_a_huge_space_costs_neither_memory_nor_time(model: ChildModel) -> None:
    assert HUGE.size > 10**12
    tracemalloc.start()
    search = Search(HUGE, 1, model)
    rng = random.Random(1)
    for _ in range(6):
        for config in search.ask(8):
            assert HUGE.contains(config)
            search.tell(config, rng.uniform(1.0, 2.0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6
    began = time.process_time()
    assert len(search.ask(8)) == 8
    assert time.process_time() - began < 2.0
    assert not search.exhausted


def test_a_large_space_with_few_valid_configurations_is_searched() -> None:
    # One in a million: drawn at random none would be found.
    space = ConfigSpace(
        [Knob(f"k{i}", range(20)) for i in range(6)],
        [knob(f"k{i}") + 0 == knob(f"k{i + 1}") for i in range(5)],
    )
    search = Search(space, 1, InlineModel())
    found: set[Config] = set()
    for _ in range(4):
        for config in search.ask(4):
            assert space.contains(config)
            found.add(config)
            search.tell(config, 1.0 + abs(float(config["k0"]) - 7))
    assert len(found) == 16


def test_split_knobs_are_searched(model: ChildModel) -> None:
    space = ConfigSpace([split("s", 64, 3), Knob("u", (0, 1))], derived={"inner": knob("s")[2]})
    search = Search(space, 1, model)
    for _ in range(5):
        for config in search.ask(6):
            inner = config["s"][2]
            search.tell(config, 1.0 + abs(math.log2(inner) - 3))
    assert search.best_s == pytest.approx(1.0)


def trials_to(search: Search, goal_s: float, most: int) -> int:
    curve = tune(search, most, goal_s=goal_s)
    return next((i + 1 for i, best in enumerate(curve) if best <= goal_s), most + 1)


def source(of: Callable[[Config], float | None], n: int = 150) -> Source:
    configs = BOWL.sample(random.Random(7), n)
    return Source(configs, [of(c) for c in configs])


def test_records_of_elsewhere_say_where_to_look() -> None:
    def elsewhere(config: Config) -> float | None:
        seconds = bowl_s(config)
        return None if seconds is None else 3e-3 * seconds**1.2  # another scale, the same order

    optimum = min(t for c in BOWL if (t := bowl_s(c)) is not None)
    warm, cold = [], []
    for seed in range(3):
        warm.append(trials_to(Search(BOWL, seed, InlineModel(), [source(elsewhere)]), 1.05 * optimum, 16))
        cold.append(trials_to(Search(BOWL, seed, InlineModel()), 1.05 * optimum, 80))
    assert statistics.median(warm) <= 8
    assert statistics.median(warm) < statistics.median(cold)


@pytest.mark.full
def test_a_search_is_taught_under_way() -> None:
    search = Search(BOWL, 1, InlineModel())
    tune(search, 8)
    search.teach([source(bowl_s)])
    best = min(bowl_s(c) or math.inf for c in search.ask(8))
    assert best < 1.2 * min(t for c in BOWL if (t := bowl_s(c)) is not None)


def test_misleading_records_cost_little() -> None:
    def upside_down(config: Config) -> float | None:
        seconds = bowl_s(config)
        return None if seconds is None else 1e-8 / seconds

    optimum = min(t for c in BOWL if (t := bowl_s(c)) is not None)
    for seed in range(2):
        search = Search(BOWL, seed, InlineModel(), [source(upside_down)])
        assert trials_to(search, 1.05 * optimum, 80) <= 80


def test_sources_of_strangers_and_failures_are_no_error() -> None:
    configs = BOWL.sample(random.Random(1), 20)
    sources = [
        Source([Config({"z": 1})] * 9, [1.0] * 9),
        Source(configs, [None] * 20),
        Source([], []),
    ]
    assert len(tune(Search(BOWL, 1, InlineModel(), sources), 24)) == 24


def test_what_is_known_to_fail_elsewhere_is_avoided() -> None:
    def half_fails(config: Config) -> float | None:
        return None if config["mode"] != "x" else bowl_s(config)

    configs = Search(BOWL, 1, InlineModel(), [source(half_fails)]).ask(16)
    assert sum(c["mode"] == "x" for c in configs) >= 10


def test_the_best_guess_of_a_prior_goes_before_the_fallback() -> None:
    configs = Search(BOWL, 1, InlineModel(), [source(bowl_s)]).ask(8)
    first = bowl_s(configs[0])
    assert BOWL.fallback in configs[1:]
    assert first is not None
    assert first < 1.2 * min(t for c in BOWL if (t := bowl_s(c)) is not None)


def test_listed_configurations_are_all_that_is_proposed() -> None:
    space = ConfigSpace([Knob("a", range(18)), Knob("b", range(18))])
    rows = np.array([(a, b) for a in range(18) for b in range(18) if (a * b) % 7 == 3], dtype=np.int32)
    search = Search(space, 1, InlineModel(), listed=rows)
    seen: list[tuple[int, ...]] = []
    while configs := search.ask(16):
        for config in configs:
            seen.append(space.digits(config))
            search.tell(config, 1.0 + float(config["a"]))
    assert sorted(seen) == sorted(map(tuple, rows.tolist()))
