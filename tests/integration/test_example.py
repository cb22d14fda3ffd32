"""The examples of request bodies in the OpenAPI document: a service takes them as they stand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.integration.process import Start

NO_LEASE = 1_000_000
# Statuses, and parts of the answer, of examples whose device, lease or records are not there.
ABSENT = {
    "/v1/devices:": (404, ""), "/v1/leases": (404, ""), "/v1/leases/": (409, ""),
    "/v1/models": (422, "tune more shapes"),
}
UNDONE = {
    "/v1/runs": ("POST", "/cancel"), "/v1/tokens": ("DELETE", ""), "/v1/pauses": ("DELETE", ""),
    "/v1/workers": ("DELETE", ""),
}


def test_each_body_has_an_example_that_is_taken(start: Start, migrated_file: Path, tmp_path: Path) -> None:
    shutil.copy(migrated_file, tmp_path / "plevel.db")  # in which no other test has registered a worker
    service = start(f"sqlite:///{tmp_path / 'plevel.db'}", PLEVEL_AUTH="open")
    paths: dict[str, dict[str, Any]] = service.raw("GET", "/openapi.json").json()["paths"]
    taken = 0
    for path, operations in sorted(paths.items(), key=lambda item: item[0] != "/v1/runs"):  # whose target others name
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        if "application/json" not in content:
            continue
        place = path.format(lease_id=NO_LEASE, tool="triton")
        if any(p["name"] == "namespace" for p in operations["post"].get("parameters", ())):
            place += "?namespace=examples"
        answer = service.raw("POST", place, content["application/json"]["example"])
        refusals = [refusal for begin, refusal in ABSENT.items() if path.startswith(begin)]
        is_absent = any(answer.status_code == status and said in answer.text for status, said in refusals)
        assert answer.is_success or is_absent, f"{path}: {answer.text}"
        taken += answer.is_success
        if path in UNDONE:
            method, then = UNDONE[path]
            made = answer.json()
            assert service.raw(method, f"{path}/{made.get('id', made.get('worker_id'))}{then}").is_success
    assert taken > 10
