"""The client of the service, against answers that a service may give."""

from __future__ import annotations

import inspect
import io
import json
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from plevel.cli import tune_run
from plevel.cli.location import Location
from plevel.client import Client, ServiceError, UnreachableError
from service.app import create_app
from service.settings import Settings
from strategy.op_strategy import candidates
from strategy.record import RunRequest, RunState, RunStatus, RunWorkload, encode
from strategy.select import choose
from strategy.select.lock import Lock
from strategy.target import Target
from strategy.workload import Input, Workload

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")
WORKLOAD = Workload("dense", (Input("data", "float32[4,4]"), Input("weight", "float32[4,4]", True)))
LAYER = Workload.make("dense", {"data": "float32[4,4]", "weight": "float32[4,4]"})
REQUEST = RunRequest(workloads=(RunWorkload(workload=WORKLOAD),), target=TARGET)


def run_status(state: RunState = RunState.RUNNING, done: int = 0) -> RunStatus:
    return RunStatus(
        id=7, state=state, target=TARGET, trials=8, trials_done=done, created_at=1.0, workers=1
    )


def client_of(answer: Callable[[httpx.Request], httpx.Response], patience_s: float = 0.3) -> Client:
    return Client("http://farm", transport=httpx.MockTransport(answer), patience_s=patience_s)


def ok(value: object) -> httpx.Response:
    return httpx.Response(200, content=encode(value))


def failing(times: int, error: type[Exception], then: httpx.Response) -> tuple[Callable, list[str]]:
    """A service whose connection fails so often; and the calls that it saw."""
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.method} {request.url.path}")
        if len(seen) <= times:
            raise error("broken")
        return then

    return answer, seen


@pytest.mark.parametrize(
    ("error", "told"), [(httpx.ConnectError, False), (httpx.ConnectTimeout, False), (httpx.WriteError, True)]
)
def test_an_import_that_a_service_does_not_outlast_says_what_to_do(error: type[Exception], told: bool) -> None:
    client = client_of(failing(1000, error, ok({}))[0])
    with pytest.raises(UnreachableError) as caught:
        client.import_records([b"{}"])
    assert str(caught.value).endswith("; what was stored stays, and the same import adds the rest") == told


def test_asking_is_tried_again() -> None:
    answer, seen = failing(2, httpx.ReadError, ok(run_status()))
    assert client_of(answer, 5).run(7).id == 7
    assert seen == ["GET /v1/runs/7"] * 3


def test_a_run_is_created_again_only_where_it_was_never_sent() -> None:
    answer, seen = failing(2, httpx.ConnectError, ok(run_status()))
    assert client_of(answer, 5).create_run(REQUEST).id == 7
    assert len(seen) == 3

    answer, seen = failing(1, httpx.ReadError, ok(run_status()))
    with pytest.raises(UnreachableError, match=r"no service answers at http://farm.* or correct its URL$"):
        client_of(answer, 5).create_run(REQUEST)
    assert len(seen) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_service_is_asked_again_for_what_may_be_repeated(status: int) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.method)
        return httpx.Response(status) if len(seen) < 3 else ok(run_status())

    assert client_of(answer, 5).run(7).id == 7
    assert seen == ["GET"] * 3
    seen.clear()
    with pytest.raises(ServiceError, match=f"answered {status}"):
        client_of(answer, 5).create_run(REQUEST)
    assert seen == ["POST"]
    with pytest.raises(ServiceError, match=f"answered {status}"):  # patience ends
        client_of(lambda request: httpx.Response(status), 0).run(7)


@pytest.mark.parametrize("status", [502, 503])
def test_a_lock_answers_in_place_of_a_proxy_whose_service_is_away(status: int) -> None:
    lock = Lock.make([choose(LAYER, TARGET, candidates(LAYER, TARGET), [])])
    away = httpx.MockTransport(lambda request: httpx.Response(status))
    with Client("http://farm", transport=away, patience_s=0, lock=lock) as client:
        assert client.select(LAYER, TARGET).explanation.endswith("from the lock's entry for " + str(TARGET))
        with pytest.raises(UnreachableError, match=f"^http://farm answers {status}, and softmax.* is not in the lock"):
            client.select("softmax(data=float32[1,8])", TARGET)
    refusing = httpx.MockTransport(lambda request: httpx.Response(422, json={"title": "no"}))
    with Client("http://farm", transport=refusing, lock=lock) as client, pytest.raises(ServiceError, match="no"):
        client.select(LAYER, TARGET)


