"""`matmul_nbits_panel.cpu`: a few rows at a time, bound by reading the weight once.

The weight is packed into panels of columns that are read in sequence, each word once for a tile of rows: [panel,
k · bits / 32, width, 4] bytes. Of two numbers in a byte the second is that of the next word's place.

Products of a block are summed before they are scaled: of integers exactly, less the zero point's share, which is one
number for each block of a row. The weight and its scales are prefetched: where the last
level is near, past the second if one tile has all rows and reads them once, but not for the instruction for bytes, with
which such a processor looks far enough ahead by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from typing import Any

from strategy.cpu.ahead import LINE_BYTES, PREFETCH, prefetch
from strategy.cpu.dot import Dot, find_dot
from strategy.cpu.loop import allocate, fill, written
from strategy.cpu.once import PREFETCH_ONCE, prefetch_once
from strategy.op_strategy import OpStrategy
from strategy.ops.matmul_nbits.narrow import narrow_data
from strategy.ops.matmul_nbits.operator import MatMulNBitsAttrs
from strategy.pattern import register_cpu_implementations, schedule_plain_cpu
from strategy.processor import NEAR_LAST_LEVEL
from strategy.schedule import (
    Outs,
    compute_stage,
    dtype_bytes,
    integer,
    lanes_of,
    new_schedule,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType

_VECTORS = (1, 2, 3, 4, 6, 8, 12, 16)
_MOST_ROWS = 8
_MANTISSA = 23  # bits of a float32's
_AHEAD_BYTES = 1 << 13  # of the weight, from a step to what it prefetches
_LOOK_UP, _NUMBERS = "plevel_number_of_4_bits", ", ".join(f"float {n - 8}.0" for n in range(16))
_TABLE = f"""
declare <16 x float> @llvm.x86.avx512.permvar.sf.512(<16 x float>, <16 x i32>)
define linkonce_odr hidden <16 x float> @{_LOOK_UP}(<16 x i32> %i) alwaysinline nounwind {{
  %r = call <16 x float> @llvm.x86.avx512.permvar.sf.512(<16 x float> <{_NUMBERS}>, <16 x i32> %i)
  ret <16 x float> %r
}}
"""


def space(
    attrs: MatMulNBitsAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Vectors of a panel, rows of a tile, and steps of a block that are unrolled."""
    m, n = out_type.shape
    lanes = lanes_of(target, "float32")
    steps = attrs.block_size * attrs.bits // 32
    rows, is_dot = int(m) if m.is_constant else 1, attrs.accuracy_level > 0
    return _space(rows, int(n), lanes, steps, target.vector_registers, is_dot)


@lru_cache(maxsize=1024)
def _space(m: int, n: int, lanes: int, steps: int, registers: int, is_dot: bool) -> ConfigSpace:
    vectors = tuple(v for v in _VECTORS if v == 1 or (v - 1) * lanes < n)
    rows = tuple(r for r in divisors(m) if r <= _MOST_ROWS)
    unroll = tuple(u for u in (1, 2, 4, 8, 16) if steps % u == 0)

    def fallback() -> dict[str, Any]:
        high, most = max(r for r in rows if r <= 4), 8 if is_dot else registers // 2
        return {
            "vectors": max(v for v in vectors if v * high <= most and v <= 4), "rows": high,
            # Of several steps LLVM computes numbers side by side, more than registers hold.
            "unroll": max(u for u in unroll if u <= (8 if is_dot else 1)),
        }

    return ConfigSpace(
        [Knob("vectors", vectors, "layout"), Knob("rows", rows), Knob("unroll", unroll)],
        [knob("vectors") * (knob("rows") + 1) + 2 <= registers],
        derived={"accumulators": knob("vectors") * knob("rows"), "width": knob("vectors") * lanes},
        fallback=fallback,
    )


