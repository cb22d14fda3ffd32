"""Messages about a child that died, and the end of a fork server."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.limit import HANG_S
from workers import fork
from workers.fork import Limits, without_torch
from workers.pool import Over, Pool
from workers.sandbox import Died, ForkServer, SandboxError


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
    del sys.modules["torch"]  # which is restored only if there was one


def test_a_child_gets_no_more_than_this_user_may_have() -> None:
    """As of `ulimit -f`: but for root, to raise a hard limit is an error, and no child could run."""
    program = (
        "import resource\nfrom workers import fork\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "fork._restrict(fork.Limits(module='none', memory_bytes=1 << 30))\n"
        "print(*(resource.getrlimit(kind) for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_DATA)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.stdout == f"{(1 << 20, 1 << 20)} {(1 << 30, 1 << 30)}\n", done.stderr


def test_a_host_that_cannot_start_a_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    server = object.__new__(ForkServer)  # without its process
    server._directory, server._lock, server._count, server._stuck = Path("/none"), threading.Lock(), 0, None
    server._control, its = socket.socketpair()
    with its, ThreadPoolExecutor(1) as thread:
        answered = thread.submit(fork._answer, its, set())
        for _ in range(2):
            with pytest.raises(SandboxError, match=r"cannot start a process \(Resource temporarily unavailable\)"):
                server.spawn(Limits(module="none"))
        server._control.close()
        answered.result(HANG_S)


def test_no_child_is_started_once_a_killed_one_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a hung driver keeps it; a process that nobody has killed stands for it."""
    monkeypatch.setattr(fork, "_END_S", 0.1)
    monkeypatch.setattr(fork, "_own_children", list)  # of this process they are other tests'
    server = object.__new__(ForkServer)  # without its process
    server._lock, server._stuck = threading.Lock(), None
    server._control, its = socket.socketpair()
    with its, ThreadPoolExecutor(1) as thread, subprocess.Popen(["sleep", "4321"]) as kept:
        answered = thread.submit(fork._answer, its, {kept.pid})
        assert server.wait(kept.pid) == -1  # as of one that was killed, so that its work is reported
        with pytest.raises(SandboxError, match=rf"process {kept.pid}, .* does not end, as where a driver"):
            server.spawn(Limits(module="none"))
        kept.kill()
        assert server.wait(kept.pid) == signal.SIGKILL
        server._control.close()
        answered.result(HANG_S)


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


_UNFIT = """
import os

def serve(channel):
    while True:
        if channel.receive() == "lack":
            print("this host has no linker", flush=True)
            os._exit(os.EX_OSERR)
        channel.send("done")
"""


def test_a_pool_without_time_refuses_requests(tmp_path: Path) -> None:
    with Pool(left=lambda: 0.0) as pool:
        pool.start = lambda: None  # type: ignore[method-assign,assignment,return-value]
        (answer,) = pool.ask_all([(Limits(module="unfit"), "build")], HANG_S)
    assert isinstance(answer, Over)


_SLOW = """
import time

def serve(channel):
    while True:
        time.sleep(channel.receive())
        channel.send("done")
"""


def test_the_time_of_a_pool_may_grow_and_end_while_a_child_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow.py").write_text(_SLOW)
    limits, left_s = Limits(module="slow"), [0.0, 1.0, 1.0, 1.0]  # from the end

    with Pool(("slow",), lambda: left_s.pop() if len(left_s) > 1 else left_s[0]) as pool:
        (answer,) = pool.ask_all([(limits, 2 * HANG_S)], HANG_S)
    assert isinstance(answer, Over)
    with Pool(("slow",), lambda: 0.001) as pool:  # there is always more than there was
        assert pool.ask_all([(limits, 0.1)], HANG_S) == ["done"]


def test_a_pool_goes_on_after_an_error_with_new_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unfit.py").write_text(_UNFIT)
    limits = Limits(module="unfit")
    with Pool(("unfit",)) as pool:
        for _ in range(2):
            assert pool.ask_all([(limits, "build")], HANG_S) == ["done"]
            with pytest.raises(SandboxError, match="^this host has no linker$"):
                pool.ask_all([(limits, "lack")], HANG_S)


def test_children_answer_a_process_with_a_thousand_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server of models has, in which a graph is compiled."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unfit.py").write_text(_UNFIT)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    with ExitStack() as held, Pool(("unfit",)) as pool:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        while held.enter_context(Path(os.devnull).open("rb")).fileno() < 1024:
            pass
        assert pool.ask_all([(Limits(module="unfit"), "build")], HANG_S) == ["done"]


_FLEETING = """
import os

def serve(channel):
    while True:
        asked = channel.receive()
        channel.mark(0)
        if asked == "die":
            os._exit(3)
        channel.send(os.getpid())
        if asked == "last":
            os._exit(0)
"""


def test_a_child_that_dies_after_its_answer_fails_no_other_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fleeting.py").write_text(_FLEETING)
    limits = Limits(module="fleeting")
    with Pool(("fleeting",)) as pool:
        (first,) = pool.ask_all([(limits, "last")], HANG_S)
        (second,) = pool.ask_all([(limits, "again")], HANG_S)
        assert isinstance(second, int)
        assert second != first
        (died,) = pool.ask_all([(limits, "die")], HANG_S)  # by its own fault
        assert isinstance(died, Died)
        assert died.code == 3


_KILLED = """
import os, signal
from workers.pool import Pool

pool = Pool(())
pool.start()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_logs_of_a_process_that_was_killed_are_deleted_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _KILLED], env=environment, check=False, timeout=HANG_S)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob("plevel-*")
    with Pool(()) as pool:
        pool.start()
        assert not left.exists()
    assert not list(tmp_path.glob("plevel-*"))
