"""Direct calls of the busiest endpoints, whose dependencies are known before a request comes.

FastAPI compares a request with one route after the other and solves the endpoint's dependencies for each request, which
takes more time than storing a record. Requests without a query string to a fixed path are called by a plan made
once; all others, and all errors, are the framework's. Dependencies of the application, which are not those of a
router's endpoint, are not called: `check_query` has nothing to check without a query string.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import URLPath
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send


@dataclass(frozen=True)
class _Plan:
    """The call of an endpoint, or of one of its dependencies, for requests without parameters."""

    call: Callable[..., Any]
    is_async: bool
    defaults: dict[str, Any]
    request: str | None  # the parameter that takes the request
    parts: tuple[tuple[str | None, _Plan], ...]
    headers: frozenset[bytes]  # parameters: a request that has one needs the framework

    async def run(self, request: Request) -> Any:
        values = dict(self.defaults)
        if self.request is not None:
            values[self.request] = request
        for name, part in self.parts:
            value = await part.run(request)
            if name is not None:
                values[name] = value
        if self.is_async:
            return await self.call(**values)
        return await run_in_threadpool(self.call, **values)


class DirectRoutes(BaseRoute):
    """The endpoints of routers that can be called directly, as the first of an application's routes."""

    def __init__(self, routers: Iterable[APIRouter]) -> None:
        self._plans: dict[tuple[str, str], _Plan] = {}
        for route in (route for router in routers for route in router.routes):
            if isinstance(route, APIRoute) and (plan := _plan_of(route.dependant)) is not None:
                self._plans |= {(method, route.path): plan for method in route.methods or ()}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or scope["query_string"] or scope.get("root_path"):
            return Match.NONE, {}
        plan = self._plans.get((scope["method"], scope["path"]))
        if plan is None or (plan.headers and any(name in plan.headers for name, _ in scope["headers"])):
            return Match.NONE, {}
        return Match.FULL, {"endpoint": plan.call, "plevel.plan": plan}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        plan: _Plan = scope["plevel.plan"]
        response = await plan.run(Request(scope, receive, send))
        await response(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        raise NoMatchFound(name, path_params)  # the routers' own routes have it


def _plan_of(needed: Dependant) -> _Plan | None:
    """The plan of a call, None if it needs more than defaults, the request, and plans of the same kind."""
    call = needed.call
    parameters = (*needed.query_params, *needed.header_params)
    if (
        call is None
        or needed.path_params or needed.cookie_params or needed.body_params
        or any(
            (needed.websocket_param_name, needed.http_connection_param_name, needed.response_param_name,
             needed.background_tasks_param_name, needed.security_scopes_param_name)
        )
        or any(field.field_info.is_required() for field in parameters)
        or inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call)
    ):
        return None
    parts = []
    for part in needed.dependencies:
        plan = _plan_of(part)
        if plan is None:
            return None
        parts.append((part.name, plan))
    headers = {field.alias.lower().encode() for field in needed.header_params}
    return _Plan(
        call, inspect.iscoroutinefunction(call), {field.name: field.get_default() for field in parameters},
        needed.request_param_name, tuple(parts), frozenset(headers.union(*(plan.headers for _, plan in parts))),
    )
