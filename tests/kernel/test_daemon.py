"""The daemon between a scripted service and real children: drain, cancel, loss, and absence."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace as replace_struct

from strategy.cpu.passes import PROCESSOR_VERSION
from strategy.op import Example, get_op
from strategy.op_strategy import candidates
from strategy.record import (
    ALL,
    ErrorKind,
    Job,
    JobEntry,
    Lease,
    LeaseRequest,
    Leases,
    Phase,
    Registered,
    Renewal,
    Renewed,
    Result,
    Results,
    ResultsAccepted,
    TimingPolicy,
    decode,
    encode,
)
from strategy.space import Config
from strategy.workload import Workload
from tests.limit import HANG_S
from workers import builder
from workers.client import AnswerError, Client
from workers.cpu import assign, describe_device, parse_cores
from workers.daemon import Daemon, describe_worker
from workers.lease import Holdings
from workers.sandbox import WORKER_IMPORTS, ForkServer
from workers.scratch import GOES_ON, ScratchError
from workers.spool import Spool

sys.path.insert(0, str(Path(__file__).parent))  # where the children find the operator too
import hostile

URL = "http://service.test"
CORES = assign(parse_cores("cpu"), 1)
DEVICE = describe_device(CORES, 1)
HOSTILE = Workload.make("hostile", {"data": "float32[64]"})
POLICY = TimingPolicy(budget_s=0.02, build_timeout_s=HANG_S, run_timeout_s=HANG_S)


@dataclass
class Script:
    """A service that hands out the jobs it is given, and does what a test tells it to."""

    jobs: list[Job]
    events: list[str] = field(default_factory=list)
    results: dict[int, dict[int, Result]] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)
    # The response to an event, once: a status to answer, or something to do.
    at: dict[str, Any] = field(default_factory=dict)
    away: bool = False
    cancelled: set[int] = field(default_factory=set)
    forgotten: int = 0
    environment: dict[str, Any] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)  # numbers of jobs in requests for leases

    def __post_init__(self) -> None:
        self.change = threading.Condition()
        self._waiting = list(self.jobs)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.change:
            assert self.change.wait_for(condition, HANG_S), f"never happened; events: {self.events}"

    def happened(self, *events: str) -> Callable[[], bool]:
        return lambda: all(e in self.events for e in events)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        with self.change:
            if self.away:
                raise httpx.ConnectError("away")
            event, answer = self._answer(request.method, request.url.path, request.content)
            if event:
                self.events.append(event)
                self.change.notify_all()
            told = self.at.pop(event, None)
            if callable(told):
                told()
            elif told is not None:
                return _refusal(told, "as told")
            return answer

    def _answer(self, method: str, path: str, content: bytes) -> tuple[str, httpx.Response]:
        parts = path.split("/")[2:]
        if parts == ["workers"]:
            return "register", _ok(Registered(worker_id=1, heartbeat_s=0.2, lease_s=30))
        if parts[0] == "workers":
            return ("gone" if method == "DELETE" else "heartbeat"), httpx.Response(204)
        if parts == ["leases"]:
            self.asked.add(decode(content, LeaseRequest).jobs)
            if self.forgotten:
                self.forgotten -= 1
                return "forgotten", _refusal(404, "who?")
            if not self._waiting:
                self.change.wait(0.05)
                return "", _ok(Leases())
            job = self._waiting.pop(0)
            lease = Lease(id=job.id, token=7, expires_in_s=30, job=job)
            return f"lease {job.id}", _ok(Leases(leases=(lease,)))
        lease_id = int(parts[1])
        if parts[2] == "renew":
            timing = decode(content, Renewal).timing
            renewed = Renewed(expires_in_s=30, cancelled=lease_id in self.cancelled)
            return f"{'time' if timing else 'renew'} {lease_id}", _ok(renewed)
        if parts[2] == "release":
            return f"release {lease_id}", httpx.Response(204)
        return self._take(lease_id, decode(content, Results))

    def _take(self, lease_id: int, parcel: Results) -> tuple[str, httpx.Response]:
        event = f"{'done' if parcel.done else 'some'} {lease_id}"
        if not isinstance(self.at.get(event), int):
            self.results.setdefault(lease_id, {}).update({r.entry: r for r in parcel.results})
            self.environment.update(parcel.environment)
            if parcel.done:
                self.done.append(lease_id)
        return event, _ok(ResultsAccepted(accepted=len(parcel.results), known=0))


def _refusal(status: int, detail: str) -> httpx.Response:
    return httpx.Response(status, json={"type": "urn:plevel:refused", "detail": detail})


def _ok(value: Any) -> httpx.Response:
    return httpx.Response(200, content=encode(value))


def job(number: int, *deeds: str) -> Job:
    (candidate,) = candidates(HOSTILE, DEVICE.target)
    assert set(deeds) <= set(hostile.DEEDS)
    return Job(
        id=number, run_id=1, workload=HOSTILE, target=DEVICE.target, phase=Phase.SEARCH, policy=POLICY,
        seed=7,
        entries=tuple(
            JobEntry(
                index=i, task_id=1, implementation="hostile.cpu", version=candidate.version,
                config=Config({"deed": deed, "id": i}),
            )
            for i, deed in enumerate(deeds)
        ),
    )


@dataclass
class Running:
    daemon: Daemon
    script: Script
    stop: threading.Event
    thread: threading.Thread
    error: Exception | None = None
    expected: Exception | None = None

    def ends(self) -> None:
        self.thread.join(HANG_S)
        assert not self.thread.is_alive(), "the worker does not end"
        assert self.error is self.expected


@pytest.fixture(scope="module")
def _gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate") / "gate"


@pytest.fixture
def gate(_gate: Path) -> Path:
    """The file that runs wait for, which is not there yet."""
    _gate.unlink(missing_ok=True)
    return _gate


@pytest.fixture(scope="module")
def server(_gate: Path) -> Iterator[ForkServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(hostile.GATE, str(_gate))
        with ForkServer(_gate.parent, (*WORKER_IMPORTS, "hostile")) as found:
            yield found


@pytest.fixture
def serve(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Running]]:
    # One for all, as each takes longer to load TVM than a test does.
    monkeypatch.setattr("workers.daemon.ForkServer", lambda folder, imports: nullcontext(server))
    monkeypatch.setattr("workers.checker.cache_sizes", lambda: {"l3_bytes": 1 << 24})  # room for these kernels
    running: list[Running] = []

    def serve(script: Script, **limits: Any) -> Running:
        stop = threading.Event()
        client = Client(
            URL, stop, rng=random.Random(0), transport=httpx.MockTransport(script)
        )
        spool = Spool(tmp_path / "spool", URL)
        info = describe_worker("w", DEVICE)
        daemon = Daemon(client, spool, info, CORES, stop, imports=("numpy", "tvm", "hostile"), **limits)

        def run() -> None:
            try:
                daemon.run(1.0)
            except Exception as error:
                found.error = error
            spool.close()
            client.close()

        found = Running(daemon, script, stop, threading.Thread(target=run))
        found.thread.start()
        running.append(found)
        return found

    yield serve
    for one in running:
        one.stop.set()
        one.ends()


def test_jobs_are_built_ahead_timed_in_turn_and_reported(
    serve: Callable[..., Running], gate: Path
) -> None:
    script = Script(
        [job(1, "waits", "wrong", "build_raises"), job(2, "good"), job(3, "build_raises")]
    )
    # The first is not through before the second is leased, however slow this host is.
    script.at["lease 2"] = gate.touch
    running = serve(script)
    script.wait_for(lambda: len(script.done) == 3)
    running.daemon.drain()
    running.ends()
    assert script.done == [1, 2, 3]
    kinds = {n: [script.results[n][i].error for i in sorted(script.results[n])] for n in (1, 2, 3)}
    assert kinds == {
        1: [None, ErrorKind.WRONG_ANSWER, ErrorKind.INSTANTIATION],
        2: [None],
        3: [ErrorKind.INSTANTIATION],
    }
    events = script.events
    if not CORES.overlap:
        # The second is leased while the first is timed, and timed once the first is done.
        assert events.index("time 1") < events.index("lease 2") < events.index("done 1")
    assert events.index("done 1") < events.index("time 2") < events.index("lease 3")
    assert events[-1] == "gone"
    assert script.environment["TVM_NUM_THREADS"] == 1
    assert script.environment["tvm"] and script.environment["llvm"]
    assert script.environment["thread_pool"] == "tvm"


@pytest.mark.skipif(CORES.overlap, reason="no core only builds")
def test_libraries_are_checked_while_others_are_timed(serve: Callable[..., Running], gate: Path) -> None:
    script = Script([job(1, "waits"), job(2, "segfaults", "good", "wrong")])

    def end() -> None:
        if len(script.results[2]) < 2:  # reported one by one
            script.at["some 2"] = end
        else:
            gate.touch()

    script.at["some 2"] = end
    daemon = serve(script).daemon
    script.wait_for(lambda: script.done == [1, 2])
    assert script.events.index("some 2") < script.events.index("time 2")
    (first,), second = script.results[1].values(), script.results[2]
    assert [second[i].error for i in range(3)] == [ErrorKind.CRASH, None, ErrorKind.WRONG_ANSWER]
    assert not second[2].samples_s and second[1].samples_s and second[1].check_s > 0
    assert daemon.spent["checking"] == pytest.approx(first.check_s)  # of the timing core


@pytest.mark.skipif(CORES.overlap, reason="no core only builds")
def test_draining_gives_back_what_is_checked(serve: Callable[..., Running], gate: Path) -> None:
    script = Script([job(1, "waits"), job(2, "wrong", "hangs")])
    running = serve(script)
    script.wait_for(script.happened("time 1", "some 2"))
    running.daemon.drain()
    script.wait_for(script.happened("release 2"))
    gate.touch()
    running.ends()
    assert script.done == [1] and script.results[2].keys() == {0}
    assert script.events[-1] == "gone"


def test_draining_finishes_what_is_timed_and_gives_back_what_is_not(
    serve: Callable[..., Running],
) -> None:
    script = Script([job(1, "slow", "good"), job(2, "build_hangs"), job(3, "good")])
    running = serve(script)
    script.wait_for(script.happened("time 1", "lease 2"))
    running.daemon.drain()
    running.ends()
    assert script.done == [1]
    assert script.results[1].keys() == {0, 1}
    assert "release 2" in script.events and "lease 3" not in script.events
    assert script.events[-1] == "gone"


@pytest.mark.full
def test_draining_gives_back_what_is_not_finished_within_the_grace_period(
    serve: Callable[..., Running],
) -> None:
    script = Script([job(1, "wrong", "hangs"), job(2, "build_hangs")])
    running = serve(script, grace_s=0.2)
    script.wait_for(script.happened("time 1", "lease 2"))
    script.wait_for(lambda: 1 in script.results)
    running.daemon.drain()
    running.ends()
    assert script.results[1].keys() == {0}
    assert not script.done
    assert {"release 1", "release 2"} <= set(script.events) and script.events[-1] == "gone"


def test_a_worker_without_jobs_ends(serve: Callable[..., Running]) -> None:
    script = Script([job(1, "slow"), job(2, "good")])
    running = serve(script, idle_exit_s=0.2)
    running.ends()
    assert script.done == [1, 2] and script.events[-1] == "gone"


@pytest.mark.full
def test_no_job_is_leased_that_may_outlast_the_lifetime(
    serve: Callable[..., Running], gate: Path
) -> None:
    script = Script([job(1, "waits"), job(2, "good"), job(3, "good")])
    script.at["lease 2"] = gate.touch
    shift = 0.0

    def pass_by() -> None:
        nonlocal shift
        shift = 4000.0

    script.at["time 1"] = pass_by  # so that it took longer than what is left of the lifetime
    running = serve(script, lifetime_s=7200.0, clock=lambda: time.monotonic() + shift)
    running.ends()
    assert script.done == [1, 2]
    assert "lease 3" not in script.events and script.events[-1] == "gone"


@pytest.mark.full
def test_the_end_of_the_lifetime_gives_back_what_is_not_finished(
    serve: Callable[..., Running],
) -> None:
    script = Script([job(1, "hangs")])
    shift = 0.0
    running = serve(script, lifetime_s=7200.0, clock=lambda: time.monotonic() + shift)
    script.wait_for(script.happened("time 1"))
    shift = 7200.0
    running.ends()
    assert not script.done and script.events[-2:] == ["release 1", "gone"]


def test_stopping_leaves_a_job_at_once_and_keeps_what_is_finished(
    serve: Callable[..., Running],
) -> None:
    script = Script([job(1, "wrong", "hangs")])
    running = serve(script)
    script.wait_for(script.happened("time 1"))
    script.wait_for(lambda: 1 in script.results)
    running.stop.set()
    running.ends()
    assert script.results[1].keys() == {0}
    assert not script.done
    assert "release 1" in script.events and script.events[-1] == "gone"


class Away:
    """A cluster that never builds."""

    room = 0

    def start(self, changed: Callable[[], None]) -> None: ...
    def close(self) -> None: ...


@pytest.mark.full
def test_jobs_are_leased_as_far_ahead_as_builds_take_longer_where_there_are_builders(
    serve: Callable[..., Running],
) -> None:
    script = Script([job(1, "good")])
    daemon = serve(script, cluster=Away()).daemon
    script.wait_for(lambda: script.done == [1])  # built here
    assert daemon._build_s > 0 and daemon._time_s > 0
    for build_s, depth in ((0.1, 1), (2.5, 3), (50.0, 4)):
        script.asked.clear()
        daemon._build_s, daemon._time_s = build_s, 1.0
        script.wait_for(lambda depth=depth: depth in script.asked)
    script = Script([])
    daemon = serve(script).daemon
    daemon._width, daemon._build_s, daemon._time_s = 8, 50.0, 1.0
    for builders, depth in ((9, 1), (15, 2), (99, 4)):  # of this host
        daemon.cores = replace(CORES, building=tuple(range(builders)))
        script.asked.clear()
        script.wait_for(lambda depth=depth: script.asked == {depth})


def test_a_cancelled_run_stops_within_seconds(serve: Callable[..., Running]) -> None:
    script = Script([job(1, "hangs"), job(2, "good")])
    serve(script)
    script.wait_for(script.happened("time 1"))
    script.cancelled.add(1)
    script.wait_for(lambda: script.done == [1, 2])
    assert script.results[1] == {}  # what was not finished is not reported


@pytest.mark.full
def test_a_lost_lease_is_left_and_the_next_job_goes_on(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.checker.Checker.takes", lambda *_: False)  # it would hang there
    script = Script([job(1, "good"), job(2, "hangs"), job(3, "good")])
    script.at["done 1"] = 409  # another worker has it by now
    script.at["time 2"] = lambda: script.at.update({"time 2": 409})  # lost on the way
    serve(script)
    script.wait_for(lambda: script.done == [3])
    assert 1 not in script.results and 2 not in script.results
    assert "release 1" not in script.events and "release 2" not in script.events


@pytest.mark.skipif(CORES.overlap, reason="no core only builds")
def test_a_lease_that_is_lost_while_its_libraries_are_checked_is_left(
    serve: Callable[..., Running], gate: Path
) -> None:
    script = Script([job(1, "waits"), job(2, "hangs"), job(3, "good")])
    script.at["renew 2"] = 409
    script.at["lease 3"] = gate.touch
    serve(script)
    script.wait_for(lambda: script.done == [1, 3])
    assert 2 not in script.results and "time 2" not in script.events and "release 2" not in script.events


def test_what_is_timed_while_the_service_is_away_is_reported_later(
    serve: Callable[..., Running],
) -> None:
    script = Script([job(1, "slow", "good")])

    def leave() -> None:
        script.away = True
        back.start()

    def come_back() -> None:
        script.away = False

    back = threading.Timer(2.0, come_back)
    script.at["time 1"] = leave
    serve(script)
    script.wait_for(lambda: script.done == [1])
    assert all(r.error is None for r in script.results[1].values())
    assert len(script.results[1]) == 2
    back.join()


def test_other_workers_of_the_host_do_not_wait_for_the_service(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it is away, each report takes its time."""
    flush, timing = Holdings.flush, []

    def note(holdings: Holdings, timeout_s: float) -> None:
        timing.append(running.daemon._turn._timing)
        flush(holdings, timeout_s)

    monkeypatch.setattr(Holdings, "flush", note)
    script = Script([job(1, "good"), job(2, "good")])
    running = serve(script)
    script.wait_for(lambda: script.done == [1, 2])
    assert timing == [False] * 2


