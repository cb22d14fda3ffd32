"""Depthwise convolutions joined with the pointwise ones behind them, where one kernel for both is faster."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from strategy.compile.fusion import Group
from strategy.expr import Call, Constant, Expr, call, post_order, rebuilt
from strategy.layout import block_of
from strategy.network.graph import Network
from strategy.network.group import describe, groups
from strategy.network.rewriter import extents
from strategy.ops.conv2d import Conv2DAttrs
from strategy.workload import Workload

JOINED = "depthwise_separable_conv2d"


@dataclass(frozen=True)
class Pair:
    """A pointwise convolution in blocks, and the group of the depthwise one whose image it alone reads."""

    pointwise: Call
    depthwise: Group
    bias: Constant
    activation: str

    def joined(self, data: Expr) -> Call:
        """The call of one operator for both."""
        window, product = self.depthwise.anchor.attrs, self.pointwise.attrs
        assert isinstance(window, Conv2DAttrs)
        assert isinstance(product, Conv2DAttrs)
        weights = self.depthwise.anchor.args[1], self.pointwise.args[1]
        return call(
            JOINED, data, weights[0], self.bias, weights[1], strides=window.strides, padding=window.padding,
            dilation=window.dilation, activation=self.activation, data_layout=window.data_layout,
            out_layout=product.result_layout,
        )


def join(network: Network, wanted: Callable[[Pair], bool] = lambda pair: True) -> Network:
    """The same network with the `wanted` pairs joined; values between have no names any more."""
    return _joined(network, [p for p in find_pairs(network) if wanted(p)])[0]


def choose_joined(network: Network, seconds: Callable[[Workload], float]) -> Network:
    """The same network with those pairs joined that are faster so.

    Args:
        seconds: the measured time of a workload; NaN where there is none, infinite where it has no kernel. A pair is
            joined, too, where the two apart were not both measured: that is mostly faster (`benchmarks/forms_cpu.py`).
    """
    pairs = find_pairs(network)
    every, made = _joined(network, pairs)
    of = {group.anchor: describe(group, None)[0] for group in groups(every)}
    apart = {group.anchor: describe(group, None)[0] for group in groups(network)}

    def is_faster(pair: Pair) -> bool:
        one = seconds(of[made[pair.pointwise]])
        two = seconds(apart[pair.depthwise.anchor]) + seconds(apart[pair.pointwise])
        return one < two or (math.isnan(two) and not math.isinf(one))

    return _joined(network, [p for p in pairs if is_faster(p)])[0]


def find_pairs(network: Network) -> list[Pair]:
    """The pairs of a network whose images are in blocked layouts already."""
    nodes = post_order(network.root)
    readers = Counter(i for n in nodes for i in n.inputs)
    by_output = {group.output: group for group in groups(network)}
    found = (_pair(n, by_output) for n in nodes if isinstance(n, Call) and readers[n.inputs[0]] == 1)
    return [pair for pair in found if pair is not None]


def _pair(node: Call, by_output: dict[Call, Group]) -> Pair | None:
    depthwise = by_output.get(node.args[0]) if isinstance(node.args[0], Call) else None
    if depthwise is None or not _is_pointwise(node) or not _is_depthwise(depthwise.anchor):
        return None
    steps, bias = depthwise.calls[1:], np.zeros(extents(depthwise.anchor.args[1])[0], np.float32)
    if steps and steps[0].op.name == "add":
        added = next((a for a in steps[0].args if isinstance(a, Constant)), None)
        # One of each channel has the shape [1, c / block, 1, 1, block].
        if added is None or added.value.size != bias.size:
            return None
        bias, steps = added.value.reshape(-1), steps[1:]
    activation = "none" if not steps else _activation(steps[0]) if len(steps) == 1 else None
    return None if activation is None else Pair(node, depthwise, Constant(bias), activation)


def _activation(node: Call) -> str | None:
    """An activation by its name in the operator for both; None for another one."""
    attrs = node.attrs.to_json()
    if node.op.name == "clip":
        return "relu6" if (attrs.get("a_min"), attrs.get("a_max")) == (0, 6) else None
    return node.op.name if node.op.name in ("relu", "hardswish") else None


def _is_pointwise(node: Call) -> bool:
    attrs = node.attrs
    if not isinstance(attrs, Conv2DAttrs) or node.op.name != "conv2d" or not isinstance(node.args[1], Constant):
        return False
    stays = attrs.strides == (1, 1) and not any(attrs.padding) and attrs.kernel_layout == "OIHW"
    blocked = block_of(attrs.data_layout) > 1 and block_of(attrs.result_layout) > 1
    return stays and blocked and attrs.groups == 1 and extents(node.args[1])[2:] == (1, 1)


def _is_depthwise(node: Call) -> bool:
    attrs = node.attrs
    if not isinstance(attrs, Conv2DAttrs) or node.op.name != "conv2d" or not isinstance(node.args[1], Constant):
        return False
    blocked = block_of(attrs.data_layout) > 1 and attrs.data_layout == attrs.result_layout
    channels, own = extents(node.args[1])[:2]
    return blocked and attrs.kernel_layout == "OIHW" and channels == attrs.groups and own == 1


def _joined(network: Network, pairs: list[Pair]) -> tuple[Network, dict[Call, Call]]:
    """The network with the pairs joined, and the call that takes the place of each pointwise convolution."""
    of = {pair.pointwise: pair for pair in pairs}
    made: dict[Expr, Expr] = {}
    calls: dict[Call, Call] = {}

    for node in post_order(network.root):
        if isinstance(node, Call) and node in of:
            made[node] = calls[node] = of[node].joined(made[of[node].depthwise.anchor.args[0]])
        else:
            made[node] = rebuilt(node, [made[i] for i in node.inputs])
    kept = {pair.depthwise.output for pair in pairs}
    names = {made[n]: name for n, name in network.names.items() if n in made and n not in kept}
    return replace(network, outputs={k: made[v] for k, v in network.outputs.items()}, names=names), calls
