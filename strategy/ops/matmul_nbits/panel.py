"""`matmul_nbits_panel.cpu`: a few rows at a time, bound by reading the weight once.

The weight is packed into panels of columns that are read in sequence, each word once for a tile of rows: [panel,
k · bits / 32, width, 4] bytes. Of two numbers in a byte the second is that of the next word's place.

Products of a block are summed before they are scaled: of integers exactly, less the zero point's share, which is one
number for each block of a row. An instruction for bytes multiplies weights of 4 bits by data that are not rounded to 8
bits, too: by the three digits, each a byte, of a number in units of 2⁻²³ of the largest of its block. Blocks with
infinities, NaN, or numbers too small for such units are multiplied as floats.
"""
# Over 300 lines: one function in loops, whose parts share its extents.

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from typing import Any

from strategy.cpu.dot import Dot, find_dot
from strategy.cpu.loop import allocate, fill, written
from strategy.op_strategy import OpStrategy
from strategy.ops.matmul_nbits.operator import LARGEST, MatMulNBitsAttrs, rounded, step_of
from strategy.order import fold, join, larger
from strategy.pattern import register_cpu_implementations, schedule_plain_cpu
from strategy.schedule import Outs, compute_stage, integer, lanes_of, new_schedule, zero_beyond
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType

_VECTORS = (1, 2, 3, 4, 6, 8, 12, 16)
_MOST_ROWS = 8
_MANTISSA = 23  # bits of a float32's
_DIGITS = 3
_UNITS = 127 << 16  # in the largest of a block: its digits are from -128 to 127
_SHORT = 1 << 15  # numbers
_LEAST = 2.0**-126  # unit that has all of a float32's bits


