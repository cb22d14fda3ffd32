"""`attention_row.cpu`: one query of each head against many keys, as when a network writes token by token.

Keys and values are read once for several heads of a group, along their rows: memory bounds it. Scores of some keys are
sums of vectors along the depth, transposed and added in registers; the largest score and the sum of powers are those
of the keys so far (online softmax).
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
from strategy.order import fold, scaled
from strategy.pattern import register_cpu_implementations, schedule_extern_cpu
from strategy.schedule import accumulator, integer, lanes_of
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType

_KEYS = (1, 2, 4, 8, 16)
_BLOCKS = (64, 128, 256, 512, 1024, 2048)


def _vector(inputs: Sequence[TensorType], target: Target) -> int:
    """The width of vectors, which divides depth and width."""
    full = lanes_of(target, accumulator(inputs[0].dtype))
    return math.gcd(full, int(inputs[0].shape[3]), int(inputs[2].shape[3]))


def space(attrs: AttentionAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """Heads of a task, keys of a register tile, vectors of columns of one, and keys of a block."""
    heads, (_, groups, n, _) = attrs.order(inputs[0].shape)[1], attrs.order(inputs[1].shape)
    return _space(
        int(heads) // int(groups), int(n) if n.is_constant else 1024,
        int(out_type.shape[3]) // _vector(inputs, target), target.vector_registers,
    )


@lru_cache(maxsize=1024)
def _space(each: int, n: int, width: int, registers: int) -> ConfigSpace:
    heads = tuple(h for h in divisors(each) if h < registers - 2)
    columns = tuple(c for c in divisors(width) if c < registers - 2)
    blocks = tuple(b for b in _BLOCKS if b == 64 or b < 2 * n)

    def fallback() -> dict[str, Any]:
        most = max(h for h in heads if h <= 8)
        few = max(c for c in columns if c == 1 or (c <= 4 and c * most < registers))
        return {"heads": most, "keys": 1, "columns": few, "block": max(b for b in blocks if b <= 512)}

    return ConfigSpace(
        [Knob("heads", heads), Knob("keys", _KEYS), Knob("columns", columns), Knob("block", blocks)],
        [knob("heads") * knob("keys") < registers, knob("heads") * knob("columns") < registers],
        fallback=fallback,
    )


def compute(
    size: int, attrs: AttentionAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The whole function as loops, by vectors of `size`."""
    return written(lambda ins, out: _attend(size, attrs, ins, out, config), inputs, out_type, "attention")


