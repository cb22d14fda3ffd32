"""Workspaces: between inaccessible pages, and those of libraries that run without TVM."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from strategy.compile.openmp import LAUNCHER
from workers.guard import OutOfBoundsError, Placement, Span
from workers.workspace import build_allocator, guarded_workspaces

SOURCE = """
#include <pthread.h>
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
static void* work(void* given) {
    long failed = 0, own = (long)given;
    for (int i = 0; i < 20000; ++i) {
        long* a = __TVMBackendAllocWorkspace(1, 0, 1024 * (1 + i % 2), 2, 32);
        for (int j = 0; j < 128; j += 16) a[j] = own;
        for (int j = 0; j < 128; j += 16) failed += a[j] != own;
        failed += __TVMBackendFreeWorkspace(1, 0, a) != 0;
    }
    return (void*)failed;
}
long run_threads(void) {
    pthread_t threads[4];
    long failed = 0;
    void* one;
    for (long i = 0; i < 4; ++i) pthread_create(&threads[i], 0, work, (void*)i);
    for (int i = 0; i < 4; ++i) failed += pthread_join(threads[i], &one) + (long)one;
    return failed;
}
int allocate(uint64_t bytes) { return __TVMBackendAllocWorkspace(1, 0, bytes, 2, 32) ? 0 : -1; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    assert compiler is not None, "no C compiler on this host: install gcc"
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "kernel.c").write_text(SOURCE)
    path = folder / "kernel.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-pthread", "-o", str(path), str(folder / "kernel.c")]
    subprocess.run(command, check=True)
    return path


@pytest.fixture(scope="module")
def allocator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_allocator(tmp_path_factory.mktemp("allocator"))


@pytest.mark.parametrize("placement", Placement)
def test_what_was_freed_is_given_out_again(library: Path, allocator: Path, placement: Placement) -> None:
    noted: list[int] = []

    def note(spans: list[Span]) -> None:
        noted.append(len(spans))

    with guarded_workspaces(library, allocator, placement, note):
        ctypes.CDLL(str(library)).run(1000, 2000)
    assert noted == [1, 2]


def test_damage_by_the_first_of_many_uses_is_found(library: Path, allocator: Path) -> None:
    with (
        pytest.raises(OutOfBoundsError, match="a workspace: 3 bytes"),
        guarded_workspaces(library, allocator, Placement.BEGIN, lambda spans: None),
    ):
        ctypes.CDLL(str(library)).run(10, 2003)


def test_no_two_threads_have_the_same_workspace(library: Path, allocator: Path) -> None:
    noted: list[int] = []
    with guarded_workspaces(library, allocator, Placement.END, lambda spans: noted.append(len(spans))):
        assert ctypes.CDLL(str(library)).run_threads() == 0
    assert 2 <= max(noted) <= 8  # of two sizes, at most one for each thread


def test_each_context_has_workspaces_of_its_own(library: Path, allocator: Path) -> None:
    noted: list[str] = []
    for placement in Placement:
        with guarded_workspaces(library, allocator, placement, lambda spans: noted.append(placement)):  # noqa: B023
            ctypes.CDLL(str(library)).run(10, 2000)
    assert noted == [p for p in Placement for _ in range(2)]


def test_a_workspace_that_there_is_no_memory_for_is_said(library: Path, allocator: Path) -> None:
    allocate = ctypes.CDLL(str(library)).allocate
    allocate.argtypes = [ctypes.c_uint64]

    def run() -> None:
        with guarded_workspaces(library, allocator, Placement.END, lambda spans: None):
            if allocate(1 << 62):
                raise RuntimeError("as a kernel says it")

    with pytest.raises(MemoryError, match="no memory for a workspace of 4611686018427387904 bytes"):
        run()


