"""Elementwise operators after a product that its kernel can compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from plevel.torch.activation import find_activation
from plevel.torch.anchor import Reader, shape_of
from plevel.torch.node import Extent, aten, dtype, extents, is_alike, only_user, through_reshapes
from strategy.compile.fusion import MOST_CALLS
from strategy.expr import Call, call
from strategy.op import TOpPattern

_BINARY = {aten.add.Tensor: "add", aten.mul.Tensor: "multiply"}
_SCALED: Mapping[Any, tuple[str, Callable[[float], float]]] = {
    aten.add.Tensor: ("add", lambda c: c),
    aten.add.Scalar: ("add", lambda c: c),
    aten.sub.Tensor: ("add", lambda c: -c),
    aten.mul.Tensor: ("multiply", lambda c: c),
    aten.mul.Scalar: ("multiply", lambda c: c),
    aten.div.Tensor: ("multiply", lambda c: 1 / c),
}


def extend(
    reader: Reader, calls: tuple[Call, ...], node: Node, claimed: set[Node]
) -> tuple[tuple[Call, ...], Node]:
    """The calls of a node's product with those of its epilogue, and the last node that they compute.

    Args:
        claimed: nodes that other products compute, to which this one's are added: the sum of two
            products belongs to one of them.
    """
    shape = shape_of(node)
    if calls[0].op.get_attr("TOpPattern") != TOpPattern.kOutEWiseFusable:
        return calls, node
    while len(calls) < MOST_CALLS:
        seen = through_reshapes(node)
        found = find_activation(calls[-1], seen) or _scaled(reader, calls[-1], seen)
        found = found or _binary(reader, calls[-1], seen, shape)
        if found is None or found[1] in claimed:
            break
        calls, node = (*calls, found[0]), found[1]
        claimed.add(node)
    return calls, node


def _scaled(reader: Reader, value: Call, node: Node) -> tuple[Call, Node] | None:
    """A sum or product with a number."""
    user = only_user(node, *_SCALED)
    if user is None or user.kwargs or user.args[0] is not node or user.args[1] in (0, node):
        return None
    number = user.args[1]
    if not isinstance(number, int | float) or not is_alike(user, node):
        return None
    name, turned = _SCALED[user.target]
    wanted = turned(float(number))
    if dtype(node) != torch.float32 and torch.tensor(wanted, dtype=dtype(node)).item() != wanted:
        return None  # PyTorch does not round the number to 16 bits
    return call(name, value, reader.number(wanted, node)), user


def _binary(
    reader: Reader, value: Call, node: Node, shape: tuple[Extent, ...]
) -> tuple[Call, Node] | None:
    """A sum or product with a tensor of the same extents, which may be seen through a reshape."""
    user = only_user(node, *_BINARY)
    if user is None or user.kwargs or extents(user) != extents(node):
        return None
    other = user.args[1] if user.args[0] is node else user.args[0]
    if other is node or not (is_alike(other, node) and is_alike(user, node)) or extents(other) != extents(node):
        return None
    return call(_BINARY[user.target], value, reader.read_as(other, shape)), user
