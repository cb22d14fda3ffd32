"""Children that build and time, for real: what kills one of them costs that configuration only."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm

from strategy.compile.array import empty_tensor, to_tensor
from strategy.compile.artefact import load
from strategy.compile.export import link
from strategy.compile.openmp import LAUNCHER, Evictor, build_launcher, use_openmp
from strategy.op_strategy import candidates
from strategy.record import ErrorKind, Job, JobEntry, Phase, Result, TimingPolicy, estimate
from strategy.select import holds
from strategy.space import Config
from strategy.target import Target
from strategy.types import TensorType
from strategy.workload import Workload
from strategy.workload_text import parse_workload
from workers import builder, cpu, pool, sandbox, scratch
from workers.builder import Built
from workers.builder_pool import BuilderPool, library_name
from workers.cpu import assign, parse_cores, timing_lock
from workers.data import Data
from workers.fork import LENGTH, PROGRESS_BYTES, Channel, Limits
from workers.guard import Placement
from workers.kernel import Kernel
from workers.reference import random_inputs, reference, tolerances
from workers.runner import Runner, Session
from workers.sandbox import WORKER_IMPORTS, Child, Died, ForkServer, Interrupted, Late, SandboxError
from workers.scratch import ScratchError
from workers.timing_runner import TimingRunner
from workers.turn import Turn
from workers.workspace import build_allocator

sys.path.insert(0, str(Path(__file__).parent))  # where the children find the operator too
import hostile

from tests.limit import HANG_S, wait_until

QUICK = TimingPolicy(budget_s=0.02, build_timeout_s=HANG_S, run_timeout_s=HANG_S)
IMPATIENT = TimingPolicy(budget_s=0.02, build_timeout_s=4, run_timeout_s=4)
TARGET = Target.parse("cpu").with_threads(1)
HOSTILE = Workload.make("hostile", {"data": "float32[64]"})
CORES = assign(parse_cores("cpu"), 1)
NEVER = threading.Event()
LOST_CORE = 1000  # of no host that runs tests


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("logs"), (*WORKER_IMPORTS, "hostile")) as found:
        yield found


@pytest.fixture
def builders(server: ForkServer, tmp_path: Path) -> Iterator[BuilderPool]:
    pool = BuilderPool(server, CORES.building, tmp_path, 2**30)
    yield pool
    pool.close()


@pytest.fixture
def runner(server: ForkServer) -> Iterator[TimingRunner]:
    found = TimingRunner(server, CORES.timing, 2**30)
    yield found
    found.close()


def job_of(
    workload: Workload, entries: list[tuple[str, str, Config]], policy: TimingPolicy = QUICK
) -> Job:
    return Job(
        id=1, run_id=1, workload=workload, target=TARGET, phase=Phase.SEARCH, policy=policy, seed=7,
        entries=tuple(
            JobEntry(index=i, task_id=1, implementation=name, version=version, config=config)
            for i, (name, version, config) in enumerate(entries)
        ),
    )


def hostile_job(
    *deeds: str, policy: TimingPolicy = QUICK, workload: Workload = HOSTILE
) -> Job:
    assert set(deeds) <= set(hostile.DEEDS)
    (candidate,) = candidates(workload, TARGET)
    configs = [Config({"deed": deed, "id": i}) for i, deed in enumerate(deeds)]
    return job_of(workload, [("hostile.cpu", candidate.version, c) for c in configs], policy)


def run(
    job: Job, builders: BuilderPool, runner: TimingRunner
) -> tuple[list[Built], dict[int, Result]]:
    """Build and time a job; every entry that was built must have exactly one result."""
    built = builders.build(job, NEVER)
    assert [b.entry for b in built] == [e.index for e in job.entries]
    results: list[Result] = []
    good = [b for b in built if b.error is None]
    runner.run(job, good, NEVER, results.append)
    assert sorted(r.entry for r in results) == [b.entry for b in good]
    return built, {r.entry: r for r in results}


# Children


def test_a_child_answers_and_is_set_up_as_asked(server: ForkServer) -> None:
    core = CORES.timing[0]
    limits = Limits(module="hostile", cores=(core,), environment={"TVM_NUM_THREADS": "3"})
    child = server.spawn(limits)
    child.send("environment")
    assert child.receive(HANG_S) == {
        "threads": 1,  # nothing that must not be forked has started
        "tvm_threads": "3",
        "cores": [core],
        "session": True,
        "loaded": True,
        "collects": True,
        "frozen": True,
    }
    child.send({"deep": [1, "ü" * 100_000]})
    assert child.receive(HANG_S) == {"echo": {"deep": [1, "ü" * 100_000]}}
    child.kill()


X86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
SIGNALS = (
    "kill", "killpg", "kill all", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
    "pidfd_send_signal", "fcntl", "ptrace", "process_vm_readv", "process_vm_writev", "prlimit64",
)


def escape(server: ForkServer, ways: Sequence[str], **options: Any) -> dict[str, int]:
    """By which error each way out of a child ends; 0 where it is open."""
    own = options.pop("own", False)
    child = server.spawn(Limits(module="hostile", **options))
    found = {}
    for way in ways:
        child.send({"escape": way, "own": own})
        found[way] = child.receive(HANG_S)
    child.kill()
    return found


@pytest.mark.parametrize("forks", [False, True])
def test_a_child_opens_sockets_of_this_host_only(server: ForkServer, forks: bool) -> None:
    found = escape(server, hostile.FAMILIES, forks=forks)
    assert found.pop("AF_UNIX") == 0
    assert set(found.values()) == {errno.EACCES}


@X86
@pytest.mark.parametrize("way", ["int 0x80", "x32", "io_uring"])
def test_a_child_has_one_interface_to_the_kernel(server: ForkServer, way: str) -> None:
    # A kernel without the interface of 32 bits kills instead.
    with contextlib.suppress(Died):
        assert escape(server, [way]) == {way: errno.ENOSYS}


@X86
@pytest.mark.parametrize("forks", [False, True])
def test_a_child_reaches_no_other_process(server: ForkServer, forks: bool) -> None:
    assert set(escape(server, SIGNALS, forks=forks).values()) == {errno.EPERM}


@X86
def test_a_child_reaches_itself(server: ForkServer) -> None:
    ways = ("kill", "killpg", "tkill", "tgkill", "prlimit64", "pthread_kill", "getrlimit")
    assert set(escape(server, ways, own=True).values()) == {0}


def test_a_late_child_is_told_from_a_dead_one(server: ForkServer) -> None:
    child = server.spawn(Limits(module="hostile"))
    child.send("hang")
    wait_until(lambda: child.stage == 5, "its stage 5")
    os.kill(child.pid, signal.SIGTERM)  # a batch system signals every process of a job: the daemon decides
    with pytest.raises(Late):
        child.receive(0.3)
    assert not child.alive
    assert child.stage == 5
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    child = server.spawn(Limits(module="hostile"))
    child.send("leave")
    with pytest.raises(Died, match="exit status 7"):
        child.receive(HANG_S)
    with pytest.raises(Died):
        child.send("anything")


def test_what_comes_before_the_first_stage_has_a_limit_of_its_own(server: ForkServer) -> None:
    child = server.spawn(Limits(module="hostile"))
    child.send("prepare and hang")
    with pytest.raises(Late, match=r"longer than 0\.5 s"):
        child.receive(0.5, first_s=HANG_S)
    assert child.stage == 0
    child = server.spawn(Limits(module="hostile"))
    child.send("prepare and hang")
    with pytest.raises(Late, match=r"longer than 0\.2 s"):
        child.receive(HANG_S, first_s=0.2)
    assert child.stage == -1


def test_time_in_which_the_worker_was_stopped_is_no_time_out(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SIGSTOP or a paused container, which may stop its children, too."""
    child, over, waits = server.spawn(Limits(module="hostile")), threading.Event(), itertools.count(1)
    stopped_s = 0.0

    def be_stopped(*given: Any) -> Any:
        nonlocal stopped_s
        stopped_s = 3600.0
        if next(waits) == 3:
            over.set()
        return []

    polling = SimpleNamespace(register=lambda *given: None, poll=be_stopped)
    monkeypatch.setattr(sandbox, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + stopped_s))
    monkeypatch.setattr(sandbox, "select", SimpleNamespace(POLLIN=1, poll=lambda: polling))
    child.send("hang")
    with pytest.raises(Interrupted):
        child.receive(HANG_S, over)


