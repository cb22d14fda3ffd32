"""Evaluation of a cost model: predicted against measured times, and the importance of features."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from service.search.predictor import Predictor, Trials

MOST_POINTS = 600
MOST_FEATURES = 24


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation of a cost model at workloads that were held out from its training.

    Attributes:
        points: measured and predicted seconds of a regular sample of configurations.
        importance: features with their share of the gain of all splits, the largest first.
    """

    points: tuple[tuple[float, float], ...]
    importance: tuple[tuple[str, float], ...]


def evaluate(model: Predictor, held_out: Sequence[Trials]) -> Evaluation:
    """Compare a model's predictions with trials that it was not trained on."""
    step = -(-sum(len(t.log_s) for t in held_out) // MOST_POINTS)
    points: list[tuple[float, float]] = []
    for t in held_out:
        digits, measured = t.digits[::step], np.exp(t.log_s[::step])
        predicted = np.exp(model.predict(t.workload, t.implementation, t.space, digits))
        points += zip(measured.tolist(), predicted.tolist(), strict=True)
    return Evaluation(points=tuple(points), importance=tuple(model.importance()[:MOST_FEATURES]))
