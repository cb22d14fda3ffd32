"""SQLite files that are moved, deleted or replaced while a store has them open."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from service.errors import DatabaseError
from service.store.db import Store


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_stored_in_a_file_that_was_moved(replaced: bool, tmp_path: Path) -> None:
    path, moved = tmp_path / "plevel.db", tmp_path / "moved.db"
    with closing(Store(f"sqlite:///{path}")) as store:
        with store.write() as connection:
            connection.exec_driver_sql("CREATE TABLE number (value INTEGER)")
        path.rename(moved)
        if replaced:
            shutil.copy(moved, path)
        for transaction in (store.read, store.write):
            with pytest.raises(DatabaseError, match=f"^the database {path} was moved") as caught, transaction():
                pass
            assert str(tmp_path) not in caught.value.told
        moved.rename(path)
        with store.write() as connection:
            connection.exec_driver_sql("INSERT INTO number VALUES (1)")
        with store.read() as connection:
            assert connection.exec_driver_sql("SELECT value FROM number").scalar() == 1