def test_waiting_can_be_interrupted(server: ForkServer) -> None:
    child = server.spawn(Limits(module="hostile"))
    child.send("hang")
    stop = threading.Event()
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    with pytest.raises(Interrupted):
        child.receive(HANG_S, stop)
    assert not child.alive
    timer.join()


def test_a_message_that_is_none_is_a_death(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_MESSAGE_S", 0.5)
    for sent, words in (("garbage", "its length is 4294967295 bytes"), ("half a message", "timed out")):
        child = server.spawn(Limits(module="hostile"))
        child.send(sent)
        with pytest.raises(Died, match=f"it sent what is no message: {words}") as died:
            child.receive(HANG_S)
        assert not died.value.out_of_memory and not child.alive


@pytest.mark.parametrize("asked", ["damage the marks", "zero the marks"])
def test_a_child_that_damages_its_marks_is_not_waited_for_for_ever(server: ForkServer, asked: str) -> None:
    """Nor is another stage blamed, nor none."""
    child = server.spawn(Limits(module="hostile"))
    child.send(asked)
    with pytest.raises(Died, match="damaged the memory that it shares"):
        child.receive(HANG_S)
    assert not child.alive and child.stage == sandbox.UNKNOWN


def test_children_end_with_their_server(tmp_path: Path) -> None:
    with ForkServer(tmp_path, ("hostile",)) as short:
        child = short.spawn(Limits(module="hostile"))
        child.send("hang")
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    child.kill()
    with pytest.raises(SandboxError):
        short.spawn(Limits(module="hostile"))


@pytest.mark.full
def test_requests_to_many_children_end_with_the_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, above all: children that still work are not waited for."""
    answers: list[Any] = []
    begun, ask = threading.Event(), pool._ask

    def watched(child: Child, request: Any, *until: Any) -> Any:
        if request == "interrupt":
            begun.wait(HANG_S)
            child.kill()
            raise KeyboardInterrupt
        child.send(request)
        wait_until(lambda: child.stage == 5, "its stage 5")
        begun.set()
        answers.append(ask(child, request, *until))

    monkeypatch.setattr(pool, "_ask", watched)
    monkeypatch.setattr(pool, "usable_cores", lambda: 2)
    with pytest.raises(KeyboardInterrupt):
        pool.ask_all([(Limits(module="hostile"), one) for one in ("interrupt", "hang")], 20.0)
    assert [type(a) for a in answers] == [Died]


@pytest.mark.parametrize("sent", [b"", LENGTH.pack(9) + b"{"], ids=["nothing", "half a request"])
def test_a_server_whose_daemon_has_gone_ends_without_a_word(sent: bytes) -> None:
    mine, its = socket.socketpair()
    with its:
        mine.sendall(sent)
        mine.close()
        code = f"from workers.fork import serve_forks; serve_forks({its.fileno()}, [])"
        done = subprocess.run(
            [sys.executable, "-c", code], pass_fds=[its.fileno()], capture_output=True, check=False,
            timeout=HANG_S,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_module_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"no_such_module.*plevel\[worker\]"):
        ForkServer(tmp_path, ("no_such_module",))


# Building


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("deed", "kind", "words"),
    [
        ("build_raises", ErrorKind.INSTANTIATION, "the compute refused"),
        ("build_aborts", ErrorKind.CRASH, "SIGABRT"),
        ("build_hangs", ErrorKind.BUILD_TIMEOUT, "longer than 4 s"),
        ("build_eats_memory", ErrorKind.OOM, ""),
        ("build_forks", ErrorKind.INSTANTIATION, "temporarily unavailable"),
    ],
)
def test_a_bad_build_fails_alone(
    builders: BuilderPool,
    runner: TimingRunner,
    tmp_path: Path,
    deed: str,
    kind: ErrorKind,
    words: str,
) -> None:
    policy = IMPATIENT if deed.endswith("hangs") else QUICK
    job = hostile_job("good", deed, "good", policy=policy)
    half_done = (tmp_path / library_name(job, job.entries[1])).with_suffix(".0.o")
    half_done.touch()
    built, results = run(job, builders, runner)
    assert not half_done.exists()
    assert [b.error for b in built] == [None, kind, None]
    assert words in built[1].message
    assert results.keys() == {0, 2}
    assert all(r.error is None and len(r.samples_s) >= 1 for r in results.values())


@pytest.mark.parametrize("deed", ["build_raises", "build_aborts"])
def test_a_build_that_fails_on_a_full_disk_is_no_failure_of_its_configuration(
    builders: BuilderPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    monkeypatch.setattr(scratch.tempfile, "TemporaryFile", lambda **_: FileIO("/dev/full", "w"))
    assert [b.error for b in builders.build(hostile_job("good"), NEVER)] == [None]
    with pytest.raises(ScratchError, match=rf"{tmp_path} cannot be written \(No space left on device\): free"):
        builders.build(hostile_job(deed), NEVER)


def test_a_build_that_the_kernel_kills_is_tried_again(
    builders: BuilderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of memory it kills children first, whoever has taken it."""
    receive, killed = Child.receive, []

    def kill_first(child: Child, *given: Any) -> Any:
        if not killed:
            killed.append(child.pid)
            os.kill(child.pid, signal.SIGKILL)
        return receive(child, *given)

    monkeypatch.setattr(Child, "receive", kill_first)
    assert [b.error for b in builders.build(hostile_job("good"), NEVER)] == [None] and killed


def test_a_builder_that_died_after_a_build_does_not_fail_the_next(builders: BuilderPool) -> None:
    """As of memory that the build has corrupted."""
    builders.build(hostile_job("good"), NEVER)
    for slot in builders._slots:
        if slot.child is not None:
            os.kill(slot.child.pid, signal.SIGABRT)
    assert [b.error for b in builders.build(hostile_job("build_raises", "wrong"), NEVER)] == [
        ErrorKind.INSTANTIATION, None,
    ]


def test_a_folder_that_was_deleted_ends_the_worker_not_its_candidates(builders: BuilderPool, tmp_path: Path) -> None:
    """By a cleaner of temporary files, which takes what nobody has used for days."""
    (first,) = builders.build(hostile_job("good"), NEVER)
    Path(first.path).unlink()
    (second,) = builders.build(hostile_job("good"), NEVER)
    assert second.error is None and Path(second.path).exists()
    shutil.rmtree(tmp_path)
    with pytest.raises(SandboxError, match=f"^{tmp_path} was deleted"):
        builders.build(hostile_job("good", "build_raises"), NEVER)


def test_a_child_without_room_for_its_words_does_its_work(tmp_path: Path) -> None:
    with ForkServer(tmp_path / "gone", ("hostile",)) as server:
        child = server.spawn(Limits(module="hostile"))
        child.send(1)
        assert child.receive(HANG_S) == {"echo": 1}
        child.kill()


def test_what_a_builder_started_ends_with_it(builders: BuilderPool) -> None:
    (built,) = builders.build(hostile_job("build_leaves_orphans"), NEVER)
    assert built.error is ErrorKind.CRASH
    running = [
        p
        for p in Path("/proc").iterdir()
        if p.name.isdecimal() and _command(p) == b"sleep\x004321\x00"
    ]
    assert not running


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_what_is_not_installed_here_is_refused(builders: BuilderPool) -> None:
    (candidate,) = candidates(HOSTILE, TARGET)
    version, good = candidate.version, Config({"deed": "good", "id": 0})
    job = job_of(
        HOSTILE,
        [
            ("hostile.cpu", "2.0000", good),
            ("other.cpu", version, good),
            ("hostile.cpu", version, Config({"deed": "good", "id": 100})),
            ("hostile.cpu", version, Config({"deed": "good"})),
        ],
    )
    built = builders.build(job, NEVER)
    assert [b.error for b in built] == [ErrorKind.INVALID] * 4
    assert "2.0000" in built[0].message and version in built[0].message
    assert "other.cpu" in built[1].message and "hostile.cpu" in built[1].message
    assert "id=100" in built[2].message
    assert "id" in built[3].message


def test_an_interrupted_build_leaves_out_what_is_not_done(builders: BuilderPool) -> None:
    stop = threading.Event()
    job = hostile_job("good", "build_hangs", "good")
    built = builders.build(job, stop, lambda one: stop.set())
    assert 0 in [b.entry for b in built] and 1 not in [b.entry for b in built]


def test_a_pool_that_is_closed_leaves_what_it_builds(server: ForkServer, tmp_path: Path) -> None:
    """After Ctrl-C, which sets no event."""
    pool = BuilderPool(server, CORES.building, tmp_path, 2**30, children=1)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(pool.build, hostile_job("build_hangs", "good"), NEVER)
        slot = pool._slots[0]
        wait_until(lambda: slot.child is not None and slot.child.stage == 0, "the first build")
        began = time.monotonic()
        pool.close()
        assert asked.result(HANG_S) == []
        assert time.monotonic() - began < QUICK.build_timeout_s, "it was waited for"


def test_what_was_built_is_not_built_again(builders: BuilderPool, runner: TimingRunner) -> None:
    (first,) = builders.build(hostile_job("good"), NEVER)
    assert first.build_s > 0
    both, results = run(hostile_job("good", "wrong"), builders, runner)
    assert both[0].path == first.path and both[0].code_digest == first.code_digest
    assert both[0].build_s == 0 < both[1].build_s
    assert results[0].error is None and results[1].error is ErrorKind.WRONG_ANSWER


def test_two_jobs_at_once_build_the_same_library_once(server: ForkServer, tmp_path: Path) -> None:
    pool = BuilderPool(server, CORES.building, tmp_path, 2**30, children=2)
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda _: pool.build(hostile_job("slow"), NEVER), range(2)))
    (one,), (other,) = sorted(both, key=lambda built: built[0].build_s)
    assert one.build_s == 0 < other.build_s
    assert one.path == other.path and Path(one.path).exists()
    pool.close()


