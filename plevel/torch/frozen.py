"""Access to Inductor's frozen graph: constants folded, batch norms gone, products not yet packed.

No public hook is called there. Inductor's lists of pattern passes over frozen graphs are applied in
order, so the function of the first of them is wrapped.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_active = threading.local()
Visit = Callable[[GraphModule], None]
Written = Sequence[tuple[torch.Tensor, torch.Tensor]]  # tensors that a call changes, with what they were
# The reason why a graph is no library.
WRITES = "it changes its inputs or the model's buffers, as a cache or a batch norm in training mode does"


def _showing(apply: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function of a pattern pass, which first shows the graph to the visitor of this thread."""

    def show(graph: Any) -> Any:
        visit: Visit | None = getattr(_active, "visit", None)
        if visit is not None:
            owner = graph.owning_module if isinstance(graph, Graph) else graph
            # Inductor traces with fake tensors: constants are packed for real.
            with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
                visit(owner)
        return apply(graph)

    return show


@contextmanager
def visiting(visit: Visit) -> Iterator[None]:
    """Shows each graph that Inductor freezes on this thread to `visit`, which may change it."""
    from torch._inductor.fx_passes import freezing_patterns

    freezing_patterns.lazy_init()
    first = freezing_patterns.pass_patterns[0]
    if "apply" not in vars(first):  # the pass itself stays, as other packages register patterns in it later
        first.apply = _showing(partial(type(first).apply, first))
    before = getattr(_active, "visit", None)
    _active.visit = visit
    try:
        yield
    finally:
        _active.visit = before


@contextmanager
def unchanged(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Put back what is written to dense tensors meanwhile."""
    tensors = [t for t in tensors if t.layout is torch.strided and not (t.is_meta or is_lazy(t))]
    before = [t.detach().clone() for t in tensors]
    try:
        yield
    finally:
        put_back([(t, old) for t, old in zip(tensors, before, strict=True) if not is_same(t, old)])


def put_back(written: Written) -> None:
    for tensor, before in written:
        # In inference mode alone one that was made there can be changed.
        with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
            tensor.copy_(before)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has memory of its own: it is not sparse, nested, or a wrapper of others."""
    return tensor.layout is torch.strided and not is_traceable_wrapper_subclass(tensor)


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, where NaN equals itself."""
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def is_mask(x: torch.Tensor) -> bool:
    """Return whether a tensor has two values at most, such as 0 and 1: a mask of 0.999 would hide nothing."""
    return not x.is_complex() and bool(x.numel()) and bool(((x == x.min()) | (x == x.max())).all())


def copy_strided(x: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of `x`, which compiled graphs check; an expanded axis stays one element."""
    span = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    if 0 < span < x.numel():  # elements share memory, as those of windows do
        return x.as_strided((span,), (1,)).clone().as_strided(x.size(), x.stride())
    made = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)
    unexpanded(made).copy_(unexpanded(x))
    return made


def unexpanded(x: torch.Tensor) -> torch.Tensor:
    """A view of a tensor with one element of each expanded axis, which can be written."""
    return x[tuple(slice(1) if step == 0 else slice(None) for step in x.stride())]


def constant_outputs(frozen: GraphModule) -> list[int]:
    """The places of outputs that are constants of a frozen graph, from the end."""
    outputs = frozen.graph.output_node().args[0]
    assert isinstance(outputs, Sequence)
    return [i - len(outputs) for i, node in enumerate(outputs) if isinstance(node, Node) and node.op == "get_attr"]


def giving_copies(function: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    """The function with copies of some outputs: a caller may write to a constant that it is given."""
    if not places:
        return function

    def call(*inputs: Any) -> list[Any]:
        outputs = list(function(*inputs))
        for place in places:
            outputs[place] = outputs[place].clone()
        return outputs

    return call


def copy(module: GraphModule) -> GraphModule:
    """The same graph on the same tensors, to be changed apart."""
    made = GraphModule(module, deepcopy(module.graph))
    made.meta.update(module.meta)
    return made


def compile_frozen(module: GraphModule, inputs: Any, visit: Visit) -> Callable[..., Any]:
    """Inductor's compiled form of a graph of Dynamo's, whose frozen form `visit` has seen and may have changed.

    The module, which may be a frozen form itself, stays as it is, so that it can be compiled again.
    """
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.compile_fx import compile_fx

    again = copy(module)
    _tell_scalars_apart()
    before = list(PyCodeCache.modules)
    try:
        with visiting(visit):
            made: Callable[..., Any] = compile_fx(again, inputs, config_patches={"freezing": True})
    finally:
        # By identity: another thread may have cleared the list meanwhile, which is shorter then.
        known = set(map(id, before))
        _leave_to_callers([m for m in PyCodeCache.modules if id(m) not in known])
    return made


def _leave_to_callers(modules: Sequence[ModuleType]) -> None:
    """Take modules of Inductor's code out of its lists, which would keep their constants for as long as the process."""
    from torch._inductor.codecache import PyCodeCache

    listed = set(map(id, modules))
    PyCodeCache.modules[:] = [m for m in PyCodeCache.modules if id(m) not in listed]
    for module in modules:
        if sys.modules.get(module.__name__) is module:
            del sys.modules[module.__name__]


@cache
def _tell_scalars_apart() -> None:
    """Have Inductor's cache tell graphs by the values of frozen scalars, too, which are in the code."""
    from torch._inductor.graph import GraphLowering

    is_short = GraphLowering.can_inline_constant
    GraphLowering.can_inline_constant = staticmethod(lambda t: not t.shape or is_short(t))
