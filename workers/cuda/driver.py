"""A device by pycuda, which only this file imports; tests emulate it on a CPU.

`python -m workers.cuda.driver SLOT` prints the device as JSON, or one line on what is missing.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from strategy.cuda.program import CudaArtefact, Launch, Pointer
from strategy.record import Device, to_json
from strategy.target import Target
from workers.cpu import machine_id
from workers.cuda.graph import capture
from workers.cuda.library import CudaError, installed_libraries

if TYPE_CHECKING:
    from workers.reference import Array

_FORMATS = {
    "int8": "b", "uint8": "B", "bool": "?", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I",
    "int64": "q", "uint64": "Q", "float32": "f", "float64": "d",
}
# Idle time after which a device lowers its clocks, and the time to raise them again.
_IDLE_S, _WAKE_S = 1.0, 0.2
_GUIDE = "docs/gpu.md explains how to install it"


def open_driver(slot: int) -> PycudaDriver:
    """Open the device of a number; raise `CudaError` with what is missing."""
    try:
        import pycuda.driver as cuda
    except ImportError as error:
        if "libcuda" in str(error):
            raise CudaError(f"cuda:{slot}: this host has no NVIDIA driver ({error}): install one") from error
        if "undefined symbol" in str(error):
            raise CudaError(
                f"cuda:{slot}: the driver is older than pycuda's toolkit "
                f"({error}): update the driver, or build pycuda with an older toolkit"
            ) from error
        raise CudaError(f"cuda:{slot}: pycuda is not installed ({error}): {_GUIDE}") from error
    try:
        cuda.init()
        count = cuda.Device.count()
        if slot >= count:
            raise CudaError(f"cuda:{slot}: this host has only {count} CUDA devices: name a lower number")
        return PycudaDriver(cuda, cuda.Device(slot), slot)
    except cuda.Error as error:
        raise CudaError(
            f"cuda:{slot}: {error}: check that a driver is installed and the device is visible"
        ) from error


class PycudaDriver:
    """One device with its primary context, current in this thread.

    Launches are queued in order on one stream, whose handle libraries take; `synchronize` waits for them.
    """

    def __init__(self, cuda: Any, device: Any, slot: int) -> None:
        self._cuda, self._device, self._slot = cuda, device, slot
        self._context = device.retain_primary_context()
        self._context.push()
        # pycuda aborts a process that ends with a current context.
        atexit.register(self._context.detach)
        self._stream = cuda.Stream()
        self.stream = int(self._stream.handle)
        self._begin, self._end = cuda.Event(), cuda.Event()
        self._worked = 0.0  # time.monotonic() of its last work
        self.waking_s = 0.0  # total time spent on raising its clocks
        self.memory_bytes = int(device.total_memory())
        self.l2_bytes = int(device.get_attribute(cuda.device_attribute.L2_CACHE_SIZE))

    def load(self, artefact: CudaArtefact) -> Any:
        """Load the kernels of an artefact; raise `CudaError` if this device cannot run them."""
        major, minor = self._device.compute_capability()
        made = int(artefact.arch.removeprefix("sm_").rstrip("af"))
        if made // 10 != major or made % 10 > minor:
            raise CudaError(
                f"code for {artefact.arch} does not run on {self._device.name()} (sm_{major}{minor}): "
                f"build it for -arch=sm_{major}{minor}"
            )
        try:
            return self._cuda.module_from_buffer(artefact.cubin)
        except self._cuda.Error as error:
            raise CudaError(
                f"the driver refuses a cubin of {artefact.compiler.split(' -')[0]} ({error}): update "
                "the driver if it is older than the toolkit"
            ) from error

    def allocate(self, size_bytes: int) -> Any:
        """Allocate memory, aligned to 256 bytes; raise `MemoryError` if there is too little."""
        try:
            return self._cuda.mem_alloc(size_bytes)
        except self._cuda.MemoryError as error:
            raise MemoryError(f"the device has less than {size_bytes} bytes of free memory") from error

    def free(self, buffer: Any) -> None:
        buffer.free()

    def address(self, buffer: Any) -> int:
        """The device address of a buffer, for libraries."""
        return int(buffer)

    def upload(self, buffer: Any, array: Array) -> None:
        self._cuda.memcpy_htod(buffer, _bytes(array))

    def copy(self, buffer: Any, source: Any, size_bytes: int) -> None:
        """Copy on the device."""
        self._cuda.memcpy_dtod(buffer, source, size_bytes)

    def download(self, buffer: Any, array: Array) -> None:
        """Copy into a contiguous array after all launches."""
        self.synchronize()
        self._cuda.memcpy_dtoh(_bytes(array), buffer)

    def prepare(
        self, module: Any, launch: Launch, buffers: Mapping[str, Any]
    ) -> Callable[[], None]:
        """A function that queues one launch, with kernel and arguments resolved once."""
        function = module.get_function(launch.kernel)
        kinds = ["P" if isinstance(a, Pointer) else _FORMATS[a.dtype] for a in launch.arguments]
        function.prepare("".join(kinds))
        if launch.shared_bytes:  # the limit also depends on the kernel's static shared memory
            attribute = self._cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            function.set_attribute(attribute, launch.shared_bytes)
        values = [
            buffers[a.buffer] if isinstance(a, Pointer) else a.value for a in launch.arguments
        ]
        call, stream = function.prepared_async_call, self._stream
        grid, block, shared = launch.grid, launch.block, launch.shared_bytes
        return lambda: call(grid, block, stream, *values, shared_size=shared)

    def capture(self, queue: Callable[[], None]) -> Callable[[], None]:
        """A function that replays the launches of `queue`; `queue` itself without CUDA graphs."""
        try:
            return capture(self.stream, queue)
        except (CudaError, self._cuda.Error):
            return queue

    def synchronize(self) -> None:
        """Wait for all launches; raise `CudaError` if a kernel failed, after which the process must end."""
        try:
            self._stream.synchronize()
        except self._cuda.Error as error:
            raise CudaError(f"a kernel failed on the device: {error}") from error

    def time(self, queue: Callable[[], None]) -> float:
        """The seconds of the launches of `queue`, by the device's clock."""
        try:
            began = time.monotonic()
            while began - self._worked > _IDLE_S and time.monotonic() < began + _WAKE_S:
                queue()
                self._stream.synchronize()
            self.waking_s += time.monotonic() - began
            self._begin.record(self._stream)
            queue()
            self._end.record(self._stream)
            self._end.synchronize()
            self._worked = time.monotonic()
            return float(self._begin.time_till(self._end)) * 1e-3
        except self._cuda.Error as error:
            raise CudaError(f"a kernel failed on the device: {error}") from error

    def describe(self) -> dict[str, Any]:
        """Driver, clocks, temperature and throttling now: part of a measurement's environment."""
        version = self._cuda.get_driver_version()
        found: dict[str, Any] = {"driver_api": f"{version // 1000}.{version % 1000 // 10}"}
        return found | _nvml_state(self._device.pci_bus_id())

    def target(self) -> Target:
        """The target of this device, with its own limits and the libraries of its host."""
        major, minor = self._device.compute_capability()
        get, names = self._device.get_attribute, self._cuda.device_attribute
        found = {
            "kind": "cuda",
            "arch": f"sm_{major}{minor}",
            "model": self._device.name(),
            "libs": installed_libraries(),
            "max_threads_per_block": get(names.MAX_THREADS_PER_BLOCK),
            "max_shared_memory_per_block": get(names.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            "registers_per_block": get(names.MAX_REGISTERS_PER_BLOCK),
            "multi_processors": get(names.MULTIPROCESSOR_COUNT),
            "thread_warp_size": get(names.WARP_SIZE),
            "l2_bytes": self.l2_bytes,
        }
        # In kHz, with two transfers per clock; not reported by some drivers.
        clock = get(names.MEMORY_CLOCK_RATE)
        if clock > 0:
            width = get(names.GLOBAL_MEMORY_BUS_WIDTH) // 8
            found["bandwidth_bytes_per_s"] = 2 * clock * 1000 * width
        return Target.parse(found)

    def device(self) -> Device:
        """The device to register."""
        target = self.target()
        return Device(
            # Not by the slot, which is that of what this process may see.
            identity=f"{machine_id()}/cuda:{self._device.pci_bus_id()}", slot=f"cuda:{self._slot}",
            model=target.model, target=target,
            fingerprint={"gpu": target.model, "pci": self._device.pci_bus_id()} | self.describe(),
        )


def _bytes(array: Array) -> Array:
    """The same memory as bytes, as bfloat16 has no buffer protocol."""
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _nvml_state(bus_id: str) -> dict[str, Any]:
    """The device's clocks, temperature and throttling by NVML; empty without NVML."""
    try:
        import pynvml
    except ImportError:
        return {}
    found: dict[str, Any] = {}
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
        reads: dict[str, Callable[[], Any]] = {
            "driver": pynvml.nvmlSystemGetDriverVersion,
            "sm_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "temperature_c": lambda: pynvml.nvmlDeviceGetTemperatureV(
                handle, pynvml.NVML_TEMPERATURE_GPU
            ),
            "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "throttle_reasons": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        }
        for name, read in reads.items():
            with contextlib.suppress(pynvml.NVMLError):  # some devices do not report everything
                found[name] = read()
    return found


def main(arguments: list[str]) -> int:
    try:
        device = open_driver(int(arguments[0])).device()
    except CudaError as error:
        print(error, file=sys.stderr)
        return 1
    print(msgspec.json.encode(to_json(device)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
