"""`attention_tile.cpu`: queries side by side in vectors, and keys in turn, without scores in memory.

A task takes the queries of some vectors. Scores of a block of keys are computed in register tiles of keys × queries,
where each number of a key is broadcast; so are the sums of values, of columns × queries. Reductions over keys are
then additions of vectors. The largest score and the sum of powers are those of the keys so far: what was summed
is scaled when a block has a larger score (online softmax).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from strategy.cpu.elementary import exp
from strategy.cpu.loop import allocate, fill, run_tasks, written
from strategy.op_strategy import OpStrategy
from strategy.ops.attention.operator import (
    NAMES,
    AttentionAttrs,
    biased,
    constant_inner,
    factor,
    shift,
)
from strategy.order import scaled
from strategy.pattern import register_cpu_implementations, schedule_extern_cpu
from strategy.schedule import accumulator, integer, lanes_of
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType

_TILES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28)
_BLOCKS = (16, 32, 64, 128, 256, 512)


def space(attrs: AttentionAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """Vectors of queries, keys of a register tile, columns of one, and keys of a block."""
    m, n = (attrs.order(t.shape)[2] for t in inputs[:2])
    lanes = lanes_of(target, accumulator(out_type.dtype))
    return _space(
        int(m) if m.is_constant else 64, int(n) if n.is_constant else 512, int(out_type.shape[3]), lanes,
        target.vector_registers,
    )


@lru_cache(maxsize=1024)
def _space(m: int, n: int, width: int, lanes: int, registers: int) -> ConfigSpace:
    vectors = tuple(v for v in (1, 2, 3, 4, 6) if v == 1 or (v - 1) * lanes < m)
    columns = tuple(c for c in divisors(width) if c <= registers - 2)
    blocks = tuple(b for b in _BLOCKS if b == 16 or b < 2 * n)

    def fallback() -> dict[str, Any]:
        few = max(v for v in vectors if v <= 2)
        block = max(b for b in blocks if b <= 128)
        tile = max(t for t in _TILES if t * few + few < registers and t <= block)
        return {
            "vectors": few, "keys": tile, "columns": max(c for c in columns if c * few + few < registers),
            "block": block, "unroll": 1,
        }

    return ConfigSpace(
        [
            Knob("vectors", vectors),
            Knob("keys", tuple(t for t in _TILES if t < registers)),
            Knob("columns", columns),
            Knob("block", blocks),
            Knob("unroll", (1, 2, 4)),
        ],
        [
            knob("keys") * knob("vectors") + knob("vectors") < registers,
            knob("columns") * knob("vectors") + knob("vectors") < registers,
            knob("keys") <= knob("block"),
        ],
        derived={"queries": knob("vectors") * lanes},
        fallback=fallback,
    )


def compute(
    lanes: int, attrs: AttentionAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The whole function as loops."""
    return written(lambda ins, out: _attend(lanes, attrs, ins, out, config), inputs, out_type, "attention")


