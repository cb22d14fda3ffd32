"""GETs of the hooks: requests as the client sends them, over one connection that is opened again once it has ended."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from plevel.client import Client, ServiceError, UnreachableError
from plevel.hooks.lean_client import LeanClient
from strategy.workload import Workload
from tests.limit import HANG_S
from tests.port import free_port

GOOD = b'{"answers":[{"config":{"B":1}}],"failed":[]}'
ASKED = Workload("triton.k", (), {"key": ["é &=+", 1]})


def answer(body: bytes = GOOD, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Peer:
    """A server that sends prepared answers, each connection the next ones, and closes it after the last."""

    def __init__(self, *connections: list[bytes]) -> None:
        self.heads: list[list[bytes]] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, args=(connections,))
        self._thread.start()

    def _serve(self, connections: tuple[list[bytes], ...]) -> None:
        for answers in connections:
            connection, _ = self._socket.accept()
            with connection:
                connection.settimeout(HANG_S)
                for one in answers:
                    self.heads.append(connection.recv(1 << 16).split(b"\r\n"))
                    connection.sendall(one)

    def close(self) -> None:
        self._thread.join(HANG_S)
        self._socket.close()


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def make(*connections: list[bytes]) -> Peer:
        made.append(Peer(*connections))
        return made[-1]

    yield make
    for one in made:
        one.close()


def lean(url: str, **more: str) -> LeanClient:
    return LeanClient(url, timeout_s=HANG_S, **more)


def ask(client: Client) -> dict:
    return client.foreign_best("triton", ASKED, device_model="NVIDIA H100", failures=True, limit=7)


def test_its_requests_are_those_of_the_client(peer: Callable[..., Peer]) -> None:
    one = peer([answer()], [answer()])
    for make in (lean, Client):
        with make(f"{one.url}/under/", token="s3cret", namespace="n.1") as client:
            assert ask(client)["answers"] == [{"config": {"B": 1}}]
    ours, theirs = one.heads
    assert ours[0] == theirs[0]
    assert ours[0].startswith(b"GET /under/v1/foreign/triton/best?namespace=n.1&workload=")
    names = (b"host:", b"authorization:")
    assert [h for h in map(bytes.lower, theirs) if h.startswith(names)] == [
        h for h in map(bytes.lower, ours) if h.startswith(names)
    ]


def test_one_connection_is_kept_and_opened_again_once_it_has_ended(peer: Callable[..., Peer]) -> None:
    one = peer([answer(), answer()], [answer()])  # a fourth connection would be refused
    with lean(one.url) as client:
        assert [len(ask(client)["answers"]) for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("sent", [b"", b"SSH-2.0\r\n", answer()[:-5]])
def test_what_is_no_answer_is_an_absent_service(peer: Callable[..., Peer], sent: bytes) -> None:
    one = peer([sent], [answer()])
    with lean(one.url) as client:
        with pytest.raises(UnreachableError, match=r"(?s)no service answers at.* or correct its URL$"):
            ask(client)
        assert ask(client)["answers"]  # the next connection is its own
    with pytest.raises(UnreachableError, match="refused"):
        ask(lean(f"http://127.0.0.1:{free_port()}"))


def test_a_refusal_is_the_clients(peer: Callable[..., Peer]) -> None:
    problem = b'{"type":"x","title":"forbidden","status":403,"detail":"needs scope read"}'
    one = peer([answer(problem, "403 Forbidden"), answer(b"<html>", "502 Bad Gateway"), answer(b"[1]")])
    with lean(one.url) as client:
        with pytest.raises(ServiceError, match="needs scope read") as refused:
            ask(client)
        assert refused.value.status == 403
        with pytest.raises(ServiceError, match="is no plevel service"):
            ask(client)
        with pytest.raises(ServiceError, match="unexpected answer"):
            ask(client)


def test_a_proxy_and_a_password_of_the_url_are_used(
    peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = peer([answer()], [answer()], [answer()])
    with lean(one.url.replace("http://", "http://user:pw@")) as client:
        assert ask(client)["answers"]
    monkeypatch.setenv("http_proxy", one.url)
    with lean("http://farm:8765") as client:
        assert ask(client)["answers"]
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with lean(one.url) as client:
        assert ask(client)["answers"]
    assert any(h.lower().startswith(b"authorization: basic") for h in one.heads[0])
    assert [heads[0].split()[1].partition(b"/v1")[0] for heads in one.heads] == [
        b"", b"http://farm:8765", b"",
    ]
