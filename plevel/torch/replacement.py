"""Replacement of sites in a frozen graph by calls of kernels, constants packed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from plevel.torch import operation
from plevel.torch.kernel import Kernel
from plevel.torch.node import Source, aten, constant, extents
from plevel.torch.site import Site


def replace(module: GraphModule, kernels: Mapping[Site, Kernel]) -> None:
    """Puts a kernel in the place of each site."""
    overload = operation.operator()
    # Sites name nodes of the graph as it was.
    moved: dict[Node, Node] = {}
    packed: dict[tuple[Node, str, str], Node] = {}
    for site, kernel in kernels.items():
        operation.load(kernel)
        with module.graph.inserting_before(site.output):
            inputs = []
            for argument in kernel.inputs:
                source = site.sources[argument.name]
                value = constant(module, source.node)
                if value is None:
                    inputs.append(_given(module.graph, source, _latest(source.node, moved)))
                    continue
                # A weight that several sites of one kernel share is packed once.
                key = source.node, kernel.digest, argument.name
                if key not in packed:
                    tensor = operation.pack(kernel, argument, source.of(value))
                    packed[key] = _constant(module, tensor, site.output, first=_first(module.graph))
                inputs.append(packed[key])
            made = module.graph.call_function(overload, (inputs, kernel.digest, list(site.shape)))
            _set_type(made, site.output, site.shape)
            out = made
            if extents(site.output) != site.shape:
                out = _reshape(module.graph, made, extents(site.output))
        site.output.replace_all_uses_with(out)
        moved[site.output] = out
    module.graph.eliminate_dead_code()


def _latest(node: Node, moved: Mapping[Node, Node]) -> Node:
    while node in moved:
        node = moved[node]
    return node


def _given(graph: Graph, source: Source, node: Node) -> Node:
    if source.axes != tuple(range(len(source.axes))):
        turned = graph.call_function(aten.permute.default, (node, list(source.axes)))
        _set_type(turned, node, tuple(extents(node)[axis] for axis in source.axes))
        node = turned
    return node if extents(node) == source.extents else _reshape(graph, node, source.extents)


def _reshape(graph: Graph, node: Node, shape: tuple[int, ...]) -> Node:
    made = graph.call_function(aten.reshape.default, (node, list(shape)))
    _set_type(made, node, shape)
    return made


def _set_type(node: Node, like: Node, shape: tuple[int, ...]) -> None:
    with like.meta["val"].fake_mode:
        node.meta["val"] = torch.empty(shape)


def _first(graph: Graph) -> Node:
    return next(iter(graph.nodes))


def _constant(module: GraphModule, tensor: Any, like: Node, *, first: Node) -> Node:
    """A frozen parameter more, before all other nodes."""
    from torch._inductor.freezing_utils import maybe_set_is_frozen_param

    count = sum(name.startswith("_plevel_") for name, _ in module.named_buffers())
    name = f"_plevel_{count}"
    module.register_buffer(name, tensor)
    maybe_set_is_frozen_param(tensor)
    with module.graph.inserting_before(first):
        node = module.graph.get_attr(name)
    node.meta["val"] = like.meta["val"].fake_mode.from_tensor(tensor, static_shapes=True)
    return node
