"""Real processes: a service, workers, and commands, each with its log; none outlives its test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from plevel.client import Client
from tests import limit
from tests.port import free_port

ROOT = Path(__file__).parents[2]


# Each look is a request, which takes the service's time.
wait_until = partial(limit.wait_until, look_s=0.1)


class Stage:
    """Starts processes in a folder of their own, and ends what is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "plevel.db"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("PLEVEL_")} | {
            "XDG_DATA_HOME": str(folder / "data"),
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
            # A dead worker is given up soon, and what nobody tells of is found soon.
            "PLEVEL_LEASE_S": "3",
            "PLEVEL_HEARTBEAT_S": "1",
            "PLEVEL_POLL_S": "0.5",
        }
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """`plevel …` in the background, in a session of its own."""
        log = self.folder / f"{len(self._processes)}-{arguments[0]}.log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.quick", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if arguments[0] == "tune" else stderr,
                stderr=stderr,
                text=True,
                env=self.environment,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def start_service(self) -> subprocess.Popen[str]:
        process = self.start(
            "serve", "--database", f"sqlite:///{self.database}", "--port", str(self.port)
        )
        with Client(self.url, patience_s=0.1) as client:

            def is_ready() -> bool:
                assert process.poll() is None, self.logs()
                return client.is_ready()

            wait_until(is_ready, "the service's start")
        return process

    def start_worker(self) -> subprocess.Popen[str]:
        process = self.start("worker", "--url", self.url, "--threads", "1")
        with Client(self.url) as client:

            def is_known() -> bool:
                assert process.poll() is None, self.logs()
                return any(w["pid"] == process.pid for w in client.workers())

            wait_until(is_known, "the worker's registration")
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`plevel …` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "tests.quick", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=limit.HANG_S,
            env=self.environment,
        )

    def logs(self) -> str:
        return "\n".join(f"== {p}\n{p.read_text()}" for p in sorted(self.folder.rglob("*.log")))

    def survivors(self) -> list[str]:
        """Command lines of the processes that have this stage's folder in their environment."""
        found = []
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                environment = (proc / "environ").read_bytes()
                line = (proc / "cmdline").read_bytes()
            except OSError:
                continue
            if line and f"XDG_DATA_HOME={self.folder}/".encode() in environment:
                found.append(line.replace(b"\0", b" ").decode())
        return found

    def close(self) -> None:
        for process in self._processes:
            kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL for a process alone: what it started has to notice by itself."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    one = Stage(tmp_path)
    try:
        yield one
    finally:
        one.close()
        wait_until(lambda: not one.survivors(), "the end of what the processes had started")
