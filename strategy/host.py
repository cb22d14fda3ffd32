"""Properties of this host: processor, caches and names, read without TVM."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import platform
from collections.abc import Container
from functools import cache
from pathlib import Path

from strategy.processor import has_instructions, vector_bytes

# (vendor, family) → [(models, LLVM name)], the newest LLVM name for each generation.
_X86: dict[tuple[str, int], list[tuple[Container[int], str]]] = {
    ("AuthenticAMD", 23): [(range(0x30), "znver1"), (range(0x30, 0x100), "znver2")],
    ("AuthenticAMD", 25): [
        (range(0x10), "znver3"), (range(0x10, 0x20), "znver4"), (range(0x20, 0x60), "znver3"),
        (range(0x60, 0x100), "znver4"),
    ],
    ("AuthenticAMD", 26): [(range(0x100), "znver5")],
    ("GenuineIntel", 6): [
        ((0x3C, 0x3F, 0x45, 0x46), "haswell"), ((0x3D, 0x47, 0x4F, 0x56), "broadwell"),
        ((0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6), "skylake"), ((0x55,), "cascadelake"),
        ((0x6A, 0x6C), "icelake-server"), ((0x7D, 0x7E), "icelake-client"),
        ((0x8C, 0x8D), "tigerlake"), ((0xA7,), "rocketlake"), ((0x97, 0x9A), "alderlake"),
        ((0xB7, 0xBA, 0xBF), "raptorlake"), ((0x8F,), "sapphirerapids"),
        ((0xCF,), "emeraldrapids"), ((0xAD, 0xAE), "graniterapids"),
    ],
}
_AMX = frozenset("amx_bf16 amx_int8 amx_tile".split())
# A system call of Linux, arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): a process may use the registers of AMX
# once it has asked, in all of its threads.
TILE_REQUEST = (158, 0x1023, 18)
_ARM_PARTS = {
    0xD0C: "neoverse-n1", 0xD40: "neoverse-v1", 0xD49: "neoverse-n2", 0xD4F: "neoverse-v2",
    0xD08: "cortex-a72", 0xD0B: "cortex-a76", 0xD41: "cortex-a78",
}
# LLVM's names of all of these.
PROCESSORS = frozenset({*_ARM_PARTS.values(), *(name for of in _X86.values() for _, name in of)})


@cache
def cpu_info() -> dict[str, str]:
    """The first processor's fields of /proc/cpuinfo, empty if there are none."""
    try:
        block = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


@cache
def cache_sizes() -> dict[str, int]:
    """Bytes of the first processor's data caches: l1d_bytes, l2_bytes, l3_bytes."""
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / f).read_text().strip() for f in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction" and size:
            unit = {"K": 1024, "M": 1024**2}.get(size[-1], 1)
            sizes[f"l{level}{'d' if level == '1' else ''}_bytes"] = int(size.rstrip("KM")) * unit
    return {k: v for k, v in sizes.items() if k in ("l1d_bytes", "l2_bytes", "l3_bytes")}


def cpu_arch() -> str:
    """LLVM's name of this host's processor; a baseline level if unknown."""
    info = cpu_info()
    if platform.machine() in ("aarch64", "arm64"):
        try:
            return _ARM_PARTS.get(int(info.get("CPU part", "0"), 16), "generic")
        except ValueError:
            return "generic"
    flags = set(info.get("flags", "").split())
    level = "x86-64"
    if {"avx2", "fma", "bmi2"} <= flags:
        level = "x86-64-v3"
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags:
        level = "x86-64-v4"
    try:
        family, model = int(info["cpu family"]), int(info["model"])
    except (KeyError, ValueError):
        return level
    for models, name in _X86.get((info.get("vendor_id", ""), family), ()):
        # A virtual machine may hide features of the processor: then only the level is safe.
        if model in models and vector_bytes(name) == vector_bytes(level):
            if name == "cascadelake" and "avx512_vnni" not in flags:
                return "skylake-avx512"
            # Or it reports an older model, with fewer units and instructions.
            if {"avx512_fp16", "avx512_bf16"} <= flags and not has_instructions(name, "avx512bf16"):
                return "sapphirerapids"
            hidden = {"avx512_vnni", "avx512_bf16", "avx512vbmi", "avx512ifma"} - flags
            return level if any(has_instructions(name, f.replace("_", "")) for f in hidden) else name
    return level


@cache
def cpu_features() -> tuple[str, ...]:
    """The features that code for `cpu_arch()` must do without here, as LLVM takes them: `-amx-tile`."""
    arch, flags = cpu_arch(), set(cpu_info().get("flags", "").split())
    lacking = []
    if has_instructions(arch, "amx-tile") and not (flags >= _AMX and _request_tiles()):
        lacking.append("-amx-tile")
    if has_instructions(arch, "avx512fp16") and "avx512_fp16" not in flags:
        lacking.append("-avx512fp16")
    return tuple(lacking)


def _request_tiles() -> bool:
    """Ask for the registers of AMX for this process; return whether Linux grants them."""
    return platform.machine() == "x86_64" and ctypes.CDLL(None).syscall(*TILE_REQUEST) == 0


def cpu_model() -> str:
    """The processor's product name."""
    return cpu_info().get("model name", platform.processor() or platform.machine())


def usable_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_loopback(name: str) -> bool:
    """Return whether an address, or a host name of a URL, is this host's."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
