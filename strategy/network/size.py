"""The symbolic sizes of a network, and its other extents as sums of products of them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from operator import add

from strategy.types import TensorType

NAMES = ("n", "m", "k")
MOST = 2**31 - 1  # where the model sets no bound
PROBED = 290_000  # extents from here on may be symbolic
PROBES = (
    (300_007, 400_009, 500_009), (300_017, 400_031, 500_029), (311_123, 411_113, 511_123), (322_229, 422_231, 522_227),
    (333_337, 433_337, 533_353), (344_453, 444_449, 544_451),
)  # fmt: skip
_SUMMAND = 512  # the most that is added to a size
_MULTIPLE = 16  # of a size that something is added to, which is no multiple of this

Powers = tuple[int, ...]
_Terms = tuple[tuple[Powers, int], ...]


@dataclass(frozen=True)
class Extent:
    """A polynomial in the sizes: the factor of each product of them, by its powers of the sizes. Its text is C."""

    names: tuple[str, ...]
    factors: tuple[tuple[Powers, int], ...]

    def at(self, values: Sequence[int]) -> int:
        return sum(f * math.prod(v**p for v, p in zip(values, powers, strict=True)) for powers, f in self.factors)

    def __str__(self) -> str:
        terms = []
        for powers, factor in self.factors:
            sizes = [name for name, power in zip(self.names, powers, strict=True) for _ in range(power)]
            terms.append("*".join(sizes if factor == 1 and sizes else [str(factor), *sizes]))
        return " + ".join(terms).replace("+ -", "- ")


Encoded = tuple[int | Extent, ...]


@dataclass(frozen=True)
class Size:
    """A size that each call gives, within bounds."""

    name: str
    low: int
    high: int


@dataclass(frozen=True)
class Sizes:
    """The sizes that a network takes.

    Args:
        probes: the primes that stand for them in the network's types.
    """

    sizes: tuple[Size, ...]
    probes: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(size.name for size in self.sizes)

    @property
    def least(self) -> tuple[int, ...]:
        return tuple(size.low for size in self.sizes)

    def encode(self, extent: int) -> int | Extent:
        """An extent of the network's types as it depends on the sizes."""
        return self._extent(self._terms(extent))

    def bytes(self, kind: TensorType, each: int) -> int | Extent:
        """The bytes of a tensor, of elements of so many."""
        none = (0,) * len(self.probes)
        found: _Terms = ((none, each),)
        for extent in self.encoded(kind):
            found = _multiply(found, ((none, extent),) if isinstance(extent, int) else extent.factors)
        return self._extent(found)

    def _terms(self, extent: int) -> _Terms:
        return _decode(extent, self.probes) or (((0,) * len(self.probes), extent),)

    def _extent(self, terms: _Terms) -> int | Extent:
        if any(any(powers) for powers, _ in terms):
            return Extent(self.names, terms)
        return sum(factor for _, factor in terms)

    def encoded(self, kind: TensorType) -> Encoded:
        return tuple(map(self.encode, kind.concrete_shape))

    def shown(self, text: object) -> str:
        """A message, with the names of sizes for their probes."""
        found = str(text)
        for name, probe in zip(self.names, self.probes, strict=True):
            found = found.replace(str(probe), name)
        return found

    def within(self, kinds: Iterable[TensorType]) -> Sizes:
        """These sizes, the least of each so that extents of such types that depend on it alone are not empty."""
        lows = list(self.least)
        for extent in {e for kind in kinds for e in self.encoded(kind) if isinstance(e, Extent)}:
            used = {i for powers, _ in extent.factors for i, power in enumerate(powers) if power}
            if len(used) == 1:
                (i,) = used
                least = (n for n in range(lows[i], self.sizes[i].high) if extent.at((n,) * len(lows)) > 0)
                lows[i] = next(least, self.sizes[i].high)
        return replace(self, sizes=tuple(replace(s, low=low) for s, low in zip(self.sizes, lows, strict=True)))

    def limited(self, pairs: Iterable[tuple[int, int]]) -> Sizes:
        """These sizes, within bounds at which the first extent of each pair is at most the second.

        Raises:
            ValueError: none are left; two sizes would have to be compared at each call.
        """
        found = self
        for small, large in pairs:
            terms = self._terms(large), _multiply(self._terms(small), (((0,) * len(self.probes), -1),))
            gap = Extent(self.names, _add(*terms))
            used = {i for powers, _ in gap.factors for i, power in enumerate(powers) if power}
            shown = f"a part of an axis of {self.encode(large)} that reaches to {self.encode(small)}"
            if len(used) > 1 and any(factor < 0 for _, factor in gap.factors):
                raise ValueError(f"{shown}: which is greater depends on the call")
            if len(used) == 1:
                found = found._bounded(gap, used.pop())
            if gap.at(found.least) < 0:
                raise ValueError(f"{shown} at least")
        return found

    def _bounded(self, gap: Extent, place: int) -> Sizes:
        """These sizes, one of them within bounds at which the gap, which depends on it alone, is not negative."""
        own = self.sizes[place]
        within = range(own.low, own.high + 1)

        def holds(n: int) -> bool:
            return gap.at((n,) * len(self.sizes)) >= 0

        if not holds(own.low):
            own = replace(own, low=within[min(bisect_left(within, True, key=holds), len(within) - 1)])
        elif not holds(own.high):
            own = replace(own, high=within[bisect_left(within, True, key=lambda n: not holds(n)) - 1])
        return replace(self, sizes=(*self.sizes[:place], own, *self.sizes[place + 1 :]))

    def samples(self) -> list[tuple[int, ...]]:
        """A few sizes to try a library at: the least, some odd and even ones, and the greatest if it is small."""
        each = [
            sorted({n for n in (s.low, s.low + 2, 8, min(s.high, 64)) if s.low <= n <= s.high}) for s in self.sizes
        ]
        count = max(map(len, each))
        return [tuple(own[(i + 2 * place) % len(own)] for place, own in enumerate(each)) for i in range(count)]


