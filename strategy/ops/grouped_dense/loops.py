"""Loops over the rows of each group, which the implementations of grouped_dense share.

A task has some panels of all groups, and a part of the rows. It finds the rows of each group in turn, so memory is read
for as many weights as there are groups with rows. Ends are clamped to the rows of the task, whatever they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strategy.cpu.loop import allocate, fill
from strategy.cpu.tile import largest_divisor, up_to
from strategy.pattern import schedule_plain_cpu
from strategy.schedule import Outs, integer, new_schedule
from strategy.space import Config, Knob
from strategy.target import Target
from strategy.types import Dim

BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_ANY_ROWS = 64  # that a fallback takes m for, where it is symbolic


def rows_of(m: Dim) -> int:
    """The rows, or what a fallback takes them for."""
    return int(m) if m.is_constant else _ANY_ROWS


def task_knobs(m: Dim, count: int) -> list[Knob]:
    """The panels of a task, `count` of them in all, and the parts of the rows that are tasks of their own."""
    return [up_to("n_block", BLOCKS, count), up_to("parts", BLOCKS, rows_of(m))]


def usual_tasks(m: Dim, count: int, target: Target) -> dict[str, int]:
    """The tasks of a fallback, two for each thread or more; of parts of the rows where there are too few panels.

    The panels of a task lie side by side in memory, and the rows of a group stay in a cache from one to the next.
    """
    most = max(min(target.threads // count, rows_of(m)), 1)
    return {
        "n_block": largest_divisor(BLOCKS, count, count // (2 * target.threads)),
        "parts": max(b for b in BLOCKS if b <= most),
    }


def schedule(attrs: Any, outs: Outs, target: Target, config: Config) -> Any:
    """The loops as they are; packing, and what follows, by pattern."""
    sch = new_schedule(outs)
    is_alone = sch.mod["main"].body.block.name_hint != "root"
    return sch if is_alone else schedule_plain_cpu(attrs, outs, target)


@dataclass(frozen=True)
class Loops:
    """The loops of a function that is being built.

    Attributes:
        out: the buffer [m, n] that they write.
        ends: the buffer of the groups' ends.
        count: panels of a weight.
        width: columns of a panel, whole vectors of `lanes`.
        sums: the dtype of sums.
    """

    out: Any
    ends: Any
    count: int
    width: int
    lanes: int
    sums: str
    config: Config

    def each(self, rows: int, step: Callable[[Any, Any], None]) -> None:
        """Each of some rows and column of a panel."""
        from tvm.script.ir_builder import tirx as script

        vectors, lanes = self.width // self.lanes, self.lanes
        with script.unroll(0, rows) as i, script.unroll(0, vectors) as v, script.vectorized(0, lanes) as lane:
            step(i, v * lanes + lane)

    def store(self, panel: Any, row: Any, column: Any, number: Any) -> None:
        """Write a sum, by its column in a panel, unless it is behind n."""
        from tvm.script.ir_builder import tirx as script

        n, place = int(self.out.shape[1]), panel * self.width + column
        result, rounded = script.buffer_proxy(self.out), number.astype(str(self.out.dtype))
        if n % self.width == 0:
            fill(result, (row, place), rounded)
            return
        with script.If(place < n), script.Then():
            fill(result, (row, place), rounded)

    def run(self, multiply: Callable[[Any, Any, Any, Any], None], annotations: dict[str, Any] | None = None) -> None:
        """Have `multiply(group, panel, begin, end)` compute the rows of each group, and write zeros behind the last.

        Args:
            annotations: those of the loop over tasks.
        """
        from tvm import tirx
        from tvm.script.ir_builder import tirx as script

        m, n_block, parts = self.out.shape[0], integer(self.config, "n_block"), integer(self.config, "parts")
        kind, size = str(m.ty.dtype), (m + parts - 1) // parts
        with script.parallel(0, self.count // n_block * parts, annotations=annotations) as task:
            first, part = task // parts * n_block, task % parts
            at = allocate(1, kind)
            at[0] = tirx.min(part * size, m)
            last = script.bind(tirx.min((part + 1) * size, m))
            with script.serial(0, int(self.ends.shape[0])) as group:
                end = script.bind(tirx.min(tirx.max(self.ends[group].astype(kind), at[0]), last))
                with script.serial(0, n_block) as p:
                    multiply(group, first + p, at[0], end)
                at[0] = end
            with script.serial(at[0], last) as row, script.serial(0, n_block) as p:
                # Not a constant of bfloat16: a vector of those TVM leaves as it is.
                zeros = allocate(self.width, self.sums)
                self.each(1, lambda _, j: fill(zeros, j, tirx.const(0, self.sums)))
                self.each(1, lambda i, j: self.store(first + p, row + i, j, zeros[j]))
