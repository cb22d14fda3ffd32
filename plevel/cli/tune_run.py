"""A run of `plevel tune`: at a service or in this process, followed to its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from plevel.cli import location
from plevel.cli.error import CommandError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from plevel.client import Client
    from plevel.embedded import Embedded
    from strategy.record import RunRequest, RunStatus
    from strategy.target import Target


@contextmanager
def connection(
    place: location.Location, target: Target, *, wait: bool
) -> Iterator[tuple[Client, Embedded | None]]:
    from plevel.client import Client
    from plevel.environment import read_namespace, read_token

    namespace = read_namespace(place.namespace)

    with ExitStack() as stack:
        if place.url is not None:
            client = stack.enter_context(Client(place.url, token=read_token(), namespace=namespace))
            if not wait:
                _require_worker(client, target, place.url)
            yield client, None
            return
        from plevel.embedded import Embedded, require_service, require_worker

        if wait:
            raise UsageError("--wait: there is no service to wait for a worker of: name it with --url")
        _require_host(target)
        require_service()
        require_worker()
        assert place.database is not None
        embedded = stack.enter_context(Embedded(place.database))
        yield stack.enter_context(Client(embedded.url, namespace=namespace)), embedded


def _require_host(target: Target) -> None:
    from strategy.table import show_number
    from strategy.target import cpu_target

    host = cpu_target().with_threads(target.threads)
    if not host.is_like(target.key):
        raise CommandError(
            f"--target: this machine ({host}) cannot run {target}: name a service "
            "with such a worker, with --url"
        )
    if target.threads > cpu_target().threads:
        raise CommandError(
            f"--threads {target.threads}: more than the {show_number(cpu_target().threads, 'core')} that "
            "can be used here: give fewer"
        )


def _require_worker(client: Client, target: Target, url: str) -> None:
    offered = {
        device["target"]
        for worker in client.workers() if worker["alive"]
        for device in worker["devices"]
    }  # fmt: skip
    if target.host.key not in offered:
        found = (f"alive are: {', '.join(sorted(offered))}" if offered else "no worker is alive")
        raise CommandError(
            f"--target: no worker for {target} at {url} ({found}): start one with "
            f"'plevel worker --url {url} --threads {target.threads}' on such a machine, or queue "
            "the run with --wait"
        )


def follow_run(
    client: Client,
    embedded: Embedded | None,
    request: RunRequest,
    console: Console,
    place: location.Location,
) -> RunStatus:
    from plevel.cli.follower import follow
    from plevel.cli.progress import Progress
    from plevel.client import FINISHED, UnreachableError

    run = client.create_run(request)
    if run.state in FINISHED:
        return run
    try:
        if embedded is not None:
            say_what_else_runs(console, client, run, place)
            embedded.start_worker(request.target.threads)
        with Progress(console) as progress:
            for status in (
                follow(client, run.id, place, console) if embedded is None else client.follow(run.id)
            ):
                run = status
                progress.show(status)
                if embedded is not None:
                    embedded.check()
    except KeyboardInterrupt:
        _say_how_to_go_on(console, run, place)
        raise
    except UnreachableError:
        if embedded is not None:
            embedded.check()  # raises with the cause
        raise
    return run


def say_what_else_runs(console: Console, client: Client, run: RunStatus, place: location.Location) -> None:
    """Name the runs of a database that go on beside this one: another command's, or interrupted ones."""
    from plevel.client import FINISHED
    from strategy.table import show_number

    for other in client.runs(100):
        if other.id != run.id and other.state not in FINISHED and other.target.host.key == run.target.host.key:
            console.print(
                f"Run {other.id}, at {other.trials_done} of {show_number(other.trials, 'trial')}, goes on beside "
                f"this one; 'plevel cancel {other.id}{place.address}' stops it, and keeps its measurements.",
                markup=False, soft_wrap=True,
            )  # fmt: skip


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
