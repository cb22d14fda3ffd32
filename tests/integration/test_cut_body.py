"""A body that is cut in the middle is one line of the log, whatever route it was for."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from tests.integration.process import Service, Start


@pytest.mark.parametrize(
    ("path", "length"),
    [("/v1/runs", 1000), ("/v1/select", 1000), ("/v1/records:import", 1000), ("/v1/records:import", 10**6)],
)
def test_one_line(start: Start, sqlite_copy: str, path: str, length: int) -> None:
    service: Service = start(sqlite_copy)
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(
            f"POST {path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: {length}\r\n\r\n{{".encode()
        )
        client.shutdown(socket.SHUT_WR)
        while client.recv(1000):
            pass
    assert service.raw("GET", "/v1/records").is_success
    service.close()
    lines = service._err.read_text().splitlines()
    assert len(lines) == 1, lines
    assert f"POST {path}" in lines[0]
    assert "body" in lines[0]
