"""The place of records: a service, or a database."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plevel.cli.error import CommandError, UsageError

if TYPE_CHECKING:
    from plevel.client import Client
    from plevel.direct import Direct


@dataclass(frozen=True)
class Location:
    """The place of records: the URL of a service or of a database (one of them is set), and the namespace."""

    url: str | None = None
    database: str | None = None
    namespace: str | None = None

    def connect(self) -> AbstractContextManager[Client | Direct]:
        """The service, or the database itself. See `plevel.direct.connect`."""
        from plevel.direct import connect

        return connect(self.url, self.database, self.namespace)

    @property
    def shown(self) -> str:
        """The place without its password."""
        text = re.sub(r"(?<=://)([^:/@]*):[^@]*@", r"\1:***@", self.url or self.database or "")
        return re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1***", text)

    @property
    def option(self) -> str:
        """Return the options that name the same place in another command; empty for the default."""
        return self.address + (f" --namespace {self.namespace}" if self.namespace else "")

    @property
    def address(self) -> str:
        """As `option`, without the namespace, for commands that have none."""
        if self.url is not None:
            return "" if os.environ.get("PLEVEL_URL") == self.url else f" --url {shlex.quote(self.shown)}"
        if self.database == locate_database(None) and not os.environ.get("PLEVEL_URL"):
            return ""
        return f" --database {shlex.quote(self.shown)}"


def resume_command(run_id: int, place: Location) -> str:
    """The command that resumes an interrupted run of a database; a service's run resumes by itself."""
    return f"plevel tune --run {run_id}{place.option}"


def locate(
    url: str | None, database: str | None, namespace: str | None = None, *, makes: bool = False
) -> Location:
    """Return the place of records: from the options, else the environment, else this user's own file.

    Args:
        makes: whether the command creates a missing database.

    Raises:
        UsageError: both a service and a database are named, or the namespace is malformed.
        CommandError: the database file does not exist.
    """
    _check_namespace(namespace)
    if url is not None and database is not None:
        raise UsageError("--url, --database: name one of them, a service or a database")
    named = "--url"
    if url is None and database is None:
        named, url = "PLEVEL_URL", os.environ.get("PLEVEL_URL") or None
    if url is not None:
        if re.match("https?://[^/]", url) is None:
            raise UsageError(f"{named} {url!r:.120}: expected http://host:port")
        return Location(url=url.rstrip("/"), namespace=namespace)
    if not makes:
        _check_database(database)
    return Location(database=locate_database(database), namespace=namespace)


def locate_service(url: str | None) -> str:
    """The URL of a service, of the option or the environment; raise `UsageError` if none is named."""
    place = locate(url, None, makes=True)
    if place.url is None:
        raise UsageError("--url: missing: name a service, as http://host:8765, or set PLEVEL_URL")
    return place.url


def _check_database(database: str | None) -> None:
    """Check that a named database file exists; this user's own file may be missing."""
    from service.address import path_of

    named = "--database" if database else "PLEVEL_DATABASE"
    if not database and not os.environ.get("PLEVEL_DATABASE"):
        return
    path = path_of(locate_database(database))
    if path is not None and not path.exists():
        raise CommandError(
            f"{named} {path}: there is no such file: name another, or create it with 'plevel tune' "
            "or 'plevel import'"
        )


def _check_namespace(given: str | None) -> None:
    from plevel.environment import read_namespace
    from service.errors import InvalidError
    from service.store import namespace

    name = read_namespace(given)
    try:
        if name is not None:
            namespace.check(name)
    except InvalidError as error:
        raise UsageError(f"{'--namespace' if given else 'PLEVEL_NAMESPACE'}: {error}") from error


def locate_database(database: str | None) -> str:
    """The URL of the named database, else of the environment's, else of this user's own file."""
    from service.address import default_url, url_of

    database = database or os.environ.get("PLEVEL_DATABASE") or None
    if database is None:
        return default_url()
    return database if "://" in database else url_of(database)


def make_database(place: Location) -> None:
    """Create the database if there is none, or an empty file, as a command that was interrupted leaves."""
    if place.database is None:
        return
    from plevel.embedded import make_folder
    from plevel.extra import require_service
    from service.address import path_of

    require_service()
    path = path_of(place.database)
    if path is None:
        return
    from service.store import migration

    if not path.exists() or migration.current(place.database) is None:
        make_folder(place.database)
        migration.upgrade(place.database)
