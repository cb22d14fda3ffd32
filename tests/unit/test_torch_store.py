"""The folder of a model's kernels: what is pruned, and what stays. It needs no PyTorch."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
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


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_no_other_user_may_write_what_is_made_whatever_the_umask_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with store.temporary() as made:
        (made / "kernel.so").write_bytes(b"code")
        (made / "kernel.so").chmod(0o777)
        store.move(made / "kernel.so", store.folder() / "kernel.so")
    for path in (store.folder().parent, store.folder(), store.folder() / "kernel.so"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755


@pytest.mark.parametrize("place", ["plevel", "plevel/torch"])
def test_a_folder_that_every_user_may_write_to_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store.folder()
    (tmp_path / place).chmod(0o1777)
    with pytest.raises(store.FolderError, match=f"{place} may be written by every user.*another folder in XDG_CACHE_"):
        store.folder()
    (tmp_path / place).chmod(0o775)  # as a group that shares it has it
    assert store.folder().exists()
