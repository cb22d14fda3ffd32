"""Numbers that stand for the symbolic sizes of a network in its types, at which its extents differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice

import numpy as np

from strategy.network.extent import Extent, Quotient
from strategy.network.size import NAMES, PROBED, Size, Sizes

# No small multiple of one is near one of another, nor a sum of a few near another such sum; the product of any three of
# them and up to 76 channels is an integer of 64 bits.
PROBES = (
    (325_027, 354_979, 382_801, 407_741, 427_169, 463_831, 486_221, 534_371),
    (319_519, 356_591, 380_179, 409_951, 429_139, 450_727, 486_071, 529_517),
    (328_283, 357_377, 368_243, 395_189, 448_969, 466_717, 491_593, 524_899),
    (312_979, 332_179, 360_649, 403_159, 448_421, 459_443, 481_417, 532_849),
    (315_893, 338_573, 384_079, 403_567, 439_991, 458_207, 501_121, 510_931),
    (304_943, 341_983, 361_901, 403_703, 438_241, 468_359, 489_823, 528_823),
)
# Rests of numbers that stand for sizes of which there are quotients: these first, then others where they are needed.
_RESTS = (1, 2, 3, 5)
_TRIED_RESTS = 64
_JOINT_RESTS = 16
_MOST_RESTS = 1 << 12


def make_sizes(
    bounds: Sequence[tuple[int, int]], fixed: Iterable[int] = (), known: Sequence[Extent] = (), *, joint: bool = False
) -> tuple[Sizes, Sizes]:
    """Sizes with two sets of probes; of at most as many sizes as there are `NAMES`.

    Args:
        bounds: the least and the greatest value of each.
        fixed: extents of the network, such as those of its weights, that are not to be taken for symbolic ones. If
            every set has some that are, the types of a network differ between the two.
        known: extents of the network that depend on the sizes.
        joint: whether extents may be the same in one of both sets: all that reads them compares both.

    Raises:
        ValueError: there are no numbers at which these extents differ from each other.
    """
    sizes = tuple(Size(name, *bound) for name, bound in zip(NAMES, bounds, strict=False))
    numbers = set(fixed)
    told = Sizes(sizes, ()).knowing(known)
    found = [replace(told, probes=probes[: len(sizes)]) for probes in PROBES]
    if told.has_quotients:
        found = _apart(told, joint=joint)
    first, second = sorted(found, key=lambda s: sum(isinstance(s.encode(n), Extent) for n in numbers))[:2]
    return replace(first, twin=second.probes), replace(second, twin=first.probes)


def _apart(sizes: Sizes, *, joint: bool) -> list[Sizes]:
    """Sizes with probes that leave different rests in quotients, and at which known extents differ from each other.

    A multiple of a quotient, such as 2*((n + 1)//2), is a size and a number at each probe, but not the same number at
    all rests: beside n and n + 1 it is told by two probes alone.
    """
    quotients = [q for extent in sizes.known for q in extent.quotients]
    periods = sizes.periods
    if max(periods) > _MOST_RESTS:
        raise ValueError(f"quotients of a size, which leave the same rests at every {max(periods)}th value alone")
    different = _different(sizes, max(periods))
    found: list[Sizes] = []
    rests = [*_RESTS, *_other_rests(quotients, max(periods))]
    for rest in rests:
        if len(found) >= 2 and rest not in _RESTS:
            break
        probed = (_probed(sizes, probes, periods, rest) for probes in PROBES)
        told = (made for made in probed if _tells(different, made.probes))
        found += islice(told, 1)
    if len(found) < 2 and joint:
        each = [_probed(sizes, PROBES[0], periods, rest) for rest in rests[:_JOINT_RESTS]]
        pairs = (pair for pair in combinations(each, 2) if _tells(different, *(made.probes for made in pair)))
        found = list(next(pairs, ()))
    if len(found) < 2:
        listed = ", ".join(sorted(map(str, sizes.known), key=len))
        raise ValueError(f"quotients of sizes that plevel cannot tell apart: {listed:.300}")
    return found


def _other_rests(quotients: Iterable[Quotient], period: int) -> Iterator[int]:
    """Rests at which quotients become larger, then small ones."""
    steps = [-dict(q.dividend.terms).get((), 0) % q.divisor for q in quotients]
    tried = [*steps, *(step + 1 for step in steps), *range(min(period, _TRIED_RESTS))]
    yield from dict.fromkeys(rest for rest in tried if rest not in _RESTS)


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


def _different(sizes: Sizes, period: int) -> list[Extent]:
    """One extent of each that are the same at all sizes.

    Args:
        period: of the rests that sizes leave in quotients, which may differ at one of these alone.
    """
    lows = [s.low for s in sizes.sizes]
    tried = [
        np.concatenate([low + np.arange(64) * (i + 1), low + np.arange(period) + i]) for i, low in enumerate(lows)
    ]
    each = {extent.at(tried).tobytes(): extent for extent in (*sizes.symbols, *sizes.known)}
    return list(each.values())


def _tells(extents: Sequence[Extent], *probes: Sequence[int]) -> bool:
    """Return whether extents are different numbers at one of the probes at least."""
    return len({tuple(map(extent.at, probes)) for extent in extents}) == len(extents)
