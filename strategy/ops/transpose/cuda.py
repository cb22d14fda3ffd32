"""transpose on NVIDIA's GPUs: tiles that pass through shared memory, so that reads and writes are coalesced.

Only where the axis along which the input lies is not the output's last: otherwise the plain schedule
reads and writes along memory as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.dlight import schedule_by
from strategy.cuda.limit import limits_of
from strategy.elementwise import inline_injective
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.ops.transpose.operator import TransposeAttrs, compute_transpose, order_of
from strategy.schedule import Outs, ScheduleError, integer, new_schedule
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_generic = get_registered_op("transpose").get_attr("FTVMStrategy")


def transpose_strategy_cuda(
    attrs: TransposeAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> OpStrategy:
    """The plain one of all targets, the tiled one, and TVM's own of matrices."""
    strategy: OpStrategy = _generic.default(attrs, inputs, out_type, target)
    order = order_of(attrs, inputs[0].ndim)
    if inputs[0].is_empty:
        return strategy
    if order == (1, 0):
        strategy.add_implementation(
            compute_transpose, schedule_by("Transpose"), "transpose_dlight.cuda", 5
        )
    if inputs[0].is_constant and order and order[-1] != len(order) - 1:
        strategy.add_implementation(
            compute, schedule, "transpose_tiled.cuda", 12, space=space, symbolic=False
        )
    return strategy


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """The side of a tile, and how many of its rows are copied at a time."""
    return ConfigSpace(
        [Knob("tile", [8, 16, 32, 64]), Knob("rows", [1, 2, 4, 8, 16, 32])],
        [
            knob("rows") <= knob("tile"),
            knob("rows") * knob("tile") >= 32,
            knob("rows") * knob("tile") <= limits_of(target).threads,
        ],
        fallback={"tile": 32, "rows": 8},
    )


def compute(
    attrs: TransposeAttrs, inputs: Sequence[Any], out_type: Type, config: Config
) -> list[Any]:
    """The same on all targets."""
    return compute_transpose(attrs, inputs, out_type)


def schedule(attrs: TransposeAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """A block of threads reads a tile along the input's rows and writes it along the output's."""
    sch = new_schedule(outs)
    blocks = inline_injective(sch)
    data = outs.args[0]
    order = order_of(attrs, len(data.shape))
    reads = [str(region.source.name) for region in sch.get(blocks[-1]).reads]
    if len(blocks) != 1 or data.name not in reads:
        raise ScheduleError("a tiled transpose takes an epilogue that is elementwise, and no other")
    tile, rows = integer(config, "tile"), integer(config, "rows")
    (output,) = blocks
    copied = sch.cache_read(output, reads.index(data.name), "shared")
    loops = sch.get_loops(output)
    of_input, of_output = order.index(len(order) - 1), len(order) - 1
    outer_y, y = sch.split(loops[of_input], [None, tile])
    outer_x, x = sch.split(loops[of_output], [None, tile])
    rest = [loop for i, loop in enumerate(loops) if i not in (of_input, of_output)]
    sch.reorder(*rest, outer_y, outer_x, y, x)
    block = sch.fuse(*rest, outer_y, outer_x)
    sch.bind(block, "blockIdx.x")
    sch.compute_at(copied, block, preserve_unit_loops=True)
    _, *inner = sch.get_loops(copied)
    along, across = inner[-1], inner[order[-1]]
    sch.reorder(across, along)
    for slow, fast in ((y, x), (across, along)):
        _, thread_y = sch.split(slow, [None, rows])
        sch.bind(thread_y, "threadIdx.y")
        _, thread_x = sch.split(fast, [None, tile])
        sch.bind(thread_x, "threadIdx.x")
    # Neighbours of a column of the tile lie in different banks.
    sch.storage_align(copied, 0, order[-1], 32, 1)
    return sch


_generic.register(["cuda", "gpu"], transpose_strategy_cuda)
