"""Blocked layouts of a network's images, kept from one operator to the next, with transforms at their borders alone.

The layout of a region costs the times of its kernels, and a border between regions of different layouts a transform;
the choice is a minimum cut.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from strategy.expr import Call, Constant, Expr, Tuple, call, rebuilt
from strategy.layout import LAYOUTS, PLAIN, block_of, laid_out, laid_out_array
from strategy.network.cut import cut
from strategy.network.graph import Network
from strategy.network.group import PRODUCTS, describe, groups
from strategy.network.region import POOLS, Regions, is_pool, layout_of
from strategy.network.rewriter import extents
from strategy.ops.conv2d import Conv2DAttrs
from strategy.target import Target
from strategy.types import TensorType
from strategy.workload import Workload

_MOVED_S = 1e-9  # to transform an element, where that was not measured


def is_blocked(workload: Workload) -> bool:
    """Return whether a workload reads or makes images of a blocked layout."""
    return any(value in LAYOUTS and block_of(value) > 1 for value in workload.attrs.values())


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
    others: defaultdict[Expr, list[tuple[dict[Expr, float], Expr, float]]] = defaultdict(list)
    for times, graph, origin in ((plain, network, {}), (blocked, every.network(), every.origin)):
        for group in groups(graph):
            anchor = origin.get(group.anchor, group.anchor)
            region = regions.get(anchor)
            if region is None:
                continue
            spent = seconds(describe(group, None)[0])
            if group.anchor.op.name in PRODUCTS or math.isinf(spent):
                times[region] += spent
            else:
                others[anchor].append((times, region, spent))
    for both in others.values():  # they take little, and much the same: measured in one layout alone they say nothing
        if len(both) == 2 and not any(math.isnan(spent) for *_, spent in both):
            for times, region, spent in both:
                times[region] += spent
    unknown = {r for r in plain if not math.isfinite(plain[r] + blocked[r])}
    borders: dict[tuple[Expr, Expr], float] = {}
    for region in unknown:
        plain[region], blocked[region] = 0.0, math.inf
    for read, reader in regions.borders():
        source, layout = regions.get(read), layout_of(read, target)
        assert layout is not None
        # Between two regions it may go either way.
        src, dst = (layout, PLAIN) if source is not None and reader is None else (PLAIN, layout)
        given = TensorType(laid_out(read.tensor_type.shape, src), read.tensor_type.dtype)
        workload = Workload.make("layout_transform", {"data": str(given)}, {"src_layout": src, "dst_layout": dst})
        moved = seconds(workload)
        moved = moved if math.isfinite(moved) else read.tensor_type.size * _MOVED_S
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

    In blocked layouts depthwise convolutions were measured to take 0.5 to 0.8 of their time (AMD Zen 4), those by
    winograd's algorithm 0.84 to 0.97 of it (Zen 5), others as long.
    """
    attrs = workload.attr_node
    if not isinstance(attrs, Conv2DAttrs):
        return math.nan
    share = 1.0
    if block_of(attrs.result_layout) > 1:
        square = workload.input_types[1].concrete_shape[2:] == (3, 3) and attrs.strides == attrs.dilation == (1, 1)
        share = 0.7 if attrs.groups > 1 else 0.9 if square else 1.0
    return 1e-11 * (workload.flops or 0) * share


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
            if layout == PLAIN and node in self._network.names:
                self._names[self._moved[key]] = self._network.names[node]
        return self._moved[key]

    def _rebuilt(self, node: Expr) -> tuple[Expr, str]:
        region = self.regions.get(node)
        layout = layout_of(node, self._target)
        if not isinstance(node, Call) or region is None or layout is None or not self._wanted(region):
            return rebuilt(node, [self.plain(i) for i in node.inputs]), PLAIN
        return self._blocked(node, layout), layout

    def _blocked(self, node: Call, layout: str) -> Expr:
        given = node.attrs.to_json()
        if node.op.name == "conv2d":
            data, weight = node.args
            own = layout_of(data, self._target) or PLAIN
            layouts = {"data_layout": own, "out_layout": layout}
            return call("conv2d", self._in(data, own), weight, **given, **layouts)
        if node.op.name in POOLS:
            return call(node.op.name, self._in(node.args[0], layout), **given, layout=layout)
        if is_pool(node):
            return call(node.op.name, self._in(node.args[0], layout), axis=(2, 3), keepdims=True)
        if node.op.name == "concatenate":
            (parts,) = node.args
            assert isinstance(parts, Tuple)
            return call("concatenate", Tuple([self._in(f, layout) for f in parts.fields]), axis=1)
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
