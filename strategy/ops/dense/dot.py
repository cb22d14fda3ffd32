"""`dense_dot.cpu`, `qdense_dot.cpu`, `batch_matmul_dot.cpu`: products by dot-product instructions.

As `dense_pack.cpu`, with a weight packed for the instruction: [panel, k / group, width, group], where a group is the
neighbours along k that a lane takes at a time. `dense_mmla.cpu` and `qdense_mmla.cpu` are the same by Arm's matrix
instructions, which also take copied data: [m / 2, k / group, 2, group].

A zero point of the data, and what the instruction adds to it, is taken off by the sums of the weight's rows, whose
bytes are one step more of k in the packed weight; one of the weight, by the sums of the data's rows.
"""
# Over 300 lines: one product, whose space, packing and schedule share its panels.

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from strategy.attrs import Attrs
from strategy.condition import ceildiv
from strategy.cpu.ahead import fits_ahead, prefetch_panels
from strategy.cpu.dot import Dot, find_dot, use_dot
from strategy.cpu.matrices import find_matrix, paired, schedule_matrices
from strategy.cpu.tile import (
    ALWAYS,
    Extents,
    accumulators,
    block_knob,
    clamped_row,
    largest_divisor,
    one_order,
    round_up,
    up_to,
    whole_blocks,
)
from strategy.op_strategy import OpStrategy
from strategy.ops.dense.dot_tile import fit_registers, heights, usual_tile, widths
from strategy.schedule import (
    Outs,
    compute_stage,
    dtype_bytes,
    integer,
    start_schedule,
    store_tile,
    unroll_tile,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 21, 24, 32, 48, 64)
_UNROLL = (1, 2, 4, 8)
_INNER = Knob("inner", ["rows", "panels"])
_KEPT = 0.7  # of the second level, that a panel may fill: tiles of rows read a larger one from the last level each
_AHEAD = Knob("ahead", [False, True])


def dot_of(inputs: Sequence[TensorType], target: Target) -> Dot | None:
    """The target's instruction for these dtypes; None without one, or if k is not whole groups."""
    dot, k = find_dot(target, inputs[1].dtype), inputs[0].shape[-1]
    known = k.is_constant and all(d.is_constant for d in inputs[1].shape)
    return dot if dot is not None and known and int(k) % dot.group == 0 else None


def matrix_of(inputs: Sequence[TensorType], target: Target) -> Dot | None:
    """The target's matrix instruction for these dtypes; any k will do, as the data are copied."""
    data, weight = inputs
    known = all(d.is_constant for d in (data.shape[-1], *weight.shape))
    return find_matrix(target, data.dtype, weight.dtype) if known else None


def add_matrix(strategy: OpStrategy, inputs: Sequence[TensorType], name: str, target: Target) -> None:
    """Add the implementation by a matrix instruction, chosen untuned for more than one row."""
    if (matrix := matrix_of(inputs, target)) is not None:
        is_row = (inputs[0].shape[0] == 1).decide()  # half of each product would be of no row
        add(strategy, matrix, name, 13 if is_row else 16)


def add(strategy: OpStrategy, dot: Dot, name: str, plevel: int) -> None:
    """Add the implementation by an instruction to a strategy."""
    strategy.add_implementation(
        partial(compute, dot), partial(schedule, dot), name, plevel, version=3 if dot.rows == 1 else 1,
        space=partial(space, dot), prepare=partial(prepare, dot),
    )


