"""Refusal of unknown query parameters: a mistyped filter would answer with everything."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from strategy.suggestion import suggest


# One that is not `async` would get a thread for each request.
async def check_query(request: Request) -> None:
    """Refuse what the route does not know: a `RequestValidationError` names the parameter."""
    if not request.scope["query_string"]:
        return
    known = _parameters(request.scope["route"])
    for name in request.query_params:
        if name not in known:
            text = f"unknown parameter{suggest(name, known)}: one of {', '.join(known)}"
            raise RequestValidationError([{"loc": ("query", f"{name:.80}"), "msg": text}])


def _parameters(route: APIRoute) -> tuple[str, ...]:
    # Clients of one namespace name it in all that they ask, of what is common to all namespaces too.
    return tuple(sorted({"namespace", *_names(route.dependant)}))


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for part in dependant.dependencies:
        yield from _names(part)
