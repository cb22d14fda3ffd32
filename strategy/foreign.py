"""Workloads of other tools' kernels, as the service stores them and hooks ask for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from strategy.workload import Workload

MAX_KERNEL = 90
_BAD_IN_NAMES = re.compile(r"[\s()\[\]{},=+:\"]")


def foreign_workload(tool: str, kernel: str, attrs: Mapping[str, Any]) -> Workload:
    """The workload of a kernel; a name that cannot be an operator's is cut, and whole in attribute `kernel_name`."""
    name = _BAD_IN_NAMES.sub("_", kernel)[:MAX_KERNEL] or "kernel"
    given = {} if name == kernel else {"kernel_name": kernel}
    return Workload(f"{tool}.{name}", (), {**given, **attrs})
