"""`plevel db`: the database's schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

from plevel.cli import option
from plevel.cli.error import CommandError

T = TypeVar("T")

app = typer.Typer(help="Bring a database's schema up to date, or show it.", no_args_is_help=True)


@app.command()
def upgrade(database: option.Database = None) -> None:
    """Bring a database to the schema of this installation, making it where there is none."""
    from plevel.embedded import make_folder

    where = option.locate_database(database)
    make_folder(where)
    _require()
    from service import migration

    revision = _answered(migration.upgrade, where)
    print(f"{_shown(where)} is at schema {revision}")


@app.command()
def current(database: option.Database = None) -> None:
    """Print the schema that a database has."""
    where = _existing(database)
    from service import migration

    revision = _answered(migration.current, where)
    print(revision or "no schema yet")


@app.command()
def check(database: option.Database = None) -> None:
    """Exit with 1 where a database's schema is not this installation's."""
    where = _existing(database)
    from service import migration

    _answered(migration.check, where)
    print(f"{_shown(where)} is at schema {migration.head()}, which this plevel uses")


def _require() -> None:
    from plevel.embedded import require_service

    require_service()


def _existing(database: str | None) -> str:
    """The database's URL; asking about one does not make it."""
    from plevel.embedded import sqlite_path

    where = option.locate_database(database)
    path = sqlite_path(where)
    if path is not None and not path.exists():
        raise CommandError(f"database {path} does not exist: 'plevel db upgrade' makes it")
    _require()
    return where


def _answered(ask: Callable[[str], T], where: str) -> T:
    from service.errors import ServiceError

    try:
        return ask(where)
    except ServiceError as error:
        raise CommandError(str(error)) from error


def _shown(where: str) -> str:
    """The URL without its password."""
    from service.db import normal_url

    return normal_url(where).render_as_string(hide_password=True)
