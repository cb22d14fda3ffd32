"""Accept connections up to the configured limits; answer others with an error and close them.

uvicorn has no limit of its own, and counts a TLS connection only after its handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial

import uvicorn

from service.api.certificate import Certificate
from service.api.connection import Connection, answer_to
from service.api.line_limit import LineLimit
from service.errors import BusyError
from service.peer import network_of, plain_address
from service.settings import Settings

GONE_S = 60  # of silence, after which an unreachable client is dropped
RETRY_S = 0.1  # before the next accept if the process has no file descriptor left
log = logging.getLogger(__name__)


class Listener:
    """The connections of a server.

    Args:
        server: uvicorn's, whose lifespan has begun.
        settings: the limits.
        count: called with the kind of each refusal.
        certificate: of TLS; None for connections without.
    """

    def __init__(
        self, server: uvicorn.Server, settings: Settings, count: Callable[[str], None], certificate: Certificate | None
    ) -> None:
        self._server = server
        self._certificate = certificate
        self._settings = settings
        self._count = count
        self._proxies = [ipaddress.ip_network(p.strip()) for p in settings.proxies.split(",") if p.strip()]
        self._most = _allow_files(settings.max_connections)
        self._held: Counter[str] = Counter()  # connections by `network_of`
        self._tasks: set[asyncio.Task[None]] = set()  # the loop holds only weak references
        self._accepting: asyncio.Task[None] | None = None
        self._warnings = LineLimit(1)
        self._stopped = False

    def start(self, listening: socket.socket) -> None:
        """Begin to accept connections."""
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listening))

    def stop(self) -> None:
        """Stop accepting; open connections stay until they are answered."""
        self._stopped = True
        if self._accepting is not None:
            self._accepting.cancel()

    def check(self) -> None:
        """Close the connections of clients that are too slow."""
        for connection in list(self._server.server_state.connections):
            assert isinstance(connection, Connection)
            connection.check()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(RETRY_S)
                continue
            origin = network_of(address[0])
            full = self._find_full(address[0], origin)
            if full:
                self._refuse(client, full)
                continue
            task = asyncio.create_task(self._hold(client, origin))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _find_full(self, address: str, origin: str) -> str:
        """The limit that another connection would exceed, empty if none."""
        if len(self._tasks) >= self._most:
            return f"all {self._most} connections are in use"
        most = self._settings.max_connections_per_address
        if most and self._held[origin] >= most and not self._is_proxy(address):
            return f"all {most} connections of {origin} are in use"
        return ""

    def _is_proxy(self, address: str) -> bool:
        ip = ipaddress.ip_address(plain_address(address))
        return any(ip in network for network in self._proxies)

    async def _hold(self, client: socket.socket, origin: str) -> None:
        """Serve a connection, from its TLS handshake to its end."""
        loop = asyncio.get_running_loop()
        lost = loop.create_future()
        config, state = self._server.config, self._server.server_state
        serve = partial(
            Connection, config, state, self._server.lifespan.state, self._settings, self._count, lost
        )
        self._held[origin] += 1
        try:
            with client:
                trusted = None if self._certificate is None else self._certificate.current()
                handshake_s = None if trusted is None else self._settings.head_s
                _, connection = await loop.connect_accepted_socket(
                    serve, client, ssl=trusted, ssl_handshake_timeout=handshake_s
                )
                if self._stopped:  # accepted before
                    connection.shutdown()
                await lost
        except OSError:  # the handshake failed, or took too long
            self._count("handshake")
        finally:
            self._held[origin] -= 1
            if not self._held[origin]:
                del self._held[origin]

    def _refuse(self, client: socket.socket, why: str) -> None:
        self._count(BusyError.kind)
        more = self._warnings.admit()
        if more is not None:
            log.warning("a connection was refused: %s%s", why, more)
        with client, contextlib.suppress(OSError):
            if self._certificate is None:
                with contextlib.suppress(BlockingIOError):
                    client.recv(65536)  # unread data would turn the answer into a reset
                client.send(answer_to(BusyError(f"{why}: try again later")))


def _allow_files(most: int) -> int:
    """Raise the limit of open files to two for each of `most` connections; return the possible number.

    Half of the files are reserved for the database.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * most
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return most
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning(
            "the process may open %d files, enough for %d connections instead of %d: raise the limit of open files",
            allowed, allowed // 2, most,
        )
    return allowed // 2
