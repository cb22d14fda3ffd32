"""Freezing of parameters: in the graphs of a backend alone, and for as long as the parameters stay as they are.

Dynamo decides while it traces a graph, before a backend is asked, that parameters are its constants, by a setting of
Inductor's that holds for all graphs of the process. And nothing watches the values of what was frozen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from types import CodeType
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch._C._dynamo.eval_frame import get_eval_frame_isolate_recompiles_id
from torch._dynamo.decorators import mark_static_address
from torch._dynamo.eval_frame import _get_cache_entries_for_region
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.symbolic_convert import InstructionTranslator, tls
from torch._dynamo.utils import get_static_address_type
from torch._dynamo.variables import builder
from torch._dynamo.variables.invoke_subgraph import InvokeSubgraphHigherOrderVariable
from torch._guards import Guard, GuardSource, TracingContext
from torch._subclasses.fake_tensor import get_plain_tensors
from torch.fx import GraphModule
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakTensorKeyDictionary

from plevel.torch.native import native

SAMPLE_BYTES = 64  # a guard reads as many in the time of one
SEARCH_BYTES = 1 << 19
MOST_CHANGES = 1  # of a tensor, after which graphs with it are not frozen any more

Stamp = tuple[int, int, bytes]


@dataclass
class _State:
    """A frozen tensor's stamp, and how often it was another."""

    stamp: Stamp
    changes: int = 0


_states = WeakTensorKeyDictionary()
Stamps = Sequence[tuple[torch.Tensor, Stamp]]


