"""The cost model: what it learns, and the process that it lives in."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from service.search.child import ChildModel, CostModelError, InlineModel, Records
from service.search.embedding import Embedding, Places
from service.search.features import Digits
from service.search.gaussian_process import _invert
from service.search.proposal import MOST_TRIALS, VIEWS, Request, expected_improvement, propose
from strategy.space import ConfigSpace, Knob

Floats = NDArray[np.float64]
SPACE = ConfigSpace([Knob("a", range(1, 17)), Knob("b", range(1, 17)), Knob("mode", ("x", "y", "z"))])
EMBEDDING = Embedding(SPACE)


def grid(n: int, seed: int = 0) -> Digits:
    rng = np.random.default_rng(seed)
    return rng.integers(0, (16, 16, 3), size=(n, 3), dtype=np.int32)


def log_seconds(digits: Digits) -> Floats:
    return -7 + 0.1 * np.abs(digits[:, 0] - 9) + 0.05 * digits[:, 1] + 0.3 * (digits[:, 2] == 1)


def request(digits: Digits, log_s: Floats, pool: Digits, n: int = 8, prior: Floats | None = None) -> Request:
    place = EMBEDDING.place
    empty = np.zeros((0, 3), dtype=np.int32)
    columns = 0 if prior is None else 1
    known = np.zeros((len(digits), 0)) if prior is None else log_seconds(digits)[:, None]
    return Request(
        EMBEDDING.groups, EMBEDDING.reach, np.full((VIEWS, len(EMBEDDING.reach) + 1), np.nan), True, n,
        place(digits), log_s, known, np.zeros(len(digits)),
        place(empty), np.zeros((0, columns)),
        place(pool), np.zeros((len(pool), 0)) if prior is None else prior, np.zeros(len(pool)),
    )


def test_it_chooses_the_best_of_what_it_has_not_seen() -> None:
    digits, pool = grid(80), grid(400, seed=1)
    chosen = InlineModel().propose(request(digits, log_seconds(digits), pool))
    truth = log_seconds(pool)
    assert len(set(chosen.rows.tolist())) == 8
    assert truth[chosen.rows[:2]].max() < np.quantile(truth, 0.03)
    mean, deviation = chosen.front.T
    assert (mean - 2 * deviation).min() < truth.min() + 0.05
    # Nobody on the front is beaten in both.
    assert (np.diff(mean) >= 0).all()
    assert (np.diff(deviation) > 0).all()
    assert np.isfinite(chosen.theta[:2]).all()


def test_it_answers_again_what_it_answered() -> None:
    digits, pool = grid(60), grid(200, seed=2)
    asked = request(digits, log_seconds(digits), pool)
    assert propose(asked).rows.tolist() == propose(asked).rows.tolist()


def test_little_known_fills_the_space() -> None:
    pool = grid(300, seed=3)
    chosen = propose(request(pool[:0], np.zeros(0), pool, n=12))
    places = EMBEDDING.place(pool)[chosen.rows]
    nearest = [np.sort(((places - p) ** 2).sum(axis=1))[1] for p in places]
    at_random = EMBEDDING.place(pool)[:12]
    usual = [np.sort(((at_random - p) ** 2).sum(axis=1))[1] for p in at_random]
    assert min(nearest) > 2 * min(usual)
    assert len(chosen.front) == 0


def test_what_is_under_way_counts_as_chosen() -> None:
    digits, pool = grid(30), grid(200, seed=9)
    asked = request(digits, log_seconds(digits), pool, n=3)
    together = propose(asked).rows.tolist()
    rest = np.setdiff1d(np.arange(len(pool)), together[:1])
    rest = rest[(asked.pool[rest] != asked.pool[together[0]]).any(axis=1)]
    waiting = asked._replace(
        n=2, pending=asked.pool[together[:1]], pending_prior=asked.pool_prior[together[:1]],
        pool=asked.pool[rest], pool_prior=asked.pool_prior[rest], pool_risk=asked.pool_risk[rest],
    )
    assert rest[propose(waiting).rows].tolist() == together[1:]


def test_failures_are_learnt_and_have_no_time() -> None:
    digits, pool = grid(120), grid(300, seed=2)
    log_s = log_seconds(digits)
    log_s[digits[:, 0] > 7] = np.nan  # the fastest would be there
    chosen = propose(request(digits, log_s, pool, n=16))
    assert (pool[chosen.rows, 0] > 7).sum() <= 3


@pytest.mark.parametrize("worked", [0, 1, 2])
def test_next_to_nothing_known_is_no_error(worked: int) -> None:
    digits = grid(20)
    log_s = log_seconds(digits)
    log_s[worked:] = np.nan
    assert len(propose(request(digits, log_s, grid(50, seed=4))).rows) == 8


def test_equal_times_are_no_error() -> None:
    digits = grid(30)
    assert len(propose(request(digits, np.full(30, -5.0), grid(50, seed=4))).rows) == 8


def test_thousands_of_trials_cost_no_more_than_hundreds() -> None:
    digits, pool = grid(20 * MOST_TRIALS), grid(500, seed=5)
    began = time.process_time()
    chosen = propose(request(digits, log_seconds(digits), pool)._replace(tune=False))
    assert time.process_time() - began < 5
    truth = log_seconds(pool)
    assert truth[chosen.rows[0]] <= np.quantile(truth, 0.05)


def test_a_prior_says_where_to_begin_and_part_stays_free_of_it() -> None:
    pool = grid(300, seed=6)
    truth = log_seconds(pool)
    chosen = propose(request(pool[:0], np.zeros(0), pool, n=16, prior=5 + 2 * truth[:, None]))
    assert truth[chosen.rows[0]] == truth.min()
    good = truth[chosen.rows] < np.quantile(truth, 0.25)
    assert 8 <= good.sum() <= 14


def test_one_by_one_an_eighth_stays_free_of_the_prior_too() -> None:
    pool = grid(300, seed=6)
    truth = log_seconds(pool)
    asked = request(pool[:0], np.zeros(0), pool, n=1, prior=5 + 2 * truth[:, None])
    chosen: list[int] = []
    for _ in range(16):
        rest = np.setdiff1d(np.arange(len(pool)), chosen)
        waiting = asked._replace(
            pending=asked.pool[chosen], pending_prior=asked.pool_prior[chosen],
            pool=asked.pool[rest], pool_prior=asked.pool_prior[rest], pool_risk=asked.pool_risk[rest],
        )
        chosen.append(int(rest[propose(waiting).rows[0]]))
    good = truth[chosen] < np.quantile(truth, 0.25)
    assert not good[[7, 15]].any()
    assert good.sum() >= 10


def test_a_triangle_is_inverted_by_halves() -> None:
    rng = np.random.default_rng(0)
    for n in (5, 33, 200):
        root = rng.normal(size=(n, n))
        lower = np.linalg.cholesky(root @ root.T + np.eye(n))
        inverse = _invert(lower)
        assert np.allclose(inverse @ lower, np.eye(n))
        assert (np.triu(inverse, 1) == 0).all()


def test_a_prior_learnt_from_records_predicts_them() -> None:
    digits = grid(200)
    log_s = log_seconds(digits)
    log_s[digits[:, 1] > 12] = np.nan
    records = Records(EMBEDDING.groups, EMBEDDING.reach, EMBEDDING.place(digits), log_s, 0, 500)
    prior = InlineModel().learn(records)
    assert prior is not None
    other = grid(300, seed=8)
    time_, risk = prior.predict(EMBEDDING.groups, EMBEDDING.place(other))
    fails = other[:, 1] > 12
    assert np.corrcoef(time_[~fails], log_seconds(other)[~fails])[0, 1] > 0.95
    assert risk[fails].mean() > 0.7
    assert risk[~fails].mean() < 0.2


def test_too_few_records_are_no_prior() -> None:
    places: Places = EMBEDDING.place(grid(4))
    assert InlineModel().learn(Records(EMBEDDING.groups, EMBEDDING.reach, places, np.zeros(4), 0, 500)) is None


def test_expected_improvement_is_the_integral() -> None:
    rng = np.random.default_rng(0)
    draws = rng.normal(size=400_000)
    for mean, deviation in ((0.0, 1.0), (1.5, 0.5), (-1.0, 0.3)):
        sampled = np.maximum(0.2 - (mean + deviation * draws), 0).mean()
        exact = expected_improvement(np.array([mean]), np.array([deviation]), 0.2)[0]
        assert exact == pytest.approx(sampled, abs=4e-3)


def test_the_child_gives_the_same_answers() -> None:
    digits, pool = grid(60), grid(100, seed=5)
    asked = request(digits, log_seconds(digits), pool)
    records = Records(EMBEDDING.groups, EMBEDDING.reach, asked.places, asked.log_s, 0, 500)
    with ChildModel() as child:
        answers = [child.propose(asked) for _ in range(2)]
        assert answers[0].rows.tolist() == answers[1].rows.tolist()
        assert answers[0].rows.tolist()[0] == InlineModel().propose(asked).rows.tolist()[0]
        prior, inline = child.learn(records), InlineModel().learn(records)
        assert prior is not None
        assert inline is not None
        ours = inline.predict(EMBEDDING.groups, asked.pool)[0]
        assert np.allclose(prior.predict(EMBEDDING.groups, asked.pool)[0], ours, atol=1e-2)
        assert child.learn(records._replace(places=asked.places[:2], log_s=asked.log_s[:2])) is None
        features, values = asked.places, asked.log_s.astype(np.float32)
        assert (child.grow(features, values) == InlineModel().grow(features, values)).all()


def test_a_dead_child_is_an_error_once_and_then_replaced() -> None:
    digits = grid(30)
    asked = request(digits, log_seconds(digits), digits)
    with ChildModel() as child:
        child.propose(asked)
        assert child._child is not None
        assert os.getpriority(os.PRIO_PROCESS, child._child.pid) > os.getpriority(os.PRIO_PROCESS, 0)
        os.kill(child._child.pid, signal.SIGSTOP)
        dying = child._child.pid
        os.kill(dying, signal.SIGKILL)
        try:
            child.propose(asked)
        except CostModelError:
            child.propose(asked)
        assert child._child is not None
        assert child._child.pid != dying


def test_a_wrong_request_is_an_error_and_the_child_lives() -> None:
    digits = grid(30)
    asked = request(digits, log_seconds(digits), digits)
    with ChildModel() as child:
        child.propose(asked)
        assert child._child is not None
        first = child._child.pid
        with pytest.raises(CostModelError, match="columns"):
            child.propose(asked._replace(pool=asked.pool[:, :2]))
        child.propose(asked)
        assert child._child.pid == first


def test_the_child_ends_with_its_model() -> None:
    digits = grid(30)
    model = ChildModel()
    model.propose(request(digits, log_seconds(digits), digits))
    process = model._child
    assert process is not None
    model.close()
    assert process.poll() is not None
