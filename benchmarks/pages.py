"""The dashboard at size: how soon each page is painted, and how large it is.

Goals, on two cores and with 10⁶ records: the first paint of every page within 300 ms, and none larger
than 300 KB. The peer is the same page of a service on a database of 10⁴ records: a page should not
grow with the log. Painting is seen by a headless chromium (`first-contentful-paint`, from the moment
of the request); where there is none, only the service's answers are timed. Medians.

    python benchmarks/pages.py [--records 1000000] [--visits 7] [--folder FOLDER]

Seeding takes a minute for a million records, the visits a few; with `--folder` the databases are kept there and used
again.
"""
# Over 300 lines: one database, filled and visited page by page.

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import sqlalchemy as sa

from benchmarks.fixture import make_parser, median_s, need, serve
from benchmarks.result import Table
from service.queue import fleet
from service.records.log import REFERENCE, REFERENCE_KERNEL
from service.store import catalogue, migration
from service.store.db import Store
from service.store.sql import now
from service.store.tables import best, cost_model, job, record, run, run_task, task
from service.tuning import plan as planning
from service.tuning import run as runs
from strategy.op_strategy import Candidate
from strategy.record import (
    SEARCH_POLICY,
    Device,
    Phase,
    RunRequest,
    RunState,
    RunWorkload,
    WorkerInfo,
)
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.workload import Input, Workload

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")
PEER = 10_000
PAINT_GOAL_S = 0.3
SIZE_GOAL = 300_000
KNOBS = ("tile_x", "tile_y", "unroll", "vector")
SPACE = ConfigSpace([Knob(n, range(12)) for n in KNOBS], fallback=dict.fromkeys(KNOBS, 1))
OFFERED = tuple(
    Candidate(f"filter_{i}.cpu", f"1.{SPACE.digest}", 5 + i, None, SPACE) for i in range(5)
)
PER_TASK = 100  # records
PER_RUN = 10  # workloads
BIGGEST = 20  # one task has a twentieth of all records
CONFIGS = 2000  # different ones in the log
COLUMNS = (
    "identity source run_id job_id entry task_id variant_id device_id worker_id policy_id phase session "
    "seed config config_digest error message samples_s median_s mean_s build_s check_s run_s "
    "code_digest measured_at recorded_at"
).split()
PAINTED = """new Promise(done => new PerformanceObserver(list => {
  const found = list.getEntriesByName("first-contentful-paint")[0];
  if (found) done(found.startTime);
}).observe({type: "paint", buffered: true}))"""

BUSY = (".htmx-request", "[data-curve] > noscript", ".scatter > noscript")
SETTLED = "html" + "".join(f":not(:has({b}))" for b in BUSY)


