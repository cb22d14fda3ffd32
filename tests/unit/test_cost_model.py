"""The cost model: what it learns, and the process that it lives in."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from numpy.typing import NDArray

from service.cost_model import ChildModel, CostModelError, InlineModel
from service.features import Matrix


def landscape(n: int, seed: int = 0) -> tuple[Matrix, NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    features = rng.integers(0, 16, size=(n, 4)).astype(np.float32)
    log_s = -7 + 0.1 * np.abs(features[:, 0] - 9) + 0.05 * features[:, 1].astype(np.float64)
    return features, log_s.astype(np.float64)


def rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(np.corrcoef(a.argsort().argsort(), b.argsort().argsort())[0, 1])


def test_it_ranks_what_it_has_not_seen() -> None:
    features, log_s = landscape(150)
    pool, truth = landscape(500, seed=1)
    scores = InlineModel().score(features, log_s, pool, seed=3)
    assert rank_correlation(scores.mean, truth) > 0.9
    assert np.abs(scores.mean - truth).mean() < 0.1
    assert (scores.sigma > 0).all()
    assert (scores.valid == 1).all()


def test_it_is_less_certain_far_away() -> None:
    features, log_s = landscape(200)
    near = features[:, 0] < 6
    scores = InlineModel().score(features[near], log_s[near], features, seed=1)
    error = np.abs(scores.mean - log_s)
    assert error[~near].mean() > error[near].mean()
    assert scores.sigma[~near].mean() > scores.sigma[near].mean()


def test_failures_are_learnt_and_have_no_time() -> None:
    features, log_s = landscape(200)
    log_s[features[:, 2] > 11] = np.nan
    pool, _ = landscape(400, seed=2)
    scores = InlineModel().score(features, log_s, pool, seed=1)
    fails = pool[:, 2] > 11
    assert scores.valid[fails].max() < 0.5 < scores.valid[~fails].min()
    assert np.isfinite(scores.mean).all()
    assert scores.mean.max() < -4, "no failure was taken for a long time"


@pytest.mark.parametrize("worked", [0, 1])
def test_next_to_nothing_known_is_no_error(worked: int) -> None:
    features, log_s = landscape(6)
    log_s[worked:] = np.nan
    scores = InlineModel().score(features, log_s, features, seed=1)
    assert np.isfinite(scores.mean).all()
    assert np.isfinite(scores.valid).all()


def test_equal_times_are_no_error() -> None:
    features, _ = landscape(30)
    scores = InlineModel().score(features, np.full(30, -5.0), features, seed=1)
    assert np.allclose(scores.mean, -5.0)


def test_the_child_gives_the_same_scores_again_and_again() -> None:
    features, log_s = landscape(60)
    pool, _ = landscape(100, seed=5)
    inline = InlineModel().score(features, log_s, pool, seed=7)
    with ChildModel() as child:
        for _ in range(2):
            scores = child.score(features, log_s, pool, seed=7)
            for ours, theirs in zip(inline, scores, strict=True):
                # Sums of several threads differ in their last digits.
                assert np.allclose(ours, theirs, rtol=1e-3, atol=1e-4)
            again = child.score(features, log_s, pool, seed=7)
            assert np.array_equal(again, scores)
        other = child.score(features, log_s, pool, seed=8)
        assert not np.array_equal(other.mean, inline.mean)


def test_other_number_types_do_not_confuse_the_pipe() -> None:
    features, log_s = landscape(30)
    with ChildModel() as child:
        scores = child.score(
            features.astype(np.float64), log_s.astype(np.float32), features[::2], 1  # type: ignore[arg-type]
        )
        assert len(scores.mean) == 15


def test_a_dead_child_is_an_error_once_and_then_replaced() -> None:
    features, log_s = landscape(30)
    with ChildModel() as child:
        child.score(features, log_s, features, 1)
        assert child._child is not None
        assert os.getpriority(os.PRIO_PROCESS, child._child.pid) > os.getpriority(os.PRIO_PROCESS, 0)
        os.kill(child._child.pid, signal.SIGSTOP)
        dying = child._child.pid
        os.kill(dying, signal.SIGKILL)
        try:
            child.score(features, log_s, features, 1)
        except CostModelError:
            child.score(features, log_s, features, 1)
        assert child._child is not None
        assert child._child.pid != dying


def test_a_wrong_request_is_an_error_and_the_child_lives() -> None:
    features, log_s = landscape(30)
    with ChildModel() as child:
        child.score(features, log_s, features, 1)
        assert child._child is not None
        first = child._child.pid
        with pytest.raises(CostModelError, match="failed"):
            child.score(features, log_s, features[:, :2], 1)
        child.score(features, log_s, features, 1)
        assert child._child.pid == first


def test_the_child_ends_with_its_model() -> None:
    features, log_s = landscape(30)
    model = ChildModel()
    model.score(features, log_s, features, 1)
    process = model._child
    assert process is not None
    model.close()
    assert process.poll() is not None
