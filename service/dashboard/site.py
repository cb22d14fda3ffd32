"""Assembly of the dashboard: pages, those without data among them, static files, and the error page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache, partial
from inspect import isawaitable
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request, Response

from service.dashboard import (
    device,
    foreign,
    model,
    network,
    op,
    overview,
    record,
    run,
    selection,
    start,
    task,
)
from service.dashboard.view import HEADERS, STATIC, render, wants_page
from service.errors import NotFoundError

_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_YEAR = "public, max-age=31536000, immutable"

Handler = Callable[[Request, Exception], Response | Awaitable[Response]]
static = APIRouter(include_in_schema=False)


def install(app: FastAPI) -> None:
    """Add the pages to an application whose error handlers are installed already."""
    for part in (overview, start, run, task, op, selection, device, foreign, network, model, record):
        app.include_router(part.router)
    app.include_router(static)
    for kind, handler in list(app.exception_handlers.items()):
        app.exception_handlers[kind] = partial(_show_error, handler)


async def _show_error(handler: Handler, request: Request, error: Exception) -> Response:
    """The error handler that renders problem documents as pages for browsers."""
    answer = handler(request, error)
    return show_problem(request, await answer if isawaitable(answer) else answer)


def show_problem(request: Request, response: Response) -> Response:
    """A problem document's response, as a page if it is for a person."""
    if not response.body or not wants_page(request):
        return response
    problem = orjson.loads(response.body)
    fragment = "hx-request" in request.headers
    page = render("fault.html" if fragment else "error.html", problem=problem)
    page.status_code = response.status_code
    for name, value in response.headers.items():  # such as when to try again
        page.headers.setdefault(name, value)
    return page


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    return {
        str(path.relative_to(STATIC)): (path.read_bytes(), _KINDS[path.suffix])
        for path in STATIC.rglob("*")
        if path.suffix in _KINDS
    }


@static.get("/docs")
def show_docs() -> Response:
    """The OpenAPI document in Swagger UI, whose files all come from this service."""
    return render("docs.html")


@static.get("/import")
def show_import() -> Response:
    """The page whose script streams each tuning log to `POST /v1/records:import`."""
    return render("import.html")


@static.get("/static/{name:path}")
def show_static(name: str, v: str = "") -> Response:
    found: Any = _files().get(name)
    if found is None:
        raise NotFoundError(f"static file {name!r:.80} does not exist")
    body, kind = found
    headers = {**HEADERS, "cache-control": _YEAR if v else "no-cache"}
    return Response(body, 200, headers, kind)
