"""The server of a service: it says where it answers, and answers or refuses all requests before it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import uvicorn

from service.api.certificate import Certificate
from service.api.connection import Connection
from service.api.listener import Listener
from service.context import SELECTIONS, Context
from service.errors import (
    CUT_OFF,
    STOPPING,
    CutOffError,
    DatabaseError,
    ServiceError,
    StartError,
    StoppedError,
)
from service.selection.database import warm
from strategy.ending import ending_signals
from strategy.op import all_ops

GRACE_S = 5
LAST_S = 1.0  # for clients to read that they are refused
_REPEATED = ("/v1/leases", "/v1/select", "/v1/workers")  # requests that do no more the second time
# Connections opened at the start, for all selections and two other threads. A new one costs its first request many
# times that of a selection, as PostgreSQL starts a process, which reads the catalogue and plans the statements.
WARM = SELECTIONS + 2
log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """A server that prints its address once it answers, and ends long polls on shutdown.

    `failure` is the reason for which it did not serve, though it has started.

    Args:
        address: printed once it answers.
        url: written to the ready file then.
    """

    def __init__(
        self, config: uvicorn.Config, context: Context, address: str, url: str, ready_file: Path | None,
        certificate: Certificate | None,
    ) -> None:
        super().__init__(config)
        self._context = context
        self._address = address
        self._url = url
        self._ready_file = ready_file
        self._certificate = certificate
        self.failure: StartError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        if not self.started:
            return
        settings, refuse = self._context.settings, self._context.metrics.refuse
        self._listener = Listener(self, settings, refuse, self._certificate)
        for listening in sockets or []:
            self._listener.start(listening)
        all_ops()  # loaded now, so that no request waits for it
        # Whoever asks first waits a little longer if the database has no connection to spare now.
        with contextlib.suppress(DatabaseError), contextlib.ExitStack() as opened:
            for _ in range(WARM):
                warm(opened.enter_context(self._context.store.read()))
        # Modules loaded now stay: scanning them in each garbage collection would stop all requests for a
        # tenth of a second.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 100)
        try:
            self._announce()
        except StartError as error:
            self.failure, self.should_exit = error, True

    def _announce(self) -> None:
        """Print the address, and write it to the ready file; raise `StartError` if one of them cannot be written."""
        named, partial = "the output", None
        try:
            print(f"plevel service on {self._address}", flush=True)
            if self._ready_file is not None:
                named = f"--ready-file {self._ready_file}"
                # Renamed into place, so that readers never see a part of it.
                partial = self._ready_file.with_name(f"{self._ready_file.name}.{os.getpid()}")
                partial.write_text(self._url + "\n")
                partial.replace(self._ready_file)
        except OSError as error:
            if partial is not None:
                with contextlib.suppress(OSError):
                    partial.unlink(missing_ok=True)
            raise StartError(
                f"{named} cannot be written: {error.strerror}: free some space, or choose another place"
            ) from error

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # each second
            self._listener.check()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was asked within `GRACE_S`, refuse what is left, and end the application.

        uvicorn's own cancels what is left, with a traceback for each.
        """
        self._context.stop()
        self._listener.stop()
        for listening in sockets or []:
            listening.close()
        self._context.worker_batches.refuse_leases()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        # Reading of a log may take forever: stop it while there is time left to answer its client.
        asyncio.get_running_loop().call_later(GRACE_S / 2, self._context.readers.close)
        await self._drain(GRACE_S)
        if self.server_state.connections or self.server_state.tasks:
            await self._cut_off()
        await self.lifespan.shutdown()

    async def _drain(self, limit_s: float) -> None:
        """Wait for the end of all connections and requests, or until the limit, or a second Ctrl-C."""
        state, loop = self.server_state, asyncio.get_running_loop()
        until = loop.time() + limit_s
        while (state.connections or state.tasks) and not self.force_exit and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _cut_off(self) -> None:
        """Refuse requests that have no answer yet, and close the connections of all."""
        state = self.server_state
        if state.tasks:
            log.warning(
                "stopping: %d requests had no answer yet, and have been cut off: changes among them may be made",
                len(state.tasks),
            )
        logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
        connections = [cast("Connection", c) for c in state.connections]
        for connection in connections:
            connection.hang_up(_refusal(connection.cycle))
        for task in list(state.tasks):
            task.cancel()
        await self._drain(LAST_S)
        for unread in list(state.connections):  # of clients that do not read
            cast("Connection", unread).transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn raises the signal again at its end, but a requested stop is no failure.
        loop = asyncio.get_running_loop()
        kinds = ending_signals()
        for kind in kinds:
            loop.add_signal_handler(kind, self._stop, kind)
        try:
            yield
        finally:
            for kind in kinds:
                loop.remove_signal_handler(kind)
            for kind in kinds[1:]:
                signal.signal(kind, signal.SIG_IGN)  # it has been stopped: another would make a failure of that

    def _stop(self, kind: Any) -> None:
        self.force_exit = self.should_exit and kind == signal.SIGINT
        self.should_exit = True
        self._context.stop()


def _refusal(cycle: Any) -> ServiceError:
    """The error of the request that a connection answers; that of a change says that it may have been made."""
    if cycle is None or cycle.response_complete or cycle.scope["method"] in ("GET", "HEAD"):
        return StoppedError(STOPPING)
    return StoppedError(STOPPING) if cycle.scope["path"].startswith(_REPEATED) else CutOffError(CUT_OFF)


def _is_no_cut(record: logging.LogRecord) -> bool:
    """Return whether a line of uvicorn's log is not of a request that has been cut off."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
