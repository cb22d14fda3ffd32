"""The cost model of all workloads of an operator on a target, and its ranking accuracy.

`proposal` models one space from its own trials; this predicts unmeasured spaces. Gradient-boosted trees (XGBoost)
on features of a configuration and its workload: the knobs, the space's derived expressions, the dimensions, and
for each knob and dimension their ratio and the waste of rounding it up.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.search.description import (
    CHUNK,
    MOST_EXTENTS,
    Description,
    extent_name,
    extents_of,
    repeated,
)
from service.search.features import Digits, Matrix
from service.search.pool import Candidates
from strategy.space import Config, ConfigSpace
from strategy.workload import Workload

if TYPE_CHECKING:
    import xgboost

Floats = NDArray[np.float64]

ROUNDS = 120
_PARAMETERS = {
    "objective": "reg:squarederror", "tree_method": "hist", "max_depth": 6, "eta": 0.12,
    "subsample": 0.8, "colsample_bynode": 0.6, "min_child_weight": 3, "max_bin": 128,
    "base_score": 0.0, "seed": 0,
}  # fmt: skip
THREADS = 2
MANY = 50_000  # rows from which a second thread pays
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
        accuracy: the share of pairs in the measured order, of configurations of one workload with disjoint
            intervals.
        pairs, workloads: the numbers behind it.
        sigma_log: standard deviation of measured from predicted log-seconds.
    """

    accuracy: float
    pairs: int
    workloads: int
    sigma_log: float


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
        columns, x, y = learnable(trials)
        data = _quantised(x, y, _safe(columns))
        del x  # large for a million records
        return cls(columns, _train(data))

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

    def covers(self, implementation: str) -> bool:
        """True if it was trained on records of this implementation."""
        return f"is {implementation}" in self._place

    def rank(self, trials: Sequence[Trials]) -> Ranking:
        """The ranking accuracy on these trials, which should be held out."""
        rng = np.random.default_rng(0)
        right = pairs = 0
        residuals: list[Floats] = []
        by_workload: dict[str, list[tuple[Floats, Floats, Floats]]] = {}
        for t in trials:
            predicted = self.predict(t.workload, t.implementation, t.space, t.digits)
            doubt = np.zeros(len(t.log_s)) if t.doubt is None else t.doubt
            by_workload.setdefault(t.workload.key, []).append((t.log_s, doubt, predicted))
        for found in by_workload.values():
            told, doubt, predicted = (np.concatenate(part) for part in zip(*found, strict=True))
            residuals.append(told - predicted)
            a, b = rng.integers(len(told), size=(2, MOST_PAIRS))
            apart = np.abs(told[a] - told[b]) > np.maximum(doubt[a] + doubt[b], np.log(ALIKE))
            a, b = a[apart], b[apart]
            right += int(((told[a] < told[b]) == (predicted[a] < predicted[b])).sum())
            pairs += len(a)
        sigma = float(np.concatenate(residuals).std()) if residuals else 0.0
        return Ranking(right / max(pairs, 1), pairs, len(by_workload), sigma)

    def importance(self) -> list[tuple[str, float]]:
        """Features with their share of the gain of all splits, the largest first; empty without splits."""
        gained = self._booster.get_score(importance_type="total_gain")
        total = sum(gained.values())
        named = zip(self.columns, _safe(self.columns), strict=True)
        shares = [(name, gained[safe] / total) for name, safe in named if gained.get(safe)]
        return sorted(shares, key=lambda s: -s[1])

    def dump(self) -> tuple[str, bytes]:
        """The columns as JSON, and the trees in XGBoost's own format."""
        return json.dumps(self.columns), bytes(self._booster.save_raw("ubj"))

    @classmethod
    def load(cls, columns: str, trees: bytes) -> Predictor:
        """Load the output of `dump`. Nothing in it is executed."""
        import xgboost

        booster = xgboost.Booster({"nthread": 1})
        booster.load_model(bytearray(trees))
        return cls(json.loads(columns), booster)


def grow(features: Matrix, values: Matrix) -> bytes:
    """Trees that predict values from features, in XGBoost's own format. Deterministic."""
    return bytes(_train(_quantised(features, values)).save_raw("ubj"))


def _quantised(x: Matrix, y: Matrix, names: list[str] | None = None) -> xgboost.QuantileDMatrix:
    import xgboost

    most = _PARAMETERS["max_bin"]
    return xgboost.QuantileDMatrix(
        x, label=y, feature_names=names, nthread=_threads(len(y)), max_bin=most
    )


def _train(data: xgboost.QuantileDMatrix) -> xgboost.Booster:
    import xgboost

    return xgboost.train({**_PARAMETERS, "nthread": _threads(data.num_row())}, data, ROUNDS)


def _threads(rows: int) -> int:
    return THREADS if rows >= MANY else 1


def learnable(trials: Sequence[Trials]) -> tuple[tuple[str, ...], Matrix, Matrix]:
    """The columns, the features of all trials, and the labels: log-seconds less the log of the volume."""
    skipped = repeated([extents_of(t.workload) for t in trials])
    described = [Description(t.workload, t.implementation, t.space, skipped) for t in trials]
    columns = tuple(dict.fromkeys(itertools.chain.from_iterable(d.names for d in described)))
    place = {name: i for i, name in enumerate(columns)}
    rows = sum(len(t.log_s) for t in trials)
    x = np.full((rows, len(columns)), np.nan, dtype=np.float32)
    y = np.empty(rows, dtype=np.float32)
    start = 0
    for t, d in zip(trials, described, strict=True):
        end = start + len(t.log_s)
        x[start:end, [place[n] for n in d.names]] = d.matrix(t.digits)
        y[start:end] = t.log_s - d.log_volume
        start = end
    return columns, x, y


def _safe(columns: Sequence[str]) -> list[str]:
    """Names without brackets, for XGBoost."""
    return [n.translate(str.maketrans("[]<", "()_")) for n in columns]