def space(
    dot: Dot, attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile, unrolling, how tiles are grouped into tasks, and prefetching, as in `dense_pack.cpu`.

    Tiles of a matrix instruction prefetch nothing.
    """
    *batch, m, n = out_type.shape
    extents, lanes = Extents(m, int(n), int(inputs[0].shape[-1])), dot.lanes
    steps, of_rows = -(-extents.k // dot.group), dot.rows == 1

    def fallback() -> dict[str, Any]:
        size = dtype_bytes(dot.packed)
        rows, width = usual_tile(dot, extents.rows, extents.n, target)
        kept = int(_KEPT * target.l2_bytes) // (extents.k * size * lanes) * lanes
        if of_rows and rows < extents.rows and lanes < kept < width:
            rows, width = usual_tile(dot, extents.rows, kept, target)
        tiles = -(-extents.rows // rows)
        split_rows = -(-extents.n // width) < target.threads and extents.m.is_constant
        m_tasks = largest_divisor(_BLOCKS, tiles, target.threads) if split_rows else 1
        # Those of a batch are mostly computed just before: few of them are still in the second level.
        is_near = len(batch) > 0 and inputs[1].size * size < target.l2_bytes // 2
        # A single tile would bring as much as it reads.
        ahead = tiles > m_tasks and not is_near and fits_ahead(extents.k * width * size, target)
        return {
            "rows": rows,
            "width": width,
            "unroll": largest_divisor(_UNROLL, steps, 4),
            "n_block": 1,
            "m_tasks": m_tasks,
            "inner": "rows",
            **({"ahead": ahead} if of_rows else {}),
        }

    high = up_to("rows", heights(dot), 2 * extents.rows)
    wide = up_to("width", widths(dot, target), extents.n + lanes - 1, "layout")
    m_tasks = block_knob("m_tasks", _BLOCKS, int(extents.m), high) if extents.m.is_constant else Knob("m_tasks", [1])
    constraints = [
        fit_registers(dot, target),
        whole_blocks(extents.n, "width", "n_block"),
    ]
    if extents.m.is_constant:
        constraints.append(whole_blocks(int(extents.m), "rows", "m_tasks"))
        row_tiles = ceildiv(int(extents.m), knob("rows")) // knob("m_tasks")
        idle = {"inner": one_order(knob("n_block"), row_tiles, ahead=of_rows)}
    else:
        idle = {"inner": knob("n_block") == 1, **({"ahead": ALWAYS} if of_rows else {})}
    return ConfigSpace(
        [
            wide,
            high,
            Knob("unroll", [u for u in _UNROLL if steps % u == 0]),
            block_knob("n_block", _BLOCKS, extents.n, wide),
            m_tasks,
            _INNER,
            *([_AHEAD] if of_rows else []),
        ],
        constraints,
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
        idle=idle,
    )


def prepare(
    dot: Dot, attrs: Attrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into panels [ceil(n / width), k / group, width, group], with its rows' sums if integers.

    Those of a batch into panels of each entry.
    """
    is_transposed = getattr(attrs, "transpose_b", True)
    words = -(-int(inputs[0].shape[-1]) // dot.group)
    return {1: packing(dot, integer(config, "width"), words, is_transposed=is_transposed, summed=dot.sums == "int32")}


def packing(
    dot: Dot, width: int, words: int | None = None, *, is_transposed: bool, summed: bool
) -> Callable[[Any], Any]:
    """The packing of a weight, or of those of a batch, into panels [ceil(n / width), words, width, group].

    Args:
        words: of a row of a panel, zeros behind k; default: k / group.
        is_transposed: the weight is [n, k], not [k, n].
        summed: the bytes of its rows' sums are one word more; without a batch only.
    """
    group = dot.group

    def pack(weight: Any) -> Any:
        from tvm import te, tirx

        *batch, n, k = (int(extent) for extent in weight.shape)
        if not is_transposed:
            n, k = k, n
        steps = words or k // group

        def number(*place: Any) -> Any:
            *entry, panel, step, lane, neighbour = place
            column, row = panel * width + lane, step * group + neighbour
            read = dot.pack(weight[(*entry, column, row) if is_transposed else (*entry, row, column)])
            return zero_beyond(zero_beyond(read, row, k, steps * group), column, n, width)

        if not summed:
            shape = (*batch, -(-n // width), steps, width, group)
            return compute_stage("panels", shape, number)
        r = te.reduce_axis((0, k), name="r")
        sums = compute_stage("sums", (n,), lambda j: te.sum(dot.pack(weight[j, r]).astype("int32"), axis=r))

        def number_or_byte(panel: Any, step: Any, lane: Any, place: Any) -> Any:
            flat = lane * group + place  # the bytes of a number are `width` apart
            column = panel * width + flat % width
            byte = zero_beyond((sums[column] >> (flat // width % 4 * 8)).astype(dot.packed), column, n, width)
            return tirx.if_then_else(step < steps, number(panel, step, lane, place), byte)

        shape = (-(-n // width), steps + 1, width, group)
        return compute_stage("panels", shape, number_or_byte)

    return pack


def sum_of_row(packed: Any, j: Any, words: int, width: int, group: int) -> Any:
    """The sum of row j of a weight, from the bytes in its panel."""

    def byte(place: int) -> Any:
        flat = place * width + j % width
        return packed[j // width, words, flat // group, flat % group].astype("uint8").astype("int32") << place * 8

    return sum((byte(place) for place in range(1, 4)), byte(0))


def entry_of(tensor: Any, place: Sequence[Any]) -> list[Any]:
    """The entry of a batch; the only one is used for all."""
    return [0 if int(extent) == 1 else b for extent, b in zip(tensor.shape, place, strict=False)]


def row_sums_of(data: Any, zero: int, sums: str) -> Any:
    """The sums of the data's rows, less a zero point."""
    from tvm import te

    m, k = data.shape
    c = te.reduce_axis((0, k), name="c")
    return compute_stage("row_sums", (m,), lambda i: te.sum(data[i, c].astype(sums) - zero, axis=c))


def compute(
    dot: Dot, attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The product over whole tiles, and its part within m × n, less the zero point's share."""
    from tvm import te

    data, weight = inputs
    m, k = data.shape[-2:]
    batch = [int(extent) for extent in out_type.shape[:-2]]
    n, steps, group = int(out_type.shape[-1]), -(-int(k) // dot.group), dot.group
    rows, width = integer(config, "rows"), integer(config, "width")
    row, shift = clamped_row(m), dot.shift(str(data.dtype))
    of_data, of_weight = dot.zero_points(attrs, str(data.dtype))
    r, t = te.reduce_axis((0, steps), name="r"), te.reduce_axis((0, group), name="t")
    pairs = paired(dot, data, round_up(m, rows), steps) if dot.rows > 1 else None

    def term(*place: Any) -> Any:
        *b, i, j = place
        if pairs is not None:
            number = dot.number(pairs[i // dot.rows, r, i % dot.rows, t])
        else:
            number = data[(*entry_of(data, b), row(i), r * group + t)].astype(dot.sums)
        number = number + shift if shift else number
        packed = weight[(*entry_of(weight, b), j // width, r, j % width, t)]
        return te.sum(number * dot.number(packed), axis=[r, t])

    shape = (*batch, round_up(m, rows), round_up(n, width))
    tiles = compute_stage("tiles", shape, term)

    total, row_sums = tiles, None
    if of_weight:
        row_sums = row_sums_of(data, of_data - shift, dot.sums)

    def less_zeros(i: Any, j: Any) -> Any:
        found = tiles[i, j]
        if of_data:
            found = found - of_data * sum_of_row(weight, j, steps, width, group)
        return found - of_weight * row_sums[row(i)] if row_sums is not None else found

    if of_data or of_weight:
        total = compute_stage("total", tiles.shape, less_zeros)
    return [te.compute((*batch, m, n), lambda *i: total(*i).astype(out_type.dtype), name="dense")]


def schedule(dot: Dot, attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of panels × rows in parallel; in each, one register tile after the other."""
    from tvm import tirx

    sch, stages, output = start_schedule(outs)
    tiles = stages["tiles"]
    for name in ("sums", "panels", "row_sums", "pairs"):
        if name in stages:
            outer = sch.get_loops(stages[name])
            sch.parallel(sch.fuse(*outer[:2]) if name == "panels" else outer[0])
    if "pairs" in stages:
        sch.vectorize(sch.get_loops(stages["pairs"])[-1])
    anchor = stages.get("total", tiles)
    for block in dict.fromkeys((tiles, anchor)):
        sch.set_scope(block, 0, "local")
    sums = sch.get_loops(anchor)[-2:] if anchor is tiles else []
    *batch, i, j = sch.get_loops(anchor)[: -2 if sums else None]
    m_task, row_tile, rows = sch.split(i, [integer(config, "m_tasks"), None, integer(config, "rows")])
    n_task, panel, columns = sch.split(j, [None, integer(config, "n_block"), integer(config, "width")])
    order = (panel, row_tile) if config["inner"] == "rows" else (row_tile, panel)
    sch.reorder(*batch, n_task, m_task, *order, rows, columns, *sums)
    sch.reverse_compute_at(output, order[1], preserve_unit_loops=True)
    if anchor is not tiles:
        sch.compute_at(tiles, order[1], preserve_unit_loops=True)
    task = sch.fuse(*batch, n_task, m_task)
    sch.parallel(task)
    for block in (output,) if anchor is tiles else (output, anchor):
        store_tile(sch, block, dot.lanes)
    if dot.rows > 1:
        schedule_matrices(sch, dot, tiles, task, 1, integer(config, "unroll"))
        return sch
    rows, columns, steps, group = sch.get_loops(tiles)[-4:]
    vectors, lane = sch.split(columns, [None, dot.lanes])
    outer, inner = sch.split(steps, [None, integer(config, "unroll")])
    sch.reorder(outer, inner, rows, vectors, lane, group)
    for loop in (inner, rows, vectors):
        sch.unroll(loop)
    unroll_tile(sch, sch.decompose_reduction(tiles, outer))
    data = outs.args[0]
    *_, m, k = data.shape
    if config["ahead"] and isinstance(m, tirx.IntImm):
        count = -(-int(m) // integer(config, "rows")) // integer(config, "m_tasks")
        step = integer(config, "width") * dot.group
        panel_steps = int(k) // dot.group + (dot.sums == "int32")  # that of the sums, too
        prefetch_panels(
            sch, order[1], outer, panel=panel_steps * step, step=integer(config, "unroll") * step,
            tiles=count if config["inner"] == "rows" else 1, dtype=str(outs.args[1].dtype),
        )
    use_dot(sch, dot, str(data.dtype), task, lane)
    return sch
