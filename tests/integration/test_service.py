"""The service as a process of its own, over HTTP: the protocol, its problems, its end and its return."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from fastapi import Request
from pydantic import ValidationError

from service.context import Context, Seen
from service.settings import Settings
from service.store.db import Store
from service.store.tables import lease
from strategy.op_strategy import Candidate
from strategy.record import (
    LeaseRequest,
    Leases,
    Phase,
    Renewal,
    Renewed,
    Results,
    ResultsAccepted,
    RunState,
    RunStatus,
    decode,
    encode,
    to_json,
)
from strategy.select import Selection
from tests.integration.forked import Forked
from tests.integration.process import ENDS_S, Service, Start, refused
from tests.integration.scene import (
    CANDIDATES,
    FAST,
    LIBRARY,
    TARGET,
    WORKLOAD,
    device,
    drawn,
    failed,
    info,
    request,
    timed,
)
from tests.limit import HANG_S

pytestmark = pytest.mark.in_turn("url")


def test_a_run_over_http(start: Start, url: str) -> None:
    service = start(url)
    status = service.call("POST", "/v1/runs", request(trials=40), RunStatus)
    assert status.state is RunState.RUNNING
    assert "plevel worker" in status.message
    worker_id = service.register()
    assert service.status(status.id).message == ""
    status = service.work(worker_id, status.id)
    assert (status.state, status.trials_done) == (RunState.DONE, 40), status.message
    assert status.timing_s > 0
    asked = {"workload": WORKLOAD, "target": TARGET, "candidates": CANDIDATES}
    answer = service.call("POST", "/v1/select", asked, Selection)
    assert answer.implementation == FAST.implementation
    task = next(t for t in status.tasks if t.implementation == FAST.implementation)
    assert answer.config == task.best_config
    again = service.call("POST", "/v1/runs", request(trials=40), RunStatus)
    assert (again.state, again.tasks[0].task_id) == (RunState.DONE, status.tasks[0].task_id)
    listed = service.raw("GET", "/v1/runs?limit=1").json()["runs"]
    assert [r["id"] for r in listed] == [again.id]
    code, out, err = service.close()
    assert code == 0, err
    assert out.strip() == f"plevel service on {service.url}"


def test_a_killed_service_comes_back_and_the_run_goes_on(start: Start, url: str) -> None:
    service = start(url, PLEVEL_LEASE_S="60")
    run_id = service.call("POST", "/v1/runs", drawn(trials=40), RunStatus).id
    worker_id = service.register()
    service.work(worker_id, run_id, jobs=2)
    held = service.lease(worker_id)
    assert held is not None
    before = service.status(run_id).trials_done
    service.kill()
    again = start(url, PLEVEL_LEASE_S="60")
    assert again.status(run_id).trials_done == before
    # The lease is still the worker's: nothing that it measures is lost.
    accepted = again.results(held, [timed(e) for e in held.job.entries])
    assert decode(accepted.content, ResultsAccepted).accepted == len(held.job.entries)
    status = again.work(worker_id, run_id)
    assert (status.state, status.trials_done) == (RunState.DONE, 40)
    pairs = set()
    for r in again.raw("GET", "/v1/records?phase=search&limit=1000").json()["records"]:
        pair = (r["task_id"], str(r["config"]))
        assert pair not in pairs
        pairs.add(pair)


def test_leases_outlast_a_service_that_was_away_for_longer(start: Start, url: str) -> None:
    service = start(url, PLEVEL_LEASE_S="600")
    service.call("POST", "/v1/runs", drawn(trials=24), RunStatus)
    held = service.lease(service.register())
    assert held is not None
    service.kill()
    with closing(Store(url)) as store, store.write() as c:
        c.execute(sa.update(lease).values(expires_at=lease.c.expires_at - 1200.0))
    again = start(url, PLEVEL_LEASE_S="600")
    again.lease(again.register(), wait_s=0)  # which looks for leases whose time is over
    accepted = again.results(held, [timed(e) for e in held.job.entries])
    assert decode(accepted.content, ResultsAccepted).accepted == len(held.job.entries), accepted.text


def test_a_lost_worker_is_noticed_and_its_late_results_refused(start: Start, url: str) -> None:
    service = start(url, PLEVEL_LEASE_S="0.5")
    run_id = service.call("POST", "/v1/runs", drawn(trials=24), RunStatus).id
    late = service.lease(service.register(), wait_s=10)
    assert late is not None
    other = service.register()
    status = service.work(other, run_id)
    assert (status.state, status.trials_done) == (RunState.DONE, 24)
    refused = service.results(late, [failed(e.index) for e in late.job.entries])
    assert refused.status_code == 409
    assert refused.json()["type"] == "urn:plevel:lease-lost"
    assert service.status(run_id).tasks == status.tasks


def test_waiting_for_a_job_ends_when_one_comes(start: Start, sqlite_copy: str) -> None:
    # So slow a look by itself, that only being told explains an answer in time.
    service = start(sqlite_copy, PLEVEL_POLL_S="60")
    worker_id = service.register()
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=service.url, timeout=HANG_S) as http:
        asked = LeaseRequest(worker_id=worker_id, device=device().identity, wait_s=50)
        waiting = pool.submit(http.post, "/v1/leases", content=encode(asked))
        service.call("POST", "/v1/runs", request(), RunStatus)
        leases = decode(waiting.result(timeout=40).content, Leases).leases
    assert [e.implementation for e in leases[0].job.entries] == [LIBRARY.implementation]


def test_many_wait_and_the_others_are_served(start: Start, sqlite_copy: str) -> None:
    """More waiting calls than there are threads or connections: they hold neither."""
    service = start(sqlite_copy)
    worker_id = service.register()
    asked = encode(LeaseRequest(worker_id=worker_id, device=device().identity, wait_s=60))
    head = (f"POST /v1/leases HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(asked)}\r\n\r\n").encode()
    host, port = service.url.removeprefix("http://").split(":")
    service.http.timeout = 40  # less than they wait
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.sendall(head + asked)
        for _ in range(5):
            assert service.raw("GET", "/readyz").status_code == 200
            assert service.raw("GET", "/v1/workers").status_code == 200


@pytest.mark.parametrize("kinds", [[signal.SIGTERM] * 2, [signal.SIGINT] * 2])
def test_a_signal_ends_it_though_somebody_waits(
    start: Start, sqlite_copy: str, kinds: list[signal.Signals]
) -> None:
    service = start(sqlite_copy)
    worker_id = service.register()
    run_id = service.call("POST", "/v1/runs", drawn(trials=8), RunStatus).id
    service.work(worker_id, run_id)
    url = f"{service.url}/v1/leases"
    asked = encode(LeaseRequest(worker_id=worker_id, device=device().identity, wait_s=60))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(httpx.post, url, content=asked, timeout=HANG_S)
        # It waits for certain once a later call on another connection has been answered.
        service.raw("GET", "/v1/workers")
        for kind in kinds:
            service.process.send_signal(kind)
        service.process.wait(timeout=ENDS_S)
        with contextlib.suppress(httpx.TransportError):
            assert decode(waiting.result().content, Leases).leases == ()
    status, out, err = service.close()
    assert status == 0, (out, err)
    assert "Traceback" not in err


def test_events_follow_a_run_to_its_end(start: Start, sqlite_copy: str) -> None:
    service = start(sqlite_copy)
    run_id = service.call("POST", "/v1/runs", drawn(trials=16), RunStatus).id
    kinds: list[str] = []
    statuses: list[RunStatus] = []
    begun = threading.Event()

    def follow() -> None:
        with httpx.stream("GET", f"{service.url}/v1/runs/{run_id}/events", timeout=HANG_S) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line.startswith("event: "):
                    kinds.append(line.removeprefix("event: "))
                elif line.startswith("data: "):
                    statuses.append(decode(line.removeprefix("data: "), RunStatus))
                    begun.set()

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        assert begun.wait(HANG_S)
        service.work(service.register(), run_id)
        following.result(timeout=HANG_S)
    assert kinds[-1] == "end"
    assert set(kinds[:-1]) == {"status"}
    assert statuses[-1].state is RunState.DONE
    done = [s.trials_done for s in statuses]
    assert done == sorted(done)


def test_a_follower_is_told_of_nothing_new_as_soon_where_many_wait() -> None:
    context = Context(Settings(poll_s=0.01), waiting=1000)  # which makes 0.2 s between two looks
    looks = 0

    def look() -> Seen:
        nonlocal looks
        looks += 1
        return Seen("the same", b"{}", False)

    async def follow() -> list[bytes]:
        stream = context.follow(look, b"status", 0.0, Request({"type": "http"}))
        return [await anext(stream), await anext(stream)]

    first, second = asyncio.run(follow())
    assert first.startswith(b"event: status") and second.startswith(b": ")
    assert looks == 2


def test_cancel(start: Start, sqlite_copy: str) -> None:
    service = start(sqlite_copy)
    run_id = service.call("POST", "/v1/runs", drawn(trials=100), RunStatus).id
    worker_id = service.register()
    service.work(worker_id, run_id, jobs=1)
    held = service.lease(worker_id)
    assert held is not None
    status = service.call("POST", f"/v1/runs/{run_id}/cancel", None, RunStatus)
    assert status.state is RunState.CANCELLED
    renewed = service.call(
        "POST", f"/v1/leases/{held.id}/renew", Renewal(token=held.token), Renewed
    )
    assert renewed.cancelled
    done = service.results(held, [timed(held.job.entries[0])])
    assert decode(done.content, ResultsAccepted).cancelled
    assert service.lease(worker_id, wait_s=0) is None
    again = service.call("POST", f"/v1/runs/{run_id}/cancel", None, RunStatus)
    assert again.finished_at == status.finished_at


def test_a_worker_that_leaves_gives_its_job_back(start: Start, sqlite_copy: str) -> None:
    service = start(sqlite_copy)
    service.call("POST", "/v1/runs", request(), RunStatus)
    worker_id = service.register()
    held = service.lease(worker_id)
    assert held is not None
    assert service.raw("DELETE", f"/v1/workers/{worker_id}").status_code == 204
    assert service.raw("POST", f"/v1/workers/{worker_id}/heartbeat", {}).status_code == 404
    assert service.raw("GET", "/v1/workers").json() == {"workers": []}
    taken = service.lease(service.register())
    assert taken is not None
    assert taken.job.id == held.job.id
    assert taken.job.attempt == 1
    released = service.raw(
        "POST", f"/v1/leases/{taken.id}/release", Renewal(token=taken.token)
    )
    assert released.status_code == 204


def run_body(**changed: Any) -> bytes:
    return encode({**to_json(request()), **changed})


def workload_body(**changed: Any) -> bytes:
    workload = {"workload": {**to_json(WORKLOAD), **changed}, "candidates": to_json(CANDIDATES)}
    return run_body(workloads=[workload])


SYMBOLIC = [{"name": "data", "type": "float32[n,64]"}]
NEVER = to_json(Candidate(FAST.implementation, FAST.version, 5)) | {
    "condition": ["and", [">", "data.shape[0]", 1000]]
}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind", "words"),
    [
        ("POST", "/v1/runs", b"{", 400, "malformed", "truncated"),
        ("POST", "/v1/runs", b"[]", 422, "invalid", "Expected `object`"),
        ("POST", "/v1/runs", b'{"a": "\\u0000\xff"}', 422, "invalid", "unknown field 'a'"),
        ("POST", "/v1/runs", b"x" * 300_000, 413, "too-large", "200000 bytes"),
        ("POST", "/v1/runs", run_body(trials=0), 422, "invalid", "trials"),
        ("POST", "/v1/runs", run_body(trials="many"), 422, "invalid", "trials"),
        ("POST", "/v1/runs", run_body(workloads=[]), 422, "invalid", "workloads"),
        ("POST", "/v1/runs", run_body(target="abacus"), 422, "invalid", "unknown target 'abacus'"),
        ("POST", "/v1/runs", run_body(target={"kind": "llvm", "libs": 3}), 422, "invalid", "target.libs"),
        ("POST", "/v1/runs", run_body(implementations=["other"]), 422, "invalid", "has no 'other'"),
        ("POST", "/v1/runs", run_body(tuner="oracle"), 422, "invalid", "tuner"),
        ("POST", "/v1/runs", workload_body(inputs=SYMBOLIC), 422, "invalid", "symbolic"),
        ("POST", "/v1/runs", workload_body(inputs=[{"name": "a", "type": "floaty[2]"}]), 422, "invalid",
         "floaty"),
        ("POST", "/v1/runs", run_body(workloads=[{"workload": to_json(WORKLOAD)}]), 422, "invalid",
         "workloads[0].workload.op: operator 'filter' is not installed"),
        ("POST", "/v1/runs", run_body(workloads=[{"workload": to_json(WORKLOAD), "candidates": [NEVER]}]),
         422, "invalid", "no implementation of filter is valid"),
        ("POST", "/v1/select", encode({"workload": WORKLOAD, "target": TARGET}), 422, "invalid",
         "not installed here"),
        ("POST", "/v1/select", encode({"workload": WORKLOAD, "target": TARGET, "candidates": []}), 422,
         "no-selection", "no implementation"),
        ("GET", "/v1/runs/4711", None, 404, "not-found", "run 4711"),
        ("GET", "/v1/runs/4711/events", None, 404, "not-found", "run 4711"),
        ("POST", "/v1/runs/4711/cancel", None, 404, "not-found", "run 4711"),
        ("GET", "/v1/tasks/4711", None, 404, "not-found", "task 4711"),
        ("GET", "/v1/runs?limit=0", None, 422, "invalid", "limit"),
        ("GET", "/v1/runs/first", None, 422, "invalid", "run_id"),
        ("GET", "/v1/records?error=bad", None, 422, "invalid", "error"),
        ("POST", "/v1/workers/4711/heartbeat", b"{}", 404, "not-found", "worker 4711"),
        ("POST", "/v1/leases", encode(LeaseRequest(worker_id=4711, device="d")), 404, "not-found",
         "register again"),
        ("POST", "/v1/leases/4711/renew", encode(Renewal(token=1)), 409, "lease-lost", "lease 4711"),
        ("POST", "/v1/workers", b'{"name": "w", "host": "h", "pid": 1, "devices": []}', 422, "invalid",
         "devices"),
    ],
)
def test_bad_input_is_a_problem_document(
    service: Service, method: str, path: str, body: bytes | None, status: int, kind: str, words: str
) -> None:
    response = service.raw(method, path, body)
    problem = response.json()
    assert (response.status_code, problem["status"]) == (status, status), problem
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["type"] == f"urn:plevel:{kind}"
    assert words in problem["detail"]
    assert "\n" not in problem["detail"]
    assert problem["title"]


NESTED = json.loads("[" * 300 + "]" * 300)
LONG = [{"workload": to_json(WORKLOAD), "candidates": [to_json(FAST) | {"version": "1." + "x" * 300}]}]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/runs", workload_body(attrs={"x": 2**70}), "a value cannot be stored: Integer exceeds 64-bit range"),
        ("/v1/runs", workload_body(attrs={"x": NESTED}), "a value cannot be stored: Recursion limit reached"),
        ("/v1/runs", run_body(workloads=LONG), "workloads[0].candidates[0].version"),
        ("/v1/runs", run_body(target={"kind": "llvm", "mattr": [f"+{'f' * 50}{i}" for i in range(60)]}), "2000 bytes"),
        ("/v1/workers", encode(to_json(info()) | {"host": "a\0b"}), "'host': it has a NUL"),
        ("/v1/workers", encode(to_json(info()) | {"operators": {"a\0b": {"c": 1}}}), "'operators': it has a NUL"),
        ("/v1/pauses", encode({"reason": "r", "device": "d", "starts_at": 1e300}), "starts_at"),
    ],
)
def test_what_cannot_be_stored_is_refused_over_both_databases(
    start: Start, url: str, path: str, body: bytes, words: str
) -> None:
    response = start(url, PLEVEL_TUNE="false").raw("POST", path, body)
    assert response.status_code == 422, response.text
    assert words in response.json()["detail"]


def test_only_a_program_s_message_may_have_a_nul(start: Start, url: str) -> None:
    service = start(url)
    service.raw("POST", "/v1/runs", drawn(trials=8))
    worker = service.register()
    held = service.lease(worker)
    assert held is not None
    results = [msgspec.structs.replace(failed(e.index), message="a\0b") for e in held.job.entries]
    for session, status in (("a\0b", 422), ("s", 200)):
        sent = Results(token=held.token, session=session, results=tuple(results), done=True)
        assert service.raw("POST", f"/v1/leases/{held.id}/results", sent).status_code == status
    assert {r["message"] for r in service.http.get("/v1/records").json()["records"]} == {"ab"}


def test_the_field_at_fault_is_named_apart(service: Service) -> None:
    problem = service.raw("POST", "/v1/runs", run_body(seed="one")).json()
    assert [e["field"] for e in problem["errors"]] == ["seed"]


@pytest.mark.parametrize(("given", "twice"), [('"seed":1,"seed":2', "seed"), ('"x":[{"y":1,"y":1}]', "y")])
def test_a_key_that_is_given_twice_is_named(service: Service, given: str, twice: str) -> None:
    answer = service.raw("POST", "/v1/runs", f"{{{given}}}".encode())
    assert answer.status_code == 422
    assert answer.json()["detail"] == f"{twice!r}: is given twice in an object: leave one out"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("PUT", "/v1/runs", 405)])
def test_unknown_paths_are_problems_too(service: Service, method: str, path: str, status: int) -> None:
    response = service.raw(method, path)
    assert response.status_code == response.json()["status"] == status
    assert response.headers["content-type"] == "application/problem+json"
    assert status == 404 or response.headers["allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize("path", ["/v1/workers", "/healthz", "/v1/runs/1000000", "/v1/select", "/runs"])
def test_head_is_get_without_the_body(service: Service, path: str) -> None:
    got, head = service.raw("GET", path), service.raw("HEAD", path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    for name in ("content-type", "content-length", "allow"):
        assert head.headers.get(name) == got.headers.get(name)


def test_head_of_a_stream_ends_with_its_head(service: Service) -> None:
    run_id = service.call("POST", "/v1/runs?namespace=head", drawn(), RunStatus).id
    head = service.raw("HEAD", f"/v1/runs/{run_id}/events")
    assert (head.status_code, head.content) == (200, b"")
    assert service.raw("GET", "/healthz").status_code == 200  # by the same connection, of which the stream has ended


def test_openapi_is_complete(service: Service) -> None:
    schema = service.raw("GET", "/openapi.json").json()
    known = schema["components"]["schemas"]

    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "$ref":
                    yield value
                else:
                    yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    assert {r.rsplit("/", 1)[1] for r in references(schema)} <= known.keys()
    assert "HTTPValidationError" not in str(schema)
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], path
            assert operation["description"], path
            good = next(r for code, r in operation["responses"].items() if code.startswith("2"))
            if "204" not in operation["responses"] and path.startswith("/v1"):
                assert good["content"], (method, path)
            takes = method == "post" and not path.endswith(("heartbeat", "cancel"))
            assert takes == ("requestBody" in operation), (method, path)
    assert {"RunRequest", "RunStatus", "Lease", "Results", "Problem"} <= known.keys()
    assert service.raw("GET", "/docs").status_code == 200


def test_health(service: Service) -> None:
    assert service.raw("GET", "/healthz").json() == {"status": "ok"}
    assert service.raw("GET", "/readyz").json() == {"status": "ready"}


@pytest.mark.parametrize("seconds", ["inf", "1e308", "0", "nan"])
def test_a_time_that_cannot_be_waited_for_is_refused(monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    monkeypatch.setenv("PLEVEL_POLL_S", seconds)
    with pytest.raises(ValidationError, match="poll_s"):
        Settings()


def test_a_place_that_cannot_be_written_is_said() -> None:
    assert "there is no folder /proc/nowhere" in refused("--database", "/proc/nowhere/p.db", "--port", "0")


def test_a_ready_file_that_cannot_be_written_is_one_line(sqlite_copy: str, tmp_path: Path) -> None:
    """The address, which stdout has by then, is no help to whoever waits for the file."""
    out, err = tmp_path / "out", tmp_path / "err"
    given = ("--database", sqlite_copy, "--port", "0", "--ready-file", "/proc/nowhere/ready")
    assert Forked(given, dict(os.environ), out, err).wait(HANG_S) == 1
    (line,) = err.read_text().splitlines()
    assert line.startswith("plevel service: --ready-file /proc/nowhere/ready cannot be written: No such file")


def test_an_old_schema_is_said_where_migrating_is_off(tmp_path: Path) -> None:
    path = str(tmp_path / "p.db")
    line = refused("--database", path, "--port", "0", PLEVEL_MIGRATE="false")
    assert "plevel db upgrade" in line


def test_the_confirm_phase_is_in_the_log(start: Start, sqlite_copy: str) -> None:
    service = start(sqlite_copy)
    run_id = service.call("POST", "/v1/runs", drawn(trials=16), RunStatus).id
    service.work(service.register(), run_id)
    page = service.raw("GET", f"/v1/records?run_id={run_id}&phase=confirm&limit=1000").json()
    back = service.raw("GET", f"/v1/records?run_id={run_id}&phase=confirm&newest=true").json()
    assert back["records"] == page["records"][::-1]
    sessions = {r["session"] for r in page["records"]}
    assert len(sessions) == 2
    assert {r["phase"] for r in page["records"]} == {Phase.CONFIRM.value}
    task_id = page["records"][0]["task_id"]
    assert service.raw("GET", f"/v1/tasks/{task_id}").json()["confirmed"]
