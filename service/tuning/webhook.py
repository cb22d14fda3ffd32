"""Webhooks: a run's final status is POSTed to the URL of its request.

A pending delivery is a row of the database, which any service sends when it is due, one at a time. A 2xx
answer acknowledges it; a receiver may get it twice. Only hosts listed in the settings are allowed, redirects
are not followed, and hosts listed only by a pattern may not have private addresses.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from service.errors import DatabaseError, InvalidError
from service.settings import WHSEC, Settings
from service.store import event
from service.store.background import Background
from service.store.db import Store
from service.store.sql import insert, is_due, now
from service.store.tables import LIVE, run, webhook
from service.tuning import run_status
from strategy.record import encode

if TYPE_CHECKING:
    import httpx  # loaded where a URL is given only

log = logging.getLogger(__name__)
TRIES = 12  # within about three hours
TIMEOUT_S = 10.0  # of each read
TOTAL_S = 30.0  # of one delivery, less than `CLAIM_S`
LONGEST_S = 3600.0  # between two tries
CLAIM_S = 60.0  # until another service may send what one was sending when it died


def check(url: str, hosts: str) -> None:
    """Raise `InvalidError` if the URL is not allowed for webhooks.

    Args:
        url: the receiver.
        hosts: `Settings.webhook_hosts`.
    """
    import httpx

    try:
        asked = httpx.URL(url)
        host = asked.host
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InvalidError(f"webhook: {url!r:.120} is no URL ({error}): write it as https://host/path") from error
    if asked.scheme not in ("http", "https") or not host or asked.userinfo:
        raise InvalidError(f"webhook: {url!r:.120} is refused: write it as http(s)://host/path, without a password")
    if not _is_named(host, hosts) and not _is_matched(host, hosts):
        raise InvalidError(
            f"webhook: host {host!r:.120} is not permitted: have it listed in PLEVEL_WEBHOOK_HOSTS of the "
            "service"
        )


def _listed(hosts: str) -> list[str]:
    return [h.strip().lower() for h in hosts.split(",")]


def _is_named(host: str, hosts: str) -> bool:
    return host in _listed(hosts)


def _is_matched(host: str, hosts: str) -> bool:
    return any(h.startswith("*.") and host.endswith(h[1:]) for h in _listed(hosts))


def subscribe(connection: sa.Connection, run_id: int, url: str) -> None:
    """Schedule one delivery of a run's final status to `url`, also if the run has ended already."""
    values = {"run_id": run_id, "url": url, "attempts": 0, "due_at": now(), "error": ""}
    connection.execute(insert(connection, webhook).values(values).on_conflict_do_nothing())


