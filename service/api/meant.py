"""Suggestions for unknown names in a body: "did you mean trials?"."""

from __future__ import annotations

import re
from typing import Any

from msgspec import inspect

from strategy.record import AskedWorkload, WireError
from strategy.suggestion import suggest
from strategy.workload import Workload

_UNKNOWN = re.compile(
    r"(?:Object contains unknown field `(?P<field>[^`]*)`|Invalid enum value '(?P<value>.*)')"
    r"(?: - at `\$(?P<path>[^`]*)`)?\Z",
    re.DOTALL,
)
_STEP = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")


def with_suggestion(error: WireError, kind: type) -> WireError:
    """The error of a body of this kind, with the known names if one is unknown."""
    found = _UNKNOWN.match(str(error))
    if found is None:
        return error
    given = found["field"] if found["value"] is None else found["value"]
    known = _names(inspect.type_info(kind), found["path"] or "", of_fields=found["value"] is None)
    what = "field" if found["value"] is None else "value"
    text = f"unknown {what} {given!r:.80}{suggest(given, known)}: expected one of {', '.join(known)}"
    at = f" - at `${found['path']}`" if found["path"] else ""
    again = WireError(text + at)
    again.__cause__ = error.__cause__
    return again


def _names(kind: inspect.Type, path: str, *, of_fields: bool) -> list[str]:
    """The fields of the objects, or the values of the enumerations, that are allowed at the path."""
    kinds = _alternatives(kind)
    for step in _STEP.finditer(path):
        kinds = [a for k in kinds for inner in _inner(k, step[1]) for a in _alternatives(inner)]
    names: list[str] = []
    for k in kinds:
        if of_fields and isinstance(k, inspect.StructType):
            names += [f.encode_name for f in k.fields]
        elif not of_fields and isinstance(k, inspect.EnumType):
            names += [str(member.value) for member in k.cls]
        elif not of_fields and isinstance(k, inspect.LiteralType):
            names += map(str, k.values)
    return names


def _alternatives(kind: inspect.Type) -> list[inspect.Type]:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.CustomType) and kind.cls is AskedWorkload:
        kind = inspect.type_info(Workload)
    return [a for t in kind.types for a in _alternatives(t)] if isinstance(kind, inspect.UnionType) else [kind]


def _inner(kind: Any, field: str | None) -> list[inspect.Type]:
    """The types of an object's field, or of the entries of a list or a mapping."""
    if field is not None:
        return [f.type for f in getattr(kind, "fields", ()) if f.encode_name == field]
    return [kind.item_type] if hasattr(kind, "item_type") else []
