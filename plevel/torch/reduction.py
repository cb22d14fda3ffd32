"""Reductions of a frozen graph whose input is in memory whatever computes them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch.fx import Node

from plevel.torch.node import aten, is_plain, is_static, through_views
from strategy.expr import Call, call

_PLACES = {aten.argmax.default: "argmax", aten.argmin.default: "argmin"}
_OPERATORS = _PLACES | {
    aten.sum.default: "sum", aten.sum.dim_IntList: "sum", aten.mean.default: "mean", aten.mean.dim: "mean",
    aten.max.default: "max", aten.amax.default: "max", aten.min.default: "min", aten.amin.default: "min",
    aten.var.correction: "variance",
}
REDUCTIONS = frozenset(_OPERATORS.values())


def read_reduction(reader: Any, node: Node, stored: Collection[Node]) -> tuple[Call, ...] | None:
    """The reduction that a node computes, of an input of the graph or one of the nodes that are `stored`.

    Inductor computes others in the loop that computes their input. So it does with what reads both the result and the
    input, such as their difference.
    """
    name = _OPERATORS.get(node.target) if node.op == "call_function" else None
    data: Any = node.args[0] if node.args else None
    if name is None or not (is_plain(data) and is_static(data) and data.meta["val"].ndim):
        return None
    of = through_views(data)
    if of.op != "placeholder" and of not in stored:
        return None
    if any(not {data, of}.isdisjoint(user.all_input_nodes) for user in node.users):
        return None
    given = dict(zip(("dim", "keepdim"), node.args[1:], strict=False)) | node.kwargs
    axes, keepdims = given.pop("dim", None), given.pop("keepdim", False)
    attrs: dict[str, Any] = {"dtype": "int64"} if node.target in _PLACES else {}
    if name == "variance":
        correction = given.pop("correction", None)
        if correction not in (None, 0, 1):
            return None
        attrs["unbiased"] = correction != 0
    if any(value is not None for value in given.values()):  # a dtype
        return None
    if name not in ("argmax", "argmin") and axes in (None, []):
        axes = list(range(data.meta["val"].ndim))
    axis = tuple(axes) if isinstance(axes, list | tuple) else None if axes is None else (axes,)
    return (call(name, reader.read(data), axis=axis, keepdims=keepdims, **attrs),)
