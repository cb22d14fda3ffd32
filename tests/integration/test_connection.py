"""Clients that send without end, slowly, or nothing at all: the service's memory stays, others are served.

Each test talks to the real service over sockets of its own.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy as sa

from service.access import token
from service.context import IMPORTS, OF_CLIENT
from service.formats import ImportedRecord, Task
from service.formats.source import CHUNK
from service.records.importer import import_items
from service.server import GRACE_S
from service.store.db import Store
from service.store.tables import TokenScope
from strategy.record import LeaseRequest, Registered, RunState, RunStatus, decode, encode
from tests.integration.process import Service, Start
from tests.integration.scene import FAST, OTHER_TARGET, TARGET, WORKLOAD, device, info, request
from tests.integration.test_reading import readers_of
from tests.limit import HANG_S, wait_until

pytestmark = pytest.mark.in_turn("url")

MIB = 1 << 20
FLOOD = 64 * MIB  # what a client sends that nobody stops
# Limits that a test can wait for.
# Less than a body has by default, so that a limit that is not heeded is seen.
PATIENCE_S = 50.0
SHORT = {"PLEVEL_HEAD_S": "0.5", "PLEVEL_IDLE_S": "0.5", "PLEVEL_BODY_S": "1"}
ALL_COUNT = {"PLEVEL_PROXIES": ""}  # this host's addresses are limited as any other


def peak_bytes(service: Service) -> int:
    """The most memory that the process has had."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def sockets(service: Service) -> int:
    """Number of sockets that the process has open."""
    found = 0
    for file in Path(f"/proc/{service.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += str(file.readlink()).startswith("socket:")
    return found


class Raw:
    """A client that sends what it likes."""

    def __init__(self, service: Service) -> None:
        parts = urlsplit(service.url)
        assert parts.hostname is not None and parts.port is not None
        self.socket = socket.create_connection((parts.hostname, parts.port))
        self.socket.settimeout(PATIENCE_S)

    def send(self, data: bytes) -> bool:
        """Sends; False where the service has hung up."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)
            return True
        return False

    def flood(self, piece: bytes, most: int = FLOOD) -> int:
        """Send a piece again and again, until the service hangs up; return how much it sent."""
        sent = 0
        while sent < most and not self.is_answered() and self.send(piece):
            sent += len(piece)
        return sent

    def is_answered(self) -> bool:
        """True if data or the end has arrived."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def answer(self) -> bytes:
        """All that comes until the service hangs up."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while part := self.socket.recv(65536):
                data += part
        return data

    def status(self) -> int:
        """The status of the answer after which the service has hung up; 0 where there was none."""
        data = self.answer()
        return int(data.split()[1]) if data else 0

    def close(self) -> None:
        self.socket.close()


Dial = Callable[[Service], Raw]


@pytest.fixture
def dial() -> Iterator[Dial]:
    made: list[Raw] = []

    def connect(service: Service) -> Raw:
        made.append(Raw(service))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def begin(length: Any, path: str = "/v1/runs", more: str = "") -> bytes:
    """The head of a POST."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {length}\r\n{more}\r\n"
    ).encode()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "head, piece, status",
    [
        (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ", b"a" * 65536, 431),
        (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"x: a\r\n" * 10_000, 431),
        (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"x" * 65536, 431),
        (b"GET /", b"a" * 65536, 414),
        (b"", b"\r\n" * 32_768, 431),
        (b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x: a\r\n" * 10_000, 431),
        (b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ", b"a" * 65536, 431),
        (b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n1;", b"a" * 65536, 431),
    ],
    ids=["value", "headers", "name", "url", "blank lines", "trailers", "trailer", "chunk extension"],
)
def test_a_head_without_end_is_refused_and_takes_no_memory(
    sqlite_copy: str, start: Start, dial: Dial, head: bytes, piece: bytes, status: int
) -> None:
    service = start(sqlite_copy)
    before = peak_bytes(service)
    for _ in range(5):
        client = dial(service)
        client.send(head)
        assert client.flood(piece) < 16 * MIB  # what the buffers of two sockets hold
        answered = client.status()
        # A POST to a page may be answered before its body has ended.
        assert answered in ({status} if not head.startswith(b"POST") else {status, 404, 405, 0})
    assert peak_bytes(service) - before < 8 * MIB
    assert service.raw("GET", "/healthz").status_code == 200


@pytest.mark.parametrize("path", ["/v1/select", "/v1/records:import"])
def test_a_length_of_more_digits_than_python_reads_is_no_failure(
    sqlite_copy: str, start: Start, dial: Dial, path: str
) -> None:
    client = dial(start(sqlite_copy))
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {'4':0>5000}\r\n\r\n"
    client.send(head.encode() + b"abcd")
    assert client.status() in (400, 422)


def test_heads_without_end_on_many_connections_take_no_memory(
    url: str, start: Start, dial: Dial
) -> None:
    service = start(url)
    before = peak_bytes(service)
    clients = [dial(service) for _ in range(50)]
    for client in clients:
        client.send(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ")
    for client in clients:
        client.flood(b"a" * 65536, MIB)
        assert service.raw("GET", "/readyz").status_code == 200
    assert {c.status() for c in clients} == {431}
    assert peak_bytes(service) - before < 32 * MIB


def test_limits_of_urls_and_headers_are_settings(sqlite_copy: str, start: Start, dial: Dial) -> None:
    service = start(
        sqlite_copy, PLEVEL_MAX_URL_BYTES="200", PLEVEL_MAX_HEADERS="5", PLEVEL_MAX_HEAD_BYTES="1024"
    )

    def ask(path: str = "/healthz", headers: int = 0, size: int = 0) -> int:
        client = dial(service)
        some = "".join(f"x{i}: {'a' * size}\r\n" for i in range(headers))
        client.send(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{some}\r\n".encode())
        return client.status()

    assert ask() == 200
    assert ask("/healthz?namespace=" + 180 * "a") == 200
    assert ask("/healthz?namespace=" + 200 * "a") == 414
    assert ask(headers=3) == 200
    assert ask(headers=4) == 431
    assert ask(headers=1, size=900) == 200
    assert ask(headers=2, size=500) == 431


def test_a_refusal_is_a_problem_document(sqlite_copy: str, start: Start, dial: Dial) -> None:
    client = dial(start(sqlite_copy, PLEVEL_MAX_HEADERS="1"))
    client.send(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: a\r\n\r\n")
    head, _, body = client.answer().partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head
    assert f"content-length: {len(body)}".encode() in head
    assert b'"type":"urn:plevel:head-too-large"' in body
    assert b"1 header" in body


def test_requests_sent_ahead_of_their_answers_take_no_memory(
    sqlite_copy: str, start: Start, dial: Dial
) -> None:
    service = start(sqlite_copy)
    before = peak_bytes(service)
    for _ in range(5):
        client = dial(service)
        client.flood(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 2000, 8 * MIB)
        client.close()
    assert service.raw("GET", "/healthz").status_code == 200
    assert peak_bytes(service) - before < 16 * MIB


def test_a_few_requests_sent_ahead_are_answered_in_turn(
    sqlite_copy: str, start: Start, dial: Dial
) -> None:
    client = dial(start(sqlite_copy))
    client.send(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 4)
    client.send(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
    assert client.answer().count(b"HTTP/1.1 200 OK") == 5


@pytest.mark.full
def test_half_open_connections_are_closed_and_keep_nobody_out(
    url: str, start: Start, dial: Dial
) -> None:
    service = start(url, files=256, PLEVEL_HEAD_S="2")
    assert service.raw("GET", "/readyz").status_code == 200
    before = sockets(service)
    silent = [dial(service) for _ in range(600)]
    for i, client in enumerate(silent):
        if i % 2:
            client.send(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n")
    # Connections that were let in have two seconds for a request; then others are let in.
    wait_until(lambda: service_answers(service))
    wait_until(lambda: all(c.is_answered() for c in silent))
    assert {c.status() for c in silent} <= {0, 408, 503}
    wait_until(lambda: sockets(service) <= before)
    assert service.raw("GET", "/readyz").status_code == 200


def service_answers(service: Service) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{service.url}/readyz", timeout=5.0).status_code == 200
    return False


def test_one_address_gets_its_share_of_connections(sqlite_copy: str, start: Start, dial: Dial) -> None:
    service = start(sqlite_copy, PLEVEL_MAX_CONNECTIONS_PER_ADDRESS="8", **ALL_COUNT)
    service.http.close()
    held = [dial(service) for _ in range(8)]
    # They have been let in once they are answered.
    for client in held:
        client.send(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        wait_until(client.is_answered)
    refused = dial(service)
    assert refused.answer().startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    other = socket.create_connection(
        (urlsplit(service.url).hostname, urlsplit(service.url).port), source_address=("127.0.0.2", 0)
    )
    with other:
        other.settimeout(HANG_S)
        other.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
    held[0].close()
    wait_until(lambda: service_answers(service))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_proxy_is_not_limited_as_an_address(sqlite_copy: str, start: Start, dial: Dial, address: str) -> None:
    service = start(
        sqlite_copy, PLEVEL_HOST=address, PLEVEL_MAX_CONNECTIONS_PER_ADDRESS="4",
        PLEVEL_PROXIES=f"10.0.0.0/8, {address}",
    )
    for _ in range(12):
        client = dial(service)
        client.send(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        wait_until(client.is_answered)
        assert client.socket.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


def test_connections_in_all_are_limited(sqlite_copy: str, start: Start, dial: Dial) -> None:
    service = start(sqlite_copy, PLEVEL_MAX_CONNECTIONS="4")
    service.http.close()
    held = [dial(service) for _ in range(4)]
    for client in held:
        client.send(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        wait_until(client.is_answered)
    refused = dial(service)
    refused.send(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    head = refused.answer()
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"retry-after: 1\r\n" in head
    held[0].close()
    wait_until(lambda: service_answers(service))


def test_a_head_that_comes_slowly_is_refused(url: str, start: Start, dial: Dial) -> None:
    service = start(url, **SHORT)
    first, second, silent = dial(service), dial(service), dial(service)
    second.send(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    wait_until(second.is_answered)
    assert second.socket.recv(65536).startswith(b"HTTP/1.1 200")
    for client in (first, second):
        client.send(b"GET /healthz HTTP/1.1\r\nx: ")
        while not client.is_answered():  # each byte says that it lives
            client.send(b"a")
            time.sleep(0.05)
        assert client.status() == 408
    assert silent.answer() == b""


def test_a_body_that_does_not_come_is_refused(url: str, start: Start, dial: Dial) -> None:
    service = start(url, **SHORT)
    stalled = dial(service)
    body = encode(request())
    stalled.send(begin(len(body)) + body[:-1])
    assert stalled.status() == 408
    slow = dial(service)
    slow.send(begin(10_000))
    while not slow.is_answered():
        slow.send(b" ")
        time.sleep(0.05)
    assert slow.status() == 408
    _, _, err = service.close()
    assert "Traceback" not in err


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("path", "length", "stopped"),
    [
        ("/v1/runs", 1000, False),
        ("/v1/records:import?format=plevel", 1000, False),
        ("/v1/records:import?format=plevel", 10**6, False),
        ("/v1/records:import?format=plevel", 10**6, True),
    ],
)
def test_a_stalled_body_does_not_keep_the_service(
    url: str, start: Start, dial: Dial, path: str, length: int, stopped: bool
) -> None:
    """Told to stop, it tells the client so, and logs no trace."""
    service = start(url)
    client = dial(service)
    client.send(begin(length, path) + b"\n" * (2 * CHUNK if length > 2 * CHUNK else 10))
    if length > CHUNK:
        wait_until(lambda: readers_of(service.process.pid))
    if stopped:  # the process that reads hangs as well
        for pid in readers_of(service.process.pid):
            os.kill(pid, signal.SIGSTOP)
    # The service has begun on it once the next one is answered.
    assert service.raw("GET", "/healthz").is_success
    service.process.terminate()
    assert client.status() == 503
    code, _, err = service.close()
    assert code == 0
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 1, err


def test_what_is_sent_after_an_answer_is_not_waited_for(
    sqlite_copy: str, start: Start, dial: Dial
) -> None:
    client = dial(start(sqlite_copy, **SHORT))
    client.send(begin(10_000, "/nowhere"))
    while client.send(b" "):
        time.sleep(0.05)
    assert client.status() == 404


def test_an_import_may_take_as_long_as_it_comes(url: str, start: Start, dial: Dial) -> None:
    service = start(url, **SHORT)
    client = dial(service)
    pieces = [b"\n" * 65536] * 2 + [b"\n"] * 12
    length = sum(map(len, pieces))
    client.send(begin(length, "/v1/records:import?format=plevel", "connection: close\r\n"))
    for piece in pieces:  # over more than a second
        client.send(piece)
        time.sleep(0.15)
    assert client.status() == 200
    stalled = dial(service)
    stalled.send(begin(length, "/v1/records:import?format=plevel") + b"\n" * 65537)
    assert stalled.status() == 408


def test_slow_imports_of_one_client_leave_slots_to_others(sqlite_copy: str, start: Start, dial: Dial) -> None:
    store = Store(sqlite_copy)
    with store.write() as c:
        one, other = (token.create(c, name, [TokenScope.SUBMIT]).secret for name in ("one", "other"))
    store.close()
    service = start(sqlite_copy)
    slow = [dial(service) for _ in range(2 * IMPORTS)]
    for client in slow:
        client.send(begin(10**6, "/v1/records:import", f"authorization: Bearer {one}\r\n") + b"\n" * 65537)
    wait_until(lambda: len(readers_of(service.process.pid)) >= OF_CLIENT)
    quick = dial(service)
    quick.send(begin(10**5, "/v1/records:import", f"authorization: Bearer {other}\r\nconnection: close\r\n"))
    quick.send(b"\n" * 10**5)
    assert quick.status() == 422  # of no known format
    assert not any(client.is_answered() for client in slow)
    assert len(readers_of(service.process.pid)) <= OF_CLIENT + 1


def trickle(clients: list[Any], until: Callable[[], bool]) -> None:
    """Send each client's import some bytes all the time, but fewer than a slot is kept for."""
    began = time.monotonic()
    while not until():
        assert time.monotonic() - began < HANG_S
        for client in clients:
            client.send(b"\n")
        time.sleep(0.1)


def test_an_import_that_trickles_makes_way_for_others(url: str, start: Start, dial: Dial) -> None:
    service = start(url, **SHORT)
    small = dial(service)
    small.send(begin(1000, "/v1/records:import?format=plevel"))
    trickle([small], small.is_answered)
    answer = small.answer()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"send it again faster" in answer and b"other" not in answer
    slow = [dial(service) for _ in range(OF_CLIENT)]
    for client in slow:
        client.send(begin(10**6, "/v1/records:import?format=plevel"))
    over = time.monotonic() + 2.5  # than the limit
    trickle(slow, lambda: time.monotonic() > over)
    assert not any(client.is_answered() for client in slow)
    quick = dial(service)
    quick.send(begin(10**5, "/v1/records:import?format=plevel", "connection: close\r\n") + b"\n" * 10**5)
    trickle(slow, quick.is_answered)
    assert quick.status() == 200
    (ended,) = (client for client in slow if client.is_answered())  # one for one that waited
    answer = ended.answer()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"send it again later, faster, or in parts" in answer


def test_long_answers_outlast_all_limits(url: str, start: Start) -> None:
    service = start(url, **SHORT)
    asked = request(target=OTHER_TARGET)  # of which there is no device
    made = service.call("POST", "/v1/runs", asked, RunStatus)
    worker = service.register()
    with service.http.stream("GET", f"/v1/runs/{made.id}/events") as events:
        lines = events.iter_lines()
        assert next(lines) == "event: status"
        assert service.lease(worker, wait_s=3.0) is None
        service.raw("POST", f"/v1/runs/{made.id}/cancel")
        assert "event: end" in lines
    assert service.status(made.id).state is RunState.CANCELLED


def test_an_answer_that_nobody_takes_is_given_up(sqlite_copy: str, start: Start, dial: Dial) -> None:
    service = start(sqlite_copy, **SHORT)
    before = sockets(service)
    client = dial(service)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    # Answers that nobody reads: 10 MB, more than two sockets hold.
    ask = b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    for _ in range(100):
        client.send(ask * 2)
        time.sleep(0.01)
    wait_until(lambda: sockets(service) <= before)


def test_a_body_that_says_it_is_too_large_is_not_read(
    sqlite_copy: str, start: Start, dial: Dial
) -> None:
    client = dial(start(sqlite_copy, PLEVEL_MAX_REQUEST_BYTES="1024"))
    client.send(begin(1025, more="connection: close\r\n"))
    assert client.status() == 413


def test_an_upgrade_is_not_taken(sqlite_copy: str, start: Start, dial: Dial) -> None:
    service = start(sqlite_copy)
    client = dial(service)
    client.send(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
    client.flood(b"\x81\x05hello" * 1000, MIB)
    assert client.status() == 200
    _, _, err = service.close()
    assert err == ""


def test_what_is_no_http_gets_400_and_no_log(sqlite_copy: str, start: Start, dial: Dial) -> None:
    service = start(sqlite_copy)
    client = dial(service)
    client.send(b"\x16\x03\x01 hello\r\n\r\n")
    assert client.status() == 400
    _, _, err = service.close()
    assert err == ""


def test_handshakes_that_do_not_end_are_closed(
    sqlite_copy: str, start: Start, dial: Dial, tmp_path: Path
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this host, to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )
    service = start(
        sqlite_copy, PLEVEL_TLS_KEY=str(key), PLEVEL_TLS_CERT=str(certificate),
        PLEVEL_MAX_CONNECTIONS="8", **SHORT,
    )
    silent = [dial(service) for _ in range(20)]
    assert {c.answer() for c in silent} == {b""}
    context = ssl.create_default_context(cafile=str(certificate))
    assert httpx.get(f"{service.url}/healthz", verify=context).status_code == 200


def test_few_open_files_are_told(sqlite_copy: str, start: Start) -> None:
    _, _, err = start(sqlite_copy, files=256).close()
    assert "128 connections" in err
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256


def test_a_body_cut_off_is_one_line_of_log(url: str, start: Start, dial: Dial) -> None:
    service = start(url)
    for path in ("/v1/runs", "/v1/select", "/v1/leases", "/v1/workers"):
        client = dial(service)
        client.send(begin(100, path) + b'{"a":')
        client.close()
    # Its token is looked up after theirs: they have been read once it is answered.
    assert service.raw("GET", "/v1/workers").status_code == 200
    _, _, err = service.close()
    assert sorted(line.split()[2:4] for line in err.splitlines()) == [
        ["POST", "/v1/leases:"], ["POST", "/v1/runs:"], ["POST", "/v1/select:"], ["POST", "/v1/workers:"],
    ]


def test_a_revoked_token_ends_what_is_being_answered(url: str, start: Start) -> None:
    store = Store(url)
    with store.write() as c:
        revoked = token.create(c, "one", [TokenScope.ADMIN])
        kept = token.create(c, "other", [TokenScope.ADMIN])
    service = start(url)
    service.http.headers["authorization"] = f"Bearer {kept.secret}"
    made = service.call("POST", "/v1/runs", request(target=OTHER_TARGET), RunStatus)
    mine = {"authorization": f"Bearer {revoked.secret}"}
    answers: dict[str, int] = {}

    def ask(name: str, path: str, content: Any) -> None:
        with httpx.Client(base_url=service.url, headers=mine, timeout=HANG_S) as client:
            answers[name] = client.post(path, content=content).status_code

    with httpx.Client(base_url=service.url, headers=mine, timeout=HANG_S) as client:
        worker = decode(client.post("/v1/workers", content=encode(info())).content, Registered)
        asked = LeaseRequest(worker_id=worker.worker_id, device=device().identity, wait_s=30.0)
        poll = threading.Thread(target=ask, args=("lease", "/v1/leases", encode(asked)))
        poll.start()
        with (
            client.stream("GET", f"/v1/runs/{made.id}/events") as events,
            service.http.stream("GET", f"/v1/runs/{made.id}/events") as others,
        ):
            lines, other_lines = events.iter_lines(), others.iter_lines()
            assert next(lines) == next(other_lines) == "event: status"
            with store.write() as c:
                token.revoke(c, revoked.id)
            with pytest.raises(httpx.TransportError):
                list(lines)
            service.raw("POST", f"/v1/runs/{made.id}/cancel")
            assert "event: end" in other_lines
        poll.join()
    assert answers == {"lease": 401}
    store.close()
    _, _, err = service.close()
    assert "Traceback" not in err


def test_a_revoked_token_ends_exports_and_imports(url: str, start: Start) -> None:
    store = Store(url)
    own = Task(workload=WORKLOAD, target=TARGET, implementation=FAST.implementation, version=FAST.version)
    rows = [
        ImportedRecord(source="test", config_key=f'{{"n": {n}}}', samples_s=(n + 1.0,) * 50_000, task=own)
        for n in range(100)
    ]  # more than the buffers between the two ends hold
    import_items(store, rows)
    with store.write() as c:
        revoked = token.create(c, "one", [TokenScope.ADMIN])
    service = start(url)
    mine = {"authorization": f"Bearer {revoked.secret}"}
    began, ended = threading.Event(), threading.Event()
    answers: list[int | None] = []

    def upload() -> Iterator[bytes]:
        yield b"\n"
        began.set()
        ended.wait(HANG_S)
        yield b"\n"

    def import_it() -> None:
        try:
            with httpx.Client(base_url=service.url, headers=mine, timeout=HANG_S) as client:
                answers.append(client.post("/v1/records:import", content=upload()).status_code)
        except httpx.TransportError:
            answers.append(None)

    importing = threading.Thread(target=import_it)
    with (
        httpx.Client(base_url=service.url, headers=mine, timeout=HANG_S) as client,
        client.stream("GET", "/v1/records:export") as export,
    ):
        assert export.status_code == 200
        parts = export.iter_raw(1024)
        assert next(parts)
        importing.start()
        assert began.wait(HANG_S)
        made = client.post("/v1/runs", content=encode(request(target=OTHER_TARGET)))
        events = f"/v1/runs/{decode(made.content, RunStatus).id}/events"
        with client.stream("GET", events) as stream:
            with store.write() as c:
                token.revoke(c, revoked.id)
            with pytest.raises(httpx.TransportError):
                list(stream.iter_lines())
        # The rest of the export, unread until now, is more than the buffers hold.
        with pytest.raises(httpx.TransportError):
            list(parts)
    ended.set()
    importing.join()
    assert answers in ([401], [None])
    store.close()
    _, _, err = service.close()
    assert "Traceback" not in err


def test_a_stop_answers_all_long_polls_and_takes_no_more(sqlite_copy: str, start: Start, dial: Dial) -> None:
    """Their clients ask again at once."""
    service = start(sqlite_copy, PLEVEL_MAX_CONNECTIONS_PER_ADDRESS="0")
    asked = encode(LeaseRequest(worker_id=service.register(), device=device().identity, wait_s=60))
    poll = b"POST /v1/leases HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n%s" % (len(asked), asked)
    clients = [dial(service) for _ in range(600)]
    for client in clients:
        client.send(poll)
    # All have looked for a job: a poll that the service has not read when it stops is refused.
    looked = f"plevel_claim_seconds_count {len(clients)}.0"
    wait_until(lambda: looked in service.raw("GET", "/metrics").text)
    service.process.terminate()
    began = time.monotonic()
    for client in clients:
        client.send(poll)
    answers = [client.answer() for client in clients]
    status, _, said = service.close()
    assert (status, said) == (0, "")
    assert time.monotonic() - began < GRACE_S
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.count(b"HTTP/1.1 503 Service Unavailable\r\n") == answer.count(b"HTTP/1.1 ") - 1


def test_a_stop_refuses_what_it_cannot_answer_in_one_line_of_log(
    postgres_copy: str, start: Start, dial: Dial
) -> None:
    """Requests that wait for a table, which another program holds."""
    service = start(postgres_copy)
    assert service.raw("GET", "/v1/runs").is_success
    other = Store(postgres_copy)
    with other.write() as holding:
        holding.execute(sa.text("LOCK TABLE run IN ACCESS EXCLUSIVE MODE"))
        clients = [dial(service) for _ in range(80)]  # more than the threads of requests
        for client in clients:
            client.send(b"GET /v1/runs HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        # The first ones give up on the table before the service ends, and the others wait for it then.
        changing = [dial(service) for _ in range(80)]
        body = encode(request())
        head = b"POST /v1/runs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        for client in changing:
            client.send(head + body)
        wait_until(lambda: sockets(service) >= len(clients) + len(changing))
        time.sleep(0.5)
        service.process.terminate()
        statuses = {client.status() for client in clients}
        answers = [client.answer() for client in changing]
    status, _, said = service.close()
    other.close()
    assert (status, statuses) == (0, {503})
    cut = [answer for answer in answers if answer.startswith(b"HTTP/1.1 500 ")]
    # They may be made once the table is free: nobody is told to send one again.
    assert cut
    assert all(b"may have done what was asked" in answer and b"retry-after" not in answer.lower() for answer in cut)
    assert all(b"lock timeout" in answer for answer in answers if answer not in cut)
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if "have been cut off" in line]) <= 1


def test_a_signal_ends_it_though_slow_clients_hold_their_connections(
    url: str, start: Start, dial: Dial
) -> None:
    patient = {f"PLEVEL_{name}_S": "600" for name in ("HEAD", "IDLE", "BODY")}
    service = start(url, **patient)
    run = service.call("POST", "/v1/runs", request(), RunStatus)
    worker = service.register()
    held = {
        "nothing": b"",
        "half a head": b"GET /readyz HTTP/1.1\r\nhost: a\r\nx: ",
        "half a body": b"POST /v1/runs HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n{",
        "half an import": b"POST /v1/records:import HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n{",
        "an import without an end": b"POST /v1/records:import HTTP/1.1\r\nhost: a\r\n"
        b'transfer-encoding: chunked\r\n\r\n2\r\n{"\r\n',
        "a stream": f"GET /v1/runs/{run.id}/events HTTP/1.1\r\nhost: a\r\n\r\n".encode(),
        "a page's stream": f"GET /runs/{run.id}/events HTTP/1.1\r\nhost: a\r\n\r\n".encode(),
        "a long poll": b"POST /v1/leases HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s"
        % (len(asked := encode(LeaseRequest(worker_id=worker, device="nobody", wait_s=60))), asked),
        "answers that it does not read": b"GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n" * 16,
    }
    clients = {name: dial(service) for name in held}
    for name, begin in held.items():
        clients[name].send(begin)
    for name in ("a stream", "a page's stream", "answers that it does not read"):
        assert select.select([clients[name].socket], [], [], HANG_S)[0], name
    status, _, said = service.close()
    assert (status, said) == (0, "")


def told_by_half(service: Service, sent: bytes) -> bytes:
    """Send this, close this side of the connection, and read to the end."""
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port), timeout=HANG_S) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def plain(service: Service, method: str, path: str, body: bytes = b"") -> bytes:
    """A request as bytes."""
    host = urlsplit(service.url).netloc
    return f"{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("requests", [1, 3])
def test_a_client_that_closes_its_side_is_answered(service: Service, requests: int) -> None:
    told = told_by_half(service, plain(service, "GET", "/v1/workers") * requests)
    assert told.count(b"HTTP/1.1 200 OK") == requests
    assert told.count(b"connection: close") == 1
    assert told.endswith(b"}")


def test_an_answer_that_is_complete_reaches_a_client_that_closes_its_side(service: Service) -> None:
    """It may be written in the step of the event loop in which the end of the request is seen."""
    for _ in range(20):
        assert told_by_half(service, plain(service, "GET", "/v1/nothing")).startswith(b"HTTP/1.1 404 Not Found")


@pytest.mark.parametrize("path", ["/v1/runs/{}/events", "/runs/{}/live"])
def test_a_follower_that_has_left_is_not_kept(sqlite_copy: str, start: Start, path: str) -> None:
    service = start(sqlite_copy, PLEVEL_POLL_S="1", PLEVEL_TUNE="false")
    run = service.call("POST", "/v1/runs", request(), RunStatus)
    address = urlsplit(service.url)
    with contextlib.ExitStack() as stack:
        stays, leaves = (
            stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=HANG_S))
            for _ in range(2)
        )
        for client in (stays, leaves):
            client.sendall(plain(service, "GET", path.format(run.id)))
            while b"data: " not in client.recv(1 << 16):
                pass
        number = f":{leaves.getsockname()[1]:04X}"
        leaves.close()
        stays.setblocking(False)

        def is_told() -> bool:
            """Return whether the comment that is due for all after ten polls has come."""
            with contextlib.suppress(BlockingIOError):
                return b": still there" in stays.recv(1 << 16, socket.MSG_PEEK)
            return False

        def is_kept() -> bool:
            """Return whether the service has its side, as until it has written to a client that is gone."""
            return any(number in line.split()[2] for line in Path("/proc/net/tcp").read_text().splitlines())

        wait_until(lambda: is_told() or not is_kept())
        assert not is_kept()


def test_a_client_that_closes_its_side_waits_for_no_job(service: Service) -> None:
    """It may be gone altogether, which looks the same: it gets none."""
    worker_id = service.register()
    body = encode(LeaseRequest(worker_id=worker_id, device=device().identity, wait_s=60.0))
    began = time.monotonic()
    told = told_by_half(service, plain(service, "POST", "/v1/leases", body))
    assert told.endswith(b'{"leases":[]}')
    assert time.monotonic() - began < PATIENCE_S
