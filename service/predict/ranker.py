"""Rankings by a trained cost model for unmeasured workloads (`strategy.select.Ranker`)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from service.store.catalogue import code_version
from service.store.tables import cost_model
from service.store.tables import target as target_table
from strategy.op_strategy import Candidate
from strategy.select import Prediction
from strategy.target import Target
from strategy.workload import Workload

if TYPE_CHECKING:
    from service.search.predictor import Predictor

# The bar for answers: the share of pairs of configurations, of held-out workloads, in the right order.
LEAST_ACCURACY = 0.85
MOST_LOADED = 32
_loaded: dict[str, Predictor] = {}  # by the digest of their trees, for all databases of this process


def digest_of_trees(trees: bytes) -> str:
    """The name of trees, by which damage is found."""
    return hashlib.sha256(trees).hexdigest()[:32]


class ModelRanker:
    """The newest cost model of an operator and target, if it ranks well enough (`LEAST_ACCURACY`).

    For one transaction: the newest model is read once.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._newest: dict[tuple[str, str], Any] = {}

    def rank(
        self, workload: Workload, target: Target, valid: Sequence[Candidate]
    ) -> list[Prediction] | str:
        """Predictions, the fastest first, empty without a model; the reason if it does not cover all candidates."""
        row = self._find(workload.op, target.key)
        if row is None or not workload.is_constant:
            return []
        model = f"version {row.version} of the cost model"
        if row.accuracy < LEAST_ACCURACY:
            return f"{model} ranks {row.accuracy:.2f} of held-out pairs as measured, less than {LEAST_ACCURACY}"
        predictor = self._load(row)
        if isinstance(predictor, str):
            return f"{model}: {predictor}: train it again"
        # Times of another version of the code are stale, in a model as on record.
        versions = (row.lineage or {}).get("versions", {})
        unknown = [c.implementation for c in valid if not predictor.covers(workload, c.implementation)]
        if unknown:
            return f"{model} has seen no such records of {', '.join(unknown)}"
        stale = [c.implementation for c in valid if versions.get(c.implementation) != code_version(c.version)]
        if stale:
            return f"{model} was trained on other code of {', '.join(stale)}: train it again"
        found = []
        for c in valid:
            config, log_s = predictor.best(workload, c.implementation, c.space)
            found.append(
                Prediction(
                    implementation=c.implementation, config=config, median_s=math.exp(log_s),
                    sigma_log=row.sigma_log,
                )
            )
        return sorted(found, key=lambda p: p.median_s)

    def _find(self, op: str, target_key: str) -> Any:
        """The newest model's row, None if there is none."""
        if (op, target_key) not in self._newest:
            self._newest[op, target_key] = self._connection.execute(
                sa.select(*cost_model.c["id", "version", "accuracy", "sigma_log", "columns", "digest", "lineage"])
                .join(target_table, target_table.c.id == cost_model.c.target_id)
                .where(cost_model.c.op == op, target_table.c.key == target_key)
                .order_by(cost_model.c.version.desc())
                .limit(1)
            ).one_or_none()
        return self._newest[op, target_key]

    def _load(self, row: Any) -> Predictor | str:
        """The model of a row; the reason if it cannot be loaded."""
        from service.search.predictor import Predictor, UnreadableError  # NumPy is only needed here

        known = _loaded.get(row.digest)
        if known is None:
            trees = self._connection.execute(
                sa.select(cost_model.c.trees).where(cost_model.c.id == row.id)
            ).scalar_one()
            if digest_of_trees(trees) != row.digest:  # XGBoost may read them for ever, or end the process
                return "its trees are damaged"
            if len(_loaded) >= MOST_LOADED:
                _loaded.clear()
            try:
                known = _loaded[row.digest] = Predictor.load(row.columns, trees)
            except UnreadableError as error:
                return str(error)
        return known
