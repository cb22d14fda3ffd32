"""Inductor's lookup table over a service: its own lowering of a product on the processor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from torch._inductor import config, select_algorithm

import plevel.hooks.inductor as hook
from strategy.host import cpu_model
from tests.integration.process import Service
from tests.limit import HANG_S
from tests.port import free_port

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    hook.uninstall()
    torch.compiler.reset()


def multiply(m: int) -> None:
    """Compile and call a product with autotuning."""
    a, b = torch.rand(m, 64), torch.rand(64, 32)
    with config.patch(force_disable_caches=True), torch.no_grad():  # what is compiled before a graph stays
        compiled = torch.compile(torch.mm, mode="max-autotune-no-cudagraphs", dynamic=False)
        torch.testing.assert_close(compiled(a, b), a @ b)
    torch.compiler.reset()


def test_inductor_asks_for_a_product_and_takes_the_answer(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(service.http.base_url)
    multiply(16)  # Inductor keeps the choices of a thread's first compilation
    reporter = hook.install(url, namespace="inductor.a", folder=tmp_path)
    assert reporter is not None
    assert hook.save in select_algorithm.get_algorithm_selector_cache().feedback_saver_fns
    asked: list[Any] = []
    taken: list[Any] = []
    make = hook.Choices._create_lookup_choices
    best = reporter.best

    def ask(tool: str, workload: Any, **terms: Any) -> Any:
        asked.append(workload)
        return best(tool, workload, **terms)

    def create(self: Any, found: Any, *more: Any) -> Any:
        made = make(self, found, *more)
        taken.append((found, [c.template.uid for c in made]))
        return made

    monkeypatch.setattr(reporter, "best", ask)
    monkeypatch.setattr(hook.Choices, "_create_lookup_choices", create)
    multiply(48)
    assert [w.op for w in asked] == ["inductor.mm"]
    assert "[48, 64]" in asked[0].attrs["key"]
    assert taken == []
    line = {"tool": "inductor", "kernel": "mm", "attrs": asked[0].attrs, "device_model": cpu_model()}
    entry = {"config": {"template_id": "aten::mm"}, "samples_s": [1e-6]}
    reporter.report({**line, "target": "llvm", "candidates": [entry]})
    assert reporter.flush(HANG_S)
    multiply(48)
    assert taken == [({"aten::mm": [{}]}, ["aten::mm"])]


class _Inputs:
    """The inputs of a product on a device of some model."""

    _scalars = None

    def device(self) -> torch.device:
        return torch.device("cpu")

    def dtypes(self) -> tuple[Any, ...]:
        return (torch.float16,)

    def shapes_hinted(self) -> tuple[Any, ...]:
        return ((8, 8),)

    strides_hinted = shapes_hinted


def choice(block: int) -> Any:
    made = SimpleNamespace(
        inputs=_Inputs(), template=SimpleNamespace(uid="triton::mm", src_hash="ab"),
        params=SimpleNamespace(to_kwargs=lambda: {"BLOCK_M": block, "dtype": torch.float16}),
    )
    found = type("Choice", (), {})()
    found.annotations = {"ktc": made}
    return found


def test_a_sibling_gets_few_configurations_to_time(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = hook.install(str(service.http.base_url), namespace="inductor.b", folder=tmp_path)
    assert reporter is not None
    model = ["NVIDIA H100 80GB HBM3"]
    monkeypatch.setattr(hook, "model_of", lambda device: model[0])
    monkeypatch.setattr(hook, "_target", lambda device: None)
    monkeypatch.setattr(hook.Choices, "_get_device_key", staticmethod(lambda device: model[0]))
    times = {choice(2**i): 1.0 + i for i in range(5)} | {choice(512): math.inf}
    hook.save(times, "mm", [], list(times), dict, {})
    assert reporter.flush(HANG_S)
    choices = hook.Choices()

    def found(check: str = "ab") -> Any:
        return choices.lookup_template_configs(_Inputs(), "mm", ["triton::mm"], {"triton::mm": check})

    assert found() == {"triton::mm": [{"BLOCK_M": 1}]}
    model[0] = "NVIDIA H200"
    assert found() == {"triton::mm": [{"BLOCK_M": 1}, {"BLOCK_M": 2}, {"BLOCK_M": 4}]}
    assert found("cd") == {}  # of another source of the template
    monkeypatch.setattr(hook, "_VERSION", "9.9")
    assert found() == {}  # all are timed again after an upgrade


def test_without_a_service_inductor_times_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook.install(f"http://127.0.0.1:{free_port()}", folder=tmp_path)
    assert hook.Choices().lookup_template_configs(_Inputs(), "mm", ["x"], {}) == {}
    assert caplog.text.count("tuning goes on without plevel") == 1


@pytest.mark.parametrize(
    "answers",
    [{}, {"answers": [{}]}, {"answers": [{"config": {"template_id": "x"}}, 1]}, {"answers": None}],
)
def test_an_answer_that_is_none_leaves_inductor_its_own_choices(
    answers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = hook.install(f"http://127.0.0.1:{free_port()}", folder=tmp_path)
    assert reporter is not None
    monkeypatch.setattr(reporter, "likest", lambda *_, **__: answers)
    assert hook.Choices().lookup_template_configs(_Inputs(), "mm", ["x"], {}) == {}
    assert caplog.text.count("tuning goes on without plevel") <= 1


def test_answers_that_name_no_template_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = hook.install(f"http://127.0.0.1:{free_port()}", folder=tmp_path)
    assert reporter is not None
    configs = [{"BLOCK_M": 1}, None, [], {"template_id": 3}, {"template_id": "x", "BLOCK_M": 2}]
    answers = [{"likeness": "model", "config": config} for config in configs]
    monkeypatch.setattr(reporter, "likest", lambda *_, **__: {"answers": answers})
    assert hook.Choices().lookup_template_configs(_Inputs(), "mm", ["x"], {}) == {"x": [{"BLOCK_M": 2}]}


def test_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLEVEL_HOOKS", "0")
    assert hook.install("http://127.0.0.1:1") is None
    assert config.inductor_choices_class is None
