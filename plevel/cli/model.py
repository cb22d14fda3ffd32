"""`plevel model`: the models of times that answer for what was never measured."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from plevel.cli import option
from plevel.cli.error import CommandError

if TYPE_CHECKING:
    from service.db import Store
    from service.training import Model

app = typer.Typer(help="Models of times, trained from a database's records.", no_args_is_help=True)


@app.command("list")
def list_models(database: option.Database = None, as_json: option.AsJson = False) -> None:
    """List the models, the newest first.

    Example: plevel model list
    """
    from plevel.cli.output import make_console, make_table, print_json, show_ago

    with _opened(database) as store:
        from service import training

        with store.read() as connection:
            found = training.find(connection)
    if as_json:
        print_json(found)
        return
    rows = [
        (str(m.id), m.op, m.target, str(m.version), str(m.records), str(m.workloads),
         f"{m.accuracy:.3f}", "yes" if m.answers else "no", show_ago(m.created_at))
        for m in found
    ]  # fmt: skip
    columns = (
        "model",
        "op",
        "target",
        "version",
        "records",
        "workloads",
        "accuracy",
        "answers",
        "trained",
    )
    right = ("model", "version", "records", "workloads", "accuracy")
    make_console().print(make_table(columns, rows, right=right) if rows else "no models yet")


@app.command()
def train(
    op: option.Op,
    target: option.TargetSpec = "cpu",
    threads: option.Threads = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Train a model of an operator on a target from all records of it, in a process of its own.

    Example: plevel model train dense --target cpu
    """
    where = option.read_target(target, threads)
    with _opened(database) as store:
        from service import training

        _show(training.train_apart(store, op, where.key), as_json=as_json)


@app.command()
def show(
    model: Annotated[int, typer.Argument(metavar="MODEL", help="Its number, as `list` has it.")],
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Print what a model rests on, and how well it ranks.

    Example: plevel model show 3
    """
    with _opened(database) as store:
        from service import training

        with store.read() as connection:
            found = training.show(connection, model)
    _show(found, as_json=as_json)


def _show(model: Model, *, as_json: bool) -> None:
    from plevel.cli.output import print_json
    from service.ranker import LEAST_ACCURACY

    if as_json:
        print_json(model)
        return
    print(f"model      {model.id}: version {model.version} of {model.op} on {model.target}")
    print(
        f"trained    on {model.records} records of {model.workloads} workloads, in {model.train_s:.1f} s"
    )
    print(
        f"accuracy   {model.accuracy:.3f} of {model.pairs} pairs of {model.held_out} held-out workloads are "
        f"in the measured order; predictions are off by a factor of {2.718281828**model.sigma_log:.2f} (one sigma)"
    )
    said = "it answers" if model.answers else "it does not answer"
    print(f"predicted  {said}: the bar is {LEAST_ACCURACY}")


@contextmanager
def _opened(database: str | None) -> Generator[Store, None, None]:
    from plevel.direct import open_store

    where = option.locate_database(database)
    with open_store(where) as store:
        if store is None:
            raise CommandError(f"--database: nothing is at {where} yet: tune something first")
        yield store
