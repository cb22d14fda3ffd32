"""Workloads as people write them: `dense(data=float32[128,768],weight=float32[3072,768]:const)`."""

from __future__ import annotations

import json
from typing import Any

from service.errors import InvalidError
from strategy.attrs import AttrsError
from strategy.condition import ExpressionError
from strategy.op import OpError, TypeRelationError, all_ops
from strategy.record import WireError, convert
from strategy.select import SelectionError
from strategy.suggestion import suggest
from strategy.target import TargetError
from strategy.types import TypeSyntaxError
from strategy.workload import Input, Workload, WorkloadError

MAX_TEXT = 20_000
_EXAMPLE = "dense(data=float32[128,768],weight=float32[3072,768]:const)"

# What may be wrong with a workload or a target in a form: shown beside the field, not as the page's error.
FAULTS = (
    AttrsError, ExpressionError, InvalidError, OpError, SelectionError, TargetError,
    TypeRelationError, TypeSyntaxError, WireError, WorkloadError,
)  # fmt: skip


def parse_workload(text: str) -> Workload:
    """The workload of a key (without an epilogue), or of its JSON form.

    Raises:
        InvalidError: neither.
        TypeSyntaxError, WorkloadError: what is wrong with an input.
    """
    text = text.strip()
    if len(text) > MAX_TEXT:
        raise InvalidError(f"workload: longer than {MAX_TEXT} characters")
    if text.startswith("{"):
        try:
            return convert(json.loads(text), Workload)
        except (ValueError, RecursionError, WireError) as error:
            raise InvalidError(f"workload: not its JSON form: {error}") from error
    op, opened, rest = text.partition("(")
    inputs, closed, attrs = rest.partition(")")
    if not (op.strip() and opened and closed):
        raise InvalidError(f"workload: {text!r:.60} cannot be read{_remedy(text)}")
    return Workload(op.strip(), tuple(_inputs(inputs)), _attrs(attrs.strip()))


def _remedy(op: str) -> str:
    """What to write in place of an operator's name alone, or of anything else."""
    found = all_ops().get(op)
    if found is None or not found.arguments:
        return suggest(op, all_ops()) or f": write {_EXAMPLE}"
    return f": write {op}({','.join(f'{a.name}=float32[…]' for a in found.arguments)})"


def _inputs(text: str) -> list[Input]:
    found = []
    for part in _split(text):
        name, equals, kind = part.partition("=")
        if not equals:
            raise InvalidError(f"workload: input {part!r:.60} has no type: write name=float32[…]")
        bare = kind.strip().removesuffix(":const")
        found.append(Input(name.strip(), bare, bare != kind.strip()))
    return found


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "[") - (c == "]")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def _attrs(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidError(
            f"workload: {text!r:.60} after the inputs: attributes are a JSON object, and a workload "
            "with an epilogue is given in its JSON form"
        ) from error
    if not isinstance(found, dict):
        raise InvalidError(f"workload: attributes are a JSON object, got {text!r:.60}")
    return found
