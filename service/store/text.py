"""The JSON text of values for columns, which both databases give back as it was."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import orjson

from service.errors import InvalidError

_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|-?[0-9][0-9.]*[eE]\+?[0-9]+')


def json_bytes(value: Any, option: int = 0) -> bytes:
    """The JSON of a value; raise `InvalidError` for what has none: integers of 65 bits, or hundreds of levels."""
    try:
        return orjson.dumps(value, option=option)
    except TypeError as error:  # the only one that orjson raises
        raise InvalidError(f"a value cannot be stored: {error}") from error


def json_text(value: Any) -> str:
    """As `json_bytes`, for a column."""
    return positional(json_bytes(value).decode())


def read_json(text: str | bytes) -> Any:
    """The value of a column's JSON. NaN, infinities and 1e400, which older versions stored, become text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text, parse_constant=str, parse_float=_finite)


def _finite(number: str) -> float | str:
    return number if math.isinf(float(number)) else float(number)


def positional(text: str) -> str:
    """JSON without positive exponents: PostgreSQL's would give 1e16 back as an integer, 10000000000000000.0 not."""
    return _TOKEN.sub(_positional, text) if "e" in text or "E" in text else text


def _positional(found: re.Match[str]) -> str:
    token = found[0]
    if token.startswith('"'):
        return token
    number = float(token)
    return f"{number:.1f}" if abs(number) >= 1e16 else repr(number)
