"""`plevel bundle`: configurations built here, timed on a device that cannot reach a service."""

from __future__ import annotations

import json
import shlex
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plevel.cli import location, option
from plevel.cli.error import CommandError, UsageError
from plevel.cli.file import unwritten, whole
from plevel.reading import read_file

if TYPE_CHECKING:
    from strategy.op_strategy import Candidate
    from strategy.record import JobEntry
    from strategy.space import Config
    from strategy.target import Target
    from strategy.workload import Workload

app = typer.Typer(
    help="Configurations built here, and timed on a host without network.", no_args_is_help=True
)
Key = Annotated[
    Path, typer.Option("--key", "-k", metavar="FILE", help="The key, the same on both hosts.")
]


@app.command()
def key(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")],
    as_json: option.AsJson = False,
) -> None:
    """Write a new key to sign and check bundles; copy it to the device's host.

    Example: plevel bundle key ~/bundle.key
    """
    from plevel.cli.output import tell
    from workers.bundle import make_key

    try:
        make_key(path)
    except OSError as error:
        raise CommandError(unwritten(path, error)) from error
    tell(
        f"wrote {path}: keep it secret, whoever has it can run code on the device",
        {"key": str(path)}, as_json=as_json,
    )


@app.command()
def make(
    op: option.OpOrWorkload,
    out: Annotated[Path, option.out("The bundle.")],
    key: Key,
    inputs: option.Inputs = None,
    attr: option.Attributes = None,
    target: option.TargetSpec = "cuda -arch=sm_90",
    trials: Annotated[
        int, typer.Option("--trials", "-n", min=1, max=10_000, metavar="N", help="Total number of configurations.")
    ] = 64,
    seed: option.Seed = 0,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """Propose configurations from what is on record, build them, and write a signed bundle.

    Run it on the device's host with `plevel bundle run`, import the records with `plevel import`, and make the
    next bundle, which is proposed from them.

    Example: plevel bundle make dense -i 'data=float16[512,4096]' -i 'weight=float16[4096,4096]:const'
    -t 'cuda -arch=sm_90' -k bundle.key -o round1.bundle
    """
    option.check_apart("--out", out, [key])
    workload, where = option.read_workload(op, inputs, attr), option.read_target(target, None)
    if where.kind != "cuda":
        raise UsageError(f"--target {target!r:.80}: bundles are for CUDA devices")
    option.require_constant(workload)
    place = location.locate(url, database, namespace)
    from plevel.cli.output import tell
    from plevel.extra import require_service, require_worker

    require_service()
    require_worker()
    from strategy.op_strategy import candidates
    from strategy.record import CONFIRM_POLICY, Job, Phase
    from strategy.select import holds
    from strategy.table import show_number
    from workers.bundle import Bundle, BundleError, Part, read_key, seal

    try:
        secret = read_key(key)
    except BundleError as error:
        raise CommandError(f"--key: {error}") from error
    offered = [c for c in candidates(workload, where) if holds(c, workload)]
    entries = _propose(workload, where, offered, trials, seed, place)
    job = Job(
        id=0, run_id=0, workload=workload, target=where, phase=Phase.SEARCH, entries=entries,
        policy=CONFIRM_POLICY, seed=seed,
    )
    built, artefacts = _build(job.entries, workload, where)
    used = {e.implementation for e in entries}
    part = Part(
        job=job, candidates=tuple(c for c in offered if c.implementation in used),
        built=built, artefacts=artefacts,
    )
    with whole(out) as file:
        file.write(seal(Bundle(parts=(part,), made_at=time.time()), secret))
    good = sum(b.error is None for b in built)
    tell(
        f"wrote {out}: {show_number(good, 'configuration')}; {len(built) - good} could not be built",
        {"bundle": str(out), "built": good, "failed": len(built) - good}, as_json=as_json,
    )


def _propose(
    workload: Workload, target: Target, offered: list[Candidate], trials: int, seed: int, place: location.Location
) -> tuple[JobEntry, ...]:
    """Configurations of all implementations in turn, proposed by searches over the records."""
    from service.search.child import InlineModel
    from service.search.search import Search
    from strategy.record import JobEntry
    from strategy.space import Config

    known = _known(workload, target, place)
    searches = {}
    for candidate in offered:
        found = known.get((candidate.implementation, candidate.version), [])
        if candidate.space is None:
            searches[candidate.implementation] = [] if found else [Config()]
            continue
        search = Search(candidate.space, seed, InlineModel())
        for config, seconds in found:
            search.tell(config, seconds)
        searches[candidate.implementation] = search.ask(trials)
    versions = {c.implementation: c.version for c in offered}
    entries: list[JobEntry] = []
    for turn in range(trials):
        for name, configs in searches.items():
            if turn < len(configs) and len(entries) < trials:
                entries.append(
                    JobEntry(
                        index=len(entries), task_id=list(versions).index(name),
                        implementation=name, version=versions[name], config=configs[turn],
                    )
                )
    if not entries:
        raise CommandError(f"no untried configuration is left for {workload} on {target}: 'plevel select' answers")
    return tuple(entries)


def _known(
    workload: Workload, target: Target, place: location.Location
) -> dict[tuple[str, str], list[tuple[Config, float | None]]]:
    """Return the configurations on record for this workload and target, each with its time or None."""
    from plevel.client import ServiceError
    from strategy.record import convert, estimate
    from strategy.space import Config
    from strategy.target import Target
    from strategy.workload import Workload

    found: dict[tuple[str, str], list[tuple[Config, float | None]]] = {}
    with place.connect() as records:
        try:
            text = b"".join(records.export_records("native", op=workload.op))
        except ServiceError as error:
            if error.status != 404:
                raise
            text = b""  # nothing is on record yet
    for line in text.splitlines():
        data = json.loads(line)
        if data["kind"] != "record":
            continue
        task = data["task"]
        if convert(task["workload"], Workload).key != workload.key:
            continue
        if Target.parse(task["target"]).key != target.key:
            continue
        samples = data.get("samples_s")
        seconds = estimate(samples).median_s if samples else None
        of = found.setdefault((task["implementation"], task["version"]), [])
        of.append((Config(data["config"]), seconds))
    return found


def _build(entries: tuple[JobEntry, ...], workload: Workload, target: Target) -> tuple[Any, Any]:
    """Build all entries; return their outcomes, and the artefacts of those that were built, by number."""
    import tempfile

    from strategy.cuda.program import CudaArtefact
    from workers.builder import Build, build

    outcomes, artefacts = [], {}
    with tempfile.TemporaryDirectory(prefix="plevel-") as folder:
        for entry in entries:
            path = Path(folder, str(entry.index))
            built = build(Build(workload=workload, target=target, entry=entry, path=str(path)))
            outcomes.append(built)
            if built.error is None:
                artefacts[str(entry.index)] = CudaArtefact.load(path)
    return tuple(outcomes), artefacts


@app.command()
def run(
    bundle: Annotated[Path, typer.Argument(metavar="FILE", help="The bundle.")],
    key: Key,
    out: Annotated[Path, option.out("The records, for plevel import.")],
    device: Annotated[
        str, typer.Option("--device", metavar="SLOT", help="The CUDA device.")
    ] = "cuda:0",
    as_json: option.AsJson = False,
) -> None:
    """Check and time the configurations of a bundle on this host's device; needs no TVM and no compiler.

    Example: plevel bundle run round1.bundle -k bundle.key -o round1.ndjson
    """
    import socket
    import tempfile
    import threading

    from plevel.cli.output import tell
    from strategy.table import show_number
    from workers.__main__ import describe_cuda
    from workers.bundle import MOST_BYTES, read_key, run_bundle, unseal
    from workers.cpu import assign, parse_cores, timing_lock
    from workers.cuda.runner import runner_on
    from workers.sandbox import ForkServer

    option.check_apart("--out", out, [bundle, key])
    try:
        sealed = read_file(bundle, MOST_BYTES, "this is no bundle")
    except OSError as error:
        raise UsageError(f"{bundle} cannot be read: {error.strerror}") from error
    opened, found = unseal(sealed, read_key(key)), describe_cuda(device)
    session = f"bundle-{int(time.time())}"
    count = 0
    with (
        tempfile.TemporaryDirectory(prefix="plevel-") as scratch,
        ForkServer(Path(scratch), ("numpy",)) as server,
        whole(out) as file,
        closing(runner_on(server, assign(parse_cores("cpu"), 1).timing, found.slot)) as runner,
    ):

        def time_job(job: Any, built: Any, report: Any) -> dict[str, Any]:
            with timing_lock():
                return runner.run(job, built, threading.Event(), report).environment

        for line in run_bundle(opened, time_job, found, session, socket.gethostname()):
            file.write(line)
            count += b'"kind":"record"' in line
    tell(
        f"wrote {out}: {show_number(count, 'record')}; read it with  plevel import {shlex.quote(str(out))}",
        {"log": str(out), "records": count}, as_json=as_json,
    )
