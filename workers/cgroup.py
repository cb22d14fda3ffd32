"""Limits of the control groups of this process, in containers, steps of SLURM and units of systemd."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def machine_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this host, or a control group of this process, has."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory.limit_in_bytes"):
        most = min([most, *(int(limit) for limit in group_limits("memory", name, root) if limit.isdecimal())])
    return most


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
