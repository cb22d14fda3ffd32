"""`plevel tune`: measures the implementations of one workload, and says which one to take."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plevel.cli import option
from plevel.cli.error import CommandError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from plevel.client import Client
    from plevel.embedded import Embedded
    from strategy.record import RunRequest, RunStatus
    from strategy.select import Selection
    from strategy.target import Target
    from strategy.workload import Workload


def tune(
    op: option.Op,
    inputs: option.Inputs,
    attr: option.Attributes = None,
    target: option.TargetSpec = "cpu",
    threads: option.Threads = None,
    trials: Annotated[
        int, typer.Option("--trials", metavar="N", min=1, help="Configurations to measure.")
    ] = 128,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="Stop searching after this time."),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="Of the search and of the random inputs.")
    ] = 0,
    tuner: Annotated[
        str, typer.Option("--tuner", metavar="model|random", help="How to search.")
    ] = "model",
    implementation: Annotated[
        list[str] | None,
        typer.Option("--implementation", metavar="NAME", help="Only this one; may be repeated."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Tune even what is tuned enough.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="With --url: queue the run where no worker is there yet.")
    ] = False,
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Measure implementations, and say which one to take.

    Without --url, a service and a worker run on this machine for as long as this takes. Ctrl-C
    keeps what is measured; the same command goes on from there.
    """
    place = option.locate(url, database)
    if timeout is not None and timeout <= 0:
        raise UsageError(f"--timeout {timeout:g}: more than 0 seconds")
    if tuner not in ("model", "random"):
        raise UsageError(f"--tuner {tuner!r:.40}: model or random")
    workload = option.read_workload(op, inputs, attr, far=place.url is not None)
    if not workload.is_constant:
        raise UsageError(
            f"--input: {workload} has a dimension without a value; only constant shapes are timed"
        )
    where = option.read_target(target, threads)

    from strategy.record import RunRequest, RunWorkload

    request = RunRequest(
        workloads=(RunWorkload(workload=workload),), target=where, trials=trials, timeout_s=timeout,
        seed=seed, tuner=tuner, implementations=tuple(implementation) if implementation else None,
        force=force,
    )  # fmt: skip
    _check_names(request)
    from plevel.cli.output import make_console, print_json

    # With --json, what is for people goes to stderr.
    console = make_console(stderr=as_json)
    with _interruptible(), _connection(place, where, wait=wait) as (client, embedded):
        final = _follow(client, embedded, request, console, place)
        answer = client.select(workload, where)
    if as_json:
        print_json({"run": final, "selection": answer})
    else:
        _report(console, final, answer, place, _again(workload, target, threads, place))
    if final.state != "done":
        raise CommandError(
            f"run {final.id} ended {final.state}: {final.message or 'no reason given'}"
        )


def _check_names(request: RunRequest) -> None:
    """Raises `UsageError` for an implementation that a workload known here does not have."""
    from strategy.op import find_op
    from strategy.op_strategy import candidates

    workload = request.workloads[0].workload
    if request.implementations is None or find_op(workload.op) is None:
        return
    known = [c.implementation for c in candidates(workload, request.target)]
    for name in request.implementations:
        if name not in known:
            raise UsageError(
                f"--implementation {name!r:.80}: {workload.op} has on {request.target}: {', '.join(known)}"
            )


@contextmanager
def _connection(
    place: option.Location, target: Target, *, wait: bool
) -> Iterator[tuple[Client, Embedded | None]]:
    from plevel.client import Client

    with ExitStack() as stack:
        if place.url is not None:
            client = stack.enter_context(Client(place.url))
            if not wait:
                _require_worker(client, target, place.url)
            yield client, None
            return
        from plevel.embedded import Embedded, require_service, require_worker

        _require_host(target)
        require_service()
        require_worker()
        assert place.database is not None
        embedded = stack.enter_context(Embedded(place.database))
        yield stack.enter_context(Client(embedded.url)), embedded


