"""The service as a process of its own, and one-line calls of its protocol."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from strategy.record import (
    Lease,
    LeaseRequest,
    Leases,
    Registered,
    Renewal,
    Renewed,
    Results,
    RunState,
    RunStatus,
    decode,
    encode,
)
from tests.integration.forked import Forked
from tests.integration.scene import device, info, timed
from tests.limit import HANG_S

T = TypeVar("T")
# Its grace, and less than a long poll takes: it may not wait for that.
ENDS_S = 50.0
ENDED = (RunState.DONE, RunState.FAILED, RunState.CANCELLED)
# A worker that is lost is given up soon, and whatever nobody tells of is found soon.
QUICK = {"PLEVEL_LEASE_S": "2", "PLEVEL_HEARTBEAT_S": "1", "PLEVEL_POLL_S": "0.1"}


class Service:
    """`python -m service` over a database, and one-line calls of its protocol.

    `files` is how many files it may open.
    """

    def __init__(
        self, database: str, folder: Path, files: int | None = None, **environment: str
    ) -> None:
        self.ready = folder / "ready"
        self.ready.unlink(missing_ok=True)
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PLEVEL_")}
        # Files, as nobody reads meanwhile: one that has filled its pipe hangs at its next line of log.
        number = len(list(folder.glob("service-*.out")))
        self._out, self._err = (folder / f"service-{number}.{kind}" for kind in ("out", "err"))
        self.process = Forked(
            ["--database", database, "--port", "0", "--ready-file", str(self.ready)],
            {**clean, **QUICK, **environment}, self._out, self._err, files,
        )
        give_up = time.monotonic() + HANG_S
        while not self.ready.exists():
            if self.process.poll() is not None or time.monotonic() > give_up:
                self.process.kill()
                pytest.fail(f"the service did not start: {self._err.read_text()}")
            time.sleep(0.02)
        self.url = self.ready.read_text().strip()
        self.http = httpx.Client(base_url=self.url, timeout=HANG_S)

    def raw(self, method: str, path: str, body: Any = None) -> httpx.Response:
        content = body if body is None or isinstance(body, bytes) else encode(body)
        return self.http.request(method, path, content=content)

    def call(self, method: str, path: str, body: Any, kind: type[T]) -> T:
        response = self.raw(method, path, body)
        assert response.is_success, response.text
        return decode(response.content, kind)

    def register(self) -> int:
        return self.call("POST", "/v1/workers", info(), Registered).worker_id

    def lease(self, worker_id: int, wait_s: float = 60.0) -> Lease | None:
        """The next job; by default after the longest wait, as on a busy machine a tuner's first proposals take long."""
        asked = LeaseRequest(worker_id=worker_id, device=device().identity, wait_s=wait_s)
        found = self.call("POST", "/v1/leases", asked, Leases).leases
        return found[0] if found else None

    def results(self, held: Lease, results: Any, done: bool = True) -> httpx.Response:
        sent = Results(token=held.token, session=f"s{held.id}", results=tuple(results), done=done)
        return self.raw("POST", f"/v1/leases/{held.id}/results", sent)

    def status(self, run_id: int) -> RunStatus:
        return self.call("GET", f"/v1/runs/{run_id}", None, RunStatus)

    def work(self, worker_id: int, run_id: int, jobs: int = 1000) -> RunStatus:
        """A worker until the run ends, or so many jobs are done."""
        give_up = time.monotonic() + HANG_S
        while (status := self.status(run_id)).state not in ENDED and jobs > 0:
            assert time.monotonic() < give_up, status
            held = self.lease(worker_id, wait_s=0.1)  # after the last job there is none to wait for
            if held is None:
                continue
            renewal = Renewal(token=held.token, timing=True)
            self.call("POST", f"/v1/leases/{held.id}/renew", renewal, Renewed)
            accepted = self.results(held, [timed(e) for e in held.job.entries])
            assert accepted.status_code == 200, accepted.text
            jobs -= 1
        return status

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> tuple[int, str, str]:
        """End it; its exit status, and what it has said."""
        self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=ENDS_S), self._out.read_text(), self._err.read_text()


def refused(*arguments: str, **environment: str) -> str:
    """The one line of a service that does not start and exits with 1."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder, name) for name in ("out", "err"))
        status = Forked(arguments, {**os.environ, **environment}, out, err).wait(HANG_S)
        assert (status, out.read_text()) == (1, "")
        (line,) = err.read_text().strip().splitlines()
    return line


Start = Callable[..., Service]
