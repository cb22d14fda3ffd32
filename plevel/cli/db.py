"""`plevel db`: a database's schema, backups, and deletion of records."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plevel.cli import location, option
from plevel.cli.error import CommandError, UsageError

if TYPE_CHECKING:
    from service.store.db import Connection, Store

_Yes = Annotated[bool, typer.Option("--yes", help="Do it; without it, only print what would be done.")]
app = typer.Typer(help="A database's schema, backups, and deletion of records.", no_args_is_help=True)


@app.command()
def upgrade(database: option.Database = None, as_json: option.AsJson = False) -> None:
    """Bring a database to the schema of this installation; create it if there is none.

    Example: plevel db upgrade --database postgresql://plevel@db/plevel
    """
    from plevel.cli.output import tell
    from plevel.embedded import make_folder
    from plevel.extra import require_service

    where = location.locate_database(database)
    make_folder(where)
    require_service()
    from service.store import migration

    revision = migration.upgrade(where)
    tell(
        f"{_shown(where)} is at schema {revision}",
        {"database": _shown(where), "schema": revision}, as_json=as_json,
    )


@app.command()
def downgrade(
    schema: Annotated[str, typer.Argument(metavar="SCHEMA", help="The revision, such as 0005.", show_default=False)],
    yes: _Yes = False,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Migrate a database back to an older schema, for an older plevel; stop its services first.

    Example: plevel db downgrade 0005
    """
    from plevel.cli.output import tell

    where = _existing(database)
    from service.store import migration

    found = migration.find_losses(where, schema)
    if yes:
        migration.downgrade(where, schema, lose=True)
    what = found.show()
    tell(
        f"{_shown(where)} is at schema {schema}; deleted: {what}" if yes
        else f"schema {schema} cannot hold {what}: restore a backup of that schema instead" if found.cannot
        else f"{_shown(where)} would go back to schema {schema}, which deletes {what}; --yes does it",
        {"done": yes, "schema": schema, "cannot": dict(found.cannot), "lost": dict(found.lost)},
        as_json=as_json,
    )


@app.command()
def current(database: option.Database = None, as_json: option.AsJson = False) -> None:
    """Print the schema that a database has.

    Example: plevel db current
    """
    from plevel.cli.output import tell

    where = _existing(database)
    from service.store import migration

    revision = migration.current(where)
    tell(
        revision or "no schema yet", {"database": _shown(where), "schema": revision}, as_json=as_json
    )


@app.command()
def check(database: option.Database = None, as_json: option.AsJson = False) -> None:
    """Exit with 1 if a database's schema is not this installation's.

    Example: plevel db check
    """
    from plevel.cli.output import tell

    where = _existing(database)
    from service.store import migration

    migration.check(where)
    tell(
        f"{_shown(where)} is at schema {migration.head()}, which this plevel uses",
        {"database": _shown(where), "schema": migration.head()}, as_json=as_json,
    )


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The copy.", show_default=False)],
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Copy an SQLite database, of this or an older schema, to a new file while it is used.

    Example: plevel db backup plevel-copy.db
    """
    from plevel.cli.output import tell

    where = _existing(database)
    from service.store import backup as copier
    from service.store import migration
    from service.store.db import Store

    migration.current(where)  # not of another program
    with closing(Store(where, read_only=True)) as store:
        size = copier.backup(store, file)
    tell(
        f"wrote {file}: a copy of {_shown(where)}, {size} bytes",
        {"database": _shown(where), "copy": str(file), "bytes": size}, as_json=as_json,
    )


@app.command()
def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="90d, 12h …", show_default=False)
    ],
    keep_best: Annotated[
        int, typer.Option("--keep-best", metavar="K", min=1, help="Keep the K fastest configurations of each task.")
    ] = 10,
    yes: _Yes = False,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Delete the records of old, slow configurations, and outdated advice; the best ones are kept.

    Example: plevel db prune --older-than 90d --keep-best 10
    """
    from msgspec.structs import asdict

    from plevel.cli.output import tell
    from strategy.table import show_number

    before = time.time() - option.read_duration("--older-than", older_than)
    where = _existing(database)
    from service.access import audit
    from service.records import retention

    deleted: list[int] = []

    def note(connection: Connection, found: retention.Pruned) -> None:
        audit.note(connection, audit.user(), "prune", before=before, records=found.records, advice=found.advice)
        deleted.append(found.records)

    try:
        with _opened(where) as store:
            found = retention.prune(store, keep_best, before, dry=not yes, note=note)
    except KeyboardInterrupt:
        for number in deleted:
            print(
                f"plevel: interrupted: {show_number(number, 'record')} deleted; the same command deletes the rest",
                file=sys.stderr,
            )
        raise
    tell(
        f"{'deleted' if yes else 'would delete'} {show_number(found.records, 'record')} of "
        f"{show_number(found.configs, 'configuration')} of {show_number(found.tasks, 'task')}; "
        f"kept: {show_number(found.kept, 'record')}"
        + (f"; outdated advice: {found.advice}" if found.advice else "")
        + ("" if yes or not (found.records or found.advice) else "; --yes does it"),
        {"done": yes, **asdict(found)}, as_json=as_json,
    )


