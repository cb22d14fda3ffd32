"""Tuning of a model's workloads on this machine, by an embedded service and worker, or on a farm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from plevel.client import Client
from plevel.embedded import Embedded, require_worker
from plevel.environment import read_namespace, read_token
from plevel.torch.extraction import ExtractError, extract
from plevel.torch.plan import model_target
from strategy.record import RunRequest, RunStatus, RunWorkload


def tune(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    trials: int = 128,
    database: str | None = None,
    report: Callable[[RunStatus], None] | None = None,
) -> RunStatus:
    """Tunes the workloads of a model's call with these inputs, each as often as it occurs; the run's end.

    Args:
        trials: of all workloads together; the budget goes where most time can be saved.
        database: a service (`http://…`), or a database or SQLite file, for which a service and a worker
            run on this machine until it is done. As `plevel tune` finds it where not given.
        report: called with the run's status as it goes on; without it standard error shows the progress.

    Raises:
        ExtractError: the model cannot be traced, or has nothing to tune.
        ServiceError, UnreachableError, EmbeddedError: as `plevel tune`.
    """
    from rich.console import Console

    from plevel.cli.location import locate
    from plevel.cli.progress import Progress
    from plevel.cli.tune_run import say_what_else_runs

    found = extract(model, inputs).workloads
    if not found:
        raise ExtractError("nothing to tune: the model has no product that plevel has a kernel for")
    request = RunRequest(
        workloads=tuple(RunWorkload(workload=w.workload, weight=w.occurrences) for w in found),
        target=model_target(), trials=trials,
    )  # fmt: skip
    is_service = database is not None and database.startswith(("http://", "https://"))
    place = locate(database, None) if is_service else locate(None, database, makes=True)
    with ExitStack() as stack:
        embedded, url, token = None, place.url, read_token()
        if place.database is not None:
            require_worker()
            embedded = stack.enter_context(Embedded(place.database))
            url, token = embedded.url, None
        assert url is not None
        client = stack.enter_context(Client(url, token=token, namespace=read_namespace(None)))
        run = client.create_run(request)
        console = Console(stderr=True)
        if embedded is not None and run.state != "done":
            if report is None:
                say_what_else_runs(console, client, run, place)
            embedded.start_worker(request.target.threads)
        if report is None:
            report = stack.enter_context(Progress(console)).show
        for status in client.follow(run.id):
            run = status
            report(status)
            if embedded is not None:
                embedded.check()
    return run
