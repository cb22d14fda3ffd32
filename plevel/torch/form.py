"""Forms of a graph, to time: Inductor's code with the kernels of some workloads in place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from plevel.torch.frozen import compile_frozen, copy, is_mask
from plevel.torch.node import aten
from plevel.torch.plan import Plan, graph_digest
from plevel.torch.quantization import Rounded, is_rounding
from strategy.workload import Workload

logger = logging.getLogger("plevel.torch")
_STATE = "_plevel_state_"
_LOOKUPS = (aten.embedding.default, aten.index.Tensor, aten.index_select.default)


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


class _Moved(Interpreter):  # type: ignore[misc]
    """A run of a graph with the rows of its tables that it looks up off by a part of them."""

    def __init__(self, frozen: GraphModule, part: float) -> None:
        super().__init__(frozen)
        self.part, self.generator = part, torch.Generator().manual_seed(0)

    def run_node(self, n: Node) -> Any:
        found = super().run_node(n)
        is_table = n.target in _LOOKUPS and isinstance(n.args[0], Node) and n.args[0].op == "get_attr"
        if is_table and found.is_floating_point() and not is_mask(found):
            found.mul_(1 + self.part * torch.randn(found.shape, generator=self.generator).sign())
        return found


def make_moved(frozen: GraphModule, part: float) -> Callable[..., Any]:
    """A frozen graph, without Inductor, with what it looks up in tables for its inputs off by a part, up or down."""
    return lambda *inputs: _Moved(frozen, part).run(*inputs)


def make_rounded(frozen: GraphModule) -> Callable[[float], Callable[..., Any]] | None:
    """A function that gives a frozen graph, without Inductor, as `Rounded` runs it; None if it rounds no numbers."""
    if not any(map(is_rounding, frozen.graph.nodes)):
        return None
    return lambda part: Rounded(frozen, part).run
