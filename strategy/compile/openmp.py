"""OpenMP's threads for the parallel loops of kernels, in the place of TVM's pool."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

from strategy.compile.export import link
from strategy.fault import CompileError

LAUNCHER = Path(__file__).with_name("openmp.h")
_SOURCE = """
#include "openmp.h"
int plevel_launch(Body body, void *data, int tasks) { return openmp_launch(body, data, tasks); }
"""
_REMEDY = "install a C compiler with OpenMP (Debian: apt install gcc libgomp1), or leave thread-pool=openmp out"


def build_launcher(folder: Path) -> Path:
    """The launcher as a shared library, made in the folder.

    Raises:
        CompileError: there is no C compiler, or no OpenMP.
    """
    (folder / "launcher.c").write_text(_SOURCE)
    try:
        return link([f"-I{LAUNCHER.parent}", "launcher.c"], folder)
    except CompileError as error:
        raise CompileError(f"OpenMP's threads cannot be used: {_REMEDY}: {error}") from error


def use_openmp(kernel: Path, launcher: Path) -> None:
    """Run the parallel loops of a loaded library on OpenMP's threads.

    Raises:
        CompileError: the launcher cannot be loaded.
    """
    try:
        function = ctypes.CDLL(str(launcher)).plevel_launch
    except OSError as error:  # without libgomp
        raise CompileError(f"OpenMP's threads cannot be used: {_REMEDY}: {error}") from error
    with suppress(ValueError):  # of a library without a parallel loop
        hook = ctypes.c_void_p.in_dll(ctypes.CDLL(str(kernel)), "__TVMBackendParallelLaunch")
        hook.value = ctypes.cast(function, ctypes.c_void_p).value
