"""Calls of a compiled model: by other threads, processes and modes than those that compiled it, and of its copies."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from plevel.torch import explain, kernel, operation
from plevel.torch.backend import plevel
from plevel.torch.plan import model_target
from strategy.select import NO_RECORDS, select
from strategy.workload import Workload
from tests.limit import HANG_S
from tests.torch import models

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("fresh")


def compiled(model: Any) -> Any:
    return torch.compile(model, backend=plevel, options={"confirm": False})


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def block(width: int = 64) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    return models.Block(width, 128).eval(), torch.randn(32, width)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets PyTorch's number of threads, which is put back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_a_graph_is_compiled_once_for_each_number_of_threads(threads: Callable[[int], None]) -> None:
    model, x = block()
    fast = compiled(model)
    graphs = []
    with torch.inference_mode():
        for count in (1, 2, 1, 2):
            threads(count)
            close(fast(x), model(x))
            graphs.append(len(explain(model)))
    assert graphs == [1, 2, 2, 2]


def test_a_kernel_of_two_tasks_runs_on_any_number_of_threads(threads: Callable[[int], None]) -> None:
    threads(2)
    workload = Workload.make("softmax", {"data": "float32[512,512]"})
    (built,) = kernel.build([select(workload, model_target(), NO_RECORDS)])[0].values()
    operation.load(built)
    x = torch.randn(512, 512)
    expected = torch.softmax(x, -1)

    def call() -> None:
        out = torch.full_like(x, 7)
        operation.native().run(x, built.digest, out=out)
        close(out, expected)
        done.append(torch.get_num_threads())

    done: list[int] = []
    for count in (1, 2, 5):
        threads(count)
        call()
        thread = threading.Thread(target=call)  # which has OpenMP's threads of its own
        thread.start()
        thread.join()
    assert done == [1, 1, 2, 2, 5, 5]


FORKED = f"""
import os, signal
import torch
from tests.torch import models
from plevel.torch.backend import plevel

torch.manual_seed(0)
torch.set_num_threads(2)
model, x = models.Block(64, 512).eval(), torch.randn(256, 64)
fast = torch.compile(model, backend=plevel, options={{"confirm": False}})

def call():
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), model(x), atol=2e-5, rtol=2e-5)

call()
for threads in (2, 1):  # 1 as in the workers of a DataLoader
    child = os.fork()
    if not child:
        signal.alarm({HANG_S:.0f})
        torch.set_num_threads(threads)
        call()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, threads
    call()
"""


def test_a_child_of_fork_calls_what_its_parent_has_called() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], env=environment, capture_output=True, text=True, check=False,
        timeout=3 * HANG_S,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_modes_may_change_between_calls() -> None:
    model, x = block()
    fast = compiled(model)
    for _ in range(2):
        with torch.no_grad():
            found = fast(x)
            close(found, model(x))
            assert not found.is_inference()
        with torch.inference_mode():
            found = fast(x)
            close(found, model(x))
            assert found.is_inference()
            with torch.autocast("cpu", torch.bfloat16):
                narrow = fast(x)
                torch.testing.assert_close(narrow, model(x), atol=0.05, rtol=0.05)
                assert narrow.dtype == model(x).dtype
        found = fast(x)
        close(found, model(x))
        found.sum().backward()
    assert [bool(r.note) for r in explain(model)].count(True) == 1  # of the graph that may need gradients
    assert sum(p.grad is not None for p in model.parameters()) == 4


@pytest.mark.sample(1)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.05), (torch.float64, 1e-12)])
def test_a_model_may_have_another_dtype_after_a_call(dtype: Any, tolerance: float) -> None:
    model, x = block()
    fast = compiled(model)
    with torch.inference_mode():
        close(fast(x), model(x))
    model.to(dtype)
    with torch.inference_mode():
        found, expected = fast(x.to(dtype)), model(x.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def saved(model: Any) -> Any:
    memory = BytesIO()
    torch.save(model, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=False)


@pytest.mark.sample(2)
@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved])
def test_a_copy_of_a_compiled_model_has_weights_of_its_own(duplicate: Callable[[Any], Any], called: bool) -> None:
    model, x = block()
    fast = torch.compile(model, backend="plevel", options={"confirm": False})
    with torch.inference_mode():
        before = fast(x) if called else model(x)
        other = duplicate(fast)
        for parameter in other.parameters():
            parameter.mul_(2)
        close(other(x), other._orig_mod(x))
        close(fast(x), before)
    assert explain(other._orig_mod)[-1].rows


def test_a_compiled_model_is_exported_as_the_model() -> None:
    model, x = block()
    fast = compiled(model)
    with torch.no_grad():
        fast(x)
        program = torch.export.export(fast, (x,))
        close(program.module()(x), model(x))
        close(fast(x), model(x))


def test_two_threads_compile_and_call_at_once() -> None:
    made = [block(width) for width in (32, 48)]
    fast = [compiled(model) for model, _ in made]
    found: list[Any] = [None] * 2
    barrier = threading.Barrier(2)

    def work(place: int) -> None:
        barrier.wait(HANG_S)
        with torch.inference_mode():
            found[place] = [fast[place](made[place][1]) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (model, x), results in zip(made, found, strict=True):
        with torch.inference_mode():
            expected = model(x)
        for result in results:
            close(result, expected)
