"""Every field of the bodies that clients write, with values that no reader or database takes: never a 5xx."""

from __future__ import annotations

import gzip
import json
import random
import re
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from strategy.record import encode, to_json
from tests.browser.seed import confirmation
from tests.integration.process import Start
from tests.integration.scene import CANDIDATES, TARGET, WORKLOAD, device, info, request
from tests.limit import HANG_S

pytestmark = pytest.mark.in_turn("url")

# As JSON's text, as some of them have no Python value.
VALUES = (
    b"null", b"true", b"-1", b"0.5", b"9223372036854775808", b"-9223372036854775809", b"1" * 500, b"1e400", b"1e308",
    b"5e-324", b"NaN", b"-Infinity", b'""', b'"a\\u0000b"', b'"\\ud800"', b'"\xff"', b'"\xed\xa0\x80"',
    b'"%s"' % (b"x" * 20_001), b'"\\u001b[31m\\r\\n"', b"[]", b"{}", b'{"":null}', b'{"\\ud800":1}', b'{"a\\u0000":1}',
    b"[" * 100_000 + b"]" * 100_000, b"[" * 900 + b"]" * 900, b'{"a":' * 200 + b"1" + b"}" * 200,
)
HERE = "@here@"


def bodies() -> dict[str, Any]:
    asked = {"workload": to_json(WORKLOAD), "target": to_json(TARGET), "candidates": to_json(CANDIDATES)}
    entry = {
        "entry": 0, "samples_s": [1.0, 2.0], "message": "", "build_s": 1.0, "code_digest": "a", "measured_at": 1.0,
        "drift": 0.1,
    }
    results = {
        "token": 1, "session": "s", "results": [entry], "environment": {"a": 1},
        "references": [{"samples_s": [1.0], "measured_at": 1.0, "state": {"load": 1.0}}],
    }
    return {
        "/v1/runs": to_json(request(timeout_s=10.0, until_gain=0.1, tuner="random")),
        "/v1/select": {**asked, "device": "d", "as_of": 1e9},
        "/v1/select:batch": {"requests": [asked]},
        "/v1/dispatch": asked,
        "/v1/evidence": {"workload": asked["workload"], "target": asked["target"], "device": "d"},
        "/v1/foreign/triton/best:batch": {"requests": [{"workload": 'triton.matmul(){"key": [1]}', "version": "v"}]},
        "/v1/models": {"op": "filter", "target": to_json(TARGET)},
        "/v1/workers": to_json(info(operators={"dense": {"a": 1}})),
        "/v1/leases": {"worker_id": 1, "device": "d"},
        "/v1/leases:report": {"reports": [{"lease_id": 1, "results": results}]},
        "/v1/leases/1/results": results,
        "/v1/leases/1/renew": {"token": 1, "timing": True},
        "/v1/leases/1/release": {"token": 1},
        "/v1/networks": to_json(confirmation()),
        "/v1/pauses": {"reason": "r", "device": device().identity, "starts_at": 4e9, "ends_at": 5e9},
        "/v1/devices:rename": {"old": "a", "new": "b"},
        "/v1/devices:move": {"device": "a", "token": "b"},
        "/v1/tokens": {"name": "n", "scopes": ["read"], "expires_in_s": 10.0},
    }


def variants(body: Any) -> Iterator[Any]:
    """The body with `HERE` in the place of each of its parts in turn."""
    yield HERE
    for key, inner in body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ():
        for changed in variants(inner):
            copy = body.copy()
            copy[key] = changed
            yield copy


def test_no_value_of_a_field_is_the_service_s_failure(start: Start, url: str, full: bool) -> None:
    service = start(url, PLEVEL_AUTH="open", PLEVEL_TUNE="false")
    service.raw("POST", "/v1/runs", encode(request()))
    service.register()
    cases = [
        (path, json.dumps(body).encode().replace(b'"%s"' % HERE.encode(), value))
        for path, whole in bodies().items() for body in variants(whole) for value in VALUES
    ]
    for path, body in cases if full else random.Random(0).sample(cases, 300):
        response = service.raw("POST", path, body)
        assert response.status_code < 500, (path, body[:500], response.text)


def forms(path: bytes, body: bytes) -> Iterator[bytes]:
    """A request in ways that no client of ours sends it."""
    length, close = b"content-length: %d\r\n" % len(body), b"host: 127.0.0.1\r\nconnection: close\r\n"
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    packed = gzip.compress(body)
    for version, head, sent in (
        (b"1.0", length, body), (b"1.0", b"", body), (b"2.0", close + length, body), (b"1.1", length, body),
        (b"1.1", close + b"content-encoding: gzip\r\ncontent-length: %d\r\n" % len(packed), packed),
        (b"1.1", close + b"content-length: %d\r\n" % (len(body) + 3), b"\xef\xbb\xbf" + body),
        (b"1.1", close + b"content-length: %d\r\n" % (len(body) + 2), body + b"{}"),
        (b"1.1", close + length + b"content-length: 1\r\n", body),
        (b"1.1", close + length + b"transfer-encoding: chunked\r\n", chunk),
        (b"1.1", close + b"transfer-encoding: gzip, chunked\r\n", chunk),
        (b"1.1", close + b"transfer-encoding: chunked\r\n", b"f" * 18 + b"\r\n" + body),
        (b"1.1", close + length + b"expect: nothing\r\n", body),
        (b"1.1", close + length + b"content-type: multipart/form-data; boundary=\xff\r\n", body),
        (b"1.1", close + length + b"authorization: Bearer \xff\r\n", body),
        (b"1.1", close + length + b"x-forwarded-for: \xff, [::1, fe80::1%%eth0\r\n", body),
        (b"1.1", close + length + b'if-none-match: \xff,,W/,"\r\n', body),
        (b"1.1", close + length + b"host: [::\r\n", body),
    ):
        yield b"POST %s HTTP/%s\r\n%s\r\n%s" % (path, version, head, sent)


def test_no_form_of_a_request_is_the_service_s_failure(start: Start, sqlite_copy: str) -> None:
    service = start(sqlite_copy, PLEVEL_AUTH="open", PLEVEL_TUNE="false")
    place = urlsplit(service.url)
    for path, body in ({**bodies(), "/v1/records:import?format=plevel": {}}).items():
        for sent in forms(path.encode(), encode(body)):
            with socket.create_connection((place.hostname, place.port), HANG_S) as client:
                client.sendall(sent)
                answer = client.recv(65536)
            assert re.match(rb"HTTP/1\.1 [1234]\d\d ", answer), (sent, answer)
    assert service.raw("GET", "/healthz").is_success
