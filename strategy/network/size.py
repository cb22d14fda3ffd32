"""The symbolic size of a network, of which its other extents are multiples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strategy.types import TensorType

NAME = "n"
MOST = 2**31 - 1  # where the model sets no bound


@dataclass(frozen=True)
class Size:
    """A size that each call gives, within bounds.

    Args:
        probe: the prime that stands for it in the network's types; an extent that it divides is a multiple of the size.
    """

    low: int
    high: int
    probe: int

    def encode(self, extent: int) -> int:
        """The extent; if it is a multiple of the size, the negative factor."""
        return -(extent // self.probe) if extent and extent % self.probe == 0 else extent

    def encoded(self, kind: TensorType) -> tuple[int, ...]:
        return tuple(map(self.encode, kind.concrete_shape))

    def samples(self) -> tuple[int, ...]:
        """A few sizes to try a library at: the least, some odd and even ones, and the greatest if it is small."""
        wanted = (self.low, self.low + 2, 8, min(self.high, 64))
        return tuple(sorted({n for n in wanted if self.low <= n <= self.high}))


def extents_at(encoded: Sequence[int], n: int) -> tuple[int, ...]:
    """A shape as it is where the size is `n`."""
    return tuple(-e * n if e < 0 else e for e in encoded)
