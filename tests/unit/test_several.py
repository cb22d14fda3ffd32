"""One process that starts and ends the workers of several devices."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.limit import HANG_S
from workers.__main__ import Options, main

ROOT = Path(__file__).parents[2]
# Each worker says that it is there, and each signal that reaches it; it ends with the last that it waits
# for. A bad one fails once another is there; an early one has yet to heed signals.
PARENT = """
import os, signal, sys
from workers.several import serve_each

ready, there = os.pipe()
signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command line does

def serve(device):
    if device == "bad":
        os.read(ready, 1)
        return 3
    if device == "early":
        os.write(1, b"early begins\\n")
        signal.pause()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.write(1, f"{device} begins\\n".encode())
    os.write(there, b".")
    for _ in range(int(sys.argv[1])):
        signal.sigwait({signal.SIGTERM})
        os.write(1, f"{device} hears\\n".encode())
    return 0

sys.exit(serve_each(sys.argv[2:], serve))
"""
Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begin() -> Iterator[Begin]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=HANG_S)


def read(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return sorted(process.stdout.readline().strip() for _ in range(count))


def test_each_signal_reaches_all_of_them(begin: Begin) -> None:
    parent = begin("2", "cpu:0", "cpu:1")
    assert read(parent, 2) == ["cpu:0 begins", "cpu:1 begins"]
    parent.send_signal(signal.SIGINT)  # which is a SIGTERM for them
    assert read(parent, 2) == ["cpu:0 hears", "cpu:1 hears"]
    parent.send_signal(signal.SIGTERM)
    assert read(parent, 2) == ["cpu:0 hears", "cpu:1 hears"]
    assert parent.wait(HANG_S) == 0


def test_one_that_fails_ends_the_others(begin: Begin) -> None:
    parent = begin("1", "cpu:0", "bad")
    assert read(parent, 2) == ["cpu:0 begins", "cpu:0 hears"]
    assert parent.wait(HANG_S) == 3


def test_one_that_is_ended_before_it_can_drain_has_not_failed(begin: Begin, capfd: pytest.CaptureFixture[str]) -> None:
    parent = begin("1", "early", "cpu:0")
    assert read(parent, 2) == ["cpu:0 begins", "early begins"]
    parent.send_signal(signal.SIGTERM)
    assert read(parent, 1) == ["cpu:0 hears"]
    assert parent.wait(HANG_S) == 0
    assert "failed" not in capfd.readouterr().err


def test_they_end_with_their_parent(begin: Begin) -> None:
    parent = begin("1", "cpu:0", "cpu:1")
    read(parent, 2)
    parent.kill()
    assert read(parent, 2) == ["cpu:0 hears", "cpu:1 hears"]


def test_a_device_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(Options(url="http://127.0.0.1:1", devices=("cpu", "cpu"))) == 2
    assert "once" in capsys.readouterr().err
