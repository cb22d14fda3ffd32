"""The whole of a graph as one library, by plevel's own plan of it, where plevel has an operator for all that it does.

Inductor calls kernels one by one from Python; a library runs its steps in C, with weights packed at compile time and
buffers that later values take over.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule

from plevel.deployment import deploy
from plevel.torch.exported import import_program
from plevel.torch.plan import Plan
from plevel.torch.store import digest_of, folder, touch
from strategy.network.graph import NetworkError
from strategy.network.library import Manifest
from strategy.record import convert
from strategy.select import Database
from strategy.select.lock import Lock

MOST_BYTES = 2**30  # of weights: the library holds them all, packed
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

    def keep(self) -> None:
        """Move a new library to its path, its manifest first; of two processes that made it, the last one's stays."""
        if self.made:
            for name in (_about(self.path), self.path):
                (self.made / name.name).replace(name)

    def sweep(self) -> None:
        """Delete the files of a new library that was not kept; this process can call it still."""
        if self.made:
            shutil.rmtree(self.made, ignore_errors=True)


def compile_whole(
    module: GraphModule, inputs: Sequence[Any], plan: Plan, database: Database, lock: Lock | None
) -> Whole:
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
    path = folder() / f"graph-{digest_of(plan.key, _weights_digest(module), version('plevel'))}.so"
    if path.exists():
        touch(path)
        return _load(path, path, None)
    made = Path(tempfile.mkdtemp(prefix="graph-", dir=folder()))
    try:
        _build(module, inputs, plan, database, lock, made / path.name)
        return _load(made / path.name, path, made)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _about(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _build(
    module: GraphModule, inputs: Sequence[Any], plan: Plan, database: Database, lock: Lock | None, path: Path
) -> None:
    # The graph is exported anew, apart from what Dynamo knows of it.
    with torch._guards.tracing(None), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, of itself
        try:
            program = torch.export.export(module, tuple(inputs), strict=False)
        except Exception as error:  # of any type
            reason = " ".join(str(error).split())[:200]
            raise NetworkError(f"it cannot be exported: {type(error).__name__}: {reason}") from error
        network, _ = import_program(program)
    made = deploy(network, plan.target, database, path, name=_FUNCTION, about="a graph of torch.compile", lock=lock)
    made.header.unlink()
    made.manifest.replace(_about(path))


def _load(path: Path, kept: Path, made: Path | None) -> Whole:
    manifest = convert(msgspec.json.decode(_about(path).read_bytes()), Manifest)
    function = ctypes.CDLL(str(path))[manifest.function]
    function.argtypes = [ctypes.c_void_p] * (len(manifest.inputs) + len(manifest.outputs))
    outputs = [(o.shape, getattr(torch, o.dtype)) for o in manifest.outputs]

    def call(*inputs: Any) -> tuple[Any, ...]:
        results = tuple(torch.empty(shape, dtype=dtype) for shape, dtype in outputs)
        if function(*(i.data_ptr() for i in inputs), *(r.data_ptr() for r in results)):
            raise RuntimeError(f"plevel: a kernel of {kept} failed")
        return results

    return Whole(call, manifest, kept, made)


def _weights_digest(module: GraphModule) -> str:
    """Digest of a graph's parameters, buffers and constants.

    Raises:
        NetworkError: they are too large for a library.
    """
    held = dict((*module.named_parameters(), *module.named_buffers()))
    for node in module.graph.nodes:
        if node.op == "get_attr":
            held[node.target] = reduce(getattr, node.target.split("."), module)
    size = sum(t.nbytes for t in held.values())
    if size > MOST_BYTES:
        raise NetworkError(f"its weights have {size / 2**30:.1f} GiB, a library at most {MOST_BYTES >> 30}")
    digest = hashlib.sha256()
    for name, tensor in sorted(held.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
