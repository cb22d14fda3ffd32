"""Embedding of configurations in coordinates, for a model that compares them by distance.

Times depend on a knob in three ways, each with columns and length scales of its own, which are fitted to the
records: smoothly on the logarithm of a size; on alignment, the power of two that divides the value; and on
single values, as for names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.search.features import Digits, SpaceFeatures, array_of
from strategy.space import ConfigSpace, Knob

Places = NDArray[np.float32]

# Expected logarithms of length scales, in units of a column's range. Alignment and single values are expected
# to matter less.
SMOOTH, ALIGNMENT, SINGLE, DERIVED = np.log(1.6), np.log(1.6) + 0.2, np.log(1.6) + 1.2, np.log(1.6) + 1.0
MOST_SINGLE = 64  # a knob with more values has no column per value
MOST_ALIGNMENT = 6
MOST_NAMES = 6  # values 0, 1, 2 … up to this number count as names, such as an algorithm or layout
WIDE = 4  # a range of at least this ratio is scaled logarithmically


class Embedding:
    """Embedding of the digits of one space as rows of columns between 0 and 1.

    Attributes:
        groups: for each column, the length scale that it shares with others.
        reach: for each length scale, its expected logarithm.
    """

    def __init__(self, space: ConfigSpace) -> None:
        self._features = SpaceFeatures(space)
        self._tables: list[tuple[int, Places]] = []
        groups: list[int] = []
        reach: list[float] = []
        for i, knob in enumerate(space.knobs):
            for table, expected in _tables(knob):
                self._tables.append((i, table))
                groups += [len(reach)] * table.shape[1]
                reach.append(expected)
        self._derived = _ranges(self._features, space)
        groups += range(len(reach), len(reach) + len(self._derived))
        reach += [DERIVED] * len(self._derived)
        if not reach:  # a single configuration: one constant column
            groups, reach = [0], [SMOOTH]
        self.groups = np.array(groups, dtype=np.intp)
        self.reach = np.array(reach)

    def place(self, digits: Digits) -> Places:
        """One row per row of digits."""
        columns = [table[digits[:, i]] for i, table in self._tables]
        if self._derived:
            values = self._features.derive(digits)
            columns += [
                _scaled(values[:, [j]], low, high, logarithmic=log)
                for j, low, high, log in self._derived
            ]
        if not columns:
            return np.zeros((len(digits), 1), dtype=np.float32)
        return np.concatenate(columns, axis=1, dtype=np.float32)


def nearest(space: ConfigSpace, config: Mapping[str, object]) -> tuple[int, ...] | None:
    """The digits nearest to a configuration of another space (of another shape or version).

    Numbers map to the nearest by ratio, tuples part by part to the nearest of equal length; a missing knob gets
    the fallback's value. None if a name is not among a knob's. Constraints are ignored, as only the
    position counts.
    """
    found = []
    for knob in space.knobs:
        value: Any = config[knob.name] if knob.name in config else space.fallback[knob.name]
        digit = knob.position.get((type(value), value))
        if digit is None:
            digit = _nearest_value(knob, value)
        if digit is None:
            return None
        found.append(digit)
    return tuple(found)


def _nearest_value(knob: Knob, value: Any) -> int | None:
    numbers = _numbers(knob)
    wanted = np.atleast_1d(np.array(value, dtype=object))
    if (
        numbers is None or len(wanted) != numbers.shape[1]
        or not all(isinstance(v, int | float) for v in wanted)
    ):
        return None
    parts = np.concatenate([numbers, wanted[None].astype(np.float64)])
    if parts.min() > 0:
        parts = np.log(parts)
    return int(np.abs(parts[:-1] - parts[-1]).sum(axis=1).argmin())


def _tables(knob: Knob) -> list[tuple[Places, float]]:
    """The columns of each value of a knob, one table for each length scale."""
    n = len(knob.values)
    if n == 1:
        return []
    single = np.eye(n, dtype=np.float32) / np.sqrt(2)  # any two values are 1 apart
    numbers = _numbers(knob)
    if numbers is None:
        return [(single, SMOOTH)] if n <= MOST_SINGLE else [(_spread(np.arange(n)), SMOOTH)]
    if n == 2 and numbers.shape[1] == 1:
        return [(_spread(numbers[:, 0]), SMOOTH)]
    if numbers.shape[1] == 1 and n <= MOST_NAMES and (numbers[:, 0] == np.arange(n)).all():
        return [(single, SMOOTH)]
    tables: list[tuple[Places, float]] = []
    for column in numbers.T:
        if (column == column[0]).all():
            continue
        tables.append((_spread(column), SMOOTH))
        twos = _twos(column)
        if twos is not None:
            tables.append((_spread(twos), ALIGNMENT))
    if n <= MOST_SINGLE:
        tables.append((single, SINGLE))
    return tables


def _numbers(knob: Knob) -> NDArray[np.float64] | None:
    """The parts of each value as numbers; None for names."""
    values = array_of(knob)
    return None if values.dtype == object else values.reshape(len(values), -1).astype(np.float64)


def _twos(column: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The 2-adic valuation of each value; None if it adds nothing to the size."""
    if column.min() <= 0 or column.max() >= 2**53 or (column != np.floor(column)).any():
        return None
    whole = column.astype(np.int64)
    twos = np.minimum(np.log2(whole & -whole), MOST_ALIGNMENT)
    return None if (np.diff(twos[np.argsort(column, kind="stable")]) >= 0).all() else twos


def _spread(column: NDArray[Any]) -> Places:
    low, high = float(column.min()), float(column.max())
    wide = low > 0 and high / low >= WIDE
    return _scaled(column[:, None], low, high, logarithmic=wide)


def _scaled(values: NDArray[np.floating], low: float, high: float, *, logarithmic: bool) -> Places:
    """Scale `low` to `high` to 0 to 1; missing values become the middle."""
    if logarithmic:
        values, low, high = np.log(np.maximum(values, low)), float(np.log(low)), float(np.log(high))
    scaled = np.nan_to_num((values - low) / (high - low), nan=0.5)
    return np.asarray(scaled.clip(-1, 2), dtype=np.float32)


def _ranges(
    features: SpaceFeatures, space: ConfigSpace
) -> Sequence[tuple[int, float, float, bool]]:
    """Derived columns that vary, with their ranges over configurations drawn at random."""
    rng = np.random.default_rng(0)
    sizes = [len(k.values) for k in space.knobs]
    values = features.derive(rng.integers(0, sizes, size=(512, len(sizes)), dtype=np.int32))
    ranges = []
    for j, column in enumerate(values.T):
        known = column[np.isfinite(column)].astype(np.float64)
        if len(known) and known.max() > known.min():
            low, high = float(known.min()), float(known.max())
            ranges.append((j, low, high, low > 0 and high / low >= WIDE))
    return ranges
