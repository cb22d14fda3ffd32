"""Trees grown from pages of features, which may lie on disk, as may the form that XGBoost gives them.

XGBoost reads the pages four times: for their shape, the quantiles, and the bins of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xgboost

from service.search.features import Matrix
from strategy.host import usable_cores

ROUNDS = 120
PARAMETERS: Mapping[str, Any] = {
    "objective": "reg:squarederror", "tree_method": "hist", "max_depth": 6, "eta": 0.12,
    "subsample": 0.8, "colsample_bynode": 0.6, "min_child_weight": 3, "max_bin": 128,
    "base_score": 0.0, "seed": 0,
}
MANY = 50_000  # rows from which one more thread pays

# Loads the features and the labels of some rows.
Page = Callable[[], tuple[Matrix, Matrix]]


def grow(
    pages: Sequence[Page],
    rows: int,
    names: Sequence[str] | None = None,
    *,
    cache: Path | None = None,
    start: xgboost.Booster | None = None,
    rounds: int = ROUNDS,
    threads: int | None = None,
    after_round: Callable[[int, xgboost.Booster], None] | None = None,
) -> xgboost.Booster:
    """Trees that predict labels from features. Deterministic for one number of threads and processes.

    Args:
        pages: the rows, of which there are so many.
        names: of the columns.
        cache: a folder for the binned rows; None to hold them in memory.
        start: trees to continue.
        rounds: the number of trees to add.
        threads: as many as pay by default.
        after_round: called with the number of added trees, and all trees.
    """
    threads = threads or min(usable_cores(), 1 + rows // MANY)
    kind = xgboost.QuantileDMatrix if cache is None else xgboost.ExtMemQuantileDMatrix
    data = kind(_Rows(pages, names, cache), max_bin=PARAMETERS["max_bin"], nthread=threads)
    return xgboost.train(
        {**PARAMETERS, "nthread": threads}, data, rounds, xgb_model=start,
        callbacks=[_AfterRound(after_round)] if after_round else None,
    )


class _Rows(xgboost.DataIter):  # type: ignore[misc]
    """Pages, one after the other."""

    def __init__(self, pages: Sequence[Page], names: Sequence[str] | None, cache: Path | None) -> None:
        super().__init__(cache_prefix=None if cache is None else str(cache / "bins"))
        self._pages = pages
        self._names = None if names is None else list(names)
        self._at = 0

    def next(self, input_data: Callable[..., None]) -> bool:
        if self._at == len(self._pages):
            return False
        x, y = self._pages[self._at]()
        self._at += 1
        input_data(data=x, label=y, feature_names=self._names)
        return True

    def reset(self) -> None:
        self._at = 0


class _AfterRound(xgboost.callback.TrainingCallback):  # type: ignore[misc]
    def __init__(self, call: Callable[[int, xgboost.Booster], None]) -> None:
        super().__init__()
        self._call = call

    def after_iteration(self, model: xgboost.Booster, epoch: int, evals_log: Any) -> bool:
        self._call(epoch + 1, model)
        return False
