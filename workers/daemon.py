"""The worker: leases jobs, builds them in children, times them in another, and reports.

Two threads share the device: one leases and builds jobs, and checks what was built, the other times it. They work
concurrently on separate cores; on the timing cores, builds run only while nothing is timed, and checks in the session
that times. A third thread renews leases, a fourth sends results.
"""
# Over 300 lines: one worker, whose threads share its state.

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from strategy.folder import scratch
from strategy.installed import installed
from strategy.installed_code import code_identity
from strategy.record import Device, Job, Lease, LeaseRequest, Registered, Result, WorkerInfo
from workers.builder import Built
from workers.builder_pool import AHEAD, BuilderPool, Elsewhere
from workers.checker import Checker
from workers.client import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    AnswerError,
    Client,
    DeviceBusyError,
    ServiceError,
    StoppedError,
    UnknownWorkerError,
)
from workers.cpu import Cores, claimed, environment, hottest
from workers.cuda.runner import runner_on
from workers.lease import GOODBYE_S, Held, Holdings
from workers.sandbox import WORKER_IMPORTS, ForkServer, Interrupted
from workers.scratch import GOES_ON, WAITS, ScratchError
from workers.spool import Spool
from workers.timing_runner import TimingRunner
from workers.turn import Turn

log = logging.getLogger(__name__)

_LEASE_WAIT_S = 10.0
_BUSY_S, _LONG_BUSY_S = 0.2, 10.0
_REFUSED_S = 2.0
_COOLING_S = 1.0


class _OtherVersionError(Exception):
    """This host has another version of an implementation than a job needs, which its registration did not say."""


@dataclass(frozen=True)
class _Batch:
    """A built job, queued for the timing thread."""

    held: Held
    leased_at: float  # by the daemon's clock
    built: tuple[Built, ...]
    checked: dict[int, float]  # the seconds of the check of entries that had one, on the building cores
    taken: threading.Event


