"""The end of a run is told to whom it names: a real receiver, and services that come and go."""

from __future__ import annotations

import base64
import json
import math
import queue
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from standardwebhooks import Webhook, WebhookVerificationError

from plevel.client import Client
from service.errors import InvalidError
from service.settings import Settings
from service.store.db import Store
from service.store.sql import now
from service.store.tables import webhook as table
from service.tuning import run as runs
from service.tuning import run_status, webhook
from strategy.record import RunState, RunStatus, decode
from tests.command import run_command
from tests.integration.process import Start
from tests.integration.scene import TERMS, Scene, request
from tests.limit import HANG_S

pytestmark = pytest.mark.in_turn("url")

SECRET = "whsec_" + base64.b64encode(bytes(range(24))).decode()


class Got(NamedTuple):
    """A request, and the status that it was answered with."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int


class Receiver:
    """An HTTP server that keeps what it is sent, and answers as it is told, the last for ever."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = [(204, {})]
        self.got: queue.Queue[Got] = queue.Queue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                more = len(receiver.answers) > 1
                status, given = receiver.answers.pop(0) if more else receiver.answers[0]
                self.send_response(status)
                for name, value in given.items():
                    self.send_header(name, value)
                self.end_headers()
                receiver.got.put(Got(self.path, headers, body, status))

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook?a=1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self) -> Got:
        return self.got.get(timeout=HANG_S)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def settings(**values: Any) -> Settings:
    return Settings(**({"webhook_hosts": "127.0.0.1", "webhook_retry_s": 1e-3} | values))


def ended(store: Store, url: str) -> int:
    """A run that has ended, whose end is to be told."""
    scene = Scene.make(store)
    with store.write() as c:
        webhook.subscribe(c, scene.run_id, url)
        webhook.subscribe(c, scene.run_id, url)
        runs.cancel(c, scene.run_id)
    return scene.run_id


def rows(store: Store) -> list[Any]:
    with store.read() as c:
        return list(c.execute(sa.select(table)))


def due(store: Store) -> None:
    """The time until the next try is over, by the database's clock."""
    with store.write() as c:
        c.execute(sa.update(table).values(due_at=now() - 1.0))


def test_the_end_of_a_run_is_told_once(store: Store, receiver: Receiver) -> None:
    postman = webhook.Postman(store, settings(webhook_secret=SECRET))
    scene = Scene.make(store)
    with store.write() as c:
        webhook.subscribe(c, scene.run_id, receiver.url)
    assert not postman.send()  # it has not ended
    with store.write() as c:
        runs.finish(c, scene.run_id, RunState.DONE, "enough")
    assert postman.send()
    assert not postman.send()
    path, headers, body, _ = receiver.take()
    assert receiver.got.empty()
    assert path == "/hook?a=1"
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert headers["content-type"] == "application/json"
    assert Webhook(SECRET).verify(body, dict(headers)) == json.loads(body)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body.replace(b"done", b"gone"), dict(headers))
    with store.read() as c:
        assert decode(body, RunStatus) == run_status.status(c, scene.run_id, TERMS.alive_s)
    (row,) = rows(store)
    assert (row.attempts, row.error) == (1, "")
    assert row.ended_at is not None


@pytest.mark.parametrize("secret", ["s3cret", "whsec_", "whsec_!!!!", "whsec_c2hvcnQ="])
def test_a_secret_that_receivers_could_not_use_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="whsec_ and the base64 form of 24 to 64 random bytes"):
        settings(webhook_secret=secret)


def test_a_receiver_that_fails_is_told_again(store: Store, receiver: Receiver) -> None:
    # The redirection leads to the receiver itself, and must not be followed.
    away = {"location": f"http://127.0.0.1:{receiver.port}/elsewhere"}
    receiver.answers = [(500, {}), (307, away), (200, {})]
    ended(store, receiver.url)
    for attempt, said in ((1, "500"), (2, "307"), (3, "")):
        due(store)
        assert webhook.Postman(store, settings()).send()
        (row,) = rows(store)
        assert (row.attempts, said in row.error) == (attempt, True)
    told = [receiver.take() for _ in range(3)]
    assert {t.path for t in told} == {"/hook?a=1"}
    assert len({t.body for t in told}) == 1
    assert len({t.headers["webhook-id"] for t in told}) == 1
    assert receiver.got.empty()
    assert not any("webhook-signature" in t.headers for t in told)