def prepare(
    lanes: int, attrs: MatMulNBitsAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight and the scales as panels; columns beyond n are zeros."""
    from tvm import tirx

    width, bits = integer(config, "vectors") * lanes, attrs.bits
    n, blocks, size = inputs[1].concrete_shape
    panels, several = -(-n // width), 8 // bits

    def pack_scales(scales: Any) -> Any:
        def scale(p: Any, b: Any, j: Any) -> Any:
            column = p * width + j
            return zero_beyond(scales[column, b], column, n, width)

        return compute_stage("scales", (panels, blocks, width), scale)

    def pack(weight: Any) -> Any:
        def number(column: Any, place: Any) -> Any:
            """The number at a place of k, unsigned."""
            byte = weight[column, place // (size * several), place % (size * several) // several]
            return byte if bits == 8 else (byte >> (place % 2 * 4).astype("uint8")) & tirx.const(15, "uint8")

        def of_word(p: Any, step: Any, j: Any, t: Any) -> Any:
            column, first = p * width + j, step * 4 * several + t
            byte = number(column, first)
            if bits == 4:
                byte = byte | (number(column, first + 4) << tirx.const(4, "uint8"))
            return zero_beyond(byte, column, n, width)

        shape = (panels, blocks * size // 4, width, 4)
        return compute_stage("panels", shape, of_word)

    return {1: pack, 2: pack_scales}


def compute(
    lanes: int, dot: Dot | None, looks_up: bool, is_near: bool, attrs: MatMulNBitsAttrs, inputs: Sequence[Any],
    out_type: TensorType, config: Config,
) -> list[Any]:
    """The whole function as loops."""

    def loops(ins: Sequence[Any], out: Any) -> Any:
        return _multiply(lanes, dot, looks_up, is_near, attrs, ins, out, config)

    return written(loops, inputs, out_type, "matmul_nbits")


def schedule(attrs: MatMulNBitsAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """The loops as they are; packing, and what follows, by pattern."""
    sch = new_schedule(outs)
    is_alone = sch.mod["main"].body.block.name_hint != "root"
    return sch if is_alone else schedule_plain_cpu(attrs, outs, target)


def _multiply(
    lanes: int, dot: Dot | None, looks_up: bool, is_near: bool, attrs: MatMulNBitsAttrs, ins: Sequence[Any], out: Any,
    config: Config,
) -> Any:
    from tvm import tirx
    from tvm.ir import StringImm
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    data, weight, scales = ins
    m, k = data.shape
    panels, blocks, width = (int(extent) for extent in scales.shape)
    vectors, rows, unroll = (integer(config, name) for name in ("vectors", "rows", "unroll"))
    n, size, several = int(out.shape[1]), attrs.block_size, 8 // attrs.bits
    steps = size // (4 * several)  # words of a block
    result = script.buffer_proxy(out)
    ahead = -(-_AHEAD_BYTES // (4 * width))
    dtype = "int32" if dot else "float32"
    fetches = dot is None or not is_near
    is_once = is_near and isinstance(m, tirx.IntImm) and int(m) == rows
    fetch, fetching = (prefetch_once, PREFETCH_ONCE) if is_once else (prefetch, PREFETCH)

    def each(step: Callable[[Any, Any], None]) -> None:
        """Each row of a tile and column of a panel."""
        with script.unroll(0, rows) as i, script.unroll(0, vectors) as v, script.vectorized(0, lanes) as lane:
            step(i, v * lanes + lane)

    def words(p: Any, step: Any, v: Any) -> Any:
        """The words of a vector of columns."""
        index = [p, step, v * lanes, tirx.Ramp(0, 1, 4 * lanes)]
        return tirx.call_intrin(f"int32x{lanes}", "tirx.reinterpret", tirx.BufferLoad(weight, index))

    def all_of(value: int) -> Any:
        return tirx.Broadcast(tirx.const(value, "int32"), lanes)

    def real(loaded: Any, start: int) -> Any:
        """The numbers from a bit of each word, less the zero point.

        A permutation of a vector of all numbers of 4 bits takes the lowest bits of a word for the place there. Else, as
        lowest bits of the mantissa they are what a power of two has in addition.
        """
        if looks_up:
            return tirx.call_pure_extern(f"float32x{lanes}", _LOOK_UP, loaded >> all_of(start) if start else loaded)
        turned = 0 if start + attrs.bits <= _MANTISSA else 12 if attrs.bits == 4 else 16
        loaded, start = (loaded >> all_of(turned) if turned else loaded), start - turned
        exponent = _MANTISSA - start
        mantissa = loaded & all_of((2**attrs.bits - 1) << start)
        found = tirx.reinterpret(f"float32x{lanes}", mantissa | all_of(127 + exponent << _MANTISSA))
        return found - tirx.Broadcast(tirx.const(2**exponent + attrs.zero_point, "float32"), lanes)

    def add_numbers(p: Any, row: Any, b: Any, step: Any, sums: Any) -> None:
        """The products of the numbers of 32 bits of each column."""
        for place in range(4 * several):
            start = place % 4 * 8 + place // 4 * 4
            with script.unroll(0, vectors) as v, script.unroll(0, rows) as i:
                numbers = real(words(p, b * steps + step, v), start)
                x = data[row + i, b * size + step * 4 * several + place].astype("float32")
                at = tirx.Ramp(i * width + v * lanes, 1, lanes)
                fill(sums, at, sums[at] + tirx.Broadcast(x, lanes) * numbers)

    def add_words(p: Any, row: Any, b: Any, step: Any, v: Any, sums: Any, narrow: Any) -> None:
        """The products by the instruction, whose unsigned operand is the weight."""
        assert dot is not None
        loaded = words(p, b * steps + step, v)
        for part in range(several):
            numbers = (loaded >> all_of(4) if part else loaded) & all_of(0x0F0F0F0F) if several == 2 else loaded
            with script.unroll(0, rows) as i:
                first = (row + i) * k + b * size + (step * several + part) * 4
                word = tirx.call_intrin("int32", "tirx.reinterpret", narrow[tirx.Ramp(first, 1, 4)])
                at = tirx.Ramp(i * width + v * lanes, 1, lanes)
                fill(
                    sums, at,
                    tirx.call_pure_extern(
                        f"int32x{lanes}", dot.symbol, sums[at], numbers, tirx.Broadcast(word, lanes)
                    ),
                )

    def multiply(p: Any, row: Any, narrow: Any, units: Any, shares: Any) -> None:
        total, sums = allocate(rows * width, "float32"), allocate(rows * width, dtype)
        each(lambda i, j: fill(total, i * width + j, tirx.const(0, "float32")))
        with script.serial(0, blocks) as b:
            if fetches:
                prefetch_row(scales, p * blocks + b + -(-ahead // steps), dtype_bytes(str(scales.dtype)))
            zero = tirx.const(0, dtype)
            each(lambda i, j: fill(sums, i * width + j, zero if dot is None else shares[(row + i) * blocks + b]))
            with script.serial(0, steps // unroll) as outer, script.unroll(0, unroll) as inner:
                step = outer * unroll + inner
                if fetches:
                    prefetch_row(weight, (p * blocks + b) * steps + step + ahead, 4)
                if dot is None:
                    add_numbers(p, row, b, step, sums)
                else:
                    with script.unroll(0, vectors) as v:
                        add_words(p, row, b, step, v, sums, narrow)

            def scaled(i: Any, j: Any) -> None:
                scale = scales[p, b, j].astype("float32")
                scale = scale if dot is None else scale * units[(row + i) * blocks + b]
                at = i * width + j
                fill(total, at, total[at] + sums[at].astype("float32") * scale)

            each(scaled)

        def store(i: Any, j: Any) -> None:
            def write() -> None:
                result[row + i, p * width + j] = total[i * width + j].astype(str(out.dtype))

            if n % width == 0:
                write()
                return
            with script.If(p * width + j < n), script.Then():
                write()

        each(store)

    def prefetch_row(panels: Any, later: Any, bytes_each: int) -> None:
        """Prefetch a row of all columns of a panel; behind the last panel there is none."""
        row = tirx.min(later, int(panels.shape[0] * panels.shape[1]) - 1)
        for column in range(0, width, LINE_BYTES // bytes_each):
            index = [0, row, column, 0][: len(panels.shape)]
            script.evaluate(fetch(tirx.BufferLoad(panels, index)))

    with IRBuilder() as builder, ExitStack() as scope:
        given: tuple[Any, ...] = (None, None, None)
        code = (dot.source if dot else "") + (fetching if fetches else "") + (_TABLE if looks_up else "")
        scope.enter_context(script.attr(0, "pragma_import_llvm", StringImm(code)))
        if dot is not None:
            given = narrow_data(data, attrs, lanes)
        with script.parallel(0, panels) as p, script.serial(0, m // rows) as tile:
            multiply(p, tile * rows, *given)
        scope.close()
        return builder.get()


def _add(
    strategy: OpStrategy, attrs: MatMulNBitsAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> None:
    (_, k), step = inputs[0].shape, 32 // attrs.bits
    dot = find_dot(target, "int8") if attrs.accuracy_level else None
    if attrs.accuracy_level and (dot is None or dot.data != "uint8"):
        return
    known = k.is_constant and all(d.is_constant for d in inputs[1].shape)
    if known and int(k) % attrs.block_size == 0 and attrs.block_size % step == 0:
        lanes = lanes_of(target, "float32")
        looks_up = attrs.bits == 4 and dot is None and lanes == 16 and target.has("avx512f")
        is_near = target.arch in NEAR_LAST_LEVEL  # measured on znver5 and emeraldrapids
        strategy.add_implementation(
            partial(compute, lanes, dot, looks_up, is_near), schedule, "matmul_nbits_panel.cpu", 12, version=5,
            space=space, prepare=partial(prepare, lanes),
        )


register_cpu_implementations("matmul_nbits", _add)
