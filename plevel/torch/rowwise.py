"""Softmax and norms along the last axis in a frozen graph, where PyTorch has decomposed them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from plevel.torch.node import CONVERT, aten, dtype, extents, is_alike, is_call, is_plain, only_user
from strategy.expr import Call, call


@cache
def _patterns() -> Mapping[Any, tuple[str, Sequence[Any]]]:
    """The operators of plevel by the function that each ends in, with the patterns of Inductor's that compute them.

    What is between the data and the last node has no other readers. `Arg` is an axis that is reduced.
    """
    from torch._inductor.pattern_matcher import Arg, CallFunction, KeywordArg

    x, gamma, beta, epsilon = map(KeywordArg, ("x", "gamma", "beta", "epsilon"))
    add, sub, mul, div = aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor

    def normed(centred: Any, variance: Any) -> Any:
        total = CallFunction((add, aten.add.Scalar), variance, epsilon)
        return CallFunction(mul, centred, CallFunction(aten.rsqrt.default, total))

    shifted = CallFunction(sub, x, CallFunction(aten.amax.default, x, Arg(), True))
    powers = CallFunction(aten.exp.default, shifted, _users=2)
    softmax = CallFunction(div, powers, CallFunction(aten.sum.dim_IntList, powers, Arg(), True))

    moments = CallFunction(aten.var_mean.correction, x, Arg(), correction=0, keepdim=True, _users=2)
    variance, mean = (CallFunction(operator.getitem, moments, place) for place in (0, 1))
    scaled = CallFunction(mul, normed(CallFunction(sub, x, mean), variance), gamma)

    def rms(data: Any, squared: Any) -> Any:
        squares = CallFunction(aten.pow.Tensor_Scalar, squared, 2)
        return normed(data, CallFunction(aten.mean.dim, squares, Arg(), True))

    # Of an x of 16 bits, whose quotient is made narrow before its weight: LLaMA's, and T5's, which widens its squares.
    wide, widened = (CallFunction(CONVERT, x, torch.float32, _users=users) for users in (2, 1))
    narrow = [CallFunction(CONVERT, n, KeywordArg("dtype")) for n in (rms(wide, wide), rms(x, widened))]
    return {
        div: ("softmax", [softmax]),
        add: ("layer_norm", [CallFunction(add, scaled, beta)]),
        mul: (
            "rms_norm",
            [CallFunction(mul, *pair) for n in (rms(x, x), *narrow) for pair in ((n, gamma), (gamma, n))],
        ),
    }


class _Found(NamedTuple):
    """A softmax or norm of a node's value, with the vectors that scale and shift it."""

    name: str
    x: Node
    vectors: tuple[Node, ...]
    epsilon: float


def read_rowwise(reader: Any, last: Node) -> tuple[Call, ...] | None:
    """The softmax or norm that a node is the end of.

    One of float32 between two conversions is one of the narrow dtype, which computes in float32, too.
    """
    end = last.args[0] if is_call(last, CONVERT) else last
    found = _find(end)
    if found is None:
        return None
    x, before = found.x, _before_conversion(found.x)
    if end is not last:
        if len(end.users) > 1 or before is None:
            return None
        x = before
    elif (outer := only_user(last, CONVERT)) is not None and before is not None and is_alike(before, outer):
        return None  # the conversion ends it
    wider = torch.float32 if found.name == "rms_norm" and end is not last else None
    if not is_alike(x, last) or not all(is_plain(v) and dtype(v) in (dtype(last), wider) for v in found.vectors):
        return None
    attrs = {"epsilon": found.epsilon} if found.vectors else {}
    return (call(found.name, *map(reader.read, [x, *found.vectors]), **attrs),)


def _find(last: Any) -> _Found | None:
    name, patterns = _patterns().get(last.target, ("", ())) if isinstance(last, Node) else ("", ())
    for pattern in patterns:
        found = pattern.match(last)
        if not found or any(n.kwargs for n in found.nodes if n.target is not aten.var_mean.correction):
            continue
        given = dict(found.kwargs)
        x, epsilon, narrowed = given.pop("x"), given.pop("epsilon", 0.0), given.pop("dtype", None)
        if not (is_plain(x) and is_plain(last) and extents(x) == extents(last) and isinstance(epsilon, float)):
            continue
        if narrowed not in (None, dtype(last)):
            continue
        vectors = tuple(given[key] for key in ("gamma", "beta") if key in given)
        last_axis = [-1], [len(extents(x)) - 1]
        if all(axes in last_axis for axes in found.args) and all(_is_vector(v, last) for v in vectors):
            return _Found(name, x, vectors, epsilon)
    return None


def _is_vector(node: Any, like: Node) -> bool:
    return is_plain(node) and extents(node) == extents(like)[-1:]


def _before_conversion(node: Node) -> Node | None:
    """The node whose value a conversion to float32 reads; None where there is none."""
    is_wide = is_call(node, CONVERT) and dtype(node) == torch.float32 and is_plain(node.args[0])
    return node.args[0] if is_wide else None