def test_a_run_whose_status_cannot_be_read_holds_up_no_other(
    store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ended(store, receiver.url), ended(store, receiver.url)
    status = run_status.status

    def fail(connection: sa.Connection, run_id: int, *more: Any) -> RunStatus:
        if run_id == first:
            raise KeyError("gone")
        return status(connection, run_id, *more)

    monkeypatch.setattr(run_status, "status", fail)
    postman = webhook.Postman(store, settings(webhook_retry_s=3600))
    assert [postman.send() for _ in range(3)] == [True, True, False]
    assert decode(receiver.take().body, RunStatus).id == second
    (row,) = (row for row in rows(store) if row.run_id == first)
    assert (row.attempts, row.error, row.ended_at) == (1, "its status cannot be read: KeyError: 'gone'", None)


def test_it_waits_longer_each_time_and_gives_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "LONGEST_S", 1e6 * 2**5)
    ended(store, "http://127.0.0.1:9/")
    postman = webhook.Postman(store, settings(webhook_retry_s=1e6))
    waits = []
    for _ in range(webhook.TRIES):
        due(store)
        assert postman.send()
        with store.read() as c:
            waits.append(c.execute(sa.select(table.c.due_at - now())).scalar_one())
    assert [round(math.log2(w / 1e6)) for w in waits] == [0, 1, 2, 3, 4] + [5] * 7
    due(store)
    assert not postman.send()
    (row,) = rows(store)
    assert row.attempts == webhook.TRIES
    assert row.ended_at is not None
    assert "refused" in row.error


@pytest.mark.parametrize("host", ["a..example.org", "127.0.0.1:9"])
@pytest.mark.parametrize("attempts", [webhook.TRIES - 1, webhook.TRIES])
def test_no_try_follows_the_last(store: Store, host: str, attempts: int) -> None:
    """Neither of a host that cannot be resolved at all, nor where a service did not survive its last try."""
    ended(store, f"https://{host}/")
    due(store)
    with store.write() as c:
        c.execute(sa.update(table).values(attempts=attempts))
    postman = webhook.Postman(store, settings(webhook_hosts="*.example.org, 127.0.0.1"))
    assert postman.send()
    (row,) = rows(store)
    assert row.ended_at is not None
    assert ("label empty" if "example" in host else "refused") in row.error
    due(store)
    assert not postman.send()


