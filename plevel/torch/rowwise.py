"""Softmax and norms along the last axis in a frozen graph, where PyTorch has decomposed them."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

from torch.fx import Node

from plevel.torch.node import aten, extents, is_call, is_plain
from strategy.expr import Call, Expr, call


def read_softmax(reader: Any, last: Node) -> tuple[Call, ...] | None:
    """exp(x - max x) / sum exp(x - max x)."""
    powers, total = last.args
    if not (_is_reduced(total, aten.sum.dim_IntList, powers) and is_call(powers, aten.exp.default)):
        return None
    shifted = powers.args[0]
    if not is_call(shifted, aten.sub.Tensor) or shifted.kwargs:
        return None
    data, largest = shifted.args
    inner = {powers, total, shifted, largest}
    if not (_is_reduced(largest, aten.amax.default, data) and _is_alone(inner, last, data)):
        return None
    return (call("softmax", reader.read(data)),)


def read_layer_norm(reader: Any, last: Node) -> tuple[Call, ...] | None:
    """(x - mean) · rsqrt(variance + ε) · γ + β."""
    scaled, beta = last.args
    if last.kwargs or not is_call(scaled, aten.mul.Tensor):
        return None
    normed, gamma = scaled.args
    if not (_is_vector(gamma, last) and _is_vector(beta, last) and is_call(normed, aten.mul.Tensor)):
        return None
    centred, root = normed.args
    variance, epsilon, inner = _root(root)
    if variance is None or not is_call(centred, aten.sub.Tensor) or centred.kwargs:
        return None
    data, mean = centred.args
    of = variance.args[0]
    both = (variance, 0), (mean, 1)
    if not all(is_call(n, operator.getitem) and n.args == (of, place) for n, place in both):
        return None
    if not (is_call(of, aten.var_mean.correction) and of.args[0] is data and _is_last((*of.args, None)[1], data)):
        return None
    if of.kwargs.get("correction") != 0 or not of.kwargs.get("keepdim"):
        return None
    if not _is_alone({*inner, scaled, normed, centred, root, variance, mean, of}, last, data):
        return None
    vectors: list[Expr] = [reader.read(gamma), reader.read(beta)]
    return (call("layer_norm", reader.read(data), *vectors, epsilon=epsilon),)


def read_rms_norm(reader: Any, last: Node) -> tuple[Call, ...] | None:
    """X · rsqrt(mean x² + ε) · γ, γ on either side."""
    for normed, gamma in (last.args, last.args[::-1]):
        if not (_is_vector(gamma, last) and is_call(normed, aten.mul.Tensor)):
            continue
        data, root = normed.args
        mean, epsilon, inner = _root(root)
        squares: Any = mean.args[0] if is_call(mean, aten.mean.dim) else None
        if not (is_call(squares, aten.pow.Tensor_Scalar) and squares.args == (data, 2)):
            continue
        if _is_reduced(mean, aten.mean.dim, squares) and _is_alone(
            {*inner, normed, root, mean, squares}, last, data
        ):
            return (call("rms_norm", reader.read(data), reader.read(gamma), epsilon=epsilon),)
    return None


def _root(node: Any) -> tuple[Any, float, tuple[Node, ...]]:
    """X and ε of rsqrt(x + ε), and the sum; x is None where the node is something else."""
    if not is_call(node, aten.rsqrt.default):
        return None, 0.0, ()
    total = node.args[0]
    if not is_call(total, aten.add.Tensor, aten.add.Scalar) or total.kwargs or not isinstance(total.args[1], float):
        return None, 0.0, ()
    return total.args[0], total.args[1], (total,)


def _is_reduced(node: Any, target: Any, of: Any) -> bool:
    """Return whether the node reduces the last axis of `of`, and keeps it."""
    return (
        is_call(node, target) and not node.kwargs and len(node.args) == 3
        and node.args[0] is of and _is_last(node.args[1], of) and node.args[2] is True
    )  # fmt: skip


def _is_last(axes: Any, data: Node) -> bool:
    if not isinstance(axes, list | tuple):
        return False  # None is all axes
    return is_plain(data) and list(axes) in ([-1], [len(extents(data)) - 1])


def _is_vector(node: Any, like: Node) -> bool:
    return is_plain(node) and extents(node) == extents(like)[-1:]


def _is_alone(inner: Collection[Any], last: Node, data: Any) -> bool:
    """Return whether nothing else reads what is between the data and the last node, of the same extents."""
    return (
        is_plain(data) and extents(data) == extents(last)
        and all(user in inner or user is last for node in inner for user in node.users)
    )  # fmt: skip