def test_a_core_that_times_builds_only_while_it_does_not(server: ForkServer, tmp_path: Path) -> None:
    elsewhere = (max(CORES.all) + 1,)  # no such core, which does not matter while it may not build
    turn = Turn((*CORES.timing, *elsewhere))
    pool = BuilderPool(server, CORES.building, tmp_path, 2**30, shared=elsewhere, turn=turn)
    shared = BuilderPool(server, (), tmp_path, 2**30, shared=CORES.timing, turn=turn)
    with ThreadPoolExecutor(1) as thread:
        with turn.time(NEVER.is_set):
            waiting = thread.submit(shared.build, hostile_job("good", "slow"), NEVER)
            assert [b.error for b in pool.build(hostile_job("good", "good"), NEVER)] == [None, None]
            assert not waiting.done()
        assert [b.error for b in waiting.result()] == [None, None]
    pool.close()
    shared.close()


def test_a_build_without_a_turn_is_told_and_does_not_wait_for_ever(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").symlink_to("elsewhere")  # somebody's trap, which is not followed
    monkeypatch.setattr(cpu, "_SHARED", (tmp_path,))
    monkeypatch.setattr(cpu, "_LOCK_NAME", "lock")
    shared = BuilderPool(server, (), tmp_path, 2**30, shared=CORES.timing, turn=Turn(CORES.timing))
    try:
        with pytest.raises(cpu.DeviceError, match="lock cannot be opened"):
            shared.build(hostile_job("good", "good"), NEVER)
    finally:
        shared.close()


def test_a_job_that_comes_after_the_end_is_not_waited_for(builders: BuilderPool) -> None:
    builders.close()
    assert builders.build(hostile_job("good"), NEVER) == []


def test_the_digest_is_that_of_the_code(builders: BuilderPool) -> None:
    good, same, wrong = builders.build(hostile_job("good", "good", "wrong"), NEVER)
    assert good.code_digest == same.code_digest != wrong.code_digest
    assert len(good.code_digest) == 64


# Running


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("deed", "kind", "words"),
    [
        ("aborts", ErrorKind.CRASH, "SIGABRT"),
        ("segfaults", ErrorKind.CRASH, "SIGSEGV"),
        ("exits", ErrorKind.CRASH, "exit status 0"),
        ("exits_unfit", ErrorKind.CRASH, "exit status 71"),
        ("hangs", ErrorKind.RUN_TIMEOUT, "longer than 4 s"),
        ("eats_memory", ErrorKind.OOM, ""),
        ("forks", ErrorKind.RUNTIME, "temporarily unavailable"),
        ("raises", ErrorKind.RUNTIME, "the kernel refused"),
        ("writes_nothing", ErrorKind.WRONG_ANSWER, "64 of 64 elements are wrong"),
        ("wrong", ErrorKind.WRONG_ANSWER, "64 of 64"),
        ("slightly_wrong", ErrorKind.WRONG_ANSWER, "at [5]"),
        ("writes_input", ErrorKind.WRONG_ANSWER, "input data"),
        ("wrong_later", ErrorKind.WRONG_ANSWER, "after timing"),
    ],
)
def test_a_bad_kernel_fails_alone(
    builders: BuilderPool, runner: TimingRunner, deed: str, kind: ErrorKind, words: str
) -> None:
    policy = IMPATIENT if deed.endswith("hangs") else QUICK
    job = hostile_job("good", deed, "good", policy=policy)
    built, results = run(job, builders, runner)
    assert [b.error for b in built] == [None] * 3
    assert results[1].error is kind, results[1].message
    assert words in results[1].message
    assert not results[1].samples_s
    for index in (0, 2):
        assert results[index].error is None, results[index].message
        assert results[index].samples_s


