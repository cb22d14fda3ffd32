"""Configuration spaces: knobs, constraints between them, and the frozen values they span.

A space is data (`to_json`): it can be sent to, sampled and searched by a service that does not know
the operator. It is never held in memory as a list; its size may exceed 10⁹.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from strategy.condition import Clause, Expr, ExpressionError

MAX_KNOBS = 100
MAX_VALUES = 10_000
MAX_CONSTRAINTS = 200

Value = bool | int | float | str | tuple[int, ...]
KnobKind = Literal["schedule", "layout"]


class ConfigError(ValueError):
    """A configuration that is not of its space; the message names the knob and what it may be."""


class SpaceError(ValueError):
    """A space that is malformed, too large to read, or empty."""


def _value(value: Any) -> Value:
    if isinstance(value, list | tuple):
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise SpaceError(f"a tuple-valued knob holds integers only, got {value!r:.80}")
        return tuple(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise SpaceError(f"a knob's value must be finite, got {value}")
    if not isinstance(value, bool | int | float | str):
        raise SpaceError(f"{value!r:.80} cannot be a knob's value: use numbers, strings, bools or lists of integers")
    return value


class Config(Mapping[str, Value]):
    """A frozen mapping from knob names to values, equal and hashed by value."""

    __slots__ = ("__dict__", "_items")

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        self._items: dict[str, Value] = {str(k): _value(v) for k, v in sorted(dict(values).items())}

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

    def replace(self, **values: Any) -> Config:
        return Config({**self._items, **values})

    def to_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self._items.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return " ".join(f"{k}={'x'.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in self._items.items())

    def __repr__(self) -> str:
        return f"Config({self})"


class Knob:
    """One choice: a name and its values in a meaningful order.

    `kind` is `layout` where the value changes what is computed on (a packing), `schedule` where it
    only changes how.
    """

    __slots__ = ("kind", "name", "position", "values")

    def __init__(self, name: str, values: Iterable[Any], kind: KnobKind = "schedule") -> None:
        if not isinstance(name, str) or not name or len(name) > 64:
            raise SpaceError(f"a knob's name has 1 to 64 characters, got {name!r:.80}")
        if kind not in ("schedule", "layout"):
            raise SpaceError(f"knob {name}: kind is 'schedule' or 'layout', got {kind!r:.40}")
        self.name = name
        self.values: tuple[Value, ...] = tuple(_value(v) for v in values)
        self.kind: KnobKind = kind
        # True == 1 == 1.0 in Python: key by type as well, so that a bool is no integer.
        self.position = {(type(v), v): i for i, v in enumerate(self.values)}
        if not self.values:
            raise SpaceError(f"knob {name} has no values")
        if len(self.values) > MAX_VALUES:
            raise SpaceError(f"knob {name} has {len(self.values)} values; at most {MAX_VALUES}")
        if len(self.position) != len(self.values):
            raise SpaceError(f"knob {name} has a value twice")

    def to_json(self) -> dict[str, Any]:
        values = [list(v) if isinstance(v, tuple) else v for v in self.values]
        return {"name": self.name, "values": values, "kind": self.kind}


def knob(name: str) -> Expr:
    """The knob of that name in a constraint or a derived feature."""
    return Expr.var(name)


def divisors(extent: int) -> tuple[int, ...]:
    """The divisors of `extent` in ascending order."""
    small = [d for d in range(1, math.isqrt(extent) + 1) if extent % d == 0]
    return tuple(sorted({*small, *(extent // d for d in small)}))


def split(name: str, extent: int, parts: int, *, max_factor: int | None = None, kind: KnobKind = "schedule") -> Knob:
    """A knob whose values are the ways to write `extent` as a product of `parts` factors.

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

    values = [w for w in ways(extent, parts) if max_factor is None or w[-1] <= max_factor]
    return Knob(name, values, kind)


def reorder(name: str, axes: Sequence[str]) -> Knob:
    """A knob whose values are the permutations of `axes`, as tuples of their positions."""
    return Knob(name, itertools.permutations(range(len(axes))))


