"""Priors over a space, learnt from records of other devices, targets and shapes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.search.embedding import Places
from service.search.gaussian_process import Floats, GaussianProcess, interpolate

_TUNED_ON = 250  # length scales need fewer


class Prior(NamedTuple):
    """A source's prediction of log-seconds and risk of failure anywhere in the space.

    Attributes:
        theta: the hyper-parameters of its process of times: the length scales of knobs.
        records: scaled places, with the weight of each in the last column.
        failures: the same for failures; empty if none failed.
        centre, deviation: mean and deviation of its log-seconds.
        rate: the share of failures.
    """

    theta: Floats
    records: NDArray[np.float32]
    failure_theta: Floats
    failures: NDArray[np.float32]
    centre: float
    deviation: float
    rate: float

    def predict(self, groups: NDArray[np.intp], places: Places) -> tuple[Floats, Floats]:
        """Log-seconds and the probability of failure at places."""
        time = interpolate(self.records, groups, self.theta, places)
        risk = np.full(len(places), self.rate)
        if len(self.failures):
            risk += interpolate(self.failures, groups, self.failure_theta, places)
        return time * self.deviation + self.centre, risk.clip(0, 1)


def learn(
    groups: NDArray[np.intp], reach: Floats, places: Places, log_s: Floats, seed: int, most: int
) -> Prior | None:
    """A prior from up to `most` records, NaN for a failure; None if fewer than five ran."""
    rng = np.random.default_rng(seed)
    worked = np.flatnonzero(np.isfinite(log_s))
    if len(worked) < 5:
        return None
    order = rng.permutation(worked)[:most]
    centre, deviation = float(log_s[order].mean()), float(log_s[order].std()) or 1.0
    time = GaussianProcess(groups, reach)
    _learn(time, places[order], (log_s[order] - centre) / deviation)
    failed = np.isnan(log_s)
    rate = float(failed.mean())
    failure = GaussianProcess(groups, reach)
    failures = np.zeros((0, places.shape[1] + 1), dtype=np.float32)
    if failed.any():
        rows = rng.permutation(len(log_s))[:most]
        _learn(failure, places[rows], failed[rows] - rate)
        failures = failure.weighted
    return Prior(time.theta, time.weighted, failure.theta, failures, centre, deviation, rate)


def _learn(process: GaussianProcess, places: NDArray[Any], values: Floats) -> None:
    none = np.zeros((len(values), 0))
    process.tune(places[:_TUNED_ON], values[:_TUNED_ON], none[:_TUNED_ON])
    process.fit(places, values, none)