def seed(url: str, size: int) -> dict[str, int]:
    """Fill an empty database with runs of many shapes side by side; the ids of what is looked at."""
    migration.upgrade(url)
    with contextlib.closing(Store(url)) as store:
        shapes = max(PER_RUN, size // PER_TASK // len(OFFERED))
        tasks, common = _ask(store, shapes)
        _measure(store, tasks, common, size)
        _derive(store, tasks)
        return {"run": tasks[-1].run_id, "done": tasks[0].run_id, "task": tasks[-1].id, "big": tasks[0].id}


def _ask(store: Store, shapes: int) -> tuple[list[Any], dict[str, Any]]:
    """A device, and runs over all shapes with one job for each task; what all records share."""
    device = Device(
        identity="3f2a9c11e07b4d52/cpu:0-1", slot="cpu:0-1", model="AMD EPYC 9B45", target=TARGET,
        fingerprint={"cores": 2},
    )
    asked = [
        RunWorkload(
            workload=Workload("filter", (Input("data", f"float32[{i + 1},64]"),)), candidates=OFFERED
        )
        for i in range(shapes)
    ]
    with store.write() as c:
        worker = fleet.register(
            c, WorkerInfo(name="farm-1", host="farm-1", pid=1, devices=(device,), version="0.1")
        )
        for start in range(0, shapes, PER_RUN):
            part = tuple(asked[start : start + PER_RUN])
            request = RunRequest(workloads=part, target=TARGET, trials=10_000)
            sizes = (SPACE.size,) * len(OFFERED)
            runs.create(c, request, [planning.Planned(w.workload, 1.0, OFFERED, sizes) for w in part])
        body = TARGET.to_json()
        target_id = catalogue.put_target(c, TARGET)
        common = {
            "variant_id": catalogue.put_variant(c, target_id, body["keys"], body), "device_id": 1,
            "worker_id": worker, "policy_id": catalogue.put_policy(c, SEARCH_POLICY),
            "reference": catalogue.put_task(
                c, catalogue.put_workload(c, REFERENCE), target_id, REFERENCE_KERNEL, None
            ),
        }
        tasks = list(
            c.execute(
                sa.select(task.c.id, task.c.workload_id, task.c.target_id, run_task.c.run_id)
                .join(run_task, run_task.c.task_id == task.c.id)
                .order_by(run_task.c.id)
            )
        )
        c.execute(
            sa.insert(job),
            [
                {"id": t.id, "run_id": t.run_id, "workload_id": t.workload_id,
                 "target_id": t.target_id, "policy_id": common["policy_id"], "phase": "search",
                 "state": "done", "priority": 1, "attempts": 0, "fence": 1, "seed": 1, "needs": "",
                 "reason": "", "available_at": 1.0, "created_at": 1.0}
                for t in tasks
            ],
        )
    return tasks, common


def _measure(store: Store, tasks: Sequence[Any], common: dict[str, Any], size: int) -> None:
    """Records of all tasks between each other's, as of runs that tune side by side."""
    with store.read() as c:
        last = float(c.execute(sa.select(now())).scalar_one())
    values = ", ".join("?" * len(COLUMNS))
    statement = f"INSERT INTO record ({', '.join(COLUMNS)}) VALUES ({values})"
    rows = _rows(tasks, common, size, last)
    while part := list(itertools.islice(rows, 20_000)):
        with store.write() as c:
            c.exec_driver_sql(statement, part)


def _rows(
    tasks: Sequence[Any], common: dict[str, Any], size: int, last: float
) -> Iterator[tuple[Any, ...]]:
    rng = random.Random(0)
    configs = [Config({k: rng.randrange(12) for k in KNOBS}) for _ in range(CONFIGS)]
    written = [(json.dumps(dict(c)), c.digest, sum(abs(int(v) - 5) for v in c.values())) for c in configs]
    entries = dict.fromkeys((t.id for t in tasks), 0)
    for n in range(size):
        t = tasks[0] if n % BIGGEST == 0 else tasks[n % len(tasks)]
        reference = n % 100 == 1
        config, digest, far = ("{}", "", 0) if reference else written[rng.randrange(CONFIGS)]
        failed = n % 17 == 0 and not reference
        level = 4e-5 if reference else 1e-5 * (1 + (t.id * 7) % 11) * (1 + far / 8)
        median_s = None if failed else level * rng.uniform(1.0, 1.03)
        entries[t.id] += 1
        at = last - (size - n) * 0.2
        yield (
            n.to_bytes(16, "big"), "plevel", t.run_id, t.id, (-1 if reference else 1) * entries[t.id],
            common["reference"] if reference else t.id, common["variant_id"], common["device_id"],
            common["worker_id"], common["policy_id"],
            (Phase.REFERENCE if reference else Phase.SEARCH).value, f"s{n // 8}", 1, config, digest,
            "compile" if failed else None, "error: no registers are left\n" * 20 if failed else "",
            "[]" if failed else json.dumps([median_s] * 6), median_s, median_s, 0.03, 0.001, 0.05,
            "", at, at,
        )


def _derive(store: Store, tasks: Sequence[Any]) -> None:
    """The best of each task, the states of the runs, and a model."""
    with store.write() as c:
        for scope, value in (("target", ""), ("device", "1")):
            lowest = sa.select(
                record.c.task_id, sa.literal(scope), sa.literal(value), record.c.config,
                record.c.config_digest, sa.literal("confirm"), sa.func.min(record.c.median_s),
                record.c.median_s * 0.99, record.c.median_s * 1.01, sa.literal(3),
                record.c.recorded_at,
            ).where(record.c.error.is_(None)).group_by(record.c.task_id)
            c.execute(sa.insert(best).from_select([x.name for x in best.c], lowest))
        c.execute(
            sa.update(run).where(run.c.id < tasks[-1].run_id)
            .values(state=RunState.DONE, finished_at=now())
        )
        points = [[1e-5 * (1 + i / 100), 1e-5 * (1 + (i % 37) / 50)] for i in range(600)]
        c.execute(
            sa.insert(cost_model).values(
                op="filter", target_id=tasks[0].target_id, version=1, created_at=now(), train_s=3.0,
                records=1000, workloads=50, held_out=10, pairs=100_000, accuracy=0.8, sigma_log=0.2,
                columns="[]", trees=b"", digest="0",
                evaluation={"points": points, "importance": [["knob tile_x", 0.5]]},
            )
        )
        c.exec_driver_sql("ANALYZE")


def pages(ids: dict[str, int]) -> list[str]:
    asked = urlencode({"workload": "filter(data=float32[8,64])", "target": TARGET.key})
    has = urlencode({"workload_has": "filter [8,64"})
    return [
        "/", "/faster", "/runs", f"/runs/{ids['run']}", f"/runs/{ids['done']}",
        f"/runs/{ids['done']}/curve.json", f"/tasks/{ids['task']}", f"/tasks/{ids['big']}",
        f"/tasks/{ids['big']}?by=run", f"/tasks/{ids['big']}/curve.json",
        f"/tasks/{ids['big']}/points.json", f"/tasks/{ids['big']}/spread",
        f"/tasks/{ids['big']}/failures", "/ops", "/ops/filter", "/select", f"/select?{asked}",
        "/devices", "/devices/1", "/models", "/models/1", "/records", "/records?error=compile",
        "/records?op=filter&error=crash", f"/records?task={ids['big']}&error=any",
        f"/records?run={ids['done']}&phase=confirm", "/records/17", "/import",
        f"/tasks?{has}", f"/tasks?{has}&sort=median", "/tasks?workload_has=float32&sort=-median",
        "/tasks?status=failed", f"/ops?{has}", f"/ops/filter?{has}", f"/records?{has}", f"/runs?{has}",
    ]


def ask(url: str, path: str, visits: int) -> tuple[float, int]:
    """The median time of the whole answer in seconds after a first look, which fills the caches, and its size."""
    with httpx.Client(base_url=url, timeout=60, headers={"accept": "text/html"}) as client:
        response = client.get(path)
        if response.status_code != 200:
            sys.exit(f"{path}: HTTP {response.status_code}: {response.text[:300]}")
        return median_s(lambda _: client.get(path), range(visits)), len(response.content)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A page of a headless browser, None where there is none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("no chromium on this host: first paint is not measured")
        yield None
        return
    need("playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser.new_page(viewport={"width": 1280, "height": 900})
        browser.close()


def is_page(path: str) -> bool:
    """Not what a page fetches once it is there."""
    return not path.endswith(("/faster", ".json", "/spread", "/failures"))


def paint(browser: Any, url: str, path: str, visits: int) -> float | None:
    """The median first paint in seconds; None of what is no page."""
    if browser is None or not is_page(path):
        return None
    taken = []
    for _ in range(visits):
        browser.goto(url + path, wait_until="load")
        taken.append(browser.evaluate(PAINTED) / 1e3)
        # So that the next visit has the machine for itself.
        browser.wait_for_selector(SETTLED, state="attached", timeout=60_000)
    return statistics.median(taken)


def measure(url: str, ids: dict[str, int], visits: int) -> list[tuple[str, float, float | None, int]]:
    """Of each page, some of which are the same in a small database: its path, the service's seconds, paint, bytes."""
    found = []
    with chromium() as browser:
        for path in pages(ids):
            answer_s, size = ask(url, path, visits)
            found.append((path, answer_s, paint(browser, url, path, visits), size))
    return found


def prepare(folder: Path, size: int) -> tuple[str, dict[str, int]]:
    """The database of that size in a folder, seeded where it is not there yet."""
    path, known = folder / f"pages-{size}.db", folder / f"pages-{size}.json"
    if not known.exists():
        began = time.perf_counter()
        path.unlink(missing_ok=True)
        ids = seed(f"sqlite:///{path}", size)
        known.write_text(json.dumps(ids))
        print(f"seeded {size:,} records in {time.perf_counter() - began:.0f} s", flush=True)
    return f"sqlite:///{path}", json.loads(known.read_text())


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--visits", type=int, default=7, help="of each page")
    parser.add_argument("--folder", type=Path, help="keep the databases here")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        results = []
        for size in (given.records, PEER):
            database, ids = prepare(folder, size)
            with serve(database, PLEVEL_TUNE="false") as (url, _):
                results.append(measure(url, ids, given.visits))
    late, large = [], []
    table = Table({"page": "", "answer": "s", "first paint": "s", "KB": "", "answer on 10⁴ records": "s", "ratio": "×"})
    for (path, answer_s, paint_s, size), (_, peer_s, _, _) in zip(*results, strict=True):
        if is_page(path) and max(answer_s, paint_s or 0.0) > PAINT_GOAL_S:
            late.append(path)
        if size > SIZE_GOAL:
            large.append(path)
        table.add(path, answer_s, paint_s, round(size / 1e3), peer_s, answer_s / peer_s)
    print(f"later than {1e3 * PAINT_GOAL_S:.0f} ms: {', '.join(late) or 'none'}")
    print(f"larger than {SIZE_GOAL / 1e3:.0f} KB: {', '.join(large) or 'none'}")
    table.save(peer="a database of 10⁴ records", runs=given.visits)


if __name__ == "__main__":
    main()
