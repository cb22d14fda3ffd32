"""Transfer learning from other shapes, targets, devices and versions: priors over a space, of two kinds.

A source whose knobs mean the same here (another device, target or version) becomes a Gaussian process
over this space. Those of other shapes train one cost model together (`predictor`), which knows
dimensions beside the knobs, and is asked for the shape that is searched.
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

SOURCES = 4  # that become processes, the first of those given
MOST_OF_ONE, MOST_OF_ALL = 500, 750  # of their records: what a proposal takes grows with them


class Source(NamedTuple):
    """Records of a similar space: of another device, target, shape, or version.

    Attributes:
        configs: one that is not of the space counts for what is most like it (`embedding.nearest`).
        seconds: one for each; None for a failure. Only their ratios count.
        workload, target, space: what they are of, where that is another shape: all configurations
            are of this space. Of the target any name will do that tells it from others.
    """

    configs: Sequence[Mapping[str, object]]
    seconds: Sequence[float | None]
    workload: Workload | None = None
    target: str = ""
    space: ConfigSpace | None = None


class Priors:
    """Log-seconds by each of several priors, and the risk of failure, for any candidate.

    Args:
        space: of the candidates.
        embedding: of that space.
        workload, target: whose space it is; without a workload no shapes are told apart.
        sources: the most alike first.
        model: learns from them.

    Attributes:
        count: of priors.
        reach: the expected logarithms of the length scales of this space.
    """

    def __init__(
        self, space: ConfigSpace, embedding: Embedding, workload: Workload | None, target: str,
        sources: Sequence[Source], model: CostModel,
    ) -> None:  # fmt: skip
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
            # The same knobs count for other tasks.
            self.reach = np.mean([p.theta[:-1] for p in self._priors], axis=0)

    def predict(self, digits: Digits) -> tuple[Floats, Floats]:
        """Log-seconds, with a column for each prior, and the risk of failure by all of them."""
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
    """One model of the times of several shapes, asked for one more; and one of their failures."""

    def __init__(
        self, workload: Workload, target: str, space: ConfigSpace, trials: Sequence[Trials],
        model: CostModel,
    ) -> None:  # fmt: skip
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
        # All are of one implementation: what is told apart in its place are targets.
        source.workload, source.target, source.space, np.array(digits, dtype=np.int32), np.array(log_s),
    )  # fmt: skip


def lower(known: float, seconds: float | None) -> float:
    """The lower of log-seconds that are known and seconds that are new; NaN stands for failures."""
    found = math.nan if seconds is None else math.log(seconds)
    return min(known, found) if known == known and found == found else found if known != known else known