def _attend(lanes: int, attrs: AttentionAttrs, ins: Sequence[Any], out: Any, config: Config) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import tirx as script

    query, key, value = ins[:3]
    bias = ins[3] if len(ins) > 3 else None
    batch, heads, m, depth = attrs.order(query.shape)
    _, groups, n, width = attrs.order(value.shape)
    heads, groups, depth, width = int(heads), int(groups), int(depth), int(width)
    vectors, keys, columns, block, unroll = (
        integer(config, name) for name in ("vectors", "keys", "columns", "block", "unroll")
    )
    queries, dtype = vectors * lanes, accumulator(str(query.dtype))
    least, zero, one = (tirx.const(x, dtype) for x in (-math.inf, 0, 1))
    scale = factor(attrs, depth)
    result = script.buffer_proxy(out)

    place = partial(allocate, dtype=dtype)

    def each(step: Callable[[Any], None], count: int = vectors, size: int = lanes) -> None:
        with script.unroll(0, count) as vector, script.vectorized(0, size) as lane:
            step(vector * size + lane)

    def turn(extent: int, read: Callable[[Any, Any], Any], write: Callable[[Any, Any, Any], None], back: bool) -> None:
        """Transpose between [queries, extent] and [extent, queries], square by square in registers."""
        size = math.gcd(extent, lanes)
        with script.serial(0, extent // size) as part, script.unroll(0, vectors) as vector:
            square = place(lanes * size)

            def across(step: Callable[[Any, Any], None]) -> None:
                with script.unroll(0, lanes) as q, script.vectorized(0, size) as c:
                    step(q, c)

            def down(step: Callable[[Any, Any], None]) -> None:
                with script.unroll(0, size) as c, script.vectorized(0, lanes) as q:
                    step(q, c)

            def at(q: Any, c: Any) -> tuple[Any, Any]:
                return vector * lanes + q, part * size + c

            def spot(q: Any, c: Any) -> Any:
                return c * lanes + q if back else q * size + c

            first, second = (down, across) if back else (across, down)
            first(lambda q, c: fill(square, spot(q, c), read(*at(q, c))))
            second(lambda q, c: write(*at(q, c), square[spot(q, c)]))

    def attend(task: Any) -> None:
        b, h, start = task // blocks // heads, task // blocks % heads, task % blocks * queries
        group = h // (heads // groups)
        turned, sums = place(depth * queries, scope="global"), place(width * queries, scope="global")
        powers = place(-(-block // keys) * keys * queries, scope="global")
        largest, total, factors, found = (place(queries) for _ in range(4))
        turn(
            depth,
            lambda q, d: scaled(query[attrs.order((b, h, tirx.min(start + q, m - 1), d))].astype(dtype), scale),
            lambda q, d, x: fill(turned, d * queries + q, x),
            back=False,
        )
        each(lambda x: fill(largest, x, least))
        each(lambda x: fill(total, x, zero))
        with script.serial(0, width) as c:
            each(lambda x: fill(sums, c * queries + x, zero))
        seen = tirx.min(start + queries, n) if attrs.is_causal else n
        with script.serial(0, (seen + block - 1) // block) as turn_of_keys:
            origin = turn_of_keys * block
            count = tirx.min(seen - origin, block)
            each(lambda x: fill(found, x, largest[x]))
            with script.serial(0, (count + keys - 1) // keys) as tile:
                score(b, h, group, start, origin, tile, turned, powers, found)
            # The powers of what was summed before shrink by the growth of the largest score.
            each(lambda x: fill(factors, x, exp(largest[x] - shift(found[x]))))
            each(lambda x: fill(largest, x, found[x]))
            each(lambda x: fill(found, x, shift(largest[x])))
            each(lambda x: fill(total, x, total[x] * factors[x]))
            with script.serial(0, count) as j:
                each(lambda x: fill(powers, j * queries + x, exp(powers[j * queries + x] - found[x])))
                each(lambda x: fill(total, x, total[x] + powers[j * queries + x]))
            with script.serial(0, width // columns) as part:
                add(b, group, origin, count, part, powers, factors, sums)
        # The sums are 0 if all keys are hidden.
        each(lambda x: fill(total, x, one / tirx.Select(total[x] == zero, one, total[x])))

        def store(q: Any, c: Any, x: Any) -> None:
            with script.If(start + q < m), script.Then():
                result[attrs.order((b, h, start + q, c))] = x.astype(str(out.dtype))

        turn(width, lambda q, c: sums[c * queries + q] * total[q], store, back=True)

    def score(
        b: Any, h: Any, group: Any, start: Any, origin: Any, tile: Any, turned: Any, powers: Any, found: Any
    ) -> None:
        """The scores of a tile of keys, and the largest so far; keys beyond the last repeat it."""
        sums = place(keys * queries)

        def at(i: Any) -> Any:
            return tirx.min(origin + tile * keys + i, n - 1)

        with script.unroll(0, keys) as i:
            each(lambda x: fill(sums, i * queries + x, zero))
        step = math.gcd(depth, unroll)
        with script.serial(0, depth // step) as outer, script.unroll(0, step) as inner, script.unroll(0, keys) as i:
            d = outer * step + inner
            each(
                lambda x: fill(
                    sums, i * queries + x,
                    sums[i * queries + x]
                    + key[attrs.order((b, group, at(i), d))].astype(dtype) * turned[d * queries + x],
                )
            )
        with script.unroll(0, keys) as i:
            place_of = (tile * keys + i) * queries

            def keep(x: Any) -> None:
                query_of = tirx.min(start + x, m - 1)
                powers[place_of + x] = biased(attrs, sums[i * queries + x], bias, (b, h, query_of, at(i)))

            each(keep)
            each(lambda x: fill(found, x, tirx.max(found[x], powers[place_of + x])))

    def add(
        b: Any, group: Any, origin: Any, count: Any, part: Any, powers: Any, factors: Any, sums: Any
    ) -> None:
        """The sums of some columns of the values, by the powers of a block of keys."""
        held = place(columns * queries)
        with script.unroll(0, columns) as c:
            start = (part * columns + c) * queries
            each(lambda x: fill(held, c * queries + x, sums[start + x] * factors[x]))
        with script.serial(0, count) as j, script.unroll(0, columns) as c:
            number = value[attrs.order((b, group, origin + j, part * columns + c))].astype(dtype)
            each(
                lambda x: fill(
                    held, c * queries + x, held[c * queries + x] + number * powers[j * queries + x]
                )
            )
        with script.unroll(0, columns) as c:
            start = (part * columns + c) * queries
            each(lambda x: fill(sums, start + x, held[c * queries + x]))

    blocks = (m + queries - 1) // queries
    return run_tasks(batch * heads * blocks, attend)


def _add(
    strategy: OpStrategy, attrs: AttentionAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> None:
    if constant_inner(attrs, inputs):
        lanes = lanes_of(target, accumulator(out_type.dtype))
        strategy.add_implementation(
            partial(compute, lanes), schedule_extern_cpu, "attention_tile.cpu", 12, space=space
        )


for _name in NAMES:
    register_cpu_implementations(_name, _add)