def test_a_receiver_that_answers_a_byte_at_a_time_is_cut_off(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "TOTAL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as other:

        def answer() -> int:
            """Answer in ten seconds; return the number of bytes that were taken."""
            connection, _ = listening.accept()
            with connection:
                for sent, byte in enumerate(b"HTTP/1.1 200 OK\r\nx: %s\r\n\r\n" % (b"x" * 1000)):
                    time.sleep(0.01)
                    try:
                        connection.send(bytes([byte]))
                    except OSError:
                        return sent
            return sent

        listening.settimeout(HANG_S)
        ended(store, f"http://127.0.0.1:{listening.getsockname()[1]}/")
        taken = other.submit(answer)
        assert webhook.Postman(store, settings()).send()
        assert rows(store)[0].error == "no answer within 0.2 s"
        assert taken.result(HANG_S) < 1000


def test_two_services_tell_it_once(store: Store, receiver: Receiver) -> None:
    ended(store, receiver.url)
    other = webhook.Postman(store, settings())
    steps = iter([True])

    class Slow:
        """The store of a service that is overtaken after it has seen what is due."""

        read = store.read

        def write(self) -> Any:
            if next(steps, False):
                assert other.send()
            return store.write()

    assert webhook.Postman(Slow(), settings()).send()
    receiver.take()
    assert receiver.got.empty()
    assert rows(store)[0].attempts == 1


@pytest.mark.parametrize(
    ("place", "hosts", "message"),
    [
        ("http://ci.example/x", "", "is not permitted"),
        ("http://ci.example/x", "other.example,*.ci.example", "is not permitted"),
        ("http://evil-ci.example/", "*.ci.example", "is not permitted"),
        ("http://ci.example@evil.example/", "ci.example", "without a password"),
        ("ftp://ci.example/", "ci.example", "is refused"),
        ("//ci.example/", "ci.example", "is refused"),
        ("http://", "ci.example", "is refused"),
        ("http://ci.example:x/", "ci.example", "no URL"),
        ("http://[::1/", "::1", "no URL"),
        ("http://xn--a/", "xn--a", "no URL"),
        ("", "", "is refused"),
    ],
)
def test_where_nothing_may_be_told(place: str, hosts: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        webhook.check(place, hosts)


def test_hosts_are_listed_by_name_and_by_pattern() -> None:
    hosts = "ci.lan, *.Example.org,::1"
    for url in ("http://CI.lan:8080/x", "https://a.b.example.org", "http://[::1]:80/"):
        webhook.check(url, hosts)


def test_what_a_pattern_lists_is_not_private(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where a name points into a private network, nor where only one of its addresses does."""
    found: list[str] = []
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (a, 80)) for a in found]
    )
    ended(store, "http://ci.example.org/")
    postman = webhook.Postman(store, settings(webhook_hosts="*.example.org"))
    for private in ("127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fe80::1%eth0",
                    "::ffff:192.168.0.1", "0.0.0.0", "224.0.0.1"):
        found[:] = ["93.184.216.34", private]
        due(store)
        with store.write() as c:
            c.execute(sa.update(table).values(attempts=0))
        assert postman.send()
        assert "private address" in rows(store)[0].error, private
    # One that the settings allow no more.
    due(store)
    assert webhook.Postman(store, settings(webhook_hosts="ci.lan")).send()
    assert "is not permitted" in rows(store)[0].error


def test_a_service_tells_it_after_a_restart(url: str, start: Start, receiver: Receiver) -> None:
    given = {"PLEVEL_WEBHOOK_HOSTS": "127.0.0.1", "PLEVEL_WEBHOOK_RETRY_S": "0.1", "PLEVEL_POLL_S": "0.05"}
    receiver.answers = [(503, {})]
    service = start(url, **given)
    for nowhere in ("http://elsewhere/", "http://xn--a/"):
        refused = service.raw("POST", "/v1/runs", request(webhook=nowhere))
        assert refused.status_code == 422
        assert "webhook" in refused.json()["detail"]
    run = service.call("POST", "/v1/runs", request(webhook=receiver.url), RunStatus)
    service.call("POST", f"/v1/runs/{run.id}/cancel", None, RunStatus)
    receiver.take()
    service.kill()
    receiver.answers = [(204, {})]
    store = Store(url)
    due(store)  # had it died while it was sending, another would wait until then
    store.close()
    start(url, **given)
    while (told := receiver.take()).status != 204:
        pass
    status = decode(told.body, RunStatus)
    assert (status.id, status.state) == (run.id, RunState.CANCELLED)


def test_a_run_that_is_asked_for_again_tells_its_end_too(url: str, start: Start, receiver: Receiver) -> None:
    service = start(url, PLEVEL_WEBHOOK_HOSTS="127.0.0.1", PLEVEL_POLL_S="0.05")
    run = service.call("POST", "/v1/runs", request(webhook=receiver.url), RunStatus)
    service.call("POST", f"/v1/runs/{run.id}/cancel", None, RunStatus)
    assert decode(receiver.take().body, RunStatus).id == run.id
    again = service.http.post(f"/runs/{run.id}/again")
    new = int(again.headers["location"].rsplit("/", 1)[1])
    service.call("POST", f"/v1/runs/{new}/cancel", None, RunStatus)
    assert decode(receiver.take().body, RunStatus).id == new


def test_the_command_line_names_a_webhook(
    sqlite_copy: str, start: Start, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    service = start(sqlite_copy, PLEVEL_WEBHOOK_HOSTS="127.0.0.1")
    command = [
        "tune", "dense", "-i", "data=float32[4,8]", "-i", "weight=float32[8,8]:const", "--wait",
        "--url", service.url, "--webhook",
    ]
    assert run_command(*command, "http://elsewhere/") == 2
    said = capsys.readouterr().err
    assert "'elsewhere'" in said
    assert "PLEVEL_WEBHOOK_HOSTS" in said

    def cancel() -> RunStatus:
        with Client(service.url) as client:
            while not (found := client.runs()):
                pass
            return client.cancel(found[0].id)

    with ThreadPoolExecutor(1) as other:
        cancelled = other.submit(cancel)
        assert run_command(*command, receiver.url) == 1  # nothing was tuned
    told = decode(receiver.take().body, RunStatus)
    assert (told.id, told.state) == (cancelled.result().id, RunState.CANCELLED)
