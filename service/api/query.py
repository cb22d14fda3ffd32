"""Query parameters: workloads, and refusal of unknown parameters, such as mistyped filters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from service.selection.candidate import normal
from strategy.suggestion import suggest
from strategy.workload_text import EXAMPLE, parse_workload


# `async`, as other dependencies take a thread for each request.
async def read_workload(
    workload: Annotated[
        str | None, Query(examples=[EXAMPLE], description="Only this workload, in the form that plevel prints")
    ] = None,
) -> str | None:
    """The digest of the workload that a route filters by."""
    return None if workload is None else normal(parse_workload(workload)).digest


OfWorkload = Annotated[str | None, Depends(read_workload)]


async def check_query(request: Request) -> None:
    """Refuse unknown parameters with a `RequestValidationError` that names them."""
    if not request.scope["query_string"]:
        return
    known = _parameters(request.scope["route"])
    for name in request.query_params:
        if name not in known:
            text = f"unknown parameter{suggest(name, known)}: expected one of {', '.join(known)}"
            raise RequestValidationError([{"loc": ("query", f"{name:.80}"), "msg": text}])


def _parameters(route: APIRoute) -> tuple[str, ...]:
    # Clients with a namespace send it with all requests, also to routes that span namespaces.
    return tuple(sorted({"namespace", *_names(route.dependant)}))


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for part in dependant.dependencies:
        yield from _names(part)
