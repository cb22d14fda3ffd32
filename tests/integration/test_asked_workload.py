"""Every route takes a workload as an object and as its text, and answers both alike."""

from __future__ import annotations

from typing import Any

import pytest

from strategy.record import RunStatus, to_json
from strategy.workload import EpilogueStep, Workload
from strategy.workload_text import EXAMPLE, parse_workload
from tests.integration.process import Service
from tests.integration.scene import CANDIDATES, TARGET, WORKLOAD, request

ON = TARGET.to_json()
DENSE = parse_workload(EXAMPLE)
FUSED = Workload.make(
    "conv2d", {"data": "float32[1,8,9,9]", "weight": "float32[4,8,3,3]"}, {"padding": [1, 1, 1, 1]},
    ["weight"], [EpilogueStep("relu", (None,))],
)
SMALLER = parse_workload("filter(data=float32[32,32])")
SYMBOLIC = parse_workload("softmax(data=float32[m,128])")


@pytest.fixture(scope="module")
def service(service: Service) -> Service:
    """The shared one, which has records of two workloads."""
    worker = service.register()
    for workload in (WORKLOAD, SMALLER):
        run = service.call("POST", "/v1/runs", request(workload), RunStatus)
        service.work(worker, run.id, jobs=2)
        service.call("POST", f"/v1/runs/{run.id}/cancel", b"", RunStatus)
    return service


BODIES: list[tuple[str, Workload, Any]] = [
    ("/v1/select", DENSE, lambda w: {"workload": w, "target": ON}),
    ("/v1/select", FUSED, lambda w: {"workload": w, "target": ON}),
    ("/v1/select", WORKLOAD, lambda w: {"workload": w, "target": ON, "candidates": to_json(CANDIDATES)}),
    ("/v1/select:batch", FUSED, lambda w: {"requests": [{"workload": w, "target": ON}]}),
    ("/v1/evidence", WORKLOAD, lambda w: {"workload": w, "target": ON}),
    ("/v1/dispatch", SYMBOLIC, lambda w: {"workload": w, "target": ON}),
]


@pytest.mark.parametrize(("path", "workload", "body"), BODIES)
def test_bodies(service: Service, path: str, workload: Workload, body: Any) -> None:
    by_object = service.raw("POST", path, body(to_json(workload)))
    by_text = service.raw("POST", path, body(str(workload)))
    assert by_object.status_code == 200, by_object.text
    assert by_text.json() == by_object.json()


def test_runs(service: Service) -> None:
    def ask(workload: Any) -> RunStatus:
        body = {"workloads": [{"workload": workload}], "target": ON, "trials": 8}
        return service.call("POST", "/v1/runs", body, RunStatus)

    first = ask(to_json(DENSE))
    assert first.tasks[0].workload == EXAMPLE
    assert ask(EXAMPLE).id == first.id  # it joins the equal run


@pytest.mark.parametrize(
    ("path", "of"), [("/v1/coverage", "tasks"), ("/v1/records/best", "best"), ("/v1/records", "records")]
)
def test_filters(service: Service, path: str, of: str) -> None:
    rows = service.raw("GET", path).json()[of]
    covered = service.raw("GET", "/v1/coverage").json()["tasks"]
    tasks = {t["task_id"] for t in covered if t["workload"] == str(WORKLOAD)}
    expected = [r for r in rows if r["task_id"] in tasks]
    assert 0 < len(expected) < len(rows)

    def filtered(workload: str) -> Any:
        return service.http.get(path, params={"workload": workload}).json()[of]

    assert filtered("filter( data=float32[64, 64] )") == expected
    assert filtered("filter(data=float32[64,65])") == []


def test_an_export_of_one_workload(service: Service) -> None:
    def count(**asked: str) -> int:
        return service.http.get("/v1/records:export", params=asked).text.count('"kind":"record"')

    some = [count(workload=str(w)) for w in (WORKLOAD, SMALLER)]
    assert min(some) > 0
    assert count() == sum(some)
    assert count(workload=EXAMPLE) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [("dense(data=flot32[1])", "did you mean float32?"), ("softmax", "write softmax(data=float32[…])")],
)
def test_a_text_that_cannot_be_read_is_the_field_at_fault(
    service: Service, text: str, said: str
) -> None:
    body = {"workloads": [{"workload": text}], "target": ON}
    problem = service.raw("POST", "/v1/runs", body).json()
    assert problem["status"] == 422
    assert [e["field"] for e in problem["errors"]] == ["workloads[0].workload"]
    assert said in problem["detail"]
    answer = service.http.get("/v1/coverage", params={"workload": text})
    assert answer.status_code == 422
    assert said in answer.json()["detail"]


def test_the_field_at_fault_of_an_object_is_named_to_its_end(service: Service) -> None:
    body = {"workload": {"op": "dense", "inputs": [{"name": "data"}]}, "target": ON}
    problem = service.raw("POST", "/v1/select", body).json()
    assert [e["field"] for e in problem["errors"]] == ["workload.inputs[0]"]


def test_openapi_says_both_with_an_example(service: Service) -> None:
    schemas = service.raw("GET", "/openapi.json").json()["components"]["schemas"]
    for name in ("SelectRequest", "DispatchRequest", "EvidenceRequest", "RunWorkload"):
        kinds = schemas[name]["properties"]["workload"]["oneOf"]
        assert {"$ref": "#/components/schemas/Workload"} in kinds, name
        assert {"type": "string", "examples": [EXAMPLE]} in kinds, name
