"""A SQLite database is its owner's: tokens' digests and imported texts are in it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from plevel.direct import open_store
from service.errors import DatabaseError
from service.store.backup import backup
from service.store.db import Store
from service.store.foreign import ForeignFile, is_full
from service.store.tables import workload
from tests.integration.process import Start
from tests.limit import HANG_S


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
    child = _child(work, url)
    child.join()
    assert child.exitcode == 0


def _child(work: Callable[..., None], *args: object) -> ForkProcess:
    def run() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        work(*args)

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    return child


def add(store: Store, digest: str) -> None:
    with store.write() as c:
        c.execute(sa.insert(workload).values(digest=digest, key="k", op="o", body={}))


def count(c: sa.Connection) -> int:
    return c.scalar(sa.select(sa.func.count()).select_from(workload)) or 0


def _read(url: str) -> None:
    with open_store(url) as store:
        assert store is not None
        with store.read() as c:
            assert count(c) == 0
        with pytest.raises(DatabaseError, match="is not writable for this user: change the permissions"), store.write():
            pass


def _fail_to_open(url: str) -> None:
    with pytest.raises(DatabaseError, match="is not writable: change the permissions of it and its folder"):
        Store(url)


def test_a_copy_that_cannot_be_written_is_read(foreign: Path) -> None:
    as_nobody(_read, f"sqlite:///{foreign}")
    as_nobody(_fail_to_open, str(foreign))
    assert [p.name for p in foreign.parent.iterdir()] == [foreign.name]


def test_a_database_on_a_full_disk_is_read(
    sqlite_copy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the files that SQLite makes beside one that it reads, for which there is no room."""
    nothing = SimpleNamespace(f_blocks=1000, f_bavail=0, f_bfree=0, f_frsize=4096)
    monkeypatch.setattr("os.statvfs", lambda path: nothing)
    with open_store(sqlite_copy) as store:
        assert store is not None
        with store.read() as c:
            assert count(c) == 0
            assert [p.name for p in tmp_path.iterdir()] == ["plevel.db"]
        with pytest.raises(DatabaseError, match="has no room on its disk, .*: free some space"), store.write():
            pass
    nothing.f_blocks = 0  # as of a file system of FUSE that does not tell
    assert not is_full(tmp_path / "plevel.db")


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


def _read_as_it_changes(url: str, turn: Connection, other: Connection) -> None:
    """Answer each message with the number of rows, or the error, in one store; the file changes meanwhile."""
    other.close()
    with open_store(url) as store:
        assert store is not None
        while turn.recv() != "end":
            try:
                with store.read() as c:
                    turn.send(count(c))
                    turn.recv()
                    turn.send(count(c))
            except DatabaseError as error:
                turn.send(str(error))
            else:
                turn.send("")


def test_a_log_that_its_owner_deletes_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plevel.db"
    path.touch()
    monkeypatch.setattr(Path, "exists", lambda self: True)  # a moment before
    with ForeignFile(path, {}).reading():
        pass


def test_what_the_owner_writes_later_is_seen_and_a_torn_read_is_told(foreign: Path) -> None:
    """The owner opens, writes and closes the file between transactions of a reader, and during one."""
    for path in (foreign.parent, foreign):
        path.chmod(0o755)
    here, there = multiprocessing.Pipe()
    child = _child(_read_as_it_changes, f"sqlite:///{foreign}", there, here)
    there.close()  # so that neither waits for the other if that fails

    def ask(meanwhile: Callable[[], None]) -> list[object]:
        here.send("read")
        first = take()
        meanwhile()
        here.send("again")
        found = [first, take()]
        return found if isinstance(found[1], str) else [*found, take()]

    def take() -> object:
        assert here.poll(HANG_S)
        return here.recv()

    def write(digest: str) -> None:
        store = Store(str(foreign))
        add(store, digest)
        store.close()  # which writes the log's changes into the file

    with here:
        assert ask(lambda: None) == [0, 0, ""]
        write("a")
        assert ask(lambda: None) == [1, 1, ""]
        assert ask(lambda: write("b"))[-1] == f"database {foreign} was changed while it was read: ask again"
        assert ask(lambda: None) == [2, 2, ""]
        store = Store(str(foreign))  # now with a log, by which each transaction sees one state
        add(store, "c")
        assert ask(lambda: add(store, "d")) == [3, 3, ""]
        assert ask(lambda: None) == [4, 4, ""]
        here.send("end")
    child.join()
    assert child.exitcode == 0
    store.close()


def _told_as_damaged(url: str) -> None:
    malformed = pytest.raises(DatabaseError, match=r"cannot be read \(database disk image is malformed\): ask again")
    with malformed, Store(url, read_only=True).read() as c:
        count(c)


def test_a_damaged_file_that_cannot_be_written_is_told_in_one_line(foreign: Path) -> None:
    foreign.chmod(0o644)
    with foreign.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 40)
    foreign.chmod(0o444)
    as_nobody(_told_as_damaged, str(foreign))


def _told_of_the_log(url: str) -> None:
    told = pytest.raises(DatabaseError, match=r"has changes in its log a #b.db-wal.*: copy it with its log to a folder")
    with told, Store(url, read_only=True).read() as c:
        count(c)


@pytest.mark.parametrize("linked", [False, True])
def test_a_copy_with_its_log_and_without_its_index_is_told(foreign: Path, linked: bool) -> None:
    """Also where a link leads to it, as the log is beside the file itself."""
    foreign.parent.chmod(0o755)
    store = Store(str(foreign), read_only=False)
    add(store, "a")
    log = foreign.with_name(f"{foreign.name}-wal").read_bytes()
    store.close()
    for suffix in ("-wal", "-shm"):
        assert not foreign.with_name(foreign.name + suffix).exists()
    foreign.with_name(f"{foreign.name}-wal").write_bytes(log)
    foreign.with_name(f"{foreign.name}-wal").chmod(0o444)
    foreign.parent.chmod(0o555)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)  # a link there could have a log beside it
        link = Path(folder) / "link.db"
        link.symlink_to(foreign)
        as_nobody(_told_of_the_log, str(link if linked else foreign))
        assert [p.name for p in Path(folder).iterdir()] == ["link.db"]
    # An empty one has no changes.
    foreign.parent.chmod(0o755)
    foreign.with_name(f"{foreign.name}-wal").write_bytes(b"")
    foreign.parent.chmod(0o555)
    as_nobody(_see_one, str(foreign))


def _see_one(url: str) -> None:
    with Store(url, read_only=True).read() as c:
        assert count(c) == 1


def _see_one_and_no_file_beside(url: str) -> None:
    _see_one(url)
    assert len(list(Path(url).parent.iterdir())) == 1


def test_the_log_beside_a_linked_file_is_read(foreign: Path) -> None:
    for path in (foreign.parent, foreign):
        path.chmod(0o755)
    store = Store(str(foreign))
    add(store, "a")  # which is in the log only
    for path in foreign.parent.iterdir():
        path.chmod(0o644)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        link = Path(folder) / "link.db"
        link.symlink_to(foreign)
        as_nobody(_see_one_and_no_file_beside, str(link))
    store.close()


def test_a_folder_that_is_not_there_is_told_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typo = tmp_path / "typo" / "x.db"
    with pytest.raises(DatabaseError, match=f"there is no folder {typo.parent}: create it, or name another"):
        Store(str(typo))
    assert not typo.parent.exists()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    Store(str(tmp_path / "home" / "plevel" / "plevel.db")).close()
