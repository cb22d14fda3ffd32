"""Softmax and norms along the last axis in a frozen graph, where PyTorch has decomposed them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.fx import Node

from plevel.torch.node import CONVERT, aten, dtype, extents, is_alike
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

    def rms(data: Any) -> Any:
        squares = CallFunction(aten.pow.Tensor_Scalar, data, 2)
        return normed(data, CallFunction(aten.mean.dim, squares, Arg(), True))

    # Of an x of 16 bits, as LLaMA's.
    wide = CallFunction(CONVERT, x, torch.float32, _users=2)
    narrow = CallFunction(CONVERT, rms(wide), KeywordArg("dtype"))
    return {
        div: ("softmax", [softmax]),
        add: ("layer_norm", [CallFunction(add, scaled, beta)]),
        mul: ("rms_norm", [CallFunction(mul, *pair) for n in (rms(x), narrow) for pair in ((n, gamma), (gamma, n))]),
    }


def read_rowwise(reader: Any, last: Node) -> tuple[Call, ...] | None:
    """The softmax or norm that a node is the end of."""
    name, patterns = _patterns()[last.target]
    for pattern in patterns:
        found = pattern.match(last)
        if not found or any(n.kwargs for n in found.nodes if n.target is not aten.var_mean.correction):
            continue
        given = dict(found.kwargs)
        x, epsilon, narrowed = given.pop("x"), given.pop("epsilon", 0.0), given.pop("dtype", None)
        if not (is_alike(x, last) and extents(x) == extents(last) and isinstance(epsilon, float)):
            continue
        if narrowed not in (None, dtype(last)):
            continue
        last_axis = [-1], [len(extents(x)) - 1]
        vectors = [given[key] for key in ("gamma", "beta") if key in given]
        if all(axes in last_axis for axes in found.args) and all(_is_vector(v, last) for v in vectors):
            attrs = {"epsilon": epsilon} if vectors else {}
            return (call(name, *map(reader.read, [x, *vectors]), **attrs),)
    return None


def _is_vector(node: Any, like: Node) -> bool:
    return is_alike(node, like) and extents(node) == extents(like)[-1:]
