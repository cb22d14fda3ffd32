"""`plevel tune`: measure the implementations of workloads, and select the fastest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plevel.cli import location, option
from plevel.cli.error import CommandError, UsageError
from plevel.cli.processor import check_name
from plevel.cli.tune_report import again_command, lock_command, report, report_model, target_text
from plevel.cli.tune_run import connection, follow_run, missing_worker

if TYPE_CHECKING:
    from strategy.record import RunRequest, RunWorkload
    from strategy.target import Target


def tune(
    ctx: typer.Context,
    op: option.SomeWorkload = None,
    inputs: option.Inputs = None,
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
            "--run", metavar="ID", callback=option.check_number, show_default=False,
            help="Resume an interrupted run: repeat its request.",
        ),
    ] = None,
    target: option.ModelTarget = None,
    threads: option.Threads = None,
    trials: Annotated[
        int,
        typer.Option("--trials", metavar="N", min=1, max=10_000_000, help="Number of configurations to measure."),
    ] = 128,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", metavar="DURATION", show_default=False, help="Stop the search after this time: 90s, 10m …"
        ),
    ] = None,
    until_gain: Annotated[
        str | None,
        typer.Option(
            "--until-gain", metavar="PERCENT", show_default=False,
            help="Stop when no trial is expected to gain this much: 1%.",
        ),
    ] = None,
    seed: option.Seed = 0,
    tuner: Annotated[str, option.choice("--tuner", ("model", "random"), "The search method.")] = "model",
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

    Example: plevel tune dense -i 'data=float32[128,768]' -i 'weight=float32[3072,768]:const'
    """
    place = location.locate(url, database, namespace, makes=run is None)
    timeout_s = None if timeout is None else option.read_duration("--timeout", timeout)
    if timeout_s == 0:
        raise UsageError(f"--timeout {timeout}: give a longer time, as nothing is measured in it")
    _check_place(place, webhook, wait=wait)
    least_gain = None if until_gain is None else option.read_share(
        "--until-gain", until_gain, lambda share: 0 < share < 1
    )
    if run is not None:
        request, device = _request_of(ctx, run, place), target or ""
    else:
        workloads, where, device = _read_asked(op, inputs, attr, model, target, threads, far=place.url is not None)
        from strategy.record import RunRequest

        request = RunRequest(
            workloads=workloads, target=where, trials=trials, timeout_s=timeout_s, until_gain=least_gain, seed=seed,
            tuner="random" if tuner == "random" else "model", force=force, webhook=webhook,
            implementations=tuple(implementation) if implementation else None,
        )
        if cache_flush:
            request = _with_cold_caches(request)
        _check_implementations(request)
    several = model is not None or len(request.workloads) > 1
    from plevel.cli.output import make_console, print_json

    # With --json, messages for people go to stderr.
    console = make_console(stderr=as_json)
    with connection(place, request.target, device) as (client, embedded):
        if embedded is None and (missing := missing_worker(client, request.target)):
            if not wait:
                raise CommandError(f"--target: {missing}, or queue the run with --wait")
            console.print(f"The run waits: {missing}.", markup=False, soft_wrap=True)
        final = follow_run(client, embedded, request, console, place)
        answers = [client.select(w.workload, request.target) for w in request.workloads]
    if as_json:
        answered = {"selections": answers} if several else {"selection": answers[0]}
        print_json({"run": final, **answered})
    elif several:
        again = "" if model is None else lock_command(model, target, threads, place)
        report_model(console, final, request.workloads, answers, place, again)
    else:
        asked = (target or "cpu") if run is None else target_text(request.target)
        again = again_command(request.workloads[0].workload, asked, threads, place)
        report(console, final, answers[0], place, again)
    if final.state != "done":
        raise CommandError(f"run {final.id} {final.state}: {final.message or 'no reason given'}", answered=True)


def _check_place(place: location.Location, webhook: str | None, *, wait: bool) -> None:
    """Raise `UsageError` for options that need a service, without one."""
    if webhook is not None and place.url is None:
        raise UsageError(
            "--webhook: needs a service whose PLEVEL_WEBHOOK_HOSTS lists the host: name the service "
            "with --url"
        )
    if wait and place.url is None:
        raise UsageError("--wait: there is no service to wait for a worker of: name it with --url")


def _with_cold_caches(request: RunRequest) -> RunRequest:
    """The request, timed with cold caches in its search and its finals."""
    from msgspec.structs import replace

    search, confirm = (replace(policy, cache_flush=True) for policy in (request.search_policy, request.confirm_policy))
    return replace(request, search_policy=search, confirm_policy=confirm)


def _request_of(ctx: typer.Context, run_id: int, place: location.Location) -> RunRequest:
    """Return the request of an earlier run, its budget included; refuse options that would change it.

    One of several GPUs of this host may be named to resume it.
    """
    kept = ["run", "url", "database", "namespace", "as_json"]
    gpu = str(ctx.params["target"] or "")
    if gpu.startswith("cuda:"):
        kept.append("target")
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
        request = records.request(run_id)
    if "target" in kept and not option.read_target(gpu, None).is_like(request.target.key):
        raise UsageError(f"--target {gpu}: run {run_id} is for {request.target}: name such a GPU, or leave it out")
    return request


def _read_asked(
    op: str | None, inputs: list[str] | None, attr: list[str] | None, model: Path | None,
    target: str | None, threads: int | None, *, far: bool,
) -> tuple[tuple[RunWorkload, ...], Target, str]:
    """Return the workloads to tune, the one of the options or those of a model file, their target, and its name."""
    from plevel.cli.model_file import read_model
    from strategy.record import RunWorkload

    if model is not None:
        if op is not None or inputs or attr:
            raise UsageError("--file: give a model file or one operator with --input, not both")
        network = read_model(model, far=far)
        found, where = network.workloads, network.read_target(target, threads)
        target = target or network.target
    else:
        op = option.require_op(op, "a model file with --file, or a run with --run")
        found = (RunWorkload(workload=option.read_workload(op, inputs, attr, far=far)),)
        where = option.read_target(target or "cpu", threads)
    check_name(where, far=far)
    for one in found:
        option.require_constant(one.workload, "--input" if model is None else model)
    return found, where, target or ""


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
