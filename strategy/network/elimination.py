"""Systems of linear equations and determinants of small matrices, by steps of Gauss and Jordan with pivots."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents

MOST_ROWS = 16


def solve(matrix: Expr, right: Expr) -> Expr:
    """The solution of matrix · x = right, [..., n, m]; of a singular matrix infinite, or NaN.

    Raises:
        NetworkError: the matrix has more than `MOST_ROWS` rows.
    """
    *_, n, columns = extents(right)
    lead = np.broadcast_shapes(extents(matrix)[:-2], extents(right)[:-2])
    rows = layer.concatenate([_batch(matrix, lead), _batch(right, lead)], 2)
    for place in range(n):
        rows, pivot, _ = _step(rows, place, n)
        rows = _cleared(rows, call("divide", pivot, layer.take_slice(pivot, 2, place, place + 1)), place, n)
    return layer.reshape(layer.take_slice(rows, 2, n, None), (*lead, n, columns))


def pivots(matrix: Expr) -> Expr:
    """Numbers [..., n] whose product is the determinant: the pivots, negative where rows were exchanged.

    Raises:
        NetworkError: as of `solve`.
    """
    lead, n = extents(matrix)[:-2], extents(matrix)[-1]
    rows, found = _batch(matrix, lead), []
    for place in range(n):
        rows, pivot, is_moved = _step(rows, place, n)
        head = layer.take_slice(pivot, 2, place, place + 1)
        found.append(call("where", is_moved, call("negative", head), head))
        # Below a pivot of 0 all are 0, so that any divisor will do.
        divisor = call("where", call("equal", head, number(0, head)), number(1, head), head)
        rows = _cleared(rows, call("divide", pivot, divisor), place, n)
    return layer.reshape(layer.concatenate(found, 2), (*lead, n))


def _batch(matrix: Expr, lead: Sequence[int]) -> Expr:
    """Matrices with one axis before theirs."""
    if extents(matrix)[-2] > MOST_ROWS:
        raise NetworkError(f"equations of {extents(matrix)[-2]} unknowns: plevel solves those of at most {MOST_ROWS}")
    last = extents(matrix)[-2:]
    return layer.reshape(layer.broadcast(matrix, (*lead, *last)), (math.prod(lead), *last))


def _step(rows: Expr, place: int, n: int) -> tuple[Expr, Expr, Expr]:
    """The rows with the largest pivot in its place, that row, and whether it was in another one."""
    own = Constant(np.arange(n).reshape(1, n, 1))
    sizes = call("abs", layer.take_slice(rows, 2, place, place + 1))
    left = call("where", Constant(own.value >= place), sizes, number(-1, sizes))
    chosen = call("argmax", left, axis=(1,), keepdims=True, dtype="int64")
    batch, _, width = extents(rows)
    pivot = call("gather", rows, layer.broadcast(chosen, (batch, 1, width)), axis=1)
    exchanged = call("where", call("equal", own, chosen), layer.take_slice(rows, 1, place, place + 1), rows)
    found = call("where", Constant(own.value == place), pivot, exchanged)
    return found, pivot, call("not_equal", chosen, number(place, chosen))


def _cleared(rows: Expr, pivot: Expr, place: int, n: int) -> Expr:
    """The rows less multiples of the pivot's, which is given divided by the pivot, and that row itself."""
    others = call("subtract", rows, call("multiply", layer.take_slice(rows, 2, place, place + 1), pivot))
    return call("where", Constant(np.arange(n).reshape(1, n, 1) == place), pivot, others)
