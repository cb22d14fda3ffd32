"""Tokens: every endpoint under every scope, expiry and revocation, and who is let in without one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy as sa
from starlette.datastructures import Headers

from plevel.client import Client, ServiceError
from service.access import audit, auth, token
from service.access.auth import Actor, Authority
from service.api.certificate import Certificate
from service.api.direct import DirectRoutes
from service.api.guard import _check_origin, needed
from service.app import create_app
from service.errors import ForbiddenError, InvalidError, NotFoundError, TooManyError
from service.queue import fleet
from service.settings import Settings
from service.store.db import Store
from service.store.tables import TokenScope
from service.store.tables import device as device_table
from service.store.tables import token as token_table
from strategy.host import is_loopback
from strategy.record import Leases, Registered, Renewal, Results, decode, encode
from tests.certificate import make_certificates
from tests.command import run_command
from tests.integration.process import Start, refused
from tests.integration.scene import device, info, request, timed
from tests.limit import HANG_S
from tests.serve import serve

pytestmark = pytest.mark.in_turn("url")


def routes() -> list[tuple[str, str]]:
    """Every method and path that the service answers, with its parameters filled in."""
    found = set()
    for route in _flat(create_app(Settings(tune=False)).routes):
        path = re.sub(r"\{[^}]*\}", "1", route.path)
        found |= {(method, path) for method in route.methods}
    return sorted(found)


def _flat(listed: Any) -> Iterator[Any]:
    for route in listed:
        if isinstance(route, DirectRoutes):  # of the same paths
            continue
        inner = getattr(route, "original_router", None)
        yield from [route] if inner is None else _flat(inner.routes)


# The scope of each route, written down once more: a new route must be added here.
OPEN = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/static/1")}
WORKER = {
    ("POST", "/v1/workers"), ("POST", "/v1/workers/1/heartbeat"), ("DELETE", "/v1/workers/1"),
    ("POST", "/v1/leases"), ("POST", "/v1/leases/1/renew"), ("POST", "/v1/leases/1/results"),
    ("POST", "/v1/leases/1/release"), ("POST", "/v1/leases:report"),
}
SUBMIT = {
    ("POST", "/v1/runs"), ("POST", "/v1/runs/1/cancel"), ("POST", "/v1/records:import"),
    ("POST", "/v1/networks"),
    ("POST", "/runs/1/cancel"), ("POST", "/runs/1/again"), ("POST", "/runs/new"),
}
READ_BY_POST = {
    ("POST", "/v1/select"), ("POST", "/v1/select:batch"), ("POST", "/v1/dispatch"),
    ("POST", "/v1/evidence"), ("POST", "/v1/foreign/1/best:batch"),
}
ADMIN = {
    ("GET", "/v1/tokens"), ("POST", "/v1/tokens"), ("DELETE", "/v1/tokens/1"), ("GET", "/v1/audit"),
    ("POST", "/v1/pauses"), ("DELETE", "/v1/pauses/1"), ("POST", "/v1/devices:rename"),
    ("POST", "/v1/devices:move"),
    ("POST", "/v1/models"),
}


def expected(method: str, path: str) -> TokenScope | None:
    for scope, listed in ((None, OPEN), (TokenScope.WORKER, WORKER), (TokenScope.SUBMIT, SUBMIT),
                          (TokenScope.READ, READ_BY_POST), (TokenScope.ADMIN, ADMIN)):
        if (method, path) in listed:
            return scope
    assert method in ("GET", "HEAD"), f"{method} {path}: say in this test which scope it needs"
    return TokenScope.READ


@pytest.fixture
def secrets(store: Store) -> dict[str, str]:
    with store.write() as c:
        return {scope: token.create(c, f"a {scope}", [scope]).secret for scope in TokenScope}


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with serve(url) as place, httpx.Client(base_url=place, timeout=HANG_S) as client:
        yield client


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_there_are_routes() -> None:
    found = routes()
    assert len(found) > 40
    assert {*WORKER, *SUBMIT, *ADMIN} <= set(found)


@pytest.mark.full
def test_what_no_route_serves_needs_no_other_scope(secrets: dict[str, str], http: httpx.Client) -> None:
    for method, path, status in (
        ("POST", "/v1/selekt", 404), ("PUT", "/v1/runs", 405), ("DELETE", "/v1/coverage", 405),
    ):
        assert http.request(method, path).status_code == 401
        assert http.request(method, path, headers=bearer(secrets[TokenScope.READ])).status_code == status, path


@pytest.mark.parametrize(("method", "path"), routes())
def test_a_route_needs_what_it_is_known_to_need(method: str, path: str) -> None:
    assert needed(method, path) is expected(method, path)


def test_openapi_has_the_scope_and_the_refusals_of_each_operation(secrets: dict[str, str], http: httpx.Client) -> None:
    described = http.get("/openapi.json", headers=bearer(secrets[TokenScope.READ])).json()
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            scope = expected(method.upper(), re.sub(r"\{[^}]*\}", "1", path))
            assert operation.get("security") == (None if scope is None else [{"token": [scope]}, {}]), path
            assert ({"401", "403", "429"} <= operation["responses"].keys()) is (scope is not None), path
    assert "304" in described["paths"]["/v1/select"]["post"]["responses"]


def test_every_route_under_every_scope(secrets: dict[str, str], http: httpx.Client) -> None:
    for method, path in routes():
        wanted = expected(method, path)
        answer = http.request(method, path)
        if wanted is None:
            assert answer.status_code not in (401, 403), path
            continue
        assert answer.status_code == 401, (method, path, answer.text)
        assert answer.headers["www-authenticate"].startswith("Basic ")
        for scope, secret in secrets.items():
            if scope == TokenScope.ADMIN and (method, path) == ("DELETE", "/v1/tokens/1"):
                continue  # it would end the first of them
            status = http.request(method, path, headers=bearer(secret)).status_code
            allowed = scope in (wanted, TokenScope.ADMIN)
            assert (status in (401, 403)) is not allowed, (method, path, scope, status)


def test_paths_that_are_none_need_a_token_too(secrets: dict[str, str], http: httpx.Client) -> None:
    for path in ("/nowhere", "//v1/runs", "/V1/runs", "/v1/runs/", "/v1/leases%2f1"):
        assert http.get(path).status_code == 401, path
        assert http.post(path).status_code == 401, path
    assert http.put("/v1/runs", headers=bearer(secrets["submit"])).status_code in (403, 405)


def test_a_browser_sends_it_as_a_password(secrets: dict[str, str], http: httpx.Client) -> None:
    assert http.get("/", auth=("anybody", secrets["read"])).status_code == 200
    assert http.get("/", auth=("anybody", "guess")).status_code == 401
    coded = base64.b64encode(b"\xff\xfe")
    for header in (b"Basic %%%", b"Basic " + coded, b"Basic \xff\xfe", b"Bearer \xff", b"Bearer", b"x y z"):
        assert http.get("/v1/runs", headers=[(b"authorization", header)]).status_code == 401, header


def test_another_sites_page_changes_nothing(secrets: dict[str, str], http: httpx.Client) -> None:
    headers = bearer(secrets["admin"]) | {"origin": "http://evil.example"}
    answer = http.post("/v1/runs", headers=headers, content=encode(request()))
    assert answer.status_code == 403
    good = bearer(secrets["admin"]) | {"origin": str(http.base_url).rstrip("/")}
    assert http.post("/v1/runs", headers=good, content=encode(request())).status_code == 201


@pytest.mark.sample(2)
@pytest.mark.parametrize("text", ["[", "[::1", "a]", "http://["])
def test_a_host_or_an_origin_that_is_none_is_refused(secrets: dict[str, str], http: httpx.Client, text: str) -> None:
    own = bearer(secrets["admin"])
    for path in ("/healthz", "/v1/runs", "/v1/runs/1"):
        for headers in ({}, own):
            answer = http.get(path, headers=headers | {"host": text.removeprefix("http://")})
            assert (answer.status_code, answer.json()["type"]) == (400, "urn:plevel:malformed-request")
    assert http.post("/v1/runs", headers=own | {"origin": text}, content=encode(request())).status_code == 403
    described = http.get("/openapi.json", headers=own).json()["paths"]
    assert all("400" in operation["responses"] for of in described.values() for operation in of.values())


def test_an_origin_that_is_none_is_another_site_of_a_request_without_a_host() -> None:
    with pytest.raises(ForbiddenError, match="another site"):
        _check_origin(Headers({"origin": "http://["}))


def identify(authority: Authority, authorization: str | None, peer: str | None, host: str) -> Actor:
    """In a loop of its own, in another thread: a browser's loop may run in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, authority.identify(authorization, peer, host)).result()