@app.command()
def purge(
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason, for the audit log.", show_default=False)
    ],
    worker: Annotated[
        str | None, typer.Option("--worker", metavar="NAME", help="Only records of this worker.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", metavar="ID", help="Only records of this device.")] = None,
    since: Annotated[
        datetime | None,
        typer.Option("--since", metavar="TIME", help="Only records measured then or later: 2026-11-03T10:00, UTC."),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option("--until", metavar="TIME", help="Only records measured before: 2026-11-03T12:00, UTC."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source", metavar="TOOL", help="Only records of this tool or format: triton, helion, vllm, autotvm …"
        ),
    ] = None,
    yes: _Yes = False,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Mark records and advice as not to be trusted: none is answered from. Such verdicts on networks are deleted.

    Example: plevel db purge --reason "its fan had stopped" --worker lab-7 --since 2026-11-03
    """
    if worker is None and device is None and source is None and since is None and until is None:
        raise UsageError("name the records to purge: --worker, --device, --source, --since or --until")
    begin, end = option.read_window("--since", since, "--until", until)
    from msgspec.structs import asdict

    from plevel.cli.output import tell
    from strategy.table import show_number

    where = _existing(database)
    from service.access import audit
    from service.records import retention

    which = retention.Doubtful(worker=worker, device=device, source=source, since=begin, until=end)
    with _opened(where) as store, store.write() if yes else store.read() as connection:
        if yes:
            found = retention.purge_doubtful(connection, which, reason)
            audit.note(connection, audit.user(), "purge", reason=reason, **asdict(found))
        else:
            found = retention.count_doubtful(connection, which)
    counts = asdict(found)
    what = (
        show_number(found.records, "record") + (f"; advice: {found.advice}" if found.advice else "")
        + (f"; networks' verdicts: {found.networks}" if found.networks else "")
    )
    tell(
        f"purged {what}" if yes
        else f"would purge {what}; --yes does it" if any(counts.values()) else "no record matches",
        {"done": yes, **counts}, as_json=as_json,
    )


@contextmanager
def _opened(where: str) -> Iterator[Store]:
    """The store of a database, whose schema is checked."""
    from plevel.client import ServiceError
    from plevel.direct import open_store

    try:
        with open_store(where) as store:
            assert store is not None  # `_existing`
            yield store
    except ServiceError as error:
        raise CommandError(str(error)) from error


def _existing(database: str | None) -> str:
    """The database's URL; does not create it."""
    from plevel.extra import require_service
    from service.address import path_of

    where = location.locate_database(database)
    path = path_of(where)
    if path is not None and not path.exists():
        raise CommandError(f"database {path} does not exist: create it with 'plevel db upgrade'")
    require_service()
    return where


def _shown(where: str) -> str:
    """The URL without its password."""
    from service.store.db import normal_url, show_url

    return show_url(normal_url(where))
