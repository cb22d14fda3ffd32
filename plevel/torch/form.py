"""Forms of a graph, to time: Inductor's code with the kernels of some workloads in place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from plevel.torch.frozen import compile_frozen, copy
from plevel.torch.plan import Plan, graph_digest
from strategy.workload import Workload

logger = logging.getLogger("plevel.torch")
_STATE = "_plevel_state_"


def keep_frozen(frozen: GraphModule) -> GraphModule:
    """A copy of a frozen graph to make forms of.

    Its constants are row-major, as those of most models are: Inductor has turned the weights of convolutions, and a
    graph that is traced with those has other strides. The strides of the outputs are asked for anew, too.
    """
    kept = copy(frozen)
    for node in kept.graph.nodes:
        if node.op == "get_attr" and "." not in node.target:
            value = getattr(kept, node.target)
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:  # else a branch of torch.cond
                delattr(kept, node.target)
                setattr(kept, node.target, value.detach().contiguous())
        elif node.target is torch.ops.prims.inductor_force_stride_order.default:
            node.replace_all_uses_with(node.args[0])
            kept.graph.erase_node(node)
    return kept


def hold(frozen: GraphModule, state: Sequence[torch.Tensor]) -> None:
    """Make the first inputs of a frozen graph, for the tensors of the model that are not frozen, its buffers."""
    for place, (node, tensor) in enumerate(zip(frozen.graph.find_nodes(op="placeholder"), state, strict=False)):
        frozen.register_buffer(f"{_STATE}{place}", tensor)
        with frozen.graph.inserting_before(node):
            held = frozen.graph.get_attr(f"{_STATE}{place}")
        held.meta.update(node.meta)
        node.replace_all_uses_with(held)
        frozen.graph.erase_node(node)
    frozen.recompile()


class _DifferentError(RuntimeError):
    """A graph that is frozen again is another."""


def make_form(
    plan: Plan, wanted: Collection[Workload], module: GraphModule, frozen: GraphModule | None, inputs: Sequence[Any]
) -> Callable[..., Any]:
    """The graph with the kernels of these workloads, from its frozen form if there is one, else from the module.

    To trace and freeze a module takes most of the time of its compilation. A frozen form has its batch norms folded
    already; where freezing it again gives another graph, or fails, the module is compiled.
    """

    def visit(found: GraphModule) -> None:
        if graph_digest(found) != plan.graph:
            raise _DifferentError("freezing it again gives another graph")
        plan.apply(found, wanted)

    if frozen is not None:
        try:
            return compile_frozen(frozen, inputs, visit)
        except Exception:  # of PyTorch, for a graph that it made itself
            logger.debug("a form is compiled from the module", exc_info=True)
    return compile_frozen(module, inputs, lambda found: plan.apply(found, wanted))
