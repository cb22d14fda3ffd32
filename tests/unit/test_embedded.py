"""The logs of embedded services and workers do not fill the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from plevel import embedded


def write(folder: Path, number: int, size: int) -> str:
    path = folder / f"worker-20260101-{number:06d}-1.log"
    path.write_bytes(b"x" * size)
    return path.name


def kept(folder: Path) -> list[str]:
    embedded._drop_old(folder)
    return sorted(path.name for path in folder.iterdir())


def test_as_many_logs_are_kept(tmp_path: Path) -> None:
    names = [write(tmp_path, i, 10) for i in range(embedded.KEPT_LOGS + 3)]
    assert kept(tmp_path) == names[3:]


def test_large_logs_are_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "KEPT_LOG_BYTES", 100)
    names = [write(tmp_path, i, 40) for i in range(5)]
    assert kept(tmp_path) == names[3:]
