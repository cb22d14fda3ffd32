"""The rule that finds the operator of rotary embeddings in what a model writes for it."""

from __future__ import annotations

import numpy as np

from strategy.expr import Call, Constant, Expr, Tuple
from strategy.network.rewriter import Rewriter, behind, extents
from strategy.op import TOpPattern


def recognize_rotary_embedding(rewriter: Rewriter, node: Call) -> Expr | None:
    """Use rotary_embedding for x · cos + x' · sin, where x' has (-b, a) for each pair (a, b) of x.

    Both of a pair have one angle, which is the same in all batches and heads.
    """
    if node.op.name != "add" or len(extents(node)) != 4 or "int" in node.tensor_type.dtype:
        return None
    for plain, turned in (node.args, node.args[::-1]):
        if not (_is_product(plain) and _is_product(turned)):
            return None
        for other, sin in (turned.inputs, turned.inputs[::-1]):
            x, interleaved = _turned(other)
            if x is None or extents(x) != extents(node):
                continue
            given = [*[c for own, c in (plain.inputs, plain.inputs[::-1]) if own is x][:1], sin]
            angles = [_angles(rewriter, a, extents(x), interleaved=interleaved) for a in given]
            found = [a for a in angles if a is not None]
            if len(found) == 2:
                return rewriter.make("rotary_embedding", x, *found, interleaved=interleaved)
    return None


def _is_product(node: Expr) -> bool:
    return isinstance(node, Call) and node.op.name == "multiply"


def _turned(node: Expr) -> tuple[Expr | None, bool]:
    """The tensor whose pairs (a, b) a node has as (-b, a), and whether those are neighbours; None of another node."""
    pairs = behind(node)
    parts = _joined(node if pairs is None else pairs)
    if parts is None or (pairs is not None and extents(pairs)[-2:] != (extents(node)[-1] // 2, 2)):
        return None, False
    negative, second = parts if pairs is None else (behind(part) or part for part in parts)
    if not isinstance(negative, Call) or negative.op.name != "negative":
        return None, False
    first, interleaved = negative.args[0], pairs is not None
    if not (isinstance(first, Call) and isinstance(second, Call) and first.inputs[0] is second.inputs[0]):
        return None, False
    x = first.inputs[0]
    half = extents(node)[-1] // 2
    wanted = ((1, 2, half), (0, 2, half)) if interleaved else ((half, 1, half), (0, 1, half))
    if (_slice(first), _slice(second)) != wanted or extents(x) != extents(node):
        return None, False
    return x, interleaved


def _joined(node: Expr) -> tuple[Expr, Expr] | None:
    """The two tensors that a node joins along its last axis."""
    if not isinstance(node, Call) or node.op.name != "concatenate" or not isinstance(node.args[0], Tuple):
        return None
    fields = node.args[0].fields
    if len(fields) != 2 or node.attrs.to_json().get("axis", 0) % len(extents(node)) != len(extents(node)) - 1:
        return None
    return fields[0], fields[1]


def _slice(node: Call) -> tuple[int, int, int] | None:
    """The begin, the step and the count of a slice of the last axis alone."""
    if node.op.name != "strided_slice":
        return None
    shape = extents(node.args[0])
    parts = node.attrs.parts(shape)
    if list(parts) != [len(shape) - 1]:
        return None
    begin, step, count = parts[len(shape) - 1]
    return begin, step, int(count)


def _angles(rewriter: Rewriter, node: Expr, shape: tuple[int, ...], *, interleaved: bool) -> Expr | None:
    """The cosines or sines [rows, width / 2] of pairs, for one of each element that is the same for both of a pair."""
    own, (rows, width) = extents(node), shape[2:]
    if own[-2:] != (rows, width) or any(n != 1 for n in own[:-2]):
        return None
    found = _half(rewriter, node, interleaved=interleaved)
    return found and rewriter.reshaped(found, (rows, width // 2))


def _half(rewriter: Rewriter, node: Expr, *, interleaved: bool) -> Expr | None:
    """The entries of the first of each pair along the last axis, where the second has the same."""
    if isinstance(node, Constant):
        first, second = (node.value[..., i::2] for i in (0, 1)) if interleaved else np.split(node.value, 2, -1)
        return Constant(np.ascontiguousarray(first)) if np.array_equal(first, second) else None
    if not isinstance(node, Call):
        return None
    if not interleaved and (parts := _joined(node)):
        return parts[0] if parts[0] is parts[1] else None
    numbers = [a for a in node.args if isinstance(a, Constant) and a.value.size == 1]
    others = [a for a in node.args if a not in numbers]
    is_scaled = node.op.name == "multiply" and len(others) == 1
    is_view = node.op.name == "reshape" and extents(node)[-1] == extents(node.args[0])[-1]
    if not (is_scaled or is_view or (node.op.get_attr("TOpPattern") == TOpPattern.kElemWise and len(node.args) == 1)):
        return None
    found = _half(rewriter, others[0], interleaved=interleaved) if others else None
    if found is None or is_view:
        return found and rewriter.reshaped(found, (*extents(node)[:-1], extents(found)[-1]))
    return rewriter.call(node.op, [found if a is others[0] else a for a in node.args], node.attrs)
