"""Every route refuses query parameters that it does not know, and says which one was meant."""

from __future__ import annotations

import httpx
import pytest

from strategy.record import RunStatus
from tests.integration.process import Service
from tests.integration.scene import request

PAGES = (
    "/", "/runs", "/ops", "/devices", "/foreign", "/networks", "/records", "/models", "/select", "/import",
    "/tasks", "/tasks/{task}?knob=x&colour=y&first=a&second=b",
)


@pytest.fixture
def client(service: Service) -> httpx.Client:
    return service.http


def routes(client: httpx.Client) -> list[tuple[str, str]]:
    """Each method and path of the service, with some value for what varies in it."""
    paths = client.get("/openapi.json").json()["paths"]
    found = [(method.upper(), path) for path, of in paths.items() for method in of]
    assert len(found) > 30
    return found


def test_every_route_of_the_api(client: httpx.Client) -> None:
    for method, path in routes(client):
        answer = client.request(method, path.replace("{", "").replace("}", ""), params={"tpyo": "1"})
        if answer.status_code == 422 and "path." in answer.text:  # an id that is no number
            answer = client.request(method, path.partition("{")[0] + "1" + path.partition("}")[2],
                                    params={"tpyo": "1"})
        assert answer.status_code == 422, (method, path, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["errors"][0]["field"] == "query.tpyo", (method, path)


@pytest.fixture(scope="module")
def task(service: Service) -> int:
    """The id of a task on record."""
    run = service.call("POST", "/v1/runs", request(), RunStatus)
    service.call("POST", f"/v1/runs/{run.id}/cancel", b"", RunStatus)
    return run.tasks[0].task_id


@pytest.mark.parametrize("page", PAGES)
def test_every_page(client: httpx.Client, page: str, task: int) -> None:
    path = page.format(task=task)
    assert client.get(path).status_code == 200
    answer = client.get(f"{path}{'&' if '?' in path else '?'}tpyo=1")
    assert (answer.status_code, "tpyo" in answer.text) == (422, True)


BEYOND = (
    f"/v1/runs/{10**30}", f"/v1/runs/{2**63}", f"/v1/tasks/-{2**63}", f"/v1/tasks/{'1' * 5000}/curve",
    f"/v1/jobs/{10**30}/why", f"/v1/models/{2**63}", f"/v1/tasks/1/curve?run_id={10**30}",
    f"/v1/records?run_id={10**30}", f"/v1/coverage?cursor={10**30}", f"/v1/foreign/triton/list?cursor={10**30}",
    f"/v1/records?cursor={2**63}", "/v1/records?op=a%00b", "/v1/networks?graph=%00",
    "/v1/records?since=nan", "/v1/records?until=inf",
)


@pytest.mark.parametrize("path", BEYOND, ids=lambda p: p[:40])
def test_a_value_that_no_database_holds_is_refused_by_name(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 422, answer.text
    _, _, query = path.partition("?")
    expected = f"query.{query.partition('=')[0]}" if query else "path."
    assert answer.json()["errors"][0]["field"].startswith(expected)
    assert len(answer.text) < 1000


@pytest.mark.parametrize("given", ["limit=1", "cursor=0", "newest=true"])
def test_a_stream_has_no_pages(client: httpx.Client, given: str) -> None:
    answer = client.get(f"/v1/records?format=csv&{given}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == f"query.{given.partition('=')[0]}"


def test_numbers_that_are_names_are_names(client: httpx.Client) -> None:
    assert client.get("/v1/records", params={"worker": "1" * 40}).status_code == 200
    assert client.get(f"/v1/runs/{2**63 - 1}").status_code == 404


def test_the_name_that_was_meant(client: httpx.Client) -> None:
    answer = client.get("/v1/records:export", params={"operator": "conv2d"})
    assert "query.operator: unknown parameter" in answer.json()["detail"]
    assert "op" in answer.json()["detail"]
    answer = client.get("/v1/records", params={"limti": "5"})
    assert "did you mean limit?" in answer.json()["detail"]
