"""Data for the pages: runs of a real operator, and one whose every name is hostile.

Records go in through the queue, as a worker's would; times come from a formula.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Sequence

import sqlalchemy as sa

from service.queue import fleet, retry
from service.queue import job as jobs
from service.queue import report as reporting
from service.records import network
from service.store.db import Store
from service.store.sql import now
from service.store.tables import best, cost_model, device, event, job, record, run, task, worker
from service.tuning import plan as planning
from service.tuning import run as runs
from strategy.confirmation import Comparison, Confirmation, Part
from strategy.op_strategy import Candidate
from strategy.record import (
    SEARCH_POLICY,
    Device,
    ErrorKind,
    Estimate,
    JobEntry,
    Phase,
    Reference,
    Report,
    Result,
    Results,
    RunRequest,
    RunState,
    RunWorkload,
    WorkerInfo,
)
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.workload import Input, Workload
from tests.integration.scene import lease_jobs

TERMS = retry.Terms(lease_s=3600.0, alive_s=3600.0)
TARGET = Target.parse(
    {"kind": "llvm", "mcpu": "znver4", "num-cores": 2, "keys": ["cpu"], "libs": ["cblas"]}
)
SCRIPT = "<script>window.hacked=1</script>"
IMAGE = "\"'><img src=x onerror=window.hacked=1>"
# A name of a workload holds no spaces, brackets of calls, quotes, commas or equals signs.
HOSTILE_OP = "<svg/onload;alert`1`><b>'&amp;/../x?y#z%2e</script>"
HOSTILE_IMPLEMENTATION = f"{IMAGE}{{{{7*7}}}}.cpu"
HOSTILE_MESSAGE = f"{SCRIPT}\n{IMAGE}\n</pre></details>{SCRIPT}" + "\n  at line 12: error\n" * 40
SHAPES = [
    (1, 768, 768), (16, 768, 768), (16, 3072, 768), (128, 768, 768), (128, 768, 3072),
    (128, 3072, 768), (384, 3072, 768), (384, 1024, 4096), (512, 512, 512), (768, 768, 768),
    (1000, 1000, 1000), (37, 1003, 531),
]


def dense(m: int | str, n: int, k: int) -> Workload:
    inputs = {"data": f"float32[{m},{k}]", "weight": f"float32[{n},{k}]"}
    return Workload.make("dense", inputs, constants=("weight",))


def hostile_candidates() -> tuple[Candidate, ...]:
    space = ConfigSpace(
        [Knob(IMAGE, range(8)), Knob("</script>", [SCRIPT, "b", "c"]), Knob("z", [1, 2, 4])],
        fallback={IMAGE: 0, "</script>": "b", "z": 1},
    )
    return (
        Candidate(HOSTILE_IMPLEMENTATION, f"1.{space.digest}", 5, None, space),
        Candidate(SCRIPT, "1.0", 15, None, None, IMAGE),
    )


HOSTILE = Workload(HOSTILE_OP, (Input("<img/src>", "float32[64,64]"),), {"layout": SCRIPT})


def _unit(text: str) -> float:
    """A number in [0, 1) that the text decides."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32


def seconds(workload: Workload, entry: JobEntry) -> float:
    """The formula: each implementation has its own level and its own valley of knobs."""
    dims = [d for d in workload.dims.values() if isinstance(d, int)]
    work = math.prod(dims[:2]) * (dims[2] if len(dims) > 2 else 1)
    level = 0.9 + 1.4 * _unit(f"{entry.implementation}{workload.key}")
    shape = 1.0
    for i, (name, value) in enumerate(sorted(entry.config.items())):
        wanted = _unit(f"{entry.implementation}{name}")
        shape *= 1 + (0.5 / (i + 1)) * abs(_unit(f"{name}{value}") - wanted)
    return (5e-6 + 2e-11 * work) * level * shape


def result(workload: Workload, entry: JobEntry, rng: random.Random) -> Result:
    roll = rng.random()
    hostile = workload.op == HOSTILE_OP
    if entry.config and (roll < 0.08 or (hostile and entry.index % 9 == 4)):
        kind = rng.choice([ErrorKind.COMPILE, ErrorKind.WRONG_ANSWER, ErrorKind.RUN_TIMEOUT,
                           ErrorKind.CRASH, ErrorKind.INSTANTIATION])
        message = HOSTILE_MESSAGE if hostile else f"{kind.value}: a message of several lines\n  at 1"
        return Result(entry=entry.index, error=kind, message=message, build_s=0.03)
    median_s = seconds(workload, entry)
    noise = 0.07 if hostile else 0.006
    samples = tuple(median_s * (1 + noise * abs(rng.gauss(0, 1))) for _ in range(9))
    return Result(entry=entry.index, samples_s=samples, build_s=0.032, run_s=0.06, prepare_s=1e-4)


