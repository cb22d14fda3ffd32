"""Extents that depend on symbolic sizes: sums of products of sizes, and of quotients of such sums by numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import floordiv, mod
from typing import Any

_SUMMAND = 512  # the most that is added to a likely extent
_MULTIPLE = 16  # of a likely extent that something is added to, which is no multiple of this
_LAST = 1 << 30  # behind the places of all sizes


@dataclass(frozen=True)
class Symbol:
    """A symbolic size: its place among the sizes of a network, and its name."""

    place: int
    name: str

    def at(self, values: Sequence[Any]) -> Any:
        return values[self.place]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Quotient:
    """An extent divided by a number and rounded down. The extent has no negative factors, so that C rounds alike."""

    dividend: Extent
    divisor: int

    def at(self, values: Sequence[Any]) -> Any:
        return self.dividend.at(values) // self.divisor

    def __str__(self) -> str:
        text = str(self.dividend)
        return f"{text}//{self.divisor}" if text.isidentifier() else f"({text})//{self.divisor}"


Product = tuple[Symbol | Quotient, ...]
Numbers = tuple[int, ...]
"""The values of an extent at several sets of sizes."""


@dataclass(frozen=True)
class Extent:
    """A sum: the factor of each product of sizes and quotients, in normal order. Its text is Python."""

    terms: tuple[tuple[Product, int], ...]

    @classmethod
    def number(cls, value: int) -> Extent:
        return cls((((), value),) if value else ())

    @classmethod
    def of(cls, variable: Symbol | Quotient) -> Extent:
        return cls((((variable,), 1),))

    @property
    def variables(self) -> frozenset[Symbol | Quotient]:
        return frozenset(variable for product, _ in self.terms for variable in product)

    @property
    def quotients(self) -> Iterator[Quotient]:
        """Its quotients, and those within them."""
        for variable in self.variables:
            if isinstance(variable, Quotient):
                yield variable
                yield from variable.dividend.quotients

    @property
    def places(self) -> frozenset[int]:
        """The places of the sizes that it depends on."""
        own = frozenset(v.place for v in self.variables if isinstance(v, Symbol))
        return own.union(*(quotient.dividend.places for quotient in self.quotients))

    @property
    def degree(self) -> int:
        """The largest number of sizes that are multiplied."""
        return max((sum(map(_degree, product)) for product, _ in self.terms), default=0)

    def at(self, values: Sequence[Any]) -> Any:
        """The value at these sizes, numbers or arrays of them."""
        return sum(factor * math.prod(v.at(values) for v in product) for product, factor in self.terms)

    def __add__(self, other: Extent | int) -> Extent:
        more = other if isinstance(other, Extent) else Extent.number(other)
        return _sum((*self.terms, *more.terms))

    def __sub__(self, other: Extent | int) -> Extent:
        return self + other * -1

    def __mul__(self, other: Extent | int) -> Extent:
        more = other if isinstance(other, Extent) else Extent.number(other)
        return _sum(((*p, *q), f * g) for p, f in self.terms for q, g in more.terms)

    def __floordiv__(self, divisor: int) -> Extent:
        """The quotient in normal form: without whole parts and common divisors, and quotients of quotients as one."""
        whole = _sum((product, factor // divisor) for product, factor in self.terms)
        rest = _sum((product, factor % divisor) for product, factor in self.terms)
        if not rest.variables:
            return whole
        summand = dict(rest.terms).get((), 0)
        common = math.gcd(divisor, *(factor for product, factor in rest.terms if product))
        if common > 1:
            lesser = _sum((product, factor // common) for product, factor in rest.terms if product)
            return whole + (lesser + summand // common) // (divisor // common)
        for product, factor in rest.terms:
            if factor == 1 and len(product) == 1 and isinstance(inner := product[0], Quotient):
                others = rest - Extent.of(inner)
                return whole + (inner.dividend + others * inner.divisor) // (inner.divisor * divisor)
        return whole + Extent.of(Quotient(rest, divisor))

    def __mod__(self, divisor: int) -> Extent:
        """The rest; of an opposite, as what is missing to a multiple: beside the extent, that multiple is left."""
        rest = _sum((product, factor % divisor) for product, factor in self.terms)
        factors = [factor for product, factor in rest.terms if product]
        if not factors or 2 * min(factors) <= divisor:
            return rest - (rest // divisor) * divisor
        summand = dict(rest.terms).get((), 0)
        opposite = _sum((product, divisor - factor) for product, factor in rest.terms if product)
        return (opposite + (divisor - 1 - summand)) // divisor * divisor + summand - opposite

    def rounded(self, divisor: int) -> Extent:
        """The integer nearest to the quotient; of two that are as near, the even one."""
        if divisor % 2:
            return (self * 2 + divisor) // (2 * divisor)
        half = divisor // 2
        odd = self + (2 * divisor - half)  # a multiple of twice the divisor where the even one is below
        return (self + half) // divisor - odd // (2 * divisor) + (odd - 1) // (2 * divisor)

    def multiple(self, of: Extent) -> int:
        """The number of times that it is another extent; 0 if it is no multiple."""
        (_, own), (_, other) = (*self.terms[:1], *of.terms[:1]) if self.terms and of.terms else (((), 0), ((), 1))
        times = own // other
        return times if of * times == self else 0

    def __str__(self) -> str:
        return " + ".join(_text(*term) for term in self.terms).replace("+ -", "- ") or "0"

    @property
    def c(self) -> str:
        """Its text in C."""
        return str(self).replace("//", "/")


def _degree(variable: Symbol | Quotient) -> int:
    return 1 if isinstance(variable, Symbol) else variable.dividend.degree


def _sum(terms: Iterable[tuple[Product, int]]) -> Extent:
    found: Counter[Product] = Counter()
    for product, factor in terms:
        found[tuple(sorted(product, key=_rank))] += factor
    kept = sorted(((p, f) for p, f in found.items() if f), key=lambda term: _order(term[0]))
    return Extent(tuple(kept))


def _rank(variable: Symbol | Quotient) -> tuple[int, str]:
    return (variable.place, "") if isinstance(variable, Symbol) else (_LAST, str(variable))


def _order(product: Product) -> list[tuple[int, str]]:
    return [*map(_rank, product), (_LAST, "~")]  # behind all other texts


def _text(product: Product, factor: int) -> str:
    if not product:
        return str(factor)
    alone = len(product) == 1 and factor == 1
    shown = [str(v) if alone or isinstance(v, Symbol) else f"({v})" for v in product]
    return "*".join(shown if factor == 1 else [str(factor), *shown])


class Decoder:
    """From numbers, which an extent is where other numbers stand for the sizes, to the extent.

    Args:
        values: of extents that are likely, those first that are to be preferred; each at the same sets of sizes.
        least: the least number that may stand for an extent, except those of `known`.
        known: extents by their numbers.
    """

    def __init__(
        self, values: Sequence[tuple[Numbers, Extent]], least: int, known: Mapping[Numbers, Extent]
    ) -> None:
        self._values, self._least = values, least
        self._found: dict[Numbers, Extent | None] = dict(known)

    def decode(self, value: Numbers) -> Extent | None:
        """The extent, a number itself where it is small; None where none that is short gives the values."""
        if value not in self._found:
            is_number = value[0] < self._least and len(set(value)) == 1
            self._found[value] = Extent.number(value[0]) if is_number else None  # until it is found
            self._found[value] = self._found[value] or next(self._forms(value), None)
        return self._found[value]

    def _forms(self, value: Numbers) -> Iterator[Extent]:
        for one, extent in self._values:  # a multiple, or a product
            factor, left = _divided(value, one)
            found = self.decode(factor) if all(factor) and not any(left) else None
            if found is not None:
                yield extent * found
        for one, extent in self._values:  # a product of sums with a number
            factor = tuple((v + n // 2) // n for v, n in zip(value, one, strict=True))
            if not all(factor):
                continue
            summands, left = _divided(_rest(value, factor, one), factor)
            found = self.decode(factor) if not any(left) and _is_summand(summands) else None
            if found is not None:
                yield (extent + summands[0]) * found
        for one, extent in self._values:  # a multiple, or a product, and a number
            factor = tuple((v + n // 2) // n for v, n in zip(value, one, strict=True))
            summands = _rest(value, factor, one)
            is_likely = 0 < min(factor) <= max(factor) <= _MULTIPLE or min(factor) >= self._least
            found = self.decode(factor) if is_likely and _is_summand(summands) else None
            if found is not None:
                yield extent * found + summands[0]
        for one, extent in self._values:  # a sum of such
            factor, left = _divided(value, one)
            if all(factor) and min(left) >= self._least:
                found, rest = self.decode(factor), self.decode(left)
                if found is not None and rest is not None:
                    yield extent * found + rest


def _divided(value: Numbers, by: Numbers) -> tuple[Numbers, Numbers]:
    """The quotients and the rests."""
    return tuple(map(floordiv, value, by)), tuple(map(mod, value, by))


def _rest(value: Numbers, factor: Numbers, one: Numbers) -> Numbers:
    return tuple(v - f * n for v, f, n in zip(value, factor, one, strict=True))


def _is_summand(numbers: Numbers) -> bool:
    """Return whether they are one number that may be a summand."""
    return abs(numbers[0]) <= _SUMMAND and len(set(numbers)) == 1