def test_a_lock_reads_a_workload_as_the_service_does() -> None:
    """A pooling with a default written out, as other tools make it."""
    pool = Workload.make("max_pool2d", {"data": "float32[1,8,8,8]"}, {"pool_size": [2, 2]})
    lock = Lock.make([choose(pool, TARGET, candidates(pool, TARGET), [])])
    written = Workload("max_pool2d", pool.inputs, {**pool.attr_node.to_json(), "pool_size": [2, 2], "layout": "NCHW"})
    assert written.key != pool.key
    away = httpx.MockTransport(lambda request: httpx.Response(502))
    with Client("http://farm", transport=away, patience_s=0, lock=lock) as client:
        assert client.select(written, TARGET).workload == pool


class _Asked(BaseHTTPRequestHandler):
    """Answers each request with the port of its connection."""

    protocol_version = "HTTP/1.1"  # keeps connections open

    def do_GET(self) -> None:
        body = encode([{"port": self.client_address[1]}])
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def test_a_forked_process_asks_over_connections_of_its_own() -> None:
    """Over one, it and its parent would get each other's answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Asked) as server:
        answering = threading.Thread(target=server.serve_forever)
        answering.start()
        fork = multiprocessing.get_context("fork")
        ports = fork.SimpleQueue()
        try:
            with Client(f"http://127.0.0.1:{server.server_port}", patience_s=0) as client:

                def ask() -> int:
                    port: int = client._http.get("/").json()[0]["port"]
                    return port

                first = ask()
                child = fork.Process(target=lambda: ports.put(ask()))
                child.start()
                child.join()
                assert ask() == first
                assert ports.get() != first
        finally:
            server.shutdown()
            answering.join()


def test_patience_ends() -> None:
    answer, _ = failing(10_000, httpx.ConnectError, ok(run_status()))
    with pytest.raises(UnreachableError, match="plevel serve"):
        client_of(answer).run(7)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"),
            "the certificate of http://farm is not trusted .*self-signed.* SSL_CERT_FILE",
        ),
        (
            httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired"),
            "the certificate of http://farm is not valid now .*: have it renewed where the service runs",
        ),
        (
            httpx.ConnectError(
                "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: IP address mismatch, certificate is not "
                "valid for '127.0.0.1'"
            ),
            "the certificate of http://farm is another host's .*: write the host in the URL as the certificate does",
        ),
        (httpx.RemoteProtocolError("Server disconnected"), "Server disconnected; if it has a certificate, write https://"),
    ],
)
def test_a_fault_of_tls_is_not_an_absent_service(error: Exception, words: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(UnreachableError, match=words):
        client_of(answer).run(7)


def test_tls_with_a_service_that_has_none() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        answering = threading.Thread(target=server.serve_forever)
        answering.start()
        try:
            client = Client(f"https://127.0.0.1:{server.server_port}", patience_s=0)
            with client, pytest.raises(UnreachableError, match="answers without TLS .* write http://"):
                client.run(7)
        finally:
            server.shutdown()
            answering.join()


def test_a_problem_document_becomes_an_error() -> None:
    problem = {
        "type": "about:blank", "title": "The request is not valid", "status": 422,
        "detail": "target: unknown kind", "errors": [{"field": "target", "detail": "unknown"}, 3],
    }

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(
            422, json=problem, headers={"content-type": "application/problem+json"}
        )

    with pytest.raises(ServiceError, match="target: unknown kind") as caught:
        client_of(answer).select(WORKLOAD, TARGET)
    assert caught.value.status == 422
    assert caught.value.errors == ({"field": "target", "detail": "unknown"},)


@pytest.mark.parametrize("body", [b"<html>a proxy</html>", b"[]", b'{"x": 1}', b""])
def test_what_is_no_plevel_service_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(ServiceError, match="plevel"):
        client_of(lambda request: httpx.Response(200, content=body)).run(7)
    with pytest.raises(ServiceError, match="502"):
        client_of(lambda request: httpx.Response(502, content=body)).run(7)


@pytest.mark.parametrize("body", [b"[]", b'{"x": 1}', b"null"])
def test_a_list_that_is_none_is_no_plevel_service_either(body: bytes) -> None:
    client = client_of(lambda request: httpx.Response(200, content=body))
    for ask in (client.runs, client.workers):
        with pytest.raises(ServiceError, match="plevel"):
            ask()


def test_select_sends_what_was_asked() -> None:
    sent = {}

    def answer(request: httpx.Request) -> httpx.Response:
        sent.update(json.loads(request.content))
        return httpx.Response(500, json={"title": "enough"})

    with pytest.raises(ServiceError, match="enough"):
        client_of(answer).select(WORKLOAD, TARGET, device="a/cpu:0", policy="tvm")
    assert sent["device"] == "a/cpu:0"
    assert sent["policy"] == "tvm"
    assert Target.parse(sent["target"]) == TARGET
    assert "candidates" not in sent


class _Broken(httpx.SyncByteStream):
    """A stream that ends in the middle of an event."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts
        raise httpx.ReadError("broken")


