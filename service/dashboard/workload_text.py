"""Workloads entered in a form, as printed or as JSON."""

from __future__ import annotations

from service.errors import InvalidError
from service.selection import candidate
from strategy.record import WireError, decode
from strategy.workload import Workload
from strategy.workload_text import parse_workload

# Errors of a workload or target in a form, shown beside the field.
FAULTS = (*candidate.FAULTS, InvalidError, WireError)


def read_workload(text: str) -> Workload:
    """Parse the workload of a form's field; raise one of `FAULTS`."""
    text = text.strip()
    return decode(text, Workload) if text.startswith("{") else parse_workload(text)