def test_a_forgotten_worker_registers_again(serve: Callable[..., Running]) -> None:
    script = Script([job(1, "good")], forgotten=1)
    serve(script)
    script.wait_for(lambda: script.done == [1])
    assert script.events.count("register") == 2


def test_a_worker_that_may_not_register_again_tries_later_and_says_so_once(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("workers.daemon._REFUSED_S", 0.01)
    script = Script([job(1, "good")], forgotten=4)

    def refuse() -> None:
        script.at["register"] = 403
        if script.forgotten > 1:
            script.at["forgotten"] = refuse

    script.at["forgotten"] = refuse
    serve(script)
    script.wait_for(lambda: script.done == [1])
    assert script.events.count("register") == 5
    assert caplog.text.count("the service refused this worker") == 1


def test_a_worker_of_another_version_of_a_package_gives_its_jobs_back_and_says_what_it_has(
    serve: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    """Its registration has none, as a strategy offers the implementations of a workload only."""
    right = job(2, "good", "wrong")
    first = job(1, "good")
    other = replace_struct(first, entries=(replace_struct(first.entries[0], version="2.00000000"),))
    script = Script([other, right])
    running = serve(script)
    assert running.daemon.info.operators["hostile"] == {ALL: 0}
    script.wait_for(lambda: script.done == [2])
    assert script.events.index("release 1") < script.events.index("lease 2")
    assert script.events.count("register") == 2
    assert 1 not in script.results
    has = int(first.entries[0].version.partition(".")[0])
    assert running.daemon.info.operators["hostile"] == {ALL: 0, "hostile.cpu": has}
    assert "job 1 (search, hostile(" in caplog.text
    assert ") was released: hostile.cpu: version 2.00000000 is requested" in caplog.text


def few(like: Job) -> Job:
    """The same job for a workload for which the implementation is not offered."""
    return replace_struct(like, workload=Workload.make("hostile", {"data": f"float32[{hostile.LEAST - 1}]"}))


def test_what_a_package_does_not_offer_for_one_workload_is_built_for_others_all_the_same(
    serve: Callable[..., Running],
) -> None:
    script = Script([job(1, "good"), few(job(2, "good")), job(3, "good")])
    running = serve(script)
    script.wait_for(lambda: script.done == [1, 2, 3])
    assert script.results[2][0].error is ErrorKind.INVALID
    assert running.daemon.info.operators["hostile"] == {ALL: 0}


def test_an_example_says_which_version_of_a_package_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An implementation is not missing because one workload is not offered it."""
    asked = few(job(1, "good"))
    (entry,) = asked.entries
    there = 3 + PROCESSOR_VERSION
    for example, version, has in ((3, entry.version, 0), (5, entry.version, None), (5, "2.00000000", there)):
        monkeypatch.setattr(get_op("hostile"), "examples", [Example({"data": f"float32[{example}]"}, {})])
        builder._version_elsewhere.cache_clear()
        with pytest.raises(builder.NotInstalledError) as caught:
            builder.check(asked.workload, asked.target, replace_struct(entry, version=version))
        assert caught.value.has == has
        assert ("is not offered for hostile(data=float32[3])" in str(caught.value)) == (example == 5)
    builder._version_elsewhere.cache_clear()


class Breaking:
    """A runner that times one entry, and breaks."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def run(
        self, job: Job, built: Any, interrupt: threading.Event, report: Callable[[Result], None], checked: Any
    ) -> None:
        report(Result(entry=0, samples_s=(1e-3,) * 6, run_s=6e-3))
        raise self.error

    def close(self) -> None: ...


def test_an_unexpected_error_ends_the_worker_which_keeps_what_is_timed(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("a defect")
    monkeypatch.setattr("workers.daemon.runner_on", lambda *_: Breaking(error))
    script = Script([job(1, "good", "good"), job(2, "good")])
    running = serve(script)
    running.expected = error
    running.ends()
    assert script.results[1].keys() == {0} and not script.done
    assert "release 1" in script.events and script.events[-1] == "gone"


@pytest.mark.parametrize("thread", ["lease.Holdings.keep_alive", "sender.Sender._send_all", "daemon.Daemon._build"])
def test_an_error_of_any_thread_ends_the_worker(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    error = RuntimeError("a defect")
    monkeypatch.setattr("workers.daemon.Daemon._depth", 2)  # of which there is one job left

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(f"workers.{thread}", fail)
    running = serve(Script([job(1, "good")]))
    running.expected = error
    running.ends()


def test_a_worker_that_cannot_read_a_job_ends_and_gives_it_back(serve: Callable[..., Running]) -> None:
    """Such as one of an older version: it would lose one job after the other, and have them quarantined."""
    script = Script([job(1, "good")])
    answer = script._answer

    def answer_newer(method: str, path: str, content: bytes) -> tuple[str, httpx.Response]:
        event, found = answer(method, path, content)
        return event, httpx.Response(200, json={"leases": [{"id": 1}]}) if event == "lease 1" else found

    script._answer = answer_newer
    running = serve(script)
    running.thread.join(HANG_S)
    running.expected = running.error
    assert isinstance(running.error, AnswerError) and "no Leases" in str(running.error)
    assert script.events == ["register", "lease 1", "gone"]


def test_a_full_disk_is_waited_for_and_said_once(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = [ScratchError("/tmp cannot be written: free some space")] * 2

    def check(folder: Path) -> None:
        if full:
            raise full.pop()

    monkeypatch.setattr("workers.builder_pool.check_room", check)
    monkeypatch.setattr("workers.daemon.FIRST_PAUSE_S", 0.01)
    script = Script([job(i, "build_raises") for i in (1, 2, 3)])
    serve(script)
    script.wait_for(lambda: script.done == [3])
    assert script.happened("release 1", "release 2")()
    assert script.results.keys() == {3}
    assert script.results[3][0].error is ErrorKind.INSTANTIATION
    assert caplog.text.count("free some space") == 1
    script.wait_for(lambda: caplog.text.count(GOES_ON) == 1)


def test_a_busy_device_is_waited_for(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease of one that was killed, as this worker's predecessor, ends by itself: another lives if it lasts."""
    monkeypatch.setattr("workers.daemon._LONG_BUSY_S", 0.0)
    script = Script([job(1, "good"), job(2, "good")])
    busy = httpx.Response(409, json={"type": "urn:plevel:device-busy", "detail": "busy"})
    answer = script._answer
    refused: list[str] = []
    said: list[int] = []

    def answer_busy(method: str, path: str, content: bytes) -> tuple[str, httpx.Response]:
        if path.endswith("/renew") and decode(content, Renewal).timing and refused.count(path) < 3:
            refused.append(path)
            said.append(caplog.text.count("another worker times on device"))
            return "busy", busy
        return answer(method, path, content)

    script._answer = answer_busy
    serve(script)
    script.wait_for(lambda: script.done == [1, 2])
    assert len(refused) == 6 and said[:4] == [0] * 4
    assert script.results[1][0].error is None
    assert caplog.text.count("another worker times on device") == 1