# Print a process's memory and its count of fresh pages, after threads that work and end, and a library that goes.
KEPT = """
#define _GNU_SOURCE
#define PLEVEL_ALIGNMENT 64
#include "workspace.h"
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEGABYTES (1 << 20)
static long faults(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}
static long resident(void) {
  long all = 0, found = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld %ld", &all, &found) != 2) return -1;
  fclose(file);
  return found * 4096 / MEGABYTES;
}
static int work(int times, int megabytes) {
  for (int i = 0; i < times; ++i) {
    char *large = workspace_alloc(1, 0, (uint64_t)megabytes * MEGABYTES, 2, 32);
    char *small = workspace_alloc(1, 0, 100, 2, 32);
    if (!large || !small || (uintptr_t)large % 64 || (uintptr_t)small % 64) return 1;
    memset(large, i, (size_t)megabytes * MEGABYTES);
    memset(small, i + 1, 100);
    if (large[0] != (char)i || large[megabytes * MEGABYTES - 1] != (char)i) return 2;
    workspace_free(1, 0, small);
    workspace_free(1, 0, large);
  }
  return 0;
}
static void *run(void *failed) {
  *(int *)failed |= work(3, 16);
  return NULL;
}
"""
PROGRAM = KEPT + """
int main(void) {
  int failed = work(1, 4);
  long before = faults();
  failed |= work(200, 4);
  printf("%ld ", faults() - before);
  for (int i = 0; i < 40; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, &failed) || pthread_join(thread, NULL)) return 1;
  }
  printf("%ld ", resident());
  for (int i = 0; i < 100; ++i) {  /* a block more than were ever used at once is not kept */
    void *block = workspace_take((uint64_t)(100 - i) * MEGABYTES / 4);
    memset(block, i, 1000);
    workspace_give_back(block);
  }
  uint64_t kept = 0;
  for (WorkspaceBlock *block = workspaces.first; block; block = block->next) kept += block->bytes;
  printf("%d %d ", kept <= workspaces.most, !workspace_take(~(uint64_t)0));
  uint64_t most = workspaces.most;
  for (int i = 0; i < 5; ++i) {  /* small ones before a large one leave it its block */
    void *small[5], *large;
    for (int j = 0; j < 5; ++j) small[j] = workspace_take(100 + j);
    large = workspace_take(most - MEGABYTES);
    for (int j = 0; j < 5; ++j) workspace_give_back(small[j]);
    workspace_give_back(large);
  }
  printf("%d", workspaces.most - most < MEGABYTES);
  fflush(stdout);
  pid_t child = fork();  /* in which other threads begin */
  if (!child) {
    for (int i = 0; i < 20 && !failed; ++i) {
      pthread_t threads[3];
      for (int j = 0; j < 3; ++j) if (pthread_create(&threads[j], NULL, run, &failed)) return 1;
      for (int j = 0; j < 3; ++j) pthread_join(threads[j], NULL);
    }
    return failed | work(3, 4);
  }
  int status = 1;
  return failed | (waitpid(child, &status, 0) != child) | status;
}
"""
KEYLESS = KEPT + """
int main(void) {
  pthread_key_t key;
  while (!pthread_key_create(&key, NULL)) continue;
  int failed = work(2, 1);
  long before = resident();
  for (int i = 0; i < 1000000; ++i) workspace_give_back(workspace_take(100));
  printf("%d %ld", !workspaces.first, resident() - before);
  return failed;
}
"""
PART = KEPT + "int plevel_work(void) { return work(2, 1); }\n"
HOST = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
static pthread_barrier_t worked, gone;
static int (*function)(void);
static void *run(void *failed) {
  *(int *)failed |= function();
  pthread_barrier_wait(&worked);
  pthread_barrier_wait(&gone);  /* the library is unloaded before the thread ends */
  return NULL;
}
int main(void) {
  int failed = 0;
  for (int i = 0; i < 1100; ++i) {  /* more often than there are keys */
    void *part = dlopen("./part.so", RTLD_NOW | RTLD_LOCAL);
    if (!part || !(function = (int (*)(void))dlsym(part, "plevel_work"))) return 1;
    pthread_t thread;
    if (i % 100 == 0) {
      pthread_barrier_init(&worked, NULL, 2);
      pthread_barrier_init(&gone, NULL, 2);
      pthread_create(&thread, NULL, run, &failed);
      pthread_barrier_wait(&worked);
    }
    failed |= function();
    dlclose(part);
    if (i % 100 == 0) {
      pthread_barrier_wait(&gone);
      pthread_join(thread, NULL);
    }
  }
  long all, found;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld %ld", &all, &found) != 2) return 2;
  printf("%ld", found * 4096 / (1 << 20));
  return failed;
}
"""


RETURNED = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536"}  # what is freed is returned to the system


def compiled(folder: Path, name: str, source: str, *options: str) -> None:
    (folder / f"{name}.c").write_text(source)
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{LAUNCHER.parent}", "-pthread"]
    subprocess.run(["cc", *flags, f"{name}.c", "-o", name, *options], cwd=folder, check=True)


def test_a_thread_keeps_its_workspaces_until_it_ends(tmp_path: Path) -> None:
    compiled(tmp_path, "program", PROGRAM)
    done = subprocess.run(["./program"], cwd=tmp_path, env=RETURNED, stdout=subprocess.PIPE, text=True, check=True)
    faults, resident, within, refused, apart = map(int, done.stdout.split())
    assert faults < 1024  # one call's pages, of two hundred
    assert resident < 64  # of 640 MB that ended threads had
    assert within and refused and apart


@pytest.mark.full
def test_without_a_key_nothing_is_kept(tmp_path: Path) -> None:
    compiled(tmp_path, "program", KEYLESS, "-Wno-unused-function")
    done = subprocess.run(["./program"], cwd=tmp_path, env=RETURNED, stdout=subprocess.PIPE, text=True, check=True)
    freed, grown = map(int, done.stdout.split())
    assert freed and grown < 4  # megabytes


@pytest.mark.full
def test_an_unloaded_library_leaves_no_workspaces(tmp_path: Path) -> None:
    compiled(tmp_path, "part.so", PART, "-shared", "-fPIC", "-Wno-unused-function")
    compiled(tmp_path, "host", HOST, "-ldl")
    done = subprocess.run(["./host"], cwd=tmp_path, env=RETURNED, stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout) < 64  # of 1.1 GB
