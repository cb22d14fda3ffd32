"""Transfer learning from other shapes, targets, devices and versions: priors over a space, of two kinds.

A source with the same meaning of knobs (another device, target or version) becomes a Gaussian process over this
space. Sources of other shapes train one cost model (`predictor`), which has features of dimensions besides
the knobs, and predicts the searched shape.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from service.search.child import CostModel, Records
from service.search.embedding import Embedding, nearest
from service.search.features import Digits
from service.search.gaussian_process import Floats
from service.search.predictor import Predictor, Trials, learnable
from service.search.prior import Prior
from strategy.space import ConfigSpace
from strategy.workload import Workload

SOURCES = 4  # maximum of sources that become processes, the first ones
MOST_OF_ONE, MOST_OF_ALL = 500, 750  # maximum of their records, which bounds the time of a proposal


class Source(NamedTuple):
    """Records of a similar space: of another device, target, shape, or version.

    Attributes:
        configs: those outside of the searched space count as the nearest ones (`embedding.nearest`).
        seconds: one for each; None for a failure. Only their ratios count.
        workload, target, space: those of the records, if of another shape; the configurations are then in
            `space`. The target is any distinguishing name.
    """

    configs: Sequence[Mapping[str, object]]
    seconds: Sequence[float | None]
    workload: Workload | None = None
    target: str = ""
    space: ConfigSpace | None = None


class Priors:
    """Several priors, which predict log-seconds and the risk of failure of candidates.

    Args:
        space: the space of the candidates.
        embedding: the embedding of that space.
        workload, target: those of the space; without a workload, shapes are ignored.
        sources: the most similar first.
        model: the model that learns from them.

    Attributes:
        count: the number of priors.
        reach: the expected logarithms of the length scales of this space.
    """

    def __init__(
        self, space: ConfigSpace, embedding: Embedding, workload: Workload | None, target: str,
        sources: Sequence[Source], model: CostModel,
    ) -> None:
        self._space, self._embedding = space, embedding
        self._shapes: _Shapes | None = None
        shapes = []
        if workload is not None:
            shapes = [t for s in sources if (t := _trials(s)) is not None]
            sources = [s for s in sources if s.workload is None]
            if shapes:
                self._shapes = _Shapes(workload, target, space, shapes, model)
        self._priors = self._learn(sources[:SOURCES], model)
        self.count = len(self._priors) + (self._shapes is not None)
        self.reach = embedding.reach
        if self._priors:
            # The same knobs matter in other tasks.
            self.reach = np.mean([p.theta[:-1] for p in self._priors], axis=0)

    def predict(self, digits: Digits) -> tuple[Floats, Floats]:
        """Log-seconds, with a column for each prior, and the combined risk of failure."""
        if not self.count or not len(digits):
            return np.zeros((len(digits), self.count)), np.zeros(len(digits))
        predicted = []
        if self._priors:
            places = self._embedding.place(digits)
            predicted = [p.predict(self._embedding.groups, places) for p in self._priors]
        if self._shapes is not None:
            predicted.append(self._shapes.predict(digits))
        return np.stack([t for t, _ in predicted], axis=1), np.mean([r for _, r in predicted], axis=0)

    def _learn(self, sources: Sequence[Source], model: CostModel) -> list[Prior]:
        priors = []
        for i, source in enumerate(sources):
            told: dict[tuple[int, ...], float] = {}
            for config, seconds in zip(source.configs, source.seconds, strict=True):
                key = nearest(self._space, config)
                if key is not None:
                    told[key] = lower(told.get(key, math.nan), seconds)
            digits = np.array(list(told), dtype=np.int32).reshape(len(told), len(self._space.knobs))
            log_s = np.array(list(told.values()), dtype=np.float64)
            most = min(MOST_OF_ONE, MOST_OF_ALL // len(sources))
            embedding = self._embedding
            priors.append(
                model.learn(
                    Records(embedding.groups, embedding.reach, embedding.place(digits), log_s, i, most)
                )
            )
        return [p for p in priors if p is not None]


class _Shapes:
    """A model of the times of several shapes, evaluated at another, and one of their failures."""

    def __init__(
        self, workload: Workload, target: str, space: ConfigSpace, trials: Sequence[Trials],
        model: CostModel,
    ) -> None:
        self._asked = workload, target, space
        columns, features, values = learnable(trials)
        failed = np.isnan(values)
        names = json.dumps(columns)
        trees = model.grow(features[~failed], values[~failed])
        self._times = Predictor.load(names, trees.tobytes())
        self._failures = None
        if failed.any():
            trees = model.grow(features, failed.astype(np.float32))
            self._failures = Predictor.load(names, trees.tobytes())

    def predict(self, digits: Digits) -> tuple[Floats, Floats]:
        """Log-seconds and the risk of failure."""
        risk = np.zeros(len(digits))
        if self._failures is not None:
            risk = self._failures.answer(*self._asked, digits)[0].clip(0, 1)
        return self._times.predict(*self._asked, digits), risk


def _trials(source: Source) -> Trials | None:
    """Records of another shape as training data; None if there are none, or the shape is this one."""
    if source.workload is None or source.space is None:
        return None
    if not any(s is not None for s in source.seconds):
        return None
    digits = [source.space.digits(c) for c in source.configs]
    log_s = [math.nan if s is None else math.log(s) for s in source.seconds]
    return Trials(
        # All are of one implementation, whose feature serves to distinguish targets.
        source.workload, source.target, source.space, np.array(digits, dtype=np.int32), np.array(log_s),
    )


def lower(known: float, seconds: float | None) -> float:
    """The lower of known log-seconds and new seconds; NaN for failures."""
    if seconds is None:
        return known
    found = math.log(seconds)
    return found if math.isnan(known) else min(known, found)
