"""Reports that wait on disk: whole lines in few files, which processes share without losing or leaving any."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from plevel.hooks import spool as module
from plevel.hooks.spool import FullError, Spool

KEY = "http://farm:8765 None"


def line(i: int) -> bytes:
    return b'{"kind":"foreign","i":%03d}\n' % i


def delivered(spool: Spool) -> list[bytes]:
    sent: list[bytes] = []
    spool.deliver(sent.append)
    return b"".join(sent).splitlines(keepends=True)


def test_reports_share_files_and_the_folder_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Path] = []
    size = module._size
    monkeypatch.setattr(module, "_size", lambda path: (measured.append(path), size(path))[1])
    monkeypatch.setattr(module, "FILE_BYTES", 10 * len(line(0)))
    before, spool = (Spool(tmp_path, KEY) for _ in range(2))
    before.keep(line(0))
    for i in range(1, 26):
        spool.keep(line(i))
    assert len(measured) == 1
    assert [len(p.read_bytes().splitlines()) for p in sorted(tmp_path.iterdir())] == [1, 10, 10, 5]
    # The last file of a process is its own while it lives.
    assert delivered(before) == [line(i) for i in range(21)]
    spool.keep(line(26))
    assert delivered(spool) == [line(i) for i in range(21, 27)]
    assert list(tmp_path.iterdir()) == []
    assert before.is_empty()


def test_what_comes_while_a_file_is_sent_stays(tmp_path: Path) -> None:
    spool = Spool(tmp_path, KEY)
    spool.keep(line(0))
    spool.deliver(lambda data: spool.keep(line(1)))
    spool.close()
    assert delivered(Spool(tmp_path, "another")) == []
    assert delivered(Spool(tmp_path, KEY)) == [line(0), line(1)]


@pytest.mark.parametrize("written", [0, 7])
def test_a_full_disk_leaves_neither_half_lines_nor_empty_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    spool, write = Spool(tmp_path, KEY), os.write
    for kept in ([], [line(0)]):
        for some in kept:
            spool.keep(some)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda file, data: write(file, data[:written]))
            with pytest.raises(OSError, match="No space left"):
                spool.keep(line(1))
        assert [p.read_bytes() for p in tmp_path.iterdir()] == kept


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    spool = Spool(tmp_path, KEY)
    spool.keep(line(0) + line(1)[:9])
    spool.close()
    assert delivered(spool) == [line(0)]
    assert list(tmp_path.iterdir()) == []


def test_a_full_folder_takes_no_more_until_it_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPOOL_BYTES", 2 * len(line(0)))
    spool = Spool(tmp_path, KEY)
    for i in range(2):
        spool.keep(line(i))
    with pytest.raises(FullError):
        spool.keep(line(2))
    assert len(delivered(spool)) == 2
    spool.keep(line(2))


def test_a_file_that_is_refused_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a firewall on the way to the service."""
    monkeypatch.setattr(module, "FILE_BYTES", len(line(0)))
    spool, sent = Spool(tmp_path, KEY), list[bytes]()
    for i in range(3):
        spool.keep(line(i))

    def send(data: bytes) -> None:
        if data in (line(0), line(2)):
            raise ValueError("blocked")
        sent.append(data)

    for left in (3, 2, 2):
        with pytest.raises(ValueError, match="blocked"):
            spool.deliver(send)
        assert len(list(tmp_path.iterdir())) == left
    assert sent == [line(1)]
    spool.keep(line(3))
    for _ in range(3):
        with pytest.raises(ValueError, match="blocked"):
            spool.deliver(send)
    assert sent == [line(1), line(3)]
    assert sorted(delivered(spool)) == [line(0), line(2)]


def test_a_folder_that_cannot_be_listed_for_now_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a file server starts again."""
    spool = Spool(tmp_path, KEY)
    spool.keep(line(0))

    def fail(path: object = ".") -> list[str]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        for name in ("listdir", "scandir"):
            patch.setattr(os, name, fail)
        assert not spool.is_empty()
        with pytest.raises(OSError, match="Stale"):
            delivered(spool)
    assert delivered(spool) == [line(0)]
    assert Spool(tmp_path / "none", KEY).is_empty()


def test_a_folder_that_can_be_written_and_not_listed_takes_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of mode 0300, which its owner may open again later."""
    spool = Spool(tmp_path, KEY)

    def fail(path: object = ".") -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        for name in ("listdir", "scandir"):
            patch.setattr(os, name, fail)
        spool.keep(line(0))
        with pytest.raises(PermissionError):
            delivered(spool)
        spool.keep(line(1))
    assert delivered(spool) == [line(0), line(1)]


def test_a_file_system_without_locks_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre mounted without `flock`: neither files nor descriptors of the tool's process pile up."""
    spool, opened = Spool(tmp_path, KEY), len([*Path("/proc/self/fd").iterdir()])

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", fail)
    for _ in range(3):
        with pytest.raises(OSError, match="not implemented"):
            spool.keep(line(0))
    assert list(tmp_path.iterdir()) == []
    assert len([*Path("/proc/self/fd").iterdir()]) == opened


def test_a_forked_process_begins_a_file_of_its_own(tmp_path: Path) -> None:
    spool = Spool(tmp_path, KEY)
    spool.keep(line(0))
    child = os.fork()
    if child == 0:
        spool.reopen()
        spool.keep(line(1))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    spool.keep(line(2))
    assert delivered(Spool(tmp_path, KEY)) == [line(1)]
    assert delivered(spool) == [line(0), line(2)]
