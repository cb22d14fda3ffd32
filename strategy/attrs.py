"""Attribute nodes: the fixed arguments of operators, declared with type, default and bounds.

    class ScanopAttrs(Attrs):
        axis: int | None = field(None, "The axis to operate over")
        dtype: str | None = field(None, "Output data type", choices=DTYPES)
        exclusive: bool = field(False, "The first element is not included")
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, SupportsIndex, Union

from strategy.suggestion import suggest

# Numbers that `to_json` writes as text: JSON has no infinity, and PostgreSQL's JSON no sign of zero.
_WRITTEN = ("inf", "-inf", "-0.0")


class AttrsError(ValueError):
    """An attribute is unknown, missing, of the wrong type, or out of bounds."""


class _Required:
    def __repr__(self) -> str:
        return "(required)"


REQUIRED = _Required()


@dataclass(frozen=True)
class Field:
    """The declaration of one attribute; `type` is filled in from the annotation."""

    default: Any
    description: str
    lower: float | None = None
    upper: float | None = None
    choices: tuple[Any, ...] | None = None
    form: Callable[[Any], Any] = lambda value: value
    name: str = ""
    type: Any = None

    @property
    def bounds(self) -> str:
        """The bounds in words, empty if there are none."""
        if self.choices is not None:
            return "one of " + ", ".join(str(c) for c in self.choices)
        if self.lower is not None and self.upper is not None:
            return f"{self.lower} … {self.upper}"
        if self.lower is not None:
            return f"at least {self.lower}"
        return "" if self.upper is None else f"at most {self.upper}"

    @property
    def type_name(self) -> str:
        return self.type.__name__ if isinstance(self.type, type) else str(self.type)

    def check(self, owner: str, value: Any) -> Any:
        """Return `value` in this field's normal form (lists become tuples); raise `AttrsError`."""
        value = _frozen(self.form(value))
        if value in _WRITTEN and float in _alternatives(self.type):
            value = float(value)
        if not _is_a(value, self.type):
            # Written as people do, in JSON.
            like = f", such as {json.dumps(self.default)}" if isinstance(self.default, tuple) else ""
            raise AttrsError(f"{owner}.{self.name} = {value!r:.80}: expected {self.type_name}{like}")
        if value is None:
            return None
        real = float in _alternatives(self.type) and isinstance(value, int) and not isinstance(value, bool)
        if real:
            try:
                value = float(value)
            except OverflowError:
                raise AttrsError(f"{owner}.{self.name} = {value!r:.80}: too large for float64") from None
        elif not _fits(value):
            raise AttrsError(f"{owner}.{self.name} = {value!r:.80}: too large for 64 bits")
        for entry in value if isinstance(value, tuple) else (value,):
            outside = (
                (self.choices is not None and entry not in self.choices)
                or (self.lower is not None and entry < self.lower)
                or (self.upper is not None and entry > self.upper)
            )
            if outside:
                raise AttrsError(f"{owner}.{self.name} = {value!r:.80} is out of bounds: {self.bounds}")
        return value


def field(
    default: Any = REQUIRED,
    description: str = "",
    *,
    lower: float | None = None,
    upper: float | None = None,
    choices: Collection[Any] | None = None,
    form: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Declare an attribute. Bounds and choices hold for each entry of a tuple; `form` completes a shorter form."""
    ordered = None if choices is None else tuple(sorted(choices))
    return Field(default, description, lower, upper, ordered, form)


def repeated(count: int) -> Callable[[Any], Any]:
    """The form of an attribute for which one integer stands for a tuple of `count`."""
    return lambda value: (
        (value,) * count if isinstance(value, SupportsIndex) and not isinstance(value, bool) else value
    )


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _is_a(value: Any, kind: Any) -> bool:
    return any(_is_one(value, one) for one in _alternatives(kind))


def _is_one(value: Any, kind: Any) -> bool:
    if kind is type(None) or kind is None:
        return value is None
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, tuple):
            return False
        entry, *rest = typing.get_args(kind)
        kinds = [entry] * len(value) if rest == [Ellipsis] else [entry, *rest]
        return len(value) == len(kinds) and all(map(_is_a, value, kinds))
    if kind in (int, float):
        numbers = int if kind is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool) and value == value
    return isinstance(value, kind)


def _fits(value: Any) -> bool:
    """Return whether integers fit 64 bits."""
    if isinstance(value, tuple):
        return all(_fits(v) for v in value)
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _frozen(value: Any) -> Any:
    """Convert lists to tuples, and NumPy's scalars to Python's numbers."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(v) for v in value)
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


class Attrs:
    """Base of attribute nodes: immutable, equal and hashed by value, with a JSON form.

    Raises:
        AttrsError: an unknown or missing key, or a value of the wrong type or out of bounds; the message
            names field, value and bound.
    """

    _fields: typing.ClassVar[dict[str, Field]] = {}

    def __init_subclass__(cls) -> None:
        hints = typing.get_type_hints(cls)
        declared = dict(cls._fields)
        for name, value in list(vars(cls).items()):
            if isinstance(value, Field):
                declared[name] = replace(value, name=name, type=hints[name])
                delattr(cls, name)
        cls._fields = declared

    def __init__(self, **values: Any) -> None:
        owner = type(self).__name__
        unknown = sorted(values.keys() - self._fields.keys())
        if unknown:
            known = ", ".join(self._fields) or "none"
            meant = suggest(unknown[0], self._fields)
            raise AttrsError(f"{owner} has no attribute {unknown[0]!r:.80}{meant}; it has: {known}")
        for name, declared in self._fields.items():
            value = values.get(name, declared.default)
            if value is REQUIRED:
                raise AttrsError(f"{owner}.{name} is required: {declared.description}")
            object.__setattr__(self, name, declared.check(owner, value))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttrsError(f"{type(self).__name__} is immutable: make another instead of setting {name}")

    @classmethod
    def fields(cls) -> Mapping[str, Field]:
        """The declarations, in order."""
        return types.MappingProxyType(cls._fields)

    def to_json(self) -> dict[str, Any]:
        """The attributes that differ from their defaults, so that new attributes keep old keys."""
        found = {name: _listed(getattr(self, name)) for name in self._fields}
        return {name: value for name, value in found.items() if value != _listed(self._fields[name].default)}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Parse the JSON form, in which attributes with a default may be missing; raise `AttrsError`."""
        if not isinstance(data, Mapping):
            raise AttrsError(f"{cls.__name__}: expected an object of attributes, got {data!r:.80}")
        return cls(**{str(k): v for k, v in data.items()})

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _listed(self._values()) == _listed(other._values())

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({shown})"


def _listed(value: Any) -> Any:
    if isinstance(value, float) and str(value) in _WRITTEN:
        return str(value)
    return [_listed(v) for v in value] if isinstance(value, tuple) else value
