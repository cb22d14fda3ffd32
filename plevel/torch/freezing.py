"""Freezing of parameters: in the graphs of a backend alone, and for as long as the parameters stay as they are.

Whether parameters are constants of a graph is decided while Dynamo traces it, before a backend is asked, by a setting
of Inductor's that holds for all graphs of the process. And nothing watches the values of what was frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import ref

import torch
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import builder
from torch._guards import Guard, GuardSource, TracingContext
from torch.autograd.graph import increment_version
from torch.fx import GraphModule
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakTensorKeyDictionary

MOST_CHANGES = 1  # of a tensor, after which graphs with it are not frozen any more


@dataclass
class _State:
    """A frozen tensor's stamp, and how often it was another."""

    stamp: tuple[int, int]
    changes: int = 0


_states = WeakTensorKeyDictionary()


def freeze_for(backend: Callable[..., Any]) -> None:
    """Have Dynamo freeze the graphs that a backend is going to compile without gradients."""
    always = builder.is_parameter_freezing

    def is_freezing() -> bool:
        if always():
            return True
        asked = InstructionTranslator.current_tx().output.compiler_fn
        asked = getattr(asked, "_torchdynamo_orig_backend", asked)
        return getattr(asked, "compiler_fn", asked) is backend and not torch.is_grad_enabled()

    builder.is_parameter_freezing = is_freezing
    register_optimizer_step_post_hook(_count_step)


def _count_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Count a step as a change of frozen tensors, as fused steps do not."""
    fused = chain.from_iterable(g["params"] for g in optimizer.param_groups if g.get("fused"))
    increment_version([p for p in fused if p in _states])


def is_volatile(module: GraphModule) -> bool:
    """True if a parameter or buffer of a graph has changed more than once since graphs were frozen with it."""
    volatile = False
    for tensor in _tensors(module):
        if state := _states.get(tensor):
            state.changes += state.stamp != _stamp(tensor)
            state.stamp = _stamp(tensor)
            volatile |= state.changes > MOST_CHANGES
    return volatile


def forget() -> None:
    """Have graphs frozen again, whatever changed."""
    _states.clear()


def watch(module: GraphModule) -> None:
    """Have Dynamo compile the graph of this thread again once a tensor that was frozen in it is another."""
    context = TracingContext.try_get()
    if context is None:
        return
    tensors = list(_tensors(module))
    left = context.params_flat or []  # those that the graph changes or gives back are not frozen
    if len(left) == len(tensors):
        tensors = [t for t, kept in zip(tensors, left, strict=True) if kept is None]
    tensors = [t for t in tensors if _has_stamp(t)]
    for tensor in tensors:
        _states.setdefault(tensor, _State(_stamp(tensor)))
    references: list[Callable[[], Any]] = [ref(t) for t in tensors]
    stamps = [_stamp(t) for t in tensors]

    def is_same(_: Any) -> bool:
        try:
            return [(t._version, t.data_ptr()) for t in [find() for find in references]] == stamps
        except AttributeError:  # of None: one is gone
            return False

    def install(guards: Any, guard: Guard) -> None:
        text = ["the parameters and buffers of a frozen graph are as they were"]
        guards.guard_manager.root.add_epilogue_lambda_guard(is_same, text, guard.user_stack)

    context.guards_context.dynamo_guards.add(Guard(_Frozen(), install))


class _Frozen(GlobalStateSource):  # type: ignore[misc]
    """The place of the guard on frozen tensors, which filters of guards take for one of modules."""

    @property
    def guard_source(self) -> GuardSource:
        return GuardSource.LOCAL_UNSPECIALIZED_NN_MODULE


def _has_stamp(tensor: torch.Tensor) -> bool:
    is_plain = tensor.layout is torch.strided and not is_traceable_wrapper_subclass(tensor)
    return is_plain and not tensor.is_inference()  # made there, it counts no versions


def _stamp(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor._version, tensor.data_ptr()


def _tensors(module: GraphModule) -> Iterator[torch.Tensor]:
    """A graph's parameters and buffers, in the order of `TracingContext.params_flat`."""
    named = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return (tensor for _, tensor in named)