def test_expired_and_revoked_tokens_open_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "REMEMBER_S", 0.0)
    authority = Authority(lambda: store, "auto", 100)

    def opens(secret: str) -> bool:
        try:
            identify(authority, f"Bearer {secret}", "10.0.0.1", "farm")
        except auth.UnauthorizedError:
            return False
        return True

    with store.write() as c:
        kept = token.create(c, "kept", [TokenScope.READ])
        brief = token.create(c, "brief", [TokenScope.READ], expires_in_s=1000)
        gone = token.create(c, "gone", [TokenScope.READ])
    assert opens(kept.secret) and opens(brief.secret) and opens(gone.secret)
    with store.write() as c:
        c.execute(sa.update(token_table).where(token_table.c.id == brief.id).values(expires_at=1.0))
        token.revoke(c, gone.id)
        at = {t.id: t.revoked_at for t in token.list_all(c)}
        token.revoke(c, gone.id)
        assert {t.id: t.revoked_at for t in token.list_all(c)} == at
        with pytest.raises(NotFoundError, match="token 4711"):
            token.revoke(c, 4711)
    assert (opens(kept.secret), opens(brief.secret), opens(gone.secret)) == (True, False, False)
    assert not opens(kept.secret + "x") and not opens("")
    with store.read() as c:
        stored = str(c.execute(sa.select(token_table)).all())
    assert not any(t.secret in stored for t in (kept, brief, gone))
    with store.write() as c, pytest.raises(InvalidError, match="scopes"):
        token.create(c, "nothing", [])
    for name, expires_in_s in (("", None), ("a\nb", None), ("x" * 201, None), ("never", 0.0), ("for ever", 1e30)):
        with store.write() as c, pytest.raises(InvalidError, match="name|expires"):
            token.create(c, name, [TokenScope.READ], expires_in_s)


