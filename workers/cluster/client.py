"""The cluster, as seen from a host that times: a Dask client on an event loop of its own.

Whatever goes wrong there is said once, and costs no result: what the cluster does not build is built on this host.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from urllib.parse import urlsplit

import dask
from distributed import Client
from distributed.comm import connect
from distributed.security import Security

from strategy.record import Job, JobEntry, encode
from workers.cluster.artefact import Artefact, Order, RefusedOrderError, toolchain
from workers.cluster.site import build

_CONNECT_S = 5.0
_RELEASE_S = 0.02  # from an artefact to its release
_LOOK_S = 1.0  # between two looks at the number of its threads
_REST_S, _LONGEST_REST_S = 2.0, 120.0
_PER_THREAD = 2  # orders: one that is built, and the next
_LOCAL = ("127.0.0.1", "localhost", "::1")
log = logging.getLogger(__name__)


class SecurityError(ValueError):
    """An address or its certificates cannot be used; the message has the remedy."""


def secure(address: str, ca: Path | None, certificate: Path | None, key: Path | None) -> Security:
    """The security of a connection to a scheduler: TLS by which both sides show a certificate of one authority.

    Without files, those of Dask's own configuration are used.

    Raises:
        SecurityError: the address is none, TLS is missing, or a file cannot be read.
    """
    try:
        parts = urlsplit(address)
        is_one = parts.scheme in ("tcp", "tls") and parts.hostname is not None and parts.port != 0
    except ValueError:  # of brackets, or of a port that is none
        is_one = False
    if not is_one:
        raise SecurityError(f"{address:.120}: no address of a Dask scheduler: write tls://host:8786")
    if parts.scheme == "tcp":
        if parts.hostname not in _LOCAL:
            raise SecurityError(
                f"{address}: whoever reaches it could run code: use tls:// with --tls-ca, --tls-cert and --tls-key"
            )
        return Security(require_encryption=False)
    given = {
        "tls_ca_file": ca, "tls_client_cert": certificate, "tls_client_key": key,
        "tls_worker_cert": certificate, "tls_worker_key": key,
    }
    found = Security(
        require_encryption=True, **{name: str(path) for name, path in given.items() if path is not None}
    )
    try:
        context = found.get_connection_args("client")["ssl_context"]
    except OSError as error:  # an SSLError, too
        raise SecurityError(
            f"--tls-ca, --tls-cert, --tls-key: {error.strerror or error}: name files in PEM form"
        ) from error
    if context is None:
        raise SecurityError(f"{address}: needs --tls-ca and --tls-cert, and --tls-key unless the certificate has it")
    return found


async def reach(address: str, security: Security, timeout_s: float = _CONNECT_S) -> None:
    """Raise OSError if no scheduler answers: Dask itself waits for ever for another program that listens there."""
    try:
        async with asyncio.timeout(2 * timeout_s):
            try:
                found = await connect(address, timeout=timeout_s, **security.get_connection_args("client"))
            except OSError:
                await asyncio.to_thread(_knock, address, timeout_s)
                raise
    except TimeoutError as error:
        raise OSError(f"nothing answers as a Dask scheduler within {2 * timeout_s:g} s") from error
    await found.close()


def _knock(address: str, timeout_s: float) -> None:
    """Raise the OSError of a host that refuses the connection, if it does.

    Dask's says that its time is over, and its cause may be the last attempt's that this has cut short.
    """
    place = urlsplit(address)
    socket.create_connection((place.hostname, place.port), timeout_s).close()


class Cluster:
    """Builders behind a Dask scheduler (`workers.builder_pool.Elsewhere`). Thread-safe.

    Args:
        address: of the scheduler.
        security: see `secure`.
    """

    def __init__(self, address: str, security: Security) -> None:
        toolchain()  # of what this host's children load about now
        self._address = address
        self._security = security
        self._room = 0
        self._rest_s = _REST_S  # the next pause, which each failure in succession doubles
        self._rest_until = 0.0
        self._is_silent = False  # an order was late, and none answered since
        self._said: set[str] = set()
        self._connected = False
        self._changed: Callable[[], None] = lambda: None
        self._client: Client | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)

    @property
    def room(self) -> int:
        """The number of orders that the cluster should have at once; 0 while it cannot build."""
        return self._room

    def start(self, changed: Callable[[], None]) -> None:
        """Connect in the background; `changed` is called when `room` has changed."""
        for name in ("distributed", "distributed.client"):  # what matters is said here
            logging.getLogger(name).setLevel(logging.CRITICAL)
        # For its dashboard Dask reads the source around each order, which takes longer than the rest of ordering.
        dask.config.set({"distributed.diagnostics.computations.nframes": 0})
        self._changed = changed
        self._thread.start()
        self._keeping = asyncio.run_coroutine_threadsafe(self._keep(), self._loop)

    def submit(self, job: Job, entry: JobEntry) -> Future[Artefact]:
        """Order an entry; the future may be cancelled."""
        return asyncio.run_coroutine_threadsafe(self._build(Order.of(job, entry)), self._loop)

    def note_late(self, waited_s: float) -> None:
        """Note that an order takes too long; after two without an answer in between, give it no orders for a while."""
        self._say("slow", f"has not built a configuration in {waited_s:.1f} s: building what is late on this host")
        if self._is_silent:
            self._rest("silent", f"has answered no order for {waited_s:.1f} s")
        self._is_silent = True

    def close(self) -> None:
        """Leave the cluster; what it builds for this host is cancelled."""
        self._keeping.cancel()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(2 * _CONNECT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        """Wait for the end of all that runs on the loop."""
        own = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not own]
        if left:
            await asyncio.wait(left, timeout=_CONNECT_S)

    async def _build(self, order: Order) -> Artefact:
        try:
            if self._client is None:
                raise OSError("the connection is lost")
            # Hosts that ask for the same at the same time get one build.
            future = self._client.submit(build, encode(order), key=f"plevel-{order.digest}")
            try:
                artefact = Artefact.unpack(await future.result(), order)
            except BaseException:
                future.release()
                raise
            # The scheduler sends a builder nothing for 5 ms after a message: of the release, the next order would wait.
            self._loop.call_later(_RELEASE_S, future.release)
        except RefusedOrderError as error:
            self._rest("refused", f"cannot be used: {error}")
            raise
        except Exception as error:  # of Dask, or whatever the call has raised there: built here instead
            self._rest("failed", f"failed to build: {type(error).__name__}: {_first_line(error)}")
            raise
        self._rest_s, self._is_silent = _REST_S, False
        if self._said - {"slow"}:
            log.info("%s builds again", self._address)
            self._said &= {"slow"}
        return artefact

    async def _keep(self) -> None:
        """Stay connected, and follow the number of the cluster's threads."""
        while True:
            try:
                await reach(self._address, self._security)
                async with Client(
                    self._address, security=self._security, asynchronous=True, set_as_default=False,
                    timeout=_CONNECT_S,
                ) as client:
                    # Dask keeps messages back for 10 ms after the last one, as if for thousands of small tasks.
                    client.scheduler_comm.interval = 0
                    self._client = client
                    await self._look(client)
            except Exception as error:  # Dask's have no class in common
                self._rest("away", f"is not reachable: {_first_line(error)}")
            finally:
                self._client = None
                self._set_room(0)
            await asyncio.sleep(_REST_S)

    async def _look(self, client: Client) -> None:
        while client.status == "running":
            async with asyncio.timeout(_CONNECT_S):
                threads = sum((await client.scheduler.ncores()).values())
            if not threads:
                self._say("empty", "has no builders")
            elif not self._connected:
                self._connected = True
                log.info("building on %s, which has %d threads, too", self._address, threads)
            rests = self._loop.time() < self._rest_until
            self._set_room(0 if rests else _PER_THREAD * threads)
            await asyncio.sleep(_LOOK_S)
        raise OSError("the connection is lost")

    def _rest(self, kind: str, problem: str) -> None:
        """Give the cluster no orders for a while: seconds at first, minutes if it goes on."""
        if self._loop.time() >= self._rest_until:
            self._rest_until = self._loop.time() + self._rest_s
            self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
        self._say(kind, problem)
        self._set_room(0)

    def _say(self, kind: str, problem: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            log.warning("%s %s; this host builds meanwhile", self._address, problem)

    def _set_room(self, room: int) -> None:
        if room != self._room:
            self._room = room
            self._changed()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