def _require_host(target: Target) -> None:
    from strategy.host import cpu_target

    host = cpu_target().with_threads(target.threads)
    if host.key != target.key:
        raise CommandError(
            f"--target: no worker for {target}: this machine is {host}; tune it through a service "
            "that has such a worker, with --url"
        )
    if target.threads > cpu_target().threads:
        raise CommandError(
            f"--threads {target.threads}: this machine has {cpu_target().threads} cores to use"
        )


def _require_worker(client: Client, target: Target, url: str) -> None:
    offered = {
        device["target"]
        for worker in client.workers() if worker["alive"]
        for device in worker["devices"]
    }  # fmt: skip
    if target.key not in offered:
        found = (
            f"those there are: {', '.join(sorted(offered))}" if offered else "none is there at all"
        )
        raise CommandError(
            f"--target: no worker for {target} at {url} ({found}): start one with "
            f"'plevel worker --url {url} --threads {target.threads}' on such a machine, or queue "
            "the run with --wait"
        )


def _follow(
    client: Client,
    embedded: Embedded | None,
    request: RunRequest,
    console: Console,
    place: option.Location,
) -> RunStatus:
    from plevel.cli.output import Progress
    from plevel.client import FINISHED, UnreachableError

    run = client.create_run(request)
    if run.state in FINISHED:
        return run
    try:
        if embedded is not None:
            embedded.start_worker(request.target.threads)
        with Progress(console) as progress:
            for status in client.follow(run.id):
                run = status
                progress.show(status)
                if embedded is not None:
                    embedded.check()
    except KeyboardInterrupt:
        _say_how_to_go_on(console, run, place)
        raise
    except UnreachableError:
        if embedded is not None:
            embedded.check()  # it knows why
        raise
    return run


def _say_how_to_go_on(console: Console, run: RunStatus, place: option.Location) -> None:
    if place.url is None:
        text = (
            f"Interrupted. The measurements that were finished are kept in {place.shown}; the "
            "same command goes on from there."
        )
    else:
        text = (
            f"Interrupted. Run {run.id} goes on at {place.shown}: the same command follows it again, "
            f"'plevel cancel {run.id}{place.option}' stops it."
        )
    console.print(text, markup=False, soft_wrap=True)


def _again(workload: Workload, target: str, threads: int | None, place: option.Location) -> str:
    """The command that asks for the answer again."""
    words = ["plevel", "select", workload.op]
    for one in workload.inputs:
        words += ["--input", str(one)]
    for name, value in workload.attrs.items():
        import json

        words += ["--attr", f"{name}={json.dumps(value)}"]
    words += ["--target", target]
    if threads is not None:
        words += ["--threads", str(threads)]
    return " ".join(_quoted(w) for w in words) + place.option


def _quoted(word: str) -> str:
    # Square brackets are safe in a shell where no file is called like that; people write them bare.
    plain = word.replace("[", "").replace("]", "")
    return word if shlex.quote(plain) == plain else shlex.quote(word)


def _report(
    console: Console, run: RunStatus, answer: Selection, place: option.Location, again: str
) -> None:
    from plevel.cli.output import selection_lines, show_duration, task_table

    def say(text: str = "") -> None:
        console.print(text, markup=False, soft_wrap=True)

    say(f"{answer.workload}  on {answer.target}")
    console.print(task_table(run.tasks, winner=answer.implementation))
    for line in selection_lines(answer):
        say(line)
    spent = ""
    if run.finished_at is not None and run.timing_s > 0:
        took = show_duration(run.finished_at - run.created_at)
        spent = f" in {took}, {show_duration(run.timing_s)} of them timing"
    say(f"run        {run.id} is {run.state}{spent}: {run.message or 'no reason given'}")
    say(f"kept in    {place.shown}")
    say(f"next       {again}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """A SIGTERM ends the command as a Ctrl-C does: its children are stopped, not left behind."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
