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
from functools import cached_property, lru_cache
from typing import Any, Literal

import msgspec

from strategy.condition import Clause, Expr, ExpressionError
from strategy.suggestion import suggest

MAX_KNOBS = 100
MAX_VALUES = 10_000
MAX_CONSTRAINTS = 200
MAX_PARTS = 64  # entries of a tuple-valued knob
MAX_TEXT = 200
MAX_STEPS = 1_000_000  # values tried in a search for valid configurations
SMALL_SIZE = 50_000  # up to which a space may be listed to sample from it

Value = bool | int | float | str | tuple[int, ...]
KnobKind = Literal["schedule", "layout"]


class ConfigError(ValueError):
    """A configuration that is not of its space; the message names the knob and what it may be."""


class SpaceError(ValueError):
    """A space that is malformed, too large to read, or empty."""


class _OutOfSteps(Exception):
    """A search for valid configurations tried as many values as it may."""


def _value(value: Any) -> Value:
    if isinstance(value, list | tuple):
        if len(value) > MAX_PARTS:
            raise SpaceError(f"a tuple-valued knob has at most {MAX_PARTS} parts, got {len(value)}")
        parts = tuple([_value(v) for v in value])
        if any(type(v) is not int for v in parts):
            raise SpaceError(f"a tuple-valued knob holds integers only, got {value!r:.80}")
        return parts  # type: ignore[return-value]
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
        return float(value)
    for plain in (str, float, int):  # enumerations, and NumPy's float64
        if isinstance(value, plain):
            return _value(plain(value))
    if hasattr(value, "__index__"):  # NumPy's integers
        return _value(int(value))
    raise SpaceError(
        f"{value!r:.80} cannot be a knob's value: use numbers, strings, bools or lists of integers"
    )


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

    @property
    def plain(self) -> Mapping[str, Value]:
        """The same as a plain mapping, which reads faster."""
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


class Knob:
    """One choice: a name and its values in a meaningful order.

    `kind` is `layout` where the value changes what is computed on (a packing), `schedule` where it
    only changes how.
    """

    def __init__(self, name: str, values: Iterable[Any], kind: KnobKind = "schedule") -> None:
        given_name: object = name
        if not isinstance(given_name, str) or not 0 < len(given_name) <= 64:
            raise SpaceError(f"a knob's name has 1 to 64 characters, got {name!r:.80}")
        if kind not in ("schedule", "layout"):
            raise SpaceError(f"knob {name}: kind is 'schedule' or 'layout', got {kind!r:.40}")
        self.name = name
        self.kind: KnobKind = kind
        # Taken one by one: the permutations of a dozen axes would fill the memory.
        given = tuple(itertools.islice(values, MAX_VALUES + 1))
        if not given:
            raise SpaceError(f"knob {name} has no values")
        if len(given) > MAX_VALUES:
            raise SpaceError(f"knob {name} has more than {MAX_VALUES} values")
        self.types = set(map(type, given))
        small = self.types == {int} and min(given) >= -(2**63) and max(given) < 2**63
        self.values: tuple[Value, ...] = given if small else tuple([_value(v) for v in given])
        self.types = self.types if small else set(map(type, self.values))
        self.is_number = self.types <= {bool, int, float}
        distinct = set(self.values) if small else self.position
        if len(distinct) != len(self.values):
            raise SpaceError(f"knob {name} has a value twice")

    @cached_property
    def position(self) -> dict[tuple[type, Value], int]:
        """Position of each value.

        True == 1 == 1.0 in Python: keyed by type as well, so that a bool is no integer.
        """
        return {(type(v), v): i for i, v in enumerate(self.values)}

    @cached_property
    def encoded(self) -> bytes:
        """Its part of the text that a space's digest is taken of."""
        return msgspec.json.encode((self.name, self.kind, self.values))

    def has(self, value: Value) -> bool:
        """Return whether this is one of its values, of the same type."""
        if len(self.types) == 1:
            return type(value) in self.types and value in self.values
        return (type(value), value) in self.position

    def to_json(self) -> dict[str, Any]:
        values = [list(v) if isinstance(v, tuple) else v for v in self.values]
        return {"name": self.name, "values": values, "kind": self.kind}


