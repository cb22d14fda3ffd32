"""Symbolic sizes that attention needs to be equal, for which PyTorch has a symbol each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram

from plevel.torch.symbol import is_of_values

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def join_sizes(program: ExportedProgram) -> None:
    """Replace symbols of a program by others, or by sums of others, that attention needs to be equal to them.

    An export with `Dim.DYNAMIC` gives each axis of each input a symbol of its own, and joins those that an operator
    compares. Attention compares no lengths: the keys and values of a cache, and the mask over them, stay apart.
    """
    for node in program.graph.nodes:
        if node.target is _ATTENTION:
            for one, other in _equal_sizes(node):
                _join(program, one, other)


def _equal_sizes(node: Any) -> Iterator[tuple[Any, Any]]:
    q, k, v = (operand.meta["val"].shape for operand in node.args[:3])
    yield k[-2], v[-2]
    for shape in (k, v):
        yield from zip(q[:-2], shape[:-2], strict=False)
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    if mask is not None:
        yield from zip(reversed((*q[:-1], k[-2])), reversed(mask.meta["val"].shape), strict=False)


def _join(program: ExportedProgram, one: Any, other: Any) -> None:
    """Have sizes be equal at all values of their symbols, unless one is a number: it may be 1, which is repeated."""
    if not (isinstance(one, torch.SymInt) and isinstance(other, torch.SymInt)):
        return
    gap = (one.node.expr - other.node.expr).expand()
    if any(map(is_of_values, gap.free_symbols)):
        return
    for symbol in sorted(gap.free_symbols, key=str):
        factor = gap.coeff(symbol)
        formula = (symbol - gap * factor).expand()
        factors = formula.as_coefficients_dict()
        # A difference could be 0 or less.
        if abs(factor) != 1 or symbol in formula.free_symbols or not formula.free_symbols or min(factors.values()) < 0:
            continue
        env = one.node.shape_env
        env._set_replacement(symbol, formula, "attention")
        ranges = program.range_constraints
        ranges.update({s: ranges.get(s, env.var_to_range[s]) & env.var_to_range[s] for s in formula.free_symbols})
        return
