"""Files that are moved to their places together."""

from __future__ import annotations

from pathlib import Path

import pytest

from strategy.draft import drafted


def write(path: Path, *suffixes: str, fails: bool = False) -> None:
    with drafted(path, suffixes) as draft:
        for suffix in suffixes:
            draft.with_suffix(suffix).write_text("new")
        if fails:
            raise ValueError("why")


def test_a_failure_keeps_the_old_files(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_text("old")
    with pytest.raises(ValueError, match="why"):
        write(path, ".h", ".so", fails=True)
    (tmp_path / "x.h").mkdir()
    with pytest.raises(OSError, match=r"x\.h") as refused:
        write(path, ".h", ".so")
    assert refused.value.filename2 == str(tmp_path / "x.h")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "x.h", path] and path.read_text() == "old"


def test_all_files_are_moved(tmp_path: Path) -> None:
    write(tmp_path / "x", "", ".cu", ".json")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == dict.fromkeys(("x", "x.cu", "x.json"), "new")
