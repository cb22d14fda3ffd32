"""Knobs: names with their values, and common ways to make them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal

import msgspec

from strategy.condition import Clause, Expr
from strategy.config import SpaceError, Value, read_value

MAX_VALUES = 10_000

KnobKind = Literal["schedule", "layout"]


class Knob:
    """A tuning parameter: a name and its values in a meaningful order.

    `kind` is `layout` if the value changes the layout of operands (a packing), `schedule` otherwise.
    """

    def __init__(self, name: str, values: Iterable[Any], kind: KnobKind = "schedule") -> None:
        given_name: object = name
        if not isinstance(given_name, str) or not 0 < len(given_name) <= 64:
            raise SpaceError(f"a knob's name has 1 to 64 characters, got {name!r:.80}")
        if kind not in ("schedule", "layout"):
            raise SpaceError(f"knob {name}: kind is 'schedule' or 'layout', got {kind!r:.40}")
        self.name = name
        self.kind: KnobKind = kind
        # Lazily, as the permutations of a dozen axes would fill the memory.
        given = tuple(itertools.islice(values, MAX_VALUES + 1))
        if not given:
            raise SpaceError(f"knob {name} has no values")
        if len(given) > MAX_VALUES:
            raise SpaceError(f"knob {name} has more than {MAX_VALUES} values")
        self.types = set(map(type, given))
        small = self.types == {int} and min(given) >= -(2**63) and max(given) < 2**63
        self.values: tuple[Value, ...] = given if small else tuple([read_value(v) for v in given])
        self.types = self.types if small else set(map(type, self.values))
        self.is_number = self.types <= {bool, int, float}
        distinct = set(self.values) if small else self.position
        if len(distinct) != len(self.values):
            raise SpaceError(f"knob {name} has a value twice")

    @cached_property
    def position(self) -> dict[tuple[type, Value], int]:
        """The position of each value.

        Keyed by type as well, as True == 1 == 1.0 in Python.
        """
        return {(type(v), v): i for i, v in enumerate(self.values)}

    @cached_property
    def encoded(self) -> bytes:
        """Its part of the text of a space's digest."""
        return msgspec.json.encode((self.name, self.kind, self.values))

    def has(self, value: Value) -> bool:
        """Return whether this is one of its values, with the same type."""
        if len(self.types) == 1:
            return type(value) in self.types and value in self.values
        return (type(value), value) in self.position

    def check_use(self, what: Clause | Expr) -> None:
        """Raise `SpaceError` where a knob of texts or tuples stands where a number must.

        Python's arithmetic on them is dangerous: a text times a large number fills the memory.
        """
        tuples = self.types == {tuple}
        allowed = {"const", "var", "==", "!="} | ({"item"} if tuples else set())
        for root in what.alternatives if isinstance(what, Clause) else (what,):
            for node in root.nodes():
                if node.op not in allowed and any(
                    a.op == "var" and a.args[0] == self.name for a in node.args
                ):
                    raise SpaceError(
                        f"'{what}': knob {self.name!r} has values such as {self.values[0]!r:.40}, "
                        + (f"use its parts, {self.name}[0] …" if tuples else "which can only be compared")
                    )

    def show_values(self, most: int = 12) -> str:
        """The values for a message, the first of many."""
        text = ", ".join(str(v) for v in self.values[:most])
        return text if len(self.values) <= most else f"{text}, … ({len(self.values)} values)"

    @classmethod
    def from_json(cls, data: Any) -> Knob:
        """Parse the JSON form; raise `SpaceError` if it is none."""
        if not isinstance(data, Mapping) or not isinstance(data.get("values"), list):
            raise SpaceError("a knob is an object with a name and a list of values")
        return cls(data.get("name", ""), data["values"], data.get("kind", "schedule"))

    def to_json(self) -> dict[str, Any]:
        values = [list(v) if isinstance(v, tuple) else v for v in self.values]
        return {"name": self.name, "values": values, "kind": self.kind}


def knob(name: str) -> Expr:
    """A knob in a constraint or a derived feature."""
    return Expr.var(name)


@lru_cache(maxsize=1024)
def divisors(extent: int) -> tuple[int, ...]:
    """The divisors of `extent` in ascending order."""
    small = [d for d in range(1, math.isqrt(extent) + 1) if extent % d == 0]
    return tuple(sorted({*small, *(extent // d for d in small)}))


def split(
    name: str,
    extent: int,
    parts: int,
    *,
    max_factor: int | None = None,
    kind: KnobKind = "schedule",
) -> Knob:
    """A knob whose values are the factorisations of `extent` into `parts` factors.

    The outermost comes first, as in AutoTVM's `define_split(policy="factors")`; `max_factor` bounds
    the innermost.
    """

    def ways(rest: int, n: int) -> Iterator[tuple[int, ...]]:
        if n == 1:
            yield (rest,)
            return
        for d in divisors(rest):
            for tail in ways(rest // d, n - 1):
                yield (d, *tail)

    found = (w for w in ways(extent, parts) if max_factor is None or w[-1] <= max_factor)
    return Knob(name, found, kind)


def reorder(name: str, axes: Sequence[str]) -> Knob:
    """A knob whose values are the permutations of `axes`, as tuples of positions."""
    return Knob(name, itertools.permutations(range(len(axes))))