def freeze_for(backend: Callable[..., Any]) -> None:
    """Have Dynamo freeze the graphs that a backend is going to compile without gradients."""
    always, wrap = builder.is_parameter_freezing, builder.VariableBuilder.wrap_tensor
    region = InvokeSubgraphHigherOrderVariable._call_function

    def is_freezing() -> bool:
        if always():
            return True
        graph = InstructionTranslator.current_tx().output
        asked = getattr(graph.compiler_fn, "_torchdynamo_orig_backend", graph.compiler_fn)
        is_asked = getattr(asked, "compiler_fn", asked) is backend
        return is_asked and not torch.is_grad_enabled() and not _is_last(graph.root_tx.f_code)

    def wrap_tensor(self: Any, value: torch.Tensor) -> Any:
        # Dynamo makes a tensor with this mark the graph's own, without a guard against another in its place. Without it
        # parameters and attributes of modules are guarded, and a cache that the caller holds is an input.
        is_marked = get_static_address_type(value) == "unguarded" and is_freezing()
        if is_marked:
            del value._dynamo_static_input_type
        try:
            return wrap(self, value)
        finally:
            if is_marked and get_static_address_type(value) is None:
                mark_static_address(value)

    def call_region(self: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        # Weights are inputs of a region that is a graph of its own, and Dynamo takes no constants for these.
        return args[0].call_function(tx, args[1:], kwargs) if is_freezing() else region(self, tx, args, kwargs)

    builder.is_parameter_freezing = is_freezing
    builder.VariableBuilder.wrap_tensor = wrap_tensor
    InvokeSubgraphHigherOrderVariable._call_function = call_region


def _is_last(code: CodeType) -> bool:
    """True if Dynamo compiles a function for the last time: this graph serves all tensors that come later."""
    compiled = _get_cache_entries_for_region(code, get_eval_frame_isolate_recompiles_id())
    limit: int = torch._dynamo.config.recompile_limit
    return len(compiled) >= max(1, limit - 1)


def serves_others() -> bool:
    """True if the graph of this thread serves all tensors that come later, so that its weights are inputs."""
    translator = getattr(tls, "current_tx", None)
    return translator is not None and _is_last(translator.output.root_tx.f_code)


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


def read_tensors(inputs: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The parameters and buffers of the graph that Inductor is freezing, and the places of what it changes.

    The places are those in the list of these tensors and then the inputs. Later Inductor puts None in place of the
    tensors that it froze: all but those that the graph changes or gives back.

    Raises:
        ValueError: Inductor would freeze the wrong ones, as PyTorch has merged inputs of the same memory; or the
            graph changes more of a tensor than its elements.
    """
    context = TracingContext.get()
    tensors, types = context.params_flat_unwrap_subclasses, context.fw_metadata
    assert tensors is not None
    assert types is not None
    if len(types.input_info) < len(tensors) + len(inputs):
        raise ValueError("it changes an input or a buffer that shares memory with another one")
    if any(info.mutates_metadata or info.mutates_storage_metadata for info in types.input_info):
        raise ValueError("it changes the shape, strides or memory of an input or a buffer")
    return tensors, [place for place, info in enumerate(types.input_info) if info.mutates_data]


def read_stamps(module: GraphModule) -> Stamps:
    """The parameters and buffers of a graph that can be watched, with their stamps."""
    return [(t, _stamp(t)) for t in _tensors(module) if t.layout is torch.strided]


def require_same(stamps: Stamps, left: Collection[torch.Tensor]) -> Stamps:
    """The stamps of tensors other than those left, which are the same now.

    Args:
        stamps: those of before the compilation.

    Raises:
        RuntimeError: one is another, as another thread wrote to it during the compilation.
    """
    apart = set(map(id, left))
    watched = [(t, stamp) for t, stamp in stamps if id(t) not in apart]
    if any(_stamp(tensor) != stamp for tensor, stamp in watched):
        raise RuntimeError("another thread changed its parameters or buffers while it was compiled")
    return watched


def watch(stamps: Stamps, left: Collection[torch.Tensor]) -> None:
    """Have Dynamo compile the graph of this thread again once a tensor of it other than those left is another.

    Raises:
        RuntimeError: as `require_same`.
        CompileError, FolderError: as `native`.
    """
    context = TracingContext.try_get()
    if context is None:
        return
    watched = require_same(stamps, left)
    if not watched:
        return
    for tensor, stamp in watched:
        _states.setdefault(tensor, _State(stamp))
    is_same = native().watch(tuple(_watched(t) for t, _ in watched))

    def install(guards: Any, guard: Guard) -> None:
        text = ["the parameters and buffers of a frozen graph are as they were"]
        guards.guard_manager.root.add_epilogue_lambda_guard(is_same, text, guard.user_stack)

    context.guards_context.dynamo_guards.add(Guard(_Frozen(), install))


def _watched(tensor: torch.Tensor) -> tuple[ref[torch.Tensor], int, int, int]:
    """A tensor as the runtime watches it."""
    sample = _sample(tensor)
    place, size = (ctypes.addressof(sample), len(sample)) if sample else (0, 0)
    return ref(tensor), tensor._version if _counts(tensor) else -1, place, size


class _Frozen(GlobalStateSource):  # type: ignore[misc]
    """The place of the guard on frozen tensors, which filters of guards take for one of modules."""

    @property
    def guard_source(self) -> GuardSource:
        return GuardSource.LOCAL_UNSPECIALIZED_NN_MODULE


def _stamp(tensor: torch.Tensor) -> Stamp:
    """The version, address and some bytes of a tensor: `data.copy_()` counts no version, inference mode none at all."""
    sample = _sample(tensor)
    return tensor._version if _counts(tensor) else 0, tensor.data_ptr(), sample.raw if sample else b""


def _counts(tensor: torch.Tensor) -> bool:
    """True if a tensor has a version: not one made in inference mode, whatever its `data` is since then."""
    try:
        return isinstance(tensor._version, int)
    except RuntimeError:
        return False


def _sample(tensor: torch.Tensor) -> Any:
    """Bytes from the middle of a tensor, where they lie; None where there are none to read.

    A number other than zero is among them if one is near: to scale a weight leaves its zeros as they are.
    """
    if not tensor.numel() or tensor.device.type != "cpu":
        return None
    steps = list(zip(tensor.shape, tensor.stride(), strict=True))
    span = 1 + sum((n - 1) * step for n, step in steps)
    if (tensor.storage_offset() + span) * tensor.itemsize > tensor.untyped_storage().nbytes():
        return None  # of a storage that was freed by `resize_(0)`
    if span != tensor.numel():  # what lies between its elements is not its own
        place = sum((n - 1) // 2 * step for n, step in steps)
        return (ctypes.c_char * tensor.itemsize).from_address(tensor.data_ptr() + place * tensor.itemsize)
    size = span * tensor.itemsize
    half = size // 2 // SAMPLE_BYTES * SAMPLE_BYTES
    length = min(SAMPLE_BYTES, size)
    begin = tensor.data_ptr() + half
    width = tensor.itemsize // (2 if tensor.is_complex() else 1)
    place = 0
    for searched in (length, min(SEARCH_BYTES, size - half)):
        numbers = np.frombuffer((ctypes.c_char * searched).from_address(begin), f"u{width}")
        found = np.flatnonzero(numbers << 1)  # without the sign, which -0 has
        if len(found):
            place = min(int(found[0]) * width, size - half - length)
            break
    return (ctypes.c_char * length).from_address(begin + place)


def _tensors(module: GraphModule) -> Iterator[torch.Tensor]:
    """A graph's parameters and buffers, in the order of its inputs once they are that; of wrappers what they wrap."""
    named = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    for _, tensor in named:
        if is_traceable_wrapper_subclass(tensor):
            yield from (t for t in get_plain_tensors(tensor, out=[]) if isinstance(t, torch.Tensor))
        else:
            yield tensor
