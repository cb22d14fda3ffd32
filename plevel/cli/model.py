"""`plevel model`: cost models, which predict times of unmeasured workloads."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from plevel.cli import location, option
from plevel.cli.error import UsageError

_CONNECT_S = 5.0
app = typer.Typer(help="Cost models, trained from a database's records.", no_args_is_help=True)


@app.command("list")
def list_models(
    url: option.Url = None, database: option.Database = None, as_json: option.AsJson = False
) -> None:
    """List the cost models, the newest first.

    Example: plevel model list
    """
    from plevel.cli.output import print_rows, show_ago

    with location.locate(url, database).connect() as service:
        found = service.models()
    rows = (
        (str(m["id"]), m["op"], m["target"], str(m["version"]), str(m["records"]), str(m["workloads"]),
         f"{m['accuracy']:.3f}", "yes" if m["answers"] else "no", show_ago(m["created_at"]))
        for m in found
    )
    columns = (
        "model", "op", "target", "version", "records", "workloads", "accuracy", "answers", "trained",
    )
    right = ("model", "version", "records", "workloads", "accuracy")
    none = "no cost models yet: train one with 'plevel model train'"
    print_rows(found, columns, rows, as_json=as_json, right=right, none=none)


@app.command()
def train(
    op: option.Op,
    target: option.TargetSpec = "cpu",
    threads: option.Threads = None,
    afresh: Annotated[
        bool, typer.Option("--afresh", help="Train from nothing, not from the newest model.")
    ] = False,
    dask: Annotated[
        str | None,
        typer.Option("--dask", metavar="ADDRESS", help="A Dask scheduler whose workers train: tls://host:8786."),
    ] = None,
    tls_ca: option.Authority = None,
    tls_cert: option.Certificate = None,
    tls_key: option.Key = None,
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Train a cost model of an operator on a target, or bring the newest one up to date.

    With a service, this queues the training and returns; it starts when no run is live. With --dask, the records are
    read here, and the workers of a Dask cluster train (extra 'cluster').

    Example: plevel model train dense --target cpu
    """
    from plevel.cli.output import make_console, print_json
    from plevel.direct import Direct
    from strategy.table import show_number

    where = option.read_target(target, threads)
    if dask is None and (tls_ca or tls_cert or tls_key):
        raise UsageError("--dask: missing: --tls-ca, --tls-cert and --tls-key are for a scheduler")
    place = location.locate(url, database)
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(place.connect())
        if isinstance(service, Direct):
            console = make_console(stderr=True)
            hidden = not console.is_interactive
            show = _ignore if hidden else stack.enter_context(console.status("training")).update
            if dask is None:
                found = service.train_model(op, where, afresh=afresh, progress=show)
            else:
                client = stack.enter_context(_connect(dask, tls_ca, tls_cert, tls_key))
                found = service.train_on(
                    client, op, where, afresh=afresh, progress=show,
                    warn=lambda text: console.print(text, markup=False, highlight=False),
                )
        else:
            for name, given in {"--afresh": afresh, "--dask": dask}.items():
                if given:
                    raise UsageError(f"{name}: a service trains in its own way: name the --database instead")
            found = service.train_model(op, where)
    if as_json:
        print_json(found)
    elif "version" in found:
        _show(found)
    else:
        print(
            f"queued: a cost model of {op} on {found['target']}, from "
            f"{show_number(found['records'], 'record')} of {show_number(found['workloads'], 'workload')}; it is "
            f"trained when no run is live, and 'plevel model list{place.option}' then shows it"
        )


def _ignore(text: str) -> None:
    pass


@contextlib.contextmanager
def _connect(address: str, ca: Path | None, certificate: Path | None, key: Path | None) -> Iterator[Any]:
    """A client of a Dask scheduler. Raises UsageError."""
    from plevel.extra import require

    require("cluster", "distributed")
    import asyncio

    from distributed import Client

    from workers.cluster.client import SecurityError, reach, secure

    try:
        security = secure(address, ca, certificate, key)
    except SecurityError as error:
        raise UsageError(f"--dask {error}") from error
    for name in ("distributed", "distributed.client"):  # what matters is said here
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        asyncio.run(reach(address, security, _CONNECT_S))
        client = Client(address, security=security, set_as_default=False, timeout=_CONNECT_S)
    except (OSError, TimeoutError) as error:
        raise UsageError(f"--dask {address}: not reachable: {error}: start `dask scheduler` there") from error
    with client:
        yield client


@app.command()
def show(
    model: Annotated[int, option.number("MODEL", "The number, from `plevel model list`.")],
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Print a cost model's training data and accuracy.

    Example: plevel model show 3
    """
    from plevel.cli.output import print_json

    with location.locate(url, database).connect() as service:
        found = service.model(model)
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(model: dict[str, Any]) -> None:
    from strategy.table import show_number

    print(f"model      {model['id']}: version {model['version']} of {model['op']} on {model['target']}")
    print(
        f"trained    on {show_number(model['records'], 'record')} of "
        f"{show_number(model['workloads'], 'workload')}, "
        f"in {model['train_s']:.1f} s"
    )
    if model["lineage"]:
        print(f"how        {model['lineage']}")
    print(
        f"accuracy   {model['accuracy']:.3f} of {show_number(model['pairs'], 'pair')} of "
        f"{show_number(model['held_out'], 'held-out workload')} are in the measured order; "
        f"predictions are off by a factor of "
        f"{math.exp(model['sigma_log']):.2f} (one sigma)"
    )
    said = "yes" if model["answers"] else "no"
    print(f"predicted  {said}: selections use a cost model from accuracy {model['bar']}")
