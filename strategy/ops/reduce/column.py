"""`reduce_column.cpu`: reductions over axes before the last, whose sums lie next to each other.

A vector adds up neighbours, step by step from one row of memory to the next; several of them together
read whole cache lines in order, and their sums stay in registers. Rows may be taken in several parts, so
that few columns are shared out among threads too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from strategy.cpu.row import PARALLEL_BYTES, reader, reduction, reduction_accumulator
from strategy.cpu.tile import round_up
from strategy.op_strategy import OpStrategy
from strategy.ops.reduce.operator import ReduceAttrs, reduced_axes
from strategy.pattern import register_cpu_implementations
from strategy.schedule import (
    Outs,
    compute_stage,
    integer,
    lanes_of,
    start_schedule,
    sum_in_tile,
    vectorize,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64", "int32", "int64"})
_VECTORS = (1, 2, 3, 4, 6, 8, 12, 16)


def _split(attrs: ReduceAttrs, shape: Sequence[Any]) -> tuple[list[int], list[int], list[int]]:
    """The extents before those that are reduced, these, and those behind."""
    axes = reduced_axes(attrs, len(shape))
    extents = [int(d) for d in shape]
    return extents[: axes[0]], extents[axes[0] : axes[-1] + 1], extents[axes[-1] + 1 :]


def space(attrs: ReduceAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target) -> ConfigSpace:
    """Lanes and vectors of a block of columns, unrolling, parts of the rows, and threads or none."""
    count, rows, columns = (math.prod(e) for e in _split(attrs, inputs[0].shape))
    full = lanes_of(target, reduction_accumulator(inputs[0].dtype))
    parallel = inputs[0].size * (target.vector_bytes // full) >= PARALLEL_BYTES
    return _space(count, rows, columns, full, target.vector_registers, target.threads if parallel else 1)


@lru_cache(maxsize=1024)
def _space(count: int, rows: int, columns: int, full: int, registers: int, threads: int) -> ConfigSpace:
    lanes = tuple(x for x in (full // 4, full // 2, full) if x >= 1)
    vectors = tuple(v for v in _VECTORS if (v - 1) * lanes[0] < columns)
    parts = tuple(p for p in (1, 2, 4, 8, 16) if rows % p == 0)

    def fallback() -> dict[str, Any]:
        wide = [v for v in vectors if v < registers // 2 and (v - 1) * full < columns]
        shared = [v for v in wide if count * -(-columns // (v * full)) % threads == 0]
        alone = threads > 1 and not shared
        return {
            "lanes": full, "vectors": max(shared or wide), "unroll": 2,
            "parts": next((p for p in parts if p % threads == 0), 1) if alone else 1,
            "parallel": threads > 1,
        }

    return ConfigSpace(
        [
            Knob("lanes", lanes),
            Knob("vectors", vectors),
            Knob("unroll", (1, 2, 4, 8)),
            Knob("parts", parts),
            Knob("parallel", (False, True)),
        ],
        # The sums and a vector that is read fit the registers; beyond so many, code is only longer.
        [knob("vectors") < registers, knob("vectors") * knob("unroll") <= 2 * registers],
        derived={"width": knob("lanes") * knob("vectors")},
        fallback=fallback,
    )


def _place(flat: Any, extents: Sequence[int]) -> list[Any]:
    """The indices over `extents` of an element that a flat index names."""
    place: list[Any] = []
    for extent in reversed(extents):
        place.insert(0, flat % extent)
        flat = flat // extent
    return place


def _flat(place: Sequence[Any], extents: Sequence[int]) -> Any:
    """The opposite of `_place`."""
    from tvm import tirx

    flat: Any = tirx.const(0, "int64")
    for index, extent in zip(place, extents, strict=True):
        flat = flat * extent + index
    return flat


def _compute(name: str) -> Any:
    def compute(attrs: ReduceAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
        from tvm import te, tirx

        how, data = "sum" if name == "mean" else name, inputs[0]
        outer, reduced, inner = _split(attrs, data.shape)
        count, rows, columns = math.prod(outer), math.prod(reduced), math.prod(inner)
        dtype, parts = reduction_accumulator(str(data.dtype)), integer(config, "parts")
        width = integer(config, "lanes") * integer(config, "vectors")
        found, read = reduction(how), reader(data, dtype)
        step = te.reduce_axis((0, rows // parts), name="step")
        reducer = te.comm_reducer(found.combine, found.identity, name=how)

        def term(o: Any, part: Any, column: Any) -> Any:
            row = part * (rows // parts) + step
            value = read(*_place(o, outer), *_place(row, reduced), *_place(column, inner))
            if columns % width:
                value = tirx.if_then_else(column < columns, value, found.identity(dtype))
            return reducer(value, axis=step)

        shape = (count, parts, round_up(columns, width))
        tiles = compute_stage("tiles", shape, term)
        kept = compute_stage("kept", shape, lambda o, part, column: tiles[o, part, column])

        def result(*index: Any) -> Any:
            o, column = _columns(attrs, outer, inner, index)
            value = found.join([kept(o, p, column) for p in range(parts)])
            if name == "mean":
                value = value * tirx.const(1 / rows, dtype)
            return value.astype(out_type.dtype)

        return [te.compute(out_type.concrete_shape, result, name=name)]

    return compute


def _columns(attrs: ReduceAttrs, outer: Sequence[int], inner: Sequence[int], index: Sequence[Any]) -> list[Any]:
    """Flat indices before the reduced axes and behind them, of an index of the output."""
    return [_flat(index[: len(outer)], outer), _flat(index[len(index) - len(inner) :], inner)]


def schedule(attrs: ReduceAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Blocks of columns in parallel, each from the first row of its part to the last."""
    from tvm import tirx

    sch, stages, output = start_schedule(outs)
    tiles, kept = stages["tiles"], stages["kept"]
    lanes, width = integer(config, "lanes"), integer(config, "lanes") * integer(config, "vectors")
    outer, _, inner = _split(attrs, outs.args[0].shape)
    sch.transform_block_layout(
        output,
        tirx.IndexMap.from_func(
            lambda *i: _columns(attrs, outer, inner, i), ndim=len(outs.tensors[0].shape)
        ),
    )
    o, part, columns = sch.get_loops(kept)
    block, column = sch.split(columns, [None, width])
    block = sch.fuse(o, part, block)
    if config["parallel"]:
        sch.parallel(block)
    if integer(config, "parts") == 1:
        sch.reverse_compute_at(output, block, preserve_unit_loops=True)
    sch.compute_at(tiles, block, preserve_unit_loops=True)
    sch.set_scope(tiles, 0, "local")
    vectorize(sch, column, lanes)
    vectorize(sch, sch.get_loops(output)[-1], lanes)
    column, steps = sch.get_loops(tiles)[-2:]
    sum_in_tile(sch, tiles, sch.split(column, [None, lanes]), steps, integer(config, "unroll"))
    return sch


def _add(name: str) -> None:
    compute = _compute(name)

    def add(strategy: OpStrategy, attrs: Any, inputs: Sequence[TensorType], out_type: Type, target: Target) -> None:
        data = inputs[0]
        if data.dtype not in _DTYPES or not all(d.is_constant and int(d) >= 1 for d in data.shape):
            return
        axes = reduced_axes(attrs, data.ndim)
        if axes and axes[-1] < data.ndim - 1 and axes == tuple(range(axes[0], axes[-1] + 1)):
            strategy.add_implementation(
                compute, schedule, "reduce_column.cpu", 12, version=2, space=space, symbolic=False
            )

    register_cpu_implementations(name, add)


for _name in ("sum", "mean", "max", "min", "prod"):
    _add(_name)
