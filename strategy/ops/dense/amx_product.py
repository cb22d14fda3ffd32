"""Products by AMX whose data have rows and whose weight is packed: their space, sums and schedule."""
# Over 300 lines: one product, whose space, sums and schedule share its block.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strategy.attrs import Attrs
from strategy.condition import Clause, ceildiv, maximum, minimum
from strategy.cpu.amx import lines_ahead, use_tiles
from strategy.cpu.amx_code import LANES, LINE_BYTES, REGISTERS, ROWS, WORD_BYTES, WORDS, Block
from strategy.cpu.dot import Dot
from strategy.cpu.tile import (
    block_knob,
    clamped_row,
    largest_divisor,
    one_order,
    round_up,
    up_to,
    whole_blocks,
)
from strategy.ops.dense.dot import entry_of, row_sums_of, sum_of_row
from strategy.schedule import compute_stage, integer, vectorize, zero_beyond
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import Dim

# Not 1, whose loop TVM drops.
_ROWS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 14, 16, 20, 24, 25, 26, 28, 29, 30, 32)
_WIDTHS = (16, 32, 48, 64, 96)
_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 21, 24, 32, 48, 64)
_INNER = Knob("inner", ["rows", "panels"])
_AHEAD = Knob("ahead", [False, True])
# The data are read in place, or copied by each task, or before all of them.
_IN_PLACE, _BY_TASK, _BEFORE = range(3)
_COPY_FACTOR = 1.1  # of a block whose data are copied
_ANYWHERE = 64  # rows that a fallback takes m for, where it is symbolic
_LARGE = 3 << 19  # bytes of data that leave the second level, of 2 MiB where there is AMX, to nothing else
_STEPS = 8  # of a part: a block's tiles of both operands then stay in the first level


