"""Middleware of every route: authentication, scopes, rate limits, and the origin of browsers."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.auth import LOCAL, Actor, Authority
from service.api.problem import is_served, response_of
from service.errors import (
    STOPPING,
    ForbiddenError,
    MalformedRequestError,
    ServiceError,
    StoppedError,
    UnauthorizedError,
)
from service.peer import network_of
from service.store.tables import TokenScope

_OPEN = ("/healthz", "/readyz", "/static/")
_READ_BY_POST = frozenset({"/v1/select", "/v1/select:batch", "/v1/dispatch", "/v1/evidence"})
_SUBMIT = ("/v1/runs", "/v1/records:import", "/v1/networks", "/runs/")
_WORKER = ("/v1/workers", "/v1/leases")
_ADMIN = ("/v1/tokens", "/v1/audit")  # reading them, too
# Paths that respect namespaces. The others span all, and refuse tokens restricted to one.
_NAMESPACED = (
    "/v1/runs", "/v1/select", "/v1/dispatch", "/v1/evidence", "/v1/records", "/v1/tasks/",
    "/v1/coverage", "/v1/foreign/", "/v1/networks", "/v1/jobs/", "/v1/workers", "/v1/pauses",
    "/openapi.json", "/docs",
)


def needed(method: str, path: str) -> TokenScope | None:
    """The scope that a request needs, None if it needs no token; `admin` for what is neither listed nor a GET."""
    if path.startswith(_OPEN):
        return None
    if path.startswith(_ADMIN):
        return TokenScope.ADMIN
    if method in ("GET", "HEAD") or path in _READ_BY_POST or path.startswith("/v1/foreign/"):
        return TokenScope.READ
    if path.startswith(_WORKER):
        return TokenScope.WORKER
    if path.startswith(_SUBMIT):
        return TokenScope.SUBMIT
    return TokenScope.ADMIN


class Guard:
    """The middleware; admitted requests carry their `Actor` as `request.state.actor`.

    Args:
        app: what is guarded.
        authority: knows the senders.
        show: turns a problem document into a page, where a person is to read it.
        is_stopping: return whether the service is stopping, and takes no more requests.
    """

    def __init__(
        self, app: ASGIApp, authority: Authority, show: Callable[[Request, Response], Response],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._app = app
        self._authority = authority
        self._show = show
        self._is_stopping = is_stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            state = scope.setdefault("state", {})
            try:
                state["actor"] = actor = await self._admit(scope)
            except ServiceError as error:
                response = response_of(error, f"{scope['method']} {scope['path']}")
                if isinstance(error, UnauthorizedError):
                    response.headers["www-authenticate"] = (
                        'Basic realm="plevel: a token as the password"'
                    )
                await self._show(Request(scope), response)(scope, receive, send)
                return
            with self._authority.attend(actor, state.get("hang_up", _stay)):
                await self._app(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> Actor:
        headers = Headers(scope=scope)
        host = _host_of(headers.get("host", ""))
        wanted = needed(scope["method"], scope["path"])
        if wanted is None:
            return LOCAL
        peer = scope["client"][0] if scope.get("client") else None
        guesser = None if peer is None else network_of(peer)
        authorization = headers.get("authorization")
        try:
            if not self._authority.remembers(authorization):
                self._authority.check_guesses(guesser)
            actor = await self._authority.identify(authorization, peer, host)
        except UnauthorizedError:
            self._authority.spend(guesser)
            raise
        if actor.token_id is not None:
            self._authority.spend(actor.token_id)
        try:
            _check(actor, wanted, scope["path"])
        except ForbiddenError:
            if is_served(scope):
                raise  # else the answer is 404 or 405: no other token would help
        if scope["method"] not in ("GET", "HEAD"):
            _check_origin(headers)
        if self._is_stopping():
            raise StoppedError(STOPPING)
        return actor


def _check(actor: Actor, wanted: TokenScope, path: str) -> None:
    """Raise `ForbiddenError` for a token without the scope or the namespace of a request."""
    actor.check(wanted)
    if actor.namespace is not None and not path.startswith(_NAMESPACED):
        raise ForbiddenError(
            f"token {actor.name!r} is restricted to namespace {actor.namespace}, and this "
            "spans all: use another token"
        )


def _stay(error: ServiceError) -> None:
    """A `hang_up` for servers that cannot close connections."""


def _host_of(given: str) -> str:
    """The host of the header Host, without a port; raise `MalformedRequestError` for what can be none."""
    try:
        return urlsplit(f"//{given}").hostname or ""
    except ValueError as error:
        raise MalformedRequestError(f"host {given!r:.80} is none ({error}): send the service's address") from error


def _is_foreign(origin: str, host: str | None) -> bool:
    """Return whether the header Origin names another host and port than Host, or none."""
    try:
        return urlsplit(origin).netloc != host
    except ValueError:
        return True


def _check_origin(headers: Headers) -> None:
    """Refuse requests that another site's page has a browser send with the user's credentials (CSRF)."""
    site = headers.get("sec-fetch-site", "same-origin")
    origin = headers.get("origin")
    foreign = origin is not None and _is_foreign(origin, headers.get("host"))
    if foreign or site not in ("same-origin", "none"):
        raise ForbiddenError(f"origin {origin or site!r:.80} is another site: use this service's pages")
