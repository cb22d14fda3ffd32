"""The worker's client and spool: nothing that was measured is lost, whoever goes away."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from strategy.record import (
    MOST_REFERENCES,
    Device,
    ErrorKind,
    Job,
    Lease,
    LeaseRequest,
    Leases,
    Phase,
    Reference,
    Registered,
    Report,
    Result,
    Results,
    ResultsAccepted,
    TimingPolicy,
    WorkerInfo,
    decode,
    encode,
)
from strategy.target import Target
from strategy.workload import Input, Workload
from tests.limit import HANG_S, wait_until
from workers.client import (
    Client,
    LeaseLostError,
    ServiceError,
    StoppedError,
    UnauthorizedError,
    UnknownWorkerError,
    UnreachableError,
)
from workers.lease import Holdings
from workers.sender import Sender
from workers.spool import Spool

URL = "http://service.test"
TARGET = Target("llvm", ("cpu",), "znver4")
WORKER = WorkerInfo(
    name="w",
    host="h",
    pid=1,
    devices=(Device(identity="m/cpu:0", slot="cpu:0", model="", target=TARGET),),
)
REQUEST = LeaseRequest(worker_id=1, device="m/cpu:0", wait_s=10)
LEASE = Lease(
    id=5, token=9, expires_in_s=30,
    job=Job(
        id=1, run_id=1, workload=Workload("dense", (Input("data", "float32[1,2]"),)), target=TARGET,
        phase=Phase.SEARCH, entries=(), policy=TimingPolicy(), seed=0,
    ),
)


class Pauses(threading.Event):
    """A stop event that notes how long the client would wait, and does not."""

    def __init__(self, most: int = 1000) -> None:
        super().__init__()
        self.taken: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        self.taken.append(timeout or 0.0)
        if len(self.taken) >= self._most:
            self.set()
        return self.is_set()


class Service:
    """Answers in turn what a test lists, and keeps what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        if isinstance(answer, int):
            problem = {"type": "urn:plevel:no", "title": "no", "status": answer, "detail": f"because {answer}"}
            return httpx.Response(answer, json=problem)
        return httpx.Response(200, content=encode(answer))


def client_of(service: Service, pauses: threading.Event | None = None) -> Client:
    transport = httpx.MockTransport(service)
    return Client(URL, pauses or Pauses(), rng=random.Random(0), transport=transport)


AWAY = httpx.ConnectError("refused")


def test_a_service_that_is_away_is_asked_again_with_growing_pauses() -> None:
    service = Service(*[AWAY] * 12, 503, 500, Registered(worker_id=3, heartbeat_s=5, lease_s=30))
    pauses = Pauses()
    assert client_of(service, pauses).register(WORKER).worker_id == 3
    assert len(pauses.taken) == 14
    # Each within half to all of a pause that doubles up to half a minute, and no two alike.
    for i, pause in enumerate(pauses.taken):
        whole = min(0.2 * 2**i, 30.0)
        assert whole / 2 <= pause <= whole
    assert len(set(pauses.taken)) == len(pauses.taken)
    assert decode(service.asked[-1].content, WorkerInfo) == WORKER


def test_a_refusal_is_not_repeated() -> None:
    service = Service(422)
    with pytest.raises(ServiceError, match="because 422") as caught:
        client_of(service).register(WORKER)
    assert not isinstance(caught.value, UnreachableError)
    assert len(service.asked) == 1


def test_patience_ends() -> None:
    service = Service(AWAY, AWAY)
    with pytest.raises(UnreachableError, match=r"http://service\.test is not reachable: refused"):
        client_of(service).register(WORKER, patience_s=0)
    assert len(service.asked) == 1


def test_waiting_for_the_service_can_be_stopped() -> None:
    service = Service(*[AWAY] * 10)
    with pytest.raises(StoppedError):
        client_of(service, Pauses(most=3)).lease(REQUEST)
    assert len(service.asked) == 3


def test_a_client_closed_while_it_waits_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()

    class Closed(Service):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            stop.set()
            return super().__call__(request)

    with pytest.raises(StoppedError):
        client_of(Closed(httpx.ReadError("[Errno 9] Bad file descriptor")), stop).lease(REQUEST)
    assert not caplog.records