class Postman(Background):
    """Sender of due webhooks, in one thread.

    Args:
        settings: permitted hosts, the secret, and the retry interval.
    """

    patience_s = 1.0  # what it is sending is sent again by the next

    def __init__(self, store: Store, settings: Settings) -> None:
        super().__init__("webhooks", settings.poll_s)
        self._store = store
        self._settings = settings

    def step(self) -> None:
        """Send all that is due."""
        while not self._stopping.is_set() and self.send():
            pass

    def send(self) -> bool:
        """Send what has been due the longest; False where nothing is."""
        with self._store.read() as connection:
            due = connection.execute(_due(self._settings.webhook_retry_s)).one_or_none()
        if due is None:
            return False
        tried = due.attempts + 1
        mine = (webhook.c.id == due.id, webhook.c.attempts == tried, webhook.c.ended_at.is_(None))
        with self._store.write() as connection:
            claimed = connection.execute(
                sa.update(webhook)
                .where(webhook.c.id == due.id, webhook.c.attempts == due.attempts)
                .values(attempts=tried, due_at=now() + CLAIM_S)
            )
            if not claimed.rowcount:  # claimed by another service
                return True
        error = self._tell(due)
        wait_s = min(LONGEST_S, self._settings.webhook_retry_s * 2**due.attempts)
        ended = now() if not error or tried >= TRIES else None
        with self._store.write() as connection:
            connection.execute(
                sa.update(webhook)
                .where(*mine)
                .values(error=error, ended_at=ended, due_at=now() + wait_s)
            )
            event.note(
                connection, "webhook", run_id=due.run_id, url=due.url, attempt=tried, error=error
            )
        return True

    def _tell(self, due: Any) -> str:
        """Send the status of a run; return the error, empty if it was accepted."""
        try:
            with self._store.read() as connection:
                status = run_status.status(connection, due.run_id, self._settings.alive_s)
        except DatabaseError:
            raise
        except Exception as error:  # which must not hold up the webhooks of other runs
            log.exception("the status of run %d cannot be sent", due.run_id)
            return f"its status cannot be read: {type(error).__name__}: {error}"[:500]
        return self._send(due.url, f"run_{due.run_id}_{due.id}", encode(status))

    def _send(self, url: str, message: str, body: bytes) -> str:
        """Send a message; return the error, empty if it was accepted."""
        import httpx

        headers = {"content-type": "application/json", "user-agent": "plevel"}
        secret = self._settings.webhook_secret
        headers |= _signed(message, body, secret.get_secret_value() if secret else None)
        try:
            check(url, self._settings.webhook_hosts)
            asked = httpx.URL(url)
            headers["host"] = asked.netloc.decode()
            there = asked.copy_with(host=_address(asked, self._settings.webhook_hosts))
            with (
                # No proxy and no redirect: it goes to the checked address only.
                httpx.Client(trust_env=False, timeout=TIMEOUT_S) as client,
                _cut_off_after(TOTAL_S) as trace,
                client.stream(
                    "POST", there, content=body, headers=headers,
                    extensions={"sni_hostname": asked.host, "trace": trace},
                ) as response,
            ):
                return "" if response.is_success else f"the receiver answered {response.status_code}"
        except (InvalidError, OSError, ValueError, httpx.InvalidURL, httpx.HTTPError) as error:
            return f"{error}"[:500] or type(error).__name__


@contextmanager
def _cut_off_after(limit_s: float) -> Iterator[Callable[[str, Any], None]]:
    """Shut the connection of a request down after a time, as timeouts are of each read; yields its trace (httpcore).

    Raises:
        TimeoutError: it was.
    """
    import httpx

    streams: list[Any] = []
    over = threading.Event()

    def note(event: str, found: Any) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            streams.append(found["return_value"])
            if over.is_set():
                cut_off()

    def cut_off() -> None:
        over.set()
        with suppress(OSError):
            # Not closed: its number could be another connection's before the blocked read notices.
            for stream in streams[-1:]:
                stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(limit_s, cut_off)
    timer.daemon = True
    timer.start()
    try:
        yield note
    except httpx.HTTPError as error:
        if over.is_set():
            raise TimeoutError(f"no answer within {limit_s:g} s") from error
        raise
    finally:
        timer.cancel()


def _signed(message: str, body: bytes, secret: str | None) -> dict[str, str]:
    """Headers of the Standard Webhooks specification (1.0.0): id, timestamp and signature.

    The id is the same in every attempt, so that receivers can detect repeated messages.
    """
    instant = str(int(time.time()))
    headers = {"webhook-id": message, "webhook-timestamp": instant}
    if secret is not None:
        signed = f"{message}.{instant}.".encode() + body
        digest = hmac.digest(base64.b64decode(secret.removeprefix(WHSEC)), signed, "sha256")
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


def _due(retry_s: float) -> sa.Select[Any]:
    longest_s = CLAIM_S + retry_s * sa.literal(1).bitwise_lshift(webhook.c.attempts)
    return (
        sa.select(webhook)
        .join(run, run.c.id == webhook.c.run_id)
        .where(
            webhook.c.ended_at.is_(None), run.c.state.not_in(LIVE),
            sa.or_(is_due(webhook.c.due_at, LONGEST_S), is_due(webhook.c.due_at, longest_s)),
        )
        .order_by(webhook.c.due_at)
        .limit(1)
    )


def _address(url: httpx.URL, hosts: str) -> str:
    """Resolve a host once, so that the checked address is the one connected to.

    Raises:
        InvalidError: the address is private, and the host is not listed by name.
    """
    port = url.port or (443 if url.scheme == "https" else 80)
    found = socket.getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    if not _is_named(url.host, hosts) and not all(map(_is_public, addresses)):
        raise InvalidError(
            f"webhook: host {url.host} has a private address: have it listed by name in PLEVEL_WEBHOOK_HOSTS"
        )
    return addresses[0]


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return ip.is_global and not ip.is_multicast