def extents_at(encoded: Encoded, values: Sequence[int]) -> tuple[int, ...]:
    """A shape as it is at these values of the sizes."""
    return tuple(e if isinstance(e, int) else e.at(values) for e in encoded)


def make_sizes(bounds: Sequence[tuple[int, int]], fixed: Iterable[int] = ()) -> tuple[Sizes, Sizes]:
    """Sizes with two sets of probes; of at most as many sizes as there are `NAMES`.

    Args:
        bounds: the least and the greatest value of each.
        fixed: extents of the network, such as those of its weights, that are not to be taken for symbolic ones. If
            every set has some that are, the types of a network differ between the two.
    """
    sizes = tuple(Size(name, *bound) for name, bound in zip(NAMES, bounds, strict=False))
    known = set(fixed)
    found = [Sizes(sizes, probes[: len(sizes)]) for probes in PROBES]
    first, second = sorted(found, key=lambda s: sum(isinstance(s.encode(n), Extent) for n in known))[:2]
    return first, second


@cache
def _decode(value: int, probes: tuple[int, ...]) -> _Terms | None:
    """The terms of a value as a polynomial in the probes; None where there is no short one."""
    none = (0,) * len(probes)
    if value < PROBED:
        return ((none, value),) if value else ()
    for place, probe in enumerate(probes):  # a product of sizes, or of sizes with a summand each
        factor = (value + probe // 2) // probe
        if not factor:
            continue
        summand, left = divmod(value - factor * probe, factor)
        found = _decode(factor, probes) if left == 0 and abs(summand) <= _SUMMAND else None
        if found is not None:
            one = tuple(int(i == place) for i in range(len(probes)))
            return _multiply(found, ((one, 1), (none, summand)))
    for place, probe in enumerate(probes):  # a multiple of a size, or a product, with a summand
        factor = (value + probe // 2) // probe
        summand = value - factor * probe
        is_likely = 0 < factor <= _MULTIPLE or factor >= PROBED
        found = _decode(factor, probes) if is_likely and abs(summand) <= _SUMMAND else None
        if found is not None:
            one = tuple(int(i == place) for i in range(len(probes)))
            return _add(_multiply(found, ((one, 1),)), ((none, summand),))
    for place, probe in enumerate(probes):  # a sum of such
        factor, left = divmod(value, probe)
        found = _decode(factor, probes) if factor and left >= PROBED else None
        rest = _decode(left, probes) if found else None
        if found is not None and rest is not None:
            one = tuple(int(i == place) for i in range(len(probes)))
            return _add(_multiply(found, ((one, 1),)), rest)
    return None


def _multiply(a: _Terms, b: _Terms) -> _Terms:
    return _add(*(((tuple(map(add, p, q)), f * g),) for p, f in a for q, g in b))


def _add(*terms: _Terms) -> _Terms:
    found: Counter[Powers] = Counter()
    for powers, factor in chain(*terms):
        found[powers] += factor
    return tuple(sorted(((p, f) for p, f in found.items() if f), reverse=True))
