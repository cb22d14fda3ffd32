"""Control flow of ONNX, unrolled: the branches of If, and the steps of Loop and Scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plevel.onnx.node import Node
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.extent import Extent
from strategy.network.graph import NetworkError
from strategy.network.rewriter import extents
from strategy.network.size import PROBED

Read = Callable[[Any], Callable[[Sequence[Expr]], list[Expr]]]
"""Of a graph within the node, the function that gives its outputs for its inputs."""
_ENDLESS = 2**63 - 1


def _if(node: Node, condition: Expr, *, read: Read) -> list[Expr]:
    """Return one branch if the condition is constant, else both, of whose values one each is taken at the call."""
    branches = [node.require(name) for name in ("then_branch", "else_branch")]
    if isinstance(condition, Constant):
        return read(branches[0 if condition.value.any() else 1])(())
    chosen = layer.reshape(condition, ())
    found: list[Expr] = []
    for yes, no in zip(*(read(branch)(()) for branch in branches), strict=True):
        if yes.tensor_type != no.tensor_type:
            raise NetworkError(
                f"its condition depends on data, and its branches give {yes.tensor_type} and {no.tensor_type}: "
                "export the model with one of them"
            )
        found.append(call("where", chosen, yes, no))
    return found


def _loop(node: Node, count: Expr | None, going: Expr | None, *state: Expr, read: Read) -> list[Expr]:
    """The values after the last step, then those of each step."""
    body, most = node.require("body"), None if count is None else _known(node, count)
    take = read(body)
    made: list[list[Expr]] = []
    while (most is None or len(made) < most) and (going is None or _known(node, going)):
        step = Constant(np.asarray(len(made), np.int64))
        going, *found = take([step, Constant(np.asarray(True)), *state])
        state = tuple(found[: len(state)])
        made.append(found[len(state) :])
    if not made and len(body.output) > 1 + len(state):
        raise NetworkError("it has no steps, and its outputs of each step no elements: export the model without it")
    return [*state, *(_stacked(each, 0) for each in zip(*made, strict=True))]


def _scan(node: Node, *given: Expr, read: Read) -> list[Expr]:
    """The values after the last step, then those of each step along an axis."""
    if node.version < 9:
        raise NetworkError("Scan of version 8: export the model with an operator set of 9 or later")
    body, inputs = node.require("body"), node.require("num_scan_inputs")
    state, data = given[: len(given) - inputs], given[len(given) - inputs :]
    outputs = len(body.output) - len(state)
    axes, out_axes = node.get("scan_input_axes", [0] * inputs), node.get("scan_output_axes", [0] * outputs)
    turned, out_turned = (
        node.get(f"scan_{name}_directions", [0] * n) for name, n in (("input", inputs), ("output", outputs))
    )
    steps = extents(data[0])[axes[0]]
    if steps >= PROBED:
        raise NetworkError("the number of its steps is symbolic: give it with --dim")
    take = read(body)
    made: list[list[Expr]] = []
    for i in range(steps):
        parts = [_entry(x, a, steps - 1 - i if t else i) for x, a, t in zip(data, axes, turned, strict=True)]
        found = take([*state, *parts])
        state = tuple(found[: len(state)])
        made.append(found[len(state) :])
    each = (values[::-1] if t else values for values, t in zip(zip(*made, strict=True), out_turned, strict=True))
    return [*state, *(_stacked(values, a) for values, a in zip(each, out_axes, strict=True))]


CONTROL: dict[str, Callable[..., list[Expr]]] = {"If": _if, "Loop": _loop, "Scan": _scan}


def _known(node: Node, value: Expr) -> int:
    """A number of steps, or whether there is another one."""
    if not isinstance(value, Constant):
        raise NetworkError("the number of its steps depends on data: plevel unrolls loops of a fixed number of steps")
    found = int(value.value.reshape(()))
    # PyTorch exports a loop that only its condition ends with the largest number.
    if node.sizes is not None and found < _ENDLESS and isinstance(node.sizes.encode(abs(found)), Extent):
        raise NetworkError("the number of its steps is symbolic: give sizes with --dim")
    return found


def _entry(x: Expr, axis: int, place: int) -> Expr:
    axis %= len(extents(x))
    shape = [n for i, n in enumerate(extents(x)) if i != axis]
    return layer.reshape(layer.take_slice(x, axis, place, place + 1), shape)


def _stacked(values: Sequence[Expr], axis: int) -> Expr:
    """Values side by side along a new axis."""
    shape = list(extents(values[0]))
    shape.insert(axis % (len(shape) + 1), 1)
    return layer.concatenate([layer.reshape(v, shape) for v in values], axis % len(shape))
