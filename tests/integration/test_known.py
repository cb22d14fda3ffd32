"""A mistyped name in a filter is an error that names the right one; what may exist gives an empty list."""

from __future__ import annotations

import pytest

from service.records.importer import import_items
from service.store.db import Store
from service.tuning import plan as planning
from service.tuning import run as runs
from tests.integration.process import Service, Start
from tests.integration.scene import request
from tests.integration.test_import import made

pytestmark = pytest.mark.in_turn("url")

LISTS = ("/v1/records", "/v1/records:export", "/v1/records/best", "/v1/coverage")
PAGES = ("/records", "/tasks")
MISTYPED = {
    "op=dens": "dense", "op=filtr": "filter", "implementation=dense_pak.cpu": "dense_pack.cpu",
    "implementation=filter_tild.cpu": "filter_tiled.cpu",
}
PERHAPS = ("op=filter", "op=dense", "op=xyzzy", "implementation=dense_pack.cpu", "namespace=vision-2")


@pytest.fixture
def service(url: str, start: Start) -> Service:
    store = Store(url)
    import_items(store, [made(1)])
    with store.write() as c:
        runs.create(c, request(), planning.plan(request()), "vision")
    store.close()
    return start(url)


def test_what_was_meant_is_told(service: Service) -> None:
    for path in LISTS:
        for query, meant in MISTYPED.items():
            answer = service.raw("GET", f"{path}?{query}")
            assert answer.status_code == 422, (path, query)
            assert f"did you mean {meant}?" in answer.json()["detail"]
    for path in (*PAGES, "/runs"):
        for query, meant in MISTYPED.items():
            if query.startswith("op=" if path == "/runs" else ("op=", "impl")):
                answer = service.raw("GET", f"{path}?{query}")
                assert f"did you mean {meant}?" in answer.text, (path, query)


def test_what_is_known_or_far_from_all_that_is_gives_an_empty_list(service: Service) -> None:
    for path in (*LISTS, *PAGES):
        for query in PERHAPS:
            if path in LISTS or not query.startswith("namespace"):
                assert service.raw("GET", f"{path}?{query}").status_code in (200, 404), (path, query)
