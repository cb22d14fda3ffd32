"""Features of a configuration for the cost model: its knobs' values and expressions over them.

The index in the space is no feature, as it changes with the space.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategy.condition import ExpressionError
from strategy.space import ConfigSpace, Knob

Matrix = NDArray[np.float32]
Digits = NDArray[np.int32]
_ONE_HOT = 8  # names with up to this many values get a column each


class SpaceFeatures:
    """Features of the configurations of one space, as rows of numbers.

    A configuration is given by its digits: the position of each knob's value, in the order of the
    knobs. Columns are the numbers of numeric knobs, the parts of tuples, the positions of names
    (and one column per name if they are few), and the space's derived expressions.
    """

    def __init__(self, space: ConfigSpace) -> None:
        self._tables = [_table(knob) for knob in space.knobs]
        self._derived = [(name, e.compile()) for name, e in space.derived.items()]
        used = {name for e in space.derived.values() for name in e.variables()}
        self._operands = [(k.name, i, array_of(k)) for i, k in enumerate(space.knobs) if k.name in used]
        names = [f"{knob.name}.{i}" if table.shape[1] > 1 else knob.name
                 for knob, table in zip(space.knobs, self._tables, strict=True)
                 for i in range(table.shape[1])]
        self.names = (*names, *(name for name, _ in self._derived))

    def matrix(self, digits: Digits) -> Matrix:
        """One row of features per row of digits; NaN if an expression has no value."""
        columns = [table[digits[:, i]] for i, table in enumerate(self._tables)]
        columns.append(self.derive(digits))
        return np.concatenate(columns, axis=1, dtype=np.float32)

    def derive(self, digits: Digits) -> Matrix:
        """The derived expressions alone."""
        if not self._derived:
            return np.zeros((len(digits), 0), dtype=np.float32)
        values = {name: array[digits[:, i]] for name, i, array in self._operands}
        columns = [_computed(function, values, len(digits)) for _, function in self._derived]
        return np.concatenate(columns, axis=1, dtype=np.float32)


def columns_of(space: ConfigSpace, digits: Digits) -> dict[str, NDArray[Any]]:
    """The values of each knob, one per row of digits, as operands of expressions."""
    return {k.name: array_of(k)[digits[:, i]] for i, k in enumerate(space.knobs)}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float)  # includes bool


def array_of(knob: Knob) -> NDArray[Any]:
    """The knob's values, as operands of expressions."""
    if all(is_number(v) for v in knob.values):
        return np.array(knob.values)
    lengths = {len(v) if isinstance(v, tuple) else 0 for v in knob.values}
    if len(lengths) == 1 and lengths != {0}:
        return np.array(knob.values, dtype=np.int64)
    return np.array(list(map(str, knob.values)), dtype=object)


def _table(knob: Knob) -> Matrix:
    """The columns of each of the knob's values."""
    values = array_of(knob)
    if values.dtype != object:
        return values.reshape(len(values), -1).astype(np.float32)
    position = np.arange(len(values), dtype=np.float32)[:, None]
    if len(values) <= _ONE_HOT:
        return np.concatenate([position, np.eye(len(values), dtype=np.float32)], axis=1)
    return position


def _computed(function: Any, env: Mapping[str, NDArray[Any]], rows: int) -> Matrix:
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            values = np.broadcast_to(np.asarray(function(env), dtype=np.float64), (rows,))
    except (ExpressionError, TypeError, ValueError):
        # For instance an expression over names: omit the feature.
        return np.full((rows, 1), np.nan, dtype=np.float32)
    limit = float(np.finfo(np.float32).max)
    return np.where(np.abs(values) < limit, values, np.nan).astype(np.float32)[:, None]
