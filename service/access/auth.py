"""Authentication and rights of requests.

A service without tokens answers its own host only. Once there has been a token, every request needs a valid one
with a sufficient scope, as `Authorization: Bearer …` or, for browsers, as the password of Basic.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

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
from service.store.batcher import Batcher
from service.store.db import Store
from service.store.namespace import DEFAULT, PATTERN
from service.store.tables import TokenScope
from strategy.host import is_loopback

log = logging.getLogger(__name__)
# The longest time for which a revoked token still works.
REMEMBER_S = 2.0
_REMEMBERED = 10_000
_LOOKED_UP = 1000  # tokens of one query
_NOT_GOOD = "the token is unknown, expired or revoked: ask an administrator for another"


@dataclass(frozen=True)
class Actor:
    """The sender of a request: the bearer of a token, or a user of this host.

    A `namespace` restricts it to that one.
    """

    name: str
    scopes: frozenset[TokenScope]
    token_id: int | None = None
    namespace: str | None = None

    @property
    def owner(self) -> str | None:
        """The name that its devices and workers belong to; None if all may be used.

        Tokens of the same name are equivalent, so that one can be replaced while workers use it.
        """
        return None if self.token_id is None else self.name

    def check(self, needed: TokenScope) -> None:
        """Raise `ForbiddenError` if this is not allowed."""
        if needed not in self.scopes and TokenScope.ADMIN not in self.scopes:
            wanted = " ".join(f"--scope {scope}" for scope in sorted({*self.scopes, needed}))
            raise ForbiddenError(
                f"token {self.name!r} has scope {', '.join(sorted(self.scopes))}, this request needs "
                f"{needed}: use another token, or create one with `plevel token create NAME {wanted}`"
            )

    def enter(self, namespace: str | None) -> str:
        """The namespace of a request: the named one, else the token's, else the default.

        Raises:
            ForbiddenError: the token is restricted to another.
        """
        if self.namespace not in (None, namespace or self.namespace):
            raise ForbiddenError(
                f"token {self.name!r} is restricted to namespace {self.namespace}: to use {namespace}, "
                "send another token"
            )
        return namespace or self.namespace or DEFAULT


class _Answer(NamedTuple):
    """The answer to a token, or to none: if tokens are needed, and its bearer if it is valid."""

    needed: bool
    actor: Actor | None


HangUp = Callable[[ServiceError], None]  # ends a request, with an error if no answer has begun
LOCAL = Actor("local", frozenset(TokenScope))


# `async`, as other dependencies take a thread for each request.
async def actor_of(request: Request) -> Actor:
    """The dependency of routes that use the sender of a request."""
    actor: Actor = request.state.actor
    return actor


Who = Annotated[Actor, Depends(actor_of)]


async def namespace_of(
    who: Who,
    namespace: Annotated[
        str | None,
        Query(pattern=PATTERN, description="The namespace; default: the token's, else `default`."),
    ] = None,
) -> str:
    """The dependency of routes that read or write in a namespace."""
    return who.enter(namespace)


Within = Annotated[str, Depends(namespace_of)]


class Authority:
    """Authentication of requests. Caches answers of the database for `REMEMBER_S`; bound to one event loop.

    Concurrent requests share a query, which holds one thread, whatever number of them waits.

    Args:
        store: the database, once it is open.
        mode: `auto` requires tokens once there has been one; `open` never, on this host only; `token` always.
        rate: requests per second of one token, with bursts of twice as many, and of one at least.
    """

    def __init__(self, store: Callable[[], Store], mode: Mode, rate: float) -> None:
        self._store = store
        self._rate, self._burst = rate, max(2 * rate, 1.0)
        self._lock = threading.Lock()
        # Cached answers with their time: whether tokens are needed, and the actor of each.
        at = -math.inf if mode == "auto" else math.inf
        self._needed = at, mode == "token"
        self._known: dict[str, tuple[float, Actor | None]] = {}
        self._spent: dict[object, tuple[float, float]] = {}
        self._attended: dict[int, set[HangUp]] = {}  # requests in progress, by their tokens
        self._lookups: Batcher[str | None, _Answer] = Batcher(self._look_up, _LOOKED_UP)

    def remembers(self, authorization: str | None) -> bool:
        """Return whether `identify` answers without a query."""
        return self._recall(_digest(authorization)) is not None

    async def identify(self, authorization: str | None, peer: str | None, host: str) -> Actor:
        """Identify the sender of a request.

        Args:
            authorization: the header, if there was one.
            peer: the address of the client.
            host: the header Host, which another site's page may have chosen (DNS rebinding).

        Raises:
            UnauthorizedError: no valid token, where one is needed.
        """
        digest = _digest(authorization)
        answer = self._recall(digest) or await self._lookups.ask(digest)
        if not answer.needed:
            if peer is None or not is_loopback(peer):
                raise UnauthorizedError(
                    "a service without tokens answers its own host only: create a token there with "
                    "`plevel token create`"
                )
            if not is_loopback(host):
                raise UnauthorizedError(
                    f"host {host!r:.80}: a service without tokens answers to 127.0.0.1 and "
                    "localhost only: use one of them"
                )
            return LOCAL
        if authorization is None:
            raise UnauthorizedError(
                "no token was sent: set PLEVEL_TOKEN_FILE or PLEVEL_TOKEN, or --token-file of a worker; curl sends it "
                "by -H 'Authorization: Bearer TOKEN', a browser as the password"
            )
        if answer.actor is None:
            raise UnauthorizedError(_NOT_GOOD)
        return answer.actor

    def spend(self, who: object) -> None:
        """Count a request; raise `TooManyError` beyond the rate (a token bucket for each actor)."""
        now = time.monotonic()
        with self._lock:
            if len(self._spent) >= _REMEMBERED:
                self._spent.clear()
            at, left = self._spent.get(who, (now, self._burst))
            left = min(self._burst, left + (now - at) * self._rate)
            is_over = left < 1
            # A refused request takes nothing: a steady excess would leave none.
            self._spent[who] = now, left if is_over else left - 1
        if is_over:
            raise self._too_many("requests per second of this token", left)

    def check_guesses(self, peer: object) -> None:
        """Raise `TooManyError` if an address has spent its rate on wrong tokens, before another is looked up."""
        now = time.monotonic()
        with self._lock:
            at, left = self._spent.get(peer, (now, self._burst))
        if left + (now - at) * self._rate < 1:
            raise self._too_many("wrong tokens per second of this address", left + (now - at) * self._rate)

    def _too_many(self, what: str, left: float) -> TooManyError:
        """The error of a request beyond the rate, with the time until the next may be sent."""
        seconds = math.ceil((1 - left) / self._rate)
        wait = "wait a second" if seconds == 1 else f"wait {seconds} seconds"
        error = TooManyError(f"more than {self._rate:g} {what}: {wait}")
        error.retry_s = seconds
        return error

    @contextlib.contextmanager
    def attend(self, actor: Actor, hang_up: HangUp) -> Iterator[None]:
        """Call `hang_up` if the request's token is revoked or expires while it is being answered."""
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
        """End requests whose token is no longer valid; run forever on the serving event loop."""
        while True:
            await asyncio.sleep(REMEMBER_S / 2)
            ids = set(self._attended)
            try:
                for token_id in ids - await to_thread.run_sync(self._find_good, ids):
                    for hang_up in list(self._attended.get(token_id, ())):
                        hang_up(UnauthorizedError(_NOT_GOOD))
            except DatabaseError:
                pass  # the tuner logs it
            except Exception:
                log.exception("the tokens of requests in progress were not checked, and will be again")

    def _find_good(self, ids: set[int]) -> set[int]:
        if not ids:
            return ids
        with self._store().read() as connection:
            return token.find_good(connection, ids)

    def _recall(self, digest: str | None) -> _Answer | None:
        """The cached answer to a token, given by its digest; None without a fresh one."""
        at, needed = self._needed
        if not _is_fresh(at):
            return None
        if not needed or digest is None:
            return _Answer(needed, None)
        at, actor = self._known.get(digest, (-math.inf, None))
        return _Answer(needed, actor) if _is_fresh(at) else None

    def _look_up(self, digests: Sequence[str | None]) -> list[_Answer]:
        """The answers to tokens, in order, by one transaction."""
        given = {digest for digest in digests if digest is not None}
        at, needed = self._needed
        with self._store().read() as connection:
            if not _is_fresh(at):
                needed = token.any_made(connection)
                self._needed = time.monotonic(), needed
            found = token.find_each(connection, given) if needed else {}
        actors = {d: Actor(i.name, frozenset(i.scopes), i.id, i.namespace) for d, i in found.items()}
        with self._lock:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            if needed:
                now = time.monotonic()
                self._known |= {digest: (now, actors.get(digest)) for digest in given}
        return [_Answer(needed, None if digest is None else actors.get(digest)) for digest in digests]


def _is_fresh(at: float) -> bool:
    return time.monotonic() - at < REMEMBER_S


def _digest(authorization: str | None) -> str | None:
    if authorization is None:
        return None
    kind, _, secret = authorization.partition(" ")
    if kind.lower() == "basic":
        try:
            secret = base64.b64decode(secret, validate=True).decode().partition(":")[2]
        except ValueError:  # no ASCII, no base64 or no UTF-8
            secret = ""
    return token.digest_of(secret.strip())
