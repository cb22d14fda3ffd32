"""Descriptions of configurations to a cost model: knobs, derived features, extents, and what divides them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from service.search.features import Digits, Matrix, SpaceFeatures, is_number
from strategy.space import ConfigSpace
from strategy.workload import Workload

MOST_EXTENTS = 8  # dimensions of a workload with features of their own
_LARGEST = float(np.finfo(np.float32).max)
CHUNK = 4096  # rows whose features fit in the cache


class Description:
    """The features of one implementation's configurations for one workload."""

    def __init__(
        self,
        workload: Workload,
        implementation: str,
        space: ConfigSpace | None,
        skipped: Collection[int],
    ) -> None:
        extents = {i: d for i, d in enumerate(extents_of(workload)) if i not in skipped}
        # Times are proportional to it, and trees do not extrapolate: they learn the rest.
        self.log_volume = float(np.log(np.prod(list(extents.values()), dtype=np.float64)))
        constant = {f"is {implementation}": 1.0}
        constant |= {extent_name(i): float(np.log2(d)) for i, d in extents.items()}
        constant |= {f"constant {i}": float(x.constant) for i, x in enumerate(workload.inputs)}
        constant["epilogue"] = float(len(workload.epilogue))
        constant |= _numbers(workload) | dict.fromkeys(kinds_of(workload), 1.0)
        self._constant = constant
        self._features = None if space is None else _features(space)
        knobs = self._features.names if self._features else ()
        self._tables = _goes_into(space, list(extents.values()))
        # Each column with its dimension, if it belongs to one.
        self.owners: dict[str, int | None] = {
            **dict.fromkeys(constant), **{extent_name(i): i for i in extents},
            **{f"knob {n}": None for n in knobs},
            **{f"{what} {space.knobs[i].name} {j}": j for i in self._tables if space is not None
               for j in extents for what in ("into", "waste")},
        }
        self.names = tuple(self.owners)

    def matrix(self, digits: Digits) -> Matrix:
        # Infinities, which attributes may be beyond float32, end the training of trees.
        constant = np.clip(list(self._constant.values()), -_LARGEST, _LARGEST).astype(np.float32)
        parts = [np.broadcast_to(constant, (len(digits), len(constant)))]
        if self._features is not None:
            parts.append(self._features.matrix(digits))
        parts += [table[digits[:, i]] for i, table in self._tables.items()]
        return np.concatenate(parts, axis=1, dtype=np.float32)


def kinds_of(workload: Workload) -> list[str]:
    """The columns of what has no order: dtypes, and attributes that are words, such as layouts.

    A model knows nothing of workloads with others than it was trained on.
    """
    words = [f"attribute {n} {v}" for n, v in workload.attrs.items() if isinstance(v, str)]
    return [*(f"dtype {i} {x.tensor.dtype}" for i, x in enumerate(workload.inputs)), *words]


def _numbers(workload: Workload) -> dict[str, float]:
    """Attributes that are numbers, or several, such as strides."""
    found = {}
    for name, value in workload.attrs.items():
        if is_number(value):
            found[f"attribute {name}"] = float(value)
        elif isinstance(value, list | tuple):
            found |= {f"attribute {name} {i}": float(v) for i, v in enumerate(value) if is_number(v)}
    return found


@lru_cache(maxsize=256)
def _features(space: ConfigSpace) -> SpaceFeatures:
    return SpaceFeatures(space)


def _goes_into(space: ConfigSpace | None, extents: Sequence[int]) -> dict[int, Matrix]:
    """For each knob that is a size, by its index: a row per value, with two columns per extent.

    They are the logarithm of the extent divided by the size, and the factor by which rounding up enlarges
    the extent.
    """
    tables = {}
    for i, one in enumerate(space.knobs if space else ()):
        if one.types != {int}:
            continue
        sizes = np.array(one.values, dtype=np.float32)
        if sizes.min() > 0:
            times = np.array(extents, dtype=np.float32) / sizes[:, None]
            pair = np.stack([np.log2(times), np.ceil(times) / times], axis=2)
            tables[i] = pair.reshape(len(sizes), 2 * len(extents))
    return tables


def extent_name(i: int) -> str:
    return f"extent {i}"


def extents_of(workload: Workload) -> list[int]:
    """The dimensions of all inputs, in order."""
    shapes = [one.tensor.concrete_shape for one in workload.inputs]
    return [max(d, 1) for d in itertools.chain.from_iterable(shapes)][:MOST_EXTENTS]


class Layout(NamedTuple):
    """The columns of the features of a set of workloads.

    Attributes:
        columns: their names.
        skipped: the indices of dimensions that equal an earlier one in all workloads.
    """

    columns: tuple[str, ...]
    skipped: frozenset[int]


class Survey:
    """Collect the layout of workloads that are seen one after the other."""

    def __init__(self) -> None:
        self._names: dict[str, int | None] = {}  # with the dimension, of those that belong to one
        self._equal: set[tuple[int, int]] | None = None

    def add(self, workload: Workload, implementation: str, space: ConfigSpace | None) -> None:
        """Note the columns of one implementation for one workload."""
        extents = extents_of(workload)
        pairs = itertools.combinations(range(len(extents)), 2)
        equal = {(i, j) for i, j in pairs if extents[i] == extents[j]}
        self._equal = equal if self._equal is None else self._equal & equal
        self._names.update(Description(workload, implementation, space, ()).owners)

    def layout(self) -> Layout:
        skipped = frozenset(j for _, j in self._equal or ())
        return Layout(tuple(n for n, j in self._names.items() if j not in skipped), skipped)
