"""Every route refuses query parameters that it does not know, and says which one was meant."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.process import Service

PAGES = (
    "/", "/runs", "/ops", "/devices", "/records", "/models", "/select", "/import",
)  # fmt: skip


@pytest.fixture(scope="module")
def client(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("query")
    shutil.copyfile(migrated_file, folder / "plevel.db")
    service = Service(f"sqlite:///{folder / 'plevel.db'}", folder)
    yield service.http
    service.close()


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
                                    params={"tpyo": "1"})  # fmt: skip
        assert answer.status_code == 422, (method, path, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["errors"][0]["field"] == "query.tpyo", (method, path)


@pytest.mark.parametrize("page", PAGES)
def test_every_page(client: httpx.Client, page: str) -> None:
    assert client.get(page).status_code == 200
    answer = client.get(page, params={"tpyo": "1"})
    assert (answer.status_code, "tpyo" in answer.text) == (422, True)


def test_the_name_that_was_meant(client: httpx.Client) -> None:
    answer = client.get("/v1/records:export", params={"operator": "conv2d"})
    assert "query.operator: unknown parameter" in answer.json()["detail"]
    assert "op" in answer.json()["detail"]
    answer = client.get("/v1/records", params={"limti": "5"})
    assert "did you mean limit?" in answer.json()["detail"]
