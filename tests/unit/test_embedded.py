"""The embedded service: its logs do not fill the disk, and what it is told stays private."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from plevel import embedded
from plevel.cli.tune_run import _require_host
from plevel.client import Client
from plevel.extra import EmbeddedError
from strategy.target import cpu_target


def test_errors_that_python_raises_name_no_flag_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/proc")
    for path in (tmp_path / "missing" / "x.db", Path("/proc/plevel/x.db")):
        with pytest.raises(EmbeddedError, match="cannot be created") as refused:
            embedded.make_folder(f"sqlite:///{path}")
        assert "--" not in str(refused.value)
    with pytest.raises(EmbeddedError, match="^9999 threads are more than the .* that can be used here"):
        _require_host(cpu_target().with_threads(9999), "")


def write(folder: Path, number: int, size: int) -> str:
    path = folder / f"worker-20260101-{number:06d}-1.log"
    path.write_bytes(b"x" * size)
    return path.name


def kept(folder: Path) -> list[str]:
    embedded._drop_old(folder)
    return sorted(path.name for path in folder.iterdir())


def test_a_second_interrupt_kills_what_is_not_stopped_yet() -> None:
    done: list[str] = []

    class Child:
        def __init__(self, name: str) -> None:
            self.name = name

        def stop(self) -> None:
            done.append(f"stop {self.name}")
            if self.name == "worker":
                raise KeyboardInterrupt

        def kill(self) -> None:
            done.append(f"kill {self.name}")

    running = embedded.Embedded("sqlite://")
    running._children = [Child("service"), Child("worker")]
    running._loaded = Child("loaded")
    with pytest.raises(KeyboardInterrupt):
        running.close()
    assert done == ["stop loaded", "stop worker", "kill worker", "kill service"]


def test_as_many_logs_are_kept(tmp_path: Path) -> None:
    names = [write(tmp_path, i, 10) for i in range(embedded.KEPT_LOGS + 3)]
    assert kept(tmp_path) == names[3:]


def test_a_log_that_another_command_has_deleted_is_no_error(tmp_path: Path) -> None:
    assert embedded._last_line(tmp_path / "service-20260101-000000-1.log") == "its log was deleted"


def test_large_logs_are_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "KEPT_LOG_BYTES", 100)
    names = [write(tmp_path, i, 40) for i in range(5)]
    assert kept(tmp_path) == names[3:]


def test_others_see_neither_the_database_nor_the_log(tmp_path: Path) -> None:
    """A URL may hold a password, and any user of the host can list the arguments of processes."""
    database = tmp_path / "confidential.db"
    with embedded.Embedded(f"sqlite:///{database}", logs=tmp_path / "log") as service:
        found = [(p / "cmdline").read_bytes().decode() for p in descendants(os.getpid())]
        assert any("service" in arguments for arguments in found)
        assert not [arguments for arguments in found if "confidential" in arguments]
        assert database.exists()
        with Client(service.url) as client:
            assert client.runs() == ()
    (log,) = (tmp_path / "log").iterdir()
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.full
def test_settings_of_a_service_for_others_are_not_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"TUNE": "0", "MIGRATE": "0", "PORT": "x", "AUTH": "token", "TLS_CERT": "/none", "TLS_KEY": "/no"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PLEVEL_{name}", value)
    with embedded.Embedded(f"sqlite:///{tmp_path / 'plevel.db'}", logs=tmp_path / "log") as service:
        (found,) = (p for p in descendants(os.getpid()) if b"service\0" in (p / "cmdline").read_bytes())
        assert b"PLEVEL_TUNE=" not in (found / "environ").read_bytes()
        with Client(service.url) as client:
            assert client.runs() == ()


def test_a_service_that_does_not_start_says_what_it_may_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "READY_TIMEOUT_S", 0.0)
    with pytest.raises(EmbeddedError, match="to start, as where another process holds the database locked"):
        embedded.Embedded(f"sqlite:///{tmp_path / 'plevel.db'}", logs=tmp_path / "log").__enter__()


@pytest.mark.full
def test_a_project_s_own_modules_are_not_taken_for_those_of_plevel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("service", "strategy", "workers", "queue", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is of the project')\n")
    monkeypatch.chdir(tmp_path)
    with embedded.Embedded(f"sqlite:///{tmp_path / 'plevel.db'}", logs=tmp_path / "log") as service, Client(
        service.url
    ) as client:
        assert client.runs() == ()


def descendants(pid: int) -> Iterator[Path]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield Path(f"/proc/{child}")
            yield from descendants(child)
