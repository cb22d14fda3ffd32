"""The whole of a graph as one library, by plevel's own plan of it, where plevel has an operator for all that it does.

Inductor calls kernels one by one from Python; a library runs its steps in C, with weights packed at compile time and
buffers that later values take over.
"""
# Over 300 lines: a library as it is made, kept, found and called, by one name and one description.

from __future__ import annotations

import _ctypes
import ctypes
import hashlib
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule

from plevel.client import UnreachableError
from plevel.deployment import draft, write_all
from plevel.kernel_selection import Choose
from plevel.torch.exported import Order, find_weights, import_graph, require_few
from plevel.torch.frozen import is_dense
from plevel.torch.kernel import chosen_digest
from plevel.torch.quantization import NAMESPACE
from plevel.torch.store import (
    compiler_code,
    digest_of,
    folder,
    is_library,
    keeping,
    make_temporary,
    move,
    prune,
    touch,
)
from plevel.torch.verdict import Verdict, is_current
from strategy.host import cpu_model, usable_cores
from strategy.network.graph import NetworkError
from strategy.network.integer import constant_bytes
from strategy.network.library import Manifest
from strategy.record import convert, to_json
from strategy.target import Target
from workers.pool import Ask

_FUNCTION = "plevel_graph"
# A graph's text says all of what these do; a user's own function may have changed behind its name.
_KNOWN = ("torch", "_operator", "builtins", "math")
_OPERATORS = ("aten", "prims", "transformers", NAMESPACE)  # namespaces whose operators import knows, or refuses


class StaleError(Exception):
    """The library of a graph has other kernels than the one that was timed."""


class _About(msgspec.Struct, frozen=True):
    """The description of a kept library, beside it."""

    manifest: Manifest
    orders: tuple[Order, ...]
    verdict: Verdict


@dataclass(frozen=True)
class Whole:
    """A graph's library, loaded.

    Args:
        call: takes the graph's inputs, with the strides of those it was made for.
        watch: has a function called after each step of the manifest, with its number; None ends that.
        orders: of the axes of outputs in memory, as of `import_graph`.
        path: where a later process finds it, if it is kept.
        made: the temporary folder that it was made in; None for one from the folder of kernels.
        others: where records chose blocked layouts or joined convolutions for this one, a library without each, to
            compare it with, in a folder within `made`.
    """

    call: Callable[..., tuple[Any, ...]]
    watch: Callable[[Callable[[int], None] | None], None]
    manifest: Manifest
    orders: tuple[Order, ...]
    path: Path
    made: Path | None = None
    others: tuple[Whole, ...] = ()

    def kernels(self, target: Target) -> dict[str, str]:
        """The digests of its kernels by workload."""
        return _digests(self.manifest, target)

    def times(self, inputs: Sequence[Any]) -> list[tuple[str | None, float]]:
        """The workloads of its steps, with their seconds in one call; None is a copy."""
        ends: list[float] = []
        self.watch(lambda step: ends.append(time.perf_counter()))
        try:
            begin = time.perf_counter()
            self.call(*inputs)
        finally:
            self.watch(None)
        starts = [begin, *ends]
        return [(s.workload, b - a) for s, a, b in zip(self.manifest.steps, starts, ends, strict=False)]

    def chosen(self, kernels: Mapping[str, str], target: Target) -> Whole:
        """The one of the libraries that has the kernels, by their digests.

        Raises:
            StaleError: none has.
        """
        for one in (self, *self.others):
            if one.kernels(target) == kernels:
                return one
        raise StaleError

    def keep(self, verdict: Verdict) -> None:
        """Move a new library to its path, its description first; of two processes the last one's stays."""
        if self.made:
            with keeping("a graph's library"):
                beside = _beside(self.made / self.path.name)
                beside.write_bytes(msgspec.json.encode(to_json(_About(self.manifest, self.orders, verdict))))
                self.path.unlink(missing_ok=True)  # whoever is killed between leaves none beside another's description
                for name in (_beside(self.path), self.path):
                    move(self.made / name.name, name)
            prune()

    def sweep(self) -> None:
        """Delete the files of a new library and of its `others`, kept ones apart; this process can call them still."""
        if self.made:
            shutil.rmtree(self.made, ignore_errors=True)


