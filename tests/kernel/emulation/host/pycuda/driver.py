"""A stand-in for pycuda.driver, by its names: one device that runs emulated cubins where they are launched.

It has what `workers/cuda/driver.py` uses, and no more. A test puts its folder on PYTHONPATH; the product
does not know of it.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.kernel.emulation.cubin import library_of
from tests.kernel.emulation.device import aligned, launch_kernel

_FORMATS = {
    "P": ctypes.c_void_p, "b": ctypes.c_int8, "B": ctypes.c_uint8, "?": ctypes.c_bool, "h": ctypes.c_int16,
    "H": ctypes.c_uint16, "i": ctypes.c_int32, "I": ctypes.c_uint32, "q": ctypes.c_int64,
    "Q": ctypes.c_uint64, "f": ctypes.c_float, "d": ctypes.c_double,
}
_ATTRIBUTES = {
    "L2_CACHE_SIZE": 4096, "MAX_THREADS_PER_BLOCK": 1024, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 166912,
    "MAX_REGISTERS_PER_BLOCK": 65536, "MULTIPROCESSOR_COUNT": 4, "WARP_SIZE": 32,
    "MEMORY_CLOCK_RATE": 1_000_000, "GLOBAL_MEMORY_BUS_WIDTH": 256,
}
device_attribute = SimpleNamespace(**{name: name for name in _ATTRIBUTES})
function_attribute = SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")
_STATIC_SHARED_BYTES = 48 * 1024


class Error(Exception):
    pass


class LogicError(Error):
    pass


class MemoryError(Error):
    pass


def init() -> None:
    pass


def get_driver_version() -> int:
    return 13000


class Device:
    @staticmethod
    def count() -> int:
        return 1

    def __init__(self, slot: int) -> None:
        assert slot == 0

    def retain_primary_context(self) -> Any:
        return SimpleNamespace(push=lambda: None, detach=lambda: None)

    def compute_capability(self) -> tuple[int, int]:
        return (8, 0)

    def name(self) -> str:
        return "Emulated device"

    def pci_bus_id(self) -> str:
        return "0000:00:00.0"

    def total_memory(self) -> int:
        return 1 << 30

    def get_attribute(self, name: str) -> int:
        return _ATTRIBUTES[name]


class Stream:
    handle = 0x5157

    def synchronize(self) -> None:
        pass


class Event:
    def record(self, stream: Stream) -> None:
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def time_till(self, other: Event) -> float:
        return (other._at - self._at) * 1e3


class DeviceAllocation:
    def __init__(self, size: int) -> None:
        self.memory = aligned((size,), np.uint8)

    def __int__(self) -> int:
        return int(self.memory.ctypes.data)

    def free(self) -> None:
        del self.memory


mem_alloc = DeviceAllocation


def memcpy_htod(buffer: DeviceAllocation, array: Any) -> None:
    ctypes.memmove(int(buffer), array.ctypes.data, array.nbytes)


def memcpy_dtoh(array: Any, buffer: DeviceAllocation) -> None:
    ctypes.memmove(array.ctypes.data, int(buffer), array.nbytes)


def memcpy_dtod(buffer: DeviceAllocation, source: DeviceAllocation, size: int) -> None:
    ctypes.memmove(int(buffer), int(source), size)


class Function:
    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._library, self._name = library, name
        self._most = _STATIC_SHARED_BYTES

    def prepare(self, kinds: str) -> None:
        self._kinds = [_FORMATS[kind] for kind in kinds]

    def set_attribute(self, name: str, value: int) -> None:
        assert name == function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._most = value

    def prepared_async_call(
        self, grid: Any, block: Any, stream: Stream, *values: Any, shared_size: int
    ) -> None:
        if shared_size > self._most:
            raise LogicError(f"{self._name}: {shared_size} bytes of shared memory were not asked for")
        given = [
            kind(int(value) if kind is ctypes.c_void_p else value)
            for kind, value in zip(self._kinds, values, strict=True)
        ]
        launch_kernel(self._library, self._name, grid, block, shared_size, given)


class Module:
    def __init__(self, cubin: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "kernels.so")
            path.write_bytes(library_of(cubin))
            self._library = ctypes.CDLL(str(path))

    def get_function(self, name: str) -> Function:
        return Function(self._library, name)


module_from_buffer = Module
