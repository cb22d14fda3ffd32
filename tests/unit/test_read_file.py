"""Files that a user names, among them pipes, devices, and files that are far too large."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plevel.cli.error import UsageError
from plevel.cli.lock import read_lock
from plevel.cli.model_file import read_model
from plevel.client import UnreachableError
from plevel.environment import read_token
from plevel.reading import read_file
from service.errors import DatabaseError
from service.store.db import Store
from workers.bundle import BundleError, read_key


def test_files_and_pipes_are_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"of a file")
    assert read_file(tmp_path / "file", 9, "") == b"of a file"
    reading, writing = os.pipe()
    os.write(writing, b"of a pipe")
    os.close(writing)
    assert read_file(Path(f"/dev/fd/{reading}"), 9, "") == b"of a pipe"
    os.close(reading)


@pytest.mark.parametrize("kind", ["device", "file"])
def test_a_file_beyond_the_limit_of_its_kind_is_refused(kind: str, tmp_path: Path) -> None:
    path = Path("/dev/zero")
    if kind == "file":
        path = tmp_path / "huge"
        with path.open("wb") as file:
            file.truncate(3 << 30)
    with pytest.raises(UsageError, match=f"^{path} cannot be read: larger than 64 MiB: this is no lock file"):
        read_lock(path)
    with pytest.raises(UsageError, match=f"^{path} cannot be read: larger than 16 MiB: this is no model file"):
        read_model(path)
    with pytest.raises(UnreachableError, match=f"--token-file {path}: larger than 1 MiB: this is no token file: "):
        read_token(path)
    with pytest.raises(BundleError, match=f"{path} is no key"):
        read_key(path)


def test_a_pipe_is_no_database() -> None:
    reading, writing = os.pipe()
    path = f"/dev/fd/{reading}"
    with pytest.raises(DatabaseError, match=f"^database {path} is a pipe or a device: name a file"):
        Store(f"sqlite:///{path}", read_only=True)
    for end in (reading, writing):
        os.close(end)