@pytest.mark.full
def test_inputs_that_a_timed_kernel_damaged_are_not_kept(builders: BuilderPool, runner: TimingRunner) -> None:
    _, results = run(hostile_job("writes_input_later"), builders, runner)
    assert results[0].error is ErrorKind.WRONG_ANSWER
    _, results = run(hostile_job("good"), builders, runner)
    assert results[0].error is None, results[0].message


UNALIGNED = Workload.make("hostile", {"data": "float32[61]"})
PAGES = Workload.make("hostile", {"data": f"float32[{mmap.PAGESIZE}]"})  # one run has both sides of its buffers


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("deed", "workload", "words"),
    [
        ("reads_past_end", HOSTILE, "memory 1 byte past the end of input data"),
        ("reads_far_past_end", UNALIGNED, "memory 100001 bytes past the end of input data"),
        ("reads_before", HOSTILE, "memory 8 bytes before the beginning of input data"),
        ("writes_past_end", HOSTILE, "memory 1 byte past the end of output"),
        ("writes_before", UNALIGNED, "4 bytes, the last of them 8 bytes before the beginning of"),
        ("writes_gap", UNALIGNED, "outside of output: 3 bytes, the last of them 3 bytes past the end"),
        ("writes_before_input", UNALIGNED, "memory 8 bytes before the beginning of input data"),
        ("reads_before", PAGES, "memory 8 bytes before the beginning of input data"),
        ("writes_past_end", PAGES, "memory 1 byte past the end of output"),
        ("code_reads_past_end", HOSTILE, "past the end of input data"),
        ("code_reads_before", HOSTILE, "before the beginning of input data"),
        ("code_writes_past_end", HOSTILE, "past the end of"),
        ("code_reads_past_workspace", HOSTILE, "past the end of a workspace"),
        ("code_writes_past_workspace", HOSTILE, "outside of a workspace: 4 bytes, the last of them 4 bytes past"),
        ("code_writes_before_workspace", HOSTILE, "before the beginning of a workspace"),
    ],
)
def test_a_kernel_that_leaves_its_buffers_has_no_time(
    builders: BuilderPool, runner: TimingRunner, deed: str, workload: Workload, words: str
) -> None:
    job = hostile_job("good", deed, "good", workload=workload)
    built, results = run(job, builders, runner)
    assert [b.error for b in built] == [None] * 3
    assert results[1].error is ErrorKind.OUT_OF_BOUNDS, results[1].message
    assert words in results[1].message
    assert not results[1].samples_s
    for index in (0, 2):
        assert results[index].error is None, results[index].message
        assert results[index].samples_s