class ConfigSpace:
    """The configurations that knobs span and constraints leave, with the fallback among them.

    Args:
        knobs: in the order in which indices count, the last one fastest.
        constraints: comparisons over knobs; all must hold.
        derived: expressions over knobs that a cost model should see (footprints, register use).
        fallback: the configuration used without tuning; the first valid one where not given.

    Raises:
        SpaceError: a name twice, a constraint over unknown names, or a fallback that is not valid.
    """

    def __init__(
        self,
        knobs: Iterable[Knob],
        constraints: Iterable[Clause] = (),
        derived: Mapping[str, Expr] | None = None,
        fallback: Mapping[str, Any] | None = None,
    ) -> None:
        self.knobs = tuple(knobs)
        self.constraints = tuple(constraints)
        self.derived = dict(derived or {})
        self._by_name = {k.name: k for k in self.knobs}
        if len(self._by_name) != len(self.knobs):
            raise SpaceError("two knobs of a space have the same name")
        if len(self.knobs) > MAX_KNOBS or len(self.constraints) > MAX_CONSTRAINTS:
            raise SpaceError(f"a space has at most {MAX_KNOBS} knobs and {MAX_CONSTRAINTS} constraints")
        for what in (*self.constraints, *self.derived.values()):
            unknown = what.variables() - self._by_name.keys()
            if unknown:
                raise SpaceError(f"'{what}' is over {sorted(unknown)[0]!r}, which is no knob of this space")
        order = {k.name: i for i, k in enumerate(self.knobs)}
        # Each constraint is checked as soon as its last knob has a value.
        self._checks: list[list[Callable[[Mapping[str, Any]], Any]]] = [[] for _ in self.knobs]
        for c in self.constraints:
            last = max((order[v] for v in c.variables()), default=0)
            if self.knobs:
                self._checks[last].append(_joined(c).compile())
        self._fallback = None if fallback is None else self.check(Config(fallback))

    @property
    def size(self) -> int:
        """The number of configurations before constraints."""
        return math.prod(len(k.values) for k in self.knobs)

    @cached_property
    def fallback(self) -> Config:
        if self._fallback is not None:
            return self._fallback
        for config in self:
            return config
        raise SpaceError("the space has no valid configuration: its constraints exclude all")

    def __getitem__(self, name: str) -> Knob:
        return self._by_name[name]

    def config(self, index: int) -> Config:
        """The configuration at `index` of `size`, which constraints may forbid (see `contains`)."""
        if not 0 <= index < self.size:
            raise ConfigError(f"index {index} is out of range 0 … {self.size - 1}")
        values = {}
        for k in reversed(self.knobs):
            index, digit = divmod(index, len(k.values))
            values[k.name] = k.values[digit]
        return Config(values)

    def index(self, config: Mapping[str, Any]) -> int:
        """Where `config` stands in this space; it changes when the space does."""
        index = 0
        for k, digit in zip(self.knobs, self.digits(config), strict=True):
            index = index * len(k.values) + digit
        return index

    def digits(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        """The position of each knob's value, in the order of the knobs."""
        try:
            return tuple(k.position[(type(config[k.name]), config[k.name])] for k in self.knobs)
        except KeyError:
            self._name_the_fault(config)
            raise

    def _name_the_fault(self, config: Mapping[str, Any]) -> None:
        for k in self.knobs:
            if k.name not in config:
                raise ConfigError(f"knob {k.name!r} is missing; it may be {_shown(k.values)}")
            value = config[k.name]
            if (type(value), value) not in k.position:
                raise ConfigError(f"{k.name}={value!r:.80} is not a value of this knob; it may be {_shown(k.values)}")

    def check(self, config: Mapping[str, Any]) -> Config:
        """`config` itself, once it is known to be of this space.

        Raises:
            ConfigError: a knob is missing, unknown, or has a value it cannot have, or a constraint
                does not hold.
        """
        config = config if isinstance(config, Config) else Config(config)
        unknown = sorted(config.keys() - self._by_name.keys())
        if unknown:
            raise ConfigError(f"no knob is called {unknown[0]!r:.80}; knobs: {', '.join(self._by_name) or 'none'}")
        self._name_the_fault(config)
        for c in self.constraints:
            if not _joined(c).evaluate(config):
                raise ConfigError(f"constraint '{c}' does not hold for {config}")
        return config

    def contains(self, config: Mapping[str, Any]) -> bool:
        """Whether `config` is of this space and its constraints hold."""
        if config.keys() != self._by_name.keys():
            return False
        if any((type(config[k.name]), config[k.name]) not in k.position for k in self.knobs):
            return False
        return self.allows(config)

    def allows(self, values: Mapping[str, Any]) -> bool:
        """Whether the constraints hold, for values known to be of the knobs."""
        return all(check(values) for checks in self._checks for check in checks)

    def __iter__(self) -> Iterator[Config]:
        """The valid configurations, in the order of their indices, lazily."""
        return (Config(values) for values in self._walk(lambda k: k.values))

    def _walk(self, order: Callable[[Knob], Sequence[Value]]) -> Iterator[dict[str, Value]]:
        values: dict[str, Value] = {}

        def descend(depth: int) -> Iterator[dict[str, Value]]:
            if depth == len(self.knobs):
                yield dict(values)
                return
            k, checks = self.knobs[depth], self._checks[depth]
            for value in order(k):
                values[k.name] = value
                if all(check(values) for check in checks):
                    yield from descend(depth + 1)
            values.pop(k.name, None)

        return descend(0)

    def count(self, limit: int = 1_000_000) -> int | None:
        """The number of valid configurations, or None where there are more than `limit`."""
        if not self.constraints:
            return self.size if self.size <= limit else None
        n = 0
        for _ in self._walk(lambda k: k.values):
            n += 1
            if n > limit:
                return None
        return n

    def sample(self, rng: random.Random, n: int, tries: int = 200) -> list[Config]:
        """Up to `n` distinct valid configurations: uniform where `tries` draws each suffice.

        Where valid ones are rarer, the rest come from randomised descents that respect the
        constraints, which favours sparse branches; fewer than `n` come back only from a space that
        has about as few.
        """
        found: dict[str, Config] = {}
        for _ in range(n * tries):
            if len(found) >= n:
                break
            values = {k.name: rng.choice(k.values) for k in self.knobs}
            if self.allows(values):
                config = Config(values)
                found[config.key] = config
        for _ in range(4 * n):
            if len(found) >= n:
                break
            walk = self._walk(lambda k: rng.sample(k.values, len(k.values)))
            for values in itertools.islice(walk, 1):
                config = Config(values)
                found[config.key] = config
        return list(found.values())

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"knobs": [k.to_json() for k in self.knobs]}
        if self.constraints:
            data["constraints"] = [c.to_json() for c in self.constraints]
        if self.derived:
            data["derived"] = {name: e.to_json() for name, e in self.derived.items()}
        if self._fallback is not None:
            data["fallback"] = self._fallback.to_json()
        return data

    @classmethod
    def from_json(cls, data: Any) -> ConfigSpace:
        """Parses the JSON form; raises `SpaceError` that names the entry at fault."""
        if not isinstance(data, Mapping) or not isinstance(data.get("knobs"), list):
            raise SpaceError("a space is an object with a list 'knobs'")
        knobs = []
        for i, entry in enumerate(data["knobs"]):
            if not isinstance(entry, Mapping) or not isinstance(entry.get("values"), list):
                raise SpaceError(f"knobs[{i}] is an object with a name and a list of values")
            knobs.append(Knob(entry.get("name", ""), entry["values"], entry.get("kind", "schedule")))
        try:
            constraints = [Clause.from_json(c) for c in data.get("constraints", ())]
            derived = {str(k): Expr.from_json(e) for k, e in dict(data.get("derived", {})).items()}
        except (ExpressionError, TypeError, ValueError) as error:
            raise SpaceError(f"constraints or derived features: {error}") from error
        return cls(knobs, constraints, derived, data.get("fallback"))

    @cached_property
    def digest(self) -> str:
        """8 hexadecimal digits over knobs and constraints: part of an implementation's version.

        Derived features and the fallback are left out: they do not change what a record means.
        """
        data = self.to_json()
        text = json.dumps([data["knobs"], data.get("constraints", [])], separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfigSpace) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"ConfigSpace({', '.join(self._by_name)}; size {self.size})"


def _joined(clause: Clause) -> Expr:
    """A clause as one boolean expression."""
    return Expr.from_json(clause.to_json())


def _shown(values: Sequence[Value], most: int = 12) -> str:
    text = ", ".join(str(v) for v in values[:most])
    return text if len(values) <= most else f"{text}, … ({len(values)} values)"
