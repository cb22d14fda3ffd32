"""transpose: the axes in another order.

Where the last axis stays, `elementwise.cpu` copies rows. Where it moves, `transpose_tile.cpu` reads a tile
along the input's memory into vector registers and writes it along the output's: LLVM makes shuffles of what
lies between.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from strategy.attrs import Attrs, field
from strategy.cpu.row import PARALLEL_BYTES
from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.op_strategy import OpStrategy
from strategy.pattern import (
    add_elementwise,
    register_cpu_implementations,
    register_injective_schedule,
)
from strategy.reference import widened
from strategy.schedule import (
    Outs,
    dtype_bytes,
    find_stages,
    integer,
    join_epilogue,
    lanes_of,
    new_schedule,
    stage,
)
from strategy.shape_func import register_shape_func
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.type_relation import normal_axes
from strategy.types import TensorType, Type


class TransposeAttrs(Attrs):
    """Attributes of transpose."""

    axes: tuple[int, ...] | None = field(None, "The input's axes in their new order; default: reversed")


def _order(attrs: TransposeAttrs, rank: int) -> tuple[int, ...]:
    if attrs.axes is None:
        return tuple(reversed(range(rank)))
    return tuple(a % rank for a in attrs.axes)


def transpose_rel(types: Sequence[Type], attrs: TransposeAttrs, reporter: TypeReporter) -> bool:
    """The input's extents in the new order."""
    data = reporter.tensor(0)
    if data is None:
        return False
    if attrs.axes is not None:
        reporter.check(len(attrs.axes) == data.ndim, 0, f"axes {attrs.axes} do not name each axis once")
        normal_axes(reporter, 0, attrs.axes, data.ndim)
    shape = [data.shape[a] for a in _order(attrs, data.ndim)]
    reporter.assign(1, TensorType(shape, data.dtype))
    return True


(
    register_op("transpose")
    .describe("The axes in another order.")
    .add_argument("data", "Tensor", "The input tensor.")
    .set_attrs_type(TransposeAttrs)
    .set_support_level(3)
    .add_type_rel("Transpose", transpose_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,3,19]"}, {"axes": [2, 0, 1]})
    .example({"data": "float32[5,19]"})
    .example({"data": "float32[16,5]"})
)


