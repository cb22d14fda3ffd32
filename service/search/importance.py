"""Importance of knobs: the share of each in the variance of modelled times."""

from __future__ import annotations

from functools import lru_cache
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.search.features import SpaceFeatures
from service.search.predictor import grow
from strategy.space import ConfigSpace

LEAST = 20  # configurations
_DRAWS = 8  # permutations of each knob
_turn = Lock()  # one computation at a time, as each takes a core


class Importance(NamedTuple):
    """Knobs with their total effect (Sobol), the largest first.

    Attributes:
        shares: the share of the variance of predicted log-seconds that remains if all other knobs are
            known; interactions count for each of their knobs, so that the sum may exceed 1.
        accuracy: R² of the model on a held-out quarter of the configurations.
    """

    shares: tuple[tuple[str, float], ...]
    accuracy: float


def importance(
    space: ConfigSpace, digits: NDArray[np.int32], log_s: NDArray[np.float64]
) -> Importance | None:
    """Fit boosted trees to log-seconds, and compute each knob's total effect in them.

    Args:
        digits: a row per configuration.
        log_s: their log-seconds.

    Returns:
        None for fewer than `LEAST` configurations, or if all times are equal.
    """
    if len(digits) < LEAST or np.ptp(log_s) == 0:
        return None
    return _cached(space, digits.shape, digits.tobytes(), log_s.tobytes())


@lru_cache(maxsize=64)
def _cached(space: ConfigSpace, shape: tuple[int, ...], digits: bytes, log_s: bytes) -> Importance:
    with _turn:
        return _compute(space, np.frombuffer(digits, np.int32).reshape(shape), np.frombuffer(log_s))


def _compute(
    space: ConfigSpace, digits: NDArray[np.int32], log_s: NDArray[np.float64]
) -> Importance:
    import xgboost

    rng = np.random.default_rng(0)
    features = SpaceFeatures(space)
    x, y = features.matrix(digits), log_s.astype(np.float32)
    held = rng.permutation(len(y)) % 4 == 0
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(grow(x[~held], y[~held])))
    wrong = ((booster.inplace_predict(x[held]) - y[held]) ** 2).mean()
    answers = booster.inplace_predict(x)
    variance = max(float(answers.var()), 1e-12)
    shares = []
    for i, knob in enumerate(space.knobs):
        change = 0.0
        for _ in range(_DRAWS):
            changed = digits.copy()
            changed[:, i] = rng.permutation(digits[:, i])
            change += float(((booster.inplace_predict(features.matrix(changed)) - answers) ** 2).mean())
        shares.append((knob.name, change / _DRAWS / 2 / variance))
    accuracy = 1.0 - float(wrong) / max(float(y[held].var()), 1e-12)
    return Importance(tuple(sorted(shares, key=lambda s: -s[1])), accuracy)