def test_a_lease_waits_longer_than_the_service() -> None:
    service = Service(Leases(leases=(LEASE,)))
    (lease,) = client_of(service).lease(REQUEST)
    assert lease == LEASE
    asked = service.asked[0]
    assert asked.extensions["timeout"]["read"] > REQUEST.wait_s
    assert decode(asked.content, LeaseRequest) == REQUEST


@pytest.mark.parametrize("status", [404, 409, 410])
def test_a_lost_lease_is_told_from_other_refusals(status: int) -> None:
    service = Service(status, status)
    client = client_of(service)
    with pytest.raises(LeaseLostError):
        client.renew(LEASE, timing=True)
    with pytest.raises(LeaseLostError):
        client.report(Report(lease_id=5, results=Results(token=9, session="s", results=())))
    assert service.asked[0].url.path == "/v1/leases/5/renew"


def test_a_forgotten_worker_is_told_to_register_again() -> None:
    client = client_of(Service(404, 404))
    with pytest.raises(UnknownWorkerError):
        client.lease(REQUEST)
    with pytest.raises(UnknownWorkerError):
        client.heartbeat(1)


@pytest.mark.parametrize("status", [302, 403, 404, 407, 409, 410])
@pytest.mark.parametrize("body", [{"text": "<html>no route</html>"}, {"json": {"type": "about:blank"}}, {"json": []}])
def test_what_a_proxy_says_of_a_service_is_no_word_of_the_service(status: int, body: dict[str, Any]) -> None:
    service = Service(*(httpx.Response(status, **body) for _ in range(3)), Leases())
    client = client_of(service)
    for ask in (
        lambda: client.renew(LEASE),
        lambda: client.report(Report(lease_id=5, results=Results(token=9, session="s", results=()))),
    ):
        with pytest.raises(UnreachableError, match=f"answered {status}: .*no plevel service says so: check the prox"):
            ask()
    assert client.lease(REQUEST) == ()  # asked again
    assert not service.answers


