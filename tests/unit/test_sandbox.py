"""Messages about a child that died, and the end of a fork server."""

from __future__ import annotations

import importlib
import logging
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from workers.fork import without_torch
from workers.sandbox import Died, ForkServer


def trace(message: str) -> str:
    try:
        raise MemoryError(message)
    except MemoryError:
        return traceback.format_exc().strip()


@pytest.mark.parametrize("cut", [0, 40])  # of a long trace only the end is kept
def test_of_a_trace_the_message_has_the_line_that_says_what_happened(
    caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    log = f"warming up\n{trace('Unable to allocate 3.64 TiB')}"[cut:]
    with caplog.at_level(logging.INFO):
        died = Died(0, 1, log)
    assert str(died) == "the child died (exit status 1): MemoryError: Unable to allocate 3.64 TiB"
    assert died.out_of_memory
    assert log in caplog.text


def test_the_line_is_bounded_and_other_words_stay() -> None:
    assert len(str(Died(0, 1, trace("x" * 5000)))) < 1100
    said = "terminate called\n  what(): std::bad_alloc"
    assert str(Died(6, 0, said)) == f"the child died (SIGABRT): {said}"


def test_pytorch_is_hidden_from_an_import_unless_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torch.py").touch()
    with without_torch(), pytest.raises(ImportError):
        importlib.import_module("torch")
    stand_in = importlib.import_module("torch")
    with without_torch():
        assert importlib.import_module("torch") is stand_in
    assert sys.modules["torch"] is stand_in


def test_an_interrupt_ends_a_fork_server_that_is_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def note(*given: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*given, **options))
        return started[-1]

    def interrupt(of: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workers.sandbox.subprocess.Popen", note)
    monkeypatch.setattr("workers.sandbox.receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ForkServer(tmp_path, ("time",))
    assert [process.returncode for process in started] == [-signal.SIGKILL]
