"""Control flow of PyTorch, unrolled: the branches of torch.cond, and the steps of scan and while_loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from plevel.torch.symbol import SYMBOLIC, constant_of
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.rewriter import extents
from strategy.network.size import PROBED

Run = Callable[[Any, Sequence[Any]], tuple[Any, ...]]
"""The function that gives the values of a graph within the program for its inputs."""
Control = Callable[..., Sequence[Any]]
MOST_UNROLLED = 1 << 14  # nodes and steps in all: the compilation takes as long as their number


def control_of(node: Any) -> Control | None:
    """The function that computes a node of control flow, from `Run` and the node's arguments."""
    return _CONTROL.get(node.target.name()) if isinstance(node.target, torch._ops.HigherOrderOperator) else None


def _cond(node: Any, run: Run, condition: Any, yes: Any, no: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The values of one branch if the condition is constant, else of both, of which one each is taken at the call."""
    if isinstance(node.args[0], torch.fx.Node) and isinstance(node.args[0].meta["val"], SYMBOLIC):
        raise NetworkError("its condition depends on a symbolic size: export the model with that size fixed")
    if not isinstance(condition, Expr):
        return run(yes if condition else no, operands)
    chosen = layer.reshape(condition, ())
    found: list[Expr | None] = []
    for x, y in zip(run(yes, operands), run(no, operands), strict=True):
        if isinstance(x, Expr) and isinstance(y, Expr) and x.tensor_type == y.tensor_type:
            found.append(call("where", chosen, x, y))
        elif x is y is None:
            found.append(None)
        else:
            raise NetworkError("its branches give values of different types: export the model with one of them")
    return tuple(found)


def _scan(
    node: Any, run: Run, step: Any, state: Sequence[Any], given: Sequence[Any], more: Sequence[Any]
) -> Sequence[Any]:
    """The state after the last step, then the values of each step."""
    count, steps = len(state), extents(given[0])[0]
    if steps >= PROBED:
        raise NetworkError("the number of its steps is symbolic: export the model with that size fixed")
    made = []
    for i in range(steps):
        parts = [layer.reshape(layer.take_slice(x, 0, i, i + 1), extents(x)[1:]) for x in given]
        found = run(step, [*state, *parts, *more])
        state = found[:count]
        made.append([layer.reshape(x, (1, *extents(x))) for x in found[count:]])
    return *state, *(layer.concatenate(each, 0) for each in zip(*made, strict=True))


def _while_loop(
    node: Any, run: Run, condition: Any, step: Any, state: Sequence[Any], more: Sequence[Any]
) -> Sequence[Any]:
    while True:
        (going,) = run(condition, [*state, *more])
        known = constant_of(going) if isinstance(going, Expr) else going
        if known is None:
            raise NetworkError(
                "whether there is another step depends on data: plevel unrolls loops of a fixed number of steps"
            )
        if not np.any(known):
            return state
        state = [_folded(value) for value in run(step, [*state, *more])]


def _folded(value: Any) -> Any:
    known = constant_of(value) if isinstance(value, Expr) else None
    return value if known is None else Constant(known.astype(value.tensor_type.dtype))


_CONTROL: dict[str, Control] = {"cond": _cond, "scan": _scan, "while_loop": _while_loop}
