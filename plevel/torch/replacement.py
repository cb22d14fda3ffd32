"""Replacement of sites in a frozen graph by calls of kernels, constants packed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from plevel.torch import operation
from plevel.torch.kernel import Kernel
from plevel.torch.node import RESHAPES, Origin, Source, aten, extents, is_call
from plevel.torch.site import Site


def replace(module: GraphModule, kernels: Mapping[Site, Kernel]) -> None:
    """Puts a kernel in the place of each site."""
    overload = operation.operator()
    # Sites name nodes of the graph as it was.
    moved: dict[Node, Node] = {}
    packed: dict[tuple[Origin, str, str], Node] = {}
    for site, kernel in kernels.items():
        operation.load(kernel)
        with module.graph.inserting_before(site.outputs[0]):
            inputs = []
            for argument in kernel.inputs:
                origin = site.sources[argument.name]
                # A weight that several sites of one kernel share is packed once.
                key = origin, kernel.digest, argument.name
                if key in packed:
                    inputs.append(packed[key])
                elif (value := origin.constant(module)) is not None:
                    tensor = operation.pack(kernel, argument, value)
                    packed[key] = _constant(module, tensor, site.outputs[0], first=_first(module.graph))
                    inputs.append(packed[key])
                elif isinstance(origin, Source):
                    inputs.append(_given(module.graph, origin, _latest(origin.node, moved)))
            made = module.graph.call_function(overload, (inputs, kernel.digest, list(site.shape)))
            _set_type(made, site.outputs[0], site.shape)
            values = _split(module.graph, made, site)
        for output, value in zip(site.outputs, values, strict=True):
            output.replace_all_uses_with(value)
            moved[output] = value
            if len(values) > 1:
                _restride(value)
    module.graph.eliminate_dead_code()


def _split(graph: Graph, made: Node, site: Site) -> list[Node]:
    """The values of a site's outputs, of its kernel's."""
    if len(site.outputs) == 1:
        wanted = extents(site.outputs[0])
        return [made if wanted == site.shape else _reshape(graph, made, wanted)]
    values, begin = [], 0
    for output in site.outputs:
        end = begin + extents(output)[-1]
        part = graph.call_function(aten.slice.Tensor, (made, len(site.shape) - 1, begin, end))
        _infer_type(part)
        values.append(part)
        begin = end
    return values


def _restride(node: Node) -> None:
    """Corrects the strides of the views of a value, to which Inductor holds the operators that read them."""
    for user in node.users:
        if is_call(user, *RESHAPES, aten.permute.default):
            _infer_type(user)
            _restride(user)


def _infer_type(node: Node) -> None:
    args = torch.fx.map_arg(node.args, lambda n: n.meta["val"])
    with args[0].fake_mode:
        node.meta["val"] = node.target(*args)


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
