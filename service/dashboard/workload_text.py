"""Workloads entered in a form, as printed or as JSON."""

from __future__ import annotations

from service.errors import InvalidError
from strategy.attrs import AttrsError
from strategy.condition import ExpressionError
from strategy.op import OpError, TypeRelationError
from strategy.record import WireError, decode
from strategy.select import SelectionError
from strategy.target import TargetError
from strategy.types import TypeSyntaxError
from strategy.workload import Workload, WorkloadError
from strategy.workload_text import parse_workload

# Errors of a workload or target in a form, shown beside the field.
FAULTS = (
    AttrsError, ExpressionError, InvalidError, OpError, SelectionError, TargetError,
    TypeRelationError, TypeSyntaxError, WireError, WorkloadError,
)  # fmt: skip


def read_workload(text: str) -> Workload:
    """Parse the workload of a form's field; raise one of `FAULTS`."""
    text = text.strip()
    return decode(text, Workload) if text.startswith("{") else parse_workload(text)
