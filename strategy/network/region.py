"""Regions of a network: its images that share a layout, and the borders between them.

A region is what must share a layout: a convolution's result, and what elementwise operators, pooling, depthwise
convolutions and concatenations of channels make of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from strategy.expr import Call, Constant, Expr, Tuple, post_order
from strategy.network.graph import Network
from strategy.network.rewriter import extents
from strategy.op import TOpPattern
from strategy.schedule import lanes_of
from strategy.target import Target

POOLS = frozenset({"max_pool2d", "avg_pool2d", "global_avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d"})
_REDUCTIONS = frozenset({"mean", "sum", "max", "min"})
_ELEMENTWISE = (TOpPattern.kElemWise, TOpPattern.kBroadcast)


def layout_of(node: Expr, target: Target) -> str | None:
    """The blocked layout that an image can have on a target, by its channels; None where there is none."""
    kind = node.checked_type
    shape = getattr(kind, "shape", ())
    if len(shape) != 4 or getattr(kind, "dtype", "") != "float32":
        return None
    lanes = lanes_of(target, "float32")
    return next((f"NCHW{b}c" for b in (16, 8) if b <= lanes and extents(node)[1] % b == 0), None)


class Regions:
    """The regions of a normal network, by their convolutions and what passes layouts on."""

    def __init__(self, network: Network, target: Target) -> None:
        self._target = target
        self._parent: dict[Expr, Expr] = {}
        self.nodes = post_order(network.root)
        for node in self.nodes:
            if not isinstance(node, Call) or layout_of(node, target) is None:
                continue
            images = self.passed(node)
            if images is None:
                continue
            self._parent[node] = node
            for image in images:
                if image in self._parent:
                    self._parent[self.find(image)] = self.find(node)

    def find(self, node: Expr) -> Expr:
        """The node that stands for the region of another."""
        while self._parent[node] is not node:
            node = self._parent[node]
        return node

    def get(self, node: Expr) -> Expr | None:
        """As `find`; None for a node that is always of NCHW."""
        return self.find(node) if node in self._parent else None

    @property
    def members(self) -> Collection[Expr]:
        return self._parent.keys()

    def borders(self) -> Iterator[tuple[Expr, Expr | None]]:
        """Images with a region or operator that reads them, once each, where one of both has no region, or another.

        The reader is None where it is always of NCHW.
        """
        met = set()
        for node in self.nodes:
            if isinstance(node, Tuple) and node is not self.nodes[-1]:
                continue  # what reads it reads its entries
            reader = self.get(node)
            for read in chain.from_iterable(i.inputs if isinstance(i, Tuple) else (i,) for i in node.inputs):
                source = self.get(read)
                image = not isinstance(read, Constant) and layout_of(read, self._target) is not None
                border = read, reader
                turned = image and extents(read)[2:] != (1, 1)  # else a view does
                if turned and source is not reader and border not in met:
                    met.add(border)
                    yield border

    def passed(self, node: Call) -> Sequence[Expr] | None:
        """The operands whose layout a call passes on, none for a convolution; None where it takes NCHW only."""
        if node.op.name == "conv2d":
            return _convolved(node)
        if node.op.name in POOLS or is_pool(node):
            return node.args
        layout = layout_of(node, self._target)
        if node.op.name == "concatenate":
            (parts,) = node.args
            images = parts.fields if isinstance(parts, Tuple) else ()
            joins = images and node.attrs.to_json().get("axis", 0) % 4 == 1
            return images if joins and all(layout_of(i, self._target) == layout for i in images) else None
        if node.op.get_attr("TOpPattern") not in _ELEMENTWISE or not all(_fits(a, node) for a in node.args):
            return None
        if node.attrs.fields() and len(node.args) > 1 and not _is_bias(node):
            return None
        return [a for a in node.args if extents(a) == extents(node)] or None


def _convolved(node: Call) -> Sequence[Expr] | None:
    attrs = node.attrs.to_json()
    data, weight = node.args
    named = {"data_layout", "out_layout", "out_dtype"} & attrs.keys()
    if named or not isinstance(weight, Constant):
        return None
    groups = attrs.get("groups", 1)
    if groups == 1:
        return ()
    return [data] if groups == extents(data)[1] == extents(node)[1] else None


def is_pool(node: Call) -> bool:
    """Return whether a reduction is one of whole images, which stay images."""
    given = node.attrs.to_json()
    axes = given.get("axis")
    whole = isinstance(axes, list | tuple) and {a % 4 for a in axes} == {2, 3} and given.keys() <= {"axis", "keepdims"}
    return node.op.name in _REDUCTIONS and whole and bool(given.get("keepdims"))


def _is_bias(node: Call) -> bool:
    return node.op.name == "bias_add" and isinstance(node.args[1], Constant)


def _fits(arg: Expr, node: Call) -> bool:
    """Return whether an operand can be broadcast in a blocked layout as it is in NCHW."""
    shape = extents(arg)
    if shape in ((), extents(node)) or (_is_bias(node) and arg is node.args[1]):
        return True
    if isinstance(arg, Constant):
        return len(shape) in (3, 4) and shape[-3] == extents(node)[1]
    return len(shape) == 4 and shape[1:] == (extents(node)[1], 1, 1)  # a gate of each channel
