"""Rendering: templates, common headers, and links that keep the filters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import orjson
from fastapi import Query, Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from service.dashboard.show import FILTERS

HERE = Path(__file__).parent
STATIC = HERE / "static"
MAX_ID = 2**63 - 1

PageNumber = Annotated[int, Query(ge=1, le=100_000)]

# No inline script or style, nothing from other hosts, and no framing of these pages.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "vary": "HX-Request",
}


@cache
def static_url(name: str) -> str:
    """The URL of a static file, which changes with its content and is cached forever."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


def op_url(op: str) -> str:
    """The URL of an operator's page; names may have characters that need quoting."""
    return f"/ops/{quote(op, safe='')}"


def link(path: str, filters: Mapping[str, Any], **changed: Any) -> str:
    """A URL with the set filters, some changed; None omits one."""
    values = {k: v for k, v in {**filters, **changed}.items() if v not in (None, "")}
    return f"{path}?{urlencode(values)}" if values else path


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(static_url=static_url, op_url=op_url, link=link)
    return environment


def render(template: str, **values: Any) -> Response:
    """A page, or a fragment of one."""
    text = _environment().get_template(template).render(**values)
    return Response(text, 200, HEADERS, "text/html")


def reply(data: Any) -> Response:
    """JSON for the charts."""
    return Response(orjson.dumps(data), 200, HEADERS, "application/json")


def wants_page(request: Request) -> bool:
    """Return whether the answer is for a person: a browser, and no REST URL."""
    path = request.scope["path"]  # `url` refuses some of the hosts that requests name
    if path.startswith(("/v1/", "/static/")) or path.endswith(".json"):
        return False
    return "hx-request" in request.headers or "text/html" in request.headers.get("accept", "")
