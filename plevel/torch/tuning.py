"""Tuning of a model's workloads on this machine, by an embedded service and worker, or on a farm."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from plevel.torch.extraction import ExtractError, extract
from plevel.torch.plan import model_target
from strategy.record import RunRequest, RunStatus, RunWorkload


def tune(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    trials: int = 128,
    database: str | Path | None = None,
    wait: bool = False,
    force: bool = False,
    report: Callable[[RunStatus], None] | None = None,
) -> RunStatus:
    """Tunes the workloads of a model's call with these inputs, each as often as it occurs; the run's end.

    A model in training mode is warned of: its workloads are others than those of inference.

    Args:
        trials: of all workloads together; the budget goes where most time can be saved.
        database: a service (`http://…`), or a database or SQLite file, for which a service and a worker
            run on this machine until it is done. As `plevel tune` finds it where not given.
        wait: whether the run is queued at a service where no live worker serves this machine's target, with a warning.
        force: whether to tune even what is tuned enough.
        report: called with the run's status as it goes on; without it standard error shows the progress.

    Raises:
        ExtractError: the model cannot be traced, or has nothing to tune.
        NoWorkerError: no live worker of the service serves this machine's target, and `wait` is false.
        UnreachableError: no service answers, one that followed the run has been away for an hour, or the environment
            names no place of records.
        ServiceError: the service refuses the request.
        EmbeddedError: the service or the worker of this machine does not start, or dies.
    """
    from rich.console import Console

    from plevel.cli.error import CommandError
    from plevel.cli.location import locate
    from plevel.cli.tune_run import connection, follow_run, missing_worker
    from plevel.client import NoWorkerError, UnreachableError

    if _trains(model):
        warnings.warn(
            "plevel: the model is in training mode, in which its dropout and batch norms compute otherwise: call "
            "model.eval() first",
            stacklevel=2,
        )
    found = extract(model, inputs).workloads
    if not found:
        raise ExtractError("nothing to tune: the model has no product that plevel has a kernel for")
    request = RunRequest(
        workloads=tuple(RunWorkload(workload=w.workload, weight=w.occurrences) for w in found),
        target=model_target(), trials=trials, force=force,
    )
    where = None if database is None else str(database)
    is_service = where is not None and where.startswith(("http://", "https://"))
    try:
        place = locate(where, None) if is_service else locate(None, where, makes=True)
    except CommandError as error:
        raise UnreachableError(str(error)) from error
    with connection(place, request.target) as (client, embedded):
        if embedded is None and (missing := missing_worker(client, request.target)):
            if not wait:
                raise NoWorkerError(f"{missing}, or queue the run with wait=True")
            warnings.warn(f"plevel: the run waits: {missing}", stacklevel=2)
        console = Console(stderr=True, quiet=report is not None)
        run = follow_run(client, embedded, request, console, place, report)
        console.print(f"run {run.id} is {run.state}: {run.message or 'no reason given'}", markup=False, soft_wrap=True)
        return run


def _trains(model: Callable[..., Any]) -> bool:
    """Return whether a layer of the model computes otherwise than for inference."""
    layers = model.modules() if isinstance(model, torch.nn.Module) else ()
    kinds = torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._BatchNorm
    return any(layer.training and isinstance(layer, kinds) for layer in layers)
