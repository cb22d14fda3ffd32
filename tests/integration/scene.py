"""A scene for tests of the service: a workload with candidates as data, workers, a run.

The operator is installed nowhere, and times come from a formula: these tests are about the store, the
queue and the protocol, not about kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.errors import ServiceError
from service.queue import fleet, retry
from service.queue import job as jobs
from service.queue import lease as leasing
from service.queue import report as reporting
from service.queue.place import LeaseAsk
from service.store.db import Store
from service.store.sql import now
from service.store.tables import job, lease, record
from service.tuning import plan as planning
from service.tuning import run as runs
from service.tuning import run_status
from strategy.op_strategy import Candidate
from strategy.record import (
    SEARCH_POLICY,
    Device,
    ErrorKind,
    JobEntry,
    Lease,
    Phase,
    Report,
    Result,
    Results,
    ResultsAccepted,
    RunRequest,
    RunWorkload,
    WorkerInfo,
)
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.workload import Input, Workload

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")
OTHER_TARGET = Target.parse("llvm -mcpu=znver3 -num-cores=2")
WORKLOAD = Workload("filter", (Input("data", "float32[64,64]"),))
SPACE = ConfigSpace([Knob("x", range(12)), Knob("y", range(12))], fallback={"x": 0, "y": 0})
FAST = Candidate("filter_tiled.cpu", f"1.{SPACE.digest}", 5, None, SPACE)
SLOW = Candidate("filter_plain.cpu", f"1.{SPACE.digest}", 10, None, SPACE)
LIBRARY = Candidate("filter_vendor.cpu", "1.0", 15, None, None, "vendor")
CANDIDATES = (FAST, SLOW, LIBRARY)
TERMS = retry.Terms(lease_s=60.0, alive_s=60.0)
_SCALE = {FAST.implementation: 1.0, SLOW.implementation: 2.5, LIBRARY.implementation: 1.6}


def device(identity: str = "host-a/cpu:0-1", target: Target = TARGET, model: str = "Model A") -> Device:
    return Device(identity=identity, slot="cpu:0-1", model=model, target=target)


def info(*devices: Device, name: str = "worker", **values: Any) -> WorkerInfo:
    return WorkerInfo(name=name, host="host-a", pid=1, devices=devices or (device(),), **values)


def request(workload: Workload = WORKLOAD, **values: Any) -> RunRequest:
    asked = RunWorkload(workload=workload, candidates=CANDIDATES)
    return RunRequest(**({"workloads": (asked,), "target": TARGET, "trials": 24} | values))


def drawn(**values: Any) -> RunRequest:
    """A request whose configurations are drawn: where what is tried does not matter, no model is started."""
    return request(tuner="random", **values)


def seconds(implementation: str, config: Config) -> float:
    """The formula: a bowl whose lowest point is x=8 y=3."""
    x, y = config.get("x", 2), config.get("y", 2)
    assert isinstance(x, int)
    assert isinstance(y, int)
    return 1e-3 * _SCALE[implementation] * (1 + ((x - 8) / 6) ** 2 + ((y - 3) / 6) ** 2)


def timed(entry: JobEntry) -> Result:
    """The result of an entry by the formula."""
    median_s = seconds(entry.implementation, entry.config)
    samples = tuple(median_s * (1 + 0.001 * i) for i in range(-4, 5))
    return Result(entry=entry.index, samples_s=samples, run_s=sum(samples), measured_at=1.0)


def failed(entry: int, error: ErrorKind = ErrorKind.COMPILE) -> Result:
    return Result(entry=entry, error=error, message="it did not work")


def lease_jobs(
    connection: sa.Connection, worker_id: int, identity: str, most: int = 1,
    terms: retry.Terms = TERMS,
) -> list[Lease]:
    """The leases of one worker that asks for jobs; raises its refusal."""
    (answer,) = leasing.lease_many(connection, [LeaseAsk(worker_id, identity, most)], terms)
    if isinstance(answer, ServiceError):
        raise answer
    return answer


@dataclass
class Scene:
    """A store with one run and its tasks, and one-line forms of what workers do."""

    store: Store
    run_id: int
    workload_id: int
    target_id: int
    tasks: dict[str, int]

    @classmethod
    def make(
        cls, store: Store, asked: RunRequest | None = None, namespace: str = "default"
    ) -> Scene:
        asked = asked or request()
        with store.write() as c:
            run_id = runs.create(c, asked, planning.plan(asked), namespace)
            status = run_status.status(c, run_id, TERMS.alive_s)
            query = sa.text(
                "SELECT task.workload_id, run.target_id FROM task, run WHERE task.id = :task AND run.id = :run"
            )
            first = c.execute(query, {"task": status.tasks[0].task_id, "run": run_id}).one()
        tasks = {t.implementation: t.task_id for t in status.tasks}
        return cls(store, run_id, first.workload_id, first.target_id, tasks)

    def enqueue(
        self,
        configs: Sequence[Config],
        task: str = FAST.implementation,
        phase: Phase = Phase.SEARCH,
        **values: Any,
    ) -> int:
        with self.store.write() as c:
            return jobs.enqueue(
                c, self.run_id, self.workload_id, self.target_id, phase,
                [jobs.NewEntry(self.tasks[task], config) for config in configs], SEARCH_POLICY,
                seed=1, **values,
            )

    def register(self, *devices: Device, **values: Any) -> int:
        with self.store.write() as c:
            return fleet.register(c, info(*devices, **values))

    def lease(self, worker_id: int, identity: str = "host-a/cpu:0-1") -> Lease | None:
        with self.store.write() as c:
            return next(iter(lease_jobs(c, worker_id, identity)), None)

    def lease_many(
        self, worker_id: int, most: int, identity: str = "host-a/cpu:0-1"
    ) -> list[Lease]:
        with self.store.write() as c:
            return lease_jobs(c, worker_id, identity, most)

    def leased(self, worker_id: int, identity: str = "host-a/cpu:0-1") -> Lease:
        found = self.lease(worker_id, identity)
        assert found is not None
        return found

    def report(self, held: Lease, results: Sequence[Result], done: bool = True) -> ResultsAccepted:
        sent = Results(token=held.token, session=f"s{held.id}", results=tuple(results), done=done)
        with self.store.write() as c:
            return reporting.report(c, Report(lease_id=held.id, results=sent), TERMS)

    def lose(self, held: Lease) -> None:
        """The lease's time is over, by the database's clock, and somebody notices."""
        with self.store.write() as c:
            c.execute(
                sa.update(lease).where(lease.c.id == held.id).values(expires_at=now() - 1.0)
            )
            retry.expire(c, TERMS)
            # The back-off is over too.
            c.execute(sa.update(job).values(available_at=now() - 1.0))

    def states(self) -> list[str]:
        with self.store.read() as c:
            return list(c.scalars(sa.select(job.c.state).order_by(job.c.id)))

    def records(self) -> list[Any]:
        with self.store.read() as c:
            return list(c.execute(sa.select(record).order_by(record.c.id)))


def configs(n: int) -> list[Config]:
    return [Config({"x": i % 12, "y": i // 12}) for i in range(n)]
