"""Descriptions of configurations to a cost model: knobs, derived features, extents, and what divides them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import numpy as np

from service.search.features import Digits, Matrix, SpaceFeatures, is_number
from strategy.space import ConfigSpace
from strategy.workload import Workload

MOST_EXTENTS = 8  # dimensions of a workload with features of their own
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
        constant |= {f"attribute {n}": float(v) for n, v in workload.attrs.items() if is_number(v)}
        self._constant = constant
        self._features = None if space is None else SpaceFeatures(space)
        knobs = self._features.names if self._features else ()
        self._tables = _goes_into(space, list(extents.values()))
        self.names = (
            *constant, *(f"knob {n}" for n in knobs),
            *(f"{what} {space.knobs[i].name} {j}" for i in self._tables if space is not None
              for j in extents for what in ("into", "waste")),
        )  # fmt: skip

    def matrix(self, digits: Digits) -> Matrix:
        constant = np.array(list(self._constant.values()), dtype=np.float32)
        parts = [np.broadcast_to(constant, (len(digits), len(constant)))]
        if self._features is not None:
            parts.append(self._features.matrix(digits))
        parts += [table[digits[:, i]] for i, table in self._tables.items()]
        return np.concatenate(parts, axis=1, dtype=np.float32)


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


def repeated(extents: Sequence[Sequence[int]]) -> set[int]:
    """The indices of dimensions that equal an earlier one in all workloads."""
    shortest = min(map(len, extents), default=0)
    return {j for j in range(shortest) if any(all(e[i] == e[j] for e in extents) for i in range(j))}
