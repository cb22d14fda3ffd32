"""Untuned tiles and tasks of convolutions by dot-product instructions: those with the fewest cycles of a thread.

An image is copied before all tasks, or by each of them: what other threads copy as well is then copied twice, but none
waits for the others and reads from their caches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from strategy.cpu.tile import tile_share
from strategy.ops.conv2d.product import Geometry
from strategy.target import Target

# Cycles to copy a word of the image, to read one that another core has copied, to turn and write a vector of pixels, to
# begin a task, and for threads to wait for each other; and bytes of a weight that come from the last level in a cycle.
# Of a Zen 5.
_COPY, _READ, _TURN, _TASK, _WAIT, _STREAM = 0.6, 1.5, 4, 1000, 4000, 16


@dataclass(frozen=True)
class Tasks:
    """Estimates for tiles and tasks.

    Attributes:
        lanes: output channels of a vector.
        terms: words of a window.
        words: those of a pixel that are copied, 0 if it is read where it lies.
        is_flat: tiles go over lines.
        steps: lines of the image from one line of windows to the next, and those that windows of a line read.
        wide: pixels of a line of the image.
        offered: the values of `o_block`, `p_block`, and `by_task`.
    """

    geometry: Geometry
    target: Target
    lanes: int
    terms: int
    words: int
    is_flat: bool
    steps: tuple[int, int]
    wide: int
    offered: tuple[Sequence[Any], Sequence[Any], Sequence[Any]]

    def best(self, tiles: Iterable[tuple[int, int]]) -> dict[str, Any]:
        """The knobs of the tile and its tasks, of tiles of (rows, width)."""
        found = (task for tile in tiles for task in self._tasks(*tile))
        *_, rows, width, o_block, p_block, by_task = min(found)
        return {"rows": -rows, "width": width, "o_block": o_block, "p_block": p_block, "by_task": by_task}

    def _tasks(self, rows: int, width: int) -> Iterable[tuple[Any, ...]]:
        """Each task for a tile, after its cycles; of equal ones, the larger first, and of tiles the higher."""
        across = self.geometry.pixels if self.is_flat else self.geometry.out_w
        panels, tiles = -(-self.geometry.out_channels // width), int(-(-across // rows))
        lines = tiles if self.is_flat else int(self.geometry.out_h)
        vectors, target = width // self.lanes, self.target
        share = tile_share(rows, rows, vectors, target.multiply_adds)
        # Tiles of which some end beyond the last pixel all write under a condition.
        writing = _TURN * (2 if across % rows else 1) * width * -(-rows // self.lanes)
        tile = rows * vectors * self.terms / target.multiply_adds / share + writing
        line = tile * (1 if self.is_flat else tiles)
        panel_bytes = width * self.terms * 4
        streamed = panel_bytes / _STREAM if panels * panel_bytes > target.l2_bytes // 2 else 0.0
        entries, threads = int(self.geometry.batch) * self.geometry.groups, target.threads
        waiting, reading = (_WAIT, _READ) if threads > 1 else (_TASK, 0.0)
        whole = entries * self._read(lines, rows)
        o_blocks, p_blocks, places = self.offered
        for o_block, p_block in itertools.product(o_blocks, p_blocks):
            if panels % o_block or lines % p_block:
                continue
            o_tasks, p_tasks = panels // o_block, lines // p_block
            turns = -(-entries * o_tasks * p_tasks // threads)
            # Products hide most of what is streamed, the less the longer it takes.
            work = turns * (o_block * math.hypot(p_block * line, streamed) + _TASK)
            read = self._read(p_block, rows)
            for by_task in places:
                if by_task:
                    copying = _COPY * turns * read
                else:
                    # Tasks of a thread that read the same lines follow each other.
                    again = min(o_tasks, -(-turns // p_tasks))
                    copying = waiting + reading * turns / again * read + _COPY * whole / threads
                yield work + copying, -o_block * p_block, -rows, width, o_block, p_block, by_task

    def _read(self, p_block: int, rows: int) -> int:
        """The words that a task reads of the image."""
        step, window = self.steps
        return self.words * (p_block * rows if self.is_flat else ((p_block - 1) * step + window) * self.wide)
