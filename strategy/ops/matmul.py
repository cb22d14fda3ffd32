"""matmul and einsum: products of tensors of any rank, by transposes and one batch_matmul or dense."""

from __future__ import annotations

import math
from collections.abc import Sequence

from strategy.expr import Expr, ExprError, call
from strategy.ops.movement import broadcast_to
from strategy.ops.reduce import sum as reduce_sum
from strategy.ops.reshape import reshape
from strategy.ops.transpose import transpose


def matmul(x: Expr, y: Expr, transpose_a: bool = False, transpose_b: bool = False) -> Expr:
    """The product as NumPy's `matmul`: of vectors, matrices, and matrices whose leading axes broadcast.

    Args:
        x: [..., m, k], or [k].
        y: [..., k, n], or [k].
        transpose_a: the matrices of x are given transposed.
        transpose_b: the matrices of y are given transposed.

    Raises:
        ExprError: an extent is symbolic, or the shapes do not fit.
    """
    left, right = _extents("matmul", x), _extents("matmul", y)
    if not left or not right:
        raise ExprError(f"matmul: {x.tensor_type} by {y.tensor_type}: multiply numbers instead")
    if len(right) == 1:
        found = matmul(x, reshape(y, (-1, 1)), transpose_a)
        return reshape(found, _extents("matmul", found)[:-1])
    if len(left) == 1:
        found = matmul(reshape(x, (1, -1)), y, transpose_b=transpose_b)
        shape = _extents("matmul", found)
        return reshape(found, (*shape[:-2], shape[-1]))
    m, k = left[-2:] if not transpose_a else (left[-1], left[-2])
    depth, n = right[-2:] if not transpose_b else (right[-1], right[-2])
    if k != depth:
        raise ExprError(f"matmul: {x.tensor_type} by {y.tensor_type}: k is {k} against {depth}")
    if len(right) == 2 and not transpose_a:
        weight = y if transpose_b else transpose(y)
        return reshape(call("dense", reshape(x, (-1, k)), weight), (*left[:-1], n))
    batch = _broadcast(x, y, left[:-2], right[:-2])
    operands = [_batched(t, batch, shape) for t, shape in ((x, left), (y, right))]
    found = call("batch_matmul", *operands, transpose_a=transpose_a, transpose_b=transpose_b)
    return reshape(found, (*batch, m, n))


def _extents(name: str, node: Expr) -> tuple[int, ...]:
    if not node.tensor_type.is_constant:
        raise ExprError(f"{name}: {node.tensor_type} has symbolic extents: it needs constant ones")
    return node.tensor_type.concrete_shape


def _broadcast(x: Expr, y: Expr, left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    import numpy as np

    try:
        return np.broadcast_shapes(tuple(left), tuple(right))
    except ValueError as error:
        raise ExprError(f"matmul: the leading axes of {x.tensor_type} and {y.tensor_type} do not broadcast") from error


def _batched(node: Expr, batch: tuple[int, ...], shape: tuple[int, ...]) -> Expr:
    """Matrices with one leading axis; a batch of 1 where the same are for all."""
    if math.prod(shape[:-2]) != 1:
        node = broadcast_to(node, shape=(*batch, *shape[-2:])) if shape[:-2] != batch else node
    return reshape(node, (-1, *shape[-2:]))


def einsum(equation: str, *operands: Expr) -> Expr:
    """Sums of products as NumPy's `einsum`, of one or two tensors at a time from left to right.

    Args:
        equation: letters for the axes of each operand, and of the result: "bhqd,bhkd->bhqk". Letters that the result
            lacks are summed over; without "->" it has those that occur once, in alphabetical order.

    Raises:
        ExprError: the equation does not fit the operands; a letter twice in one of them, or an ellipsis.
    """
    text = equation.replace(" ", "")
    inputs, arrow, result = text.partition("->")
    terms = inputs.split(",")
    letters = "".join(terms)
    if not arrow:
        result = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    extents: dict[str, int] = {}
    if len(terms) != len(operands):
        raise ExprError(f"einsum: {equation!r} is of {len(terms)} operands, got {len(operands)}")
    for term, node in zip((*terms, result), (*operands, None), strict=True):
        if not all(c.isascii() and c.isalpha() for c in term) or len(set(term)) != len(term):
            raise ExprError(f"einsum: {term!r} in {equation!r}: expected letters, each once")
        if node is None:
            continue
        shape = _extents("einsum", node)
        if len(shape) != len(term):
            raise ExprError(f"einsum: {term!r} in {equation!r} is {node.tensor_type}, of {len(shape)} axes")
        for letter, extent in zip(term, shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise ExprError(f"einsum: {letter!r} in {equation!r} is {extents[letter]} and {extent}")
    unknown = set(result) - extents.keys()
    if unknown:
        raise ExprError(f"einsum: {min(unknown)!r} of the result is no axis of an operand of {equation!r}")
    found, own = operands[0], terms[0]
    for place, node in enumerate(operands[1:], start=1):
        later = set(result).union(*terms[place + 1 :])
        found, own = _contract(found, own, node, terms[place], later, extents)
    found, own = _summed(found, own, set(result))
    return _ordered(found, own, result)


def _summed(node: Expr, own: str, kept: set[str]) -> tuple[Expr, str]:
    gone = tuple(i for i, letter in enumerate(own) if letter not in kept)
    return (reduce_sum(node, axis=gone), "".join(c for c in own if c in kept)) if gone else (node, own)


def _ordered(node: Expr, own: str, wanted: str) -> Expr:
    return node if own == wanted else transpose(node, tuple(map(own.index, wanted)))


def _contract(
    x: Expr, left: str, y: Expr, right: str, later: set[str], extents: dict[str, int]
) -> tuple[Expr, str]:
    """The product of two operands, summed over what neither the result nor a later operand has."""
    x, left = _summed(x, left, later | set(right))
    y, right = _summed(y, right, later | set(left))
    batch = "".join(c for c in left if c in right and c in later)
    depth = "".join(c for c in left if c in right and c not in later)
    rows, columns = ("".join(c for c in own if c not in other) for own, other in ((left, right), (right, left)))

    def matrices(node: Expr, own: str, free: str) -> Expr:
        parts = (batch, free, depth)
        return reshape(_ordered(node, own, "".join(parts)), [math.prod(extents[c] for c in p) for p in parts])

    found = call("batch_matmul", matrices(x, left, rows), matrices(y, right, columns))
    whole = batch + rows + columns
    return reshape(found, [extents[c] for c in whole]), whole
