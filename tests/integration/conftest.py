"""Tests of the store run on SQLite and on PostgreSQL, on the schema that the migrations make.

Those of a file with the mark `in_turn` run on one of them in turn, and with `--full` on both.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from service.records.reading import Readers
from service.store import migration
from service.store.db import Store
from tests import statement
from tests.integration.process import Service, Start
from tests.once import make_once
from tests.postgres import MIGRATED, create_database

_numbers = itertools.count(1)
statement.share()


def admin(server: str) -> psycopg.Connection:
    return psycopg.connect(f"host={server} user=plevel dbname=postgres", autocommit=True)


@pytest.fixture(scope="session")
def migrated_file() -> Path:
    return make_once("migrated.db", lambda path: migration.upgrade(f"sqlite:///{path}"))


@pytest.fixture
def sqlite_copy(migrated_file: Path, tmp_path: Path) -> str:
    path = tmp_path / "plevel.db"
    shutil.copy(migrated_file, path)  # with its mode
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_copy(postgres_server: str) -> Iterator[str]:
    name = f"copy_{os.getpid()}_{next(_numbers)}"
    with admin(postgres_server) as server:
        create_database(server, name, MIGRATED)
        yield f"postgresql://plevel@/{name}?host={postgres_server}"
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a database with the schema and nothing in it, dropped at the end."""
    name = "sqlite_copy" if request.param == "sqlite" else "postgres_copy"
    found: str = request.getfixturevalue(name)
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store(url)
    yield opened
    opened.close()


@pytest.fixture
def readers() -> Iterator[Readers]:
    found = Readers()
    yield found
    found.close()


@pytest.fixture(scope="session")
def service(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that tests share: each adds nothing that another counts, or adds it to a namespace of its own."""
    folder = tmp_path_factory.mktemp("service")
    shutil.copy(migrated_file, folder / "plevel.db")
    one = Service(
        f"sqlite:///{folder / 'plevel.db'}", folder, PLEVEL_AUTH="open", PLEVEL_MAX_REQUEST_BYTES="200000",
        PLEVEL_POLL_S="1",  # it lives as long as the tests: looking ten times a second took a tenth of all they compute
    )
    yield one
    one.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Service] = []

    def begin(database: str, files: int | None = None, **environment: str) -> Service:
        started.append(Service(database, tmp_path, files, **environment))
        return started[-1]

    yield begin
    for service in started:
        service.http.close()
        if service.process.returncode is None:
            service.close()
