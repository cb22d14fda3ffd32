"""The connection of other tuners' processes: no result is lost or stored twice, and the tool never waits."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plevel.client import Client, ServiceError, UnreachableError
from plevel.hooks import known, spool
from plevel.hooks import reporter as module
from plevel.hooks.reporter import Reporter
from plevel.hooks.settings import is_off
from plevel.hooks.spool import Spool
from service.access import token
from service.store.db import Store
from strategy.workload import Workload
from tests.integration.process import Service, Start
from tests.limit import HANG_S
from tests.port import free_port

pytestmark = pytest.mark.in_turn("url")

COUNT = 20


def line(i: int, kernel: str = "k") -> dict:
    candidates = [{"config": {"B": i}, "samples_s": [1e-3 + i * 1e-6]}]
    return {
        "tool": "triton", "kernel": kernel, "attrs": {"key": [i]}, "device_model": "NVIDIA H100",
        "candidates": candidates,
    }


def encoded(i: int) -> bytes:
    return module._encode({"kind": "foreign", **line(i)}) + b"\n"


def problem(i: int, kernel: str = "k") -> Workload:
    return Workload(f"triton.{kernel}", (), {"key": [i]})


def stored(url: str, namespace: str | None = None) -> list[int]:
    with Client(url, namespace=namespace) as client:
        found = client.iter_records(source="triton")
        return sorted(r["config"]["B"] for r in found)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REST_S", 0.0)


def test_reports_arrive_and_questions_are_answered(service: Service, tmp_path: Path) -> None:
    url = str(service.http.base_url)
    reporter = Reporter(url, namespace="hooks.a", folder=tmp_path / "spool")
    for i in range(COUNT):
        reporter.report(line(i))
    assert reporter.flush(HANG_S)
    assert stored(url, "hooks.a") == list(range(COUNT))
    found = reporter.best("triton", problem(3), device_model="NVIDIA H100")
    assert found is not None
    assert found["answers"][0]["config"] == {"B": 3}
    assert found["answers"][0]["worker"] == reporter.worker
    assert len(reporter.kernels("triton", 7)) == 7
    reporter.close()
    assert not (tmp_path / "spool").exists()


def test_without_a_service_the_tool_goes_on_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, quick: None
) -> None:
    reporter = Reporter(f"http://127.0.0.1:{free_port()}", folder=tmp_path)
    with caplog.at_level(logging.WARNING):
        for i in range(3):
            reporter.report(line(i))
            assert reporter.flush(HANG_S)
            assert reporter.best("triton", problem(i)) is None
            assert reporter.kernels("triton", 3) == []
        reporter.close()
    assert len(caplog.records) == 1
    assert "tuning goes on without plevel" in caplog.text
    (kept,) = tmp_path.iterdir()
    assert len(kept.read_bytes().splitlines()) == 3


def test_a_service_that_dies_in_mid_put_gets_everything_once(
    start: Start, url: str, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed in the midst of a report's body, then after it stored one and before it said so."""
    services = [start(url)]
    reporter = Reporter(services[0].url, folder=tmp_path / "spool")
    # The same service at another address.
    reporter._client = lambda: Client(services[-1].url, patience_s=0.0)
    put = Client.import_records

    def halved(data: bytes) -> Iterator[bytes]:
        yield data[: len(data) // 2]
        services[-1].kill()
        yield data[len(data) // 2 :]

    def in_the_midst(self: Client, parts: Iterable[bytes], **options: Any) -> dict[str, Any]:
        return put(self, halved(b"".join(parts)), **options)

    def before_the_answer(self: Client, parts: Iterable[bytes], **options: Any) -> dict[str, Any]:
        assert put(self, parts, **options)["new"] > 0
        services[-1].kill()
        raise UnreachableError("the connection was reset")

    for number, dies in enumerate((in_the_midst, before_the_answer, put)):
        monkeypatch.setattr(Client, "import_records", dies)
        reporter.report(line(number))
        assert reporter.flush(HANG_S)
        reporter.close()  # a process that ends; the next one sends what it kept
        assert bool(list((tmp_path / "spool").glob("*.ndjson"))) is (dies is not put)
        if dies is not put:
            services.append(start(url))
    assert stored(services[-1].url) == [0, 1, 2]


BOTH = """
import json, sys
from pathlib import Path
from plevel.hooks.reporter import Reporter
from strategy.foreign import foreign_workload

url, folder = sys.argv[1:]
reporter = Reporter(url, namespace="hooks.b", folder=Path(folder))
for line in json.load(sys.stdin):
    reporter.report(line)
    asked = foreign_workload(line["tool"], line["kernel"], line["attrs"])
    assert reporter.best("triton", asked, device_model="NVIDIA H100", limit=1000) is not None
assert reporter.flush(60)
"""


def test_two_processes_at_once_store_nothing_twice(start: Start, url: str, tmp_path: Path) -> None:
    """Both put into one kernel and ask for it, and deliver what a third had kept, and reports that overlap."""
    service, spool = start(url), tmp_path / "spool"
    away = Reporter(f"http://127.0.0.1:{free_port()}", namespace="hooks.b", folder=spool)
    away._spool = Spool(spool, f"{service.url} hooks.b")
    away._keep(b"".join(encoded(i) for i in range(5)))
    away._spool.close()
    root = Path(__file__).parents[2]
    both, own = [], [*range(COUNT, 2 * COUNT)]
    for who in "ab":
        lines = [line(i) for i in range(COUNT)]
        for i in own:
            mine = {"config": {"B": i, "by": who}, "samples_s": [1e-3 + (i - COUNT) * 1e-6]}
            lines.append({**line(0), "candidates": [mine]})
        command = [sys.executable, "-c", BOTH, service.url, str(spool)]
        both.append(subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, text=True))
        with both[-1].stdin as given:
            json.dump(lines, given)
    assert [p.wait(HANG_S) for p in both] == [0, 0]
    assert stored(service.url, "hooks.b") == sorted([*range(COUNT), *own, *own])
    with Client(service.url, namespace="hooks.b") as client:
        found = client.foreign_best("triton", problem(0), limit=1000)["answers"]
    assert len(found) == 1 + 2 * COUNT
    assert found[0]["median_s"] == 1e-3
    assert list(spool.glob("*.ndjson")) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_reports_by_itself(service: Service, tmp_path: Path) -> None:
    url = str(service.http.base_url)
    reporter = Reporter(url, namespace="hooks.c", folder=tmp_path)
    reporter.report(line(0))
    assert reporter.flush(HANG_S)
    child = os.fork()
    if child == 0:
        reporter.report(line(1))
        done = reporter.flush(HANG_S)
        os._exit(0 if done else 1)
    assert os.waitpid(child, 0)[1] == 0
    reporter.close()
    assert stored(url, "hooks.c") == [0, 1]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_reports_of_a_child_that_ends_without_atexit_arrive(service: Service, tmp_path: Path) -> None:
    url = str(service.http.base_url)
    reporter = Reporter(url, namespace="hooks.h", folder=tmp_path)
    child = multiprocessing.get_context("fork").Process(target=reporter.report, args=(line(1),))
    child.start()
    child.join(HANG_S)
    assert child.exitcode == 0
    assert stored(url, "hooks.h") == [1]


def test_a_process_that_only_asks_delivers_what_another_kept(service: Service, tmp_path: Path) -> None:
    url = str(service.http.base_url)
    before, asks = (Reporter(url, namespace="hooks.i", folder=tmp_path) for _ in range(2))
    before._keep(encoded(0))
    before._spool.close()
    assert asks.best("triton", problem(1)) is not None
    assert asks.flush(HANG_S)
    assert stored(url, "hooks.i") == [0]
    assert list(tmp_path.iterdir()) == []


def test_a_refused_report_is_told_and_not_sent_again(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = Reporter(str(service.http.base_url), namespace="hooks.d", folder=tmp_path)
    reporter.report({**line(1), "device_model": ""})
    assert reporter.flush(HANG_S)
    reporter.close()
    assert "a result was rejected: the file names no device" in caplog.text
    assert list(tmp_path.glob("*.ndjson")) == []


def test_each_scope_opens_its_half(
    start: Start, sqlite_copy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused questions stop no reports, and reports that are refused for now wait for a token that may send them."""
    scopes = ["submit"], ["read"], ["read", "submit"]
    with contextlib.closing(Store(sqlite_copy)) as store, store.write() as c:
        secrets = [token.create(c, "t", some).secret for some in scopes]
    url = str(start(sqlite_copy, PLEVEL_AUTH="token").http.base_url)
    submits, reads, both = (Reporter(url, token=s, folder=tmp_path / "spool") for s in secrets)
    assert submits.best("triton", problem(0), device_model="NVIDIA H100") is None
    assert "scope read" in caplog.text
    for reporter, i in (submits, 0), (reads, 1):
        reporter.report(line(i))
        assert reporter.flush(HANG_S)
        reporter.close()
    assert [block(reads, i) for i in range(2)] == [0, None]
    both.report(line(2))
    assert both.flush(HANG_S)
    assert [block(both, i) for i in range(3)] == [0, 1, 2]
    both.close()
    assert len(caplog.records) == 2  # one of each token that is refused


def test_the_token_comes_from_the_environment_and_from_its_file_first(
    start: Start, sqlite_copy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(Store(sqlite_copy)) as store, store.write() as c:
        secret = token.create(c, "t", ["read", "submit"]).secret
    url = str(start(sqlite_copy, PLEVEL_AUTH="token").http.base_url)
    (tmp_path / "token").write_text(f"{secret}\n")
    for number, given in enumerate(
        ({"PLEVEL_TOKEN": secret}, {"PLEVEL_TOKEN": "another", "PLEVEL_TOKEN_FILE": str(tmp_path / "token")})
    ):
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        with contextlib.closing(Reporter(url, folder=tmp_path / "spool")) as reporter:
            reporter.report(line(number))
            assert reporter.flush(HANG_S)
            assert block(reporter, number) == number
    (tmp_path / "token").write_text("")
    with pytest.raises(UnreachableError, match="PLEVEL_TOKEN_FILE"):
        Reporter(url, folder=tmp_path / "spool")


@pytest.mark.parametrize(
    ("status", "kind", "kept"),
    [(404, "", 1), (405, "", 1), (429, "too-many", 1), (422, "invalid", 0), (422, "", 1), (400, "", 1), (413, "", 0)],
)
def test_only_a_report_at_fault_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, kind: str, kept: int
) -> None:
    """Such as no 400 of a proxy, which may take a request for one of another protocol."""
    def refuse(*of: object, **more: object) -> None:
        raise ServiceError(status, "refused", kind=kind)

    monkeypatch.setattr(Client, "import_records", refuse)
    reporter = Reporter("http://127.0.0.1:1", folder=tmp_path)
    reporter.report(line(0))
    assert reporter.flush(HANG_S)
    reporter.close()
    assert len(list(tmp_path.iterdir())) == kept


def test_reports_that_are_too_large_together_are_sent_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a proxy that takes bodies of a megabyte; what is too large alone is dropped."""
    sent: list[bytes] = []

    def take(_: Client, parts: list[bytes], **more: object) -> None:
        data = b"".join(parts)
        if len(data) > 1000:
            raise ServiceError(413, "Content Too Large")
        sent.append(data)

    monkeypatch.setattr(Client, "import_records", take)
    reporter = Reporter("http://127.0.0.1:1", folder=tmp_path)
    lines = [b'{"i":%d,"text":"%s"}\n' % (i, b"x" * size) for i, size in enumerate((300, 300, 1200, 300, 900))]
    reporter._deliver(reporter._client(), b"".join(lines))
    reporter.close()
    assert b"".join(sent) == b"".join(lines[i] for i in (0, 1, 3, 4))
    assert "refused a report" in caplog.text


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EMFILE, errno.EACCES])
def test_reports_arrive_where_the_folder_cannot_be_listed(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def fail(path: object = ".") -> list[str]:
        raise OSError(number, os.strerror(number), str(path))

    namespace = f"hooks.list{number}"
    url = str(service.http.base_url)
    reporter = Reporter(url, namespace=namespace, folder=tmp_path)
    reporter._keep(encoded(0))
    reporter._spool.close()
    with monkeypatch.context() as patch:
        for name in ("listdir", "scandir"):
            patch.setattr(os, name, fail)
        reporter.report(line(1))
        assert reporter.flush(HANG_S)
        assert f"earlier results are not sent, as {tmp_path} cannot be listed" in caplog.text
    assert stored(url, namespace) == [1]
    reporter.report(line(2))
    assert reporter.flush(HANG_S)
    reporter.close()
    assert stored(url, namespace) == [0, 1, 2]


def test_hooks_are_switched_off_by_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_off()
    monkeypatch.setenv("PLEVEL_HOOKS", "0")
    assert is_off()
    monkeypatch.delenv("PLEVEL_URL", raising=False)
    with pytest.raises(ValueError, match="PLEVEL_URL"):
        Reporter()


@pytest.fixture
def asked(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Reporter, list[str]]:
    """A connection to a service that knows ten problems, and the questions that it sends."""
    sent: list[str] = []
    ask = Client._ask

    def note(self: Client, method: str, path: str, *of: object, **options: object) -> object:
        sent.append(path)
        return ask(self, method, path, *of, **options)

    monkeypatch.setattr(Client, "_ask", note)
    namespace = f"hooks.e{tmp_path.name[-20:]}"
    url = str(service.http.base_url)
    with Client(url, namespace=namespace) as client:
        lines = [encoded(i) for i in range(10)]
        client.import_records(lines, name="x.ndjson")
    sent.clear()
    return Reporter(url, namespace=namespace, folder=tmp_path / "spool"), sent


def block(reporter: Reporter, i: int, kernel: str = "k") -> int | None:
    found = reporter.likest("triton", problem(i, kernel), device_model="NVIDIA H100", limit=1)
    return found["answers"][0]["config"]["B"] if found and found["answers"] else None


BEST, PROBLEMS = "/v1/foreign/triton/best", "/v1/foreign/triton/problems"


def test_a_kernel_is_asked_for_once(asked: tuple[Reporter, list[str]]) -> None:
    reporter, sent = asked
    assert block(reporter, 3) == 3
    assert reporter.flush(HANG_S)
    assert sorted(sent) == [BEST, PROBLEMS]
    assert [block(reporter, i) for i in range(12)] == [*range(10), None, None]
    assert len(sent) == 2
    # The answer includes lines that this process has reported since.
    reporter.report(line(11))
    assert reporter.flush(HANG_S)
    assert block(reporter, 11) == 11
    assert sent[2:] == ["/v1/records:import", BEST]
    assert block(reporter, 1, "another") is None
    assert reporter.flush(HANG_S)
    assert sorted(sent[4:]) == [BEST, PROBLEMS]


def test_what_is_remembered_is_asked_for_again_later(
    asked: tuple[Reporter, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter, sent = asked
    assert block(reporter, 3) == 3
    assert reporter.flush(HANG_S)
    monkeypatch.setattr(known, "FRESH_S", 0.0)
    assert [block(reporter, 3), block(reporter, 4)] == [3, 4]
    assert reporter.flush(HANG_S)
    assert sent.count(BEST) == 1  # nothing waits for what is read again behind it
    assert sent.count(PROBLEMS) > 1
    before = sent.count(PROBLEMS)
    monkeypatch.setattr(known, "USABLE_S", 0.0)
    assert block(reporter, 3) == 3
    assert reporter.flush(HANG_S)
    assert sent.count(BEST) == 2
    assert sent.count(PROBLEMS) == before + 1


def test_what_is_due_is_read_again_once(
    asked: tuple[Reporter, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter, sent = asked
    assert block(reporter, 3) == 3
    assert reporter.flush(HANG_S)
    reporter._away_until = math.inf  # so that nothing new is read
    monkeypatch.setattr(known, "FRESH_S", 0.0)
    put: list[object] = []
    monkeypatch.setattr(reporter, "_put", put.append)
    assert [block(reporter, i) for i in (3, 4, 5)] == [3, 4, 5]
    assert len(put) == 1
    assert sent.count(PROBLEMS) == 1


def test_a_kernel_of_too_many_problems_is_read_in_part(
    asked: tuple[Reporter, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter, sent = asked
    monkeypatch.setattr(module, "AHEAD", 4)
    assert block(reporter, 0) == 0
    assert reporter.flush(HANG_S)
    assert [block(reporter, i) for i in range(10)] == [*range(10)]
    assert sent.count(BEST) == 1 + 6  # the newest are in memory
    assert len(reporter.kernels("triton", 5)) == 5
    assert sent.count("/v1/foreign/triton/list") == 1


def test_a_refused_question_stops_no_other(
    asked: tuple[Reporter, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    reporter, _ = asked
    assert block(reporter, 3, "k" * 100) is None
    huge = Workload("triton.k", (), {"key": ["x" * 100_000]})
    assert reporter.best("triton", huge) is None
    assert reporter.best("triton", Workload("triton.k", (), {"key": ["\udc80"]})) is None
    assert block(reporter, 3) == 3
    assert "tuning goes on without plevel" in caplog.text


def test_nothing_raises_into_the_tool(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = Reporter(str(service.http.base_url), namespace="hooks.f", folder=tmp_path)
    endless: list[object] = []
    endless.append(endless)
    for key in (endless, ["\udc80"], {1j: 1}):
        reporter.report({**line(1), "attrs": {"key": key}})
    reporter.report(line(1, "k k" * 200))
    reporter.report({"tool": "triton"})
    reporter.report(line(2))
    assert reporter.flush(HANG_S)
    reporter.close()
    assert stored(str(service.http.base_url), "hooks.f")[-1] == 2
    assert caplog.text.count("tuning goes on without plevel") >= 3


def test_an_answer_that_is_none_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = Reporter(f"http://127.0.0.1:{free_port()}", folder=tmp_path)
    monkeypatch.setattr(reporter, "best", lambda *_, **__: {})
    assert reporter.likest("triton", problem(1), device_model="NVIDIA H100") is None
    assert caplog.text.count("KeyError: 'answers'; tuning goes on without plevel") == 1


def test_without_a_thread_nothing_raises_and_reports_wait_for_one(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    url = str(service.http.base_url)
    first, second, third = (Reporter(url, namespace="hooks.j", folder=tmp_path) for _ in range(3))
    with monkeypatch.context() as patch:
        patch.setattr(module.threading.Thread, "start", fail)
        for i, reporter in enumerate((first, second)):
            reporter.report(line(i))
            assert block(reporter, 9) is None
        first.close()
        assert third.best("triton", problem(9)) is not None  # though what is kept cannot be delivered
        third.close()
    assert caplog.text.count("can't start new thread") == 3  # once of each
    assert stored(url, "hooks.j") == []
    second.report(line(2))
    assert second.flush(HANG_S)
    second.close()
    assert stored(url, "hooks.j") == [0, 1, 2]


def test_reports_are_kept_where_no_client_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with contextlib.closing(Reporter(f"https://127.0.0.1:{free_port()}", folder=tmp_path / "spool")) as reporter:
        for i in range(2):
            reporter.report(line(i))
            assert reporter.flush(HANG_S)
    (kept,) = (tmp_path / "spool").iterdir()
    assert len(kept.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("url", ["farm:8765", "http://", "http://[", "http://farm:x", "ftp://farm"])
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="write http://host:port"):
        Reporter(url)


def test_a_folder_that_cannot_be_written_loses_only_what_it_would_keep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, quick: None
) -> None:
    (tmp_path / "file").touch()
    reporter = Reporter(f"http://127.0.0.1:{free_port()}", folder=tmp_path / "file" / "spool")
    for i in range(3):
        reporter.report(line(i))
        assert reporter.flush(HANG_S)
    reporter.close()
    assert caplog.text.count("results are lost") == 1


def test_a_full_folder_keeps_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, quick: None
) -> None:
    monkeypatch.setattr(spool, "SPOOL_BYTES", 500)
    reporter = Reporter(f"http://127.0.0.1:{free_port()}", folder=tmp_path)
    for i in range(9):
        reporter.report(line(i))
        assert reporter.flush(HANG_S)
    reporter.close()
    kept = b"".join(p.read_bytes() for p in sorted(tmp_path.iterdir()))
    assert b'"key":[0]' in kept
    assert 0 < len(kept) <= 500
    assert caplog.text.count("is full") == 1


def test_what_cannot_be_removed_is_sent_once_and_holds_up_nothing(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(service.http.base_url)
    reporter = Reporter(url, namespace="hooks.g", folder=tmp_path)
    reporter._keep(encoded(0))
    (kept,) = tmp_path.iterdir()
    unreadable = tmp_path / f"{kept.name.partition('-')[0]}-0-x.ndjson"
    unreadable.mkdir()

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    sent: list[bytes] = []
    send = reporter._send
    monkeypatch.setattr(reporter, "_send", lambda client, data: (sent.append(data), send(client, data)))
    monkeypatch.setattr(Path, "unlink", refuse)
    for i in (1, 2):
        reporter.report(line(i))
        assert reporter.flush(HANG_S)
    reporter.close()
    assert sent.count(kept.read_bytes()) == 1
    assert stored(url, "hooks.g") == [0, 1, 2]
