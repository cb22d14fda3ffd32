"""`grouped_dense_amx.cpu`: bfloat16 by AMX, in blocks of tiles; each weight packed as for `dense_amx.cpu`.

The data are copied once, before all tasks: rows are whole tiles, beside zeros, and a line longer than those, so that
not all rows of a tile are in the same set of the first level. Behind the last row is room for a block. So a block may
begin at any row: of those behind its group the sums are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from strategy.attrs import Attrs
from strategy.cpu.amx import TASK
from strategy.cpu.amx_code import LANES, ROWS, WORDS, Block
from strategy.cpu.dot import Dot
from strategy.cpu.loop import allocate, fill, written
from strategy.cpu.tile import up_to, whole_blocks
from strategy.ops.dense.amx_product import Depth, best_block, fit_registers
from strategy.ops.dense.dot import packing
from strategy.ops.grouped_dense.loops import Loops, rows_of, task_knobs, usual_tasks
from strategy.schedule import integer, zero_beyond
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType

_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48)
_WIDTHS = (16, 32, 48, 64, 96)


def space(
    dot: Dot, attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The block, and the tasks."""
    m, n = inputs[0].shape[0], int(out_type.shape[1])

    def fallback() -> dict[str, Any]:
        # Groups of any size leave more of a higher block unused than it saves.
        rows = max(r for r in _ROWS if r <= min(rows_of(m), ROWS))
        _, _, width = best_block(rows, n, (rows,), _WIDTHS)
        return {"width": width, "rows": rows, **usual_tasks(m, -(-n // width), target)}

    return ConfigSpace(
        [
            up_to("width", _WIDTHS, n + LANES - 1, "layout"), up_to("rows", _ROWS, rows_of(m)),
            *task_knobs(m, -(-n // LANES)),
        ],
        [fit_registers(), whole_blocks(n, "width", "n_block")],
        fallback=fallback,
    )


def prepare(
    dot: Dot, attrs: Attrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weights are packed into panels [g, ceil(n / width), words, width, group]."""
    words = Depth.of(dot, int(inputs[0].shape[1])).total
    return {1: packing(dot, integer(config, "width"), words, is_transposed=True, summed=False)}


def compute(
    dot: Dot, attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The whole function as loops."""
    return written(lambda ins, out: _built(dot, ins, out, config), inputs, out_type, "grouped_dense")


def _built(dot: Dot, ins: Sequence[Any], out: Any, config: Config) -> Any:
    from tvm import tirx
    from tvm.ir import StringImm
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    data, weight, ends = ins
    m, k = data.shape[0], int(data.shape[1])
    rows, width = integer(config, "rows"), integer(config, "width")
    depth = Depth.of(dot, k)
    stride = (depth.total + WORDS) * dot.group  # numbers from one row to the next
    block = Block(
        dot, rows, width, depth.steps, depth.words, row_words=depth.total + WORDS, step_words=depth.words,
        panel_words=depth.total * width, ahead=0,
    )
    loops = Loops(out, ends, int(weight.shape[1]), width, LANES, dot.sums, config)

    def copied() -> Any:
        copy, side = allocate((m + rows) * stride, dot.kept, "global"), 2 * LANES
        with script.parallel(0, m) as i, script.serial(0, -(-k // side)) as part, script.vectorized(0, side) as lane:
            at = part * side + lane
            number = tirx.reinterpret(dot.kept, data[i, tirx.min(at, k - 1) if k % side else at])
            fill(copy, i * stride + at, zero_beyond(number, at, k, side))
        return copy

    with IRBuilder() as builder, ExitStack() as scope:
        scope.enter_context(script.attr(0, "pragma_import_llvm", StringImm(block.source)))
        copy = copied()

        def multiply(group: Any, panel: Any, begin: Any, end: Any) -> None:
            with script.serial(0, (end - begin + rows - 1) // rows) as tile:
                first = begin + tile * rows
                sums = allocate(rows * width, dot.sums)
                places = (copy[first * stride], weight[group, panel, 0, 0, 0], sums[0])
                script.evaluate(tirx.call_extern("int32", block.symbol, *map(tirx.address_of, places), 0))
                with script.serial(0, tirx.min(end - first, rows)) as i:
                    loops.each(1, lambda _, j: loops.store(panel, first + i, j, sums[i * width + j]))

        loops.run(multiply, {TASK: block.shape_symbol})
        scope.close()
        return builder.get()
