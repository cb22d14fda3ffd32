"""`plevel tune`: measure the implementations of workloads, and select the fastest."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from plevel.cli import option
from plevel.cli.error import CommandError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from plevel.client import Client
    from plevel.embedded import Embedded
    from strategy.record import RunRequest, RunStatus, RunWorkload
    from strategy.select import Selection
    from strategy.target import Target
    from strategy.workload import Workload


def tune(
    ctx: typer.Context,
    op: option.SomeOp = None,
    inputs: option.SomeInputs = None,
    attr: option.Attributes = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", show_default=False,
            help="A model file, TOML or JSON: a list of workloads with weights.",
        ),
    ] = None,
    run: Annotated[
        int | None,
        typer.Option(
            "--run", metavar="ID", show_default=False,
            help="Resume an interrupted run: repeat its request.",
        ),
    ] = None,
    target: option.TargetSpec = "cpu",
    threads: option.Threads = None,
    trials: Annotated[
        int, typer.Option("--trials", metavar="N", min=1, help="Number of configurations to measure.")
    ] = 128,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="Stop the search after this time."),
    ] = None,
    until_gain: Annotated[
        str | None,
        typer.Option(
            "--until-gain", metavar="PERCENT", show_default=False,
            help="Stop when no trial is expected to gain this much: 1%.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="The seed of the search and of the random inputs.")
    ] = 0,
    tuner: Annotated[
        str,
        typer.Option(
            "--tuner", metavar="model|random", help="The search method.",
            autocompletion=option.complete("model", "random"),
        ),
    ] = "model",
    implementation: Annotated[
        list[str] | None,
        typer.Option(
            "--implementation", metavar="NAME", help="Only this implementation; repeatable.",
            autocompletion=option.complete_implementation,
        ),
    ] = None,
    cache_flush: option.CacheFlush = False,
    force: Annotated[bool, typer.Option("--force", help="Tune even if it is tuned enough.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="With --url: queue the run even if no worker is alive.")
    ] = False,
    webhook: Annotated[
        str | None,
        typer.Option(
            "--webhook", metavar="URL", show_default=False,
            help="With --url: the URL to which the service POSTs the run's final status.",
        ),
    ] = None,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """Measure implementations, and select the fastest.

    Without --url, the command starts a service and a worker on this machine and stops them at its end.
    Ctrl-C keeps the measurements; the same command, or --run, resumes.

    Example: plevel tune dense -i data=float32[128,768] -i weight=float32[3072,768]:const
    """
    place = option.locate(url, database, namespace, makes=run is None)
    if timeout is not None and not 0 < timeout < float("inf"):
        raise UsageError(f"--timeout {timeout:g}: give a number of seconds greater than 0")
    if webhook is not None and place.url is None:
        raise UsageError(
            "--webhook: needs a service whose PLEVEL_WEBHOOK_HOSTS lists the host: name the service "
            "with --url"
        )
    option.check_choice("--tuner", tuner, ("model", "random"))
    least_gain = None if until_gain is None else option.read_share(
        "--until-gain", until_gain, lambda share: 0 < share < 1
    )
    if run is not None:
        request = _request_of(ctx, run, place)
    else:
        workloads = _read_workloads(op, inputs, attr, model, far=place.url is not None)

        import msgspec

        from strategy.record import CONFIRM_POLICY, SEARCH_POLICY, RunRequest, Tuner

        search, confirm = (
            msgspec.structs.replace(policy, cache_flush=cache_flush)
            for policy in (SEARCH_POLICY, CONFIRM_POLICY)
        )
        request = RunRequest(
            workloads=workloads, target=option.read_target(target, threads), trials=trials,
            timeout_s=timeout, until_gain=least_gain, seed=seed,
            tuner=cast("Tuner", tuner), force=force, webhook=webhook,
            implementations=tuple(implementation) if implementation else None,
            search_policy=search, confirm_policy=confirm,
        )  # fmt: skip
        _check_implementations(request)
    several = model is not None or len(request.workloads) > 1
    from plevel.cli.output import make_console, print_json

    # With --json, messages for people go to stderr.
    console = make_console(stderr=as_json)
    with _interruptible(), _connection(place, request.target, wait=wait) as (client, embedded):
        final = _follow(client, embedded, request, console, place)
        answers = [client.select(w.workload, request.target) for w in request.workloads]
    if as_json:
        answered = {"selections": answers} if several else {"selection": answers[0]}
        print_json({"run": final, **answered})
    elif several:
        _report_model(console, final, request.workloads, answers, place)
    else:
        asked = target if run is None else str(request.target)
        again = _again(request.workloads[0].workload, asked, threads, place)
        _report(console, final, answers[0], place, again)
    if final.state != "done":
        raise CommandError(
            f"run {final.id} {final.state}: {final.message or 'no reason given'}"
        )


def _request_of(ctx: typer.Context, run_id: int, place: option.Location) -> RunRequest:
    """Return the request of an earlier run, its budget included; refuse options that would change it."""
    kept = ("run", "url", "database", "namespace", "as_json")
    for parameter in ctx.command.params:
        name = parameter.name or ""
        source = ctx.get_parameter_source(name)
        if name not in kept and source is not None and source.name == "COMMANDLINE":
            shown = parameter.opts[0] if parameter.opts[0].startswith("-") else name.upper()
            raise UsageError(f"--run {run_id}: repeats that run's request: leave {shown} out")
    if place.url is not None:
        raise UsageError(
            f"--run {run_id}: a service resumes its runs by itself: see 'plevel runs{place.option}' "
            "for their progress"
        )
    from plevel.direct import Direct

    with place.connect() as records:
        assert isinstance(records, Direct)
        return records.request(run_id)


def _read_workloads(
    op: str | None, inputs: list[str] | None, attr: list[str] | None, model: Path | None, *, far: bool
) -> tuple[RunWorkload, ...]:
    """Return the workloads to tune: the one of the options, or those of a model file."""
    from plevel.cli.model_file import read_model
    from strategy.record import RunWorkload

    if model is not None:
        if op is not None or inputs or attr:
            raise UsageError("--file: give a model file or one operator with --input, not both")
        found = read_model(model, far=far)
    elif op is None or not inputs:
        raise UsageError(
            "name an operator with its --input, a model file with --file, or a run with --run"
        )
    else:
        found = (RunWorkload(workload=option.read_workload(op, inputs, attr, far=far)),)
    for one in found:
        if not one.workload.is_constant:
            raise UsageError(
                f"{'--input' if model is None else model}: {one.workload} has a symbolic dimension: "
                "give numbers, only constant shapes can be timed"
            )
    return found


def _check_implementations(request: RunRequest) -> None:
    """Check the request as far as possible without a service.

    Raises:
        SelectionError: an operator installed here has no implementation for the target.
        UsageError: no workload has the implementation, and all operators are installed here.
    """
    from strategy.op import find_op
    from strategy.op_strategy import candidates
    from strategy.select import require_some
    from strategy.suggestion import suggest

    workloads = [w.workload for w in request.workloads]
    known: dict[str, None] = {}
    for w in workloads:
        if find_op(w.op) is None:
            return
        offered = candidates(w, request.target)
        require_some(w, request.target, offered)
        known |= {c.implementation: None for c in offered}
    for name in request.implementations or ():
        if name not in known:
            ops = ", ".join(dict.fromkeys(w.op for w in workloads))
            raise UsageError(
                f"--implementation {name!r:.80}{suggest(name, known)}: unknown: {ops} has on "
                f"{request.target}: {', '.join(known)}"
            )


@contextmanager
def _connection(
    place: option.Location, target: Target, *, wait: bool
) -> Iterator[tuple[Client, Embedded | None]]:
    from plevel.client import Client
    from plevel.direct import read_namespace, read_token

    namespace = read_namespace(place.namespace)

    with ExitStack() as stack:
        if place.url is not None:
            client = stack.enter_context(
                Client(place.url, token=read_token(), namespace=namespace)
            )
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
        yield stack.enter_context(Client(embedded.url, namespace=namespace)), embedded


def _require_host(target: Target) -> None:
    from strategy.table import show_number
    from strategy.target import cpu_target

    host = cpu_target().with_threads(target.threads)
    if host.key != target.key:
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
    if target.key not in offered:
        found = (
            f"alive are: {', '.join(sorted(offered))}" if offered else "no worker is alive"
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
    from plevel.cli.follower import follow
    from plevel.cli.output import Progress
    from plevel.client import FINISHED, UnreachableError

    run = client.create_run(request)
    if run.state in FINISHED:
        return run
    try:
        if embedded is not None:
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


def _say_how_to_go_on(console: Console, run: RunStatus, place: option.Location) -> None:
    if place.url is None:
        text = (
            f"Interrupted. Finished measurements are kept in {place.shown}; to resume, repeat the command "
            f"or run: {option.resume_command(run.id, place)}"
        )
    else:
        text = (
            f"Interrupted. Run {run.id} continues at {place.shown}: repeat the command to follow it, or stop it "
            f"with 'plevel cancel {run.id}{place.option}'."
        )
    console.print(text, markup=False, soft_wrap=True)


def _again(workload: Workload, target: str, threads: int | None, place: option.Location) -> str:
    """The `plevel select` command for the same answer."""
    told = option.workload_command("select", workload) + f" --target {option.quote(target)}"
    if threads is not None:
        told += f" --threads {threads}"
    return told + place.option


def _report(
    console: Console, run: RunStatus, answer: Selection, place: option.Location, again: str
) -> None:
    from plevel.cli.output import selection_lines, task_table

    def say(text: str = "") -> None:
        console.print(text, markup=False, soft_wrap=True)

    say(f"{answer.workload}  on {answer.target}")
    console.print(task_table(run.tasks, winner=answer.implementation))
    for line in selection_lines(answer):
        say(line)
    say(_ending(run))
    say(f"kept in    {place.shown}")
    say(f"next       {again}")


def _ending(run: RunStatus) -> str:
    from plevel.cli.output import show_duration

    spent = ""
    if run.finished_at is not None and run.timing_s > 0:
        took = show_duration(run.finished_at - run.created_at)
        spent = f" in {took}, {show_duration(run.timing_s)} of them timing"
    return f"run        {run.id} is {run.state}{spent}: {run.message or 'no reason given'}"


def _report_model(
    console: Console,
    run: RunStatus,
    workloads: Sequence[RunWorkload],
    answers: Sequence[Selection],
    place: option.Location,
) -> None:
    """A row for each workload: the selected implementation, its time, and its share of the network's."""
    from plevel.cli.output import find_estimate, make_table, show_noise
    from strategy.table import show_seconds

    best = [find_estimate(a) for a in answers]
    spent = [
        None if b is None else one.weight * b.median_s
        for one, b in zip(workloads, best, strict=True)
    ]
    total = sum(s for s in spent if s is not None)
    rows = [
        (a.workload.key, f"{one.weight:g}", a.implementation, str(a.reason),
         show_seconds(b.median_s) if b else "—",
         "" if s is None else "<1%" if s < total / 100 else f"{s / total:.0%}")
        for one, a, b, s in zip(workloads, answers, best, spent, strict=True)
    ]  # fmt: skip
    columns = ("workload", "weight", "selected", "reason", "median", "share")
    console.print(make_table(columns, rows, right=("weight", "median", "share")))
    part = "" if None not in spent else " without unmeasured workloads"
    for line in (
        f"total      {show_seconds(total)}{part}: the sum of median × weight" if total else "",
        *show_noise(best),
        _ending(run),
        f"kept in    {place.shown}",
    ):
        if line:
            console.print(line, markup=False, soft_wrap=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C, so that child processes are stopped."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
