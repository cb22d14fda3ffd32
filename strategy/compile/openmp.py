"""Kernels as networks run them: parallel loops on OpenMP's threads, constants not in the caches."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from strategy.compile.export import link
from strategy.fault import CompileError, ToolError

LAUNCHER = Path(__file__).with_name("openmp.h")
# All threads evict, so that none sleeps when the kernel is called.
_SOURCE = """
#include "openmp.h"
int plevel_launch(Body body, void *data, int tasks) { return openmp_launch(body, data, tasks); }

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
/* CLFLUSH waits for the one before, CLFLUSHOPT does not: the processor may lack it. */
static int is_unordered;
__attribute__((constructor)) static void ask(void) {
  unsigned a, b = 0, c, d;
  is_unordered = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_CLFLUSHOPT);
}
static void evict(const char *line) {
  if (is_unordered) __asm__ volatile("clflushopt %0" : "+m"(*(volatile char *)line));
  else _mm_clflush(line);
}
static void finish(void) { _mm_mfence(); }
#elif defined(__aarch64__)
static void evict(const char *line) { __asm__ volatile("dc civac, %0" ::"r"(line) : "memory"); }
static void finish(void) { __asm__ volatile("dsb sy" ::: "memory"); }
#else
static void evict(const char *line) { (void)line; }
static void finish(void) {}
#endif
void plevel_evict(const char *const *data, const int64_t *bytes, int count) {
#pragma omp parallel
  {
    for (int i = 0; i < count; ++i)
#pragma omp for schedule(static) nowait
      for (int64_t at = 0; at < bytes[i]; at += 64) evict(data[i] + at);
    finish();
  }
}
"""
REMEDY = "install a C compiler with OpenMP (Debian: apt install gcc libgomp1), or leave thread-pool=openmp out"


def build_launcher(folder: Path) -> Path:
    """The launcher as a shared library, made in the folder.

    Raises:
        ToolError: there is no C compiler, or no OpenMP.
    """
    (folder / "launcher.c").write_text(_SOURCE)
    try:
        return link(["-fopenmp", f"-I{LAUNCHER.parent}", "launcher.c"], folder)
    except CompileError as error:
        raise ToolError(f"OpenMP's threads cannot be used: {REMEDY}: {error}") from error


class Evictor:
    """Evicts buffers from the caches, on the launcher's threads.

    On processors other than x86-64 and AArch64, whose programs may not, it evicts nothing.

    Args:
        buffers: the address and the bytes of each; they must outlive the evictor's calls.
    """

    def __init__(self, launcher: Path, buffers: Sequence[tuple[int, int]]) -> None:
        self._function = ctypes.CDLL(str(launcher)).plevel_evict
        self._data = (ctypes.c_void_p * len(buffers))(*(address for address, _ in buffers))
        self._bytes = (ctypes.c_int64 * len(buffers))(*(size for _, size in buffers))

    def __call__(self) -> None:
        self._function(self._data, self._bytes, len(self._data))


def use_openmp(kernel: Path, launcher: Path) -> None:
    """Run the parallel loops of a loaded library on OpenMP's threads.

    Raises:
        ToolError: the launcher cannot be loaded.
    """
    try:
        function = ctypes.CDLL(str(launcher)).plevel_launch
    except OSError as error:  # without libgomp
        raise ToolError(f"OpenMP's threads cannot be used: {REMEDY}: {error}") from error
    with suppress(ValueError):  # of a library without a parallel loop
        hook = ctypes.c_void_p.in_dll(ctypes.CDLL(str(kernel)), "__TVMBackendParallelLaunch")
        hook.value = ctypes.cast(function, ctypes.c_void_p).value
