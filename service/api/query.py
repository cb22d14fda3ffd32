"""Query parameters: workloads; refusal of unknown parameters, such as mistyped filters, and of impossible values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, get_args

from fastapi import Depends, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from service.records.filter import MAX_TEXT
from service.selection.candidate import normal
from strategy.suggestion import suggest
from strategy.workload_text import EXAMPLE, parse_workload

MOST = 2**63 - 1
_SHORT = len(str(MOST))  # from here on a number may be too large

# `async`, as other dependencies take a thread for each request.
async def read_workload(
    workload: Annotated[
        str | None, Query(examples=[EXAMPLE], description="Only this workload, in the form that plevel prints")
    ] = None,
) -> str | None:
    """The digest of the workload that a route filters by."""
    return None if workload is None else normal(parse_workload(workload)).digest


OfWorkload = Annotated[str | None, Depends(read_workload)]
WorkloadHas = Annotated[
    str | None,
    Query(
        max_length=MAX_TEXT, examples=["float16 768"],
        description="Only workloads whose text has each of these words, in either case",
    ),
]


async def check_query(request: Request) -> None:
    """Refuse unknown parameters, and values that no database can hold.

    Raises:
        RequestValidationError: it names the parameter.
    """
    given = {name: str(value) for name, value in request.path_params.items()}
    if not request.scope["query_string"] and all(len(value) < _SHORT and "\0" not in value for value in given.values()):
        return
    known = _parameters(request.scope["route"])
    for name, value in given.items():
        _check_value("path", name, value, integer=("path", name) in known.integers)
    for name, value in request.query_params.multi_items():
        if name not in known.query:
            text = f"unknown parameter{suggest(name, known.query)}: expected one of {', '.join(known.query)}"
            raise refusal("query", f"{name:.80}", text)
        _check_value("query", name, value, integer=("query", name) in known.integers)


def _check_value(place: str, name: str, value: str, *, integer: bool) -> None:
    if "\0" in value:
        raise refusal(place, name, "it has a NUL, which no text on record has: leave it out")
    digits = value.strip().lstrip("+-0").replace("_", "")
    if integer and digits.isdecimal() and (len(digits) > _SHORT or int(digits) > MOST):
        raise refusal(place, name, f"{value:.40} is not within ±{MOST}, as all numbers on record are")


def refusal(place: str, name: str, text: str) -> RequestValidationError:
    """The error of a parameter, by its place (`query` or `path`) and name."""
    return RequestValidationError([{"loc": (place, name), "msg": text}])


class _Parameters(NamedTuple):
    """The names of a route's query parameters, and the places and names of those that are integers."""

    query: tuple[str, ...]
    integers: frozenset[tuple[str, str]]


def _parameters(route: APIRoute) -> _Parameters:
    found = list(_fields(route.dependant))
    # Clients with a namespace send it with all requests, also to routes that span namespaces.
    query = {"namespace", *(name for place, name, _ in found if place == "query")}
    integers = {(place, name) for place, name, kind in found if int in (kind, *get_args(kind))}
    return _Parameters(tuple(sorted(query)), frozenset(integers))


def _fields(dependant: Dependant) -> Iterator[tuple[str, str, Any]]:
    """The place, name and type of each parameter."""
    for place, fields in (("path", dependant.path_params), ("query", dependant.query_params)):
        yield from ((place, field.alias, field.field_info.annotation) for field in fields)
    for part in dependant.dependencies:
        yield from _fields(part)
