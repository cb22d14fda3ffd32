"""Endpoints that are called directly answer as the framework has them answer."""

from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, Header, Request, Response

from service.api.direct import DirectRoutes
from service.api.query import check_query
from service.app import create_app
from service.formats import native
from service.settings import Settings
from strategy.record import LeaseRequest, encode, to_json
from tests.integration.process import Service
from tests.integration.scene import CANDIDATES, TARGET, WORKLOAD, device
from tests.integration.test_import import made

ASKED = {"workload": to_json(WORKLOAD), "target": TARGET.to_json(), "candidates": [to_json(c) for c in CANDIDATES]}
CASES = {
    "/v1/select": (encode(ASKED), encode(ASKED | {"target": "?"}), encode(ASKED | {"tune": 1}), b"{", b""),
    "/v1/select:batch": (encode({"requests": [ASKED, ASKED | {"policy": "tvm"}]}), encode({"requests": []})),
    "/v1/dispatch": (encode(ASKED), b"[]"),
    "/v1/evidence": (encode({"workload": ASKED["workload"], "target": ASKED["target"]}), b"\xff"),
    "/v1/records:import": (b"".join(native.write([made(1)])), b"no log", b""),
    "/v1/leases": (encode(LeaseRequest(worker_id=1 << 40, device=device().identity)), b"{}", b"x" * 200_001),
    "/v1/leases:report": (encode({"reports": []}), b"null"),
}


def test_the_busiest_endpoints_are_called_directly() -> None:
    app = create_app(Settings(database="sqlite:////nowhere/plevel.db"))
    (direct,) = (route for route in app.router.routes if isinstance(route, DirectRoutes))
    assert app.router.routes[0] is direct
    assert {path for _, path in direct._plans} == set(CASES)
    # The application's dependencies are not called: this one finds nothing without a query string.
    assert [d.dependency for d in app.router.dependencies] == [check_query]


@pytest.mark.parametrize(("path", "body"), [(path, body) for path, bodies in CASES.items() for body in bodies])
def test_the_same_answer_as_by_the_framework(service: Service, path: str, body: bytes) -> None:
    if path == "/v1/records:import":
        service.raw("POST", path, body)  # so that the record is known to both
    direct = service.raw("POST", path, body)
    framed = service.raw("POST", f"{path}?namespace=default", body)
    assert (direct.status_code, direct.content) == (framed.status_code, framed.content)
    kept = [{k: v for k, v in answer.headers.items() if k != "date"} for answer in (direct, framed)]
    assert kept[0] == kept[1]


def test_another_method_is_refused(service: Service) -> None:
    assert service.raw("GET", "/v1/select").status_code == 405
    assert service.raw("POST", "/v1/select/", encode(ASKED)).status_code in (307, 404)


def test_what_needs_the_framework_is_left_to_it() -> None:
    router = APIRouter(prefix="/v1")

    async def closing() -> Any:
        yield 1

    @router.get("/of/{name}")
    async def in_path(name: str) -> None: ...

    @router.get("/required")
    async def required(name: str) -> None: ...

    @router.get("/answer")
    async def answer(response: Response) -> None: ...

    @router.get("/body")
    async def body(given: list[int]) -> None: ...

    @router.get("/closing")
    async def closes(one: Annotated[int, Depends(closing)]) -> None: ...

    @router.get("/header")
    async def header(request: Request, tag: Annotated[str | None, Header(alias="If-None-Match")] = None) -> None: ...

    direct = DirectRoutes([router])
    assert list(direct._plans) == [("GET", "/v1/header")]
    scope = {"type": "http", "method": "GET", "path": "/v1/header", "query_string": b"", "headers": []}
    found = [
        direct.matches(scope | more)[0].name
        for more in ({}, {"query_string": b"a=b"}, {"headers": [(b"if-none-match", b"x")]}, {"root_path": "/plevel"},
                     {"headers": [(b"accept", b"*/*")]}, {"method": "HEAD"}, {"type": "websocket"})
    ]
    assert found == ["FULL", "NONE", "NONE", "NONE", "FULL", "NONE", "NONE"]
