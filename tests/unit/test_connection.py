"""Connections of clients and workers: by which proxy, with which certificates, and errors that name the setting."""

from __future__ import annotations

import os
import re
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from plevel.client import Client, UnreachableError
from tests.port import free_port
from workers.__main__ import Options
from workers.__main__ import main as run_worker
from workers.client import Client as WorkerClient
from workers.connection import ConnectionSettingError, open_http, trusted_certificates

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, *map(str.upper, PROXIES), "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


class Here(BaseHTTPRequestHandler):
    """A service that is ready."""

    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Here) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:{}", "socks5://127.0.0.1:{}", "nonsense://x"])
def test_this_host_is_reached_without_a_proxy(
    name: str, proxy: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service that `plevel tune` starts, behind a company's proxy."""
    monkeypatch.setenv(name, proxy.format(free_port()))
    for host in ("127.0.0.1", "localhost"):
        with Client(f"http://{host}:{port}") as client:
            assert client.is_ready()
        with open_http(f"http://{host}:{port}") as worker:
            assert worker.get("/readyz").is_success


def test_other_hosts_are_reached_by_the_proxy(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    with Client("http://farm.invalid:8765") as client:
        assert client.is_ready()
    monkeypatch.setenv("no_proxy", "farm.invalid")
    with Client("http://farm.invalid:8765") as client:
        assert not client.is_ready()


def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "nonsense://127.0.0.1:1")
    with pytest.raises(UnreachableError, match="nonsense.*ALL_PROXY.*NO_PROXY"):
        Client("http://farm:8765")
    with pytest.raises(ConnectionSettingError, match="ALL_PROXY"):
        WorkerClient("http://farm:8765", threading.Event())


@pytest.mark.parametrize(
    ("name", "value"), [("HTTP_PROXY", "http://proxy:x"), ("no_proxy", "[::1]")]
)
def test_an_address_in_the_environment_is_not_taken_for_the_service_s(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UnreachableError, match="^a proxy of the environment cannot be used .*NO_PROXY"):
        Client("http://farm:8765")
    with pytest.raises(UnicodeEncodeError):
        Client("http://farm:8765", token="gehe\u00efm")


@pytest.mark.parametrize(
    "url",
    ["http://", "http://[", "http://farm:x", "http://me:s3cret@farm:99999", "http://me:p@s3cret@farm:x",
     "http://me:s3cret/s3cret@farm", "http://xn--a", "http://me:s3cret@farm..lab:1", f"http://{'a' * 64}"],
)
def test_an_address_that_is_none_is_said_without_its_password(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnreachableError, match="write http://host:port") as caught:
        Client(url)
    assert "s3cret" not in str(caught.value)
    assert run_worker(Options(url=url)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plevel worker: url ")


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_certificates_that_cannot_be_read_are_named(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with pytest.raises(UnreachableError, match=f"SSL_CERT_FILE {re.escape(str(path))}: no certificates"):
        Client("https://farm:8765")
    Client("http://farm:8765").close()  # which needs none


def test_the_system_s_certificates_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a company's own authority, which certifi does not know; but not beside a file that is named."""
    asked: list[bool] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: asked.append(True))
    trusted_certificates()
    assert asked == [True]
    import certifi

    monkeypatch.setenv("SSL_CERT_FILE", os.fspath(certifi.where()))
    trusted_certificates()
    assert asked == [True]


def test_a_service_that_a_proxy_does_not_reach_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("HTTP_PROXY", f"http://me:secret@{proxy}")
    with Client("http://farm:8765", patience_s=0) as client, pytest.raises(UnreachableError) as raised:
        client.runs()
    assert f"by the proxy http://{proxy}, which NO_PROXY may except it from" in str(raised.value)
    assert str(raised.value).endswith("or correct its URL")
    with Client(f"http://127.0.0.1:{free_port()}", patience_s=0) as client, pytest.raises(UnreachableError) as raised:
        client.runs()
    assert "proxy" not in str(raised.value)