def knob(name: str) -> Expr:
    """The knob of that name in a constraint or a derived feature."""
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

    found = (w for w in ways(extent, parts) if max_factor is None or w[-1] <= max_factor)
    return Knob(name, found, kind)


def reorder(name: str, axes: Sequence[str]) -> Knob:
    """A knob whose values are the permutations of `axes`, as tuples of their positions."""
    return Knob(name, itertools.permutations(range(len(axes))))


class ConfigSpace:
    """The configurations that knobs span and constraints leave, with the fallback among them.

    Args:
        knobs: in the order in which indices count, the last one fastest.
        constraints: comparisons over knobs; all must hold.
        derived: expressions over knobs that a cost model should see (footprints, register use).
        fallback: the configuration used without tuning; the first valid one where not given. A
            function that gives it is called when it is first asked for.

    Raises:
        SpaceError: a name twice, a constraint over unknown names, or a fallback that is not valid;
            the latter by `fallback` where it comes from a function.
    """

    def __init__(
        self,
        knobs: Iterable[Knob],
        constraints: Iterable[Clause] = (),
        derived: Mapping[str, Expr] | None = None,
        fallback: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self.knobs = tuple(knobs)
        self.constraints = tuple(constraints)
        self.derived = dict(derived or {})
        self._by_name = {k.name: k for k in self.knobs}
        if len(self._by_name) != len(self.knobs):
            raise SpaceError("two knobs of a space have the same name")
        if len(self.knobs) > MAX_KNOBS or len(self.constraints) > MAX_CONSTRAINTS:
            raise SpaceError(
                f"a space has at most {MAX_KNOBS} knobs and {MAX_CONSTRAINTS} constraints"
            )
        numbers = {k.name for k in self.knobs if k.is_number}
        expressions: list[Clause | Expr] = [*self.constraints, *self.derived.values()]
        for what in expressions:
            for name in what.variables() - numbers:
                if name not in self._by_name:
                    raise SpaceError(
                        f"'{what}' is over {name!r:.80}, which is no knob of this space"
                    )
                _check_use(what, name, self._by_name[name])
        self._given = fallback
        if fallback is not None and not callable(fallback):
            _ = self.fallback

    @cached_property
    def _checks(self) -> list[list[Callable[[Mapping[str, Any]], Any]]]:
        """For each knob, the constraints that can be checked once it has a value."""
        order = {k.name: i for i, k in enumerate(self.knobs)}
        checks: list[list[Callable[[Mapping[str, Any]], Any]]] = [[] for _ in self.knobs]
        for c in self.constraints if self.knobs else ():
            last = max((order[v] for v in c.variables()), default=0)
            checks[last].append(c.expression.compile())
        return checks

    @property
    def size(self) -> int:
        """The number of configurations before constraints."""
        return math.prod(len(k.values) for k in self.knobs)

    @cached_property
    def fallback(self) -> Config:
        """The configuration used without tuning."""
        if self._given is not None:
            given = self._given() if callable(self._given) else self._given
            try:
                return self.check(Config(given))
            except ConfigError as error:
                raise SpaceError(f"fallback: {error}") from error
        try:
            return Config(next(self._walk(lambda k: k.values, MAX_STEPS)))
        except (StopIteration, _OutOfSteps):
            raise SpaceError(
                "no valid configuration found: the constraints exclude all, or nearly all; "
                "if there is one, give it as the fallback"
            ) from None

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
        """Position of `config` in this space; it changes when the space does."""
        index = 0
        for k, digit in zip(self.knobs, self.digits(config), strict=True):
            index = index * len(k.values) + digit
        return index

    def digits(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        """The position of each knob's value, in the order of the knobs."""
        config = config if isinstance(config, Config) else Config(config)
        try:
            return tuple([k.position[type(v := config[k.name]), v] for k in self.knobs])
        except KeyError:
            raise ConfigError(self._fault(config)) from None

    def _fault(self, config: Mapping[str, Any]) -> str | None:
        """Return the fault in the names and values of `config`, None where there is none."""
        unknown = sorted(config.keys() - self._by_name.keys())
        if unknown:
            known = ", ".join(self._by_name) or "none"
            meant = suggest(unknown[0], self._by_name)
            return f"no knob is called {unknown[0]!r:.80}{meant}; knobs: {known}"
        for k in self.knobs:
            if k.name not in config:
                return f"knob {k.name!r} is missing; it may be {_shown(k.values)}"
            value = config[k.name]
            if not k.has(value):
                return (
                    f"{k.name}={value!r:.80} is not a value of this knob; "
                    f"it may be {_shown(k.values)}"
                )
        return None

    def check(self, config: Mapping[str, Any]) -> Config:
        """`config` itself, once it is known to be of this space.

        Raises:
            ConfigError: a knob is missing, unknown, or has a value it cannot have, or a constraint
                does not hold.
        """
        config = config if isinstance(config, Config) else Config(config)
        fault = self._fault(config)
        if fault is not None:
            raise ConfigError(fault)
        for c in self.constraints:
            if not c.evaluate(config.plain):
                raise ConfigError(f"constraint '{c}' does not hold for {config}")
        return config

    def contains(self, config: Mapping[str, Any]) -> bool:
        """Return whether `config` is of this space and its constraints hold."""
        config = config if isinstance(config, Config) else Config(config)
        return self._fault(config) is None and self.allows(config.plain)

    def allows(self, values: Mapping[str, Any]) -> bool:
        """Return whether the constraints hold, for values known to be of the knobs."""
        return all(check(values) for checks in self._checks for check in checks)

    def __iter__(self) -> Iterator[Config]:
        """The valid configurations, in the order of their indices, lazily."""
        return (Config(values) for values in self._walk(lambda k: k.values))

    def _walk(
        self, order: Callable[[Knob], Sequence[Value]], steps: int | None = None
    ) -> Iterator[dict[str, Value]]:
        """The valid values of all knobs; raises `_OutOfSteps` after `steps` values tried."""
        values: dict[str, Value] = {}
        left = itertools.count() if steps is None else iter(range(steps))

        def descend(depth: int) -> Iterator[dict[str, Value]]:
            if depth == len(self.knobs):
                yield dict(values)
                return
            k, checks = self.knobs[depth], self._checks[depth]
            for value in order(k):
                if next(left, None) is None:
                    raise _OutOfSteps
                values[k.name] = value
                if all(check(values) for check in checks):
                    yield from descend(depth + 1)
            values.pop(k.name, None)

        return descend(0)

    def count(self, limit: int = 1_000_000) -> int | None:
        """The number of valid configurations.

        None where there are more than `limit`, or where finding them takes more than `4 * limit`
        values tried.
        """
        if not self.constraints:
            return self.size if self.size <= limit else None
        walk = self._walk(lambda k: k.values, 4 * limit)
        try:
            n = sum(1 for _ in itertools.islice(walk, limit + 1))
        except _OutOfSteps:
            return None
        return n if n <= limit else None

    def sample(self, rng: random.Random, n: int, tries: int = 200) -> list[Config]:
        """Up to `n` distinct valid configurations, uniformly drawn where `tries` draws each suffice.

        Where valid ones are rarer, the rest come from the list of all, if the space is small, or
        from randomised descents that respect the constraints, which favours sparse branches. Fewer
        than `n` come back only from a space that has about as few.
        """
        found: dict[str, Config] = {}

        def draw() -> bool:
            for _ in range(tries):
                values = {k.name: rng.choice(k.values) for k in self.knobs}
                if self.allows(values):
                    config = Config(values)
                    if config.key not in found:
                        found[config.key] = config
                        return True
            return False

        while len(found) < n and draw():
            pass
        if len(found) < n and self.size <= SMALL_SIZE:
            rest = [c for c in self if c.key not in found]
            return [*found.values(), *rng.sample(rest, min(n - len(found), len(rest)))]
        for _ in range(4 * n):
            if len(found) >= n:
                break
            walk = self._walk(lambda k: rng.sample(k.values, len(k.values)), MAX_STEPS // 10)
            try:
                config = Config(next(walk))
            except (StopIteration, _OutOfSteps):
                break
            found[config.key] = config
        return list(found.values())

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"knobs": [k.to_json() for k in self.knobs]}
        if self.constraints:
            data["constraints"] = [c.to_json() for c in self.constraints]
        if self.derived:
            data["derived"] = {name: e.to_json() for name, e in self.derived.items()}
        if self._given is not None:
            data["fallback"] = self.fallback.to_json()
        return data

    @classmethod
    def from_json(cls, data: Any) -> ConfigSpace:
        """Parses the JSON form; raises `SpaceError` that names the entry at fault."""
        if not isinstance(data, Mapping) or not isinstance(data.get("knobs"), list):
            raise SpaceError("a space is an object with a list 'knobs'")
        knobs = []
        for i, entry in enumerate(data["knobs"][: MAX_KNOBS + 1]):
            if not isinstance(entry, Mapping) or not isinstance(entry.get("values"), list):
                raise SpaceError(f"knobs[{i}] is an object with a name and a list of values")
            try:
                knobs.append(
                    Knob(entry.get("name", ""), entry["values"], entry.get("kind", "schedule"))
                )
            except SpaceError as error:
                raise SpaceError(f"knobs[{i}]: {error}") from error
        constraints, derived = data.get("constraints", []), data.get("derived", {})
        fallback = data.get("fallback")
        if not isinstance(constraints, list) or len(constraints) > MAX_CONSTRAINTS:
            raise SpaceError(f"constraints: a list of at most {MAX_CONSTRAINTS} comparisons")
        if not isinstance(derived, Mapping) or len(derived) > MAX_CONSTRAINTS:
            raise SpaceError(f"derived: an object of at most {MAX_CONSTRAINTS} expressions")
        if fallback is not None and not isinstance(fallback, Mapping):
            raise SpaceError(f"fallback: an object of knobs and their values, got {fallback!r:.80}")
        try:
            return cls(
                knobs,
                [Clause.from_json(c) for c in constraints],
                {str(name): Expr.from_json(e) for name, e in derived.items()},
                fallback,
            )
        except ExpressionError as error:
            raise SpaceError(f"constraints or derived features: {error}") from error

    @cached_property
    def digest(self) -> str:
        """8 hexadecimal digits over knobs and constraints: part of an implementation's version.

        Derived features and the fallback are left out: they do not change what a record means.
        """
        # The order of constraints says nothing.
        constraints = [text for _, text in sorted([c.encoded for c in self.constraints])]
        knobs = [k.encoded for k in self.knobs]
        text = b"[[%b],[%b]]" % (b",".join(knobs), b",".join(constraints))
        return hashlib.sha256(text).hexdigest()[:8]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfigSpace) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"ConfigSpace({', '.join(self._by_name)}; size {self.size})"


def _check_use(what: Clause | Expr, name: str, used: Knob) -> None:
    """Raises where a knob of texts or tuples stands where a number must.

    Arithmetic on them would be Python's: a text times a large number fills the memory.
    """
    tuples = used.types == {tuple}
    for root in what.alternatives if isinstance(what, Clause) else (what,):
        for node in root.nodes():
            if node.op in ("const", "var"):
                continue
            allowed = ("item", "==", "!=") if tuples else ("==", "!=")
            if node.op not in allowed and any(
                a.op == "var" and a.args[0] == name for a in node.args
            ):
                raise SpaceError(
                    f"'{what}': knob {name!r} has values such as {used.values[0]!r:.40}, "
                    + (f"use its parts, {name}[0] …" if tuples else "which can only be compared")
                )


def _shown(values: Sequence[Value], most: int = 12) -> str:
    text = ", ".join(str(v) for v in values[:most])
    return text if len(values) <= most else f"{text}, … ({len(values)} values)"