@pytest.mark.parametrize("end", ["expiry", "revocation"])
def test_the_end_of_the_last_token_opens_nothing(store: Store, end: str) -> None:
    with store.write() as c:
        only = token.create(c, "only", [TokenScope.ADMIN], expires_in_s=1000)
        if end == "revocation":
            token.revoke(c, only.id)
        else:
            c.execute(sa.update(token_table).values(expires_at=1.0))
    with pytest.raises(auth.UnauthorizedError, match="no token was sent"):
        identify(Authority(lambda: store, "auto", 100), None, "127.0.0.1", "localhost")


def test_without_a_token_only_this_host_is_answered(store: Store) -> None:
    authority = Authority(lambda: store, "auto", 100)
    assert identify(authority, None, "127.0.0.1", "localhost") is auth.LOCAL
    for peer, host in (("10.0.0.1", "127.0.0.1"), ("127.0.0.1", "evil.example"), (None, "localhost")):
        with pytest.raises(auth.UnauthorizedError):
            identify(authority, None, peer, host)
    assert [is_loopback(h) for h in ("::1", "[::1]", "127.9.9.9", "localhost", "10.1.1.1", "a", "")] == [
        True, True, True, True, False, False, False,
    ]
    with pytest.raises(auth.UnauthorizedError, match="--token-file"):
        identify(Authority(lambda: store, "token", 100), None, "127.0.0.1", "localhost")