@pytest.mark.full
def test_a_fault_elsewhere_is_a_crash(builders: BuilderPool, runner: TimingRunner) -> None:
    _, results = run(hostile_job("segfaults"), builders, runner)
    assert results[0].error is ErrorKind.CRASH
    assert results[0].message == "the child died (SIGSEGV)"


@pytest.mark.full
def test_many_bad_kernels_in_one_job(builders: BuilderPool, runner: TimingRunner) -> None:
    job = hostile_job("segfaults", "good", "aborts", "wrong", "segfaults", "good")
    _, results = run(job, builders, runner)
    crash = ErrorKind.CRASH
    assert [results[i].error for i in range(6)] == [
        crash, None, crash, ErrorKind.WRONG_ANSWER, crash, None,
    ]


def test_a_child_that_died_after_a_job_fails_no_entry_of_the_next(builders: BuilderPool, runner: TimingRunner) -> None:
    """As of memory that the job's kernels have corrupted."""
    run(hostile_job("good"), builders, runner)
    assert runner._child is not None
    os.kill(runner._child.pid, signal.SIGABRT)
    _, results = run(hostile_job("good", "aborts"), builders, runner)
    assert [results[i].error for i in range(2)] == [None, ErrorKind.CRASH]


def test_a_kernel_that_damages_marks_fails_alone(builders: BuilderPool, runner: TimingRunner) -> None:
    _, results = run(hostile_job("good", "damages_marks", "good"), builders, runner)
    assert [results[i].error for i in range(3)] == [None, ErrorKind.CRASH, None]


def test_a_session_can_be_interrupted(builders: BuilderPool, runner: TimingRunner) -> None:
    job = hostile_job("good", "hangs")
    built = builders.build(job, NEVER)
    stop = threading.Event()
    timer = threading.Timer(0.5, stop.set)
    timer.start()
    with pytest.raises(Interrupted):
        runner.run(job, built, stop, lambda result: None)
    timer.join()
    # The next job gets a new child.
    _, results = run(hostile_job("good"), builders, runner)
    assert results[0].error is None


def test_the_clock_is_right(builders: BuilderPool, runner: TimingRunner) -> None:
    _, results = run(hostile_job("slow"), builders, runner)
    assert 0.02 <= estimate(results[0].samples_s).median_s < 0.04


@pytest.mark.sample(1)
@pytest.mark.parametrize("m", [1, 33])
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "variable"])
def test_every_implementation_of_dense_is_built_checked_and_timed(
    builders: BuilderPool, runner: TimingRunner, m: int, constant: bool
) -> None:
    types = {"data": f"float32[{m},129]", "weight": "float32[67,129]"}
    workload = Workload.make("dense", types, constants=["weight"] if constant else [])
    rng = random.Random(5)
    offered = [c for c in candidates(workload, TARGET) if holds(c, workload)]
    entries = [
        (c.implementation, c.version, config)
        for c in offered
        for config in ([c.fallback] if c.space is None else [c.fallback, *c.space.sample(rng, 2)])
    ]
    built, results = run(job_of(workload, entries), builders, runner)
    assert [(b.entry, b.message) for b in built if b.error] == []
    for index, (name, _, config) in enumerate(entries):
        result: Any = results[index]
        assert result.error is None, f"{name} {config}: {result.message}"
        assert 1e-8 < estimate(result.samples_s).median_s < 0.1
        prepares = constant and name in ("dense_pack.cpu", "dense_large_m.cpu")
        assert (result.prepare_s is not None) >= prepares
        assert result.build_s > 0 and result.check_s > 0 and result.run_s > 0
        assert result.code_digest == built[index].code_digest
        assert abs(result.measured_at - time.time()) < 600


ON_OPENMP = TARGET.with_threads(2).in_network()


