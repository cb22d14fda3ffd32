"""Places of buffers in one arena: buffers that are never alive at the same time share memory."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Life:
    """A buffer: its size, and the first and the last step at which its contents count."""

    bytes: int
    first: int
    last: int

    def overlaps(self, other: Life) -> bool:
        return self.first <= other.last and other.first <= self.last


def place(lives: Sequence[Life], alignment: int) -> tuple[list[int], int]:
    """The offset of each buffer, and the arena's size: the largest first, at the lowest offset that is free."""
    offsets = [0] * len(lives)
    placed: list[int] = []  # by their offsets
    for index in sorted(range(len(lives)), key=lambda i: -lives[i].bytes):
        offset = 0
        for other in placed:
            if lives[index].overlaps(lives[other]) and offset + lives[index].bytes > offsets[other]:
                offset = max(offset, -(-(offsets[other] + lives[other].bytes) // alignment) * alignment)
        offsets[index] = offset
        insort(placed, index, key=offsets.__getitem__)
    end = max((offsets[i] + life.bytes for i, life in enumerate(lives)), default=0)
    return offsets, -(-end // alignment) * alignment


def share(lives: Sequence[Life]) -> list[int]:
    """The index of each buffer's place, for places whose sizes are known at the call: the largest buffers first."""
    found = [0] * len(lives)
    places: list[list[Life]] = []
    for index in sorted(range(len(lives)), key=lambda i: -lives[i].bytes):
        free = (i for i, own in enumerate(places) if not any(lives[index].overlaps(life) for life in own))
        found[index] = next(free, len(places))
        if found[index] == len(places):
            places.append([])
        places[found[index]].append(lives[index])
    return found
