"""Every name that can be mistyped in a request is answered with the one that was meant."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.process import Service

DENSE = {
    "op": "dense",
    "inputs": [{"name": "data", "type": "float32[4,8]"}, {"name": "weight", "type": "float32[6,8]"}],
}
WINDOW = {
    "op": "softmax", "inputs": [{"name": "data", "type": "float32[4,8]"}], "attrs": {"axes": 1},
}
RENAMED = {"op": "softmax", "inputs": [{"name": "dat", "type": "float32[4,8]"}]}
TYPED = {"op": "softmax", "inputs": [{"name": "data", "type": "flot32[4,8]"}]}


def asked(workload: Any = DENSE, **more: Any) -> dict[str, Any]:
    return {"workload": workload, "target": "llvm"} | more


def run(workload: Any = DENSE, **more: Any) -> dict[str, Any]:
    return {"workloads": [{"workload": workload}], "target": "llvm"} | more


BODIES = [
    *(
        (path, body(workload), meant)
        for path, body in (
            ("/v1/runs", run), ("/v1/select", asked), ("/v1/evidence", asked), ("/v1/dispatch", asked),
        )
        for workload, meant in (
            (WINDOW, "axis"), (RENAMED, "data"), (TYPED, "float32"), ("softmax(dat=float32[4,8])", "data"),
            ('softmax(data=float32[4,8]){"axes":1}', "axis"),
        )
    ),
    *((path, body("dens(data=float32[4,8])"), "dense") for path, body in (
        ("/v1/runs", run), ("/v1/select", asked), ("/v1/dispatch", asked))),
    ("/v1/runs", run(target="lvm"), "llvm"),
    ("/v1/runs", run(target={"kind": "llvm", "mcu": "znver4"}), "mcpu"),
    ("/v1/runs", run(implementations=["dense_pak.cpu"]), "dense_pack.cpu"),
    ("/v1/runs", run(trails=3), "trials"),
    ("/v1/runs", run(tuner="randm"), "random"),
    ("/v1/runs", {"workloads": [{"workload": DENSE, "weigth": 2}], "target": "llvm"}, "weight"),
    ("/v1/select", asked(target="cudda"), "cuda"),
    ("/v1/select", asked(policy="plevle"), "plevel"),
    ("/v1/select", asked(polcy="tvm"), "policy"),
    ("/v1/select:batch", {"requests": [asked(foriegn=True)]}, "foreign"),
    ("/v1/select:batch", {"requests": [asked(policy="tmv")]}, "tvm"),
    ("/v1/evidence", asked(devise="a"), "device"),
    ("/v1/dispatch", asked(devise="a"), "device"),
    ("/v1/tokens", {"name": "ci", "scopes": ["submitt"]}, "submit"),
    ("/v1/tokens", {"name": "ci", "scopes": ["read"], "namespce": "a"}, "namespace"),
    ("/v1/models", {"op": "dense", "taget": "llvm"}, "target"),
    ("/v1/pauses", {"devise": "a"}, "device"),
    ("/v1/devices:rename", {"old": "a", "neww": "b"}, "new"),
    ("/v1/devices:move", {"device": "a", "tokn": "b"}, "token"),
]


@pytest.mark.parametrize(("path", "body", "meant"), BODIES)
def test_bodies(service: Service, path: str, body: dict[str, Any], meant: str) -> None:
    answer = service.raw("POST", path, body)
    check(answer, meant)


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("GET", "/v1/records?phase=serch", "search"),
        ("GET", "/v1/records?error=wrong_anser", "wrong_answer"),
        ("GET", "/v1/records?error=nonee", "none"),
        ("GET", "/v1/records?format=ndjsn", "ndjson"),
        ("GET", "/v1/records?limti=3", "limit"),
        ("GET", "/v1/records:export?format=kernel_tunner", "kernel_tuner"),
        ("GET", "/v1/records:export?phase=conferm", "confirm"),
        ("GET", "/v1/records/best?scope=modle", "model"),
        ("GET", "/v1/coverage?workload=softmax(data%3Dflot32[4,8])", "float32"),
        ("POST", "/v1/records:import?format=autotvmm", "autotvm"),
        ("POST", "/v1/records:import?target=lvm", "llvm"),
        ("POST", "/v1/records:import?rejcts=1", "rejects"),
    ],
)
def test_parameters(service: Service, method: str, path: str, meant: str) -> None:
    check(service.raw(method, path, b"" if method == "POST" else None), meant)


def check(answer: Any, meant: str) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["status"]) == (422, 422), answer.text
    assert f"did you mean {meant}?" in problem["detail"], problem["detail"]
    assert problem.keys() <= {"type", "title", "status", "detail", "errors"}
    for fault in problem.get("errors", ()):
        assert fault["field"].split(".")[0] not in ("", "body"), fault


def test_a_question_of_a_batch_has_it_in_its_place(service: Service) -> None:
    body = {"requests": [asked("dens(data=float32[4,8])"), asked(RENAMED)]}
    problems = [a["problem"]["detail"] for a in service.raw("POST", "/v1/select:batch", body).json()["answers"]]
    assert ["did you mean dense?" in problems[0], "did you mean data?" in problems[1]] == [True, True]
