"""The symbolic sizes of an exported program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from strategy.network.graph import NetworkError
from strategy.network.size import MOST, NAMES, Sizes

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
Binding = Mapping[Any, int]
"""The values of symbols."""


def find_symbols(program: ExportedProgram) -> tuple[Any, ...]:
    """The symbolic sizes of a program, in the order of its inputs' axes.

    Raises:
        NetworkError: there are too many, or an extent is no sum of products of them.
    """
    symbols: dict[Any, None] = {}
    for node in program.graph.nodes:
        for axis, extent in enumerate(getattr(node.meta.get("val"), "shape", ())):
            if isinstance(extent, int) or extent.node.expr.is_number:
                continue
            expression = extent.node.expr
            free = sorted(expression.free_symbols, key=str)
            symbols |= dict.fromkeys(free)
            polynomial = expression.as_poly(*free)
            if polynomial is None or not all(c.is_Integer for c in polynomial.coeffs()):
                raise NetworkError(
                    f"axis {axis} of {node.name} has the symbolic size {expression}, and a library takes sums of "
                    "products of sizes: export the model with this one fixed, or as a multiple, such as 32 * Dim('h')"
                )
    if len(symbols) > len(NAMES):
        listed = ", ".join(map(str, symbols))
        raise NetworkError(f"{len(symbols)} symbolic sizes ({listed}): a library takes at most {len(NAMES)}, fix some")
    return tuple(symbols)


def range_of(program: ExportedProgram, symbol: Any) -> tuple[int, int]:
    """The least and the greatest value; PyTorch says 2 where it means 1, and calls such programs with 1."""
    found = program.range_constraints[symbol]
    low = int(found.lower)
    return 1 if low <= 2 else low, min(int(found.upper), MOST) if found.upper.is_Integer else MOST


def known(size: Any, at: Binding) -> Any:
    """A number of the program where its symbols have values."""
    if not isinstance(size, SYMBOLIC):
        return size
    found = size.node.expr.subs(at)
    kinds: dict[type, Any] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kinds[type(size)](found)


def _reached(node: Any, at: Binding) -> list[tuple[int, int]]:
    """The places that a part of a symbolic axis reaches to, with that axis, where the part itself is of a fixed extent.

    PyTorch clips the part of a shorter axis, but not its type.
    """
    kind, place = str(node.target), node.args[1] if len(node.args) > 1 else 0
    if kind not in ("aten.slice.Tensor", "aten.select.int"):
        return []
    one = kind == "aten.select.int"
    whole = node.args[0].meta["val"].shape[place]
    if not isinstance(whole, SYMBOLIC) or not (one or isinstance(node.meta["val"].shape[place], int)):
        return []
    # The index of an element is one before the end of it.
    places = [n + one if n >= 0 else -n for n in node.args[2:4] if isinstance(n, int)]
    return [(n, known(whole, at)) for n in places if 0 < n < MOST]


def limited(sizes: Sizes, program: ExportedProgram, at: Binding) -> Sizes:
    """The sizes within bounds at which parts of a fixed extent are within their axes; raise `NetworkError` for none."""
    try:
        return sizes.limited(pair for node in program.graph.nodes for pair in _reached(node, at))
    except ValueError as error:
        raise NetworkError(str(error)) from error


def resized(x: torch.Tensor, like: torch.Tensor, at: Binding) -> torch.Tensor:
    """An example input with the extents of `like` at values of the symbols."""
    for axis, extent in enumerate(like.shape):
        x = x.index_select(axis, torch.arange(known(extent, at)) % x.shape[axis])
    return x