PAGES = {
    "of a login": httpx.Response(200, text="<html>Who are you?</html>"),
    "of a firewall": httpx.Response(403, text="<html>blocked</html>"),
    "of a gateway whose service is down": httpx.Response(521, text="<html>web server is down</html>"),
    "of another address": httpx.Response(301, headers={"location": "https://farm.test/v1/leases/5/results"}),
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_results_outlast_the_pages_of_proxies(
    page: httpx.Response, spool: Spool, start: Callable[..., tuple[Sender, Outcomes]], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    yes = ResultsAccepted(accepted=1, known=0)
    sender, seen = start(Service(page, yes))
    sender.put(report(5, 0, done=True))
    assert sender.flush(30)
    assert seen.accepted == [("s", yes)] and not seen.lost
    assert "results stay in the spool, and are sent again" in caplog.text
    assert ("redirects to https://farm.test/" in caplog.text) == (page.status_code == 301)


def test_an_answer_of_another_kind_is_an_error() -> None:
    with pytest.raises(ServiceError, match="no Registered"):
        client_of(Service(Leases())).register(WORKER)


def test_a_page_of_another_program_is_a_line() -> None:
    transport = httpx.MockTransport(
        lambda _: httpx.Response(501, text="<!DOCTYPE HTML>\n<html>\n  <body>no</body>\n</html>")
    )
    client = Client(URL, Pauses(), rng=random.Random(0), transport=transport)
    with pytest.raises(ServiceError) as caught:
        client.register(WORKER)
    assert str(caught.value) == f"{URL}/v1/workers answered 501: <!DOCTYPE HTML>"


def report(lease_id: int, entry: int, done: bool = False, session: str = "s") -> Report:
    found = (Result(entry=entry, samples_s=(1e-3, 2e-3)),)
    sent = Results(token=9, session=session, results=found, done=done)
    return Report(lease_id=lease_id, results=sent)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    found = Spool(tmp_path, URL)
    yield found
    found.close()


def test_a_spool_joins_the_results_of_a_session(spool: Spool) -> None:
    assert spool.first() is None
    for one in [report(5, 0), report(6, 0, session="t"), report(5, 1, done=True)]:
        spool.put(one)
    first = spool.first()
    assert first is not None
    joined, paths = first
    assert joined.lease_id == 5 and joined.results.done
    assert [r.entry for r in joined.results.results] == [0, 1]
    spool.remove(paths)
    second = spool.first()
    assert second is not None and second[0] == report(6, 0, session="t")


def test_results_that_cannot_be_read_for_now_stay_in_the_spool(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As while a file server starts again; what can never be read is set aside, or it would hold up the others."""
    for entry in (0, 1):
        spool.put(report(5, entry))

    def fail(path: Path, number: int) -> bytes:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: fail(path, errno.ESTALE))
        with pytest.raises(OSError, match="Stale"):
            spool.first()
    assert (first := spool.first()) is not None and len(first[1]) == 2
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: fail(path, errno.EIO))
        assert spool.first() is None
    assert spool.empty and "kept aside for inspection" in caplog.text


def test_a_folder_that_cannot_be_listed_is_not_deleted_as_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a file server starts again, at the end of one worker and at the start of the next."""
    former = Spool(tmp_path, URL)
    former.put(report(5, 0))

    def fail_there(found: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any) -> Any:
            if former.folder.name in str(path):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return found(path)

        return look

    with monkeypatch.context() as patch:
        for name in ("listdir", "scandir"):
            patch.setattr(os, name, fail_there(getattr(os, name)))
        with pytest.raises(OSError, match="Stale"):
            former.first()
        former.close()
        between = Spool(tmp_path, URL)
        assert between.empty
        between.close()
    spool = Spool(tmp_path, URL)
    assert (first := spool.first()) is not None and first[0] == report(5, 0)
    spool.close()


def test_a_folder_that_cannot_be_listed_for_now_does_not_end_the_sender(
    spool: Spool, start: Callable[..., tuple[Sender, Outcomes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    yes, failures = ResultsAccepted(accepted=1, known=0), [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]
    sender, seen = start(Service(yes, yes))

    def is_empty(_: Spool) -> bool:
        if failures:
            raise failures.pop()
        return spool.first() is None

    monkeypatch.setattr(Spool, "empty", property(is_empty))
    for entry in (0, 1):
        sender.put(report(5, entry, done=True))
        assert sender.flush(HANG_S)
    assert not failures and seen.accepted == [("s", yes)] * 2


_PUT_AND_DIE = """
import os, signal, sys
from pathlib import Path
from strategy.record import Report, Result, Results
from workers.spool import Spool

spool = Spool(Path(sys.argv[1]), sys.argv[2])
for entry in range(3):
    one = Result(entry=entry, samples_s=(1e-3,))
    sent = Results(token=9, session="dead", results=(one,), done=entry == 2)
    spool.put(Report(lease_id=5, results=sent))
if sys.argv[3] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
print("ready", flush=True)
sys.stdin.read()
"""


def other_process(folder: Path, what: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _PUT_AND_DIE, str(folder), URL, what]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )


def test_what_a_killed_worker_measured_is_sent_by_the_next(tmp_path: Path) -> None:
    with other_process(tmp_path, "die") as process:
        assert process.wait(HANG_S) == -signal.SIGKILL
    spool = Spool(tmp_path, URL)
    first = spool.first()
    assert first is not None
    joined = first[0].results
    assert first[0].lease_id == 5
    assert (joined.token, joined.session, joined.done) == (9, "dead", True)
    assert [r.entry for r in joined.results] == [0, 1, 2]
    spool.close()


def test_the_spool_of_a_living_worker_is_its_own(tmp_path: Path) -> None:
    with other_process(tmp_path, "live") as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        spool = Spool(tmp_path, URL)
        assert spool.empty
        spool.close()
        process.communicate(timeout=HANG_S)


def test_results_go_to_their_own_service_only(tmp_path: Path, spool: Spool) -> None:
    spool.put(report(5, 0))
    spool.close()
    other = Spool(tmp_path, "http://elsewhere.test")
    assert other.empty
    other.close()
    again = Spool(tmp_path, URL)
    assert not again.empty
    again.close()


def test_a_half_written_file_is_set_aside_and_the_others_go_on(
    tmp_path: Path, spool: Spool
) -> None:
    spool.put(report(5, 0))
    spool.put(report(5, 1))
    (broken, _) = sorted(tmp_path.rglob("*.json"))
    broken.write_bytes(broken.read_bytes()[:40])
    first = spool.first()
    assert first is not None
    assert [r.entry for r in first[0].results.results] == [1]
    assert len(list((tmp_path / "refused").iterdir())) == 1


class Outcomes:
    def __init__(self) -> None:
        self.accepted: list[tuple[str, ResultsAccepted]] = []
        self.lost: list[str] = []


@pytest.fixture
def start(spool: Spool) -> Iterator[Callable[..., tuple[Sender, Outcomes]]]:
    running: list[Sender] = []

    def start(service: Service, linger_s: float = 0.0) -> tuple[Sender, Outcomes]:
        seen = Outcomes()
        sender = Sender(
            client_of(service),
            spool,
            lambda i, a: seen.accepted.append((i, a)),
            seen.lost.append,
            linger_s,
        )
        running.append(sender)
        return sender, seen

    yield start
    for sender in running:
        sender.close(0.2)


def test_results_are_sent_until_they_are_accepted(
    spool: Spool, start: Callable[..., tuple[Sender, Outcomes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    yes = ResultsAccepted(accepted=1, known=0)
    service = Service(AWAY, 503, httpx.Response(404, text="no route"), httpx.DecodingError("not gzip"), yes)
    sender, seen = start(service)
    sender.put(report(5, 0, done=True))
    assert sender.flush(30)
    assert len(service.asked) == 5
    assert seen.accepted == [("s", yes)] and not seen.lost
    assert spool.empty


def test_results_are_sent_soon_after_a_service_is_back_that_was_away_for_long(
    start: Callable[..., tuple[Sender, Outcomes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their lease may be over, and ends a moment later."""
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("workers.sender._LONGEST_AWAY_S", 0.002)
    service = Service(*[AWAY] * 100, ResultsAccepted(accepted=1, known=0))
    sender, seen = start(service)
    sender.put(report(5, 0, done=True))
    wait_until(lambda: seen.accepted)
    assert len(service.asked) == 101


def test_results_of_a_lost_lease_are_dropped_and_the_next_go_on(
    spool: Spool, start: Callable[..., tuple[Sender, Outcomes]]
) -> None:
    service = Service(409, ResultsAccepted(accepted=1, known=0))
    spool.put(report(5, 0, done=True))
    spool.put(report(6, 0, done=True, session="t"))
    sender, seen = start(service)  # begins with what it finds
    assert sender.flush(30)
    assert seen.lost == ["s"] and [i for i, _ in seen.accepted] == ["t"]
    assert spool.empty


def test_results_that_are_refused_are_kept_for_a_person(
    tmp_path: Path, spool: Spool, start: Callable[..., tuple[Sender, Outcomes]]
) -> None:
    sender, seen = start(Service(422))
    sender.put(report(5, 0))
    assert sender.flush(30)
    assert spool.empty and seen.lost == ["s"]
    (kept,) = (tmp_path / "refused").iterdir()
    assert b"samples_s" in kept.read_bytes()


def failure(lease_id: int, message: str, session: str = "s") -> Report:
    found = (Result(entry=0, error=ErrorKind.COMPILE, message=message),)
    return Report(lease_id=lease_id, results=Results(token=9, session=session, results=found))


HTML = "<html>no</html>"
CUT = httpx.ReadError("Connection reset by peer")
YES = ResultsAccepted(accepted=1, known=0)


@pytest.mark.parametrize("answer", [400, 403, 405, 413, 414, 422, 431, 500, 501, 502, CUT], ids=lambda a: str(a)[:10])
def test_one_body_that_is_refused_on_its_way_holds_up_no_other(
    answer: Any, tmp_path: Path, spool: Spool, start: Callable[..., tuple[Sender, Outcomes]],
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:
    """As by a firewall that finds a path of the system in a compiler's message."""
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("workers.sender._PATIENCE_S", 0.0)

    class Firewall(Service):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            if b"/etc/passwd" not in request.content:
                return httpx.Response(200, content=encode(YES))
            if isinstance(answer, Exception):
                raise answer
            return httpx.Response(answer, text=HTML)

    sender, seen = start(Firewall())
    sender.put(failure(5, "/etc/passwd: no such header"))
    sender.put(report(5, 1, done=True))
    for number in range(1, 8):
        wait_until(lambda n=number: len(seen.accepted) == n)
        assert number > 3 or not (tmp_path / "refused").exists(), "not before the service has accepted some"
        sender.put(report(5 + number, 0, done=True, session=f"t{number}"))
    assert sender.flush(HANG_S)
    assert [session for session, _ in seen.accepted] == ["s", *(f"t{n}" for n in range(1, 8))] and not seen.lost
    (kept,) = (tmp_path / "refused").iterdir()
    assert b"/etc/passwd" in kept.read_bytes()
    assert f"refused 5 times while others were accepted, and are kept aside in {kept.parent}: " in caplog.text


def test_results_that_the_service_cannot_store_for_now_are_not_set_aside(
    tmp_path: Path, start: Callable[..., tuple[Sender, Outcomes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while another program holds a row of their task, and those of other tasks are stored."""
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    free = threading.Event()
    told = {"type": "urn:plevel:database", "detail": "another transaction holds what is asked for"}

    class Locked(Service):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            if decode(request.content, Results).session == "s" and not free.is_set():
                return httpx.Response(503, json=told)
            return httpx.Response(200, content=encode(YES))

    sender, seen = start(Locked())
    sender.put(failure(5, "no"))
    for number in range(1, 10):
        sender.put(report(5 + number, 0, done=True, session=f"t{number}"))
        wait_until(lambda n=number: len(seen.accepted) == n)
    free.set()
    wait_until(lambda: sender.flush(HANG_S))
    assert seen.accepted[-1][0] == "s"
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("answer", [400, 404, 405, 422, 500, 501, 502, 504, CUT], ids=lambda a: str(a)[:10])
def test_no_results_are_set_aside_for_what_others_than_the_service_answer(
    answer: Any, tmp_path: Path, start: Callable[..., tuple[Sender, Outcomes]], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where a balancer sends all requests but those of other jobs to a broken one of its services."""
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    mended = threading.Event()

    class Balancer(Service):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            if mended.is_set() or decode(request.content, Results).session.startswith("t"):
                return httpx.Response(200, content=encode(YES))
            if isinstance(answer, Exception):
                raise answer
            return httpx.Response(answer, text=HTML)

    sender, seen = start(Balancer())
    sender.put(report(5, 0, session="f"))
    sender.put(report(6, 0, session="g"))  # two jobs that fail hold up no others either
    for number in range(20):
        sender.put(report(7 + number, 0, done=True, session=f"t{number}"))
        wait_until(lambda n=number: len(seen.accepted) > n)
        assert not sender.flush(HANG_S), "it does not wait for what others have passed"
    assert not (tmp_path / "refused").exists() and not seen.lost
    assert caplog.text.count("results stay in the spool") <= 2
    mended.set()
    wait_until(lambda: sender.flush(HANG_S))
    assert {session for session, _ in seen.accepted[20:]} == {"f", "g"}


def test_results_over_which_the_service_fails_are_set_aside_soon(
    tmp_path: Path, start: Callable[..., tuple[Sender, Outcomes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    told = {"type": "urn:plevel:internal", "detail": "an unexpected error of the service"}

    class Defect(Service):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            if decode(request.content, Results).session == "f":
                return httpx.Response(500, json=told)
            return httpx.Response(200, content=encode(YES))

    sender, seen = start(Defect())
    sender.put(report(5, 0, session="f"))
    for number in range(8):
        sender.put(report(6 + number, 0, done=True, session=f"t{number}"))
        wait_until(lambda n=number: len(seen.accepted) > n)
    assert sender.flush(HANG_S)
    assert len(list((tmp_path / "refused").iterdir())) == 1


def test_results_that_are_too_large_together_are_sent_apart(
    tmp_path: Path, spool: Spool, start: Callable[..., tuple[Sender, Outcomes]]
) -> None:
    """As those of an outage of the service, by a proxy that takes bodies of a megabyte."""
    sent: list[Results] = []

    class Proxy(Service):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            if len(request.content) > 3000:
                return httpx.Response(413, text=HTML)
            sent.append(decode(request.content, Results))
            return httpx.Response(200, content=encode(YES))

    for entry in range(3):
        spool.put(failure(5, f"{entry}" * 2000))
    spool.put(report(5, 3, done=True))
    sender, _ = start(Proxy())
    assert sender.flush(HANG_S)
    assert [[r.message[:1] for r in one.results] for one in sent] == [["0"], ["1"], ["2", ""]]
    assert [one.done for one in sent] == [False, False, True]
    assert not (tmp_path / "refused").exists()


def test_results_that_failed_once_go_with_those_that_end_their_lease(
    start: Callable[..., tuple[Sender, Outcomes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the end the service takes no others: they would be lost, as by a restart in the middle of a request."""
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", HANG_S)
    monkeypatch.setattr("workers.sender._LONGEST_AWAY_S", HANG_S)
    sent: list[Results] = []

    class Restarted(Service):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            sent.append(decode(request.content, Results))
            return httpx.Response(200, content=encode(YES)) if len(sent) > 1 else httpx.Response(502, text=HTML)

    sender, _ = start(Restarted())
    sender.put(report(5, 0))
    wait_until(lambda: sender._due is not None and sender._due > time.monotonic() + 1)  # it rests
    sender.put(report(5, 1, done=True))
    assert sender.flush(HANG_S)
    assert [[r.entry for r in one.results] for one in sent] == [[0], [0, 1]]


def test_no_results_are_set_aside_while_none_are_accepted(
    tmp_path: Path, spool: Spool, start: Callable[..., tuple[Sender, Outcomes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("workers.sender._LONGEST_AWAY_S", 0.002)
    for entry, session in enumerate("stst"):
        spool.put(report(5, entry, session=session))
    sender, seen = start(Service(*[httpx.Response(502, text=HTML)] * 102, YES, YES))
    assert sender.flush(HANG_S)
    assert seen.accepted == [("s", YES), ("t", YES)] and not (tmp_path / "refused").exists()


def test_results_that_cannot_be_set_aside_wait_until_they_can(
    tmp_path: Path, spool: Spool, start: Callable[..., tuple[Sender, Outcomes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    aside = tmp_path / "refused"
    aside.touch()  # where a folder has to be

    class Mended(Service):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            if len(self.asked) == 2:
                aside.unlink()
            return super().__call__(request)

    service = Mended(422, 422, 422)
    sender, seen = start(service)
    sender.put(report(5, 0))
    assert sender.flush(30)
    assert len(service.asked) == 3
    assert spool.empty and seen.lost == ["s"]
    assert len(list(aside.iterdir())) == 1


def test_an_unexpected_error_of_the_sender_is_told_and_costs_no_result(spool: Spool) -> None:
    failed: list[Exception] = []
    error = RuntimeError("a defect")
    sender = Sender(client_of(Service(error)), spool, lambda *_: None, lambda _: None, 0.0, failed.append)
    sender.put(report(5, 0))
    sender._thread.join(HANG_S)
    assert failed == [error]
    sender.close(0.01)
    assert not spool.empty


def test_what_was_refused_does_not_fill_the_disk(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.spool.REFUSED_BYTES", 1000)
    for number in range(20):
        spool.put(report(number, 0))
        found = spool.first()
        assert found is not None
        spool.refuse(found[1])
    kept = list((tmp_path / "refused").iterdir())
    assert 0 < sum(p.stat().st_size for p in kept) <= 1000


def test_results_wait_for_more_of_their_job(start: Callable[..., tuple[Sender, Outcomes]]) -> None:
    service = Service(ResultsAccepted(accepted=3, known=0))
    sender, _ = start(service, linger_s=3600)
    sender.put(report(5, 0))
    sender.put(report(5, 1))
    sender.put(report(5, 2, done=True))
    assert sender.flush(30)
    assert len(service.asked) == 1
    sent = decode(service.asked[0].content, Results)
    assert [r.entry for r in sent.results] == [0, 1, 2] and sent.done


def test_what_is_not_sent_at_the_end_stays_on_disk(
    spool: Spool, start: Callable[..., tuple[Sender, Outcomes]]
) -> None:
    sender, _ = start(Service(*[AWAY] * 100), linger_s=3600)
    sender.put(report(5, 0))
    sender.close(0.2)
    assert not spool.empty


def test_a_full_disk_is_waited_for_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path, URL)
    refused: list[int] = []
    put = spool.put

    def put_later(one: Report) -> None:
        if len(refused) < 2:
            refused.append(one.lease_id)
            raise OSError(28, "No space left on device")
        put(one)

    monkeypatch.setattr(spool, "put", put_later)
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    accepted = threading.Event()
    stop = threading.Event()
    answer = ResultsAccepted(accepted=1, known=0)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=encode(answer)))
    client = Client(URL, stop, transport=transport)
    sender = Sender(client, spool, lambda session, answer: accepted.set(), lambda session: None)
    sent = Results(token=1, session="s", results=(), done=True)
    sender.put(Report(lease_id=7, results=sent))
    assert accepted.wait(HANG_S)
    assert refused == [7, 7]
    assert caplog.text.count(f"results cannot be written to {spool.folder} (No space left on device), trying") == 1
    sender.close(10)
    spool.close()
    client.close()


def test_a_draft_that_the_disk_did_not_take_is_no_result(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk, in a process of its own."""
    code = """
import resource, signal, sys
from pathlib import Path
from strategy.record import Report, Result, Results
from workers.spool import Spool
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spool = Spool(Path(sys.argv[1]), "http://service.test")
results = Results(token=1, session="s", results=(Result(entry=0, samples_s=(1.0,) * 500),))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    spool.put(Report(lease_id=1, results=results))
except OSError as error:
    print(error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert spool.empty and not list(Path(sys.argv[1]).rglob("*.draft"))
spool.put(Report(lease_id=1, results=results))
print(spool.first()[0].lease_id)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n") == ["File too large", "1", ""], done.stderr


def test_a_lease_is_renewed_until_its_last_results_are_on_disk(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = httpx.Response(200, content=encode(ResultsAccepted(accepted=1, known=0)))
    client = Client(URL, threading.Event(), transport=httpx.MockTransport(lambda request: answer))
    holdings = Holdings(client, spool)
    held = holdings.add(LEASE)
    put, renewed = spool.put, []

    def put_later(one: Report) -> None:
        renewed.append(holdings.all() == [held])
        if len(renewed) < 3:
            raise OSError(28, "No space left on device")
        put(one)

    monkeypatch.setattr(spool, "put", put_later)
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    holdings.finish(held, {})
    assert renewed == [True] * 3
    assert holdings.all() == []
    holdings.close()


def test_a_renewal_or_heartbeat_that_is_not_answered_leaves_time_for_another(spool: Spool) -> None:
    stop, asked = threading.Event(), set()

    def leave_unanswered(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/release"):
            asked.add(request.url.path.rpartition("/")[2])
            assert all(limit == pytest.approx(0.1) for limit in request.extensions["timeout"].values())
            if len(asked) == 2:
                stop.set()
        raise httpx.ReadTimeout("timed out")

    holdings = Holdings(Client(URL, stop, transport=httpx.MockTransport(leave_unanswered)), spool)
    holdings.add(LEASE)
    holdings.keep_alive(lambda: Registered(worker_id=1, heartbeat_s=0, lease_s=0.3), stop)
    assert asked == {"renew", "heartbeat"}
    holdings.close()


def test_a_lease_is_not_taken_for_an_earlier_one_with_its_id(spool: Spool) -> None:
    """Ids come again after a restored backup of the service's database, with other tokens."""

    def answer(request: httpx.Request) -> httpx.Response:
        if decode(request.content, Results).token == 9:
            return httpx.Response(409, json={"type": "urn:plevel:lease-lost", "status": 409, "detail": "lost"})
        return httpx.Response(200, content=encode(ResultsAccepted(accepted=1, known=0)))

    holdings = Holdings(Client(URL, threading.Event(), transport=httpx.MockTransport(answer)), spool)
    former = holdings.add(LEASE)
    held = holdings.add(msgspec.structs.replace(LEASE, token=10))
    holdings.report(former, Result(entry=0, samples_s=(1.0,)))
    holdings.flush(HANG_S)
    assert former.lost and not held.ended.is_set()
    holdings.leave(former)
    assert holdings.all() == [held], "else nobody renews it"
    holdings.finish(held, {})
    holdings.close()


def test_a_job_of_many_sessions_is_reported(spool: Spool) -> None:
    """Such as one whose kernels are so large that each is timed alone, or of which most crash."""
    sent: list[Results] = []

    def take(request: httpx.Request) -> httpx.Response:
        sent.append(decode(request.content, Results))
        return httpx.Response(200, content=encode(ResultsAccepted(accepted=1, known=0)))

    holdings = Holdings(Client(URL, threading.Event(), transport=httpx.MockTransport(take)), spool)
    references = tuple(Reference(samples_s=(1.0,), measured_at=float(i)) for i in range(300))
    holdings.finish(holdings.add(LEASE), {}, references, [Result(entry=0, samples_s=(1.0,))])
    holdings.flush(HANG_S)
    holdings.close()
    assert [r.entry for one in sent for r in one.results] == [0]
    assert sent[-1].done and sent[-1].references == references[-MOST_REFERENCES:]


def test_refused_results_that_cannot_be_moved_are_tried_again_after_a_pause(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Semaphore(0)

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.release()
        return httpx.Response(422, json={"type": "urn:plevel:invalid", "detail": "no"})

    client = Client(URL, threading.Event(), transport=httpx.MockTransport(refuse))
    (tmp_path / "refused" / f"{spool._own.name}-{1:012d}.json").mkdir(parents=True)  # in the file's place
    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 3600.0)
    sender = Sender(client, spool, lambda session, answer: None, lambda session: None)
    sender.put(report(5, 0, done=True))
    assert asked.acquire(timeout=HANG_S)
    assert not asked.acquire(timeout=0.2)
    sender.close(0.1)
    assert not spool.empty


def test_a_token_that_is_refused_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    service = Service(401, Leases(), 401)
    client = Client(URL, Pauses(), file.read_text, transport=httpx.MockTransport(service))
    file.write_text("new")
    assert client.lease(REQUEST) == ()
    file.unlink()
    with pytest.raises(UnauthorizedError, match="because 401"):
        client.lease(REQUEST)
    sent = [request.headers["authorization"] for request in service.asked]
    assert sent == ["Bearer old", "Bearer new", "Bearer new"]


def test_results_wait_for_another_token(tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token.txt"
    file.write_text("old")
    refused, accepted = threading.Event(), threading.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers["authorization"] == "Bearer new":
            return httpx.Response(200, content=encode(ResultsAccepted(accepted=1, known=0)))
        refused.set()
        return httpx.Response(401, json={"detail": "it has expired"})

    monkeypatch.setattr("workers.sender.FIRST_PAUSE_S", 0.001)
    client = Client(URL, threading.Event(), file.read_text, transport=httpx.MockTransport(answer))
    sender = Sender(client, spool, lambda session, answer: accepted.set(), lambda session: None)
    sender.put(report(5, 0, done=True))
    assert refused.wait(HANG_S)
    file.write_text("new")
    assert accepted.wait(HANG_S)
    sender.close(HANG_S)
    assert spool.empty and not (tmp_path / "refused").exists()


def test_a_password_in_the_url_is_in_no_message() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(403, json={"detail": "no"}))
    client = Client("https://me:SECRET@farm.test/", threading.Event(), transport=transport)
    with pytest.raises(ServiceError) as refused:
        client.heartbeat(1)
    assert "SECRET" not in str(refused.value)
    assert client.shown == "https://farm.test"