@pytest.mark.full
def test_kernels_run_on_the_threads_that_the_target_names(
    builders: BuilderPool, runner: TimingRunner
) -> None:
    """Checked under guard pages and killed as on TVM's pool, in a child of their own."""
    types = {"data": "float32[33,129]", "weight": "float32[67,129]"}
    workload = Workload.make("dense", types, constants=["weight"])
    offered = [c for c in candidates(workload, ON_OPENMP) if holds(c, workload)]
    assert not [c for c in offered if c.library]  # OpenBLAS has threads of its own
    job = job_of(workload, [(c.implementation, c.version, c.fallback) for c in offered])
    on_openmp = msgspec.structs.replace(job, target=ON_OPENMP)
    pools = []
    for one in (on_openmp, job, on_openmp):
        results: list[Result] = []
        built = builders.build(one, NEVER)
        pools.append(runner.run(one, built, NEVER, results.append).environment["thread_pool"])
        assert [r.message for r in results if r.error] == []
        assert len(results) == len(offered)
    assert pools == ["openmp", "tvm", "openmp"]
    bad = hostile_job("good", "hangs", "code_writes_past_end", "good", policy=IMPATIENT)
    _, found = run(msgspec.structs.replace(bad, target=TARGET.in_network()), builders, runner)
    assert [found[i].error for i in range(4)] == [None, ErrorKind.RUN_TIMEOUT, ErrorKind.OUT_OF_BOUNDS, None]


def test_a_parallel_loop_is_launched_by_openmp(builders: BuilderPool, tmp_path: Path) -> None:
    workload = Workload.make("dense", {"data": "float32[64,64]", "weight": "float32[64,64]"})
    (chosen,) = [c for c in candidates(workload, ON_OPENMP) if c.implementation == "dense_nopack.cpu"]
    job = job_of(workload, [(chosen.implementation, chosen.version, chosen.fallback)])
    (built,) = builders.build(msgspec.structs.replace(job, target=ON_OPENMP), NEVER)
    counting = tmp_path / "counting.c"
    counting.write_text(
        f'#include "{LAUNCHER}"\nint count;\n'
        "int plevel_launch(Body b, void *d, int n) { ++count; return openmp_launch(b, d, n); }\n"
    )
    launcher = link(["-fopenmp", counting.name], tmp_path)
    kernel = load(Path(built.path))
    use_openmp(Path(built.path), launcher)
    rng = np.random.default_rng(3)
    data, weight = (rng.random((64, 64), "float32") for _ in range(2))
    out = empty_tensor(TensorType((64, 64), "float32"))
    kernel.main(to_tensor(data), to_tensor(weight), out)
    np.testing.assert_allclose(out.numpy(), data @ weight.T, rtol=1e-4)
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(launcher)), "count").value == 1


