"""`plevel model`: cost models, which predict times of unmeasured workloads."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from plevel.cli import location, option

app = typer.Typer(help="Cost models, trained from a database's records.", no_args_is_help=True)


@app.command("list")
def list_models(
    url: option.Url = None, database: option.Database = None, as_json: option.AsJson = False
) -> None:
    """List the cost models, the newest first.

    Example: plevel model list
    """
    from plevel.cli.output import make_console, make_table, print_json, show_ago

    with location.locate(url, database).connect() as service:
        found = service.models()
    if as_json:
        print_json(found)
        return
    rows = [
        (str(m["id"]), m["op"], m["target"], str(m["version"]), str(m["records"]), str(m["workloads"]),
         f"{m['accuracy']:.3f}", "yes" if m["answers"] else "no", show_ago(m["created_at"]))
        for m in found
    ]  # fmt: skip
    columns = (
        "model", "op", "target", "version", "records", "workloads", "accuracy", "answers", "trained",
    )  # fmt: skip
    right = ("model", "version", "records", "workloads", "accuracy")
    none = "no cost models yet: train one with 'plevel model train'"
    make_console().print(make_table(columns, rows, right=right) if rows else none)


@app.command()
def train(
    op: option.Op,
    target: option.TargetSpec = "cpu",
    threads: option.Threads = None,
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Train a cost model of an operator on a target from all of its records.

    With a service, this queues the training and returns; it starts when no run is live.

    Example: plevel model train dense --target cpu
    """
    from plevel.cli.output import print_json
    from strategy.table import show_number

    where = option.read_target(target, threads)
    place = location.locate(url, database)
    with place.connect() as service:
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


@app.command()
def show(
    model: Annotated[int, typer.Argument(metavar="MODEL", help="The number, from `plevel model list`.")],
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
    print(
        f"accuracy   {model['accuracy']:.3f} of {show_number(model['pairs'], 'pair')} of "
        f"{show_number(model['held_out'], 'held-out workload')} are in the measured order; "
        f"predictions are off by a factor of "
        f"{math.exp(model['sigma_log']):.2f} (one sigma)"
    )
    said = "yes" if model["answers"] else "no"
    print(f"predicted  {said}: selections use a cost model from accuracy {model['bar']}")
