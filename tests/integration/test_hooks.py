"""The connection of other tuners' processes: no result is lost or stored twice, and the tool never waits."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plevel.client import Client
from plevel.hooks import reporter as module
from plevel.hooks.reporter import Reporter, is_off
from tests.integration.process import Service, Start
from tests.limit import HANG_S
from tests.port import free_port

COUNT = 40


def line(i: int, kernel: str = "k") -> dict:
    candidates = [{"config": {"B": i}, "samples_s": [1e-3 + i * 1e-6]}]
    return {
        "tool": "triton", "kernel": kernel, "attrs": {"key": [i]}, "device_model": "NVIDIA H100",
        "candidates": candidates,
    }  # fmt: skip


def stored(url: str, namespace: str | None = None) -> list[int]:
    with Client(url, namespace=namespace) as client:
        found = client.iter_records(source="triton")
        return sorted(r["config"]["B"] for r in found)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REST_S", 0.0)


def test_reports_arrive_and_questions_are_answered(service: Service, tmp_path: Path) -> None:
    url = str(service.http.base_url)
    reporter = Reporter(url, namespace="hooks.a", folder=tmp_path / "spool")
    for i in range(COUNT):
        reporter.report(line(i))
    assert reporter.flush(HANG_S)
    assert stored(url, "hooks.a") == list(range(COUNT))
    found = reporter.best("triton", workload='triton.k(){"key":[3]}', device_model="NVIDIA H100")
    assert found is not None
    assert found["answers"][0]["config"] == {"B": 3}
    assert found["answers"][0]["worker"] == reporter.worker
    assert len(reporter.kernels("triton", 7)) == 7
    reporter.close()
    assert not (tmp_path / "spool").exists()


def test_without_a_service_the_tool_goes_on_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, quick: None
) -> None:
    reporter = Reporter(f"http://127.0.0.1:{free_port()}", folder=tmp_path)
    with caplog.at_level(logging.WARNING):
        for i in range(3):
            reporter.report(line(i))
            assert reporter.flush(HANG_S)
            assert reporter.best("triton", workload="triton.k()") is None
            assert reporter.kernels("triton", 3) == []
        reporter.close()
    assert len(caplog.records) == 1
    assert "tuning goes on without plevel" in caplog.text
    kept = b"".join(p.read_bytes() for p in tmp_path.glob("*.ndjson"))
    assert len(kept.splitlines()) == 3


def test_a_service_that_dies_in_mid_put_gets_everything_later(
    start: Start, sqlite_copy: str, tmp_path: Path, quick: None
) -> None:
    first = start(sqlite_copy)
    reporter = Reporter(str(first.http.base_url), folder=tmp_path / "spool")
    for i in range(COUNT):
        reporter.report(line(i))
        if i == COUNT // 2:
            first.kill()
    assert reporter.flush(HANG_S)
    reporter.close()
    second = start(sqlite_copy)
    later = Reporter(str(second.http.base_url), folder=tmp_path / "spool")
    # Another address is another service, whose reports are its own.
    later.url = reporter.url
    later._client = lambda timeout_s: Client(str(second.http.base_url), patience_s=0.0)
    later.report(line(COUNT))
    assert later.flush(HANG_S)
    later.close()
    assert stored(str(second.http.base_url)) == list(range(COUNT + 1))
    assert list((tmp_path / "spool").glob("*.ndjson")) == []


def test_two_processes_at_once_store_nothing_twice(service: Service, tmp_path: Path) -> None:
    """Both deliver what a third had kept, and their own, which overlap."""
    url = str(service.http.base_url)
    away = Reporter(f"http://127.0.0.1:{free_port()}", namespace="hooks.b", folder=tmp_path)
    away.url = url
    away._keep(b"".join(module._encode({"kind": "foreign", **line(i)}) + b"\n" for i in range(5)))
    code = (
        "import sys; from pathlib import Path; from plevel.hooks.reporter import Reporter\n"
        "from tests.integration.test_hooks import line\n"
        "r = Reporter(sys.argv[1], namespace='hooks.b', folder=Path(sys.argv[2]))\n"
        f"for i in range({COUNT}): r.report(line(i))\n"
    )
    root = Path(__file__).parents[2]
    both = [
        subprocess.Popen([sys.executable, "-c", code, url, str(tmp_path)], cwd=root) for _ in range(2)
    ]
    assert [p.wait(HANG_S) for p in both] == [0, 0]
    assert stored(url, "hooks.b") == list(range(COUNT))
    assert list(tmp_path.glob("*.ndjson")) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_reports_by_itself(service: Service, tmp_path: Path) -> None:
    url = str(service.http.base_url)
    reporter = Reporter(url, namespace="hooks.c", folder=tmp_path)
    reporter.report(line(0))
    assert reporter.flush(HANG_S)
    child = os.fork()
    if child == 0:
        reporter.report(line(1))
        done = reporter.flush(HANG_S)
        os._exit(0 if done else 1)
    assert os.waitpid(child, 0)[1] == 0
    reporter.close()
    assert stored(url, "hooks.c") == [0, 1]


def test_a_refused_report_is_told_and_not_sent_again(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = Reporter(str(service.http.base_url), namespace="hooks.d", folder=tmp_path)
    reporter.report({**line(1), "device_model": ""})
    assert reporter.flush(HANG_S)
    reporter.close()
    assert "a result was rejected: the file names no device" in caplog.text
    assert list(tmp_path.glob("*.ndjson")) == []


def test_hooks_are_switched_off_by_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_off()
    monkeypatch.setenv("PLEVEL_HOOKS", "0")
    assert is_off()
    monkeypatch.delenv("PLEVEL_URL", raising=False)
    with pytest.raises(ValueError, match="PLEVEL_URL"):
        Reporter()
