"""One client's connection: uvicorn's HTTP/1.1, with limits on the size and time of requests.

httptools has no limits of its own and buffers a header until its end. So the bytes of an incomplete head are
counted here, and a refused head never becomes a request. `check` applies the limits of time once a second,
without a timer for each connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from http import HTTPStatus
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from service.api.packet import JoinedTransport
from service.api.problem import describe_error
from service.api.wire import PROBLEM
from service.errors import (
    STOPPING,
    HeadTooLargeError,
    MalformedRequestError,
    ServiceError,
    StoppedError,
    TooSlowError,
    UrlTooLongError,
)
from service.peer import plain_address
from service.settings import Settings
from strategy.record import encode

AHEAD = 16  # requests that a client may pipeline


class _Part(Enum):
    """The part of the request that the client has yet to send."""

    HEAD = "head"
    BODY = "body"
    NOTHING = "nothing"


class Connection(HttpToolsProtocol):
    """A connection with limits on the size of request heads and the time of requests.

    Args:
        config: uvicorn's.
        server_state: uvicorn's, with all connections.
        app_state: the state of the application's lifespan.
        settings: the limits.
        count: called with the kind of each refusal.
        lost: set when the connection has ended.
    """

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any],
        settings: Settings, count: Callable[[str], None], lost: asyncio.Future[None],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._settings = settings
        self._count = count
        self._lost = lost
        self._awaited = _Part.HEAD
        self._since = self.loop.time()  # when the client last made progress
        self._head_bytes = 0  # of the URL and of complete headers and trailers
        self._loose_bytes = 0  # received since, not of a body
        self._fault: ServiceError | None = None
        self._has_ended = False  # the client sends no more, and may have left
        self._unsent: int | None = None  # bytes of the answer not yet read by the client, and since when

    def connection_made(  # type: ignore[override]  # as uvicorn's
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(cast("asyncio.Transport", JoinedTransport(transport, self.loop)))
        if self.client is not None:  # by which a proxy is known
            self.client = plain_address(self.client[0]), self.client[1]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._lost.done():
            self._lost.set_result(None)

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's closes the connection
        """Keep the connection for the answer if the client has sent a whole request, and closed its side only.

        One that has left altogether looks the same until the answer is sent. With TLS there is no half of a connection.
        """
        self._has_ended = True
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or cycle.response_complete or self._awaited is not _Part.NOTHING or self.scheme == "https":
            self.transport.close()  # after what is written: the loop's own transport knows nothing of that yet
            return False
        cycle.keep_alive = False
        return True

    def shutdown(self) -> None:
        """Refuse a request whose body is incomplete, as the service is stopping."""
        if self._awaited is _Part.BODY:
            self.hang_up(StoppedError(STOPPING))
        super().shutdown()

    # Data from the client

    def data_received(self, data: bytes) -> None:
        if self._awaited is _Part.NOTHING:
            self._await(_Part.HEAD)
        self._loose_bytes += len(data)
        super().data_received(data)
        if self._head_bytes + self._loose_bytes > self._settings.max_head_bytes:
            self._refuse(self._too_large())

    def on_message_begin(self) -> None:
        self._await(_Part.HEAD)
        self._head_bytes = 0
        super().on_message_begin()
        self.scope["state"] |= {"hang_up": self.hang_up, "has_ended": lambda: self._has_ended}

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._take(len(url))
        if len(self.url) > self._settings.max_url_bytes:
            raise self._found(
                UrlTooLongError(f"the URL is longer than {self._settings.max_url_bytes} bytes: shorten it")
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._take(len(name) + len(value) + len(b": \r\n"))
        if self._head_bytes > self._settings.max_head_bytes:
            raise self._found(self._too_large())
        if len(self.headers) > self._settings.max_headers:
            raise self._found(
                HeadTooLargeError(f"the request has more than {self._settings.max_headers} headers: send fewer")
            )

    def on_headers_complete(self) -> None:
        self._await(_Part.BODY)
        if len(self.pipeline) >= AHEAD:
            raise self._found(MalformedRequestError(f"more than {AHEAD} pipelined requests: wait for answers"))
        super().on_headers_complete()
        if self.parser.should_upgrade():  # upgrades to other protocols are refused
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._loose_bytes = 0
        if not self.cycle.response_complete:
            self._since = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._await(_Part.NOTHING)
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: anyone who can reach the service could fill its log."""

    def _await(self, part: _Part) -> None:
        self._awaited = part
        self._since = self.loop.time()
        self._loose_bytes = 0

    def _take(self, size: int) -> None:
        self._loose_bytes = 0
        self._head_bytes += size

    # Refusals

    def _too_large(self) -> ServiceError:
        return HeadTooLargeError(
            f"URL and headers are larger than {self._settings.max_head_bytes} bytes: shorten them"
        )

    def _found(self, fault: ServiceError) -> ServiceError:
        """Record the error of a callback, as the parser reports only that there was one."""
        self._fault = fault
        return fault

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._fault or MalformedRequestError("not a valid HTTP/1.1 request: see /docs for the API"))

    def _refuse(self, error: ServiceError) -> None:
        self._count(error.kind)
        self.hang_up(error)

    def hang_up(self, error: ServiceError) -> None:
        """Send the error if no other answer has begun, and close the connection."""
        if self.transport.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if cycle is None or (cycle.response_complete and self._awaited is _Part.HEAD):
            self.transport.write(answer_to(error))
        elif not (cycle.response_started or self.pipeline):
            self.transport.write(answer_to(error))
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    # Limits of time

    def check(self) -> None:
        """Close the connection if its client is too slow."""
        now = self.loop.time()
        closing = self.transport.is_closing()
        if closing or self.flow.write_paused:
            unsent = 0 if closing else self.transport.get_write_buffer_size()
            if unsent != self._unsent:
                self._unsent, self._since = unsent, now
            elif now - self._since > self._settings.idle_s:
                self.transport.abort()
            return
        self._unsent = None
        if self._awaited is _Part.NOTHING:
            return
        if self.flow.read_paused:  # the service is the slow side
            self._since = now
        elif self._awaited is _Part.BODY:
            if now - self._since > self._settings.idle_s:
                self._refuse(TooSlowError(f"no data of the body for {self._settings.idle_s:g} s: send it again"))
        elif now - self._since > self._settings.head_s:
            if self._loose_bytes or self._head_bytes:
                self._refuse(TooSlowError(f"the headers took more than {self._settings.head_s:g} s: send them at once"))
            else:
                self.transport.close()


def answer_to(error: ServiceError) -> bytes:
    """A complete response that refuses a request and closes the connection."""
    body = encode(describe_error(error))
    again = "" if error.retry_s is None else f"retry-after: {error.retry_s}\r\n"
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        f"content-type: {PROBLEM}\r\ncontent-length: {len(body)}\r\n{again}connection: close\r\n\r\n"
    )
    return head.encode() + body
