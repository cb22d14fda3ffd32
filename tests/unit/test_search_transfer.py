"""Priors from other tasks' records: of the same shape, and of others."""

from __future__ import annotations

import numpy as np

from service.search.child import InlineModel
from service.search.embedding import Embedding
from service.search.gaussian_process import Floats
from service.search.search import Search
from service.search.transfer import Priors, Source
from strategy.space import Config, ConfigSpace, Knob
from strategy.workload import Input, Workload

SPACE = ConfigSpace([Knob("tile", (1, 2, 4, 8, 16, 32, 64)), Knob("unroll", (1, 2, 4, 8))])
CONFIGS = list(SPACE)
DIGITS = np.array([SPACE.digits(c) for c in CONFIGS], dtype=np.int32)


def workload(m: int) -> Workload:
    return Workload("scale", (Input("data", f"float32[{m},512]"),))


def seconds(m: int, config: Config) -> float:
    """The best tile goes eight times into the dimension: where it lies depends on the shape."""
    tile, unroll = float(config["tile"]), float(config["unroll"])
    return 1e-8 * m * (1 + 0.4 * abs(np.log2(m / tile) - 3)) * (1 + 0.05 * unroll)


def source(m: int, target: str = "here", slower: float = 1.0) -> Source:
    times = [slower * seconds(m, c) for c in CONFIGS]
    return Source(CONFIGS, times, workload(m), target, SPACE)


def predict(m: int, *sources: Source, target: str = "here") -> tuple[Floats, Floats]:
    of = Priors(SPACE, Embedding(SPACE), workload(m), target, sources, InlineModel())
    return of.predict(DIGITS)


def test_of_other_shapes_one_model_is_made_that_knows_dimensions() -> None:
    log_s, risk = predict(128, source(32), source(64), source(256), source(512))
    truth = np.array([seconds(128, c) for c in CONFIGS])
    assert log_s.shape == (len(CONFIGS), 1)
    # None of the sources has its best tile where this shape has it.
    assert CONFIGS[int(log_s[:, 0].argmin())]["tile"] == 16
    assert np.corrcoef(log_s[:, 0], np.log(truth))[0, 1] > 0.95
    assert (risk == 0).all()


def test_a_search_begins_with_what_other_shapes_say_of_this_one() -> None:
    sources = [source(m) for m in (32, 64, 256, 512)]
    search = Search(SPACE, 1, InlineModel(), sources, workload=workload(128), target="here")
    assert search.ask(4)[0]["tile"] == 16


def test_a_slower_target_says_what_the_shape_does_and_no_more() -> None:
    elsewhere = [source(m, "there", 10.0) for m in (32, 64, 256, 512)]
    log_s, _ = predict(128, *elsewhere, source(256))
    assert CONFIGS[int(log_s[:, 0].argmin())]["tile"] == 16
    # The known times of this target give no reason to be as slow.
    assert np.exp(log_s[:, 0]).mean() < 3 * np.mean([seconds(128, c) for c in CONFIGS])


def test_what_fails_on_other_shapes_is_a_risk_here() -> None:
    def failing(m: int) -> Source:
        given = source(m)
        kept = [
            None if c["unroll"] == 8 else s
            for c, s in zip(given.configs, given.seconds, strict=True)
        ]
        return given._replace(seconds=kept)

    log_s, risk = predict(128, failing(64), failing(256))
    fails = np.array([c["unroll"] == 8 for c in CONFIGS])
    assert risk[fails].min() > 0.7
    assert risk[~fails].max() < 0.3
    assert np.isfinite(log_s).all()


def test_what_never_ran_says_nothing() -> None:
    nothing = source(64)._replace(seconds=[None] * len(CONFIGS))
    log_s, risk = predict(128, nothing)
    assert log_s.shape == (len(CONFIGS), 0)
    assert (risk == 0).all()


def test_both_kinds_stand_beside_each_other() -> None:
    same = Source(CONFIGS, [seconds(128, c) for c in CONFIGS])
    log_s, _ = predict(128, same, source(64), source(256))
    assert log_s.shape == (len(CONFIGS), 2)
    assert np.corrcoef(log_s.T)[0, 1] > 0.5
