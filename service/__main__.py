"""`python -m service`: the service as a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import uvicorn
from pydantic import ValidationError

from service.access import token
from service.api.certificate import Certificate
from service.api.listener import GONE_S
from service.app import create_app, prepare
from service.errors import ServiceError, StartError
from service.server import Server
from service.settings import Mode, Settings, misspelled
from service.store.db import Store, normal_url
from strategy.host import is_loopback
from strategy.log import Form, configure

# The interpreter's switch interval. A selection acquires the interpreter a dozen times and waits up to this
# long each time while an import computes; Python's default of 5 ms would be noticeable.
SWITCH_S = 0.0005
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
    address = f"{url} and this host's other addresses" if settings.host in _ANY else url
    server = Server(config, app.state.context, address, url, ready_file, certificate)
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


if __name__ == "__main__":
    sys.exit(main())
