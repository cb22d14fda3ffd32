"""The symbolic sizes of a network, and its other extents as they depend on them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice

from strategy.network.extent import Decoder, Extent, Quotient, Symbol
from strategy.types import TensorType

NAMES = ("n", "m", "k")
MOST = 2**31 - 1  # where the model sets no bound
PROBED = 290_000  # extents from here on may be symbolic
PROBES = (
    (300_007, 400_009, 500_009), (300_017, 400_031, 500_029), (311_123, 411_113, 511_123), (322_229, 422_231, 522_227),
    (333_337, 433_337, 533_353), (344_453, 444_449, 544_451),
)  # fmt: skip
_TOLD = 4096  # extents from here on that are known are symbolic: quotients, where the probes were chosen without them
_RESTS = (1, 2, 3, 5)  # that numbers leave which stand for sizes of which there are quotients
_MOST_RESTS = 1 << 12

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
        probes: the numbers that stand for them in the network's types.
        known: extents of the network, which other numbers stand for.
    """

    sizes: tuple[Size, ...]
    probes: tuple[int, ...]
    known: tuple[Extent, ...] = ()

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

    def knowing(self, extents: Iterable[Extent]) -> Sizes:
        """These sizes with more known extents."""
        more = [e for e in dict.fromkeys(extents) if e.variables and e not in self.known]
        return replace(self, known=(*self.known, *more)) if more else self

    @cached_property
    def _decoder(self) -> Decoder:
        divided = [e for e in self.known if any(e.quotients)]
        alike = ((a, b) for a, b in combinations(divided, 2) if _is_other_axis(a, b))
        areas = sorted((a * b for a, b in alike), key=lambda e: -e.at(self.probes))
        likely = (*self.symbols, *areas, *divided)
        known = {e.at(self.probes): e for e in reversed(self.known)}  # the first of those that are the same
        told = {value: extent for value, extent in known.items() if value >= _TOLD}
        return Decoder([(e.at(self.probes), e) for e in likely], PROBED, told)

    def encode(self, extent: int) -> int | Extent:
        """An extent of the network's types as it depends on the sizes."""
        found = self._decoder.decode(extent)
        return found if found is not None and found.variables else extent

    def bytes(self, kind: TensorType, each: int) -> int | Extent:
        """The bytes of a tensor, of elements of so many."""
        found = Extent.number(each)
        for extent in self.encoded(kind):
            found *= extent
        return found if found.variables else found.at(self.probes)

    def encoded(self, kind: TensorType) -> Encoded:
        return tuple(map(self.encode, kind.concrete_shape))

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

    def limited(self, pairs: Iterable[tuple[int, int]]) -> Sizes:
        """These sizes, within bounds at which the first extent of each pair is at most the second.

        Raises:
            ValueError: none are left; two sizes would have to be compared at each call.
        """
        found = self
        for small, large in pairs:
            gap = Extent.number(0) + self.encode(large) - self.encode(small)
            shown = f"a part of an axis of {self.encode(large)} that reaches to {self.encode(small)}"
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
            return gap.at((n,) * len(self.sizes)) >= 0

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
        return [tuple(own[(i + 2 * place) % len(own)] for place, own in enumerate(each)) for i in range(count)]


def extents_at(encoded: Encoded, values: Sequence[int]) -> tuple[int, ...]:
    """A shape as it is at these values of the sizes."""
    return tuple(e if isinstance(e, int) else e.at(values) for e in encoded)


def make_sizes(
    bounds: Sequence[tuple[int, int]], fixed: Iterable[int] = (), known: Sequence[Extent] = ()
) -> tuple[Sizes, Sizes]:
    """Sizes with two sets of probes; of at most as many sizes as there are `NAMES`.

    Args:
        bounds: the least and the greatest value of each.
        fixed: extents of the network, such as those of its weights, that are not to be taken for symbolic ones. If
            every set has some that are, the types of a network differ between the two.
        known: extents of the network that depend on the sizes.

    Raises:
        ValueError: there are no numbers at which these extents differ from each other.
    """
    sizes = tuple(Size(name, *bound) for name, bound in zip(NAMES, bounds, strict=False))
    numbers = set(fixed)
    found = [Sizes(sizes, probes[: len(sizes)]) for probes in PROBES]
    if (told := Sizes(sizes, ()).knowing(known)).has_quotients:
        found = _apart(told)
    first, second = sorted(found, key=lambda s: sum(isinstance(s.encode(n), Extent) for n in numbers))[:2]
    return first, second


def _apart(sizes: Sizes) -> list[Sizes]:
    """Sizes with probes that leave different rests in quotients, and at which known extents differ from each other.

    A multiple of a quotient, such as 2*((n + 1)//2), is a size and a number at each probe, but not the same number at
    all rests.
    """
    quotients = [q for extent in sizes.known for q in extent.quotients]
    periods = [_period(q for q in quotients if place in q.dividend.places) for place in range(len(sizes.sizes))]
    if max(periods) > _MOST_RESTS:
        raise ValueError(f"quotients of a size, which leave the same rests at every {max(periods)}th value alone")
    found = []
    for rest in _RESTS:
        probed = (_probed(sizes, probes, periods, rest) for probes in PROBES)
        found += list(islice((made for made in probed if _is_apart(made, max(periods))), 1))
    if len(found) < 2:
        listed = ", ".join(sorted(map(str, sizes.known), key=len))
        raise ValueError(f"quotients of sizes that plevel cannot tell apart: {listed:.300}")
    return found


def _probed(sizes: Sizes, probes: Sequence[int], periods: Sequence[int], rest: int) -> Sizes:
    """Sizes with numbers for probes at which no known extent is taken for a fixed one."""
    scale = 1
    while True:
        pairs = zip(probes, periods, strict=False)
        made = tuple(n if period == 1 else -(-n * scale // period) * period + rest for n, period in pairs)
        least = min(extent.at(made) for extent in sizes.known)
        if least >= PROBED:
            return replace(sizes, probes=made)
        scale = max(scale + 1, scale * PROBED // max(least, 1))
        if scale > _MOST_RESTS:
            small = min(sizes.known, key=lambda extent: extent.at(made))
            raise ValueError(f"an extent of {small}, which is small at all sizes")


def _is_apart(sizes: Sizes, period: int) -> bool:
    """Return whether extents that are the same number at the probes are the same at all sizes.

    Args:
        period: of the rests that sizes leave in quotients, which may differ at one of these alone.
    """
    by_number: dict[int, Extent] = {}
    tried = [tuple(s.low + n * (i + 1) for i, s in enumerate(sizes.sizes)) for n in range(64)]
    tried += [tuple(s.low + n + i for i, s in enumerate(sizes.sizes)) for n in range(period)]
    for extent in (*sizes.symbols, *sizes.known):
        first = by_number.setdefault(extent.at(sizes.probes), extent)
        if first != extent and any(first.at(values) != extent.at(values) for values in tried):
            return False
    return True


def _is_other_axis(extent: Extent, other: Extent) -> bool:
    """Return whether extents of two sizes are divided alike, as the height and the width of a picture."""
    first, second = (sorted(quotient.divisor for quotient in e.quotients) for e in (extent, other))
    return first == second and not extent.places & other.places


def _period(quotients: Iterable[Quotient]) -> int:
    """The distance of values of a size that leave the same rests in quotients."""
    return math.lcm(*(q.divisor * _period(q.dividend.quotients) for q in quotients))
