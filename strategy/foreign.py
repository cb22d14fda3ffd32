"""Workloads of other tools' kernels, as the service stores them and hooks ask for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from strategy.workload import Workload

MAX_KERNEL = 90
_BAD = re.compile(r"[\s()\[\]{},=+:\"]")


def clean_name(name: str) -> str:
    """A tool's name with `_` in place of the characters that an operator's name cannot have."""
    return _BAD.sub("_", name)


def foreign_workload(tool: str, kernel: str, attrs: Mapping[str, Any]) -> Workload:
    """The workload of a kernel; a name that cannot be an operator's is cut, and whole in attribute `kernel_name`."""
    name = clean_name(kernel)[:MAX_KERNEL] or "kernel"
    given = {} if name == kernel else {"kernel_name": kernel}
    return Workload(f"{tool}.{name}", (), {**given, **attrs})
