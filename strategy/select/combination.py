"""Satisfiable combinations of conditions over dimensions, each with an example."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from strategy.condition import SpecializedCondition

EXACT_LIMIT = 2**20  # a single dimension is enumerated up to here
GRID_LIMIT = 200_000  # points tried over several dimensions
TRIED = 1000  # points of one combination, of which one must hold beyond 64 bits, too


def satisfiable(
    conditions: Sequence[SpecializedCondition], dims: Sequence[str]
) -> Iterator[tuple[tuple[bool, ...], dict[str, int]]]:
    """The combinations of truth values that positive integers attain, each with an example.

    Exact for conditions over one dimension up to `EXACT_LIMIT`, but for quotients of quotients, and near the
    constants beyond it. Over several dimensions the values near every constant are combined, so that rare
    combinations may be missed.
    """
    if not conditions:
        yield (), dict.fromkeys(dims, 1)
        return
    import numpy as np  # which most commands need not load

    constants = sorted({n for c in conditions for n in _constants(c.to_json())})
    over = [d for d in dims if any(d in c.variables() for c in conditions)]
    values = _interesting(constants, EXACT_LIMIT if len(over) == 1 else 0)
    if len(over) > 1:
        values = _nearest(values, constants, int(GRID_LIMIT ** (1 / len(over))))
    axes = [np.array(values, dtype=np.int64)] * len(over)
    grid = dict(zip(over, (g.ravel() for g in np.meshgrid(*axes, indexing="ij")), strict=True))
    size = next(iter(grid.values())).size if grid else 1
    truth = np.stack([np.broadcast_to(c.evaluate(grid), (size,)) for c in conditions])
    codes = (truth.astype(np.int64) << np.arange(len(conditions))[:, None]).sum(axis=0)
    for code in np.unique(codes):
        for at in np.flatnonzero(codes == code)[:TRIED]:
            example = dict.fromkeys(dims, 1) | {name: int(column[at]) for name, column in grid.items()}
            holds = tuple(bool(t) for t in truth[:, at])
            # Products beyond 64 bits wrap around in arrays, but not in Python.
            if holds == tuple(bool(c.evaluate(example)) for c in conditions):
                yield holds, example
                break


def _constants(node: Any) -> Iterator[int]:
    if isinstance(node, list):
        yield from itertools.chain.from_iterable(_constants(x) for x in node[1:])
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield abs(int(node))


def _interesting(constants: Sequence[int], exact: int) -> list[int]:
    """Small values, those around the constants and their products, and all up to `exact`."""
    small = [c for c in constants if 0 < c <= 4096]
    near = {a * b for a in (1, *constants) for b in (1, *small)}
    near |= {a // b for a in constants for b in small}
    period = math.lcm(*small) if small else 1
    width = min(period, 64)
    values = {v + d for v in near for d in range(-width, width + 1)}
    values |= {2**e + d for e in range(41) for d in (-1, 0, 1)}
    top = min(exact, max(near, default=1) + 2 * period)
    return sorted(v for v in values | set(range(1, max(64, top) + 1)) if 1 <= v <= 2**40)


def _nearest(values: Sequence[int], constants: Sequence[int], most: int) -> list[int]:
    """At most `most` of the values: half of them around the constants, the rest spread evenly."""
    around = (c + d for n in range(most) for c in (1, *constants) for d in (n, -n))
    kept = set(itertools.islice(dict.fromkeys(v for v in around if v >= 1), max(1, most // 2)))
    rest = [v for v in values if v not in kept]
    step = max(1, math.ceil(len(rest) / max(1, most - len(kept))))
    return sorted(kept | set(rest[::step]))
