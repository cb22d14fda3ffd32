"""Fixtures of kernel tests: two threads for TVM, and one run of an implementation on random data."""

from __future__ import annotations

import os

# Read once, when TVM starts its threads; its own count is wrong on small machines.
os.environ.setdefault("TVM_NUM_THREADS", "2")

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from strategy.compile.artefact import Artefact
from strategy.compile.lower import lower
from strategy.op import get_op
from strategy.signature import Role
from strategy.target import Target
from strategy.workload import Workload
from workers.reference import epsilon
from workers.sandbox import WORKER_IMPORTS, ForkServer

GUARD = 1024  # numbers on each side of an output that nothing may touch
_TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


@pytest.fixture(scope="session")
def target() -> Target:
    return Target.parse("cpu").with_threads(2)


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One fork server for all that a module builds: each takes longer to load TVM than most libraries to build."""
    imports = (*WORKER_IMPORTS, "workers.network_builder")
    with ForkServer(tmp_path_factory.mktemp("logs"), imports) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.pool.ForkServer", lambda *_: nullcontext(server))
        yield


def aligned(shape: Sequence[int], dtype: str, guard: int = 0) -> tuple[Any, Any]:
    """An array at a multiple of 64 bytes, and the whole memory that holds it and its guards."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape))
    memory = np.full(count + 2 * guard + 64, np.asarray(-77).astype(kind))
    start = guard + (-(memory.ctypes.data + guard * kind.itemsize)) % 64 // kind.itemsize
    return memory[start : start + count].reshape(shape), memory


def random_inputs(workload: Workload, seed: int = 0) -> list[Any]:
    generator = np.random.default_rng(seed)
    arrays = []
    for given in workload.inputs:
        array, _ = aligned(given.tensor.concrete_shape, given.tensor.dtype)
        array[...] = generator.uniform(-1, 1, array.shape)
        arrays.append(array)
    return arrays


def run(artefact: Artefact, inputs: Mapping[str, Any], shape: Sequence[int]) -> Any:
    """The artefact's output for these inputs; fails where it writes outside of it."""
    from tvm.runtime import from_dlpack, tensor

    argument = artefact.arguments[-1]
    assert argument.role is Role.OUTPUT
    out, memory = aligned(shape, argument.tensor.dtype, GUARD)
    out[...] = np.nan if epsilon(argument.tensor.dtype) else 77
    start = (out.ctypes.data - memory.ctypes.data) // out.itemsize
    tensors = [artefact.prepare(a, tensor(inputs[a.name])) for a in artefact.arguments[:-1]]
    artefact.main(*tensors, from_dlpack(out))
    guard = np.asarray(-77).astype(out.dtype)
    assert (memory[:start] == guard).all(), "wrote before its output"
    assert (memory[start + out.size :] == guard).all(), "wrote after its output"
    return out


@pytest.fixture(scope="session")  # hypothesis calls many tests with one
def check(target: Target) -> Callable[..., None]:
    """Compile one implementation with one configuration and compare it with the reference."""

    def check(
        workload: Workload, implementation: str, config: Mapping[str, Any] | None = None
    ) -> None:
        artefact = lower(workload, target, implementation, config).compile(checks=False)
        arrays = random_inputs(workload)
        names = [i.name for i in workload.inputs]
        expected = get_op(workload.op).get_attr("FReference")(workload.attr_node, arrays)
        got = run(artefact, dict(zip(names, arrays, strict=True)), expected.shape)
        dtype = artefact.arguments[-1].tensor.dtype
        scale = max(1.0, float(np.abs(expected).max()))
        error = float(np.abs(got.astype(np.float64) - expected).max()) / scale
        assert error <= _TOLERANCE[dtype], f"{workload} {implementation} {config}: error {error:.2e}"

    return check
