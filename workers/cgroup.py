"""Limits of the control groups of this process, in containers, steps of SLURM and units of systemd."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path

THROTTLES = "kernels are throttled when it is spent"  # in a worker's log, which `plevel tune` repeats


def machine_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this host, or a control group of this process, has."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory.limit_in_bytes"):
        most = min([most, *(int(limit) for limit in group_limits("memory", name, root) if limit.isdecimal())])
    return most


def cpu_quota(root: Path = Path("/")) -> float:
    """The number of cores whose whole time this process may use, by its control group or one above it; or infinity."""
    found: list[Sequence[str]] = [limit.split() for limit in group_limits("cpu", "cpu.max", root)]
    found += zip(*(group_limits("cpu", f"cpu.cfs_{name}_us", root) for name in ("quota", "period")), strict=False)
    return min((int(quota) / int(period) for quota, period in found if quota.isdecimal()), default=math.inf)


def group_limits(controller: str, name: str, root: Path = Path("/")) -> list[str]:
    """The contents of a file of this process's control group and of those above it, of either version."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / (controller if controllers else "")
            own = top / group.lstrip("/")
            for folder in (own, *own.parents):
                with contextlib.suppress(OSError):
                    if folder.is_relative_to(top):
                        found.append((folder / name).read_text().strip())
    return found
