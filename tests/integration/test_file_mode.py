"""A SQLite database is its owner's: tokens' digests and imported texts are in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.store.backup import backup
from service.store.db import Store
from tests.integration.process import Start


@pytest.fixture
def wide() -> Iterator[None]:
    """A host on which what is made is everybody's."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_made_is_for_its_owner_only(tmp_path: Path, wide: None) -> None:
    path = tmp_path / "plevel.db"
    store = Store(f"sqlite:///{path}")
    with store.write() as c:
        c.execute(sa.text("CREATE TABLE t (x INTEGER)"))
    backup(store, tmp_path / "copy.db")
    made = {p.name: mode(p) for p in tmp_path.iterdir()}
    store.close()
    assert made == dict.fromkeys(("plevel.db", "plevel.db-wal", "plevel.db-shm", "copy.db"), 0o600)


def test_a_file_that_others_can_open_is_told_and_left(
    sqlite_copy: str, tmp_path: Path, start: Start
) -> None:
    path = tmp_path / "plevel.db"
    path.chmod(0o640)
    _, _, err = start(sqlite_copy).close()
    (line,) = err.splitlines()
    assert "(mode 640): restrict it with chmod 600" in line
    assert mode(path) == 0o640
    path.chmod(0o600)
    assert start(sqlite_copy).close()[2] == ""
