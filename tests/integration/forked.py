"""Services forked from a process that has loaded their modules: loading them takes longer than most tests."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from service.__main__ import main

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.integration.preloaded"])


class Forked:
    """`python -m service` as a process of its own, with the methods of `subprocess.Popen`."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], out: Path, err: Path,
        files: int | None = None,
    ) -> None:
        given = (tuple(arguments), dict(environment), out, err, files)
        self._process = _CONTEXT.Process(target=_serve, args=given, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("python -m service", timeout)
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _serve(
    arguments: Sequence[str], environment: Mapping[str, str], out: Path, err: Path, files: int | None
) -> None:
    for path, descriptor in ((out, 1), (err, 2)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    if files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    raise SystemExit(main(arguments))
