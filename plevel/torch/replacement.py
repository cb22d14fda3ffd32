"""Replacement of sites in a frozen graph by calls of kernels, constants packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from plevel.torch import operation
from plevel.torch.kernel import Kernel
from plevel.torch.node import Extent, Origin, Source, aten, dtype, extent_of, extents
from plevel.torch.restriding import held, keep_strides
from plevel.torch.site import Site


def replace(module: GraphModule, kernels: Mapping[Site, Kernel]) -> None:
    """Puts a kernel in the place of each site."""
    overload = operation.operator()
    wanted, before = held(module.graph), {}
    # Sites name nodes of the graph as it was.
    moved: dict[Node, Node] = {}
    packed: dict[tuple[Origin, str, str], Node] = {}
    for site, kernel in kernels.items():
        operation.load(kernel)
        graph = _Before(module.graph, site.outputs[0])
        with module.graph.inserting_before(site.outputs[0]):
            inputs = []
            for argument in kernel.inputs:
                origin = site.sources[kernel.packs.get(argument.name, argument.name)]
                # A weight that several sites of one kernel share is packed once.
                key = origin, kernel.digest, argument.name
                if key in packed:
                    inputs.append(packed[key])
                elif (value := origin.constant(module)) is not None:
                    tensor = operation.pack(kernel, argument, value)
                    packed[key] = _constant(module, tensor, site.outputs[0])
                    inputs.append(packed[key])
                elif isinstance(origin, Source):
                    inputs.append(graph.view(_latest(origin.node, moved), origin.axes, origin.extents))
            dims = graph.sizes([site.extents[name] for name in kernel.dims])
            made = graph.call(overload, inputs, kernel.digest, graph.sizes(site.shape), dims, dtype(site.outputs[0]))
            values = _split(graph, made, site)
        for output, value in zip(site.outputs, values, strict=True):
            output.replace_all_uses_with(value)
            moved[output] = value
            before[value] = output.meta["val"]
    keep_strides(module.graph, before, wanted)
    module.graph.eliminate_dead_code()


@dataclass(frozen=True)
class _Before:
    """Calls in a graph before a node, with the types of their values."""

    graph: Graph
    node: Node

    def call(self, target: Any, *args: Any) -> Node:
        made = self.graph.call_function(target, args)
        _infer_type(made, self.node)
        return made

    def view(self, node: Node, axes: tuple[int, ...], shape: Sequence[Extent]) -> Node:
        """A value with its axes permuted, then in another shape."""
        if axes != tuple(range(len(axes))):
            node = self.call(aten.permute.default, node, list(axes))
        if extents(node) != tuple(shape):
            node = self.call(aten.reshape.default, node, self.sizes(shape))
        return node

    def sizes(self, wanted: Sequence[Extent]) -> list[Any]:
        """Extents as arguments of a call: the symbolic ones as the nodes that have them."""
        return [extent if isinstance(extent, int) else self._size(extent) for extent in wanted]

    def _size(self, wanted: str) -> Node:
        for node in self.graph.nodes:
            if node is self.node:
                break
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and extent_of(value) == wanted:
                return node
            if isinstance(value, torch.Tensor) and wanted in extents(node):
                return self.call(aten.sym_size.int, node, extents(node).index(wanted))
        raise ValueError(f"no value before {self.node} has the size {wanted}")


def _infer_type(node: Node, like: Node) -> None:
    """Sets the type of a node's value from those of its arguments."""
    args = torch.fx.map_arg(node.args, lambda n: n.meta["val"])
    with like.meta["val"].fake_mode:
        node.meta["val"] = node.target(*args)


def _split(graph: _Before, made: Node, site: Site) -> list[Node]:
    """The values of a site's outputs, of its kernel's."""
    if len(site.outputs) == 1:
        return [graph.view(made, tuple(range(len(site.shape))), extents(site.outputs[0]))]
    values, begin = [], 0
    for output in site.outputs:
        end = begin + int(extents(output)[-1])
        values.append(graph.call(aten.slice.Tensor, made, len(site.shape) - 1, begin, end))
        begin = end
    return values


def _latest(node: Node, moved: Mapping[Node, Node]) -> Node:
    while node in moved:
        node = moved[node]
    return node


def _constant(module: GraphModule, tensor: Any, like: Node) -> Node:
    """A frozen parameter more, before all other nodes."""
    from torch._inductor.freezing_utils import maybe_set_is_frozen_param

    count = sum(name.startswith("_plevel_") for name, _ in module.named_buffers())
    name = f"_plevel_{count}"
    module.register_buffer(name, tensor)
    maybe_set_is_frozen_param(tensor)
    with module.graph.inserting_before(next(iter(module.graph.nodes))):
        node = module.graph.get_attr(name)
    node.meta["val"] = like.meta["val"].fake_mode.from_tensor(tensor, static_shapes=True)
    return node
