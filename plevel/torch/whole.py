"""The whole of a graph as one library, by plevel's own plan of it, where plevel has an operator for all that it does.

Inductor calls kernels one by one from Python; a library runs its steps in C, with weights packed at compile time and
buffers that later values take over.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule

from plevel.deployment import deploy
from plevel.kernel_selection import Choose
from plevel.torch.exported import find_weights, import_graph
from plevel.torch.kernel import chosen_digest, kernel_digest
from plevel.torch.plan import Plan
from plevel.torch.store import digest_of, folder, touch
from strategy.network.graph import NetworkError
from strategy.network.library import Manifest
from strategy.record import convert
from strategy.target import Target
from strategy.workload_text import parse_workload

_FUNCTION = "plevel_graph"


@dataclass(frozen=True)
class Whole:
    """A graph's library, loaded.

    Args:
        call: takes the graph's inputs, contiguous tensors, and gives its outputs, contiguous ones.
        path: where a later process finds it, if it is kept.
        made: the temporary folder that it was made in; None for one from the folder of kernels.
    """

    call: Callable[..., tuple[Any, ...]]
    manifest: Manifest
    path: Path
    made: Path | None

    def kernels(self, target: Target) -> dict[str, str]:
        """The digests of its kernels by workload."""
        return {s.workload: chosen_digest(s.workload, target, s) for s in self.manifest.steps if s.workload}

    def keep(self) -> None:
        """Move a new library to its path, its manifest first; of two processes that made it, the last one's stays."""
        if self.made:
            for name in (_about(self.path), self.path):
                (self.made / name.name).replace(name)

    def sweep(self) -> None:
        """Delete the files of a new library that was not kept; this process can call it still."""
        if self.made:
            shutil.rmtree(self.made, ignore_errors=True)


def compile_whole(module: GraphModule, inputs: Sequence[Any], plan: Plan, choose: Choose) -> Whole:
    """The library of a graph, from the folder of kernels or a new one, to be kept or swept.

    Args:
        inputs: what the graph is called with.
        plan: of the frozen graph; its digest and that of the weights name the library.

    Raises:
        NetworkError: the graph does what a library cannot, or a kernel cannot be built.
        CompileError: the library cannot be linked.
    """
    if not all(isinstance(i, torch.Tensor) and i.device.type == "cpu" and i.is_contiguous() for i in inputs):
        raise NetworkError("its inputs are not all contiguous tensors of fixed sizes")
    path = folder() / f"graph-{digest_of(plan.key, _digest(module))}.so"
    if path.exists():
        touch(path)
        found = _load(path, inputs, path, None)
        if is_current(found.kernels(plan.target), choose):
            return found
    made = Path(tempfile.mkdtemp(prefix="graph-", dir=folder()))
    try:
        _build(module, inputs, plan, choose, made / path.name)
        return _load(made / path.name, inputs, path, made)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def is_current(kernels: Mapping[str, str], choose: Choose) -> bool:
    """Return whether the kernels of a library, of which there are digests by workload, would be chosen now."""
    return all(kernel_digest(choose(parse_workload(key))) == digest for key, digest in kernels.items())


def _about(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _build(module: GraphModule, inputs: Sequence[Any], plan: Plan, choose: Choose, path: Path) -> None:
    network = import_graph(module, inputs)
    made = deploy(network, plan.target, choose, path, name=_FUNCTION, about="a graph of torch.compile")
    made.header.unlink()
    made.manifest.replace(_about(path))


def _load(path: Path, inputs: Sequence[torch.Tensor], kept: Path, made: Path | None) -> Whole:
    manifest = convert(msgspec.json.decode(_about(path).read_bytes()), Manifest)
    if [(t.shape, getattr(torch, t.dtype)) for t in manifest.inputs] != [(tuple(i.shape), i.dtype) for i in inputs]:
        raise NetworkError("its library takes other inputs")
    # By a name of its own: one that this process has loaded by its path, and that was replaced since, would be called.
    with tempfile.TemporaryDirectory(prefix="load-", dir=folder()) as unique:
        link = Path(unique) / path.name
        link.symlink_to(path)
        function = ctypes.CDLL(str(link))[manifest.function]
    function.argtypes = [ctypes.c_void_p] * (len(manifest.inputs) + len(manifest.outputs))
    outputs = [(o.shape, getattr(torch, o.dtype)) for o in manifest.outputs]

    def call(*inputs: Any) -> tuple[Any, ...]:
        results = tuple(torch.empty(shape, dtype=dtype) for shape, dtype in outputs)
        if function(*(i.data_ptr() for i in inputs), *(r.data_ptr() for r in results)):
            raise RuntimeError(f"plevel: a kernel of {kept} failed")
        return results

    return Whole(call, manifest, kept, made)


def _digest(module: GraphModule) -> str:
    """Digest of a graph as Dynamo made it, which says where each weight is used, and of the weights."""
    digest = hashlib.sha256(str(module.graph).encode())
    for name, tensor in sorted(find_weights(module).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
