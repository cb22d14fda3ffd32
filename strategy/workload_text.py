"""Parsing of workloads' text: `dense(data=float32[128,768],weight=float32[3072,768]:const)`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from strategy.op import all_ops
from strategy.suggestion import suggest
from strategy.types import TypeSyntaxError
from strategy.workload import EpilogueStep, Input, Workload, WorkloadError

EXAMPLE = "dense(data=float32[128,768],weight=float32[3072,768]:const)"
_scanner = json.JSONDecoder()


def parse_workload(text: str) -> Workload:
    """Parse a workload's key in linear time, without validation against its operator.

    Raises:
        WorkloadError: malformed text, with the expected form.
        TypeSyntaxError: a malformed type of an input.
    """
    at = 0
    calls: list[tuple[str, list[Input | None], dict[str, Any]]] = []
    while not calls or at < len(text):
        opened = text.find("(", at)
        closed = text.find(")", opened)
        if opened < 0 or closed < 0:
            raise WorkloadError(f"{text!r:.60} cannot be read{_remedy(text.strip())}")
        op = text[at:opened].strip()
        operands = [_operand(op, part) for part in _split(text[opened + 1 : closed])]
        attrs, end = _attrs(text, _skip(text, closed + 1))
        calls.append((op, operands, attrs))
        at = _skip(text, end)
        if at < len(text):
            if text[at] != "+" or at + 1 == len(text):
                raise WorkloadError(
                    f"{text[at:]!r:.60} after the inputs: write attributes as a JSON object, and each "
                    "step of an epilogue as +relu(.)"
                )
            at += 1
    (op, inputs, attrs), *steps = calls
    given = tuple(i for i in inputs if i is not None)
    if len(given) < len(inputs):
        raise WorkloadError(f"{op}: '.' is the value so far of an epilogue: give an input as name=float32[…]")
    epilogue = tuple(EpilogueStep(name, tuple(operands), a) for name, operands, a in steps)
    return Workload(op, given, attrs, epilogue)


def _remedy(op: str) -> str:
    """Return the remedy for a text that is only an operator's name, or something else."""
    found = all_ops().get(op)
    if found is None or not found.arguments:
        return suggest(op, all_ops()) or f": write {EXAMPLE}"
    return f": write {op}({','.join(f'{a.name}=float32[…]' for a in found.arguments)})"


def _skip(text: str, at: int) -> int:
    """The position of the next character that is no space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _split(text: str) -> Iterator[str]:
    """The parts between commas outside of brackets."""
    if not text.strip():
        return
    begin = depth = 0
    for at, c in enumerate(text):
        depth += (c == "[") - (c == "]")
        if c == "," and depth == 0:
            yield text[begin:at].strip()
            begin = at + 1
    yield text[begin:].strip()


def _operand(op: str, text: str) -> Input | None:
    if text == ".":
        return None
    name, equals, kind = (part.strip() for part in text.partition("="))
    if not equals:
        raise WorkloadError(f"input {text!r:.60} has no type: write name=float32[…]")
    bare = kind.removesuffix(":const")
    try:
        return Input(name, bare.strip(), bare != kind)
    except TypeSyntaxError as error:
        known = all_ops().get(op)
        if known is None or name not in known.attrs_type.fields():
            raise
        raise WorkloadError(
            f'{op}.{name}: an attribute, no input: write attributes behind the inputs, as {op}(…){{"{name}":…}}'
        ) from error


def _attrs(text: str, at: int) -> tuple[dict[str, Any], int]:
    """The JSON object at a position, if any, and the position of its end."""
    if not text.startswith("{", at):
        return {}, at
    try:
        _, end = _scanner.raw_decode(text, at)
        # As in a request's body: no NaN, no lone surrogates.
        return msgspec.json.decode(text[at:end], type=dict[str, Any]), end
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"attributes {text[at:]!r:.60} are no JSON object ({error})") from error