def test_openmp_that_is_missing_ends_the_worker_not_its_candidates(
    builders: BuilderPool, runner: TimingRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    refusal = 'case "$*" in *-fopenmp*) echo "cannot find -lgomp" >&2; exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\n{refusal}\nexec gcc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    job = msgspec.structs.replace(hostile_job("good"), target=TARGET.in_network())
    with pytest.raises(SandboxError, match="OpenMP's threads cannot be used: install a C compiler with OpenMP"):
        run(job, builders, runner)


def test_a_compiler_that_compiles_nothing_ends_the_worker_not_its_candidates(
    builders: BuilderPool, runner: TimingRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(SandboxError, match=r"kernels cannot be checked on this host: .*set CC for another compiler"):
        run(hostile_job("good"), builders, runner)


def test_a_linker_that_is_missing_ends_the_worker_not_its_candidates(builders: BuilderPool) -> None:
    for slot in builders._slots:
        slot.limits = msgspec.structs.replace(slot.limits, environment={"PATH": ""})
    with pytest.raises(SandboxError, match=r"^this host has no linker: install a C compiler"):
        builders.build(hostile_job("good"), NEVER)


def test_a_configuration_that_leaves_no_memory_to_start_the_linker_fails_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **options: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "ld")

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(OSError, match="Cannot allocate memory") as error:
        builder._join([], tmp_path / "one.so")
    assert builder._is_memory(str(error.value))


def test_cores_that_are_lost_end_the_worker_not_its_candidates(
    server: ForkServer, builders: BuilderPool, tmp_path: Path
) -> None:
    """Unplugged, or taken by another group of processes."""
    lost = BuilderPool(server, (LOST_CORE,), tmp_path)
    with pytest.raises(SandboxError, match=f"^cores {LOST_CORE} are offline"):
        lost.build(hostile_job("good"), NEVER)
    lost.close()
    runner = TimingRunner(server, (LOST_CORE,), 2**30)
    with pytest.raises(SandboxError, match=f"^cores {LOST_CORE} are offline"):
        run(hostile_job("good"), builders, runner)
    runner.close()


@pytest.mark.full
def test_packed_weights_of_many_entries_do_not_need_all_their_memory_at_once(
    server: ForkServer, builders: BuilderPool
) -> None:
    """Of 16 MiB each: all of them together reach the child's limit, and a good kernel would be blamed.

    So would one of a later session, if freed weights left holes in the heap.
    """
    workload = Workload.make(
        "dense", {"data": "float32[1,4096]", "weight": "float32[1024,4096]"}, constants=["weight"]
    )
    (c,) = (c for c in candidates(workload, TARGET) if c.implementation == "dense_gemv.cpu")
    assert c.space is not None
    given = [(c.implementation, c.version, config) for config in c.space.sample(random.Random(0), 20)]
    small = TimingRunner(server, CORES.timing, 2**29)
    try:
        built, results = run(job_of(workload, given), builders, small)
        errors = {r.error for r in results.values()}
        for _ in range(2):
            small.run(job_of(workload, given), built[::-1], NEVER, lambda r: errors.add(r.error))
    finally:
        small.close()
    assert errors == {None}


def test_inputs_and_references_are_kept_for_later_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of a network's layers come in turns, and a reference may take longer than the timing."""
    drawn: list[int] = []

    def counted(workload: Workload, inputs: Mapping[str, Any]) -> Any:
        drawn.append(inputs["data"].shape[0])
        return reference(workload, inputs)

    monkeypatch.setattr("workers.data.reference", counted)
    mine, its = socket.socketpair()
    with mine, its:
        session = Runner(Channel(mine, mmap.mmap(-1, PROGRESS_BYTES)))

        def prepare(rows: int, seed: int, most_bytes: int) -> None:
            workload = Workload.make("dense", {"data": f"float32[{rows},32]", "weight": "float32[16,32]"})
            data = session._prepare_data(workload, seed, most_bytes)
            assert data.inputs["data"].shape == (rows, 32)
            assert np.array_equal(data.inputs["data"], random_inputs(workload, seed)["data"])

        for rows in (4, 8, 4, 8):
            prepare(rows, 0, 1 << 20)
        assert drawn == [4, 8]
        prepare(4, 1, 1 << 20)
        assert drawn == [4, 8, 4]
        for rows in (8, 16, 16, 8):  # one of them fits
            prepare(rows, 0, 1 << 12)
        assert drawn == [4, 8, 4, 16, 8]


def test_caches_are_flushed_before_each_call_where_that_is_asked(
    builders: BuilderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = Workload.make("dense", {"data": "float32[4,32]", "weight": "float32[16,32]"})
    (c,) = (c for c in candidates(workload, TARGET) if c.implementation == "dense_nopack.cpu")
    assert c.fallback is not None
    job = job_of(workload, [(c.implementation, c.version, c.fallback)])
    (built,) = builders.build(job, NEVER)
    inputs = random_inputs(workload, 0)
    outputs = tuple(np.asarray(x) for x in reference(workload, inputs))
    tensors = {name: tvm.runtime.tensor(array) for name, array in inputs.items()}
    data = Data(inputs, tensors, outputs, tolerances(workload, inputs, outputs))
    asked: list[dict[str, Any]] = []
    evaluate = tvm.runtime.Module.time_evaluator

    def listen(module: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(options)
        return evaluate(module, *arguments, **options)

    monkeypatch.setattr(tvm.runtime.Module, "time_evaluator", listen)
    mine, its = socket.socketpair()
    with mine, its:
        session = Runner(Channel(mine, mmap.mmap(-1, PROGRESS_BYTES)))
        for cache_flush in (False, True):
            asks = msgspec.structs.replace(job, policy=TimingPolicy(cache_flush=cache_flush))
            kernel = session._open(built, data, Session(job=asks, built=(built,), cores=()))
            kernel.load()
            kernel.bind()
            assert kernel.measure(100) > 0
            kernel.compare()
    assert asked == [
        {"number": 100, "repeat": 1},
        {"number": 1, "repeat": 100, "f_preproc": "cache_flush_cpu_non_first_arg"},
    ]


def test_constants_alone_are_evicted_before_each_call_of_a_network_s_kernel(
    builders: BuilderPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by a launcher that also writes zeros to what it is told to evict: outputs follow from those."""
    workload = parse_workload(
        "dense(data=float32[4,32],weight=float32[16,32]:const)+bias_add(.,bias_add0.bias=float32[16]:const)"
    )
    (c,) = (c for c in candidates(workload, ON_OPENMP) if c.implementation == "dense_pack.cpu")
    job = job_of(workload, [(c.implementation, c.version, c.fallback)])
    (built,) = builders.build(msgspec.structs.replace(job, target=ON_OPENMP), NEVER)
    (tmp_path / "counting.c").write_text(
        f'#include "{LAUNCHER}"\n#include <string.h>\nint count;\n'
        "int plevel_launch(Body b, void *d, int n) { return openmp_launch(b, d, n); }\n"
        "void plevel_evict(char *const *data, const int64_t *bytes, int n) {\n"
        "  for (int i = 0; i < n; ++i) memset(data[i], 0, bytes[i]);\n  ++count;\n}\n"
    )
    launcher = link(["-fopenmp", "counting.c"], tmp_path)
    inputs = random_inputs(workload, 0)
    tensors = {name: tvm.runtime.tensor(array) for name, array in inputs.items()}
    data = Data(inputs, tensors, (np.ones((4, 16), "float32"),), (1e-6,))
    kernel = Kernel(built, data, launcher=launcher, cold_constants=True)
    kernel.load()
    kernel.bind()
    assert kernel.measure(100) > 0
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(launcher)), "count").value == 100
    assert not kernel._outputs[0].array.any()  # all constants are zeros
    monkeypatch.setattr("workers.kernel._MOST_EVICTING_S", 0.0)
    assert kernel.measure(1000) > 0
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(launcher)), "count").value == 101, "it takes too long"
    np.testing.assert_array_equal(tensors["data"].numpy(), inputs["data"])


@pytest.mark.full
def test_evicted_buffers_keep_their_values(tmp_path: Path) -> None:
    drawn = [np.random.default_rng(n).random(n, "float32") for n in (1, 1000, 2_000_003)]
    kept = [values.copy() for values in drawn]
    Evictor(build_launcher(tmp_path), [(v.ctypes.data, v.nbytes) for v in drawn])()
    for values, before in zip(drawn, kept, strict=True):
        np.testing.assert_array_equal(values, before)


def test_a_session_that_repeats_one_checks_nothing_again(
    builders: BuilderPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []
    events: list[str] = []
    allocator = str(build_allocator(tmp_path))
    check, measure = Kernel.check, Kernel.measure
    # Not the threads of this process.
    monkeypatch.setattr("workers.runner.pin_threads", lambda cores, known: events.append("pin"))
    monkeypatch.setattr(Kernel, "measure", lambda kernel, calls: (events.append("call"), measure(kernel, calls))[1])
    monkeypatch.setattr(Kernel, "check", lambda kernel: (checked.append(kernel.entry), check(kernel)))
    job = hostile_job("good", "wrong")
    built = tuple(builders.build(job, NEVER))
    mine, its = socket.socketpair()
    with mine, its:
        runner, answers = (Channel(end, mmap.mmap(-1, PROGRESS_BYTES)) for end in (mine, its))
        first, second = Runner(runner), Runner(runner)
        passed = ((0, 0.5), (1, 0.5))
        # A pool's threads start at a kernel's first call in a process, before they are pinned; one thread has no pool.
        for one, again, cores, begin in (
            (first, (), (0, 1), "pin"), (first, passed, (0, 1), "pin"), (second, passed, (0,), "pin"),
            (second, passed, (0, 1), "call"),
        ):
            session = Session(job=job, built=built, cores=cores, allocator=allocator, checked=again)
            events.clear()
            one.run(session)
            assert events[0] == begin
            found = [answers.receive() for _ in range(4)]
            # After timing, too.
            assert {m["result"].get("error") for m in found if "result" in m} == {None, "wrong_answer"}
            assert sum("reference" in m for m in found) == 2
    assert checked == [0, 1]


def test_buffers_that_fill_pages_are_checked_by_one_run_and_packed_once(
    builders: BuilderPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Placement] = []
    packed: list[int] = []
    run, pack = Kernel._run_guarded, Kernel._pack
    monkeypatch.setattr(Kernel, "_run_guarded", lambda kernel, side: (runs.append(side), run(kernel, side))[1])
    monkeypatch.setattr(
        Kernel, "_pack", lambda kernel, places, given: (packed.extend(places), pack(kernel, places, given))[1]
    )
    allocator = build_allocator(tmp_path)

    def checked(job: Job) -> Kernel:
        runs.clear(), packed.clear()
        (built,) = builders.build(job, NEVER)
        kernel = Kernel(built, Runner._draw(None, job.workload, 0), allocator=allocator)
        kernel.load()
        kernel.check()
        kernel.bind()
        assert kernel.measure(1) > 0
        kernel.compare()
        return kernel

    def packing(m: int, n: int) -> Job:
        types = {"data": f"float32[{m},64]", "weight": f"float32[{n},64]"}
        workload = Workload.make("dense", types, constants=["weight"])
        (c,) = (c for c in candidates(workload, TARGET) if c.implementation == "dense_pack.cpu")
        return job_of(workload, [(c.implementation, c.version, c.fallback)])

    checked(hostile_job("good", workload=PAGES))
    assert runs == [Placement.END]
    checked(packing(3, 5))
    assert runs == list(Placement) and packed == [1, 1]
    kernel = checked(packing(32, 64))
    assert packed == [1] and kernel.prepare_s is not None
    before = kernel._own[1].pointer
    kernel.release()
    # Packed data is not left to a kernel that packs nothing.
    kernel.load()
    assert kernel._take_all(Placement.BEGIN) == [1]
    assert kernel._own[1].pointer == before
    assert (kernel._own[1].array.view(np.uint8) == 0xFF).all()


@pytest.mark.full
def test_threads_of_a_repeated_session_have_a_core_each(
    server: ForkServer, builders: BuilderPool
) -> None:
    """In a new child: the one that has checked the kernels may have died."""
    cores = parse_cores("cpu")[:2]
    workload = Workload.make("dense", {"data": "float32[64,64]", "weight": "float32[64,64]"})
    (chosen,) = [c for c in candidates(workload, TARGET) if c.implementation == "dense_nopack.cpu"]
    job = job_of(workload, [(chosen.implementation, chosen.version, chosen.fallback)])
    job = msgspec.structs.replace(job, target=TARGET.with_threads(2))
    runner = TimingRunner(server, cores, 2**30)
    results: list[Result] = []
    try:
        runner.run(job, builders.build(job, NEVER), NEVER, results.append, {0: 0.0})
        assert runner._child is not None
        threads = Path(f"/proc/{runner._child.pid}/task").iterdir()
        assert sorted(os.sched_getaffinity(int(t.name)) for t in threads) == [{core} for core in cores]
    finally:
        runner.close()
    assert [r.error for r in results] == [None]


@pytest.mark.sample(1)
@pytest.mark.parametrize("moved", [0.0, 1.0])
def test_a_child_that_has_loaded_many_libraries_is_replaced(
    builders: BuilderPool, runner: TimingRunner, monkeypatch: pytest.MonkeyPatch, moved: float
) -> None:
    """It keeps their mappings, whose number is limited; libraries that are timed again count again."""
    monkeypatch.setattr("workers.timing_runner._MOST_LOADED", 5)
    monkeypatch.setattr("workers.timing_runner.drift", lambda references: moved)  # else as busy as this host is
    job, pids = hostile_job("good", "slightly_wrong"), []
    for _ in range(5):
        _, results = run(job, builders, runner)
        assert [results[i].error for i in range(2)] == [None, ErrorKind.WRONG_ANSWER]
        assert runner._child is not None
        pids.append(runner._child.pid)
    replaced = [before != after for before, after in itertools.pairwise(pids)]
    assert replaced == ([True, False, True, True] if moved else [False, True, False, True])


def test_one_timing_at_a_time_on_a_host() -> None:
    with timing_lock() as mine:
        assert mine
        asked = []

        def stop() -> bool:
            asked.append(1)
            return len(asked) > 2

        with timing_lock(stop) as second:
            assert not second
    with timing_lock() as again:
        assert again
