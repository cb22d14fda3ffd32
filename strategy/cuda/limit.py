"""Limits of GPUs by compute capability, and checks of kernels against them.

Sizes are from the CUDA C++ Programming Guide, "Compute Capabilities"; multiprocessors, L2 and bandwidth, which
differ between devices of a capability, are those of its best-known one. A target's own values
(`multi_processors`, `l2_bytes` …) take precedence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from strategy.target import Target, TargetError

STATIC_SHARED_BYTES = 48 * 1024
GRID = (2**31 - 1, 65535, 65535)
BLOCK = (1024, 1024, 64)
REGISTERS_PER_THREAD = 255


class LimitError(ValueError):
    """A kernel exceeds a limit of its architecture; the message names the limit."""


@dataclass(frozen=True)
class DeviceLimits:
    """The limits of one device, or of the best-known one of a compute capability.

    `shared_bytes` is the maximum of dynamic shared memory of a block.
    """

    capability: int  # 90 for sm_90
    shared_bytes: int
    multiprocessors: int
    l2_bytes: int
    bandwidth_bytes_per_s: int
    threads: int = 1024
    registers: int = 65536
    warp: int = 32

    @property
    def tensor_cores(self) -> tuple[str, ...]:
        """The dtypes that `nvcuda::wmma` multiplies in 16 × 16 × 16 tiles here."""
        if self.capability >= 80:
            return ("float16", "bfloat16")
        return ("float16",) if self.capability >= 70 else ()


_KB, _MB = 1024, 1024 * 1024
_TABLE = {
    limits.capability: limits
    for limits in (
        DeviceLimits(60, 48 * _KB, 56, 4 * _MB, 732_000_000_000),  # P100
        DeviceLimits(70, 96 * _KB, 80, 6 * _MB, 900_000_000_000),  # V100
        DeviceLimits(75, 64 * _KB, 40, 4 * _MB, 320_000_000_000),  # T4
        DeviceLimits(80, 163 * _KB, 108, 40 * _MB, 1_555_000_000_000),  # A100 40 GB
        DeviceLimits(86, 99 * _KB, 82, 6 * _MB, 936_000_000_000),  # RTX 3090
        DeviceLimits(87, 163 * _KB, 16, 4 * _MB, 205_000_000_000),  # Jetson AGX Orin
        DeviceLimits(89, 99 * _KB, 128, 72 * _MB, 1_008_000_000_000),  # RTX 4090
        DeviceLimits(90, 227 * _KB, 132, 50 * _MB, 3_350_000_000_000),  # H100 SXM
        DeviceLimits(100, 227 * _KB, 148, 126 * _MB, 8_000_000_000_000),  # B200
        DeviceLimits(120, 99 * _KB, 170, 96 * _MB, 1_792_000_000_000),  # RTX 5090
    )
}
OLDEST = min(_TABLE)


def capability_of(target: Target) -> int | None:
    """90 for a target with the architecture `sm_90` or `sm_90a`; None if unknown."""
    match = re.fullmatch(r"(?:sm|compute)_(\d{2,3})[af]?", target.arch)
    return int(match[1]) if match is not None and int(match[1]) >= OLDEST else None


def require_arch(target: Target) -> str:
    """The architecture of cubins; raise `TargetError` if the target names none."""
    if capability_of(target) is None:
        raise TargetError(
            f"target.arch = {target.arch!r}: must be sm_{OLDEST} or later: write cuda -arch=sm_90"
        )
    return target.arch


def code_arch(arch: str) -> str:
    """The architecture to compile for: sm_90a, which adds `wgmma`, for sm_90; else the same.

    9.0 is the only capability of its generation, so code for sm_90a runs wherever code for sm_90 does.
    """
    return "sm_90a" if arch == "sm_90" else arch


def limits_of(target: Target) -> DeviceLimits:
    """The limits for a target: its own, then those of its capability, of the next older, or the oldest."""
    capability = capability_of(target) or OLDEST
    known = _TABLE[max(c for c in _TABLE if c <= capability)]
    own = target.capability
    return replace(
        known,
        capability=capability,
        shared_bytes=own.get("max_shared_memory_per_block", known.shared_bytes),
        multiprocessors=own.get("multi_processors", known.multiprocessors),
        l2_bytes=own.get("l2_bytes", known.l2_bytes),
        bandwidth_bytes_per_s=own.get("bandwidth_bytes_per_s", known.bandwidth_bytes_per_s),
        threads=own.get("max_threads_per_block", known.threads),
        registers=own.get("registers_per_block", known.registers),
        warp=own.get("thread_warp_size", known.warp),
    )
