"""`plevel fleet scale`: pilot jobs of a batch system, as many as the backlog of a target asks for.

A profile, in TOML, describes a pilot:

    target = "llvm -mcpu=znver4 -num-cores=8"   # whose queue
    worker = ["--threads", "8"]                 # options of `plevel worker`
    lifetime = "55m"
    idle_exit = "5m"
    jobs_per_pilot = 2

    [provider]                                  # options of Parsl's SlurmProvider, or of that of another option
    partition = "cpu"
    walltime = "01:00:00"
    worker_init = "source /opt/plevel/bin/activate"
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from plevel.cli import location, option
from plevel.cli.error import CommandError, UsageError
from plevel.reading import read_file

if TYPE_CHECKING:
    from plevel.client import Client
    from plevel.pilots.engine import Pilot
    from plevel.pilots.scaler import Backlog, Bounds

# SLURM kills what it has cancelled after 30 s, PBS after 10 (`kill_delay`), Kubernetes when the pod says.
_GRACE = {"slurm": "25s", "pbs": "8s", "kubernetes": "110s", "local": "25s"}


class _Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    target: str
    worker: tuple[str, ...] = ()
    lifetime: str = "55m"
    idle_exit: str = "5m"
    jobs_per_pilot: Annotated[int, msgspec.Meta(ge=1)] = 2
    provider: dict[str, Any] = {}


def scale(
    slurm: Annotated[
        Path | None, typer.Option("--slurm", metavar="PROFILE", help="Pilots are jobs of SLURM.")
    ] = None,
    pbs: Annotated[
        Path | None, typer.Option("--pbs", metavar="PROFILE", help="Pilots are jobs of PBS Pro or OpenPBS.")
    ] = None,
    kubernetes: Annotated[
        Path | None, typer.Option("--kubernetes", metavar="PROFILE", help="Pilots are pods.")
    ] = None,
    local: Annotated[
        Path | None, typer.Option("--local", metavar="PROFILE", help="Pilots are processes of this host.")
    ] = None,
    least: Annotated[int, typer.Option("--min", metavar="N", min=0, help="The fewest pilots.")] = 0,
    most: Annotated[int, typer.Option("--max", metavar="N", min=1, help="The most pilots.")] = 10,
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="The time between checks.")] = "30s",
    once: Annotated[bool, typer.Option("--once", help="Check once and end, as in a cron job.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be submitted and cancelled, and do nothing.")
    ] = False,
    url: option.Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a document on each line.")] = False,
) -> None:
    """Keep as many pilot jobs of a batch system as the backlog of a target asks for.

    A pilot is a worker that ends before its job's time limit, or when there is no job. It needs the extra
    'cluster'. The scaler may be ended at any time, and started again on any host of the cluster.

    Example: plevel fleet scale --slurm epyc.toml --max 40 --url http://farm:8765
    """
    given = {"slurm": slurm, "pbs": pbs, "kubernetes": kubernetes, "local": local}
    profiles = {kind: path for kind, path in given.items() if path is not None}
    if len(profiles) != 1:
        raise UsageError("--slurm, --pbs, --kubernetes, --local: name exactly one profile")
    if least > most:
        raise UsageError(f"--min {least}: more than --max {most}")
    ((kind, path),) = profiles.items()
    service = location.locate_service(url)
    if location.Location(service).shown != service:
        raise UsageError("--url: it has a password, which command lines of pilots would show: use PLEVEL_TOKEN_FILE")
    every_s = option.read_duration("--every", every)
    if every_s == 0:
        raise UsageError(f"--every {every}: it would ask without a pause: write a longer time")
    profile = _read(path)
    from plevel.client import Client
    from plevel.environment import read_token
    from plevel.extra import require

    require("cluster", "kubernetes" if kind == "kubernetes" else "parsl")
    from plevel.pilots.engine import Engine, EngineError
    from plevel.pilots.scaler import Bounds, Scaler
    from strategy.record import encode
    from strategy.target import Target

    target = Target.parse(profile.target).key
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state").absolute() / "plevel/pilots"
    if kind != "kubernetes" and re.search(r"[^\w./@+=:,-]", str(state)):
        raise UsageError(f"{state}: Parsl's commands do not quote it: name a folder without spaces in XDG_STATE_HOME")
    digest = hashlib.sha256(f"{service} {target}".encode()).hexdigest()[:8]
    name = f"plevel-{re.sub('[^A-Za-z0-9_-]', '-', path.stem)[:40]}-{digest}"
    command = _command(profile, service, _GRACE[kind])
    bounds = Bounds(least, most, profile.jobs_per_pilot)

    def tell(text: str, value: dict[str, Any]) -> None:
        print(encode(value).decode() if as_json else text, flush=True)  # into a log, too

    def say(line: str) -> None:
        tell(f"{target}: {line}", {"target": target, "message": line})

    def connect() -> Client:
        return Client(service, token=read_token())  # which may be replaced

    def look() -> Backlog:
        with connect() as client:
            return _look(client, target)

    connect().close()  # a wrong URL or token is an error at once
    try:
        engine = Engine(kind, profile.provider, name, state)
        if dry_run:
            text, value = _forecast(profile, look(), engine.pilots(), bounds, command)
            tell(text, {"target": target, **value})
            return
    except EngineError as error:
        raise CommandError(f"{path}: {error}") from error
    idle_s = option.read_duration(f"{path}: idle_exit", profile.idle_exit)
    scaler = Scaler(engine, look, command, bounds, every_s, idle_s, say, state)
    while True:
        good = scaler.step()
        if once:
            raise typer.Exit(0 if good else 1)
        time.sleep(every_s)


def _read(path: Path) -> _Profile:
    from strategy.target import Target

    try:
        profile = msgspec.convert(tomllib.loads(read_file(path, 1 << 20, "this is no profile").decode()), _Profile)
        Target.parse(profile.target)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a profile: {option.explain_field(error, _Profile)}") from error
    for name, text in (("lifetime", profile.lifetime), ("idle_exit", profile.idle_exit)):
        if option.read_duration(f"{path}: {name}", text) == 0:
            raise UsageError(f"{path}: {name} {text}: a pilot would end before its first job: write a longer time")
    return profile


def _forecast(
    profile: _Profile, backlog: Backlog, pilots: tuple[Pilot, ...], bounds: Bounds, command: str
) -> tuple[str, dict[str, Any]]:
    """The text and the JSON of what would be submitted and cancelled."""
    from plevel.pilots.scaler import describe, plan

    wanted = plan(backlog, pilots, bounds)
    options = ", ".join(f"{k}={v!r}" for k, v in profile.provider.items()) or "no options"
    late = f"{len(wanted.cancel)} that have not started, if they are still too many in {profile.idle_exit}"
    text = (
        f"{describe(backlog, pilots)}\n"
        + (f"would cancel {late}\n" if wanted.cancel else "")
        + f"would submit {wanted.submit}, each with {options}, to run\n  {command}"
    )
    return text, {
        "queued": backlog.queued, "pilots": [p.id for p in pilots], "submit": wanted.submit, "cancel": wanted.cancel,
        "command": command,
    }


def _command(profile: _Profile, url: str, grace: str) -> str:
    words = [
        "plevel", "worker", "--url", url, "--lifetime", profile.lifetime, "--idle-exit", profile.idle_exit,
        "--grace", grace, "--log", "json", *profile.worker, "--name",
    ]
    return f'{shlex.join(words)} "$JOBNAME"'


def _look(client: Client, target: str) -> Backlog:
    from plevel.pilots.scaler import Backlog

    live = [w for w in client.workers() if w["alive"]]
    busy = (w["name"] for w in live if any(d["leases"] for d in w["devices"]))
    return Backlog(client.backlog().get(target, 0), frozenset(w["name"] for w in live), frozenset(busy))
