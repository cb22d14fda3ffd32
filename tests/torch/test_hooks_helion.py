"""Helion's remote cache over a service: its own classes, with a stand-in for the kernel."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

helion = pytest.importorskip("helion", reason="the helion extra is not installed")
pytest.importorskip("torch", reason="the helion extra is not installed: no PyTorch")

from helion.autotuner import local_cache, remote_cache
from helion.autotuner.base_cache import LooseAutotuneCacheKey

import plevel.hooks.helion as hook
from tests.integration.process import Service
from tests.limit import HANG_S
from tests.port import free_port

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
CONFIG = {"block_sizes": [64, 32], "loop_orders": [[1, 0]], "num_warps": 4}


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Name the service and the namespace."""
    monkeypatch.setenv("HELION_REMOTE_CACHE_BACKEND", "plevel.hooks.helion.Backend")
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path / "local"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(hook, "get_device_name", lambda: "NVIDIA H100")
    monkeypatch.setattr(local_cache, "bound_structural_policy", lambda kernel: None)

    def choose(url: str, namespace: str) -> None:
        monkeypatch.setenv("PLEVEL_URL", url)
        monkeypatch.setenv("PLEVEL_NAMESPACE", namespace)

    yield choose
    for reporter in hook._reporters:
        reporter.close()
    hook._reporters.clear()


def cache_of(shape: int, hardware: str = "NVIDIA H100") -> Any:
    """A remote cache of one kernel on one shape."""
    made = remote_cache.RemoteAutotuneCache.__new__(remote_cache.RemoteAutotuneCache)
    made.key = LooseAutotuneCacheKey(
        specialization_key=(("torch.float32", (shape,)),), extra_results=(),
        kernel_source_hash="5e" * 32, hardware=hardware, runtime_name="13.0", backend="triton",
        config_spec_hash="ab" * 32,
    )
    spec = SimpleNamespace(
        create_config_generation=lambda **_: SimpleNamespace(flatten=lambda config: [64, 32, 4])
    )
    made.kernel = SimpleNamespace(config_spec=spec, backend_cache_key=lambda config: "cafe", env=None)
    made.autotuner = SimpleNamespace(settings=SimpleNamespace(autotune_search_acf=None))
    made._backend = remote_cache._load_remote_backend()
    return made


def test_a_winner_is_found_by_another_machine(service: Service, on: Any, tmp_path: Path) -> None:
    on(str(service.http.base_url), "helion.a")
    ours = cache_of(4096)
    assert ours._backend.get(ours.key.stable_hash()) is None
    ours.put(helion.Config(**CONFIG))
    assert hook._reporters[0].flush(HANG_S)
    ours._get_local_cache_path().unlink()  # another machine has no file
    found = cache_of(4096).get()
    assert found.config == CONFIG
    written = json.loads(ours._get_local_cache_path().read_text())  # and keeps one from now on
    assert json.loads(written["config"]) == CONFIG
    assert cache_of(512).get() is None


def test_neighbours_of_the_same_device_warm_a_search(service: Service, on: Any) -> None:
    on(str(service.http.base_url), "helion.b")
    for shape in (1, 2, 3):
        cache_of(shape).put(helion.Config(**CONFIG))
        assert hook._reporters[0].flush(HANG_S)
    cache_of(4, "NVIDIA A100-SXM4-80GB").put(helion.Config(**CONFIG))
    assert hook._reporters[0].flush(HANG_S)
    listed = [local_cache.parse_cache_entry(raw) for raw in hook.Backend().list(max_results=2)]
    assert [e.specialization_key for e in listed] == [
        f"(('torch.float32', ({shape},)),)" for shape in (3, 2)
    ]
    assert {e.hardware for e in listed} == {"NVIDIA H100"}
    assert listed[0].flat_config == (64, 32, 4)
    assert len(list(hook.Backend().list())) == 3


def test_without_a_service_the_local_cache_serves(on: Any, caplog: pytest.LogCaptureFixture) -> None:
    on(f"http://127.0.0.1:{free_port()}", "helion.c")
    cache = cache_of(4096)
    cache.put(helion.Config(**CONFIG))
    assert cache.get().config == CONFIG
    assert list(hook.Backend().list()) == []
    assert hook._reporters[0].flush(HANG_S)
    assert caplog.text.count("tuning goes on without plevel") == 1


def test_what_is_no_entry_raises_nothing(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on(f"http://127.0.0.1:{free_port()}", "helion.d")
    backend = hook.Backend()
    (reporter,) = hook._reporters
    for answer in ({}, {"answers": [{}]}, {"answers": [{"extra": "text"}]}, {"answers": None}):
        monkeypatch.setattr(reporter, "best", lambda *_, answer=answer, **__: answer)
        assert backend.get("key") is None
    monkeypatch.setattr(reporter, "kernels", lambda *_, **__: [{}])
    assert list(backend.list()) == []
    for data in ("", "[]", "{}"):
        backend.put("key", data)


def test_it_is_switched_off(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLEVEL_HOOKS", "0")
    cache = cache_of(4096)
    cache.put(helion.Config(**CONFIG))
    assert cache.get().config == CONFIG
    assert hook._reporters == []