@dataclass(eq=False)
class Daemon:
    """One worker with one device.

    Args:
        client: the service's client, with the same `stop`.
        spool: the spool of unacknowledged results.
        info: the registration, with exactly one device.
        cores: the cores of that device.
        stop: ends everything promptly.
        imports: modules that the fork server loads for children.
        hottest_c: the temperature in °C above which batches wait; None: no limit.
        lifetime_s: seconds after which unfinished jobs are released; no job is leased that takes longer than
            what is left, to judge by those before it.
        idle_exit_s: seconds without a job after which it drains.
        grace_s: seconds that `drain` leaves to the job being timed.
        cluster: builders of other hosts. Jobs are leased as far ahead as builds take longer than timing; without a
            cluster, no more than this host has builders for.
        clock: seconds, as of `time.monotonic`.
    """

    client: Client
    spool: Spool
    info: WorkerInfo
    cores: Cores
    stop: threading.Event
    imports: tuple[str, ...] = WORKER_IMPORTS
    hottest_c: float | None = None
    lifetime_s: float = math.inf
    idle_exit_s: float = math.inf
    grace_s: float = math.inf
    cluster: Elsewhere | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._device: Device = self.info.devices[0]
        self._stop_at = self.clock() + self.lifetime_s
        self._longest_s = 0.0  # of a job, from its lease to its end
        # Of a job, weighted to the last ones: from its lease until all of it is built and checked, and in the runner.
        self._build_s, self._time_s = 0.0, 0.0
        self._width = 8.0  # entries of a job, weighted so
        self._room_pause_s = FIRST_PAUSE_S
        self._refusal = ""  # the last answer, if the service refuses this worker
        self._is_shared = False  # another worker times on this device, which was said
        self._failure: Exception | None = None
        self._draining = threading.Event()
        self._holdings = Holdings(self.client, self.spool, self._fail)
        self._turn = Turn(self.cores.timing)
        self._batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._timed: Job | None = None  # the job in the runner
        self._registered: Registered | None = None
        self._listed = self.info.operators  # without what its builds find
        self._has_found = False  # since it registered
        self._offered: set[tuple[str, str]] = set()  # operators and implementations of which it has built something
        # The timing thread's time by activity, in seconds.
        self.spent: defaultdict[str, float] = defaultdict(float)

    def run(self, patience_s: float) -> None:
        """Serve the service until `drain` or the stop event.

        Raises:
            SandboxError: TVM cannot be loaded.
            UnreachableError: the service did not answer within `patience_s` at the start.
            ServiceError: the service refused this worker.
            Exception: the first unexpected error of a thread, which has ended all others.
        """
        try:
            timed_on = () if self._device.target.is_gpu else self.cores.timing
            with scratch() as folder, ForkServer(folder, self.imports) as server, claimed(timed_on) as alone:
                if not alone:
                    log.warning(
                        "another worker of this host times on cores %s, too, and they take turns: end one of them, or "
                        "give each cores of its own by --device", timed_on,
                    )
                self._registered = self.client.register(self.info, patience_s)
                log.info(
                    "%s registered with %s: %s, timing on cores %s, building on %s",
                    self.info.name, self.client.shown, self._device.target,
                    self.cores.timing, self.cores.building,
                )
                self._serve(server, folder)
        finally:
            if self._failure is not None:
                raise self._failure

    def drain(self) -> None:
        """Finish the job being timed, within the grace period, release the one being built, and end."""
        if self._registered is None:
            self.stop.set()
        self._stop_at = min(self._stop_at, self.clock() + self.grace_s)
        self._draining.set()
        self._batches.put(None)
        for held in self._holdings.all():
            if not held.timing:
                held.ended.set()

    def _serve(self, server: ForkServer, folder: Path) -> None:
        on_cuda = self._device.target.kind == "cuda"
        pool = BuilderPool(
            server, self.cores.building, folder, forks=on_cuda,
            shared=self.cores.timing, turn=self._turn, cluster=self.cluster,
        )
        runner = runner_on(server, self.cores.timing, self._device.slot)
        checker = Checker(server, self.cores, self._turn)
        leasing = threading.Thread(target=self._guard, args=(self._lease_and_build, pool, checker), name="build")
        timing = threading.Thread(target=self._guard, args=(self._time, runner), name="timing")
        keeping = threading.Thread(
            target=self._guard, args=(self._holdings.keep_alive, self._identity, self.stop), name="renew", daemon=True
        )
        leasing.daemon = True  # it may be waiting for a job at the end
        for thread in (leasing, timing, keeping):
            thread.start()
        # When draining, the timing thread ends after the current job.
        busy_at = self.clock()
        while not self.stop.is_set() and timing.is_alive():
            timing.join(0.2)
            busy_at = self._keep_limits(busy_at)
        self._draining.set()
        for held in self._holdings.all():
            held.ended.set()
        self._batches.put(None)
        timing.join(GOODBYE_S)
        self.stop.set()
        keeping.join(GOODBYE_S)  # a service is not asked again by a worker that has left
        self._say_goodbye()
        pool.close()
        checker.close()
        runner.close()

    def _keep_limits(self, busy_at: float) -> float:
        """Drain a worker that is idle, stop one whose time is over; return when it last had a job."""
        now = self.clock()
        if now >= self._stop_at:
            log.info("stopping: the time to finish is over, %d jobs are released", len(self._holdings.all()))
            self.stop.set()
        elif self._holdings.all():
            return now
        elif now - busy_at >= self.idle_exit_s and not self._draining.is_set():
            log.info("draining: no job for %g s", self.idle_exit_s)
            self.drain()
        return busy_at

    def _guard(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run a thread's work; an unexpected error in one ends the worker."""
        try:
            work(*arguments)
        except StoppedError:
            pass
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Stop the worker; `run` raises the first error."""
        log.error("the worker stops: %s: %s", type(error).__name__, error)
        self._failure = self._failure or error
        self.stop.set()

    def _say_goodbye(self) -> None:
        self._holdings.close()
        if self._registered is not None:
            with contextlib.suppress(ServiceError):
                self.client.deregister(self._registered.worker_id)

    # Leasing, building and checking

    def _lease_and_build(self, pool: BuilderPool, checker: Checker) -> None:
        ahead: set[Future[None]] = set()
        builds = ThreadPoolExecutor(AHEAD, "ahead")
        try:
            while not self._draining.is_set():
                left_s = self._stop_at - self.clock() - self._longest_s
                if left_s <= 0:
                    log.info("draining: a job takes up to %.0f s, longer than what is left", self._longest_s)
                    break
                for lease in self._next_leases(min(_LEASE_WAIT_S, left_s)):
                    held = self._holdings.add(lease)
                    if self._draining.is_set():
                        self._holdings.release(held)
                    else:
                        ahead.add(builds.submit(self._guard, self._build, held, pool, checker))
                while len(ahead) >= self._depth:
                    _, ahead = wait(ahead, return_when=FIRST_COMPLETED)
        finally:
            builds.shutdown(wait=False)
        self._batches.put(None)

    @property
    def _depth(self) -> int:
        """The number of jobs to have ahead: as many as are timed while one is built, if there are builders for them."""
        if not self._time_s:
            return 1
        most = AHEAD if self.cluster is not None else round(len(self.cores.building) / self._width)
        return max(1, min(math.ceil(self._build_s / self._time_s), most, AHEAD))

    def _identity(self) -> Registered:
        assert self._registered is not None
        return self._registered

    def _next_leases(self, wait_s: float) -> tuple[Lease, ...]:
        try:
            try:
                if self._has_found:
                    self._has_found = False
                    self._registered = self.client.register(self.info)
                request = LeaseRequest(
                    worker_id=self._identity().worker_id, device=self._device.identity, wait_s=wait_s, jobs=self._depth
                )
                leases = self.client.lease(request)
                if self._refusal:
                    log.info("the service accepts this worker again")
                self._refusal = ""
                return leases
            except UnknownWorkerError:
                if self._draining.is_set():  # the worker has just left
                    return ()
                self._registered = self.client.register(self.info)
                log.info("registered again, as the service no longer knew this worker")
        except AnswerError:  # jobs may be leased: the end of this worker releases them, and it would read no others
            raise
        except ServiceError as error:
            if str(error) != self._refusal:  # said once, as it may last for days
                log.warning("the service refused this worker: %s; retrying every %g s", error, _REFUSED_S)
            self._refusal = str(error)
            self._draining.wait(_REFUSED_S)
        return ()

    def _build(self, held: Held, pool: BuilderPool, checker: Checker) -> None:
        leased_at = self.clock()
        self._width += (len(held.lease.job.entries) - self._width) / 2
        try:
            built = pool.build(held.lease.job, held.ended, lambda b: self._note_built(held, b))
            good = [b for b in built if b.error is None]
            found = checker.check(
                held.lease.job, good, held.ended, lambda result: self._holdings.report(held, result),
                lambda: None if self.stop.is_set() else self._timed,
            )
        except ScratchError as error:
            self._await_room(held, error)
            return
        except _OtherVersionError as error:
            log.warning("%s was released: %s", held, error, extra=held.ids)
            held.end()
            self._holdings.leave(held)
            return
        except Interrupted:  # the lease has ended
            found = {}
        if held.ended.is_set():
            self._holdings.leave(held)
            return
        self._build_s += (self.clock() - leased_at - self._build_s) / 2
        batch = _Batch(
            held, leased_at, tuple(b for b in good if b.entry in found),
            {entry: seconds for entry, seconds in found.items() if seconds is not None}, threading.Event(),
        )
        self._batches.put(batch)
        # It is ahead until it is timed.
        while not batch.taken.wait(0.5) and not self.stop.is_set():
            pass

    def _await_room(self, held: Held, error: ScratchError) -> None:
        """Release a job that this host has no room for, and wait, longer each time."""
        held.end()
        self._holdings.leave(held)
        if self._room_pause_s == FIRST_PAUSE_S:
            log.warning("%s was released, and the worker %s: %s", held, WAITS, error, extra=held.ids)
        self._draining.wait(self._room_pause_s)
        self._room_pause_s = min(2 * self._room_pause_s, LONGEST_PAUSE_S)

    def _note_built(self, held: Held, built: Built) -> None:
        """Report a failure; raise `_OtherVersionError` if it is of this host, which then registers what it has."""
        op = held.lease.job.workload.op
        name = next(e.implementation for e in held.lease.job.entries if e.index == built.entry)
        if built.error is None:
            self._offered.add((op, name))
        elif (
            built.has is None or name in self._listed.get(op, {})
            or (not built.has and (op, name) in self._offered)  # for other workloads, whose jobs it would get no more
        ):
            self._holdings.report(held, built.failure())
        else:
            known = self.info.operators
            found = known | {op: known.get(op, {}) | {name: built.has}}
            self.info = msgspec.structs.replace(self.info, operators=found)
            self._has_found = True
            raise _OtherVersionError(built.message)

    # Timing

    def _time(self, runner: TimingRunner) -> None:
        since = self.clock()
        while (batch := self._next_batch()) is not None:
            held = batch.held
            self.spent["waiting for a job"] += max(0.0, batch.leased_at - since)
            since = self._spend("waiting for a build", max(since, batch.leased_at))
            self._cool_down(held)
            # Report the end of the previous job first. Before the lock, for which other workers of this host wait.
            self._holdings.flush(_LEASE_WAIT_S)
            try:
                with self._turn.time(held.ended.is_set) as mine:
                    if mine and self._begin_timing(held):
                        batch.taken.set()
                        since = self._spend("asking the service", since)
                        self._time_batch(batch, runner)
                        if self._room_pause_s > FIRST_PAUSE_S:
                            log.warning("the worker goes on: %s", GOES_ON)
                        self._room_pause_s = FIRST_PAUSE_S
                        since = self._spend("loading and reporting", since)
                        self._longest_s = max(self._longest_s, since - batch.leased_at)
            except ScratchError as error:
                self._await_room(held, error)
                since = self._spend("waiting for room on disk", since)
                continue
            finally:
                batch.taken.set()
            if held.ended.is_set():
                self._holdings.leave(held)
            since = self._spend("asking the service", since)

    def _next_batch(self) -> _Batch | None:
        if self._batches.empty():
            self._timed = None
        batch = self._batches.get()
        self._timed = None if batch is None else batch.held.lease.job
        return batch

    def _cool_down(self, held: Held) -> None:
        said = False
        while self.hottest_c is not None and (hottest() or 0.0) > self.hottest_c:
            if not said:
                log.warning(
                    "%s is waiting: a sensor is above %g °C (--max-temperature)",
                    held, self.hottest_c, extra=held.ids,
                )
                said = True
            if held.ended.wait(_COOLING_S):
                return

    def _spend(self, what: str, since: float) -> float:
        """Attribute the time since `since` to `what`; return the current time."""
        now = self.clock()
        self.spent[what] += now - since
        return now

    def _begin_timing(self, held: Held) -> bool:
        """Turn the lease into the device's timing lease; return False if it is lost."""
        if held.ended.is_set():
            return False
        held.timing = True
        since = self.clock()
        # Until this worker has timed a job, one that was killed may be the other: its lease ends within two terms.
        patience_s = _LONG_BUSY_S if self._time_s else max(_LONG_BUSY_S, 2 * self._identity().lease_s)
        while not held.ended.is_set():
            try:
                self._holdings.renew(held)
                break
            except DeviceBusyError as error:
                log.debug("%s is waiting for the timing lease: %s", held, error)
                if not self._is_shared and self.clock() - since >= patience_s:
                    self._is_shared = True
                    log.warning(
                        "another worker times on device %s, and they take turns: end one of them; or two machines have "
                        "the same /etc/machine-id: give each its own", self._device.identity,
                    )
                held.ended.wait(_BUSY_S)
            except ServiceError as error:
                log.warning(
                    "%s: %s; timing continues, results are sent once it answers",
                    held, error, extra=held.ids,
                )
                break
        return not held.ended.is_set()

    def _time_batch(self, batch: _Batch, runner: TimingRunner) -> None:
        held, job = batch.held, batch.held.lease.job
        began = self.clock()
        outcomes: Counter[str] = Counter()
        timed: list[Result] = []

        def report(result: Result) -> None:
            parts = (
                ("timing", result.run_s),
                ("checking", 0.0 if result.entry in batch.checked else result.check_s),
                ("preparing", result.prepare_s),
            )
            for what, seconds in parts:
                self.spent[what] += seconds or 0.0
                self.spent["loading and reporting"] -= seconds or 0.0  # already part of that time
            outcomes[result.error.value if result.error else "timed"] += 1
            if result.error is None:
                timed.append(result)  # times come at the end, and are reported together
            else:
                self._holdings.report(held, result)

        try:
            conditions = runner.run(job, batch.built, held.ended, report, batch.checked)
        except Interrupted:
            self._holdings.report(held, *timed)
            return
        except Exception:
            self._holdings.report(held, *timed)
            raise
        self._time_s += (self.clock() - began - self._time_s) / 2
        toolchain = conditions.environment | {"TVM_NUM_THREADS": job.target.threads}
        self._holdings.finish(held, environment() | toolchain, tuple(conditions.references), timed)
        outcomes["failed before"] = len(job.entries) - len(batch.built)
        shown = ", ".join(f"{count} {what}" for what, count in outcomes.items() if count)
        log.info(
            "%s: %s in %.2f s, %.2f s of it timing", held, shown, self.clock() - began,
            sum(result.run_s for result in timed), extra=held.ids,
        )


def describe_worker(name: str, device: Device) -> WorkerInfo:
    """The registration of a worker: its host, process, device, version and operators."""
    return WorkerInfo(
        name=name, host=socket.gethostname(), pid=os.getpid(), devices=(device,),
        version=code_identity(), operators=installed(),
    )
