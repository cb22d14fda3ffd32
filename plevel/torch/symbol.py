"""The symbolic size of an exported program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from strategy.network.graph import NetworkError
from strategy.network.size import MOST

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
Binding = Mapping[Any, int]
"""The values of symbols."""


def find_symbol(program: ExportedProgram) -> Any:
    """The symbolic size of a program, None if all are fixed.

    Raises:
        NetworkError: there are several, or an extent is no multiple of it, or a tensor has it on several axes.
    """
    symbols: set[Any] = set()
    for node in program.graph.nodes:
        many = 0
        for axis, extent in enumerate(getattr(node.meta.get("val"), "shape", ())):
            if isinstance(extent, int) or extent.node.expr.is_number:
                continue
            expression, many = extent.node.expr, many + 1
            symbols |= expression.free_symbols
            if len(symbols) == 1 and many == 1 and (expression / next(iter(symbols))).is_Integer:
                continue
            raise NetworkError(
                f"axis {axis} of {node.name} has the symbolic size {expression}, and a library takes one such size and "
                "its multiples, once in a tensor, as that of a batch: export the model with other sizes fixed"
            )
    return next(iter(symbols), None)


def range_of(program: ExportedProgram, symbol: Any) -> tuple[int, int]:
    """The least and the greatest value; PyTorch says 2 where it means 1, and calls such programs with 1."""
    found = program.range_constraints[symbol]
    low = int(found.lower)
    return 1 if low <= 2 else low, min(int(found.upper), MOST) if found.upper.is_Integer else MOST


def known(size: Any, at: Binding) -> Any:
    """A number of the program where its symbol has a value."""
    if not isinstance(size, SYMBOLIC):
        return size
    found = size.node.expr.subs(at)
    kinds: dict[type, Any] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kinds[type(size)](found)


def resized(x: torch.Tensor, like: torch.Tensor, at: Binding) -> torch.Tensor:
    """An example input with the extents of `like` at a value of the symbol."""
    for axis, extent in enumerate(like.shape):
        x = x.index_select(axis, torch.arange(known(extent, at)) % x.shape[axis])
    return x