class Farm:
    """Two workers' worth of answers for the runs of a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.rng = random.Random(7)
        self.devices = (
            self._device("3f2a9c11e07b4d52/cpu:0-1", "AMD EPYC 9B45"),
            self._device(f"{IMAGE}/cpu:0-1", f"Model {SCRIPT}"),
        )
        with store.write() as c:
            self.workers = [
                fleet.register(c, WorkerInfo(name=name, host=host, pid=4242, devices=(d,), version="0.1"))
                for name, host, d in (
                    ("farm-1", "farm-1.example", self.devices[0]), (SCRIPT, IMAGE, self.devices[1]),
                )
            ]
        self.dispatched = 0

    def _device(self, identity: str, model: str) -> Device:
        fingerprint = {"cores": 2, "l2_bytes": 1048576, SCRIPT: IMAGE}
        return Device(
            identity=identity, slot="cpu:0-1", model=model, target=TARGET, fingerprint=fingerprint
        )

    def ask(self, workloads: Sequence[RunWorkload], trials: int) -> int:
        asked = RunRequest(workloads=tuple(workloads), target=TARGET, trials=trials, force=True)
        planned = planning.plan(asked)
        with self.store.write() as c:
            return runs.create(c, asked, planned)

    def search(self, run_id: int, trials: int) -> None:
        """So many trials of each tunable implementation, and one of each other."""
        with self.store.read() as c:
            tasks = c.execute(
                sa.text(
                    "SELECT t.id, t.workload_id, t.target_id, t.space FROM task t "
                    "JOIN run_task rt ON rt.task_id = t.id WHERE rt.run_id = :run"
                ).columns(space=task.c.space.type),
                {"run": run_id},
            ).all()
        for t in tasks:
            configs = [{}]
            if t.space is not None:
                space = ConfigSpace.from_json(t.space)
                configs = space.sample(self.rng, trials)
            self._measure(run_id, [(t, c) for c in configs], Phase.SEARCH)

    def confirm(self, run_id: int) -> None:
        with self.store.read() as c:
            found = c.execute(
                sa.text(
                    "SELECT t.id, t.workload_id, t.target_id, b.config FROM task t "
                    "JOIN run_task rt ON rt.task_id = t.id JOIN best b ON b.task_id = t.id "
                    "WHERE rt.run_id = :run AND b.scope = 'target' ORDER BY t.workload_id, t.id"
                ).columns(config=best.c.config.type),
                {"run": run_id},
            ).all()
        # The finals of a workload are one job.
        for _, of_one in itertools.groupby(found, key=lambda t: t.workload_id):
            self._measure(run_id, [(t, t.config) for t in of_one], Phase.CONFIRM)

    def _measure(self, run_id: int, what, phase: Phase) -> None:
        """One job of tasks with configurations, all of one workload."""
        entries = [jobs.NewEntry(t.id, Config(config)) for t, config in what]
        t = what[0][0]
        with self.store.write() as c:
            jobs.enqueue(
                c, run_id, t.workload_id, t.target_id, phase, entries, SEARCH_POLICY, seed=1
            )
        which = self.dispatched % 7 == 6
        self.dispatched += 1
        with self.store.write() as c:
            identity = self.devices[which].identity
            (held,) = lease_jobs(c, self.workers[which], identity, terms=TERMS)
        assert held is not None
        workload = held.job.workload
        results = tuple(
            r for e in held.job.entries if (r := result(workload, e, self.rng)) is not None
        )
        if phase is Phase.CONFIRM:  # what was timed once can be timed again
            results = tuple(
                r if r.error is None else result(workload, e, random.Random(1))
                for e, r in zip(held.job.entries, results, strict=True)
            )
        sent = Results(
            token=held.token, session=f"s{held.id}", results=results,
            environment={"compiler": "clang 19", "governor": IMAGE}, done=True,
            references=(self._reference(),),
        )
        with self.store.write() as c:
            reporting.report(c, Report(lease_id=held.id, results=sent), TERMS)

    def _reference(self) -> Reference:
        """The calibration kernel's times beside every batch, on a host that slows down now and then."""
        middle_s = 4e-5 * (1.3 if self.dispatched % 11 == 5 else 1 + 0.02 * self.rng.random())
        return Reference(
            samples_s=(middle_s * 0.99, middle_s, middle_s * 1.01),
            measured_at=1.79e9 + 60.0 * self.dispatched,
        )

    def finish(self, run_id: int, message: str = "the budget is spent") -> None:
        with self.store.write() as c:
            runs.finish(c, run_id, RunState.DONE, message, complete=True)


