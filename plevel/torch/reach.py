"""Fixed parts of symbolic axes of an exported program, which bound the sizes that a library takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch.fx import Graph

from plevel.torch.symbol import SYMBOLIC, Binding, constant_of, known
from strategy.network.graph import NetworkError
from strategy.network.size import MOST, Sizes

_RANKED = ("aten.topk.default", "aten.kthvalue.default")
_INDEXED = ("aten.index.Tensor", "aten.index_select.default", "aten.gather.default", "aten.scatter_add.default")


def find_reached(graph: Graph, at: Binding, values: Mapping[Any, Any]) -> list[tuple[int, int]]:
    """The places that parts of a fixed extent reach to, with the extents of their axes, in a program's graph.

    Args:
        values: the expressions of its nodes.
    """
    return [pair for node in graph.nodes if at and node in values for pair in _reached(node, at, values)]


def limited(sizes: Sizes, reached: Sequence[tuple[int, int]], twin: Sequence[tuple[int, int]]) -> Sizes:
    """The sizes within bounds at which parts of a fixed extent are within their axes; raise `NetworkError` for none.

    Args:
        reached: as `find_reached` gives it, and at the probes of the twin.
    """
    try:
        pairs = [tuple(map(sizes.encode, mine, theirs)) for mine, theirs in zip(reached, twin, strict=True)]
        return sizes.limited((place, axis) for place, axis in pairs)
    except ValueError as error:
        raise NetworkError(str(error)) from error


def _reached(node: Any, at: Binding, values: Mapping[Any, Any]) -> list[tuple[int, int]]:
    """The places that parts of symbolic axes reach to, with those axes, where the parts are of fixed extents.

    PyTorch clips a part of a shorter axis, but not its type, and refuses an index beyond the axis.
    """
    shape = getattr(node.args[0].meta.get("val"), "shape", ()) if node.args and hasattr(node.args[0], "meta") else ()
    found = []
    for axis, places in _read(node, values):
        if shape and isinstance(shape[axis], SYMBOLIC):
            # One behind the element, or so many from the end.
            found += [(reach, known(shape[axis], at)) for n in places if 0 < (reach := n + 1 if n >= 0 else -n) < MOST]
    return found


def _read(node: Any, values: Mapping[Any, Any]) -> Iterator[tuple[int, Sequence[int]]]:
    """The axes of a node's first operand of which it reads fixed elements, each with its outermost ones."""
    kind, place = str(node.target), node.args[1] if len(node.args) > 1 else 0
    if kind == "aten.select.int":
        yield place, node.args[2:3] if isinstance(node.args[2], int) else ()
    elif kind == "aten.slice.Tensor":
        extent = node.meta["val"].shape[place]
        start, end, step = (*node.args[2:5], None, None, None)[:3]
        if not isinstance(extent, int):
            return
        if (start is None or (isinstance(start, int) and start >= 0)) and extent and isinstance(step or 1, int):
            yield place, [(start or 0) + (extent - 1) * (step or 1)]
        else:
            yield place, [n if n < 0 else n - 1 for n in (start, end) if isinstance(n, int)]
    elif kind in _RANKED:
        yield (node.args[2] if len(node.args) > 2 else -1), [node.args[1] - 1] if isinstance(node.args[1], int) else ()
    elif kind in _INDEXED:
        indices: Iterable[Any] = enumerate(node.args[1]) if kind == _INDEXED[0] else [(place, node.args[2])]
        for axis, index in indices:
            numbers = None if index is None else constant_of(values[index])
            if numbers is not None and numbers.size:
                yield axis, [int(numbers.min()), int(numbers.max())]
