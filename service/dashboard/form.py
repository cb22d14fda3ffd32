"""Fields of a form that a page sends, within the limits of every other body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request

from service.context import read_body
from service.errors import InvalidError, ServiceError

MOST_FIELDS = 100


class ForeignPageError(ServiceError):
    """A form that another site's page has sent."""

    status = 403
    kind = "foreign-page"
    title = "The form is not of this site"


def check_origin(request: Request) -> None:
    """Refuse what another site's page has made a browser send; raises `ForeignPageError`."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign or site not in ("same-origin", "none"):
        raise ForeignPageError("the form was sent from another site: use the buttons of this one")


async def read_fields(request: Request) -> Mapping[str, str]:
    """Return a form's fields, the last of each name.

    Raises:
        ForeignPageError: another site's page has sent it.
        InvalidError: it is no form.
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
