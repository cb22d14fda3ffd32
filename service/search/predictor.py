"""The cost model of all workloads of an operator on a target, and its ranking accuracy.

`proposal` models one space from its own trials; this predicts unmeasured spaces. Gradient-boosted trees (XGBoost)
on features of a configuration and its workload: the knobs, the space's derived expressions, the dimensions, and
for each knob and dimension their ratio and the waste of rounding it up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.search.description import (
    CHUNK,
    MOST_EXTENTS,
    Description,
    Layout,
    Survey,
    extent_name,
    kinds_of,
)
from service.search.features import Digits, Matrix
from service.search.pool import Candidates
from strategy.space import Config, ConfigSpace
from strategy.workload import Workload

if TYPE_CHECKING:
    import xgboost

Floats = NDArray[np.float64]

POOL = 3000  # configurations scored to find the best
ELITE = 16  # of them, whose neighbours are scored next
NEIGHBOURS = 400
NEARER = 2  # times
MOST_PAIRS = 20_000  # of one workload, to compute the ranking accuracy
ALIKE = 1.02  # times closer than this ratio form no pair


class Trials(NamedTuple):
    """Configurations of one implementation for one workload.

    Attributes:
        space: None if untunable: `digits` then has no columns.
        log_s: log-seconds, one per row of digits.
        doubt: half the width of each interval of log-seconds; None if unknown.
    """

    workload: Workload
    implementation: str
    space: ConfigSpace | None
    digits: Digits
    log_s: Floats
    doubt: Floats | None = None


class Ranking(NamedTuple):
    """The ranking accuracy of a model on held-out workloads.

    Attributes:
        accuracy: the share of pairs in the measured order, of different configurations of one workload with
            disjoint intervals.
        pairs, workloads: the numbers behind it.
        sigma_log: standard deviation of measured from predicted log-seconds.
    """

    accuracy: float
    pairs: int
    workloads: int
    sigma_log: float


class UnreadableError(ValueError):
    """This host's XGBoost cannot read trees, such as those of a newer one; the message names it."""


