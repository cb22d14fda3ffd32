"""`python -m service`: the service as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import uvicorn
from pydantic import ValidationError

from service.access import token
from service.api.certificate import Certificate
from service.api.connection import Connection
from service.api.listener import GONE_S, Listener
from service.app import create_app, prepare
from service.context import Context
from service.errors import STOPPING, DatabaseError, ServiceError, StartError, StoppedError
from service.selection.database import warm
from service.settings import Mode, Settings, misspelled
from service.store.db import Store, normal_url
from strategy.ending import ending_signals
from strategy.host import is_loopback
from strategy.log import Form, configure
from strategy.op import all_ops

GRACE_S = 5
LAST_S = 1.0  # for clients to read that they are refused
# The interpreter's switch interval. A selection acquires the interpreter a dozen times and waits up to this
# long each time while an import computes; Python's default of 5 ms would be noticeable.
SWITCH_S = 0.0005
# Connections opened at the start. A new one costs its first request many times that of a selection, as PostgreSQL
# starts a process, which reads the catalogue and plans the statements.
WARM = 4
log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve as the command line says until a signal ends it; return the exit status."""
    return run(vars(_parser().parse_args(arguments)))


def run(options: Mapping[str, Any]) -> int:
    """Serve until a signal ends it; return the exit status.

    Args:
        options: those of the command line; one that is missing, or None, is the environment's or the default.
    """
    given = {name: value for name, value in options.items() if value is not None}
    ready_file: Path | None = given.pop("ready_file", None)
    inherited: int | None = given.pop("fd", None)
    form: Form = given.pop("log", "text")
    configure(form, "%(levelname)s %(name)s: %(message)s")
    # Each change of a run, a job or a worker: for machines.
    logging.getLogger("service.store.event").setLevel(
        logging.INFO if form == "json" else logging.WARNING
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    for name, near in misspelled(os.environ):
        log.warning("%s is ignored, as there is no such setting: did you mean %s?", name, near)
    try:
        settings = Settings(**given)
        with listen(settings.host, settings.port) if inherited is None else _inherit(inherited) as listening:
            prepare(settings)
            serve(settings, listening, ready_file)
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(map(str, first["loc"])).upper()  # options are checked before
        print(f"plevel service: PLEVEL_{name}: {first['msg'].removeprefix('Value error, ')}", file=sys.stderr)
        return 2
    except ServiceError as error:
        print(f"plevel service: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m service", description="Serve a plevel database.")
    parser.add_argument("--database", metavar="URL", help="sqlite:///file or postgresql://user@host/name")
    parser.add_argument("--host", help="the address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help="the port; 0 chooses a free one")
    parser.add_argument("--fd", type=int, metavar="N", help="a socket of the parent's to listen on")
    parser.add_argument("--auth", choices=get_args(Mode), help="require tokens: auto (once one exists), open, token")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve HTTPS with this certificate")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="the certificate's key")
    parser.add_argument("--log", choices=get_args(Form), default="text", help="the format of log lines (text)")
    parser.add_argument("--ready-file", type=Path, help="a file to write the URL to once the service answers")
    return parser


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise `StartError` if the address is in use or not this host's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # UnicodeError: of a part of its name that is empty or too long
        why = error.strerror if isinstance(error, OSError) else "no name of a host"
        raise StartError(f"host {host:.80}: {why}: name an address of this machine") from error
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        _start(listening)
    except OSError as error:
        listening.close()
        raise StartError(
            f"port {port} on {host} cannot be used ({error.strerror}): choose another with --port, or 0 "
            "for a free one"
        ) from error
    return listening


def _inherit(number: int) -> socket.socket:
    """Return the listening socket of a file descriptor; raise `StartError` if it is none."""
    try:
        listening = socket.socket(fileno=number)
        _start(listening)
    except (OSError, OverflowError, ValueError) as error:  # not OSError: of a number that no descriptor has
        why = error.strerror if isinstance(error, OSError) else "no descriptor"
        raise StartError(f"fd {number}: {why}: pass a TCP socket of the parent's") from error
    return listening


def _start(listening: socket.socket) -> None:
    # Inherited by accepted sockets: detects clients whose host is gone.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, GONE_S)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * GONE_S)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.listen(2048)


def serve(settings: Settings, listening: socket.socket, ready_file: Path | None) -> None:
    """Serve on a socket until a signal stops the service.

    Raises:
        StartError: other hosts could reach it without a token, or the certificate cannot be used.
    """
    _check_open(settings, listening)
    _check_mode(settings)
    app = create_app(settings)
    config = uvicorn.Config(
        # Malformed requests are not logged, as anybody could fill the log.
        app, log_level="error", access_log=False, lifespan="on", ws="none", http="httptools",
        forwarded_allow_ips=settings.proxies,
    )
    certificate = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        certificate = Certificate(settings.tls_cert, settings.tls_key)
    scheme = "http" if certificate is None else "https"
    url = _url(scheme, settings.host, listening.getsockname()[1])
    server = _Server(config, app.state.context, url, ready_file, certificate)
    sys.setswitchinterval(SWITCH_S)
    server.run(sockets=[listening])
    if not server.started:
        raise StartError("the service did not start: its log has the reason")
    if server.failure is not None:
        raise server.failure


def _check_open(settings: Settings, listening: socket.socket) -> None:
    """Raise `StartError` if other hosts could reach the service without a token."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise StartError("tls_cert, tls_key: only one is given: give both or neither")
    if is_loopback(listening.getsockname()[0]):
        return
    if settings.auth == "open":
        raise StartError(
            f"auth open: other hosts can reach {settings.host} without a token: use auth token, or host 127.0.0.1"
        )
    with contextlib.closing(Store(settings.database)) as store, store.read() as connection:
        known = token.any_made(connection)
    if not known and settings.auth != "token":  # which answers nobody until there is one
        raise StartError(
            f"host {settings.host}: other hosts can reach it, and there is no token yet: create one with `plevel "
            "token create`, or listen on 127.0.0.1"
        )
    if settings.tls_cert is None:
        log.warning("tokens are sent unencrypted: use --tls-cert, or a proxy with TLS in front")


def _check_mode(settings: Settings) -> None:
    """Warn if other users of this host can open the SQLite file."""
    url = normal_url(settings.database)
    if url.drivername != "sqlite":
        return
    path = Path(str(url.database))
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        log.warning("other users of this host can open %s (mode %o): restrict it with chmod 600", path, mode)


_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - all addresses of this host, and one for itself


def _url(scheme: str, host: str, port: int) -> str:
    reachable = _ANY.get(host, host)
    return f"{scheme}://[{reachable}]:{port}" if ":" in reachable else f"{scheme}://{reachable}:{port}"


class _Server(uvicorn.Server):
    """A server that prints its address once it answers, and ends long polls on shutdown.

    `failure` is the reason for which it did not serve, though it has started.
    """

    def __init__(
        self, config: uvicorn.Config, context: Context, url: str, ready_file: Path | None,
        certificate: Certificate | None,
    ) -> None:
        super().__init__(config)
        self._context = context
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
        others = " and this host's other addresses" if self._context.settings.host in _ANY else ""
        named = "the output"
        try:
            print(f"plevel service on {self._url}{others}", flush=True)
            if self._ready_file is not None:
                named = f"--ready-file {self._ready_file}"
                # Renamed into place, so that readers never see a part of it.
                partial = self._ready_file.with_name(f"{self._ready_file.name}.{os.getpid()}")
                partial.write_text(self._url + "\n")
                partial.replace(self._ready_file)
        except OSError as error:
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
                "stopping: %d requests had no answer yet, and have been refused: their clients send them again",
                len(state.tasks),
            )
        logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
        for connection in list(state.connections):
            cast("Connection", connection).hang_up(StoppedError(STOPPING))
        for task in list(state.tasks):
            task.cancel()
        await self._drain(LAST_S)
        for connection in list(state.connections):  # of clients that do not read
            cast("Connection", connection).transport.abort()

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


def _is_no_cut(record: logging.LogRecord) -> bool:
    """Return whether a line of uvicorn's log is not of a request that has been cut off."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


if __name__ == "__main__":
    sys.exit(main())
