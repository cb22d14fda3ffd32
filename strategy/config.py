"""Configurations: a value for each knob, frozen."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

MAX_PARTS = 64  # entries of a tuple-valued knob
MAX_TEXT = 200

Value = bool | int | float | str | tuple[int, ...]


class ConfigError(ValueError):
    """A configuration is not in its space; the message has the knob and its values."""


class SpaceError(ValueError):
    """A space is malformed, too large, or empty."""


def read_value(value: Any) -> Value:
    """A knob's value as Python has it; raises `SpaceError` for what can be none."""
    if isinstance(value, list | tuple):
        if len(value) > MAX_PARTS:
            raise SpaceError(f"a tuple-valued knob has at most {MAX_PARTS} parts, got {len(value)}")
        parts = tuple([v for v in map(read_value, value) if type(v) is int])
        if len(parts) < len(value):
            raise SpaceError(f"a tuple-valued knob holds integers only, got {value!r:.80}")
        return parts
    kind = type(value)
    if kind is int:
        if -(2**63) <= value < 2**63:
            return int(value)
        raise SpaceError("a knob's integer has at most 64 bits")
    if kind is bool:
        return bool(value)
    if kind is str:
        if len(value) > MAX_TEXT:
            raise SpaceError(f"a knob's text has at most {MAX_TEXT} characters, got {value!r:.40}…")
        return str(value)
    if kind is float:
        if not math.isfinite(value):
            raise SpaceError(f"a knob's value must be finite, got {value}")
        return float(value) + 0.0  # without the sign of zero, which PostgreSQL's JSON does not have
    for plain in (str, float, int):  # enumerations, and NumPy's float64
        if isinstance(value, plain):
            return read_value(plain(value))
    if hasattr(value, "__index__"):  # NumPy's integers
        return read_value(int(value))
    raise SpaceError(
        f"{value!r:.80} cannot be a knob's value: use numbers, strings, bools or lists of integers"
    )


class Config(Mapping[str, Value]):
    """A frozen mapping from knob names to values, equal and hashed by value."""

    __slots__ = ("__dict__", "_items")

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        self._items: dict[str, Value] = {str(k): read_value(v) for k, v in sorted(dict(values).items())}

    def __getitem__(self, name: str) -> Value:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    @cached_property
    def key(self) -> str:
        """The canonical text: JSON with sorted names and no white space."""
        return json.dumps(self._items, separators=(",", ":"), sort_keys=True)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits of the key's SHA-256: the identity of a configuration."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    @property
    def plain(self) -> Mapping[str, Value]:
        """The values as a plain mapping, which is faster to read."""
        return self._items

    def replace(self, **values: Any) -> Config:
        return Config({**self._items, **values})

    def to_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self._items.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return " ".join(
            f"{k}={'x'.join(map(str, v)) if isinstance(v, tuple) else v}"
            for k, v in self._items.items()
        )

    def __repr__(self) -> str:
        return f"Config({self})"
