"""Configuration spaces: knobs, constraints between them, and the frozen values they span.

A space is data (`to_json`), so that a service without the operator can sample and search it. It is never listed in
memory; its size may exceed 10⁹.
"""
# Over 300 lines: one class, and what walks and samples it.

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from strategy.condition import Clause, Expr, ExpressionError
from strategy.config import Config, ConfigError, SpaceError, Value
from strategy.knob import Knob, KnobKind, divisors, knob, reorder, split
from strategy.suggestion import suggest

__all__ = [
    "Config", "ConfigError", "ConfigSpace", "Knob", "KnobKind", "SpaceError", "Value",
    "divisors", "knob", "reorder", "split",
]

MAX_KNOBS = 100
MAX_CONSTRAINTS = 200
MAX_STEPS = 1_000_000  # maximum of values tried in a search for valid configurations
SMALL_SIZE = 50_000  # maximum size of a space that is listed for sampling


class _OutOfSteps(Exception):
    """A search for valid configurations reached its limit of tried values."""


class ConfigSpace:
    """The configurations of knobs that satisfy constraints, including the fallback.

    Args:
        knobs: in the order of indices, the last one fastest.
        constraints: comparisons over knobs; all must hold.
        derived: expressions over knobs as features of a cost model (footprints, register use).
        fallback: the configuration used without tuning; default: the first valid one. A function is
            called at the first use.
        idle: for a knob, the condition under which the code is the same for all of its values. It may read other idle
            knobs, in any order but in no circle; constraints read none. A search then tries the fallback's value alone.

    Raises:
        SpaceError: a duplicate name, a constraint or condition over unknown names, a constraint over idle ones,
            conditions that read each other, or an invalid fallback (raised by `fallback` if it is from a function).
    """

    def __init__(
        self,
        knobs: Iterable[Knob],
        constraints: Iterable[Clause] = (),
        derived: Mapping[str, Expr] | None = None,
        fallback: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        idle: Mapping[str, Clause] | None = None,
    ) -> None:
        self.knobs = tuple(knobs)
        self.constraints = tuple(constraints)
        self.derived = dict(derived or {})
        self.idle = dict(idle or {})
        self._by_name = {k.name: k for k in self.knobs}
        if len(self._by_name) != len(self.knobs):
            raise SpaceError("knobs: two have the same name: rename one")
        if len(self.knobs) > MAX_KNOBS or len(self.constraints) > MAX_CONSTRAINTS:
            raise SpaceError(f"a space has at most {MAX_KNOBS} knobs and {MAX_CONSTRAINTS} constraints")
        numbers = {k.name for k in self.knobs if k.is_number}
        expressions: list[Clause | Expr] = [*self.constraints, *self.derived.values(), *self.idle.values()]
        for what in expressions:
            if callable(what):
                raise SpaceError(f"{what!r:.80}: a function cannot be sent to a service: write knob('rows') <= 8")
            for name in what.variables() - numbers:
                if name not in self._by_name:
                    raise SpaceError(f"'{what}': {name!r:.80} is no knob of this space")
                self._by_name[name].check_use(what)
        self.idle = self._settled_in_turn()
        self._given = fallback
        if fallback is not None and not callable(fallback):
            _ = self.fallback

    def _settled_in_turn(self) -> dict[str, Clause]:
        """The conditions of idle knobs, each behind those that it reads: a database may give them in another order.

        Raises:
            SpaceError: a constraint reads an idle knob, whose value a search replaces by the fallback's; a condition is
                of an unknown knob; conditions read each other.
        """
        for what in self.constraints:
            for name in sorted(what.variables() & self.idle.keys()):
                raise SpaceError(f"'{what}': {name!r:.80} is idle in some configurations: no constraint may read it")
        for name in self.idle:
            if name not in self._by_name:
                raise SpaceError(f"idle: {name!r:.80} is no knob of this space")
        reads = {name: sorted(what.variables() & self.idle.keys()) for name, what in self.idle.items()}
        try:
            return {name: self.idle[name] for name in TopologicalSorter(reads).static_order()}
        except CycleError as error:
            circle = " reads ".join(f"{name!r:.80}" for name in reversed(error.args[1]))
            raise SpaceError(f"idle: the condition of {circle}: leave one of them out") from None

    @cached_property
    def _checks(self) -> list[list[Callable[[Mapping[str, Any]], Any]]]:
        """For each knob, the constraints that can be checked once it has a value."""
        order = {k.name: i for i, k in enumerate(self.knobs)}
        checks: list[list[Callable[[Mapping[str, Any]], Any]]] = [[] for _ in self.knobs]
        for c in self.constraints if self.knobs else ():
            last = max((order[v] for v in c.variables()), default=0)
            checks[last].append(c.expression.compile())
        return checks

    @cached_property
    def _awaited(self) -> list[list[str]]:
        """For each knob, the earlier ones that are read by constraints not yet checked there."""
        order = {k.name: i for i, k in enumerate(self.knobs)}
        read = [found for c in self.constraints if (found := sorted(order[v] for v in c.variables()))]
        awaited = [{n for places in read if places[-1] >= i for n in places if n < i} for i in order.values()]
        return [[self.knobs[n].name for n in sorted(places)] for places in awaited]

    @property
    def size(self) -> int:
        """The number of configurations before constraints."""
        return math.prod(len(k.values) for k in self.knobs)

    @cached_property
    def fallback(self) -> Config:
        """The configuration used without tuning.

        Raises:
            SpaceError: the given one is invalid, or none is given and no valid one was found.
        """
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
                "no valid configuration was found, as the constraints exclude (nearly) all: "
                "give a valid one as the fallback"
            ) from None

    def __getitem__(self, name: str) -> Knob:
        return self._by_name[name]

    def config(self, index: int) -> Config:
        """The configuration at `index`, which may violate constraints (see `contains`).

        Raises:
            ConfigError: `index` is not below `size`.
        """
        if not 0 <= index < self.size:
            raise ConfigError(f"index {index} is out of range 0 … {self.size - 1}")
        values = {}
        for k in reversed(self.knobs):
            index, digit = divmod(index, len(k.values))
            values[k.name] = k.values[digit]
        return Config(values)

    def index(self, config: Mapping[str, Any]) -> int:
        """The index of `config` in this space, which changes with the space."""
        index = 0
        for k, digit in zip(self.knobs, self.digits(config), strict=True):
            index = index * len(k.values) + digit
        return index

    def digits(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        """The position of each knob's value, in the order of the knobs.

        Raises:
            ConfigError: a knob is missing, unknown or has another value. Constraints are not checked.
        """
        config = config if isinstance(config, Config) else Config(config)
        try:
            found = tuple([k.position[type(v := config[k.name]), v] for k in self.knobs])
        except KeyError:
            raise ConfigError(self._fault(config)) from None
        if len(config) > len(found):
            raise ConfigError(self._fault(config))
        return found

    def _fault(self, config: Mapping[str, Any]) -> str | None:
        """Return the fault in the names and values of `config`, None if there is none."""
        unknown = sorted(config.keys() - self._by_name.keys())
        if unknown:
            known = ", ".join(self._by_name) or "none"
            meant = suggest(unknown[0], self._by_name)
            return f"unknown knob {unknown[0]!r:.80}{meant}: expected {known}"
        for k in self.knobs:
            if k.name not in config:
                return f"knob {k.name!r} is missing: give one of {k.show_values()}"
            value = config[k.name]
            if not k.has(value):
                return f"{k.name}={value!r:.80} is not a value of this knob: give one of {k.show_values()}"
        return None

    def check(self, config: Mapping[str, Any]) -> Config:
        """Return `config` after checking that it is in this space.

        Raises:
            ConfigError: a knob is missing, unknown or has another value, or a constraint does not hold.
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
        """Return whether `config` is in this space and satisfies the constraints."""
        config = config if isinstance(config, Config) else Config(config)
        return self._fault(config) is None and self.allows(config.plain)

    def allows(self, values: Mapping[str, Any]) -> bool:
        """Return whether the constraints hold, for valid values of the knobs."""
        return all(check(values) for checks in self._checks for check in checks)

    def __iter__(self) -> Iterator[Config]:
        """The valid configurations in the order of indices, lazily."""
        return (Config(values) for values in self._walk(lambda k: k.values))

    def _walk(
        self, order: Callable[[Knob], Sequence[Value]], steps: int | None = None
    ) -> Iterator[dict[str, Value]]:
        """Yield valid values of all knobs; raise `_OutOfSteps` after `steps` values tried."""
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

        None if there are more than `limit`, or finding them takes more than `4 * limit` tried values.
        """
        known: list[dict[tuple[Value, ...], int]] = [{} for _ in self.knobs]
        values: dict[str, Value] = {}
        left = iter(range(4 * limit))

        def descend(depth: int) -> int:
            if depth == len(self.knobs):
                return 1
            # The rest depends on these values alone, whatever the others before it are.
            seen = tuple([values[name] for name in self._awaited[depth]])
            if seen in known[depth]:
                return known[depth][seen]
            k, checks, found = self.knobs[depth], self._checks[depth], 0
            for value in k.values:
                values[k.name] = value
                if next(left, None) is None:
                    raise _OutOfSteps
                if all(check(values) for check in checks):
                    found += descend(depth + 1)
                    if found > limit:
                        raise _OutOfSteps
            known[depth][seen] = found
            return found

        try:
            return descend(0)
        except _OutOfSteps:
            return None

    def sample(self, rng: random.Random, n: int, tries: int = 200) -> list[Config]:
        """Up to `n` distinct valid configurations, drawn uniformly if `tries` draws each suffice.

        Where valid ones are rarer, the rest come from the list of all, if the space is small, or
        from randomised descents, which favours sparse branches. Fewer than `n` come back only from a
        space that has about as few.
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
        if self.idle:
            data["idle"] = {name: c.to_json() for name, c in self.idle.items()}
        if self._given is not None:
            data["fallback"] = self.fallback.to_json()
        return data

    @classmethod
    def from_json(cls, data: Any) -> ConfigSpace:
        """Parse the JSON form; raise `SpaceError` with the entry at fault."""
        if not isinstance(data, Mapping) or not isinstance(data.get("knobs"), list):
            raise SpaceError("a space is an object with a list 'knobs'")
        knobs = []
        for i, entry in enumerate(data["knobs"][: MAX_KNOBS + 1]):
            try:
                knobs.append(Knob.from_json(entry))
            except SpaceError as error:
                raise SpaceError(f"knobs[{i}]: {error}") from error
        constraints, derived = data.get("constraints", []), data.get("derived", {})
        fallback, idle = data.get("fallback"), data.get("idle", {})
        if not isinstance(constraints, list) or len(constraints) > MAX_CONSTRAINTS:
            raise SpaceError(f"constraints: a list of at most {MAX_CONSTRAINTS} comparisons")
        if not isinstance(derived, Mapping) or len(derived) > MAX_CONSTRAINTS:
            raise SpaceError(f"derived: an object of at most {MAX_CONSTRAINTS} expressions")
        if not isinstance(idle, Mapping) or len(idle) > MAX_KNOBS:
            raise SpaceError("idle: an object of knobs and the conditions under which they have no effect")
        if fallback is not None and not isinstance(fallback, Mapping):
            raise SpaceError(f"fallback: an object of knobs and their values, got {fallback!r:.80}")
        try:
            clauses = [Clause.from_json(c) for c in constraints]
            features = {str(name): Expr.from_json(e) for name, e in derived.items()}
            unread = {str(name): Clause.from_json(c) for name, c in idle.items()}
            return cls(knobs, clauses, features, fallback, unread)
        except ExpressionError as error:
            raise SpaceError(f"constraints, derived features or idle knobs: {error}") from error

    @cached_property
    def digest(self) -> str:
        """8 hexadecimal digits over knobs and constraints: part of an implementation's version.

        Without derived features, the fallback and idle knobs, which do not affect the meaning of records.
        """
        # The order of constraints is irrelevant.
        constraints = [text for _, text in sorted([c.encoded for c in self.constraints])]
        knobs = [k.encoded for k in self.knobs]
        text = b"[[%b],[%b]]" % (b",".join(knobs), b",".join(constraints))
        return hashlib.sha256(text).hexdigest()[:8]

    def __eq__(self, other: object) -> bool:
        # As text: in Python, True == 1.
        if not isinstance(other, ConfigSpace):
            return False
        return msgspec.json.encode(self.to_json()) == msgspec.json.encode(other.to_json())

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"ConfigSpace({', '.join(self._by_name)}; size {self.size})"