def _attend(size: int, attrs: AttentionAttrs, ins: Sequence[Any], out: Any, config: Config) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import tirx as script

    query, key, value = ins[:3]
    bias = ins[3] if len(ins) > 3 else None
    batch, all_heads, _, depth = attrs.order(query.shape)
    _, groups, n, width = attrs.order(value.shape)
    all_heads, groups, depth, width = int(all_heads), int(groups), int(depth), int(width)
    heads, keys, columns, block = (integer(config, name) for name in ("heads", "keys", "columns", "block"))
    tasks, dtype = all_heads // heads, accumulator(str(query.dtype))
    least, zero, one = (tirx.const(x, dtype) for x in (-math.inf, 0, 1))
    scale = factor(attrs, depth)
    result = script.buffer_proxy(out)
    lanes = math.gcd(block, 16)  # of keys, for powers
    stride = -(-block // keys) * keys

    place = partial(allocate, dtype=dtype)

    def each(step: Callable[[Any], None], width: int = size) -> None:
        with script.vectorized(0, width) as lane:
            step(lane)

    def attend(task: Any) -> None:
        b, h = task // tasks, task % tasks * heads
        group = h // (all_heads // groups)
        rows, sums = place(heads * depth, scope="global"), place(heads * width, scope="global")
        powers, wide = place(heads * stride, scope="global"), place(lanes)
        largest, total, factors, lessened = (place(heads) for _ in range(4))
        with script.serial(0, heads) as q:
            with script.serial(0, depth // size) as part:
                d = part * size
                each(
                    lambda x: fill(
                        rows, q * depth + d + x,
                        scaled(query[attrs.order((b, h + q, 0, d + x))].astype(dtype), scale),
                    )
                )
            with script.serial(0, width // size) as part:
                each(lambda x: fill(sums, q * width + part * size + x, zero))
        with script.unroll(0, heads) as q:
            fill(largest, q, least)
            fill(total, q, zero)
        with script.serial(0, (n + block - 1) // block) as turn:
            origin = turn * block
            count = tirx.min(n - origin, block)
            with script.serial(0, (count + keys - 1) // keys) as tile:
                score(b, h, group, origin, tile, rows, powers)
            whole = count // lanes

            def over_keys(step: Callable[[Any, Any], None], q: Any) -> None:
                """Vectors of the powers of a head, and those that are left alone."""
                with script.serial(0, whole) as part:
                    each(lambda x: step(q * stride + part * lanes + x, x), lanes)
                with script.serial(0, count - whole * lanes) as left:
                    step(q * stride + whole * lanes + left, 0)

            with script.unroll(0, heads) as q:
                each(lambda x: fill(wide, x, largest[q]), lanes)
                over_keys(lambda at, x: fill(wide, x, tirx.max(wide[x], powers[at])), q)
                factors[q] = fold(tirx.max, [wide[x] for x in range(lanes)])
                lessened[q] = shift(factors[q])
                largest[q] = exp(largest[q] - lessened[q])
                total[q] = total[q] * largest[q]
                each(lambda x: fill(wide, x, zero), lanes)

                def raise_power(at: Any, x: Any) -> None:
                    powers[at] = exp(powers[at] - lessened[q])

                over_keys(raise_power, q)
                over_keys(lambda at, x: fill(wide, x, wide[x] + powers[at]), q)
                total[q] = total[q] + fold(lambda a, c: a + c, [wide[x] for x in range(lanes)])
            with script.serial(0, width // (size * columns)) as part:
                add(b, group, origin, count, part, powers, largest, sums)
            with script.unroll(0, heads) as q:
                fill(largest, q, factors[q])
        with script.serial(0, heads) as q, script.serial(0, width // size) as part:
            at = part * size
            quotient = one / tirx.Select(total[q] == zero, one, total[q])
            with script.vectorized(0, size) as x:
                number = sums[q * width + at + x] * quotient
                result[attrs.order((b, h + q, 0, at + x))] = number.astype(str(out.dtype))

    def score(b: Any, h: Any, group: Any, origin: Any, tile: Any, rows: Any, powers: Any) -> None:
        """The scores of a tile of keys; those beyond the last repeat it."""
        held = place(keys * heads * size)

        def at(i: Any) -> Any:
            return tirx.min(origin + tile * keys + i, n - 1)

        with script.unroll(0, keys * heads) as s:
            each(lambda x: fill(held, s * size + x, zero))
        with script.serial(0, depth // size) as part, script.unroll(0, keys) as i, script.unroll(0, heads) as q:
            d, s = part * size, (i * heads + q) * size
            each(
                lambda x: fill(
                    held, s + x,
                    held[s + x]
                    + key[attrs.order((b, group, at(i), d + x))].astype(dtype) * rows[q * depth + d + x],
                )
            )
        with script.unroll(0, heads) as q, script.vectorized(0, keys) as i:
            total = fold(lambda a, c: a + c, [held[(i * heads + q) * size + x] for x in range(size)])
            powers[q * stride + tile * keys + i] = total
        if bias is not None or attrs.is_causal:
            with script.unroll(0, heads) as q, script.serial(0, keys) as i:
                spot = q * stride + tile * keys + i
                powers[spot] = biased(attrs, powers[spot], bias, (b, h + q, 0, at(i)))

    def add(b: Any, group: Any, origin: Any, count: Any, part: Any, powers: Any, factors: Any, sums: Any) -> None:
        """The sums of some columns of the values, by the powers of a block of keys."""
        held = place(heads * columns * size)

        def each_column(step: Callable[[Any, Any, Any, Any], None]) -> None:
            with script.unroll(0, columns) as c, script.unroll(0, heads) as q:
                each(lambda x: step(q, (q * columns + c) * size + x, (part * columns + c) * size + x, x))

        each_column(lambda q, at, c, x: fill(held, at, sums[q * width + c] * factors[q]))
        with script.serial(0, count) as j:
            each_column(
                lambda q, at, c, x: fill(
                    held, at,
                    held[at] + value[attrs.order((b, group, origin + j, c))].astype(dtype) * powers[q * stride + j],
                )
            )
        each_column(lambda q, at, c, x: fill(sums, q * width + c, held[at]))

    return run_tasks(batch * tasks, attend)


def _add(
    strategy: OpStrategy, attrs: AttentionAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> None:
    one = attrs.order(inputs[0].shape)[2]
    if constant_inner(attrs, inputs) and one.is_constant and int(one) == 1 and _vector(inputs, target) > 1:
        strategy.add_implementation(
            partial(compute, _vector(inputs, target)), schedule_extern_cpu, "attention_row.cpu", 13, space=space
        )


for _name in NAMES:
    register_cpu_implementations(_name, _add)
