"""The folder of a model's kernels: what is pruned, and what stays. It needs no PyTorch."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from plevel.torch import store

DAY = store.YOUNG_S


def test_what_was_not_used_for_longest_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, now = store.folder(), time.time()

    def put(name: str, days: float, size: int = 100) -> None:
        (folder / name).write_bytes(b"x" * size)
        os.utime(folder / name, (now - days * DAY, now - days * DAY))

    for name, days in (("a.so", 5), ("b.so", 4), ("c.so", 3), ("young.so", 0.5), ("runtime-1.so", 9)):
        put(name, days)
        put(f"{name}.json", 30, 1)
    put("verdict-1.json", 2)
    (folder / "half").mkdir()
    os.utime(folder / "half", (now - 2 * DAY, now - 2 * DAY))
    store.touch(folder / "runtime-1.so")
    store.prune(10_000)
    assert len(list(folder.iterdir())) == 11  # but for the folder half made
    store.prune(350)
    assert {p.name for p in folder.iterdir()} == {
        name for kept in ("young.so", "runtime-1.so") for name in (kept, f"{kept}.json")
    } | {"verdict-1.json"}
    store.prune(0)
    assert {p.name for p in folder.iterdir() if p.suffix == ".so"} == {"young.so", "runtime-1.so"}
    store.touch(folder / "absent.so")
    assert not (folder / "absent.so").exists()
