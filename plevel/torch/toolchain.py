"""Questions of Inductor to its C++ compiler before its first kernel, asked while PyTorch traces a graph."""

from __future__ import annotations

from contextlib import suppress
from contextvars import copy_context
from functools import cache
from threading import Thread, current_thread
from typing import Any

_KERNEL = 'extern "C" void kernel(float* x) {}'


@cache
def ask_toolchain() -> Thread:
    """The thread that asks, once per process. Inductor waits for it where it would ask itself, and finds the answers.

    For each kind of vectors of the processor Inductor compiles files and loads them in a process of their own, then it
    reads and precompiles its header, one after the other: seconds in each process, many more in the first one. Tracing
    leaves all cores but one to that.
    """
    # All of it here, as modules that import each other are not to be loaded in two threads.
    import torch._inductor.compile_fx  # noqa: F401
    from torch._inductor import cpu_vec_isa
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    find = cpu_vec_isa.valid_vec_isa_list

    def ask() -> None:
        with suppress(Exception):  # which Inductor meets again, and tells
            CppPythonBindingsCodeCache.load_pybinding_async(["float*"], _KERNEL)

    # In the context of this one, which has Inductor's settings.
    thread = Thread(target=copy_context().run, args=(ask,), name="plevel-toolchain", daemon=True)

    def find_once() -> Any:
        if current_thread() is not thread:
            thread.join()
        return find()

    cpu_vec_isa.valid_vec_isa_list = find_once
    thread.start()
    return thread
