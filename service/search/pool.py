"""The candidate pool: the valid untried configurations of a space."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.search.features import Digits, columns_of
from strategy.condition import Clause, ExpressionError
from strategy.space import ConfigSpace

Key = tuple[int, ...]

ENUMERATE = 20_000  # maximum size of a table of valid configurations
LOOK_THROUGH = 2_000_000  # maximum number of combinations to enumerate for it
CHUNK = 65_536
RESERVE = 4096  # valid configurations of a larger space kept in reserve
FRESH = 1024  # of them are renewed each time, if valid ones are not rare
FEW = 512  # size of the reserve if they are rare


class Candidates:
    """The valid configurations of a space, by their digits, without those taken.

    A small space is enumerated as a table; for a large one a reserve is drawn and renewed. Of configurations with the
    same code, those that `settle` gives alone are candidates.

    Args:
        space: knobs and constraints.
        rng: the generator of all random choices.
        listed: the digits of the valid configurations, if they are a list instead of constraints
            (a recorded space).
    """

    def __init__(
        self, space: ConfigSpace, rng: np.random.Generator, listed: Digits | None = None
    ) -> None:
        self.space = space
        self._rng = rng
        self._sizes = np.array([len(k.values) for k in space.knobs], dtype=np.int64)
        place = {k.name: i for i, k in enumerate(space.knobs)}
        usual = space.digits(space.fallback) if space.idle else ()
        self._idle = [(place[name], usual[place[name]], clause) for name, clause in space.idle.items()]
        self._taken: set[Key] = set()
        self.table = listed if listed is not None else self._enumerate()
        self._reserve: dict[Key, None] = {}
        if self.table is not None:
            self._rows = {tuple(row): i for i, row in enumerate(self.table.tolist())}
            self._free = np.ones(len(self.table), dtype=bool)
            codes = self._code(self.table)
            self._order = np.argsort(codes, kind="stable")
            self._codes = codes[self._order]

    @property
    def exhausted(self) -> bool:
        """True if all configurations are taken; always False for spaces too large to enumerate."""
        return self.table is not None and not self._free.any()

    def take(self, key: Key) -> None:
        """Remove a configuration from the pool."""
        self._taken.add(key)
        self._reserve.pop(key, None)
        if self.table is not None and key in self._rows:
            self._free[self._rows[key]] = False

    def give_back(self, key: Key) -> None:
        """Return a valid configuration to the pool."""
        self._taken.discard(key)
        if self.table is None:
            self._reserve[key] = None
        else:
            self._free[self._rows[key]] = True

    def is_taken(self, key: Key) -> bool:
        return key in self._taken

    def contains(self, key: Key) -> bool:
        """True if the digits are of a valid configuration."""
        if self.table is not None:
            return key in self._rows
        return bool(self.allowed(np.array([key], dtype=np.int32))[0])

    def rows(self, digits: Digits) -> NDArray[np.intp]:
        """Rows of the table for the digits of valid configurations."""
        return self._order[np.searchsorted(self._codes, self._code(digits))]

    def _code(self, digits: Digits) -> NDArray[np.int64]:
        strides = np.append(np.cumprod(self._sizes[:0:-1])[::-1], 1).astype(np.int64)
        return np.asarray(digits.astype(np.int64) @ strides[: len(self._sizes)])

    def draw(self, n: int) -> Digits:
        """Up to `n` at random: uniform, or nearly so if valid ones are rare in a large space."""
        if self.table is not None:
            free = np.flatnonzero(self._free)
            picked = self._rng.permutation(free)[:n]
            return np.asarray(self.table[picked])
        self._refill(n)
        keys = list(self._reserve)
        return self._digits([keys[i] for i in self._rng.permutation(len(keys))[:n]])

    def near(self, keys: Sequence[Key], n: int) -> Digits:
        """Up to `n` that differ in one or two knobs from any of `keys`."""
        movable = np.flatnonzero(self._sizes > 1)
        if not keys or not len(movable):
            return self._digits([])
        moved = np.array(keys, dtype=np.int32)[self._rng.integers(len(keys), size=2 * n)]
        rows = np.arange(len(moved))
        for probability in (1.0, 0.5):
            knob = self._rng.choice(movable, size=len(moved))
            step = moved[rows, knob] + self._rng.choice((-1, 1), size=len(moved))
            anywhere = self._rng.integers(self._sizes[knob])
            stays = (self._rng.random(len(moved)) < 0.5) & (step >= 0) & (step < self._sizes[knob])
            target = np.where(stays, step, anywhere)
            moves = self._rng.random(len(moved)) < probability
            moved[rows, knob] = np.where(moves, target, moved[rows, knob])
        found = dict.fromkeys(map(tuple, self.settle(moved).tolist()))
        new = [key for key in found if key not in self._taken]
        if self.table is not None:
            return self._digits([key for key in new if key in self._rows][:n])
        digits = self._digits(new)
        return digits[self.allowed(digits)][:n]

    def allowed(self, digits: Digits) -> NDArray[np.bool_]:
        """A mask of the rows that satisfy the constraints."""
        return self._hold(self.space.constraints, self.space.allows, digits)

    def settle(self, digits: Digits) -> Digits:
        """The rows with the fallback's values of knobs that are idle there, which have the same code."""
        found = digits.copy() if self._idle else digits
        for place, digit, clause in self._idle:
            found[self._hold([clause], clause.expression.evaluate, found), place] = digit
        return found

    def _hold(
        self, clauses: Sequence[Clause], check: Callable[[Mapping[str, Any]], bool], digits: Digits
    ) -> NDArray[np.bool_]:
        """A mask of the rows for which all clauses hold, which `check` finds for the values of one."""
        holds = np.ones(len(digits), dtype=bool)
        if not clauses or not len(digits):
            return holds
        values = columns_of(self.space, digits)
        try:
            with np.errstate(all="ignore"):
                for clause in clauses:
                    holds &= np.asarray(clause.evaluate(values), dtype=bool)
        except (ExpressionError, TypeError, ValueError):
            # Some expressions work for single values only (comparison of texts, untaken branches).
            names = [k.name for k in self.space.knobs]
            rows = (dict(zip(names, self._values(row), strict=True)) for row in digits.tolist())
            return np.array([check(row) for row in rows], dtype=bool)
        return holds

    def _values(self, row: Iterable[int]) -> list[Any]:
        return [k.values[d] for k, d in zip(self.space.knobs, row, strict=True)]

    def _digits(self, keys: Sequence[Key]) -> Digits:
        return np.array(keys, dtype=np.int32).reshape(len(keys), len(self._sizes))

    def _enumerate(self) -> Digits | None:
        if self.space.size > LOOK_THROUGH:
            return None
        found: list[Digits] = []
        for start in range(0, self.space.size, CHUNK):
            index = np.arange(start, min(start + CHUNK, self.space.size), dtype=np.int64)
            digits = np.empty((len(index), len(self._sizes)), dtype=np.int32)
            for i in reversed(range(len(self._sizes))):
                index, digits[:, i] = np.divmod(index, self._sizes[i])
            digits = digits[self.allowed(digits)]
            found.append(digits[(digits == self.settle(digits)).all(axis=1)])
            if sum(map(len, found)) > ENUMERATE:
                return None
        return np.concatenate(found)

    def _refill(self, n: int) -> None:
        """Draw a few thousand times; descend along the constraints if that yields too few."""
        size = (2 * FRESH, len(self._sizes))
        drawn = self._rng.integers(self._sizes, size=size, dtype=np.int64).astype(np.int32)
        for row in self.settle(drawn[self.allowed(drawn)][: max(n, FRESH)]).tolist():
            self._keep(tuple(row))
        missing = min(n, FEW) - len(self._reserve)
        if missing > 0:
            rng = random.Random(int(self._rng.integers(2**31)))
            # Descents are slow: they fill the reserve over many calls.
            found = [self.space.digits(c) for c in self.space.sample(rng, min(missing, 64), tries=0)]
            for row in self.settle(self._digits(found)).tolist():
                self._keep(tuple(row))
        while len(self._reserve) > RESERVE:
            self._reserve.pop(next(iter(self._reserve)))

    def _keep(self, key: Key) -> None:
        if key not in self._taken:
            self._reserve[key] = None
