"""Sessions on a CUDA device: the counterpart of `workers/runner.py`.

A failed kernel makes the device's context unusable for the process: such a session ends its child, and the
daemon continues in a new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from strategy.record import convert
from strategy.workload import Workload
from workers.builder import Built
from workers.cgroup import machine_memory
from workers.cuda.driver import PycudaDriver, open_driver
from workers.cuda.kernel import CudaKernel
from workers.cuda.library import CudaError, describe_library
from workers.data import Data
from workers.fork import Channel
from workers.kernel import Kernel
from workers.runner import Runner, Session
from workers.sandbox import ForkServer
from workers.timing_runner import TimingRunner

SLOT = "PLEVEL_CUDA_SLOT"  # environment variable of the child with its device
_ADDRESSES = 1 << 46  # bytes of address space, of which a driver reserves more than the memory


def runner_on(server: ForkServer, cores: Sequence[int], slot: str) -> TimingRunner:
    """The handle on the child that times on a device of this host, `cuda:0` or `cpu`.

    Args:
        cores: the cores of the child, also if it only queues work for a CUDA device.
    """
    kind, _, number = slot.partition(":")
    if kind != "cuda":
        return TimingRunner(server, cores, machine_memory() // 2)
    return TimingRunner(
        server, cores, _ADDRESSES, module="workers.cuda.runner", environment={SLOT: number or "0"}
    )


def serve(channel: Channel) -> None:
    """The child's loop, as `workers.runner.serve`."""
    request = channel.receive()
    try:
        driver = open_driver(int(os.environ.get(SLOT, "0")))
    except CudaError as error:  # lost since the worker began: no entry's fault
        channel.send({"absent": str(error)})
        return
    runner = CudaRunner(channel, driver)
    while True:
        runner.run(convert(request, Session))
        channel.send({"end": True, "environment": runner.toolchain()})
        request = channel.receive()


class CudaRunner(Runner):
    """Runner of sessions on a device. Needs no TVM."""

    def __init__(self, channel: Channel, driver: PycudaDriver) -> None:
        super().__init__(channel)
        self._driver = driver

    def toolchain(self) -> dict[str, Any]:
        """The driver's version, the device's state, and the versions of called libraries."""
        found = {role: describe_library(role) for role in sorted(self._libraries)}
        return {"cuda": self._driver.describe(), **found}

    def _open(self, built: Built, data: Data, session: Session) -> Kernel:
        return CudaKernel(built, data, self._driver)

    def _memory_bytes(self, session: Session) -> int:
        return self._driver.memory_bytes

    def _fail(self, kernel: Kernel, error: Exception) -> None:
        try:
            self._driver.synchronize()
        except CudaError as lost:
            raise _lost(kernel, lost) from error
        super()._fail(kernel, error)

    def _measure(self, kernel: Kernel) -> Callable[[int], float]:
        measure = super()._measure(kernel)

        def timed(calls: int) -> float:
            try:
                return measure(calls)
            except CudaError as error:
                raise _lost(kernel, error) from error

        return timed

    def _draw(self, workload: Workload, seed: int) -> Data:
        return Data.draw(workload, seed)


def _lost(kernel: Kernel, error: CudaError) -> SystemExit:
    """Make the error that ends this process, as only a new one gets another context."""
    return SystemExit(f"entry {kernel.entry}: {error}")
