"""Triton's autotuner over a service: its own objects, with stand-ins for the GPU and the benchmark."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="the triton extra is not installed")
pytest.importorskip("torch", reason="the triton extra is not installed: no PyTorch")

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

import plevel.hooks.triton as hook
from plevel.client import Client
from tests.integration.process import Service
from tests.limit import HANG_S
from tests.port import free_port

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TIMES = {16: 3.0, 32: 1.0, 64: 2.0, 128: math.inf, 256: 0.5}


@triton.jit
def scale(x, n, BLOCK: triton.language.constexpr) -> None:
    pass


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A device of a model that tests may change."""
    model = SimpleNamespace(name="NVIDIA H100 80GB HBM3", arch=90)
    fake = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", model.arch, 32), get_current_device=lambda: 0
    )
    monkeypatch.setattr(type(driver), "active", property(lambda self: fake))
    monkeypatch.setattr(hook, "_place_of", hook._place_of.__wrapped__)
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: model.name)
    yield model
    hook.uninstall()


def tuner(blocks: list[int], asks: bool = True, **options: Any) -> tuple[Any, list[int]]:
    """An autotuner of `scale`, and the blocks that it measures."""
    measured: list[int] = []

    def bench(call: Any, quantiles: Any) -> list[float]:
        call()
        took = TIMES[measured[-1]]
        return [took, took * 0.9, took * 1.1]

    configs = [triton.Config({"BLOCK": b}, num_warps=4) for b in blocks]
    make = hook.autotune if asks else triton.autotune
    made = make(configs, ["n"], do_bench=bench, **options)(scale)
    made.fn = _Launch(scale, measured)
    return made, measured


class _Launch:
    """A kernel that only notes its block."""

    def __init__(self, fn: Any, measured: list[int]) -> None:
        self.fn = fn
        self._measured = measured

    def run(self, *args: Any, BLOCK: int, **kwargs: Any) -> None:
        self._measured.append(BLOCK)


def tune(made: Any, n: int = 4096) -> int:
    """Tune a size; return the block that was selected."""
    made.run(SimpleNamespace(dtype="fp16"), n, grid=(1,), warmup=False)
    return int(made.best_config.kwargs["BLOCK"])


def install(service: Service, namespace: str, tmp_path: Path) -> Any:
    return hook.install(str(service.http.base_url), namespace=namespace, folder=tmp_path / "spool")


def test_each_candidate_is_recorded(service: Service, tmp_path: Path) -> None:
    url = str(service.http.base_url)
    reporter = install(service, "triton.a", tmp_path)
    made, _ = tuner([16, 32, 64, 128], asks=False)
    assert tune(made) == 32
    # A time of a broken clock does not count.
    reporter.report({**hook._where(), "tool": "triton", "kernel": "zero", "attrs": {},
                     "candidates": [hook._candidate(made.configs[0], [0.0, 0.0, 1.0])]})
    assert reporter.flush(HANG_S)
    with Client(url, namespace="triton.a") as client:
        records = list(client.iter_records(implementation="triton:scale"))
        (zero,) = client.iter_records(implementation="triton:zero")
        (kernel,) = client.iter_foreign("triton", kernel="scale")
    assert [(r["config"]["BLOCK"], r["error"], r["samples_s"]) for r in records] == [
        (16, None, [3e-3]), (32, None, [1e-3]), (64, None, [2e-3]), (128, "compile", []),
    ]
    assert kernel["workload"] == 'triton.scale(){"key":[4096,"fp16"]}'
    best = kernel["best"]
    assert (best["config"]["BLOCK"], best["config"]["num_warps"]) == (32, 4)
    assert (best["device_model"], best["target"]) == ("NVIDIA H100 80GB HBM3", "cuda/sm_90")
    assert best["version"] == hook._source(scale)
    assert "def scale" not in str(records)
    assert (zero["error"], zero["samples_s"]) == ("runtime", [])


def test_what_is_known_is_not_measured_again(
    service: Service, tmp_path: Path, gpu: SimpleNamespace
) -> None:
    reporter = install(service, "triton.b", tmp_path)
    first, measured = tuner([16, 32, 64, 128])
    assert tune(first) == 32
    assert set(measured) == {16, 32, 64, 128}
    assert reporter.flush(HANG_S)
    # Another process of this device.
    again, measured = tuner([16, 32, 64, 128])
    assert tune(again) == 32
    assert measured == [32]  # the call itself
    # A configuration is added: it is measured, beside the best.
    more, measured = tuner([16, 32, 64, 128, 256])
    assert tune(more) == 256
    assert {16, 32, 64, 256} >= set(measured)
    assert 128 not in measured  # which failed here
    assert reporter.flush(HANG_S)
    # A sibling of the same architecture measures few of them anew.
    gpu.name = "NVIDIA H200"
    other, measured = tuner([16, 32, 64, 128, 256])
    assert tune(other) == 256
    assert 16 not in measured
    assert reporter.flush(HANG_S)
    # Another key is another problem.
    new, measured = tuner([16, 32])
    assert tune(new, 8192) == 32
    assert set(measured) == {16, 32}


@pytest.mark.parametrize("name", ["s" * 91, "s" * 130, "<lambda>()"])
def test_a_kernel_whose_name_is_stored_otherwise_is_found(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, name: str
) -> None:
    reporter = install(service, f"triton.e{len(name)}", tmp_path)
    monkeypatch.setattr(scale, "__name__", name)
    for expected in ([16, 32], [32]):
        made, measured = tuner([16, 32])
        assert tune(made) == 32
        assert sorted(set(measured)) == expected
        assert reporter.flush(HANG_S)
    assert caplog.records == []


def test_other_source_is_another_kernel(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = install(service, "triton.c", tmp_path)
    tune(tuner([16, 32])[0])
    assert reporter.flush(HANG_S)
    monkeypatch.setattr(hook, "_source", lambda fn: "another")
    made, measured = tuner([16, 32])
    tune(made)
    assert set(measured) == {16, 32}


def test_the_users_own_pruning_and_listener_stay(service: Service, tmp_path: Path) -> None:
    heard: list[Any] = []
    triton.knobs.autotuning.listener = lambda **told: heard.append(told["key"])
    try:
        reporter = install(service, "triton.d", tmp_path)
        early = {"early_config_prune": lambda configs, nargs, **kwargs: configs[:2]}
        made, measured = tuner([16, 32, 64], prune_configs_by=early)
        assert tune(made) == 32
        assert set(measured) == {16, 32}
        assert heard == [(4096, "fp16")]
        assert reporter.flush(HANG_S)
        hook.uninstall()
        assert heard and not isinstance(triton.knobs.autotuning.listener, hook._Listener)
    finally:
        triton.knobs.autotuning.listener = None


def test_without_a_service_all_are_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook.install(f"http://127.0.0.1:{free_port()}", folder=tmp_path)
    made, measured = tuner([16, 32, 64])
    assert tune(made) == 32
    assert set(measured) == {16, 32, 64}
    hook.uninstall()
    assert caplog.text.count("tuning goes on without plevel") == 1
    assert len(list(tmp_path.glob("*.ndjson"))) == 1


def test_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLEVEL_HOOKS", "0")
    assert hook.install("http://127.0.0.1:1") is None
    assert triton.knobs.autotuning.listener is None
    made, measured = tuner([16, 32])
    assert tune(made) == 32
    assert set(measured) == {16, 32}
