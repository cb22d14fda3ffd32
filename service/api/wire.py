"""Bodies of requests and responses by the wire codec, and their OpenAPI description."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from anyio import to_thread
from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.openapi.utils import get_openapi

from service.api.meant import with_suggestion
from service.context import Context, read_body
from service.errors import InvalidError
from strategy.installed_code import code_identity
from strategy.record import WireError, decode, encode, json_schema
from strategy.workload_text import EXAMPLE

T = TypeVar("T", bound=msgspec.Struct)
Etag = Annotated[str | None, Header(alias="if-none-match", max_length=1000)]
PROBLEM = "application/problem+json"
LARGE = 1 << 16  # bytes of a body that takes more than a millisecond to decode
_REF = "#/components/schemas/"
# Errors of any request: too slow, URL or headers too large, database away; and of any that may need a token.
_ANYWHERE = (400, 408, 414, 431, 503)
_GUARDED = (401, 403, 429)
# Parts of the examples in the OpenAPI document.
TARGET = "llvm -mcpu=znver4 -num-cores=8"
QUESTION = {"workload": EXAMPLE, "target": TARGET}
_TOKEN = {"type": "http", "scheme": "bearer", "description": "Needed once the service has one: `plevel token create`."}


class FieldFault(msgspec.Struct, frozen=True, kw_only=True):
    """A field at fault, as a path into the body, and the error."""

    field: str
    detail: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document (RFC 9457). `detail` is one line that names the field and the remedy."""

    type: str
    title: str
    status: int
    detail: str
    errors: tuple[FieldFault, ...] = ()


def reply(value: Any, status: int = 200) -> Response:
    """A response with the JSON of a wire type."""
    return Response(encode(value), status, media_type="application/json")


def reply_tagged(
    value: Any, known: str | None, headers: Mapping[str, str] | None = None
) -> Response:
    """As `reply`, with an ETag; empty with status 304 if `known`, the If-None-Match, names it."""
    data = encode(value)
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    tagged = {"etag": tag, **(headers or {})}
    given = {t.strip().removeprefix("W/") for t in (known or "").split(",")}
    if given & {tag, "*"}:
        return Response(status_code=304, headers=tagged)
    return Response(data, 200, tagged, "application/json")


def body_of(kind: type[T]) -> Any:
    """The dependency that decodes the request's body as `kind`; errors name the field."""

    async def read(request: Request) -> T:
        data = await read_body(request)
        if len(data) <= LARGE:
            return _decode(data, kind)
        # In a thread, as all other requests would wait for the event loop meanwhile.
        context: Context = request.app.state.context
        return await to_thread.run_sync(_decode, data, kind, limiter=context.decoding)

    dependency: Callable[[Request], Awaitable[T]] = read
    return Depends(dependency)


def _decode(data: bytes, kind: type[T]) -> T:
    _check_text(data)
    if kind.__struct_config__.forbid_unknown_fields:
        check_keys(data)
    try:
        return decode(data, kind)
    except WireError as error:
        raise with_suggestion(error, kind) from error.__cause__


if TYPE_CHECKING:
    Body = Annotated[T, None]
else:

    class Body:
        """The type of a route's parameter that is the request's body: `Body[Renewal]`."""

        def __class_getitem__(cls, kind: type[T]) -> Any:
            return Annotated[kind, body_of(kind)]


_NUL = b"\\u0000"  # as JSON has it
_MESSAGE = re.compile(r"(?:reports\[\d+\]\.)?(?:results\.)?results\[\d+\]\.message")  # of a program, stored without


def _check_text(data: bytes) -> None:
    """Refuse a NUL, which PostgreSQL cannot store, and no reader of an export takes; raise `InvalidError`."""
    if _NUL not in data:
        return
    try:
        left: list[tuple[str, Any]] = [("", msgspec.json.decode(data))]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return  # `decode` names the fault
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{path}.{name}".removeprefix("."), inner) for name, inner in value.items()]
            value = "".join(value)
        elif isinstance(value, list):
            left += [(f"{path}[{i}]", inner) for i, inner in enumerate(value)]
        if isinstance(value, str) and "\0" in value and not _MESSAGE.fullmatch(path):
            raise InvalidError(f"{path!r:.80}: it has a NUL, which no text on record has: leave it out")


def check_keys(data: bytes) -> None:
    """Refuse an object that names a key twice, of which decoders take the last; raise `InvalidError`.

    It takes a tenth of the time of decoding. Bodies of workers, which no person writes, go without.
    """
    with contextlib.suppress(ValueError, RecursionError):  # `decode` names the fault
        json.loads(data, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise InvalidError(f"{twice!r:.80}: is given twice in an object: leave one out")


_kinds: dict[str, Any] = {"Problem": Problem}


def _schema(kind: Any) -> dict[str, Any]:
    _kinds[kind.__name__] = kind
    return {"$ref": f"{_REF}{kind.__name__}"}


def describe(
    summary: str,
    *,
    takes: Any = None,
    example: Mapping[str, Any] | None = None,
    gives: Any = None,
    status: int = 200,
    errors: Sequence[int] = (),
    media: str = "application/json",
    note: str = "",
) -> dict[str, Any]:
    """The arguments of a route's decorator that document its body, answer and errors.

    Args:
        example: a body of the type `takes`, which a client may send as it stands.
    """
    content: dict[str, Any] = {}
    if gives is not None:
        content = {"content": {media: {"schema": _schema(gives)}}}
    responses: dict[int | str, dict[str, Any]] = {
        status: {"description": HTTPStatus(status).phrase, **content}
    }
    for code in sorted({*errors, *((400, 413, 422) if takes is not None else ())}):
        responses[code] = _refusal(code)
    extra: dict[str, Any] = {}
    if takes is not None:
        described = {"schema": _schema(takes)} | ({"example": example} if example else {})
        extra = {"requestBody": {"required": True, "content": {"application/json": described}}}
    return {
        "summary": summary, "description": note or summary, "status_code": status,
        "response_class": Response, "responses": responses, "openapi_extra": extra,
    }


def _refusal(status: int) -> dict[str, Any]:
    return {
        "description": HTTPStatus(status).phrase, "content": {PROBLEM: {"schema": _schema(Problem)}}
    }


def install_schema(app: FastAPI, needed: Callable[[str, str], str | None]) -> None:
    """Put the wire types' schemas into `/openapi.json`, and the scope that each operation needs."""

    @cache
    def openapi() -> dict[str, Any]:
        schema = get_openapi(
            title=app.title, version=code_identity(), description=app.description, routes=app.routes
        )
        _, components = json_schema(list(_kinds.values()))
        known = schema.setdefault("components", {}).setdefault("schemas", {})
        known.update(components)
        # Remove FastAPI's validation errors, which this service does not return.
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                responses = operation["responses"]
                if "HTTPValidationError" in str(responses.get("422", "")):
                    responses["422"] = _refusal(422)
                responses |= {str(code): _refusal(code) for code in _ANYWHERE}
                if any(p["name"] == "if-none-match" for p in operation.get("parameters", ())):
                    responses["304"] = {"description": HTTPStatus(304).phrase}
                scope = needed(method.upper(), path)
                if scope is not None:
                    responses |= {str(code): _refusal(code) for code in _GUARDED}
                    operation["security"] = [{"token": [scope]}, {}]
        known.pop("HTTPValidationError", None)
        known.pop("ValidationError", None)
        schema["components"]["securitySchemes"] = {"token": _TOKEN}
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
