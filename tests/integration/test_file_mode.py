"""A SQLite database is its owner's: tokens' digests and imported texts are in it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from plevel.direct import open_store
from service.errors import DatabaseError
from service.store.backup import backup
from service.store.db import Store
from service.store.tables import workload
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


@pytest.fixture
def foreign(sqlite_copy: str) -> Iterator[Path]:
    """A database that others may read only, in such a folder."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        path = folder / "a #b.db"
        shutil.copy(sqlite_copy.removeprefix("sqlite:///"), path)
        path.chmod(0o444)
        folder.chmod(0o555)
        yield path
        folder.chmod(0o700)


def as_nobody(work: Callable[[str], None], url: str) -> None:
    """Run as a user who cannot write the files of this one."""

    def run() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        work(url)

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join()
    assert child.exitcode == 0


def _read(url: str) -> None:
    with open_store(url) as store:
        assert store is not None
        with store.read() as c:
            assert c.scalar(sa.select(sa.func.count()).select_from(workload)) == 0
        with pytest.raises(DatabaseError, match="is not writable for this user: change the permissions"), store.write():
            pass


def _fail_to_open(url: str) -> None:
    with pytest.raises(DatabaseError, match="is not writable: change the permissions of it and its folder"):
        Store(url)


def test_a_copy_that_cannot_be_written_is_read(foreign: Path) -> None:
    as_nobody(_read, f"sqlite:///{foreign}")
    as_nobody(_fail_to_open, str(foreign))
    assert [p.name for p in foreign.parent.iterdir()] == [foreign.name]


def test_a_database_that_its_owner_writes_is_read_by_others(foreign: Path) -> None:
    for path in (foreign.parent, foreign):
        path.chmod(0o755)
    store = Store(str(foreign))
    with store.write() as c:
        c.execute(sa.insert(workload).values(digest="d", key="k", op="o", body={}))
        c.execute(sa.delete(workload))
    made = [p.name for p in foreign.parent.iterdir()]
    for name in made:
        (foreign.parent / name).chmod(0o644)
    as_nobody(_read, f"sqlite:///{foreign}")
    assert [p.name for p in foreign.parent.iterdir()] == made
    store.close()


def test_a_folder_that_is_not_there_is_told_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typo = tmp_path / "typo" / "x.db"
    with pytest.raises(DatabaseError, match=f"there is no folder {typo.parent}: create it, or name another"):
        Store(str(typo))
    assert not typo.parent.exists()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    Store(str(tmp_path / "home" / "plevel" / "plevel.db")).close()
