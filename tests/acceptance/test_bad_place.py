"""Databases, ports and services that cannot be used: one clear line each, through real processes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from service.store import migration
from tests.acceptance.conftest import Stage

DENSE = (
    "dense", "--input", "data=float32[8,8]", "--input", "weight=float32[8,8]:const", "--threads", "1",
)


def assert_fails(stage: Stage, arguments: tuple[str, ...], *words: str) -> None:
    """The command exits with 1 and says why in one line, with all of `words`, and no more."""
    done = stage.run(*arguments)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    for word in ("plevel", *words):
        assert word in line, line
    assert done.stdout == ""
    assert stage.survivors() == []


def commands(database: str) -> list[tuple[str, ...]]:
    return [
        ("tune", *DENSE, "--database", database),
        ("serve", "--port", "0", "--database", database),
        ("db", "upgrade", "--database", database),
    ]


@pytest.mark.sample(1)  # tests/unit/test_named_database.py has all commands in its own process
@pytest.mark.parametrize("command", range(3))
def test_a_database_that_cannot_be_written(stage: Stage, command: int) -> None:
    blocked = stage.folder / "file"
    blocked.write_text("")  # where a folder would have to be
    database = str(blocked / "plevel.db")
    assert_fails(stage, commands(database)[command], f"database {database}")


@pytest.mark.full
@pytest.mark.parametrize("command", range(3))
def test_a_file_that_is_no_database(stage: Stage, command: int) -> None:
    stage.database.write_text("something else altogether")
    assert_fails(
        stage, commands(str(stage.database))[command], f"database {stage.database}", "name another"
    )
    assert stage.database.read_text() == "something else altogether"


@pytest.mark.full
@pytest.mark.parametrize("command", range(5))
def test_a_database_of_a_newer_schema(stage: Stage, command: int) -> None:
    place = str(stage.database)
    migration.upgrade(place)
    with closing(sqlite3.connect(stage.database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    asking = [("select", *DENSE, "--database", place), ("db", "check", "--database", place)]
    command_line = [*commands(place), *asking][command]
    assert_fails(stage, command_line, "9999", "newer", "install a newer plevel")


@pytest.mark.full
def test_a_database_without_a_schema_is_not_guessed_at(stage: Stage) -> None:
    stage.database.touch()
    assert_fails(stage, ("select", *DENSE, "--database", str(stage.database)), "plevel db upgrade")
    with closing(sqlite3.connect(stage.database)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.commit()
    assert_fails(stage, ("select", *DENSE, "--database", str(stage.database)), "belongs to another program")


@pytest.mark.full
def test_an_unknown_kind_of_database(stage: Stage) -> None:
    assert_fails(stage, ("db", "upgrade", "--database", "mysql://x/y"), "mysql", "postgresql://")


def test_a_port_in_use_and_a_service_without_workers(stage: Stage) -> None:
    stage.start_service()
    other = ("serve", "--database", str(stage.folder / "other.db"), "--port", str(stage.port))
    done = stage.run(*other)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(stage.port) in line and "--port" in line
    assert not Path(stage.folder / "other.db").exists()  # nothing half-written

    done = stage.run("tune", *DENSE, "--url", stage.url)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "--target" in line and "plevel worker --url" in line and "--wait" in line
    assert stage.run("runs", "--url", stage.url).stdout == "no runs yet\n"

    done = stage.run("cancel", "7", "--url", stage.url)
    assert done.returncode == 1
    assert "run 7 does not exist" in done.stderr
