"""Elementwise operators after a product that its kernel can compute."""

from __future__ import annotations

import math
from typing import Any

from torch.fx import Node

from plevel.torch.anchor import Anchor, Reader
from plevel.torch.node import aten, extents, is_call, is_plain, only_user, through_reshapes
from strategy.expr import Call, call

_UNARY = {aten.relu.default: "relu", aten.sigmoid.default: "sigmoid", aten.tanh.default: "tanh"}
_BINARY = {aten.add.Tensor: "add", aten.mul.Tensor: "multiply"}


def extend(reader: Reader, anchor: Anchor, claimed: set[Node]) -> tuple[tuple[Call, ...], Node]:
    """The product's calls with those of its epilogue, and the last node that they compute.

    Args:
        claimed: nodes that other products compute, to which this one's are added: the sum of two
            products belongs to one of them.
    """
    calls, node = anchor.calls, anchor.node
    while True:
        seen = through_reshapes(node)
        found = _gelu(calls[-1], seen) or _clip(calls[-1], seen) or _simple(calls[-1], seen)
        found = found or _binary(reader, calls[-1], seen)
        if found is None or found[1] in claimed:
            return calls, node
        calls, node = (*calls, found[0]), found[1]
        claimed.add(node)


def _simple(value: Call, node: Node) -> tuple[Call, Node] | None:
    user = only_user(node, *_UNARY)
    return (call(_UNARY[user.target], value), user) if user is not None else None


def _clip(value: Call, node: Node) -> tuple[Call, Node] | None:
    low = only_user(node, aten.clamp_min.default)
    high = None if low is None else only_user(low, aten.clamp_max.default)
    if low is None or high is None:
        return None
    return call("clip", value, a_min=float(low.args[1]), a_max=float(high.args[1])), high


def _binary(reader: Reader, value: Call, node: Node) -> tuple[Call, Node] | None:
    """A sum or product with a tensor of the same extents, which may be seen through a reshape."""
    user = only_user(node, *_BINARY)
    if user is None or user.kwargs or extents(user) != extents(node):
        return None
    other = user.args[1] if user.args[0] is node else user.args[0]
    if other is node or not is_plain(other) or extents(other) != extents(node):
        return None
    shape = tuple(int(d) for d in value.tensor_type.shape)
    return call(_BINARY[user.target], value, reader.read_as(other, shape)), user


def _gelu(value: Call, node: Node) -> tuple[Call, Node] | None:
    """x/2 · (1 + erf(x/√2)), as PyTorch decomposes it."""
    users = list(node.users)
    if len(users) != 2 or not all(is_call(u, aten.mul.Tensor) for u in users):
        return None
    for half, root in (users, users[::-1]):
        if not (_is_number(half.args[1], 0.5) and _is_number(root.args[1], math.sqrt(0.5))):
            continue
        erf = only_user(root, aten.erf.default)
        one = None if erf is None else only_user(erf, aten.add.Tensor)
        last = None if one is None else only_user(one, aten.mul.Tensor)
        if one is None or last is None or not _is_number(one.args[1], 1):
            continue
        if half in last.args and list(half.users) == [last]:
            return call("gelu", value), last
    return None


def _is_number(found: Any, wanted: float) -> bool:
    return isinstance(found, int | float) and math.isclose(found, wanted, rel_tol=1e-6)
