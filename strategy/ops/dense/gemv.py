"""`dense_gemv.cpu`: one row, bound by reading the weight once.

The weight is packed into wide panels that are read sequentially. Consecutive steps of k are summed in `chains` sets
of accumulators, to hide the latency of additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any

from strategy.attrs import Attrs
from strategy.condition import Clause
from strategy.cpu.tile import Extents, round_up, schedule_tile, up_to, usual_unroll, whole_blocks
from strategy.schedule import (
    Outs,
    ScheduleError,
    accumulator,
    compute_stage,
    integer,
    lanes_of,
    pack_by_vectors,
    start_schedule,
    vectorize,
)
from strategy.space import Config, ConfigSpace, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_VECTORS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
_LANES_FIT = knob("lanes") <= knob("width")
_DERIVED = {"accumulators": knob("chains") * (knob("width") // knob("lanes"))}


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Width of a panel, width of a vector, chains of sums, unrolling, and panels per task."""
    extents = Extents.of(inputs)
    full = lanes_of(target, accumulator(inputs[0].dtype))
    chains = tuple([c for c in (1, 2, 4, 8) if extents.k % c == 0])
    lanes = tuple([x for x in (full // 4, full // 2, full) if x >= 1])
    widths = (*lanes[:-1], *(v * full for v in _VECTORS))

    def fallback() -> dict[str, Any]:
        vectors = max((v for v in (1, 2, 4, 8) if v * full * target.threads <= extents.n), default=1)
        sums = max(c for c in chains if c * vectors <= 8)
        return {
            "width": vectors * full,
            "lanes": full,
            "chains": sums,
            "unroll": usual_unroll(extents.k // sums),
            "n_block": 1,
        }

    return ConfigSpace(
        [
            # The last panel may reach beyond n.
            up_to("width", widths, extents.n + full - 1, "layout"),
            up_to("lanes", lanes, full),
            up_to("chains", chains, chains[-1]),
            up_to("unroll", (1, 2, 4, 8), extents.k),
            up_to("n_block", _BLOCKS, -(-extents.n // lanes[0])),
        ],
        [
            _LANES_FIT,
            _register_constraint(target.vector_registers),
            _step_constraint(extents.k),
            whole_blocks(extents.n, "width", "n_block"),
        ],
        derived=_DERIVED,
        fallback=fallback,
    )


@lru_cache(maxsize=256)
def _register_constraint(registers: int) -> Clause:
    """The sums, one vector of weights and one broadcast number fit the vector registers."""
    return _DERIVED["accumulators"] + 2 <= registers


@lru_cache(maxsize=1024)
def _step_constraint(k: int) -> Clause:
    """The steps unrolled are no more than there are."""
    return knob("unroll") * knob("chains") <= k


def compute(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """One sum per chain, and their sum."""
    from tvm import te, tirx

    data, weight = inputs
    m, k = data.shape
    if not isinstance(m, tirx.IntImm) or int(m) != 1:
        raise ScheduleError(f"dense_gemv needs one row, but m is {m}")
    n, depth = int(out_type.shape[1]), int(k)
    width, chains = integer(config, "width"), integer(config, "chains")
    dtype = accumulator(data.dtype)
    r = te.reduce_axis((0, depth // chains), name="r")

    def product(chain: Any, j: Any) -> Any:
        step = r * chains + chain
        number = data[0, step].astype(dtype)
        return te.sum(number * weight[j // width, step, j % width].astype(dtype), axis=r)

    tiles = compute_stage("tiles", (chains, round_up(n, width)), product)

    total = compute_stage(
        "total", (1, round_up(n, width)),
        lambda i, j: reduce(lambda a, b: a + b, (tiles[c, j] for c in range(chains))),
    )
    return [te.compute((1, n), lambda i, j: total[i, j].astype(out_type.dtype), name="dense")]


def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of panels in parallel, each panel from its first step to its last."""
    sch, stages, output = start_schedule(outs)
    tiles, total = stages["tiles"], stages["total"]
    lanes = integer(config, "lanes")
    if "panels" in stages:
        pack_by_vectors(sch, stages["panels"], lanes_of(target, accumulator(outs.args[0].dtype)))
    for block in (tiles, total):
        sch.set_scope(block, 0, "local")
    row, j = sch.get_loops(total)
    task, panel, columns = sch.split(j, [None, integer(config, "n_block"), integer(config, "width")])
    sch.reorder(task, panel, row, columns)
    sch.reverse_compute_at(output, panel, preserve_unit_loops=True)
    sch.compute_at(tiles, panel, preserve_unit_loops=True)
    sch.parallel(task)
    vectorize(sch, sch.get_loops(output)[-1], lanes)
    chains, columns, steps = sch.get_loops(tiles)[-3:]
    schedule_tile(sch, tiles, total, (chains, columns, steps), lanes, integer(config, "unroll"))
    return sch
