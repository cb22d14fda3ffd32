"""Workspaces between inaccessible pages are made once, however often a kernel allocates them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from workers.guard import OutOfBoundsError, Placement, Span
from workers.workspace import guarded_workspaces

SOURCE = """
#include <stdint.h>
void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
int (*__TVMBackendFreeWorkspace)(int, int, void*);

void run(int times, int written) {
    for (int i = 0; i < times; ++i) {
        char* a = __TVMBackendAllocWorkspace(1, 0, 2000, 2, 32);
        char* b = __TVMBackendAllocWorkspace(1, 0, 2000, 2, 32);
        for (int j = 0; j < (i == 0 ? written : 2000); ++j) b[j] = 0;
        __TVMBackendFreeWorkspace(1, 0, b);
        __TVMBackendFreeWorkspace(1, 0, a);
    }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    assert compiler is not None, "no C compiler on this host: install gcc"
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "kernel.c").write_text(SOURCE)
    path = folder / "kernel.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(path), str(folder / "kernel.c")]
    subprocess.run(command, check=True)
    return path


@pytest.mark.parametrize("placement", Placement)
def test_what_was_freed_is_given_out_again(library: Path, placement: Placement) -> None:
    noted: list[int] = []

    def note(spans: list[Span]) -> None:
        noted.append(len(spans))

    with guarded_workspaces(library, placement, note):
        ctypes.CDLL(str(library)).run(1000, 2000)
    assert noted == [1, 2]


def test_damage_by_the_first_of_many_uses_is_found(library: Path) -> None:
    with (
        pytest.raises(OutOfBoundsError, match="a workspace: 3 bytes"),
        guarded_workspaces(library, Placement.BEGIN, lambda spans: None),
    ):
        ctypes.CDLL(str(library)).run(10, 2003)
