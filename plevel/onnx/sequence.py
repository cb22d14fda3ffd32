"""Sequences of ONNX, each of a fixed number of tensors, as tuples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plevel.onnx.node import Node, constant, register
from strategy.expr import Constant, Expr, Tuple
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.rewriter import extents
from strategy.network.size import PROBED

SEQUENCES = frozenset({
    "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
    "SequenceLength", "SplitToSequence",
})
_MOST = 4096  # tensors of a sequence


@register("SequenceConstruct")
def _construct(node: Node, *parts: Expr) -> Tuple:
    return Tuple(parts)


@register("SequenceEmpty")
def _empty(node: Node) -> Tuple:
    return Tuple(())


@register("SequenceInsert")
def _insert(node: Node, sequence: Expr, tensor: Expr, position: Expr | None = None) -> Tuple:
    parts = list(_parts(sequence))
    parts.insert(len(parts) if position is None else _place(position, len(parts) + 1, len(parts)), tensor)
    return Tuple(parts)


@register("SequenceErase")
def _erase(node: Node, sequence: Expr, position: Expr | None = None) -> Tuple:
    parts = list(_parts(sequence))
    del parts[-1 if position is None else _place(position, len(parts), len(parts))]
    return Tuple(parts)


@register("SequenceAt")
def _at(node: Node, sequence: Expr, position: Expr) -> Expr:
    parts = _parts(sequence)
    return parts[_place(position, len(parts), len(parts))]


@register("SequenceLength")
def _length(node: Node, sequence: Expr) -> Constant:
    return Constant(np.asarray(len(_parts(sequence)), np.int64))


@register("SplitToSequence")
def _split(node: Node, x: Expr, split: Expr | None = None) -> Tuple:
    """Parts of an axis, of given sizes or all of one; without any single entries, which lose that axis if wanted."""
    axis = node.get("axis", 0) % len(extents(x))
    whole, given = extents(x)[axis], np.asarray(1) if split is None else constant(split, "split")
    sizes = given.reshape(-1).tolist()
    if given.ndim == 0:
        (size,) = sizes
        if whole >= PROBED or not 0 < whole <= size * _MOST:
            raise NetworkError(f"an axis of {whole} in parts of {size}: plevel has at most {_MOST}, of a fixed axis")
        sizes = [min(size, whole - begin) for begin in range(0, whole, size)]
    ends = np.cumsum(sizes).tolist()
    parts = [layer.take_slice(x, axis, end - n, end) for n, end in zip(sizes, ends, strict=True)]
    if split is None and not node.get("keepdims", 1):
        shape = [n for i, n in enumerate(extents(x)) if i != axis]
        parts = [layer.reshape(part, shape) for part in parts]
    return Tuple(parts)


@register("ConcatFromSequence")
def _concatenate(node: Node, sequence: Expr) -> Expr:
    parts, axis = _parts(sequence), node.require("axis")
    if node.get("new_axis", 0):
        shape = list(extents(parts[0]))
        shape.insert(axis % (len(shape) + 1), 1)
        parts, axis = [layer.reshape(part, shape) for part in parts], axis % len(shape)
    return layer.concatenate(parts, axis)


def _parts(sequence: Expr) -> Sequence[Expr]:
    if not isinstance(sequence, Tuple):
        raise NetworkError("its first input is no sequence")
    return sequence.fields


def _place(position: Expr, count: int, extent: int) -> int:
    """A place among so many, of which those below 0 are counted from the end of the sequence."""
    found = int(constant(position, "position").item())
    place = found + extent if found < 0 else found
    if not 0 <= place < count:
        raise NetworkError(f"position {found} in a sequence of {extent}")
    return place
