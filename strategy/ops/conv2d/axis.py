"""Rows or columns of a convolution, and the tiles of outputs that see something of the image at a tap of the window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class Axis(NamedTuple):
    """Rows or columns: extents of image, output and window, and what relates them."""

    image: int
    out: int
    window: int
    stride: int
    dilation: int
    before: int

    def place(self, out: Any, tap: Any) -> Any:
        """The place of the image that an output sees of a tap; before 0 or beyond the image is padding."""
        return out * self.stride + tap * self.dilation - self.before

    def seen(self, count: int) -> int:
        """The number of tiles of `count` outputs that see something of the image, over all taps."""
        return sum(len(tiles) for _, tiles in self._seeing(count))

    def sees_padding(self, count: int) -> bool:
        """Return whether a tile of `count` outputs sees nothing of the image at some tap."""
        return self.seen(count) < -(-self.out // count) * self.window

    def padding(self, count: int) -> tuple[int, int]:
        """The zeros before and behind, that tiles of `count` outputs read which see something of the image."""
        seen = [
            self.place(tile * count, tap)
            for tap, tiles in self._seeing(count) if tiles for tile in (tiles[0], tiles[-1])
        ]
        return max(-min(seen), 0), max(max(seen) + (count - 1) * self.stride + 1 - self.image, 0)

    def _seeing(self, count: int) -> Iterator[tuple[int, range]]:
        """The taps, each with the tiles of `count` outputs that see something of the image."""
        step, reach = count * self.stride, (count - 1) * self.stride
        for tap in range(self.window):
            first = self.place(0, tap)
            begin, end = -((first + reach) // step), -((first - self.image) // step)
            yield tap, range(max(begin, 0), min(end, -(-self.out // count)))
