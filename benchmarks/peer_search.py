"""Other tuners' searches, written down from their sources, to be replayed on recorded spaces.

Each asks for rows of a table of configurations and is told their seconds. What they learn from is the same
matrix of features that plevel's cost models see: AutoTVM and MetaSchedule extract theirs from lowered
code, of which a recording has none. Compilation failures are worth nothing, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Digits = NDArray[np.int32]
Rows = NDArray[np.intp]
Floats = NDArray[np.float64]


class Tuner(Protocol):
    """Proposes rows of a table, and learns from their seconds; NaN is a failure."""

    def ask(self, n: int) -> list[int]: ...

    def tell(self, rows: Sequence[int], seconds: Sequence[float]) -> None: ...


class Table:
    """The valid configurations of a space by their digits, and which differ in one knob."""

    def __init__(self, digits: Digits, features: NDArray[np.float32]) -> None:
        self.digits, self.features = digits, features
        self._sizes = digits.max(axis=0).astype(np.int64) + 1
        self._strides = np.append(np.cumprod(self._sizes[:0:-1])[::-1], 1).astype(np.int64)
        codes = digits @ self._strides
        self._order = np.argsort(codes)
        self._codes = codes[self._order]
        self._movable = np.flatnonzero(self._sizes > 1)

    def __len__(self) -> int:
        return len(self.digits)

    def mutate(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """Each row with one knob changed; itself where ten changes were not valid."""
        moved = rows.copy()
        left = np.arange(len(rows))
        for _ in range(10):
            knob = rng.choice(self._movable, size=len(left))
            digits = self.digits[rows[left]].astype(np.int64)
            shift = rng.integers(1, self._sizes[knob])
            place = np.arange(len(left)), knob
            digits[place] = (digits[place] + shift) % self._sizes[knob]
            codes = digits @ self._strides
            found = np.searchsorted(self._codes, codes).clip(max=len(self) - 1)
            valid = self._codes[found] == codes
            moved[left[valid]] = self._order[found[valid]]
            left = left[~valid]
            if not len(left):
                break
        return moved


class Chance:
    """Rows at random, none twice."""

    def __init__(self, table: Table, seed: int) -> None:
        self._left = np.random.default_rng(seed).permutation(len(table)).tolist()

    def ask(self, n: int) -> list[int]:
        asked, self._left = self._left[:n], self._left[n:]
        return asked

    def tell(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        pass


class _Planned:
    """The common part of AutoTVM's and MetaSchedule's search: trees refitted after each plan of 64 trials."""

    PLAN = 64
    PARAMETERS: ClassVar[dict[str, Any]]
    TREES: int

    def __init__(self, table: Table, seed: int) -> None:
        self._table = table
        self._rng = np.random.default_rng(seed)
        self._rows: list[int] = []
        self._speed: list[float] = []
        self._free = np.ones(len(table), dtype=bool)
        self._plan: list[int] = []

    def ask(self, n: int) -> list[int]:
        asked: list[int] = []
        while len(asked) < n and self._free.any():
            if not self._plan:
                self._plan = self._next_plan()
            row = self._plan.pop(0)
            if self._free[row]:
                self._free[row] = False
                asked.append(row)
        return asked

    def tell(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        self._rows += rows
        self._speed += [0.0 if np.isnan(s) else 1 / s for s in seconds]

    def _next_plan(self) -> list[int]:
        raise NotImplementedError

    def _random(self, n: int) -> list[int]:
        return self._rng.permutation(np.flatnonzero(self._free))[:n].tolist()

    def _score(self) -> Floats:
        """Of each row, how fast trees on the trials take it to be, relative to the best."""
        import xgboost

        speed = np.array(self._speed)
        data = xgboost.DMatrix(self._table.features[self._rows], label=speed / speed.max())
        booster = xgboost.train({**self.PARAMETERS, "nthread": 1, "seed": 0}, data, self.TREES)
        return np.asarray(booster.inplace_predict(self._table.features), dtype=np.float64)


class AutoTVM(_Planned):
    """XGBTuner of tvm.autotvm with its defaults: simulated annealing on the trees' predictions."""

    PARAMETERS: ClassVar[dict[str, Any]] = {
        "max_depth": 3, "gamma": 0.0001, "min_child_weight": 1, "subsample": 1.0, "eta": 0.3,
        "lambda": 1.0, "alpha": 0,
    }
    TREES = 200
    POINTS, STEPS, EARLY_STOP = 128, 500, 50
    GREEDY = 0.95

    def __init__(self, table: Table, seed: int) -> None:
        super().__init__(table, seed)
        self._points = self._rng.integers(len(table), size=self.POINTS)

    def _next_plan(self) -> list[int]:
        if not any(self._speed):
            return self._random(self.PLAN)
        score = self._score()
        heat = np.linspace(1, 0, self.STEPS, endpoint=False)
        seen = set(self._points.tolist())
        best, unchanged = self._top(seen, score), 0
        for t in heat:
            moved = self._table.mutate(self._points, self._rng)
            gain = (score[moved] - score[self._points]) / (t + 1e-5)
            accepted = self._rng.random(self.POINTS) < np.exp(np.minimum(gain, 1))
            self._points = np.where(accepted, moved, self._points)
            seen.update(moved.tolist())
            found = self._top(seen, score)
            unchanged = unchanged + 1 if found == best else 0
            best = found
            if unchanged > self.EARLY_STOP:
                break
        # The last of a plan are drawn at random.
        greedy = int(self.GREEDY * self.PLAN)
        return best[:greedy] + self._random(self.PLAN - len(best[:greedy]))

    def _top(self, seen: set[int], score: Floats) -> list[int]:
        rows = np.array([r for r in seen if self._free[r]], dtype=np.intp)
        return rows[np.argsort(-score[rows], kind="stable")][: self.PLAN].tolist()


class MetaSchedule(_Planned):
    """EvolutionarySearch of tvm.s_tir.meta_schedule with its defaults, on the recorded space."""

    PARAMETERS: ClassVar[dict[str, Any]] = {
        "max_depth": 10, "gamma": 0.001, "min_child_weight": 0, "eta": 0.2,
    }
    TREES = 100
    POPULATION, MEASURED, GENERATIONS, MUTATED, RANDOM = 512, 0.2, 4, 0.85, 0.05
    WARM = 100  # trials before the model has a say

    def _next_plan(self) -> list[int]:
        score = self._score() if len(self._rows) >= self.WARM and any(self._speed) else None
        if score is None:
            score = self._rng.random(len(self._table))
        fastest = np.argsort(-np.array(self._speed), kind="stable")[: int(self.MEASURED * self.POPULATION)]
        population = np.array([self._rows[i] for i in fastest], dtype=np.intp)
        fresh = self._rng.integers(len(self._table), size=self.POPULATION - len(population))
        population = np.concatenate([population, fresh])
        seen = set(population.tolist())
        for _ in range(self.GENERATIONS):
            chance = np.maximum(score[population], 1e-6)
            parents = population[self._rng.choice(len(population), self.POPULATION, p=chance / chance.sum())]
            children = self._table.mutate(parents, self._rng)
            mutated = self._rng.random(self.POPULATION) < self.MUTATED
            population = np.where(mutated, children, parents)
            seen.update(population.tolist())
        rows = np.array([r for r in seen if self._free[r]], dtype=np.intp)
        greedy = round((1 - self.RANDOM) * self.PLAN)
        best = rows[np.argsort(-score[rows], kind="stable")][:greedy].tolist()
        return best + self._random(self.PLAN - len(best))