def space(
    attrs: MatMulNBitsAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Vectors of a panel, rows of a tile, and steps of a block that are unrolled."""
    m, n = out_type.shape
    lanes = lanes_of(target, "float32")
    steps, dot = attrs.block_size * attrs.bits // 32, _instruction(attrs, target)
    digits = 0 if dot is None else _digits(attrs)
    return _space(int(m) if m.is_constant else 1, int(n), lanes, steps, digits, target.vector_registers)


def _instruction(attrs: MatMulNBitsAttrs, target: Target) -> Dot | None:
    """The instruction for bytes that multiplies data rounded to 8 bits, or by digits weights of 4 bits."""
    dot = find_dot(target, "int8") if attrs.accuracy_level or attrs.bits == 4 else None
    return dot if dot is not None and dot.data == "uint8" else None


def _digits(attrs: MatMulNBitsAttrs) -> int:
    """The bytes of a number of the data."""
    return 1 if attrs.accuracy_level else _DIGITS


@lru_cache(maxsize=1024)
def _space(m: int, n: int, lanes: int, steps: int, digits: int, registers: int) -> ConfigSpace:
    vectors = tuple(v for v in _VECTORS if v == 1 or (v - 1) * lanes < n)
    rows = tuple(r for r in divisors(m) if r <= _MOST_ROWS)
    unroll = tuple(u for u in (1, 2, 4, 8, 16) if steps % u == 0)

    def fallback() -> dict[str, Any]:
        high = max(r for r in rows if r <= 4)
        return {
            "vectors": max(v for v in vectors if v * high <= 8 and v <= 4), "rows": high,
            # More, LLVM would compute side by side, and run out of registers.
            "unroll": 1 if digits > 1 else max(u for u in unroll if u <= 8),
        }

    return ConfigSpace(
        [Knob("vectors", vectors, "layout"), Knob("rows", rows), Knob("unroll", unroll)],
        [knob("vectors") * (max(digits, 1) * knob("rows") + 1) + 2 <= registers],
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
    lanes: int, dot: Dot | None, attrs: MatMulNBitsAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The whole function as loops."""

    def loops(ins: Sequence[Any], out: Any) -> Any:
        return _multiply(lanes, dot, attrs, ins, out, config)

    return written(loops, inputs, out_type, "matmul_nbits")


def schedule(attrs: MatMulNBitsAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """The loops as they are; packing, and what follows, by pattern."""
    sch = new_schedule(outs)
    is_alone = sch.mod["main"].body.block.name_hint != "root"
    return sch if is_alone else schedule_plain_cpu(attrs, outs, target)


def _multiply(
    lanes: int, dot: Dot | None, attrs: MatMulNBitsAttrs, ins: Sequence[Any], out: Any, config: Config
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
    digits, count = _digits(attrs), m * blocks
    result = script.buffer_proxy(out)

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

        As lowest bits of the mantissa they are what a power of two has in addition.
        """
        turned = 0 if start + attrs.bits <= _MANTISSA else 12 if attrs.bits == 4 else 16
        loaded, start = (loaded >> all_of(turned) if turned else loaded), start - turned
        exponent = _MANTISSA - start
        mantissa = loaded & all_of((2**attrs.bits - 1) << start)
        found = tirx.reinterpret(f"float32x{lanes}", mantissa | all_of(127 + exponent << _MANTISSA))
        return found - tirx.Broadcast(tirx.const(2**exponent + attrs.zero_point, "float32"), lanes)

    def add_numbers(p: Any, row: Any, b: Any, step: Any, v: Any, sums: Any) -> None:
        """The products of the numbers of 32 bits."""
        loaded = words(p, b * steps + step, v)
        for place in range(4 * several):
            start = place % 4 * 8 + place // 4 * 4
            numbers = real(loaded, start)
            with script.unroll(0, rows) as i:
                x = data[row + i, b * size + step * 4 * several + place].astype("float32")
                at = tirx.Ramp(i * width + v * lanes, 1, lanes)
                fill(sums, at, sums[at] + tirx.Broadcast(x, lanes) * numbers)

    def add_words(p: Any, row: Any, b: Any, step: Any, v: Any, sums: Any, narrow: Any) -> None:
        """The products by the instruction, whose unsigned operand is the weight."""
        assert dot is not None
        loaded = words(p, b * steps + step, v)
        for part in range(several):
            numbers = (loaded >> all_of(4) if part else loaded) & all_of(0x0F0F0F0F) if several == 2 else loaded
            with script.unroll(0, digits) as digit, script.unroll(0, rows) as i:
                first = (digit * m + row + i) * k + b * size + (step * several + part) * 4
                word = tirx.call_intrin("int32", "tirx.reinterpret", narrow[tirx.Ramp(first, 1, 4)])
                at = tirx.Ramp((digit * rows + i) * width + v * lanes, 1, lanes)
                fill(
                    sums, at,
                    tirx.call_pure_extern(
                        f"int32x{lanes}", dot.symbol, sums[at], numbers, tirx.Broadcast(word, lanes)
                    ),
                )

    def multiply(p: Any, row: Any, narrow: Any, units: Any, shares: Any) -> None:
        total = allocate(rows * width, "float32")
        each(lambda i, j: fill(total, i * width + j, tirx.const(0, "float32")))

        real_sums: Any = allocate(rows * width, "float32") if dot is None or digits > 1 else None
        sums: Any = allocate(digits * rows * width, "int32") if dot is not None else None

        def by_numbers(b: Any, unroll: int) -> None:
            each(lambda i, j: fill(real_sums, i * width + j, tirx.const(0, "float32")))
            turns = script.serial(0, steps // unroll), script.unroll(0, unroll)
            with turns[0] as outer, turns[1] as inner, script.unroll(0, vectors) as v:
                add_numbers(p, row, b, outer * unroll + inner, v, real_sums)

            def scaled(i: Any, j: Any) -> None:
                at = i * width + j
                fill(total, at, total[at] + real_sums[at] * scales[p, b, j].astype("float32"))

            each(scaled)

        def by_words(b: Any) -> None:
            def begin(i: Any, j: Any) -> None:
                for digit in range(digits):
                    fill(sums, (digit * rows + i) * width + j, shares[digit * count + (row + i) * blocks + b])

            each(begin)
            turns = script.serial(0, steps // unroll), script.unroll(0, unroll)
            with turns[0] as outer, turns[1] as inner, script.unroll(0, vectors) as v:
                add_words(p, row, b, outer * unroll + inner, v, sums, narrow)

            def scaled(i: Any, j: Any) -> None:
                scale = scales[p, b, j].astype("float32") * units[(row + i) * blocks + b]
                found = sums[i * width + j].astype("float32")
                for digit in range(1, digits):
                    higher = sums[(digit * rows + i) * width + j].astype("float32")
                    found = higher * tirx.const(256.0**digit, "float32") + found
                at = i * width + j
                fill(total, at, total[at] + found * scale)

            each(scaled)

        with script.serial(0, blocks) as b:
            if dot is None:
                by_numbers(b, unroll)
            elif digits == 1:
                by_words(b)
            else:
                kept = [units[(row + i) * blocks + b] for i in range(rows)]
                low, high = tirx.const(_LEAST, "float32"), tirx.const(math.inf, "float32")
                with script.If(tirx.all(*(test for u in kept for test in (u >= low, u < high)))):
                    with script.Then():
                        by_words(b)
                    with script.Else():
                        by_numbers(b, 1)

        def store(i: Any, j: Any) -> None:
            def write() -> None:
                result[row + i, p * width + j] = total[i * width + j].astype(str(out.dtype))

            if n % width == 0:
                write()
                return
            with script.If(p * width + j < n), script.Then():
                write()

        each(store)

    def narrow_data(narrow: Any, units: Any, shares: Any) -> None:
        """The data in bytes, with the scale of each block and the zero point's share of its products."""
        side, wide = math.gcd(size, lanes), digits > 1
        # Other threads take as long to begin as one takes for so few numbers.
        is_short = isinstance(m, tirx.IntImm) and int(m) * int(k) < _SHORT
        with (script.serial if is_short else script.parallel)(0, count) as block:
            i, b = block // blocks, block % blocks
            most = allocate(side, "float32")
            with script.vectorized(0, side) as lane:
                fill(most, lane, tirx.const(0, "float32"))
            with script.serial(0, size // side) as part, script.vectorized(0, side) as lane:
                number = tirx.abs(data[i, b * size + part * side + lane].astype("float32"))
                fill(most, lane, larger(most[lane], number))
            largest = join(lambda a, b: tirx.max(a, b), [most[lane] for lane in range(side)])  # noqa: PLW0108
            fill(units, block, _unit(largest) if wide else step_of(largest))
            whole, added = allocate(side, "int32"), allocate(digits * side, "int32")
            for digit in range(digits):
                with script.vectorized(0, side) as lane:
                    fill(added, digit * side + lane, tirx.const(0, "int32"))
            with script.serial(0, size // side) as part:
                first = b * size + part * side
                with script.vectorized(0, side) as lane:
                    number = data[i, first + lane].astype("float32")
                    found = rounded(number, units[block], _UNITS if wide else LARGEST).astype("int32")
                    fill(whole, lane, found + 0x808080 if wide else found)
                for digit in range(digits):
                    with script.vectorized(0, side) as lane:
                        byte = (whole[lane] >> 8 * digit & 255) - 128 if wide else whole[lane]
                        fill(narrow, (digit * m + i) * k + first + lane, byte.astype("int8"))
                        fill(added, digit * side + lane, added[digit * side + lane] + byte)
            for digit in range(digits):
                total = fold(operator.add, [added[digit * side + lane] for lane in range(side)])
                fill(shares, digit * count + block, total * -attrs.zero_point)

    with IRBuilder() as builder, ExitStack() as scope:
        given: tuple[Any, ...] = (None, None, None)
        if dot is not None:
            scope.enter_context(script.attr(0, "pragma_import_llvm", StringImm(dot.source)))
            sizes = ((digits * m * k, "int8"), (count, "float32"), (digits * count, "int32"))
            given = tuple(allocate(number, kind, "global") for number, kind in sizes)
            narrow_data(*given)
        with script.parallel(0, panels) as p, script.serial(0, m // rows) as tile:
            multiply(p, tile * rows, *given)
        scope.close()
        return builder.get()


def _unit(largest: Any) -> Any:
    """The unit of a block's data by its largest absolute value; 1 of zeros, which have no digits."""
    from tvm import tirx

    return tirx.Select(largest == 0.0, tirx.const(1, "float32"), largest / tirx.const(_UNITS, "float32"))


def _add(
    strategy: OpStrategy, attrs: MatMulNBitsAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> None:
    (_, k), step, dot = inputs[0].shape, 32 // attrs.bits, _instruction(attrs, target)
    if attrs.accuracy_level and dot is None:
        return
    known = k.is_constant and all(d.is_constant for d in inputs[1].shape)
    if known and int(k) % attrs.block_size == 0 and attrs.block_size % step == 0:
        lanes = lanes_of(target, "float32")
        strategy.add_implementation(
            partial(compute, lanes, dot), schedule, "matmul_nbits_panel.cpu", 12, version=2, space=space,
            prepare=partial(prepare, lanes),
        )


register_cpu_implementations("matmul_nbits", _add)