@dataclass(frozen=True)
class Depth:
    """The tiles along k, `words` of a row in each."""

    steps: int
    words: int

    @classmethod
    def of(cls, dot: Dot, k: int) -> Depth:
        """Tiles as even as possible."""
        words = max(-(-k // dot.group), 2)  # TVM drops a loop over one
        steps = -(-words // WORDS)
        return cls(steps, -(-words // steps))

    @property
    def total(self) -> int:
        """The words of a row."""
        return self.steps * self.words


def fit_registers() -> Clause:
    """The constraint that sums, a column of the data's tiles and a tile of the weight fit the tile registers."""
    height = ceildiv(knob("rows"), ROWS)
    return height * (knob("width") // LANES) + height + 1 <= REGISTERS


def is_summed(dot: Dot, attrs: Attrs, dtype: Any) -> bool:
    """Return whether panels end with the sums of the weight's rows: for the zero point of the data."""
    return bool(dot.zero_points(attrs, str(dtype))[0])


def space_of(
    m: Dim, columns: int, entries: int, target: Target, *, in_place: bool, unfolded: bool = False,
    depth: Depth | None = None,
) -> ConfigSpace:
    """The space of products of m rows and some columns, for each entry of a batch.

    Of data that leave the second level, a task adds up its sums in `parts` of k.

    Args:
        depth: of the products, if they may be added up so.
        in_place: the data may be read where they lie.
        unfolded: a row of the data is copied from several places, and reads most of them for other rows, too.
    """
    rows = int(m) if m.is_constant else _ANYWHERE
    parts, idle = [1], {}
    if depth is not None and m.is_constant and rows * depth.total * WORD_BYTES > _LARGE:
        parts = [p for p in divisors(depth.steps) if depth.steps // p >= _STEPS // 2]

    def fallback() -> dict[str, Any]:
        _, high, wide = best_block(
            rows, columns, _ROWS, _WIDTHS, lambda r: 1 if in_place and rows % r == 0 else _COPY_FACTOR
        )
        panels, blocks = -(-columns // wide), -(-rows // high)
        if len(parts) > 1 and depth is not None:
            part = min(parts, key=lambda p: abs(math.log(depth.steps / p / _STEPS)))
            m_tasks, n_block = _parted_tasks(blocks, panels, high, wide, entries, depth.total // part, target)
            return {
                "rows": high,
                "width": wide,
                "n_block": n_block,
                "m_tasks": m_tasks,
                "inner": "rows",
                "copied": _BEFORE,
                "ahead": blocks > m_tasks,
                "parts": part,
            }
        wanted = max(4 * target.threads // entries, 1)  # tasks
        m_tasks = 1
        if unfolded:
            # Each row is copied once, and read while it is in a cache.
            return {
                "rows": high,
                "width": wide,
                "n_block": largest_divisor(_BLOCKS, panels, panels),
                "m_tasks": largest_divisor(_BLOCKS, blocks, 8 * target.threads),
                "inner": "panels",
                "copied": _BY_TASK,
                "ahead": False,
            }
        if m.is_constant and panels < 2 * target.threads and entries < target.threads:
            m_tasks = largest_divisor(_BLOCKS, blocks, target.threads)
        return {
            "rows": high,
            "width": wide,
            "n_block": largest_divisor(_BLOCKS, panels, max(panels // wanted, 1)),
            "m_tasks": m_tasks,
            "inner": "rows",
            "copied": _IN_PLACE if in_place and rows % high == 0 else _BEFORE,
            "ahead": m.is_constant and blocks > m_tasks,  # else each block would bring as much as it reads
        }

    high = up_to("rows", _ROWS, rows if m.is_constant else _ROWS[-1])
    wide = up_to("width", _WIDTHS, columns + LANES - 1)
    m_tasks = block_knob("m_tasks", _BLOCKS, rows, high) if m.is_constant else Knob("m_tasks", [1])
    constraints = [fit_registers(), whole_blocks(columns, "width", "n_block")]
    if m.is_constant:
        constraints.append(whole_blocks(rows, "rows", "m_tasks"))
        # Of one panel the order says where a task copies its data; of one block of rows, too, if that adds parts of k.
        copies, row_tiles = knob("copied") % 2 + 1, ceildiv(rows, knob("rows")) // knob("m_tasks")
        if len(parts) > 1:
            row_tiles = maximum(row_tiles, minimum(knob("parts"), copies))
        idle = {"inner": one_order(maximum(knob("n_block"), copies), row_tiles, ahead=True)}
    if in_place:
        constraints.append((rows % knob("rows") == 0) | (knob("copied") > _IN_PLACE))
    if len(parts) > 1 and in_place:
        constraints.append((knob("parts") == 1) | (knob("copied") > _IN_PLACE))
    return ConfigSpace(
        [
            wide,
            high,
            block_knob("n_block", _BLOCKS, columns, wide),
            m_tasks,
            _INNER,
            Knob("copied", [_IN_PLACE, _BY_TASK, _BEFORE] if in_place else [_BY_TASK, _BEFORE]),
            _AHEAD,
            *([Knob("parts", parts)] if len(parts) > 1 else []),
        ],
        constraints,
        fallback=fallback,
        idle=idle,
    )


def _parted_tasks(
    blocks: int, panels: int, high: int, wide: int, entries: int, words: int, target: Target
) -> tuple[int, int]:
    """The fallback's `m_tasks` and `n_block` where k has parts, of `words` of a row.

    Sums, the rows of a part, and two panels of it take three quarters of the second level. The more rows and columns a
    task has, the fewer times both operands come from beyond it: a multiply-add of a tile takes as long as a line does.
    """

    def extents(counts: tuple[int, int]) -> tuple[int, int]:
        return blocks // counts[0] * high, counts[1] * wide

    def kept(counts: tuple[int, int]) -> int:
        down, across = extents(counts)
        return (down * across + (down + 2 * wide) * words) * WORD_BYTES

    def cost(counts: tuple[int, int]) -> float:
        down, across = extents(counts)
        tasks = entries * counts[0] * (panels // counts[1])
        turns = -(-tasks // target.threads) * target.threads / tasks
        return turns * (1 + LINE_BYTES / down + LINE_BYTES / across)

    offered = [(m, n) for m in _BLOCKS if blocks % m == 0 for n in _BLOCKS if panels % n == 0]
    fitting = [counts for counts in offered if kept(counts) <= target.l2_bytes * 3 // 4]
    return min(fitting or [min(offered, key=kept)], key=cost)


def best_block(
    m: int, n: int, heights: Sequence[int], widths: Sequence[int], factor: Callable[[int], float] = lambda rows: 1
) -> tuple[float, int, int]:
    """The cost, rows and width of a fallback's block, which wastes little of m and n and needs few loads.

    Args:
        heights: the rows that are offered, ascending, as the widths.
        factor: by which a block of so many rows costs more than its products.
    """

    def cost(rows: int, width: int) -> float:
        high, wide = -(-rows // ROWS), width // LANES
        tiles = round_up(m, rows) // rows * high * (round_up(n, width) // width * wide)
        # A tile's product takes as long as its loads do, of which half are hidden.
        return float(tiles * (1 + (high + wide) / (2 * high * wide)) * factor(rows))

    found, rows, width = min(
        (cost(r, w), -r, w) for r in heights for w in widths
        if r <= max(m, heights[0]) and w < n + LANES and -(-r // ROWS) * (w // LANES + 1) < REGISTERS
    )
    return found, -rows, width


def product(dot: Dot, attrs: Attrs, data: Any, weight: Any, n: int, depth: Depth, config: Config) -> Any:
    """The sums over whole blocks, [..., m, n] rounded up, less the zero points' share; `weight` is packed."""
    from tvm import te, tirx

    m, k = data.shape[-2:]
    batch = [max(int(x), int(y)) for x, y in zip(data.shape[:-2], weight.shape[:-4], strict=True)]
    rows, width = integer(config, "rows"), integer(config, "width")
    words, group, row = depth.words, dot.group, clamped_row(m)
    of_data, of_weight = dot.zero_points(attrs, str(data.dtype))
    copied = None
    if config["copied"] != _IN_PLACE:

        def number(*place: Any) -> Any:
            *b, block, step, i, t = place
            column = step * (words * group) + t
            found = data[(*b, row(block * rows + i), column)]
            if str(data.dtype) != dot.kept:
                found = tirx.reinterpret(dot.kept, found)
            return zero_beyond(found, column, int(k), depth.total * group)

        blocks = (m + rows - 1) // rows
        copied = compute_stage("copied", (*data.shape[:-2], blocks, depth.steps, rows, words * group), number)
    r, t = te.reduce_axis((0, depth.total), name="r"), te.reduce_axis((0, group), name="t")

    def term(*place: Any) -> Any:
        *b, i, j = place
        if copied is None:
            read = data[(*entry_of(data, b), i, r * group + t)].astype(dot.sums)
        else:
            read = dot.number(copied[(*entry_of(data, b), i // rows, r // words, i % rows, r % words * group + t)])
        packed = weight[(*entry_of(weight, b), j // width, r, j % width, t)]
        return te.sum(read * dot.number(packed), axis=[r, t])

    tiles = compute_stage("tiles", (*batch, round_up(m, rows), round_up(n, width)), term)
    share = row_sums = None
    if of_data:
        share = compute_stage(
            "share", (round_up(n, width),),
            lambda j: of_data * sum_of_row(weight, j, depth.total, width, group),
        )
    if of_weight:
        row_sums = row_sums_of(data, of_data, dot.sums)

    def less_zeros(i: Any, j: Any) -> Any:
        found = tiles[i, j]
        if share is not None:
            found = found - share[j]
        return found - of_weight * row_sums[row(i)] if row_sums is not None else found

    return compute_stage("total", tiles.shape, less_zeros) if of_data or of_weight else tiles


def schedule_product(
    sch: Any, stages: dict[str, Any], output: Any, dot: Dot, depth: Depth, config: Config, *, summed: bool, m: Any,
    in_place: tuple[str, int],
) -> None:
    """Schedule the stages of `product`, and its output [..., m, n].

    Args:
        summed: panels end with the sums of the weight's rows.
        in_place: dtype of the data where they are not copied, and the words from one row to the next.
    """
    from tvm import tirx

    tiles = stages["tiles"]
    rows, width = integer(config, "rows"), integer(config, "width")
    for name in ("sums", "panels", "row_sums"):
        if name in stages:
            outer = sch.get_loops(stages[name])
            sch.parallel(sch.fuse(*outer[:2]) if name == "panels" else outer[0])
    parts = integer(config, "parts") if "parts" in config else 1
    anchor = stages.get("total", tiles)
    *batch, i, j = sch.get_loops(anchor)[: None if "total" in stages else -2]
    m_tasks, n_block = integer(config, "m_tasks"), integer(config, "n_block")
    order: Sequence[Any]
    part = None
    if parts == 1:
        m_task, row_tile, row = sch.split(i, [m_tasks, None, rows])
        n_task, panel, column = sch.split(j, [None, n_block, width])
        order = (panel, row_tile) if config["inner"] == "rows" else (row_tile, panel)
        sch.reorder(*batch, n_task, m_task, *order, row, column)
        sch.set_scope(tiles, 0, "local")
        place = order[1]
    else:
        m_task, i = sch.split(i, [m_tasks, None])
        n_task, j = sch.split(j, [None, n_block * width])
        sch.reorder(*batch, n_task, m_task, i, j)
        place = m_task
    sch.reverse_compute_at(output, place, preserve_unit_loops=True)
    if "total" in stages:
        sch.compute_at(tiles, place, preserve_unit_loops=True)
    if "share" in stages:
        sch.set_scope(stages["share"], 0, "local")
        sch.compute_at(stages["share"], place, preserve_unit_loops=True)
        sch.split(sch.get_loops(stages["share"])[-1], [None, width])
        vectorize(sch, sch.get_loops(stages["share"])[-1], dot.lanes)
    if "total" in stages:
        sch.compute_inline(anchor)
    if parts > 1:
        part, *order = _split_depth(sch, tiles, output, parts, config)
    task = sch.fuse(*batch, n_task, m_task)
    sch.parallel(task)
    vectorize(sch, sch.get_loops(output)[-1], dot.lanes)
    if "copied" in stages:
        _schedule_copy(sch, stages["copied"], task, order[0], config)
    blocks = 1
    if config["inner"] == "rows" and isinstance(m, int | tirx.IntImm):
        blocks = -(-int(m) // rows) // integer(config, "m_tasks")
    dtype, row_words = (dot.kept, depth.words) if "copied" in stages else in_place
    block = Block(
        dot, rows, width, depth.steps // parts, depth.words,
        row_words=row_words,
        step_words=(rows if "copied" in stages else 1) * depth.words,
        panel_words=(depth.total + summed) * width,
        ahead=lines_ahead(width, depth.words, blocks) if config["ahead"] else 0,
        adds=parts > 1,
    )
    use_tiles(sch, tiles, block, dtype, task, order[1] if blocks > 1 else None, part)


def _split_depth(sch: Any, tiles: Any, output: Any, parts: int, config: Config) -> tuple[Any, Any, Any]:
    """Add up a task's sums part by part of k; return the loop over parts, and both over blocks.

    The sums are in memory of the task, those of a block side by side.
    """
    rows, width = integer(config, "rows"), integer(config, "width")
    *_, i, j, words, number = sch.get_loops(tiles)
    row_tile, row = sch.split(i, [None, rows])
    panel, column = sch.split(j, [None, width])
    part, words = sch.split(words, [parts, None])
    order = (panel, row_tile) if config["inner"] == "rows" else (row_tile, panel)
    sch.reorder(part, *order, row, column, words, number)
    sch.split(sch.get_loops(output)[-1], [None, width])
    sch.transform_layout(tiles, ("write", 0), lambda *at: (
        *at[:-2], at[-2] // rows, at[-1] // width, at[-2] % rows, at[-1] % width
    ))
    return part, *order


def _schedule_copy(sch: Any, copied: Any, task: Any, outer: Any, config: Config) -> None:
    """Copy the data before all tasks, or what a task needs of them as early as it is known."""
    if config["copied"] == _BY_TASK:
        sch.compute_at(copied, task if config["inner"] == "rows" else outer, preserve_unit_loops=True)
    *_, steps, row, numbers = sch.get_loops(copied)
    sch.reorder(row, steps)
    sch.vectorize(numbers)
    if config["copied"] == _BEFORE:
        sch.parallel(sch.fuse(*sch.get_loops(copied)[:-2]))
