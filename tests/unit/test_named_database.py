"""A database that is named and cannot be used: every command says so in one line, and makes none."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
import typer

from plevel.cli.main import app
from plevel.client import ServiceError, UnreachableError
from plevel.database import plevel_database
from strategy.select import NO_RECORDS, select
from strategy.select.lock import Lock
from strategy.target import Target
from strategy.workload import Workload
from tests.unit.test_cli import Called, called, commands
from workers.bundle import make_key

__all__ = ["called"]  # a fixture

TARGET = Target.parse("llvm")
DENSE = ("dense", "-i", "data=float32[8,8]", "-i", "weight=float32[8,8]", "--target", "llvm")
# The arguments that each command needs, beside its database.
READING: dict[str, tuple[str, ...]] = {
    "select": DENSE, "lock": ("{}/x.toml", "-o", "{}/x.lock"), "check": ("--against", "{}/x.lock"),
    "build": (*DENSE, "-o", "{}/x.so"), "compile": ("{}/x.pt2", "-o", "{}/x.so"),
    "show": DENSE, "runs": (), "coverage": (), "records": (),
    "plot": ("1",), "export": (), "workers": (), "status": (), "cancel": ("1",), "why": ("1",),
    "model list": (), "model train": ("dense", "--target", "llvm"), "model show": ("1",),
    "db current": (), "db check": (), "db downgrade": ("0005",),
    "db backup": ("{}/copy.db",), "db prune": ("--older-than", "1d"),
    "db purge": ("--reason", "x", "--until", "2030-01-01"), "fleet pause": ("--reason", "x", "--device", "d"),
    "fleet resume": ("1",), "fleet pauses": (), "fleet rename": ("a", "b"), "fleet move": ("a", "b"),
    "token list": (), "token revoke": ("1",),
    "bundle make": (*DENSE[:-2], "-o", "{}/x.bundle", "--key", "{}/x.key"),
}
MAKING: dict[str, tuple[str, ...]] = {
    "tune": (*DENSE[:-2], "--trials", "1"), "import": ("{}/x.log",), "serve": ("--port", "0"),
    "db upgrade": (), "token create": ("x", "--scope", "read"),
}


def test_all_commands_are_here() -> None:
    found = {
        name
        for name, command in commands(typer.main.get_command(app))
        if any("--database" in p.opts for p in command.params)
    }
    assert found == READING.keys() | MAKING.keys()


def spoil(path: Path, how: str) -> None:
    """Leave at `path` what is no database of this installation."""
    if how == "folder":
        path.mkdir()
    elif how == "text":
        path.write_text("op,inputs,trials\n" * 200)
    elif how in ("newer", "other"):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            name = "alembic_version" if how == "newer" else "customer"
            connection.execute(f"CREATE TABLE {name} (version_num TEXT)")
            connection.execute(f"INSERT INTO {name} VALUES ('9999')")
            connection.commit()
        path.chmod(0o600)


# Each with what the message says of it.
BAD = {
    "server": "does not answer",
    "folder": "unable to open|folder|directory",
    "text": "SQLite file",
    "newer": "newer",
    "other": "another program",
}


def in_turn(names: Iterable[str], ways: Collection[str]) -> list[Any]:
    """Each command with each way in a larger sample, and else with one of them in turn."""
    return [
        pytest.param(name, way, marks=[pytest.mark.full] if (i + j) % len(ways) else [])
        for i, name in enumerate(names) for j, way in enumerate(ways)
    ]


@pytest.mark.parametrize(("name", "how"), in_turn([*READING, *MAKING], BAD))
def test_a_bad_database_is_one_line(name: str, how: str, called: Called, tmp_path: Path) -> None:
    bad = tmp_path / "bad.db"
    spoil(bad, how)
    before = content(bad)
    named = "postgresql://plevel@127.0.0.1:9/none" if how == "server" else str(bad)
    done = called(*arguments_of(name, tmp_path), "--database", named)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert re.search(BAD[how], line), line
    assert content(bad) == before
    assert {p.name for p in tmp_path.iterdir()} <= {"bad.db", "x.toml", "x.lock", "x.log", "x.key", "state"}


def content(path: Path) -> Any:
    if not path.exists():
        return None
    return sorted(path.iterdir()) if path.is_dir() else path.read_bytes()


def arguments_of(name: str, folder: Path) -> list[str]:
    """A command with all that it needs, beside its database."""
    (folder / "x.toml").write_text(
        '[[workloads]]\nop = "dense"\ninputs = ["data=float32[8,8]", "weight=float32[8,8]"]\n'
    )
    chosen = select(Workload.make("dense", {"data": "float32[8,8]", "weight": "float32[8,8]"}), TARGET, NO_RECORDS)
    (folder / "x.lock").write_text(Lock.make([chosen]).write())
    (folder / "x.log").write_text("{}\n")
    make_key(folder / "x.key")
    return [*name.split(), *(a.format(folder) for a in (READING | MAKING)[name])]


@pytest.mark.parametrize(("name", "by"), in_turn(READING, ["option", "environment"]))
def test_a_missing_file_is_one_line(
    name: str, by: str, called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "mistyped.db"
    arguments = arguments_of(name, tmp_path)
    if by == "option":
        arguments += ["--database", str(missing)]
    else:
        monkeypatch.setenv("PLEVEL_DATABASE", str(missing))
    done = called(*arguments)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "mistyped.db" in done.stderr
    assert not missing.exists()


@pytest.mark.parametrize("name", MAKING)
def test_a_missing_folder_is_one_line(name: str, called: Called, tmp_path: Path) -> None:
    missing = tmp_path / "typo" / "x.db"
    done = called(*arguments_of(name, tmp_path), "--database", f"sqlite:///{missing}")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert f"there is no folder {missing.parent}: create it, or name another" in line
    assert not missing.parent.exists()


def test_the_user_s_own_file_may_still_be_missing(called: Called) -> None:
    assert called("select", *DENSE).returncode == 0
    assert called("records").returncode == 0


def test_a_library_s_caller_is_told_too(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="no such file"), plevel_database(tmp_path / "no.db"):
        pass


def test_a_service_that_is_away_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from plevel import database

    asked: list[int] = []

    def away(*given: object) -> None:
        asked.append(1)
        raise UnreachableError("no service answers")

    now = 0.0
    monkeypatch.setattr(database.time, "monotonic", lambda: now)
    rest = database.Rest()
    found, again = (database._Cached(away, "farm", rest) for _ in range(2))  # as of one graph after the other
    for rows in range(1, 4):
        workload = Workload.make("softmax", {"data": f"float32[{rows},64]"})
        with pytest.raises(UnreachableError):
            found.measured(workload, TARGET, None)
    with pytest.raises(database.RestingError, match="no service answers"):
        again.history(workload)
    assert len(asked) == 1
    now = database.REST_S + 1
    with pytest.raises(UnreachableError):
        found.measured(workload, TARGET, None)
    assert len(asked) == 2


@pytest.mark.parametrize(("status", "times"), [(503, 1), (403, 2)])
def test_a_busy_service_is_left_alone_for_a_while_and_one_that_refuses_is_not(status: int, times: int) -> None:
    from plevel import database

    asked: list[int] = []

    def refuse(*given: object) -> None:
        asked.append(1)
        raise ServiceError(status, "no")

    found = database._Cached(refuse, "farm", database.Rest())
    for _ in range(2):
        with pytest.raises((ServiceError, database.RestingError), match="no"):
            found.history(Workload.make("softmax", {"data": "float32[4,64]"}))
    assert len(asked) == times
