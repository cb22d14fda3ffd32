"""Answers that are sent in parts while they are read from the database."""

from __future__ import annotations

import logging

from starlette.responses import StreamingResponse
from starlette.types import Send

from service.errors import ServiceError

log = logging.getLogger(__name__)


class Stream(StreamingResponse):
    """A streamed answer that ends with the database.

    Its status is sent by then: the connection is closed without the last part, by which HTTP's clients know that the
    answer is incomplete.
    """

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except ServiceError as error:  # one line, as of other requests; not the handlers, which find an answer begun
            log.warning("an answer was cut off: %s", error)