def find_whole(
    module: GraphModule, inputs: Sequence[Any], target: Target, choose: Choose
) -> tuple[Whole, Verdict] | None:
    """The library of a graph that an earlier process kept, with the verdict on it; None where there is none.

    It is of the same weights, and its kernels would be chosen now.

    Raises:
        UnreachableError, ServiceError, DatabaseError: the records cannot be read.
    """
    try:
        prefix = _prefix(module, inputs, target)
        if not any(folder().glob(f"{prefix}-*.so")):
            return None  # the weights need not be read
        path = _path(module, prefix)
        about = convert(msgspec.json.decode(_beside(path).read_bytes()), _About)
        if is_library(path) and is_current(_digests(about.manifest, target), choose):
            touch(path)
            return _load(path, about.manifest, about.orders, path, inputs), about.verdict
    except UnreachableError:
        raise
    except (OSError, msgspec.MsgspecError, ValueError):  # a NetworkError is one, and a selection's error
        pass
    return None


def forget_whole(module: GraphModule, inputs: Sequence[Any], target: Target) -> None:
    """Delete the libraries of a graph that were kept, whatever their weights: each has a verdict that is void now."""
    with suppress(NetworkError):
        for path in folder().glob(f"{_prefix(module, inputs, target)}-*"):
            path.unlink(missing_ok=True)


def draft_whole(
    module: GraphModule, inputs: Sequence[Any], target: Target, choose: Choose, ask: Ask
) -> Callable[[], Whole]:
    """A function, for any thread, that builds the library of a graph, to be kept or swept.

    Args:
        inputs: what the graph is called with.
        ask: has children build kernels.

    Raises:
        NetworkError: the graph does what a library cannot; the function does if a kernel cannot be built.
        CompileError: of the function; the library cannot be linked.
    """
    path = _path(module, _prefix(module, inputs, target))
    network, orders = import_graph(module, inputs)
    require_few(constant_bytes(network, target))
    found = draft(network, target, choose)
    # Choices without records rest on measurements of other networks: nothing to compare.
    others = [draft(network, target, choose, pairs=False)] if found.has_measured_pairs else []
    others += [draft(network, target, choose, blocks=False)] if found.has_measured_blocks else []

    def build_all() -> Whole:
        made = make_temporary("graph-")
        try:
            places = [made / path.name, *(made / str(n) / path.name for n in range(len(others)))]
            for place in places[1:]:
                place.parent.mkdir()
            drafts = dict(zip(places, (found, *others), strict=True))
            built = write_all(drafts, name=_FUNCTION, about="a graph of torch.compile", ask=ask, appended=True)
            first, *rest = (_load(d.library, d.description, orders, path, inputs, d.library.parent) for d in built)
            return replace(first, others=tuple(rest))
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise

    return build_all


def _digests(manifest: Manifest, target: Target) -> dict[str, str]:
    return {s.workload: chosen_digest(s.workload, target, s) for s in manifest.steps if s.workload}


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _load(
    path: Path, manifest: Manifest, orders: tuple[Order, ...], kept: Path, inputs: Sequence[torch.Tensor],
    made: Path | None = None,
) -> Whole:
    if [(t.shape, getattr(torch, t.dtype)) for t in manifest.inputs] != [(tuple(i.shape), i.dtype) for i in inputs]:
        raise NetworkError("the inputs of the kept library differ from the graph's")
    # By a name of its own: one that this process has loaded by its path, and that was replaced since, would be called.
    # Not beside it: the folder of kernels may be read-only.
    # Of one open file, as another process may put code and weights of other kernels in its place meanwhile.
    with path.open("rb") as file, tempfile.TemporaryDirectory(prefix="plevel-") as unique:
        link = Path(unique) / path.name
        link.symlink_to(f"/proc/self/fd/{file.fileno()}")
        library = ctypes.CDLL(str(link))
        if manifest.weight_bytes and library[f"{manifest.function}_map"](os.fsencode(link)):
            raise OSError(f"{path} cannot be read, or lacks a part")
    function, trace = library[manifest.function], library[f"{manifest.function}_trace"]
    function.argtypes = [ctypes.c_void_p] * (len(manifest.inputs) + len(manifest.outputs))
    outputs = [(o.shape, getattr(torch, o.dtype)) for o in manifest.outputs]

    scattered = [k for k, i in enumerate(inputs) if not i.is_contiguous()]  # such as images of channels_last
    turned = [(place, np.argsort(order).tolist()) for place, order in enumerate(orders) if order]

    def call(*inputs: Any) -> tuple[Any, ...]:
        if scattered:
            inputs = tuple(i.contiguous() for i in inputs)
        results = [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in outputs]
        failed = function(*(i.data_ptr() for i in inputs), *(r.data_ptr() for r in results))
        if failed == -1:
            raise MemoryError(f"plevel: no memory for {manifest.arena_bytes} bytes of intermediate values of {kept}")
        if failed == -2:
            raise RuntimeError(f"plevel: an input has no memory, as its storage was freed: {kept} reads it")
        if failed < 0:
            raise RuntimeError(f"plevel: this processor lacks instructions of {kept}")
        if failed:
            raise RuntimeError(f"plevel: {manifest.steps[failed - 1].workload or 'a copy'} failed in {kept}")
        for place, axes in turned:
            results[place] = results[place].permute(axes)
        return tuple(results)

    # With its last reference, such as by `torch._dynamo.reset()`. At the end of the process other threads may call it.
    weakref.finalize(call, _unload, library, manifest).atexit = False
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)
    watching: list[Any] = []  # ctypes frees a function that nothing refers to

    def watch(function: Callable[[int], None] | None) -> None:
        watching[:] = [kind(lambda step, _: function(step)) if function else kind()]
        trace(watching[0])

    return Whole(call, watch, manifest, orders, kept, made)