def test_requests_that_wait_for_their_identity_hold_one_thread(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share queries as well, though each has a token of its own."""
    with store.write() as c:
        known = [token.create(c, f"lab {n}", [TokenScope.READ]).secret for n in range(4)]
    authority = Authority(lambda: store, "auto", 100)
    asked: list[int] = []
    threads: list[int] = []
    find_each = token.find_each

    def find_slowly(connection: sa.Connection, digests: Any) -> dict[str, token.TokenInfo]:
        asked.append(len(digests))
        time.sleep(0.2)
        threads.append(threading.active_count())
        return find_each(connection, digests)

    monkeypatch.setattr(token, "find_each", find_slowly)

    async def ask(secret: str) -> str:
        try:
            return (await authority.identify(f"Bearer {secret}", "10.0.0.1", "farm")).name
        except auth.UnauthorizedError:
            return ""

    async def ask_all() -> list[str]:
        return await asyncio.gather(*(ask(known[n] if n < 4 else f"guess {n}") for n in range(500)))

    before = threading.active_count()
    with ThreadPoolExecutor(1) as thread:
        names = thread.submit(asyncio.run, ask_all()).result()
    assert names == [*(f"lab {n}" for n in range(4)), *[""] * 496]
    assert sum(asked) == 500 and len(asked) == 1
    assert max(threads) <= before + 2


def test_a_worker_token_speaks_for_its_own_workers_only(store: Store, http: httpx.Client) -> None:
    with store.write() as c:
        mine, other = (
            bearer(token.create(c, name, [TokenScope.WORKER]).secret) for name in ("mine", "other")
        )
        admin = bearer(token.create(c, "admin", [TokenScope.ADMIN]).secret)

    def post(path: str, headers: dict[str, str], body: Any = None) -> httpx.Response:
        return http.post(path, headers=headers, content=encode(body))

    run = post("/v1/runs", admin, request())
    assert run.status_code == 201
    worker_id = decode(post("/v1/workers", mine, info()).content, Registered).worker_id
    scene_device = device().identity
    ask = {"worker_id": worker_id, "device": scene_device}
    assert post(f"/v1/workers/{worker_id}/heartbeat", mine, {}).status_code == 204
    for stranger in (other, admin):
        assert post(f"/v1/workers/{worker_id}/heartbeat", stranger, {}).status_code == 404
        assert post("/v1/leases", stranger, ask).status_code == 404
    _enqueue(store, run.json()["id"])
    (held,) = decode(post("/v1/leases", mine, ask).content, Leases).leases
    renewal = Renewal(token=held.token)
    results = Results(token=held.token, session="s", results=(timed(held.job.entries[0]),), done=True)
    for stranger in (other, admin):
        for path, body in (("renew", renewal), ("results", results), ("release", renewal)):
            answer = post(f"/v1/leases/{held.id}/{path}", stranger, body)
            assert (answer.status_code, answer.json()["type"]) == (409, "urn:plevel:lease-lost")
    with store.write() as c:  # a token of its name takes its place
        mine = bearer(token.create(c, "mine", [TokenScope.WORKER]).secret)
    assert post(f"/v1/workers/{worker_id}/heartbeat", mine, {}).status_code == 204
    assert post("/v1/leases", mine, ask).status_code == 200
    assert post(f"/v1/leases/{held.id}/results", mine, results).status_code == 200
    assert http.delete(f"/v1/workers/{worker_id}", headers=other).status_code == 404
    assert http.delete(f"/v1/workers/{worker_id}", headers=mine).status_code == 204


def test_a_device_belongs_to_the_token_that_registered_it_until_it_is_moved(
    store: Store, http: httpx.Client
) -> None:
    with store.write() as c:
        mine, again, other = (
            bearer(token.create(c, name, [TokenScope.WORKER]).secret)
            for name in ("lab-7", "lab-7", "other")
        )
        admin = bearer(token.create(c, "admin", [TokenScope.ADMIN]).secret)

    def register(headers: dict[str, str], **values: Any) -> httpx.Response:
        return http.post("/v1/workers", headers=headers, content=encode(info(device(**values))))

    def move(headers: dict[str, str], place: str, name: str) -> httpx.Response:
        body = {"device": place, "token": name}
        return http.post("/v1/devices:move", headers=headers, json=body)

    place = device().identity
    first = register(mine)
    assert first.status_code == 201
    for stranger in (other, admin):
        refused = register(stranger, model="Model B")
        assert refused.status_code == 403
        assert "belongs to token 'lab-7'" in refused.json()["detail"]
        assert "plevel fleet move" in refused.json()["detail"]
    with store.read() as c:
        assert c.scalars(sa.select(device_table.c.model)).all() == ["Model A"]
    assert register(again).status_code == 201, "the token was replaced by one of its name"
    assert register(mine, identity="host-b/cpu:0").status_code == 201
    assert move(mine, place, "other").status_code == 403
    assert move(admin, place, "nobody").status_code == 404
    assert move(admin, "nowhere", "other").status_code == 404
    assert move(admin, place, "other").status_code == 204
    worker_id = decode(first.content, Registered).worker_id
    assert http.post(f"/v1/workers/{worker_id}/heartbeat", headers=mine).status_code == 404
    assert register(mine).status_code == 403
    assert register(other).status_code == 201
    done = http.get("/v1/audit", headers=admin).json()["entries"]
    assert {"action": "device.move", "detail": {"device": place, "token": "other"}}.items() <= done[0].items()


def test_without_tokens_devices_are_everybodys_until_one_registers_them(store: Store) -> None:
    with store.write() as c:
        fleet.register(c, info())
        one, other = (token.create(c, name, [TokenScope.WORKER]).id for name in ("one", "other"))
        fleet.register(c, info(), one)
        with pytest.raises(ForbiddenError):
            fleet.register(c, info(), other)
        fleet.register(c, info())  # the host's own, where tokens are not asked for
        with pytest.raises(ForbiddenError):
            fleet.register(c, info(), other)
        with pytest.raises(InvalidError, match="listed twice"):
            fleet.register(c, info(device(), device(model="Model B")))


def _enqueue(store: Store, run_id: int) -> None:
    from service.queue import job as jobs
    from service.tuning import run_status
    from strategy.record import SEARCH_POLICY, Phase
    from tests.integration.scene import configs

    with store.write() as c:
        first = run_status.status(c, run_id, 60.0).tasks[0]
        place = c.execute(
            sa.text("SELECT workload_id, target_id FROM task WHERE id = :id"), {"id": first.task_id}
        ).one()
        entries = [jobs.NewEntry(first.task_id, config) for config in configs(1)]
        jobs.enqueue(
            c, run_id, place.workload_id, place.target_id, Phase.SEARCH, entries, SEARCH_POLICY, seed=1
        )


def test_who_did_what_is_on_record(secrets: dict[str, str], http: httpx.Client) -> None:
    headers = bearer(secrets["submit"])
    run_id = http.post("/v1/runs", headers=headers, content=encode(request())).json()["id"]
    http.post(f"/v1/runs/{run_id}/cancel", headers=headers)
    http.post("/v1/records:import", headers=headers, content=b"")
    admin = bearer(secrets["admin"])
    made = http.post("/v1/tokens", headers=admin, content=encode({"name": "n", "scopes": ["read"]}))
    assert http.get("/v1/runs", headers=bearer(made.json()["secret"])).status_code == 200
    assert http.delete(f"/v1/tokens/{made.json()['id']}", headers=admin).status_code == 204
    log = http.get("/v1/audit", headers=admin).json()["entries"]
    assert [(e["actor"], e["action"]) for e in reversed(log) if e["action"] != "import"] == [
        ("a submit", "run.create"), ("a submit", "run.cancel"),
        ("a admin", "token.create"), ("a admin", "token.revoke"),
    ]
    assert made.json()["secret"] not in str(log)
    listed = http.get("/v1/tokens", headers=admin)
    assert "secret" not in listed.text and len(listed.json()["tokens"]) == 5


def test_a_user_of_the_database_is_on_record_too(store: Store) -> None:
    with store.write() as c:
        audit.note(c, audit.user(), "purge", records=3)
        (entry,) = audit.page(c, 10)
    assert entry.actor.startswith("user ")
    assert (entry.action, entry.detail) == ("purge", {"records": 3})


def test_the_rate_of_one_token_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(lambda: pytest.fail("the database is not asked"), "token", 5)
    clock = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)

    def spent() -> int:
        for n in range(100):
            try:
                authority.spend("one")
            except TooManyError:
                return n
        return 100

    assert spent() == 10  # a burst of twice the rate
    authority.spend("another")
    clock += 1.0
    assert spent() == 5


@pytest.mark.parametrize(("rate", "allowed"), [(4.0, 8 + 15), (0.25, 1)])
def test_a_steady_excess_over_the_rate_leaves_that_many(
    rate: float, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(lambda: pytest.fail("the database is not asked"), "token", rate)
    times = iter(100 + n / 16 for n in range(64))  # 16 a second, for four seconds
    monkeypatch.setattr(auth, "time", SimpleNamespace(monotonic=lambda: next(times)))  # other threads have a clock
    refused = 0
    for _ in range(64):
        try:
            authority.spend("one")
        except TooManyError:
            refused += 1
    assert 64 - refused == allowed


def test_an_address_that_guesses_is_refused_before_its_next_guess_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, url: str, secrets: dict[str, str]
) -> None:
    looked_up: list[str | None] = []
    identify = Authority.identify

    def count(self: Authority, authorization: str | None, peer: str | None, host: str) -> Any:
        looked_up.append(authorization)
        return identify(self, authorization, peer, host)

    monkeypatch.setattr(Authority, "identify", count)
    with serve(url, rate=1.0) as place, httpx.Client(base_url=place, timeout=HANG_S) as client:
        answers = [client.get("/v1/runs", headers=bearer(f"guess {i}")).status_code for i in range(50)]
    assert answers[0] == 401 and answers[-1] == 429
    assert answers.count(401) <= len(looked_up) < 25


def test_guesses_of_one_network_count_together(sqlite_copy: str, start: Start) -> None:
    with contextlib.closing(Store(sqlite_copy)) as store, store.write() as c:
        token.create(c, "reader", [TokenScope.READ])
    # On a socket of IPv6, to which clients of IPv4 come, too: the proxy is known by its address of IPv4.
    service = start(sqlite_copy, PLEVEL_HOST="::", PLEVEL_PROXIES="127.0.0.1", PLEVEL_RATE="1")
    with httpx.Client(base_url=f"http://127.0.0.1:{urlsplit(service.url).port}", timeout=HANG_S) as client:

        def guess(address: str, n: int) -> int:
            return client.get("/v1/runs", headers={**bearer(f"guess {n}"), "x-forwarded-for": address}).status_code

        assert 429 in [guess(f"2001:db8::{n:x}", n) for n in range(50)]
        assert guess("2001:db8:0:1::1", 51) == guess("192.0.2.1", 52) == 401


def test_too_many_requests_are_told_to_wait(url: str, secrets: dict[str, str]) -> None:
    with serve(url, rate=0.001) as place, httpx.Client(base_url=place, timeout=HANG_S) as client:
        assert client.get("/v1/runs", headers=bearer(secrets["read"])).status_code == 200
        answer = client.get("/v1/runs", headers=bearer(secrets["read"]))
        assert answer.status_code == 429
        seconds = int(answer.headers["retry-after"])
        assert 990 < seconds <= 1000
        assert answer.json()["type"] == "urn:plevel:too-many"
        assert f"wait {seconds} seconds" in answer.json()["detail"]


def test_a_scope_is_named_that_is_missing() -> None:
    with pytest.raises(ForbiddenError, match=r"'w' has scope worker, this request needs submit: .*--scope"):
        Actor("w", frozenset({TokenScope.WORKER})).check(TokenScope.SUBMIT)


# Real processes


def plevel(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`plevel …` with nothing else set, in this process."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PLEVEL_")}
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, clean | environment, clear=True),
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
    ):
        code = run_command(*arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def test_off_this_host_a_service_needs_a_token(
    start: Start, sqlite_copy: str, tmp_path: Path
) -> None:
    off = ("--database", sqlite_copy, "--port", "0", "--host", "0.0.0.0")
    assert "plevel token create" in refused(*off)
    assert "auth open" in refused(*off, "--auth", "open")
    assert "only one is given" in refused(*off, "--tls-cert", "x.pem")
    made = plevel("token", "create", "ops", "--scope", "read", "--scope", "admin", "--expires", "1d",
                  "--database", sqlite_copy)
    assert made.returncode == 0, made.stderr
    secret = tmp_path / "secret"
    secret.write_text(made.stdout)
    service = start(sqlite_copy, PLEVEL_HOST="0.0.0.0")
    assert service.raw("GET", "/v1/runs").status_code == 401
    asked = ("token", "list", "--url", service.url)
    listed = plevel(*asked, PLEVEL_TOKEN_FILE=str(secret))
    assert "valid for" in listed.stdout and "admin, read" in listed.stdout
    refusal = plevel(*asked)
    assert (refusal.returncode, len(refusal.stderr.splitlines())) == (1, 1)
    assert "PLEVEL_TOKEN_FILE" in refusal.stderr
    with Client(service.url, token=made.stdout.strip()) as client:
        assert client.runs() == ()
        (entry,) = client.tokens()
        assert (entry["name"], entry["revoked_at"]) == ("ops", None)
        with pytest.raises(ServiceError, match="token 4711"):
            client.revoke_token(4711)
    code, _, err = service.close()
    assert code == 0
    assert "tokens are sent unencrypted" in err


def test_off_this_host_a_service_that_wants_tokens_waits_for_the_first(
    start: Start, sqlite_copy: str, tmp_path: Path
) -> None:
    service = start(sqlite_copy, PLEVEL_HOST="0.0.0.0", PLEVEL_AUTH="token")
    assert service.raw("GET", "/v1/runs").status_code == 401
    made = plevel("token", "create", "ops", "--scope", "read", "--database", sqlite_copy)
    assert made.returncode == 0, made.stderr
    asked = ("runs", "--url", service.url)
    listed = plevel(*asked, PLEVEL_TOKEN=made.stdout)
    assert (listed.returncode, listed.stdout) == (0, "no runs yet\n"), listed.stderr
    other = tmp_path / "other"
    other.write_text("plevel_other")
    assert plevel(*asked, PLEVEL_TOKEN=made.stdout, PLEVEL_TOKEN_FILE=str(other)).returncode == 1
    worker = subprocess.run(
        [sys.executable, "-m", "plevel", "worker", "--url", service.url, "--threads", "1"],
        env={**os.environ, "PLEVEL_TOKEN": made.stdout.strip(), "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )
    assert (worker.returncode, "has scope read, this request needs worker" in worker.stderr) == (1, True), worker.stderr


def test_a_certificate_makes_it_https(start: Start, sqlite_copy: str, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this host, to make a certificate with")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj",
         "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )
    bad = ("--database", sqlite_copy, "--port", "0", "--tls-cert", str(key), "--tls-key", str(key))
    assert "not a certificate" in refused(*bad)
    service = start(sqlite_copy, PLEVEL_TLS_CERT=str(certificate), PLEVEL_TLS_KEY=str(key))
    assert service.url.startswith("https://")
    context = ssl.create_default_context(cafile=str(certificate))
    assert httpx.get(f"{service.url}/v1/runs", verify=context).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/v1/runs")
    listed = plevel("status", "--url", service.url, SSL_CERT_FILE=str(certificate))
    assert listed.returncode == 0, listed.stderr


def test_a_renewed_certificate_is_served(start: Start, sqlite_copy: str, tmp_path: Path) -> None:
    made = []
    for folder in (tmp_path / "before", tmp_path / "after"):
        folder.mkdir()
        made.append(make_certificates(folder))
    chain, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(of: str, path: Path, which: int) -> None:
        part = path.with_suffix(".part")
        part.write_bytes(made[which][of].read_bytes())
        part.replace(path)

    put("certificate", chain, 0)
    put("key", key, 0)
    service = start(sqlite_copy, PLEVEL_TLS_CERT=str(chain), PLEVEL_TLS_KEY=str(key))
    at = urlsplit(service.url)
    assert at.hostname is not None and at.port is not None

    def serves(which: int) -> bool:
        served = ssl.get_server_certificate((at.hostname, at.port), timeout=HANG_S)
        return ssl.PEM_cert_to_DER_cert(served) == ssl.PEM_cert_to_DER_cert(made[which]["certificate"].read_text())

    assert serves(0)
    put("certificate", chain, 1)
    assert serves(0)  # as the key is another's
    put("key", key, 1)
    assert serves(1)
    _, _, err = service.close()
    assert err.count("serving the certificate from before") == 1


def test_a_certificate_is_read_again_once_only_its_permissions_change(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    key, content = made["key"], made["key"].read_bytes()
    certificate = Certificate(made["certificate"], key)
    before = certificate.current()
    key.write_bytes(bytes(len(content)))  # cannot be read, as if it were another user's
    failed = key.stat()
    assert certificate.current() is before
    key.write_bytes(content)
    os.utime(key, ns=(failed.st_atime_ns, failed.st_mtime_ns))
    while key.stat().st_ctime_ns == failed.st_ctime_ns:
        key.chmod(0o600)
    assert certificate.current() is not before


def test_requests_are_watched_after_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = [RuntimeError("can't start new thread")]

    def find(self: Authority, ids: set[int]) -> set[int]:
        if errors:
            raise errors.pop()
        return set()

    monkeypatch.setattr(Authority, "_find_good", find)
    monkeypatch.setattr(auth, "REMEMBER_S", 0.02)
    authority = Authority(mock.Mock(), "token", 1.0)

    async def watch() -> None:
        ended = asyncio.Event()
        with authority.attend(Actor("lab", frozenset(), token_id=3), lambda error: ended.set()):
            watching = asyncio.create_task(authority.watch())
            await asyncio.wait_for(ended.wait(), HANG_S)
            watching.cancel()

    asyncio.run(watch())
    assert not errors
