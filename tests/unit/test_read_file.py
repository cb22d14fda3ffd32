"""Files that a user names, pipes and devices among them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plevel.cli.error import UsageError
from plevel.cli.lock import read_lock
from plevel.client import UnreachableError
from plevel.environment import read_token
from plevel.reading import read_file
from workers.bundle import BundleError, read_key

ENDLESS = Path("/dev/zero")


def test_files_and_pipes_are_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"of a file")
    assert read_file(tmp_path / "file") == b"of a file"
    reading, writing = os.pipe()
    os.write(writing, b"of a pipe")
    os.close(writing)
    assert read_file(Path(f"/dev/fd/{reading}")) == b"of a pipe"
    os.close(reading)


def test_a_device_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plevel.reading._MOST", 1 << 20)
    with pytest.raises(UsageError, match="^/dev/zero cannot be read: a pipe or device of more than 1 MiB: "):
        read_lock(ENDLESS)
    with pytest.raises(UnreachableError, match="--token-file /dev/zero: a pipe or device of more than 1 MiB: "):
        read_token(ENDLESS)
    with pytest.raises(BundleError, match="/dev/zero is no key"):
        read_key(ENDLESS)