def _unload(library: ctypes.CDLL, manifest: Manifest) -> None:
    """Unload a library that nothing calls any more, with its buffers and weights."""
    if manifest.weight_bytes:
        library[f"{manifest.function}_map"](None)
    _ctypes.dlclose(library._handle)


def _prefix(module: GraphModule, inputs: Sequence[Any], target: Target) -> str:
    """The beginning of the names of a graph's libraries, whatever the values of its weights are.

    Raises:
        NetworkError: a library cannot have its inputs or weights, or the graph's text does not say all that it does.
    """
    if not all(
        isinstance(i, torch.Tensor) and i.device.type == "cpu" and is_dense(i) and not (i.is_conj() or i.is_neg())
        for i in inputs
    ):
        raise NetworkError("its inputs are not all dense tensors of fixed sizes")
    graphs = [(name, m.graph) for name, m in module.named_modules() if isinstance(m, GraphModule)]
    for node in (node for _, graph in graphs for node in graph.nodes):
        if node.op == "call_module" or _owner(node) not in _KNOWN:
            raise NetworkError(f"it calls {node.target}, which is not PyTorch's own")
    digest = digest_of(
        [(name, str(graph)) for name, graph in graphs], _types(inputs), sorted(_weights(module)), target.to_json(),
        cpu_model(), str(torch.get_default_dtype()), torch.is_autocast_enabled("cpu"),
        str(torch.get_autocast_dtype("cpu")), str(torch.__version__), compiler_code(),
    )
    return f"graph-{digest}"


def _owner(node: torch.fx.Node) -> str:
    """The package of the function that a node calls, or an operator's namespace; of others PyTorch."""
    if node.op != "call_function":
        return "torch"
    if isinstance(node.target, OpOverload | OpOverloadPacket):
        namespace = str(node.target).partition(".")[0]
        return "torch" if namespace in _OPERATORS else namespace
    of: Any = getattr(node.target, "__objclass__", node.target)
    return str(getattr(of, "__module__", "")).partition(".")[0]


def _types(tensors: Iterable[torch.Tensor]) -> list[str]:
    return [f"{t.dtype} {tuple(t.shape)}{'' if t.is_contiguous() else t.stride()}" for t in tensors]


def _weights(module: GraphModule) -> list[tuple[str, str]]:
    return [(name, f"{t.dtype} {tuple(t.shape)} {t.stride()}") for name, t in find_weights(module).items()]


def _path(module: GraphModule, prefix: str) -> Path:
    """The library's path, which has the digest of the weights."""
    weights = [tensor for _, tensor in sorted(find_weights(module).items())]
    with ThreadPoolExecutor(usable_cores()) as threads:
        digests = list(threads.map(_digest, weights))
    return folder() / f"{prefix}-{digest_of(*digests)}.so"


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()
