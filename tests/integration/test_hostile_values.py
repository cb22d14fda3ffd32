"""Every field of the bodies that clients write, with values that no reader or database takes: never a 5xx."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from strategy.record import encode, to_json
from tests.integration.process import Start
from tests.integration.scene import CANDIDATES, TARGET, WORKLOAD, device, info, request

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
