"""The symbolic sizes of a network, and its other extents as they depend on them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice, product

from strategy.network.extent import Decoder, Extent, Quotient, Symbol
from strategy.types import Dim, TensorType

NAMES = ("n", "m", "k", "p", "q", "r", "s", "t")
MOST = 2**31 - 1  # where the model sets no bound
PROBED = 290_000  # extents from here on may be symbolic
_TOLD = 4096  # extents from here on that are known are symbolic: quotients, where the probes were chosen without them
Encoded = tuple[int | Extent, ...]
Dims = Mapping[str, int | tuple[tuple[int, str], ...]]
"""Sizes by the names that a model has for them: numbers, or the factors and symbols of sums; a number has none."""


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
        probes: the numbers that stand for them in the network's types.
        known: extents of the network, which other numbers stand for.
        twin: the numbers that stand for them in its twin.
        bounds: extents of several sizes, each with its least and greatest value.
    """

    sizes: tuple[Size, ...]
    probes: tuple[int, ...]
    known: tuple[Extent, ...] = ()
    twin: tuple[int, ...] = ()
    bounds: tuple[tuple[Extent, int, int], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(size.name for size in self.sizes)

    @property
    def least(self) -> tuple[int, ...]:
        return tuple(size.low for size in self.sizes)

    @property
    def symbols(self) -> tuple[Extent, ...]:
        """Each of the sizes as an extent."""
        return tuple(Extent.of(Symbol(place, name)) for place, name in enumerate(self.names))

    @property
    def has_quotients(self) -> bool:
        return any(any(extent.quotients) for extent in self.known)

    @property
    def periods(self) -> tuple[int, ...]:
        """The distances of values of each size that leave the same rests in quotients."""
        quotients = [q for extent in self.known for q in extent.quotients]
        places = range(len(self.sizes))
        return tuple(_period(q for q in quotients if place in q.dividend.places) for place in places)

    def knowing(self, extents: Iterable[Extent]) -> Sizes:
        """These sizes with more known extents."""
        more = [e for e in dict.fromkeys(extents) if e.variables and e not in self.known]
        return replace(self, known=(*self.known, *more)) if more else self

    @cached_property
    def _decoder(self) -> Decoder:
        return self._decode_at(self.probes)

    @cached_property
    def _joint_decoder(self) -> Decoder:
        return self._decode_at(self.probes, self.twin)

    def _decode_at(self, *probes: tuple[int, ...]) -> Decoder:
        divided = [e for e in self.known if any(e.quotients)]
        alike = ((a, b) for a, b in combinations(divided, 2) if _is_other_axis(a, b))
        areas = sorted((a * b for a, b in alike), key=lambda e: -e.at(self.probes))
        likely = (*self.symbols, *areas, *divided)
        # The first of those that are the same.
        known = {tuple(map(e.at, probes)): e for e in reversed(self.known)}
        told = {values: extent for values, extent in known.items() if min(values) >= _TOLD}
        return Decoder([(tuple(map(e.at, probes)), e) for e in likely], PROBED, told)

    def encode(self, extent: int, twin: int | None = None) -> int | Extent:
        """An extent of the network's types as it depends on the sizes.

        Args:
            twin: the same extent in the twin. Without it, one that is as large at these probes may be given.
        """
        found = self._decoder.decode((extent,)) if twin is None else self._joint_decoder.decode((extent, twin))
        return found if found is not None and found.variables else extent

    def bytes(self, kind: TensorType, each: int) -> int | Extent:
        """The bytes of a tensor, of elements of so many."""
        found = Extent.number(each)
        for extent in self.encoded(kind):
            found *= extent
        return found if found.variables else found.at(self.probes)

    def encoded(self, kind: TensorType, twin: TensorType | None = None) -> Encoded:
        """A shape as it depends on the sizes, which `named` ones say themselves; `twin` as in `encode`."""
        if twin is not None:
            return tuple(map(self.encode, kind.concrete_shape, twin.concrete_shape))
        return tuple(_name_of(dim) or self.encode(int(dim)) for dim in kind.shape)

    def named(self, kind: TensorType, twin: TensorType) -> TensorType:
        """A type whose dimensions have their extents for names, where they depend on sizes."""
        pairs = zip(kind.concrete_shape, self.encoded(kind, twin), strict=True)
        return TensorType([Dim("var", (e,), n) if isinstance(e, Extent) else n for n, e in pairs], kind.dtype)

    def shown(self, text: object) -> str:
        """A message, with the names of sizes, and known extents, for the numbers that stand for them."""
        found = str(text)
        numbers = {e.at(self.probes): e for e in (*reversed(self.known), *self.symbols)}
        for number in sorted(numbers, reverse=True):
            found = found.replace(str(number), str(numbers[number])) if number >= PROBED else found
        return found

    def within(self, kinds: Iterable[TensorType]) -> Sizes:
        """These sizes, the least of each so that extents of such types that depend on it alone are not empty."""
        lows = list(self.least)
        for extent in {e for kind in kinds for e in self.encoded(kind) if isinstance(e, Extent)}:
            if len(extent.places) == 1:
                (i,) = extent.places
                least = (n for n in range(lows[i], self.sizes[i].high) if extent.at((n,) * len(lows)) > 0)
                lows[i] = next(least, self.sizes[i].high)
        return replace(self, sizes=tuple(replace(s, low=low) for s, low in zip(self.sizes, lows, strict=True)))

    def limited(self, pairs: Iterable[tuple[int | Extent, int | Extent]]) -> Sizes:
        """These sizes, within bounds at which the first extent of each pair is at most the second.

        Raises:
            ValueError: none are left; two sizes would have to be compared at each call.
        """
        found = self
        for small, large in pairs:
            gap = Extent.number(0) + large - small
            shown = f"a part of an axis of {large} that reaches to {small}"
            if len(gap.places) > 1 and any(factor < 0 for _, factor in gap.terms):
                raise ValueError(f"{shown}: which is greater depends on the call")
            if len(gap.places) == 1:
                (place,) = gap.places
                found = found._bounded(gap, place)
            if gap.at(found.least) < 0:
                raise ValueError(f"{shown} at least")
            if any(gap.at((n,) * len(self.sizes)) < 0 for place in gap.places for n in found._tried(gap, place)):
                raise ValueError(f"{shown}: which is greater depends on the call")
        return found

    def _tried(self, gap: Extent, place: int) -> Iterator[int]:
        """Values of a size between its bounds that leave each rest in the quotients of an extent."""
        low, high = self.sizes[place].low, self.sizes[place].high
        period = _period(gap.quotients)
        yield from range(low, min(high, low + period))
        yield from range(max(low, high - period), high)

    def _bounded(self, gap: Extent, place: int) -> Sizes:
        """These sizes, one of them within bounds at which the gap, which depends on it alone, is not negative."""
        own = self.sizes[place]
        within = range(own.low, own.high + 1)

        def holds(n: int) -> bool:
            return bool(gap.at((n,) * len(self.sizes)) >= 0)

        if not holds(own.low):
            own = replace(own, low=within[min(bisect_left(within, True, key=holds), len(within) - 1)])
        elif not holds(own.high):
            own = replace(own, high=within[bisect_left(within, True, key=lambda n: not holds(n)) - 1])
        return replace(self, sizes=(*self.sizes[:place], own, *self.sizes[place + 1 :]))

    def samples(self) -> list[tuple[int, ...]]:
        """A few sizes to try a library at: the least, some odd and even ones, and the greatest if it is small."""
        rests = (1, 37) if self.has_quotients else ()
        each = [
            sorted({n for n in (s.low, *(s.low + r for r in (2, *rests)), 8, min(s.high, 64)) if s.low <= n <= s.high})
            for s in self.sizes
        ]
        count = max(map(len, each))
        found = [tuple(own[(i + 2 * place) % len(own)] for place, own in enumerate(each)) for i in range(count)]
        fitting = list(filter(self._is_bounded, found)) or list(islice(filter(self._is_bounded, product(*each)), 1))
        return fitting or found

    def _is_bounded(self, values: Sequence[int]) -> bool:
        return all(low <= extent.at(values) <= high for extent, low, high in self.bounds)


def extents_at(encoded: Encoded, values: Sequence[int]) -> tuple[int, ...]:
    """A shape as it is at these values of the sizes."""
    return tuple(e if isinstance(e, int) else e.at(values) for e in encoded)


def _name_of(dim: Dim) -> Extent | None:
    return dim.args[0] if dim.op == "var" and isinstance(dim.args[0], Extent) else None


def _is_other_axis(extent: Extent, other: Extent) -> bool:
    """Return whether extents of two sizes are divided alike, as the height and the width of a picture."""
    first, second = (sorted(quotient.divisor for quotient in e.quotients) for e in (extent, other))
    return first == second and not extent.places & other.places


def _period(quotients: Iterable[Quotient]) -> int:
    """The distance of values of a size that leave the same rests in quotients."""
    return math.lcm(*(q.divisor * _period(q.dividend.quotients) for q in quotients))
