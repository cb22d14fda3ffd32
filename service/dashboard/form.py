"""Decoding of forms, within the limits of other bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from service.context import read_body
from service.errors import InvalidError

MOST_FIELDS = 100


async def read_fields(request: Request) -> Mapping[str, str]:
    """Return a form's fields, the last of each name.

    Raises:
        InvalidError: the body is no form.
    """
    data = await read_body(request)
    try:
        found = parse_qsl(
            data.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"
        )
    except ValueError as error:
        raise InvalidError(f"the form cannot be read: {error}: send it from its page") from error
    return dict(found)


Fields = Annotated[Mapping[str, str], Depends(read_fields)]
