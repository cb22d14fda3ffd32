"""Every operation of the OpenAPI document with requests made from its own schemas: never a 5xx."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.process import Service

# Values that break what is not looked at: SQL's and JSON's limits, characters that no database keeps.
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, -(2**70), 1e308, 1e-320, "", "\0", "a\0b", "é" * 300, "'; --", "%",
    "\ud7ff", "x" * 5000, [], [[]], {}, {"": None}, [0] * 70, {"a": {"b": {"c": []}}},
)  # fmt: skip
PLAIN: tuple[str, ...] = (
    "dense", "filter", "float32[64,64]", "float32[m,64]", "cpu", "llvm -mcpu=znver4", "cuda -model=v100",
    "data", "weight", "dense_pack.cpu", "1.0",
)  # fmt: skip
# Streams that end when something happens, and what waits.
LONG = {("GET", "/v1/runs/{run_id}/events")}
METHODS = ("get", "post", "put", "patch", "delete")


class Maker:
    """Values of a JSON schema, now and then of another."""

    def __init__(self, schemas: dict[str, Any], seed: int, hostile: float) -> None:
        self._schemas = schemas
        self._hostile = hostile
        self.random = random.Random(seed)

    def make(self, schema: dict[str, Any], depth: int = 0) -> Any:
        pick = self.random
        if pick.random() < self._hostile:
            return pick.choice(HOSTILE)
        if "$ref" in schema:
            return self.make(self._schemas[schema["$ref"].rpartition("/")[2]], depth)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                return self.make(pick.choice(schema[name]), depth)
        if "enum" in schema:
            return pick.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        kind = schema.get("type", "object")
        return self._of_kind(pick.choice(kind) if isinstance(kind, list) else kind, schema, depth)

    def _of_kind(self, kind: str, schema: dict[str, Any], depth: int) -> Any:
        pick = self.random
        if kind == "integer":
            return pick.randint(*_range(schema, 0, 50))
        if kind == "number":
            return pick.uniform(*_range(schema, 0, 3))
        if kind == "boolean":
            return pick.random() < 0.5
        if kind == "null":
            return None
        if kind == "array":
            items = schema.get("items") or {"type": "string"}
            count = max(schema.get("minItems", 0), pick.randint(0, 2) if depth < 6 else 0)
            if "prefixItems" in schema:
                return [self.make(i, depth + 1) for i in schema["prefixItems"]]
            return [self.make(items, depth + 1) for _ in range(count)]
        if kind == "object":
            return self._object(schema, depth)
        some = "".join(pick.choices(string.ascii_letters, k=4))
        return pick.choice(PLAIN) if pick.random() < 0.8 else some

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        needed = schema.get("required", ())
        made = {
            name: self.make(part, depth + 1)
            for name, part in schema.get("properties", {}).items()
            if name in needed or (depth < 6 and self.random.random() < 0.5)
        }
        if "properties" not in schema:  # a target, a configuration, whatever
            made = self.random.choice(
                [{}, {"kind": "llvm", "mcpu": "znver4"}, {"kind": "cuda"}, {"x": 1, "y": [2, 3]}]
            )
        return made


def _range(schema: dict[str, Any], low: float, high: float) -> tuple[Any, Any]:
    low = schema.get("minimum", schema.get("exclusiveMinimum", low))
    return low, min(max(low, high), schema.get("maximum", schema.get("exclusiveMaximum", 1e9)))


@pytest.fixture
def client(url: str, tmp_path: Path) -> Iterator[httpx.Client]:
    started = Service(url, tmp_path)
    yield started.http
    started.close()


def operations(schema: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    found = [
        (method.upper(), path, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
        if method in METHODS and (method.upper(), path) not in LONG
    ]
    assert len(found) > 20
    return found


def ask(client: httpx.Client, maker: Maker, method: str, path: str, operation: dict[str, Any]) -> str:
    """Sends one request; what was wrong with the answer, empty where nothing was."""
    params: dict[str, str] = {}
    for parameter in operation.get("parameters", ()):
        value = maker.make(parameter["schema"])
        if parameter["in"] == "path":
            text = str(value) if not isinstance(value, str) or value.isalnum() else "x"
            path = path.replace(f"{{{parameter['name']}}}", text)
        elif parameter["in"] == "query" and maker.random.random() < 0.5:
            params[parameter["name"]] = str(value)
    options: dict[str, Any] = {"params": params}
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        if media == "application/json":
            options["json"] = maker.make(content["schema"])
            if "wait_s" in (options["json"] if isinstance(options["json"], dict) else ()):
                options["json"]["wait_s"] = 0
        else:
            options["content"] = bytes(maker.random.choices(range(256), k=50))
    answer = client.request(method, path, **options)
    declared = {int(code) for code in operation["responses"]}
    body = answer.text[:300]
    if answer.status_code >= 500:
        return f"{method} {path} {options!r:.600} gave {answer.status_code}: {body}"
    if answer.status_code >= 400 and "problem+json" not in answer.headers.get("content-type", ""):
        return f"{method} {path} {options!r:.600} gave no problem document: {body}"
    if answer.status_code < 300 and answer.status_code not in declared:
        return f"{method} {path}: {answer.status_code} is not documented"
    return ""


def test_no_request_is_too_much(client: httpx.Client, full: bool) -> None:
    schema = client.get("/openapi.json").json()
    rounds = 100 if full else 6
    faults = []
    for number, (method, path, operation) in enumerate(operations(schema)):
        for i in range(rounds):
            hostile = (0.0, 0.03, 0.2)[i % 3]
            maker = Maker(schema["components"]["schemas"], 1000 * number + i, hostile)
            fault = ask(client, maker, method, path, operation)
            if fault:
                faults.append(fault)
    assert not faults, "\n".join(faults)