def _add_models(c: sa.Connection) -> int:
    """Three versions of a model and one of a hostile operator; the id of the newest with points."""
    rng = random.Random(3)
    measured = [10 ** rng.uniform(-6, -3) for _ in range(200)]
    kept = {
        "points": [[s, s * math.exp(rng.gauss(0, 0.2))] for s in measured],
        "importance": [["knob rows", 0.5], ["into width 1", 0.03], [f"knob {SCRIPT}", 0.02], [IMAGE, 0.01]],
    }
    ids = []
    for op, version, accuracy, evaluation in (
        ("dense", 1, 0.61, None), ("dense", 2, 0.73, kept), ("dense", 3, 0.84, kept),
        (HOSTILE_OP, 1, 0.95, {"points": [[1e-6, 1e-6]], "importance": []}),
    ):
        row = sa.insert(cost_model).values(
            op=op, target_id=1, version=version, created_at=now() - 3600.0 / version, train_s=2.5,
            records=5000 * version, workloads=24, held_out=5, pairs=90_000, accuracy=accuracy,
            sigma_log=0.2, columns="[]", trees=b"", digest=f"{op}{version}"[:64], evaluation=evaluation,
        )
        ids.append(c.execute(row.returning(cost_model.c.id)).scalar_one())
    return ids[2]


def confirmation(*, hostile: bool = False) -> Confirmation:
    """The verdict on a network of two layers, one of them merged; or on one with hostile names that was refused."""
    text = HOSTILE_MESSAGE if hostile else "the lowest median"
    layers = [HOSTILE] if hostile else [dense(128, 3072, 768), dense(128, 768, 3072)]
    kept = Part(
        workload=layers[0], occurrences=12, share=0.5, implementation=HOSTILE_IMPLEMENTATION if hostile
        else "dense_pack.cpu", config=Config({"rows": 8, "width": 32}), reason=text,
    )
    why = "the whole graph is not faster with it"
    left = [Part(workload=w, occurrences=1, share=0.25, reason=why) for w in layers[1:]]
    step = Comparison(
        workloads=(layers[0].key,), added=True, ratio=Estimate(0.625, 0.61, 0.64, 15), before_s=0.04,
        after_s=0.025, kept=True,
    )
    return Confirmation(
        key=("b" if hostile else "a") * 32, graph="c" * 32, framework=SCRIPT if hostile else "torch 2.13.0",
        target=TARGET.in_network(), parts=(kept, *left), missed={IMAGE if hostile else "aten.bmm": 0.25},
        steps=(step,), refused=text if hostile else "", before_s=0.04, after_s=0.025,
    )


def fill(store: Store, trials: int = 24) -> dict[str, int]:
    """Fill an empty store; return the ids that tests ask for."""
    farm = Farm(store)
    shapes = [RunWorkload(workload=dense(*s)) for s in SHAPES]
    first = farm.ask(shapes, 500)
    farm.search(first, trials)
    farm.confirm(first)
    farm.finish(first)
    hostile = farm.ask([RunWorkload(workload=HOSTILE, candidates=hostile_candidates())], 60)
    farm.search(hostile, trials * 2)
    farm.confirm(hostile)
    farm.finish(hostile, f"stopped: {SCRIPT}")
    live = farm.ask([RunWorkload(workload=dense(128, 3072, 768))], 400)
    farm.search(live, trials)
    with store.write() as c:
        # The first run was eight days ago; the live one began two minutes ago.
        c.execute(
            sa.update(record).where(record.c.run_id == first)
            .values(recorded_at=record.c.recorded_at - 8 * 86_400.0 + record.c.id)
        )
        c.execute(
            sa.update(run).where(run.c.id == first)
            .values(created_at=now() - 8 * 86_400.0, finished_at=now() - 8 * 86_400.0 + 900.0)
        )
        newest = c.scalar(sa.select(sa.func.max(record.c.id)))
        c.execute(
            sa.update(record).where(record.c.run_id != first)
            .values(recorded_at=now() - 3.0 * (newest - record.c.id))
        )
        c.execute(sa.update(run).where(run.c.id == live).values(created_at=now() - 120.0))
        # A version that the code has left behind.
        stale = c.scalar(sa.select(sa.func.min(task.c.id)).where(task.c.plevel == 5))
        c.execute(sa.update(task).where(task.c.id == stale).values(version="0.00000000"))
        c.execute(
            sa.update(job).where(job.c.run_id == hostile).values(state="quarantined", reason=SCRIPT)
        )
        c.execute(sa.update(worker).where(worker.c.id == farm.workers[1]).values(seen_at=1.0))
        c.execute(sa.delete(event))
        tunable = c.scalar(
            sa.select(sa.func.max(task.c.id)).where(task.c.implementation == "dense_pack.cpu")
        )
        hostile_task = c.scalar(
            sa.select(task.c.id).where(task.c.implementation == HOSTILE_IMPLEMENTATION)
        )
        first_device = c.scalar(
            sa.select(device.c.id).where(device.c.identity == farm.devices[0].identity)
        )
        model = _add_models(c)
        networks = [network.put(c, confirmation(hostile=h), "default") for h in (True, False)]
        failed = c.scalar(
            sa.select(sa.func.max(record.c.id))
            .where(record.c.run_id == hostile, record.c.error.is_not(None))
        )
    return {
        "done": first, "hostile": hostile, "live": live, "task": tunable or 0, "stale": stale or 0,
        "hostile_task": hostile_task or 0, "failed_record": failed or 0, "device": first_device or 0,
        "model": model, "network": networks[1], "hostile_network": networks[0],
    }