def test_long_lists_are_asked_for_page_by_page() -> None:
    pages = {"0": {"records": [{"id": 1}, {"id": 4}], "next": 4}, "4": {"records": [{"id": 9}], "next": None}}
    seen: list[dict[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(dict(request.url.params))
        return ok(pages[request.url.params["cursor"]])

    found = client_of(answer).iter_records(op="dense", error=None)
    assert next(found) == {"id": 1}
    assert len(seen) == 1  # the second page is not asked for before it is wanted
    assert [r["id"] for r in found] == [4, 9]
    assert seen == [{"limit": "500", "op": "dense", "cursor": c} for c in ("0", "4")]


def test_select_many_has_each_answer_or_its_error_in_its_place() -> None:
    selection = choose(LAYER, TARGET, candidates(LAYER, TARGET), [])
    problem = {
        "type": "urn:plevel:invalid", "title": "The request is not valid", "status": 422,
        "detail": "unknown operator 'x'", "errors": [{"field": "requests[1].workload", "detail": "no"}],
    }
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return ok({"answers": [{"selection": selection}, {"problem": problem}]})

    questions = [(LAYER, TARGET), (Workload("x", ()), TARGET)]
    first, second = client_of(answer).select_many(questions, policy="tvm")
    assert first == selection
    assert isinstance(second, ServiceError)
    assert (second.status, str(second)) == (422, "unknown operator 'x'")
    assert second.errors[0]["field"] == "requests[1].workload"
    assert [q["workload"]["op"] for q in sent[0]["requests"]] == ["dense", "x"]
    assert {q["policy"] for q in sent[0]["requests"]} == {"tvm"}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pauses before asking again."""
    monkeypatch.setattr(tune_run, "PAUSE_S", 0.0)
    monkeypatch.setattr("plevel.client._RECONNECT_S", 0.0)


@pytest.mark.usefixtures("at_once")
def test_follow_connects_again_and_ends_with_the_run() -> None:
    event = b"event: status\ndata: " + encode(run_status(done=2)) + b"\n\n"
    end = b": hello\n\nevent: end\ndata: " + encode(run_status(RunState.DONE, 8)) + b"\n\n"
    streams = [
        httpx.Response(200, stream=_Broken([event, event[:20]])),
        httpx.Response(200, content=end),
    ]

    def answer(request: httpx.Request) -> httpx.Response:
        return streams.pop(0) if request.url.path.endswith("/events") else ok(run_status(done=1))

    seen = [s.trials_done for s in client_of(answer).follow(7)]
    assert seen == [1, 2, 1, 8]


@pytest.mark.usefixtures("at_once")
def test_follow_goes_on_where_a_proxy_has_lost_the_service() -> None:
    states = iter([run_status(), run_status(RunState.DONE)])

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(502) if request.url.path.endswith("/events") else ok(next(states))

    assert [s.state for s in client_of(answer).follow(7)] == [RunState.RUNNING, RunState.DONE]


class _Service:
    """Is away, as often as `away` says, before it has another status of a run."""

    def __init__(self, away: list[int]) -> None:
        self.away = away
        self.done = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return httpx.Response(502)
        if self.away and self.away[0]:
            self.away[0] -= 1
            raise httpx.ConnectError("refused")
        if not self.away:
            return ok(run_status(RunState.DONE, 8))
        self.away.pop(0)
        self.done += 1
        return ok(run_status(done=self.done))


def followed(service: _Service) -> tuple[list[int], str]:
    said = io.StringIO()
    with client_of(service, patience_s=0) as client:
        place, console = Location(url="http://farm"), Console(file=said, width=1000)
        seen = [s.trials_done for s in tune_run.follow(client, 7, place, console)]
    return seen, said.getvalue()


@pytest.mark.usefixtures("at_once")
def test_a_command_waits_for_a_service_that_is_away_and_goes_on() -> None:
    seen, said = followed(_Service([0, 3, 2]))
    assert seen == [1, 2, 3, 8]
    waiting = "http://farm does not answer; trying again (run 7 continues there)"
    assert said.splitlines() == [waiting, "http://farm answers again"] * 2


@pytest.mark.usefixtures("at_once")
def test_a_command_does_not_wait_for_a_service_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_run, "AWAY_S", -1.0)
    with pytest.raises(UnreachableError, match="repeat the command or the call to follow run 7"):
        followed(_Service([2]))


def test_a_run_that_is_not_known_is_not_waited_for() -> None:
    client = client_of(lambda request: httpx.Response(404, json={"title": "no such run"}))
    with client, pytest.raises(ServiceError, match="no such run"):
        list(tune_run.follow(client, 7, Location(url="http://farm"), Console(file=io.StringIO())))


def test_follow_of_a_finished_run_is_its_status() -> None:
    found = list(client_of(lambda request: ok(run_status(RunState.FAILED))).follow(7))
    assert [s.state for s in found] == [RunState.FAILED]


def test_a_url_without_scheme_is_refused() -> None:
    with pytest.raises(UnreachableError, match="http://host:port"):
        Client("farm:80")


def test_there_is_a_method_for_each_endpoint() -> None:
    """But for those of workers, which have a client of their own, and those that only machines watch."""
    others = ("/v1/leases", "/v1/workers/{worker_id}", "/healthz", "/metrics")
    paths = create_app(Settings(tune=False)).openapi()["paths"]
    source = Path(inspect.getfile(Client)).read_text()
    wanted = [p for p in paths if not p.startswith(others)]
    assert len(wanted) > 20
    assert [p for p in wanted if f'"{p}"' not in source] == []


def test_the_audit_log_is_read() -> None:
    entry = {"id": 1, "at": 1.0, "actor": "ops", "action": "purge", "detail": {"records": 3}}

    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "http://farm/v1/audit?limit=7"
        return ok({"entries": [entry]})

    with client_of(answer) as asked:
        assert asked.audit(limit=7) == [entry]


def test_an_answer_that_cannot_be_unpacked_is_no_service_s() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip"))

    for ask in (lambda client: client.run(7), lambda client: list(client.export_records("native"))):
        with pytest.raises(UnreachableError, match="http://farm"):
            ask(client_of(answer, 0.0))


def test_an_export_from_nowhere_is_not_said_to_have_begun() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with client_of(refuse, 0.0) as asked, pytest.raises(UnreachableError, match="^no service answers at http://farm"):
        list(asked.export_records("native"))


@pytest.mark.parametrize(("detail", "is_older"), [
    ("query.state: unknown parameter: expected one of limit", True),
    ("unknown field 'of': expected one of workload", True),
    ("query.limit: expected a number", False),
])
def test_an_older_service_is_named_as_a_reason(detail: str, is_older: bool) -> None:
    refusing = httpx.MockTransport(lambda request: httpx.Response(422, json={"title": "no", "detail": detail}))
    with Client("http://farm", transport=refusing) as client, pytest.raises(ServiceError) as caught:
        client.runs(state="live")
    assert str(caught.value).startswith(detail)
    assert ("the service is of an older plevel than this one: upgrade it" in str(caught.value)) == is_older
