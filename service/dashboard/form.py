"""Decoding of forms, within the limits of other bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request

from service.context import read_body
from service.errors import InvalidError, ServiceError

MOST_FIELDS = 100


class ForeignPageError(ServiceError):
    """A form was sent by another site's page (CSRF)."""

    status = 403
    kind = "foreign-page"
    title = "The form is from another site"


def check_origin(request: Request) -> None:
    """Raise `ForeignPageError` for a form from another site's page."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign or site not in ("same-origin", "none"):
        raise ForeignPageError("the form was sent by another site: use this service's pages")


async def read_fields(request: Request) -> Mapping[str, str]:
    """Return a form's fields, the last of each name.

    Raises:
        ForeignPageError: another site's page sent it.
        InvalidError: the body is no form.
    """
    check_origin(request)
    data = await read_body(request)
    try:
        found = parse_qsl(
            data.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"
        )
    except ValueError as error:
        raise InvalidError(f"the form cannot be read: {error}: send it from its page") from error
    return dict(found)


Fields = Annotated[Mapping[str, str], Depends(read_fields)]
