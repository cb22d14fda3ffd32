"""A run of `plevel tune`: at a service or in this process, followed to its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from plevel.cli import location

if TYPE_CHECKING:
    from rich.console import Console

    from plevel.client import Client
    from plevel.embedded import Embedded
    from strategy.record import RunRequest, RunStatus
    from strategy.target import Target

_LOOK_S = 1.0  # between two looks into the worker's log
AWAY_S = 3600.0  # time to wait for a service that does not answer
PAUSE_S = 1.0
# A worker that cannot go on leaves the service, and ends within seconds. Without it no other status comes.
_LEAVING_S = 5.0
_AWAY = (502, 503, 504)  # of a proxy without its service, or a service without its database


@contextmanager
def connection(
    place: location.Location, target: Target, asked: str = ""
) -> Iterator[tuple[Client, Embedded | None]]:
    """A client of the place's service, or of one that runs in this process' children for its database.

    Args:
        asked: what `--target` said: `cuda:1` is not another GPU of the same kind.

    Raises:
        EmbeddedError: it would run here, and this machine is no such target, or an extra is missing.
    """
    from plevel.client import Client
    from plevel.environment import read_namespace, read_token

    namespace = read_namespace(place.namespace)

    with ExitStack() as stack:
        if place.url is not None:
            client = stack.enter_context(Client(place.url, token=read_token(), namespace=namespace))
            yield client, None
            return
        from plevel.embedded import Embedded
        from plevel.extra import require_both, require_room

        slot = _require_host(target, asked)
        require_both()
        require_room()
        assert place.database is not None
        embedded = stack.enter_context(
            Embedded(place.database, slot=slot, threads=target.threads, early=True)
        )
        yield stack.enter_context(Client(embedded.url, namespace=namespace)), embedded


def _require_host(target: Target, asked: str) -> str:
    """Return the device of this machine that is such a target, `cpu` or `cuda:0`."""
    from plevel.extra import EmbeddedError
    from strategy.table import show_number
    from strategy.target import cpu_target

    if target.kind == "cuda":
        number = asked.removeprefix("cuda:")
        return f"cuda:{int(number)}" if asked != number and number.isdecimal() else _find_gpu(target)
    host = cpu_target().with_threads(target.threads)
    if not host.is_like(target.key):
        raise EmbeddedError(
            f"--target: this machine ({host}) cannot run {target}: name a service "
            "with such a worker, with --url"
        )
    if target.threads > cpu_target().threads:
        raise EmbeddedError(
            f"{show_number(target.threads, 'thread')} are more than the {show_number(cpu_target().threads, 'core')} "
            "that can be used here: ask for fewer"
        )
    return "cpu"


def _find_gpu(target: Target) -> str:
    from plevel.extra import EmbeddedError
    from workers.__main__ import describe_cuda
    from workers.cpu import DeviceError

    found: list[str] = []
    try:
        for number in count():
            device = describe_cuda(f"cuda:{number}").target
            if device.is_like(target.key):
                return f"cuda:{number}"
            found.append(str(device))
    except DeviceError as error:  # of the first number that this machine lacks
        has = ", ".join(found) or str(error)
    raise EmbeddedError(
        f"--target: this machine cannot run {target} ({has}): name a service with such a worker, with --url"
    )


def missing_worker(client: Client, target: Target) -> str:
    """The reason why a run would wait at a service, and what to do; empty where a live worker serves the target."""
    offered = {
        device["target"]
        for worker in client.workers() if worker["alive"]
        for device in worker["devices"]
    }
    if target.host.key in offered:
        return ""
    found = f"alive are: {', '.join(sorted(offered))}" if offered else "no worker is alive"
    device = "--device cuda:0" if target.kind == "cuda" else f"--threads {target.threads}"
    return (
        f"no worker for {target} at {client.url} ({found}): start one with "
        f"'plevel worker --url {client.url} {device}' on such a machine"
    )


def follow_run(
    client: Client,
    embedded: Embedded | None,
    request: RunRequest,
    console: Console,
    place: location.Location,
    report: Callable[[RunStatus], None] | None = None,
) -> RunStatus:
    """The end of a run, whose statuses are shown on the console, or given to `report`.

    Raises:
        UnreachableError: the service has been away for an hour.
        EmbeddedError: the service or the worker of this process has died.
    """
    from plevel.cli.output import make_console
    from plevel.cli.progress import Progress
    from plevel.client import FINISHED, UnreachableError

    run = client.create_run(request)
    if run.state in FINISHED:  # its budget is on record
        if report:
            report(run)
        return run
    try:
        if embedded is not None:
            say_what_else_runs(console, client, run, place)
            embedded.start_worker()
        with ExitStack() as stack:
            if embedded is not None:
                stack.enter_context(_telling_of_waits(embedded, console))
            show = report or stack.enter_context(Progress(console)).show
            for status in follow(client, run.id, place, console, embedded):
                stands = embedded is not None and status.interrupted and not run.interrupted
                run = status
                show(status)
                if embedded is not None:
                    embedded.check(0.0 if status.workers else _LEAVING_S)
                    if stands:
                        _say_why_it_stands(console, embedded)
    except KeyboardInterrupt:
        _say_how_to_go_on(console, run, place)
        raise
    except SystemExit:  # the console's: the reader of the output has closed it
        _say_how_to_go_on(make_console(stderr=True), run, place)
        raise
    except UnreachableError:
        if embedded is not None:
            embedded.check()  # raises with the cause
        raise
    return run


def follow(
    client: Client, run_id: int, place: location.Location, console: Console, embedded: Embedded | None = None
) -> Iterator[RunStatus]:
    """A run's statuses as `Client.follow` yields them; wait for a service that is away, or that this host slows down.

    Raises:
        UnreachableError: the service has been away for `AWAY_S`.
        EmbeddedError: the service or the worker of this process has died.
    """
    from plevel.client import ServiceError, UnreachableError

    say = partial(console.print, markup=False, soft_wrap=True)
    since: float | None = None
    while True:
        try:
            for status in client.follow(run_id):
                if since is not None:
                    since = None
                    say(f"{place.shown} answers again")
                yield status
            return
        except (UnreachableError, ServiceError) as error:
            if isinstance(error, ServiceError) and error.status not in _AWAY:
                raise
            if embedded is not None:
                embedded.check()
            if since is None:
                since = time.monotonic()
                say(f"{place.shown} does not answer; trying again (run {run_id} continues there)")
            elif time.monotonic() - since > AWAY_S:
                raise UnreachableError(
                    f"{place.shown} has not answered for {AWAY_S / 60:g} minutes: start it, and repeat the "
                    f"command or the call to follow run {run_id}"
                ) from error
        time.sleep(PAUSE_S)


@contextmanager
def _telling_of_waits(embedded: Embedded, console: Console) -> Iterator[None]:
    """Repeat what the worker's log says of a quota, and of what it waits for: room on its disk, or another worker.

    In a thread of its own, as a run that stands still has no new status.
    """
    from workers.cgroup import THROTTLES
    from workers.cpu import AWAITS_TURN
    from workers.scratch import GOES_ON, WAITS

    ended = threading.Event()

    def watch() -> None:
        part, last = "", False
        with embedded.worker_log.open(errors="replace") as log:
            while not last:
                last = ended.wait(_LOOK_S)
                *lines, part = (part + log.read()).split("\n")
                for line in lines:
                    if any(words in line for words in (WAITS, GOES_ON, AWAITS_TURN, THROTTLES)):
                        console.print(line.partition(" WARNING ")[2], markup=False, soft_wrap=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _say_why_it_stands(console: Console, embedded: Embedded) -> None:
    """Name the cause if the service lives and cannot write, as on a full disk; not if it has yet to take the run."""
    words = embedded.last_words()
    if "the database" in words:
        text = f"The run stands still, and goes on once its service can write again: {words}"
        console.print(text, markup=False, soft_wrap=True)


def say_what_else_runs(console: Console, client: Client, run: RunStatus, place: location.Location) -> None:
    """Name the runs of a database that go on beside this one: another command's, or interrupted ones."""
    from plevel.client import FINISHED
    from strategy.installed import OTHER_VERSIONS, can_measure
    from strategy.table import show_number

    for other in client.runs(100):
        if other.id != run.id and other.state not in FINISHED and other.target.host.key == run.target.host.key:
            can = can_measure(other)
            goes_on = "goes on beside this one" if can else f"{OTHER_VERSIONS}, and goes on only where these are"
            console.print(
                f"Run {other.id}, at {other.trials_done} of {show_number(other.trials, 'trial')}, {goes_on}; "
                f"'plevel cancel {other.id}{place.address}' stops it, and keeps its measurements.",
                markup=False, soft_wrap=True,
            )


def _say_how_to_go_on(console: Console, run: RunStatus, place: location.Location) -> None:
    if place.url is None:
        text = (
            f"Interrupted. Finished measurements are kept in {place.shown}; to resume, repeat the command "
            f"or run: {location.resume_command(run.id, place)}"
        )
    else:
        text = (
            f"Interrupted. Run {run.id} continues at {place.shown}: repeat the command to follow it, or stop it "
            f"with 'plevel cancel {run.id}{place.address}'."
        )
    console.print(text, markup=False, soft_wrap=True)
