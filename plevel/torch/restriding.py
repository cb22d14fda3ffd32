"""Strides of what is computed from kernels' values, which are contiguous where PyTorch's own may not be.

Inductor lays out a graph's outputs, and what operators read, by the types of the graph's nodes. A view by strides takes
its operand's memory as PyTorch would have laid it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from plevel.torch.node import aten, extent_of, hint

Layout = tuple[tuple[int | str, ...], ...]
_BY_STRIDES = (aten.as_strided.default, aten.as_strided_.default, aten.as_strided_scatter.default)


def held(graph: Graph) -> list[Layout]:
    """The layouts of a graph's outputs, and of what is viewed by strides."""
    return [layout(node) for node in _held(graph)]


def layout(node: Any) -> Layout:
    """The begins and strides of a node's tensors."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(map(_strides, _tensors(value)))


def _strides(tensor: torch.Tensor) -> tuple[int | str, ...]:
    """The begin, and the strides, 0 of axes of one element. Comparing symbolic ones themselves would make guards."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return extent_of(tensor.storage_offset()), *(0 if extent_of(n) == 1 else extent_of(step) for n, step in steps)


def keep_strides(graph: Graph, values: Mapping[Node, Any], wanted: Sequence[Layout]) -> None:
    """Infer anew the types of all that is computed from kernels' values, and give those `held` the layouts `wanted`.

    Args:
        values: those of the kernels, with tensors of the types that they had. One that an output is computed from is
            copied where the output's layout would be another: a caller may view it by that. So may a node of the graph.
    """
    changed = [node for node, old in values.items() if layout(node) != (_strides(old),)]
    reached = _infer_types(graph, changed)
    wrong = [node for node, own in zip(_held(graph), wanted, strict=True) if layout(node) != own]
    copies = [_copy(graph, node, values[node]) for node in changed if not reached[node].isdisjoint(wrong)]
    _infer_types(graph, copies)


def _infer_types(graph: Graph, changed: Iterable[Node]) -> dict[Node, set[Node]]:
    """Infer the types of what is computed from values of other strides; return what each one's strides reach."""
    origins = {node: {node} for node in changed}
    for node in graph.nodes:
        found = set().union(*(origins.get(n, set()) for n in node.all_input_nodes))
        if not found or node.op != "call_function":
            continue
        before = layout(node)
        if before and _infer(node) and layout(node) != before:
            origins[node] = origins.get(node, set()) | found
    return {node: {n for n, of in origins.items() if node in of} for node in changed}


def _infer(node: Node) -> bool:
    """Return whether a node's type could be inferred from those of its arguments."""
    tags = getattr(node.target, "tags", ())
    if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
        return False  # its sizes would be new symbols
    mode: Any = _tensors(node.meta["val"])[0]
    assert callable(node.target)
    try:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with mode.fake_mode:
            node.meta["val"] = node.target(*args, **kwargs)
    except Exception:  # of PyTorch, such as for a view of memory with gaps
        return False
    return True


def _copy(graph: Graph, node: Node, like: Any) -> Node:
    """A copy with the order of another tensor's strides, for all that reads a value."""
    order = sorted(range(like.ndim), key=lambda axis: int(hint(like.stride(axis))), reverse=True)
    readers = list(node.users)
    made = node
    for target, args, kwargs in (
        (aten.permute.default, [order], {}),
        (aten.clone.default, [], {"memory_format": torch.contiguous_format}),
        (aten.permute.default, [sorted(range(like.ndim), key=order.index)], {}),
    ):
        given = made
        with graph.inserting_after(given):
            made = graph.call_function(target, (given, *args), kwargs)
        with like.fake_mode:
            made.meta["val"] = target(given.meta["val"], *args, **kwargs)
    for reader in readers:
        reader.replace_input_with(node, made)
    return made


def _tensors(value: Any) -> list[torch.Tensor]:
    each = value if isinstance(value, list | tuple) else (value,)
    return [t for t in each if isinstance(t, torch.Tensor) and t.layout == torch.strided]


def _held(graph: Graph) -> Sequence[Any]:
    (node,) = graph.find_nodes(op="output")
    return *node.args[0], *(n.args[0] for n in graph.nodes if n.target in _BY_STRIDES)
