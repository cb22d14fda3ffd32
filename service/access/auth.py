"""Authentication and rights of requests.

A service without tokens is open to its own host and to nobody else. Once there is a token, every
request carries one that allows what it asks for, as `Authorization: Bearer …` or, for browsers, as
the password of Basic.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ipaddress
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

from anyio import to_thread
from fastapi import Depends, Query, Request

from service.access import token
from service.errors import (
    DatabaseError,
    ForbiddenError,
    ServiceError,
    TooManyError,
    UnauthorizedError,
)
from service.settings import Mode
from service.store.db import Store
from service.store.namespace import DEFAULT, PATTERN
from service.store.tables import TokenScope

# A revoked token works for so long at most.
REMEMBER_S = 2.0
_REMEMBERED = 10_000
_NOT_GOOD = "the token is not known, has expired or was revoked: ask for another"


@dataclass(frozen=True)
class Actor:
    """Sender of a request: the bearer of a token, or a user of this host.

    With a `namespace` that is the only one seen and written.
    """

    name: str
    scopes: frozenset[TokenScope]
    token_id: int | None = None
    namespace: str | None = None

    def check(self, needed: TokenScope) -> None:
        """Raise `ForbiddenError` if this is not allowed."""
        if needed not in self.scopes and TokenScope.ADMIN not in self.scopes:
            raise ForbiddenError(
                f"token {self.name!r} has scope {', '.join(sorted(self.scopes))}, and this needs "
                f"{needed}: use another, or make one with `plevel token create --scope {needed}`"
            )

    def enter(self, namespace: str | None) -> str:
        """The namespace of a request: the one that it names, else the token's, else the default.

        Raises:
            ForbiddenError: the token is of another.
        """
        if self.namespace not in (None, namespace or self.namespace):
            raise ForbiddenError(
                f"token {self.name!r} is of namespace {self.namespace}: leave {namespace} to others, or "
                "use another token"
            )
        return namespace or self.namespace or DEFAULT


HangUp = Callable[[ServiceError], None]  # ends a request, saying why where it has no answer yet
LOCAL = Actor("local", frozenset(TokenScope))


# Those that are not `async` get a thread for each request.
async def actor_of(request: Request) -> Actor:
    """The dependency of routes that note or limit who asks."""
    actor: Actor = request.state.actor
    return actor


Who = Annotated[Actor, Depends(actor_of)]


async def namespace_of(
    who: Who,
    namespace: Annotated[
        str | None,
        Query(
            pattern=PATTERN,
            description="The project: `default`, or the token's, where none is named.",
        ),
    ] = None,
) -> str:
    """The dependency of routes that read or write what is in a namespace."""
    return who.enter(namespace)


Within = Annotated[str, Depends(namespace_of)]


class Authority:
    """Tells who asks. Thread-safe; what the database said is remembered for `REMEMBER_S`.

    Args:
        store: the database, once it is open.
        mode: `auto` asks for a token where there is one; `open` asks nobody on this host, `token`
            everybody.
        rate: requests a second of one token, with bursts of twice as many.
    """

    def __init__(self, store: Callable[[], Store], mode: Mode, rate: float) -> None:
        self._store = store
        self._rate = rate
        self._lock = threading.Lock()
        # When it was found out, and what: whether tokens are needed, and whose each is.
        at = -math.inf if mode == "auto" else math.inf
        self._needed = at, mode == "token"
        self._known: dict[str, tuple[float, Actor | None]] = {}
        self._spent: dict[object, tuple[float, float]] = {}
        self._attended: dict[int, set[HangUp]] = {}  # requests under way, by their tokens

    def remembers(self, authorization: str | None) -> bool:
        """Return whether `identify` answers without a query."""
        at, needed = self._needed
        if not _is_fresh(at):
            return False
        return not needed or authorization is None or _is_fresh(self._look_up(authorization)[0])

    def identify(self, authorization: str | None, peer: str | None, host: str) -> Actor:
        """Identify the sender of a request.

        Args:
            authorization: the header, if there was one.
            peer: the address that it came from.
            host: the host that it names, where a page of another site may have led the browser.

        Raises:
            UnauthorizedError: nobody that is known.
        """
        if not self._needs_token():
            if peer is None or not is_loopback(peer):
                raise UnauthorizedError(
                    "a service without tokens answers its own host only: make one there with "
                    "`plevel token create`"
                )
            if not is_loopback(host):
                raise UnauthorizedError(
                    f"host {host!r:.80}: a service without tokens is asked as 127.0.0.1 or localhost"
                )
            return LOCAL
        if authorization is None:
            raise UnauthorizedError(
                "send a token: --token-file of a worker, PLEVEL_TOKEN_FILE for other commands, the "
                "password in a browser"
            )
        at, actor = self._look_up(authorization)
        if not _is_fresh(at):
            actor = self._find(authorization)
        if actor is None:
            raise UnauthorizedError(_NOT_GOOD)
        return actor

    def spend(self, who: object) -> None:
        """Count a request; raise `TooManyError` beyond the rate (a token bucket for each asker)."""
        now = time.monotonic()
        with self._lock:
            if len(self._spent) >= _REMEMBERED:
                self._spent.clear()
            at, left = self._spent.get(who, (now, 2 * self._rate))
            left = min(2 * self._rate, left + (now - at) * self._rate)
            self._spent[who] = now, max(left - 1, 0.0)
        if left < 1:
            raise TooManyError(f"more than {self._rate:g} requests a second: wait a second")

    @contextlib.contextmanager
    def attend(self, actor: Actor, hang_up: HangUp) -> Iterator[None]:
        """Has a request ended by `hang_up` where its token is revoked or expires while it is answered."""
        if actor.token_id is None:
            yield
            return
        attended = self._attended.setdefault(actor.token_id, set())
        attended.add(hang_up)
        try:
            yield
        finally:
            attended.discard(hang_up)
            if not attended and self._attended.get(actor.token_id) is attended:
                del self._attended[actor.token_id]

    async def watch(self) -> None:
        """End requests whose token is good no more, for ever; on the loop that serves them."""
        while True:
            await asyncio.sleep(REMEMBER_S / 2)
            ids = set(self._attended)
            with contextlib.suppress(DatabaseError):  # the tuner says that it is away
                for token_id in ids - await to_thread.run_sync(self._find_good, ids):
                    for hang_up in list(self._attended.get(token_id, ())):
                        hang_up(UnauthorizedError(_NOT_GOOD))

    def _find_good(self, ids: set[int]) -> set[int]:
        if not ids:
            return ids
        with self._store().read() as connection:
            return token.find_good(connection, ids)

    def _needs_token(self) -> bool:
        at, needed = self._needed
        if not _is_fresh(at):
            with self._store().read() as connection:
                needed = token.any_good(connection)
            self._needed = time.monotonic(), needed
        return needed

    def _look_up(self, authorization: str) -> tuple[float, Actor | None]:
        return self._known.get(_digest(authorization), (-math.inf, None))

    def _find(self, authorization: str) -> Actor | None:
        digest = _digest(authorization)
        with self._store().read() as connection:
            found = token.find(connection, digest)
        actor = None
        if found is not None:
            actor = Actor(found.name, frozenset(found.scopes), found.id, found.namespace)
        with self._lock:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[digest] = time.monotonic(), actor
        return actor


def _is_fresh(at: float) -> bool:
    return time.monotonic() - at < REMEMBER_S


def _digest(authorization: str) -> str:
    kind, _, secret = authorization.partition(" ")
    if kind.lower() == "basic":
        try:
            secret = base64.b64decode(secret, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            secret = ""
    return token.digest_of(secret.strip())


def is_loopback(host: str) -> bool:
    """Return whether an address, or a name in a URL, is this host's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
