"""`plevel doctor`: checks of a host's fitness for timing, each with its remedy."""

from __future__ import annotations

import math
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec

from strategy.compile.export import find_compiler, missing_compiler
from strategy.compile.openmp import REMEDY as OPENMP
from strategy.compile.openmp import build_launcher
from strategy.fault import ToolError
from strategy.installed_code import code_identity
from workers.cgroup import THROTTLES, cpu_quota, machine_memory
from workers.cpu import Cores, installed_version, read, state
from workers.drift import DRIFT, time_reference
from workers.scratch import NOT_EXECUTABLE, is_executable

_GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
_WATCH_S = 1.0
_STOLEN = 0.01
_BUSY = 0.5
_MEMORY = 2 * 2**30
_DISK = 2**30


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check. `remedy` is empty if the host passes."""

    what: str
    found: str
    remedy: str = ""


def examine(cores: Cores, root: Path = Path("/")) -> list[Finding]:
    """Check what affects times on this host; takes a second.

    Args:
        cores: the cores to time and build on.
        root: the root of /proc and /sys.
    """
    return [*_tools(), *_settings(cores, root), *_room(), *_noise(cores)]


def _tools() -> Iterator[Finding]:
    yield Finding(what="plevel", found=f"{code_identity()}, Python {platform.python_version()}")
    without_tvm = "" if find_spec("tvm") is not None else "pip install 'plevel[worker]'"
    for what, found, remedy in (
        ("TVM", installed_version("apache-tvm"), without_tvm),
        ("C compiler", find_compiler(), missing_compiler()),
        ("OpenMP", "installed", "" if _has_openmp() else OPENMP),
    ):
        yield Finding(what=what, found="missing" if remedy else found or "installed", remedy=remedy)


def _has_openmp() -> bool:
    """Return whether the C compiler can link a program with it."""
    with tempfile.TemporaryDirectory(prefix="plevel-") as folder, suppress(ToolError):
        build_launcher(Path(folder))
        return True
    return False


def _settings(cores: Cores, root: Path) -> Iterator[Finding]:
    system = root / "sys/devices/system"
    chosen = read(system / "cpu/cpu0/cpufreq/scaling_governor")
    yield Finding(
        what="governor", found=chosen or "unknown (a virtual machine)",
        remedy="" if chosen in ("", "performance") else "cpupower frequency-set -g performance",
    )
    off, boost = read(system / "cpu/intel_pstate/no_turbo"), read(system / "cpu/cpufreq/boost")
    turbo = {"0": "on", "1": "off"}.get(off) or {"1": "on", "0": "off"}.get(boost)
    path = "intel_pstate/no_turbo (1)" if off else "cpufreq/boost (0)"
    yield Finding(
        what="turbo", found=turbo or "unknown",
        remedy=f"the frequency depends on the other cores: set {path} in /sys/devices/system/cpu"
        if turbo == "on" else "",
    )
    clock = read(system / "clocksource/clocksource0/current_clocksource")
    slow = clock and clock not in _GOOD_CLOCKS
    yield Finding(
        what="clock source", found=clock or "unknown",
        remedy=f"reading it is slow: boot with clocksource={_GOOD_CLOCKS[0]}" if slow else "",
    )
    quota, count = cpu_quota(root), len(cores.all)
    yield Finding(
        what="quota", found="none" if quota == math.inf else f"the time of {quota:.3g} cores",
        remedy=f"less than that of {count} cores, and {THROTTLES}: assign whole cores instead (cpuset, taskset -c)"
        if quota < count else "",
    )


def _room() -> Iterator[Finding]:
    memory = machine_memory()
    yield Finding(
        what="memory", found=f"{memory / 2**30:.1f} GiB",
        remedy="" if memory >= _MEMORY else "too little: compilers and operands need at least 2 GiB",
    )
    scratch = Path(tempfile.gettempdir())
    free = shutil.disk_usage(scratch).free
    little = "" if free >= _DISK else "too little: at least 1 GiB is needed: name another folder in TMPDIR"
    yield Finding(
        what="disk", found=f"{free / 2**30:.1f} GiB free in {scratch}",
        remedy=little if is_executable(scratch) else f"{scratch} {NOT_EXECUTABLE}",
    )


def _noise(cores: Cores) -> Iterator[Finding]:
    """Load, stolen time and the spread of the calibration kernel's medians."""
    load = os.getloadavg()[0]
    yield Finding(
        what="load", found=f"{load:.2f}",
        remedy="" if load <= _BUSY else "other programs are running: stop or move them",
    )
    before = state(cores.timing).get("stolen_s")
    began = time.monotonic()
    medians = _watch(cores.timing)
    took_s = (time.monotonic() - began) * len(cores.timing)
    after = state(cores.timing).get("stolen_s")
    if before is not None and after is not None:
        share = (after - before) / took_s
        yield Finding(
            what="stolen time", found=f"{share:.1%}",
            remedy="" if share <= _STOLEN else "other virtual machines share these cores: use dedicated ones",
        )
    spread = max(medians) / min(medians) - 1
    yield Finding(
        what="spread", found=f"{spread:.1%} over {len(medians)} batches of the calibration kernel",
        remedy="" if spread <= DRIFT else "identical work takes different times: see the lines above",
    )
    if cores.overlap:
        yield Finding(
            what="cores", found=f"{len(cores.all)}: building waits while a kernel is timed",
            remedy="",
        )


def _watch(timing: Sequence[int]) -> list[float]:
    """Medians of the calibration kernel on the first of the cores, for a second."""
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {timing[0]})
    try:
        time_reference()
        medians = []
        give_up = time.monotonic() + _WATCH_S
        while time.monotonic() < give_up:
            medians.append(statistics.median(time_reference()))
        return medians
    finally:
        os.sched_setaffinity(0, affinity)
