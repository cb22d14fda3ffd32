"""Imports and exports through the service, a process, the client and the command line."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from plevel.client import Client, ServiceError
from plevel.direct import connect
from service.formats import parquet
from strategy.record import to_json
from strategy.select import Reason
from strategy.target import Target
from tests.command import run_command
from tests.integration.process import Service
from tests.integration.test_import import DATA, items_of, records_of
from tests.limit import HANG_S

LOG = DATA / "autotvm_0_2.log"


@dataclass
class Project:
    """A service as it is asked about one namespace."""

    url: str
    namespace: str
    http: httpx.Client


_numbers = itertools.count(1)


@pytest.fixture
def project(service: Service) -> Iterator[Project]:
    namespace = f"test-{next(_numbers)}"
    params = {"namespace": namespace}
    with httpx.Client(base_url=service.url, timeout=HANG_S, params=params) as http:
        yield Project(service.url, namespace, http)


def drops(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def test_a_log_is_streamed_in_and_out(project: Project) -> None:
    data = LOG.read_bytes()
    # In pieces that end anywhere.
    answer = project.http.post("/v1/records:import", content=drops(data, 77), params={"rejects": 10})
    assert answer.status_code == 200, answer.text
    summary = answer.json()
    shown = summary.pop("rejects", [])
    assert summary["read"] == summary["new"] + summary["known"] + summary["rejected"]
    assert summary["new"] == len({r.identity for r in records_of(items_of(LOG.name))})
    assert len(shown) == summary["rejected"] == sum(summary["reasons"].values())
    again = project.http.post("/v1/records:import", content=data).json()
    assert (again["new"], again["read"]) == (0, summary["read"])
    out = project.http.get("/v1/records:export").content
    assert project.http.post("/v1/records:import", content=out).json()["known"] == summary["new"]
    rows = project.http.get("/v1/records:export", params={"format": "csv"}).text.splitlines()
    assert len(rows) == 1 + summary["new"]
    page = project.http.get("/v1/records", params={"limit": 1000}).json()["records"]
    assert {(r["source"], r["run_id"]) for r in page} == {("autotvm", None)}


def test_an_export_of_nothing_is_told(project: Project) -> None:
    ask = project.http.get
    assert ask("/v1/records:export").status_code == 404
    project.http.post("/v1/records:import", content=LOG.read_bytes())
    for form in ("native", "autotvm", "kernel_tuner", "metaschedule", "csv"):
        answer = ask("/v1/records:export", params={"format": form, "op": "nope"})
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
        assert "no record matches" in answer.json()["detail"]
    # None of these is MetaSchedule's.
    assert ask("/v1/records:export", params={"format": "metaschedule"}).status_code == 404
    assert ask("/v1/records:export", params={"format": "autotvm"}).status_code == 200
    # A list may be empty.
    assert ask("/v1/records", params={"format": "csv", "op": "nope"}).text.count("\n") == 1
    described = ask("/openapi.json").json()["paths"]["/v1/records:export"]["get"]["responses"]
    assert {"200", "404", "422"} <= described.keys()


def test_parquet_is_streamed(project: Project) -> None:
    pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    from pyarrow.parquet import read_table

    new = project.http.post("/v1/records:import", content=LOG.read_bytes()).json()["new"]
    answer = project.http.get("/v1/records:export", params={"format": "parquet"})
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    found = read_table(io.BytesIO(answer.content))
    rows = project.http.get("/v1/records", params={"limit": 1000}).json()["records"]
    assert found.num_rows == len(rows) == new
    assert found["measured_at"].to_pylist() == [r["measured_at"] for r in rows]
    params = {"format": "parquet", "error": "none"}
    some = read_table(io.BytesIO(project.http.get("/v1/records", params=params).content))
    assert 0 < some.num_rows == sum(r["error"] is None for r in rows) < new


def test_parquet_says_what_it_needs(
    sqlite_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "is_installed", lambda: False)
    with pytest.raises(ServiceError, match=r"plevel\[parquet\]"), connect(None, sqlite_copy) as there:
        there.export_records("parquet")


def test_what_is_no_log_is_refused(project: Project) -> None:
    for data in (b"", b"\x00\x01\x02 binary", b"remember the milk"):
        answer = project.http.post("/v1/records:import", content=data)
        assert (answer.status_code, answer.headers["content-type"]) == (
            422, "application/problem+json",
        )
        assert ("has no known format" if data else "is empty") in answer.json()["detail"]
    assert project.http.get("/v1/records:export", params={"format": "xml"}).status_code == 422
    # Said before the stream begins.
    assert project.http.get("/v1/records:export", params={"task_id": 2**63}).status_code == 422
    bad = project.http.post(
        "/v1/records:import", content=LOG.read_bytes(), params={"target": "toaster"}
    )
    assert bad.status_code == 422


def test_a_client_that_goes_away_leaves_what_was_whole(project: Project) -> None:
    def broken() -> Iterator[bytes]:
        yield LOG.read_bytes()[:3000]
        raise InterruptedError

    with pytest.raises(InterruptedError):
        project.http.post("/v1/records:import", content=broken())
    assert project.http.get("/v1/records").json()["records"] == []
    assert project.http.post("/v1/records:import", content=LOG.read_bytes()).json()["new"] > 0


def test_foreign_records_answer_where_they_are_asked_for(project: Project) -> None:
    with Client(project.url, namespace=project.namespace) as client:
        client.import_records([LOG.read_bytes()])
        first = next(r for r in records_of(items_of(LOG.name)) if r.error is None)
        workload, target = first.task.workload, Target.parse("cuda -model=v100")
        for values in ({"policy": "tvm"}, {"foreign": True}):
            found = client.select(workload, target, **values)
            assert found.implementation.startswith("autotvm:")
            assert found.reason is Reason.MEASURED
        with pytest.raises(ServiceError, match="not installed"):
            client.select(workload, target)
        with pytest.raises(ServiceError, match="no imported record of this workload is for a target like llvm"):
            client.select(workload, Target.parse("llvm"), foreign=True)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`plevel …` in this process: what it printed, or what was wrong."""
    for name in [n for n in os.environ if n.startswith("PLEVEL_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str, code: int = 0) -> str:
        ended = run_command(*arguments)
        captured = capsys.readouterr()
        assert ended == code, captured.err
        return captured.out if code == 0 else captured.err

    return run


def test_the_command_line_makes_a_database_and_fills_it(call: Callable[..., str], tmp_path: Path) -> None:
    database = str(tmp_path / "p.db")
    rejects = tmp_path / "rejects"
    bad = tmp_path / "bad.log"
    bad.write_bytes(LOG.read_bytes() + b'{"input": [], "result": [\n')
    files = [str(bad), str(DATA / "database_tuning_record.json"), str(DATA / "kernel_tuner_t4.json")]
    arguments = ["import", *files, "--database", database, "--rejects", str(rejects), "--json"]
    summary: dict[str, Any] = json.loads(call(*arguments))
    assert set(summary) == {"read", "new", "known", "rejected", "reasons"}
    assert summary["rejected"] == len(rejects.read_text().splitlines()) >= 1
    last = json.loads(rejects.read_text().splitlines()[-1])
    assert last["line"] == bad.read_bytes().count(b"\n")
    assert last["file"] == str(bad)
    assert "new, " in call(*arguments[:-1])
    assert json.loads(call(*arguments))["new"] == 0

    out = tmp_path / "out.ndjson"
    call("export", "--database", database, "-o", str(out))
    call("import", str(out), "--database", str(tmp_path / "second.db"))
    assert call("export", "--database", str(tmp_path / "second.db")).encode() == out.read_bytes()
    call("export", "--format", "metaschedule", "--database", database, "-o", str(tmp_path / "ms"))
    for name in ("database_workload.json", "database_tuning_record.json"):
        assert (tmp_path / "ms" / name).read_bytes() == (DATA / name).read_bytes()


def test_the_command_line_says_what_is_wrong(call: Callable[..., str], tmp_path: Path) -> None:
    database = ["--database", str(tmp_path / "p.db")]
    assert "no such file" in call("import", str(tmp_path / "gone.log"), *database, code=2)
    notes = tmp_path / "notes.txt"
    notes.write_text("remember the milk")
    assert "no known format" in call("import", str(notes), *database, code=2)
    assert "one of native" in call("export", "--format", "xml", *database, code=2)
    assert "name a folder" in call("export", "--format", "metaschedule", *database, code=2)


def test_the_command_line_sends_to_a_service(
    call: Callable[..., str], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = call("import", str(LOG), "--url", project.url, "--namespace", project.namespace)
    new = len({r.identity for r in records_of(items_of(LOG.name))})
    assert f"{new} new" in said
    monkeypatch.setenv("PLEVEL_NAMESPACE", project.namespace)
    direct = call("export", "--url", project.url)
    with connect(project.url, None, project.namespace) as source:
        assert b"".join(source.export_records("native")).decode() == direct
    assert direct.startswith('{"kind":"plevel-records"')


def test_records_are_asked_for_by_what_they_are(project: Project) -> None:
    for name in (LOG.name, "kernel_tuner_cache.json"):
        project.http.post("/v1/records:import", content=(DATA / name).read_bytes())
    rows = project.http.get("/v1/records", params={"limit": 1000}).json()["records"]

    def found(**params: Any) -> list[int]:
        answer = project.http.get("/v1/records", params={"limit": 1000, **params})
        assert answer.status_code == 200, answer.text
        return [r["id"] for r in answer.json()["records"]]

    one = rows[0]
    for name in ("source", "implementation", "target"):
        expected = [r["id"] for r in rows if r[name] == one[name]]
        assert found(**{name: one[name]}) == expected
        assert 0 < len(expected) < len(rows)
    op = one["workload"].partition("(")[0]
    assert found(op=op) == [r["id"] for r in rows if r["workload"].partition("(")[0] == op]
    when = one["measured_at"]
    assert found(since=when) == [r["id"] for r in rows if r["measured_at"] >= when]
    assert found(until=when) == [r["id"] for r in rows if r["measured_at"] < when]
    assert found(error="any") == [r["id"] for r in rows if r["error"]]
    assert found(worker="nobody") == found(device="nowhere") == []
    params = {"source": "autotvm", "format": "csv"}
    text = project.http.get("/v1/records", params=params).text
    assert len(text.splitlines()) == 1 + len(found(source="autotvm"))
    params["format"] = "ndjson"
    lines = project.http.get("/v1/records", params=params).content
    assert project.http.post("/v1/records:import", content=lines).json()["known"] == len(
        found(source="autotvm")
    )


def test_many_selections_in_one_request(project: Project) -> None:
    project.http.post("/v1/records:import", content=LOG.read_bytes())
    rows = [r for r in records_of(items_of(LOG.name)) if r.error is None]
    asked = [
        {"workload": to_json(r.task.workload), "target": to_json(r.task.target), "policy": "tvm"}
        for r in rows
    ]
    asked.insert(1, {**asked[0], "workload": {"op": "nowhere", "inputs": []}})
    answer = project.http.post("/v1/select:batch", json={"requests": asked})
    assert answer.status_code == 200, answer.text
    answers = answer.json()["answers"]
    assert len(answers) == len(asked)
    assert answers[1]["problem"]["status"] == 422
    assert "requests[1].workload" in answers[1]["problem"]["detail"]
    for one, found in zip(asked, answers, strict=True):
        if "selection" in found:
            alone = project.http.post("/v1/select", json=one).json()
            assert found["selection"] == alone
    assert sum("selection" in a for a in answers) == len(rows)
    assert project.http.post("/v1/select:batch", json={"requests": []}).status_code == 422


def test_what_is_known_is_asked_for_over_http(project: Project) -> None:
    project.http.post("/v1/records:import", content=LOG.read_bytes())
    best = project.http.get("/v1/records/best", params={"scope": "target"}).json()["best"]
    tasks = project.http.get("/v1/coverage").json()["tasks"]
    assert {b["task_id"] for b in best} == {t["task_id"] for t in tasks if t["best"]}
    first = best[0]["task_id"]
    points = project.http.get(f"/v1/tasks/{first}/curve").json()["points"]
    assert points[-1]["median_s"] == best[0]["estimate"]["median_s"]
    assert project.http.get("/v1/tasks/999999/curve").status_code == 404
    schema = project.http.get("/openapi.json").json()
    assert "/v1/records:import" in schema["paths"]
    assert "BestPage" in schema["components"]["schemas"]


def test_the_command_line_keeps_a_database_in_order(call: Callable[..., str], tmp_path: Path) -> None:
    database = ["--database", str(tmp_path / "p.db")]
    call("import", str(LOG), *database)
    said = call("db", "backup", str(tmp_path / "copy.db"), *database)
    assert "copy.db: a copy of" in said
    assert "exists" in call("db", "backup", str(tmp_path / "copy.db"), *database, code=1)
    said = call("db", "prune", "--older-than", "1d", "--keep-best", "1", *database)
    assert "would delete" in said
    call("db", "prune", "--older-than", "1d", "--keep-best", "1", "--yes", *database)
    assert "would delete 0" in call("db", "prune", "--older-than", "1d", "--keep-best", "1", *database)
    assert "90d" in call("db", "prune", "--older-than", "soon", *database, code=2)
    purge = ["db", "purge", "--reason", "a test", "--until", "2030-01-01", *database]
    assert "would purge" in call(*purge)
    assert call(*purge, "--yes").startswith("purged ")
    assert "no record matches" in call(*purge)
    assert "name the records to purge" in call("db", "purge", "--reason", "x", *database, code=2)
