"""A builder: the function that a Dask cluster calls, and the children in which it builds.

`plevel builder` starts a Dask worker that loads this module; any other Dask worker with plevel and TVM loads it at
its first order. The process of the Dask worker itself never loads TVM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec
from distributed import get_worker
from platformdirs import user_cache_path

from strategy.folder import scratch
from strategy.record import Job, JobEntry, Phase, TimingPolicy, decode
from strategy.target import Target
from workers.builder import NotInstalledError, check
from workers.builder_pool import BuilderPool
from workers.cluster.artefact import Artefact, Order, RefusedOrderError, Store, toolchain
from workers.sandbox import ForkServer, SandboxError

ARTEFACTS = "PLEVEL_ARTEFACTS"  # environment variable with the folder of artefacts


def build(data: bytes) -> bytes:
    """Build an order, and return its artefact. Thread-safe.

    Raises:
        WireError: the bytes are no order.
        SandboxError: no children can be started.
    """
    order = decode(data, Order)
    entry = JobEntry(
        index=0, task_id=0, implementation=order.implementation, version=order.version, config=order.config
    )
    with contextlib.suppress(ValueError):  # of the configuration: the child says so, as a result
        try:
            toolchain().check(order.toolchain, "the host that times")
            check(order.workload, order.target, entry)
        except (NotInstalledError, RefusedOrderError) as error:
            refused = f"builder {socket.gethostname()}: {error}"
            return Artefact(order=order.digest, toolchain=toolchain(), refused=refused).pack()
    return Site.get(get_worker().state.nthreads).build(order, entry).pack()


class Site:
    """The children of this process, for as long as it lives, and the store of artefacts."""

    _one: Site | None = None
    _lock = threading.Lock()

    def __init__(self, threads: int) -> None:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(scratch())
            toolchain()  # of what the children load now
            self._server = stack.enter_context(ForkServer(folder))
            given = os.environ.get(ARTEFACTS)
            self._store = Store(Path(given) if given else user_cache_path("plevel", appauthor=False) / "artefacts")
            self._pools = {
                forks: BuilderPool(
                    self._server, sorted(os.sched_getaffinity(0)), Path(tempfile.mkdtemp(dir=folder)),
                    forks=forks, children=threads,
                )
                for forks in (False, True)
            }
            for pool in self._pools.values():
                stack.callback(pool.close)
            self._open = stack.pop_all()

    @classmethod
    def get(cls, threads: int) -> Site:
        """The site of this process, which the first call opens.

        Args:
            threads: the number of orders that it gets at once.
        """
        with cls._lock:
            if cls._one is None:
                cls._one = cls(threads)
            return cls._one

    @classmethod
    def close(cls) -> None:
        """End the children, and delete their folder."""
        with cls._lock:
            one = cls._one
        if one is not None:
            one._retire()

    def _retire(self) -> None:
        """End the children of this site, of which the next order opens another."""
        with Site._lock:
            if Site._one is not self:
                return
            Site._one = None
        self._open.close()

    def build(self, order: Order, entry: JobEntry) -> Artefact:
        """The artefact of an order, from the store or built in a child.

        Raises:
            SandboxError: no child can build on this host, or the site is closed meanwhile.
        """
        found = self._store.find(order)
        if found is not None:
            return msgspec.structs.replace(found, built=msgspec.structs.replace(found.built, build_s=0.0))
        job = Job(
            id=0, run_id=0, workload=order.workload, target=order.target, phase=Phase.SEARCH,
            entries=(entry,), policy=TimingPolicy(build_timeout_s=order.timeout_s), seed=0,
        )
        try:
            built = next(iter(self._pool(order.target).build(job, threading.Event())), None)
        except SandboxError:  # as where the fork server was killed
            self._retire()
            raise
        if built is None:
            raise SandboxError("the builder ends")
        artefact = Artefact.load(order, built)
        if built.error is None:
            self._store.put(order, artefact)
        return artefact

    def _pool(self, target: Target) -> BuilderPool:
        return self._pools[target.kind == "cuda"]


def dask_setup(worker: Any) -> None:
    """Open the site before the first order; Dask calls this by its name (`--preload`)."""
    if worker.nanny:  # which Ctrl-C in a terminal reaches, too, and which ends this process in order
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    Site.get(worker.state.nthreads)


def dask_teardown(worker: Any) -> None:
    """Close it; Dask calls this by its name."""
    Site.close()