class Predictor:
    """Predictor of log-seconds of configurations of any workload of its operator.

    Args:
        columns: the meaning of each column of features.
        booster: trees on those columns.
    """

    def __init__(self, columns: Sequence[str], booster: xgboost.Booster) -> None:
        self.columns = tuple(columns)
        self._place = {name: i for i, name in enumerate(self.columns)}
        self._booster = booster

    @classmethod
    def fit(cls, trials: Sequence[Trials]) -> Predictor:
        """Learn from trials, all of one operator and target."""
        from service.search import booster

        columns, x, y = learnable(trials)
        return cls(columns, booster.grow([lambda: (x, y)], len(y), safe(columns)))

    def predict(
        self, workload: Workload, implementation: str, space: ConfigSpace | None, digits: Digits
    ) -> Floats:
        """Log-seconds of configurations, one per row of digits."""
        answers, log_volume = self.answer(workload, implementation, space, digits)
        return answers + log_volume

    def answer(
        self, workload: Workload, implementation: str, space: ConfigSpace | None, digits: Digits
    ) -> tuple[Floats, float]:
        """The trees' prediction for each row of digits, and the logarithm of the workload's volume."""
        skipped = {i for i in range(MOST_EXTENTS) if extent_name(i) not in self._place}
        described = Description(workload, implementation, space, skipped)
        known = [(i, self._place[n]) for i, n in enumerate(described.names) if n in self._place]
        of, to = [i for i, _ in known], [j for _, j in known]
        x = np.full((min(CHUNK, len(digits)), len(self.columns)), np.nan, dtype=np.float32)
        answers = np.empty(len(digits))
        for start in range(0, len(digits), CHUNK):
            rows = digits[start : start + CHUNK]
            x[: len(rows), to] = described.matrix(rows)[:, of]
            answers[start : start + CHUNK] = self._booster.inplace_predict(x[: len(rows)])
        return answers, described.log_volume

    def best(
        self, workload: Workload, implementation: str, space: ConfigSpace | None
    ) -> tuple[Config, float]:
        """The configuration predicted to be fastest, with its log-seconds, among samples and their neighbours."""
        if space is None:
            nothing = np.zeros((1, 0), dtype=np.int32)
            return Config(), float(self.predict(workload, implementation, None, nothing)[0])
        candidates = Candidates(space, np.random.default_rng(0))
        fallback = np.array([space.digits(space.fallback)], dtype=np.int32)
        pool: Digits = np.concatenate([fallback, candidates.draw(POOL)])
        log_s = self.predict(workload, implementation, space, pool)
        for _ in range(NEARER):
            elite = np.argsort(log_s, kind="stable")[:ELITE]
            near = candidates.near([tuple(row) for row in pool[elite].tolist()], NEIGHBOURS)
            if not len(near):
                break
            pool = np.concatenate([pool, near])
            log_s = np.append(log_s, self.predict(workload, implementation, space, near))
        digits = pool[int(np.argmin(log_s))].tolist()
        config = Config({k.name: k.values[d] for k, d in zip(space.knobs, digits, strict=True)})
        return config, float(log_s.min())

    def covers(self, workload: Workload, implementation: str) -> bool:
        """True if it was trained on records of this implementation, of these dtypes and layouts."""
        return all(name in self._place for name in (f"is {implementation}", *kinds_of(workload)))

    def rank(self, trials: Sequence[Trials]) -> Ranking:
        """The ranking accuracy on these trials, which should be held out."""
        rng = np.random.default_rng(0)
        right, pairs = 0.0, 0
        residuals: list[Floats] = []
        by_workload: dict[str, list[tuple[Floats, Floats, Floats, NDArray[np.intp]]]] = {}
        rows = 0
        for t in trials:
            predicted = self.predict(t.workload, t.implementation, t.space, t.digits)
            doubt = np.zeros(len(t.log_s)) if t.doubt is None else t.doubt
            _, config = np.unique(t.digits, axis=0, return_inverse=True)
            by_workload.setdefault(t.workload.key, []).append((t.log_s, doubt, predicted, rows + config.reshape(-1)))
            rows += len(config)
        for found in by_workload.values():
            told, doubt, predicted, config = (np.concatenate(part) for part in zip(*found, strict=True))
            residuals.append(told - predicted)
            n = len(told)
            if n * (n - 1) // 2 <= MOST_PAIRS:
                a, b = np.triu_indices(n, 1)  # each once
            else:
                a, b = rng.integers(n, size=(2, MOST_PAIRS))
            apart = np.abs(told[a] - told[b]) > np.maximum(doubt[a] + doubt[b], np.log(ALIKE))
            apart &= config[a] != config[b]  # one that was timed twice has one prediction
            a, b = a[apart], b[apart]
            agree = (told[a] < told[b]) == (predicted[a] < predicted[b])
            right += float(np.where(predicted[a] == predicted[b], 0.5, agree).sum())
            pairs += len(a)
        sigma = float(np.sqrt(np.mean(np.concatenate(residuals) ** 2))) if residuals else 0.0
        return Ranking(right / max(pairs, 1), pairs, len(by_workload), sigma)

    def importance(self) -> list[tuple[str, float]]:
        """Features with their share of the gain of all splits, the largest first; empty without splits."""
        gained = self._booster.get_score(importance_type="total_gain")
        total = sum(gained.values())
        named = zip(self.columns, safe(self.columns), strict=True)
        shares = [(name, gained[safe] / total) for name, safe in named if gained.get(safe)]
        return sorted(shares, key=lambda s: -s[1])

    @classmethod
    def load(cls, columns: str, trees: bytes) -> Predictor:
        """Load columns, as JSON, and trees, in XGBoost's own format. Nothing in them is executed.

        Raises:
            UnreadableError: the trees are of another format, or damaged.
        """
        import xgboost

        booster = xgboost.Booster({"nthread": 1})
        try:
            booster.load_model(bytearray(trees))
        except xgboost.core.XGBoostError as error:
            raise UnreadableError(f"XGBoost {xgboost.__version__} cannot read it") from error
        return cls(json.loads(columns), booster)


def grow(features: Matrix, values: Matrix) -> bytes:
    """Trees that predict values from features, in XGBoost's own format. Deterministic."""
    from service.search import booster

    return bytes(booster.grow([lambda: (features, values)], len(values)).save_raw("ubj"))


def learnable(trials: Sequence[Trials]) -> tuple[tuple[str, ...], Matrix, Matrix]:
    """The columns, the features of all trials, and the labels: log-seconds less the log of the volume."""
    survey = Survey()
    for t in trials:
        survey.add(t.workload, t.implementation, t.space)
    layout = survey.layout()
    pages = [describe(t, layout) for t in trials]
    return layout.columns, np.concatenate([x for x, _ in pages]), np.concatenate([y for _, y in pages])


def describe(trials: Trials, layout: Layout) -> tuple[Matrix, Matrix]:
    """The features of trials in the columns of a layout, and their labels."""
    described = Description(trials.workload, trials.implementation, trials.space, layout.skipped)
    place = {name: i for i, name in enumerate(layout.columns)}
    known = [(i, place[n]) for i, n in enumerate(described.names) if n in place]
    x = np.full((len(trials.log_s), len(layout.columns)), np.nan, dtype=np.float32)
    x[:, [j for _, j in known]] = described.matrix(trials.digits)[:, [i for i, _ in known]]
    return x, (trials.log_s - described.log_volume).astype(np.float32)


def safe(columns: Sequence[str]) -> list[str]:
    """Names without brackets, for XGBoost."""
    return [n.translate(str.maketrans("[]<", "()_")) for n in columns]
