"""Blocked layouts of a network's images, kept from one operator to the next, with transforms at their borders alone.

A region is what must share a layout: a convolution's result, and what elementwise operators, pooling, depthwise
convolutions and concatenations of channels make of it. Its layout costs the times of its kernels, and a border between
regions of different layouts a transform; the choice is a minimum cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from strategy.expr import Call, Constant, Expr, Tuple, TupleGetItem, call, post_order
from strategy.layout import LAYOUTS, PLAIN, block_of, laid_out, laid_out_array
from strategy.network.cut import cut
from strategy.network.graph import Network
from strategy.network.group import PRODUCTS, describe, groups
from strategy.network.normal import extents
from strategy.op import TOpPattern
from strategy.ops.conv2d import Conv2DAttrs
from strategy.schedule import lanes_of
from strategy.target import Target
from strategy.workload import Workload

_MOVED_S = 1e-9  # to transform an element, where that was not measured
_POOLS = frozenset({"max_pool2d", "avg_pool2d", "global_avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d"})
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


def is_blocked(workload: Workload) -> bool:
    """Return whether a workload reads or makes images of a blocked layout."""
    return any(value in LAYOUTS and block_of(value) > 1 for value in workload.attrs.values())


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
            reader = self.get(node)
            for read in node.inputs:
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
        if node.op.name in _POOLS or _is_pool(node):
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


def _is_pool(node: Call) -> bool:
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


def block(network: Network, target: Target, wanted: Callable[[Expr], bool] = lambda region: True) -> Network:
    """The same network with the `wanted` regions in blocked layouts."""
    return _Blocked(network, target, wanted).network()


def choose_blocks(network: Network, target: Target, seconds: Callable[[Workload], float]) -> Network:
    """The same network with those regions blocked that are faster so, borders included.

    Args:
        seconds: the measured time of a workload; NaN where there is none, infinite where it has no kernel, and then a
            region stays as it is. Without any times of convolutions, those that are to be expected decide.
    """
    measured_s = seconds
    convolutions = [describe(g, None)[0] for g in groups(network) if g.anchor.op.name == "conv2d"]
    if all(map(math.isnan, map(measured_s, convolutions))):

        def seconds(workload: Workload) -> float:
            return math.inf if math.isinf(measured_s(workload)) else _expected_s(workload)
    every = _Blocked(network, target, lambda region: True)
    regions = every.regions
    plain, blocked = ({regions.find(n): 0.0 for n in regions.members} for _ in range(2))
    for times, graph, origin in ((plain, network, {}), (blocked, every.network(), every.origin)):
        for group in groups(graph):
            region = regions.get(origin.get(group.anchor, group.anchor))
            if region is not None:
                spent = seconds(describe(group, None)[0])
                # What is no product takes little, and much the same in both.
                times[region] += 0.0 if math.isnan(spent) and group.anchor.op.name not in PRODUCTS else spent
    unknown = {r for r in plain if not math.isfinite(plain[r] + blocked[r])}
    borders: dict[tuple[Expr, Expr], float] = {}
    for region in unknown:
        plain[region], blocked[region] = 0.0, math.inf
    for read, reader in regions.borders():
        workload = Workload.make(
            "layout_transform", {"data": str(read.tensor_type)},
            {"src_layout": PLAIN, "dst_layout": layout_of(read, target)},
        )  # fmt: skip
        moved = seconds(workload)
        moved = moved if math.isfinite(moved) else read.tensor_type.size * _MOVED_S
        source = regions.get(read)
        if source is None and reader is not None:
            blocked[reader] += moved
        elif source is not None and reader is None:
            blocked[source] += moved
        elif source is not None and reader is not None:
            borders[source, reader] = borders.get((source, reader), 0.0) + moved
    wanted = cut(plain, blocked, borders)
    return block(network, target, wanted.__contains__) if wanted else network


def _expected_s(workload: Workload) -> float:
    """Seconds of a convolution that was not measured, at 100 GFLOP/s; NaN for other operators.

    Depthwise convolutions and winograd's algorithm were measured to take 0.5 to 0.8 of their time in blocked layouts,
    others as long (AMD Zen 4).
    """
    attrs = workload.attr_node
    if not isinstance(attrs, Conv2DAttrs):
        return math.nan
    square = workload.input_types[1].concrete_shape[2:] == (3, 3)
    pays = attrs.groups > 1 or (square and attrs.strides == attrs.dilation == (1, 1))
    return 1e-11 * (workload.flops or 0) * (0.7 if pays and block_of(attrs.result_layout) > 1 else 1.0)


class _Blocked:
    """A network with the wanted regions blocked; `origin` has the node that each of its calls computes."""

    def __init__(self, network: Network, target: Target, wanted: Callable[[Expr], bool]) -> None:
        self.regions = Regions(network, target)
        self.origin: dict[Expr, Expr] = {}
        self._network, self._target, self._wanted = network, target, wanted
        self._made: dict[Expr, tuple[Expr, str]] = {}
        self._moved: dict[tuple[Expr, str], Expr] = {}
        self._names: dict[Expr, str] = {}
        for node in self.regions.nodes[:-1]:
            found, layout = self._rebuilt(node)
            self._made[node] = found, layout
            self.origin[found] = node
            if node in network.names and layout == PLAIN:
                self._names[found] = network.names[node]

    def network(self) -> Network:
        outputs = {name: self.plain(node) for name, node in self._network.outputs.items()}
        return replace(self._network, outputs=outputs, names=self._names)

    def plain(self, node: Expr) -> Expr:
        return self._in(node, PLAIN)

    def _in(self, node: Expr, layout: str) -> Expr:
        found, given = self._made[node]
        if given == layout:
            return found
        key = node, layout
        if key not in self._moved:
            self._moved[key] = _transformed(found, given, layout, extents(node))
        return self._moved[key]

    def _rebuilt(self, node: Expr) -> tuple[Expr, str]:
        if isinstance(node, Tuple):
            return Tuple([self.plain(f) for f in node.fields]), PLAIN
        if isinstance(node, TupleGetItem):
            return TupleGetItem(self.plain(node.tuple_value), node.index), PLAIN
        if not isinstance(node, Call):
            return node, PLAIN
        region = self.regions.get(node)
        layout = layout_of(node, self._target)
        if region is None or layout is None or not self._wanted(region):
            return Call(node.op, [self.plain(a) for a in node.args], node.attrs), PLAIN
        return self._blocked(node, layout), layout

    def _blocked(self, node: Call, layout: str) -> Expr:
        given = node.attrs.to_json()
        if node.op.name == "conv2d":
            data, weight = node.args
            own = layout_of(data, self._target) or PLAIN
            layouts = {"data_layout": own, "out_layout": layout}
            return call("conv2d", self._in(data, own), weight, **given, **layouts)
        if node.op.name in _POOLS:
            return call(node.op.name, self._in(node.args[0], layout), **given, layout=layout)
        if _is_pool(node):
            return call(node.op.name, self._in(node.args[0], layout), axis=(2, 3), keepdims=True)
        if node.op.name == "concatenate":
            (parts,) = node.args
            assert isinstance(parts, Tuple)
            return Call(node.op, [Tuple([self._in(f, layout) for f in parts.fields])], node.attrs)
        args = [self._operand(a, node, layout) for a in node.args]
        return call("add", *args) if node.op.name == "bias_add" else Call(node.op, args, node.attrs)

    def _operand(self, arg: Expr, node: Call, layout: str) -> Expr:
        shape = extents(arg)
        if shape == extents(node):
            return self._in(arg, layout)
        if shape == ():
            return self.plain(arg)
        if not isinstance(arg, Constant):
            return self._in(arg, layout)
        whole = (1, *shape, 1, 1) if len(shape) == 1 else (1,) * (4 - len(shape)) + shape
        image = arg.value.reshape(whole)
        return Constant(np.ascontiguousarray(laid_out_array(image, layout)))


def _transformed(node: Expr, given: str, wanted: str, shape: tuple[int, ...]) -> Expr:
    """An image [n, c, h, w], as `shape` has it, in another layout; a view where it is of one pixel."""
    if shape[2:] == (1, 1):
        return call("reshape", node, newshape=tuple(laid_out(shape, wanted)))
    if isinstance(node, Constant):
        assert given == PLAIN
        return Constant(np.ascontiguousarray(laid_out_array(node.value, wanted)))
    return call("layout_transform", node, src_layout=given, dst_layout=wanted)
