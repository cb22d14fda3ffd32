"""Handlers of errors: every error becomes a problem document (RFC 9457)."""

from __future__ import annotations

import logging
import re
from functools import partial
from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from service.api.line_limit import LineLimit
from service.api.wire import PROBLEM, FieldFault, Problem
from service.errors import (
    DatabaseError,
    InvalidError,
    MalformedError,
    MalformedRequestError,
    NoSelectionError,
    ServiceError,
    StoppedError,
)
from service.selection.candidate import FAULTS
from strategy.problem import problem_type
from strategy.record import WireError, encode
from strategy.select import SelectionError
from strategy.suggestion import suggest

log = logging.getLogger(__name__)
CUT_OFF = 10  # lines a minute about bodies that are cut off, and clients that have left
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_QUOTED = re.compile(r"'([^']*)'")
_AT = re.compile(r"^(?P<detail>.*) - at `\$\.?(?P<field>[^`]*)`$", re.DOTALL)


def install(app: FastAPI) -> None:
    """Make every failure of the application a problem document."""
    app.add_exception_handler(ClientDisconnect, partial(_note_disconnect, LineLimit(CUT_OFF)))
    for kind in (ServiceError, WireError, *FAULTS, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _handle)


async def _note_disconnect(limit: LineLimit, request: Request, error: Exception) -> Response:
    more = limit.admit()
    if more is not None:
        asked = _on_one_line(f"{request.method} {request.url.path}")
        log.info("%s: the client closed the connection before the end of its body, or before its turn%s", asked, more)
    # Received by a client that has closed its side only, before its turn.
    left = MalformedRequestError("the connection was closed before the request's turn: keep it open until the answer")
    return response_of(left, request.url.path)


def _on_one_line(request: str) -> str:
    """The request without line ends and control characters in its path, by which anyone could write into the log."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in request)


def _handle(request: Request, error: Exception) -> Response:
    response = response_of(error, f"{request.method} {request.url.path}")
    if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:  # the framework names those of the first route only
        served = [name for name in _METHODS if is_served({**request.scope, "method": name})]
        response.headers["allow"] = ", ".join(served).replace("GET", "GET, HEAD")
    return response


def response_of(error: Exception, request: str) -> Response:
    """The response with an error's problem document."""
    problem = problem_of(error, request)
    headers = error.headers if isinstance(error, HTTPException) else None
    response = Response(encode(problem), problem.status, headers, PROBLEM)
    if isinstance(error, ServiceError) and error.retry_s is not None:
        response.headers["retry-after"] = str(error.retry_s)
    if isinstance(error, StoppedError):  # the next request would keep the connection from its end
        response.headers["connection"] = "close"
    return response


def is_served(scope: Scope) -> bool:
    """Return whether a route takes the path and the method of a request."""
    return any(route.matches(scope)[0] is Match.FULL for route in scope["app"].router.routes)


def problem_of(error: Exception, request: str) -> Problem:
    """The problem document of an error, without internals; log the service's own failures."""
    problem = describe_error(error)
    if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, StoppedError):  # it is asked for
        request = _on_one_line(request)
        if isinstance(error, ServiceError):  # one line, without a traceback: the database may be away for many requests
            log.error("%s failed: %s", request, error)
        else:
            log.error("%s failed", request, exc_info=error)
    return problem


def describe_error(error: Exception) -> Problem:
    """The problem document of an error, without logging it."""
    if isinstance(error, DatabaseError):
        return _problem(error, error.told)
    if isinstance(error, ServiceError):
        return _problem(error, str(error))
    if isinstance(error, WireError):
        return _wire_problem(error)
    if isinstance(error, SelectionError):
        return _problem(NoSelectionError(), str(error))
    if isinstance(error, FAULTS):
        return _problem(InvalidError(), str(error))
    if isinstance(error, RequestValidationError):
        faults = _parameter_faults(error)
        return _problem(InvalidError(), f"{faults[0].field}: {faults[0].detail}", faults)
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        return Problem(
            type="about:blank", title=phrase, status=error.status_code,
            detail=f"{error.detail or phrase}: see /docs for the API",
        )
    return _problem(ServiceError(), "an unexpected error of the service: report it with the traceback of its log")


def _parameter_faults(error: RequestValidationError) -> tuple[FieldFault, ...]:
    """The fault of each parameter; for a choice, with all of its values."""
    faults: dict[str, str] = {}
    names: dict[str, list[str]] = {}
    for e in error.errors():
        place = ".".join(str(part) for part in e["loc"])
        if e.get("type") not in ("enum", "literal_error"):
            faults[place] = str(e["msg"])
            continue
        place = ".".join(str(part) for part in e["loc"][:2])  # without the members of unions
        known = names.setdefault(place, [])
        known += _QUOTED.findall(str(e["ctx"]["expected"]))
        given = str(e["input"])
        faults[place] = f"unknown value {given!r:.80}{suggest(given, known)}: expected one of {', '.join(known)}"
    return tuple(FieldFault(field=place, detail=text) for place, text in faults.items())


def _wire_problem(error: WireError) -> Problem:
    text = str(error)
    if isinstance(error.__cause__, msgspec.DecodeError) and not isinstance(
        error.__cause__, msgspec.ValidationError
    ):
        return _problem(MalformedError(), text)
    at = _AT.match(text)
    if at is None:
        return _problem(InvalidError(), text)
    fault = FieldFault(field=at["field"], detail=at["detail"])
    return _problem(InvalidError(), f"{fault.field}: {fault.detail}", (fault,))


def _problem(error: ServiceError, detail: str, faults: tuple[FieldFault, ...] = ()) -> Problem:
    return Problem(
        type=problem_type(error.kind), title=error.title, status=error.status,
        detail=" ".join(detail.split()), errors=faults,
    )
