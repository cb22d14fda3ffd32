"""`gather_places.cpu`: the places of a part of a row by vectors, then its elements.

Places are kept as int32, from where LLVM reads the elements one by one, or by the processor's instruction for several:
to take places of int64 out of vectors takes longer. With an epilogue, which is computed by vectors, the schedule is
that of `injective.cpu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from strategy.cpu.row import PARALLEL_BYTES, constant_size
from strategy.op_strategy import OpStrategy
from strategy.ops.gather import GatherAttrs, place_of
from strategy.pattern import register_cpu_implementations, spread
from strategy.schedule import Outs, compute_stage, dtype_bytes, integer, lanes_of, start_schedule
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType

_NAME = "gather"
_BLOCKS = (16, 32, 64, 128, 256, 512)


def space(attrs: GatherAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """Elements of a row whose places are computed together, whole parts of it, and threads or none."""
    moved = sum(t.size * dtype_bytes(t.dtype) for t in (inputs[1], out_type))
    return _space(int(out_type.shape[-1]), target.threads if moved >= PARALLEL_BYTES else 1)


@lru_cache(maxsize=1024)
def _space(columns: int, threads: int) -> ConfigSpace:
    blocks = [b for b in _BLOCKS if columns % b == 0]
    return ConfigSpace(
        [Knob("block", blocks), Knob("parallel", (False, True))],
        fallback={"block": max(b for b in blocks if b <= 128), "parallel": threads > 1},
    )


def compute(attrs: GatherAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The places along the axis, and the elements there."""
    from tvm import te

    data, indices = inputs
    axis = attrs.axis % len(data.shape)
    places = compute_stage(
        "places", indices.shape, lambda *i: place_of(indices(*i), data.shape[axis]).astype("int32")
    )
    return [
        te.compute(indices.shape, lambda *i: data(*i[:axis], places(*i), *i[axis + 1 :]), name=_NAME)
    ]


def schedule(attrs: GatherAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Parts of rows, in each the places before the elements."""
    sch, stages, output = start_schedule(outs)
    if sch.get(output).name_hint != _NAME:
        sch.compute_inline(stages["places"])
        spread(sch, output, target)
        return sch
    *rows, columns = sch.get_loops(output)
    part, _ = sch.split(columns, [None, integer(config, "block")])
    sch.compute_at(stages["places"], part, preserve_unit_loops=True)
    sch.set_scope(stages["places"], 0, "local")
    _, vector = sch.split(sch.get_loops(stages["places"])[-1], [None, lanes_of(target, "int32")])
    sch.vectorize(vector)
    if config["parallel"]:
        sch.parallel(sch.fuse(*rows, part))
    return sch


def _add(
    strategy: OpStrategy, attrs: GatherAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> None:
    data, _ = inputs
    size, columns = constant_size(out_type.shape), out_type.shape[-1]
    along = data.shape[attrs.axis]
    known = size and along.is_constant and int(along) < 1 << 31 and constant_size(data.shape)
    if known and int(columns) % _BLOCKS[0] == 0:
        strategy.add_implementation(compute, schedule, "gather_places.cpu", 12, space=space, symbolic=False)


register_cpu_implementations("gather", _add)