@register_compute("transpose")
def compute_transpose(attrs: TransposeAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return [topi.transpose(inputs[0], _order(attrs, len(inputs[0].shape)))]


@register_reference("transpose")
def reference_transpose(attrs: TransposeAttrs, inputs: Sequence[Any]) -> Any:
    return widened(inputs[0]).transpose(attrs.axes)


@register_shape_func("transpose", False)
def transpose_shape_func(attrs: TransposeAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [tuple(inputs[0][a] for a in _order(attrs, len(inputs[0])))]


register_injective_schedule("transpose")


_TILES = (4, 8, 16)
_BLOCKS = (1, 2, 4, 8, 16, 32)
_DTYPES = frozenset({"float32", "float64", "int32", "int64"})


def tile_space(attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """Extents of a tile, how many tiles are next to each other in one direction, and which."""
    columns = int(out_type.shape[-1])
    parallel = out_type.size * dtype_bytes(out_type.dtype) >= PARALLEL_BYTES
    return _tile_space(columns, lanes_of(target, out_type.dtype), target.threads > 1 and parallel)


@lru_cache(maxsize=1024)
def _tile_space(columns: int, lanes: int, parallel: bool) -> ConfigSpace:
    widths = tuple(t for t in _TILES if columns % t == 0)
    fallback = {
        "rows": min(8, lanes), "columns": max(w for w in widths if w <= max(lanes, 4)),
        "block": 4, "along": "rows", "parallel": parallel,
    }  # fmt: skip
    return ConfigSpace(
        [
            Knob("rows", _TILES),
            Knob("columns", widths),
            Knob("block", _BLOCKS),
            Knob("along", ("rows", "columns")),
            Knob("parallel", (False, True)),
        ],
        fallback=fallback,
    )


def compute_transpose_tile(
    attrs: TransposeAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """Tiles [..., rows, columns] of the output, kept as they are read: columns first."""
    from tvm import te, tirx

    data = inputs[0]
    order = _order(attrs, len(data.shape))
    rank, shape = len(order), [int(d) for d in out_type.shape]
    along = order.index(rank - 1)  # the output's axis along which the input lies in memory
    rows, columns = integer(config, "rows"), integer(config, "columns")
    outer = [i for i in range(rank - 1) if i != along]

    def read(*index: Any) -> Any:
        *place, row_tile, column_tile, column, row = index
        at: list[Any] = [None] * rank
        for axis, value in zip(outer, place, strict=True):
            at[order[axis]] = value
        at[rank - 1] = row_tile * rows + row
        at[order[-1]] = column_tile * columns + column
        if shape[along] % rows == 0:
            return data(*at)
        return tirx.if_then_else(at[rank - 1] < shape[along], data(*at), tirx.const(0, data.dtype))

    extents = [*(shape[i] for i in outer), -(-shape[along] // rows), shape[-1] // columns, columns, rows]
    tiles = te.compute(extents, read, name="tiles", attrs=stage("tiles"))

    def turned(*index: Any) -> Any:
        row, column = index[along], index[-1]
        place = [index[i] for i in outer]
        return tiles(*place, row // rows, column // columns, column % columns, row % rows)

    return [te.compute(shape, turned, name="transpose")]


def schedule_transpose_tile(attrs: TransposeAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Blocks of tiles, which share cache lines in one direction; each tile within registers."""
    sch = new_schedule(outs)
    tiles = find_stages(sch)["tiles"]
    output = join_epilogue(sch)
    sch.set_scope(tiles, 0, "local")
    loops = sch.get_loops(output)
    along = _order(attrs, len(loops)).index(len(loops) - 1)
    outer = [loop for i, loop in enumerate(loops[:-1]) if i != along]
    row_tile, row = sch.split(loops[along], [None, integer(config, "rows")])
    column_tile, column = sch.split(loops[-1], [None, integer(config, "columns")])
    first, second = (column_tile, row_tile) if config["along"] == "rows" else (row_tile, column_tile)
    block, tile = sch.split(second, [None, integer(config, "block")])
    sch.reorder(*outer, block, first, tile, row, column)
    sch.compute_at(tiles, tile, preserve_unit_loops=True)
    if config["parallel"]:
        sch.parallel(sch.fuse(*outer, block, first))
    *_, tile_column, tile_row = sch.get_loops(tiles)
    sch.unroll(tile_column)
    sch.vectorize(tile_row)
    sch.unroll(row)
    sch.vectorize(column)
    return sch


def _add_tile(strategy: OpStrategy, attrs: Any, inputs: Any, out_type: Any, target: Target) -> None:
    order = _order(attrs, out_type.ndim)
    if not out_type.ndim or order[-1] == out_type.ndim - 1:
        add_elementwise(strategy, attrs, inputs, out_type, target)  # rows stay as they are
        return
    known = all(d.is_constant and int(d) >= 1 for d in out_type.shape)
    if known and out_type.dtype in _DTYPES and int(out_type.shape[-1]) % _TILES[0] == 0:
        strategy.add_implementation(
            compute_transpose_tile, schedule_transpose_tile, "transpose_tile.cpu", 12,
            space=tile_space, symbolic=False,
        )  # fmt: skip


register_cpu_implementations("transpose", _add_tile)


@register_gradient("transpose")
def transpose_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad with the axes put back]."""
    assert isinstance(orig.attrs, TransposeAttrs)
    order = _order(orig.attrs, orig.args[0].tensor_type.ndim)
    return [transpose(grad, tuple(order.index(i) for i in range(len(order))))]


def transpose(data: Expr, axes: Sequence[int] | None = None) -> Expr:
    """Put the axes in another order.

    Args:
        data: the input tensor.
        axes: the input's axes in their new order; default: reversed.
    """
    return call("transpose", data, axes=None if axes is None else tuple(axes))
