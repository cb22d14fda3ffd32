"""Data of `matmul_nbits` in 8 bits, as an instruction for bytes takes them."""

from __future__ import annotations

import math
from typing import Any

from strategy.cpu.loop import allocate, fill
from strategy.ops.matmul_nbits.operator import MatMulNBitsAttrs, rounded, step_of
from strategy.order import fold, join, larger

_SHORT = 1 << 14  # numbers


def narrow_data(data: Any, attrs: MatMulNBitsAttrs, lanes: int) -> tuple[Any, Any, Any]:
    """Loops that round [m, k] data to 8 bits: the numbers, and of each block its scale and the zero point's share.

    A sum of products of a block begins with that share.
    """
    from tvm import tirx
    from tvm.script.ir_builder import tirx as script

    (m, k), size = data.shape, attrs.block_size
    blocks, side = int(k) // size, math.gcd(size, lanes)
    numbers, units, shares = (
        allocate(count, dtype, "global")
        for count, dtype in ((m * k, "int8"), (m * blocks, "float32"), (m * blocks, "int32"))
    )
    # Of so few, another thread takes longer to begin, and to hand over what it has rounded.
    is_short = isinstance(m, tirx.IntImm) and int(m) * int(k) <= _SHORT
    with (script.serial if is_short else script.parallel)(0, m * blocks) as block:
        i, b = block // blocks, block % blocks
        most, sums = allocate(side, "float32"), allocate(side, "int32")
        with script.vectorized(0, side) as lane:
            fill(most, lane, tirx.const(0, "float32"))
        with script.serial(0, size // side) as part, script.vectorized(0, side) as lane:
            number = tirx.abs(data[i, b * size + part * side + lane].astype("float32"))
            fill(most, lane, larger(most[lane], number))
        fill(units, block, step_of(join(lambda a, b: tirx.max(a, b), [most[lane] for lane in range(side)])))  # noqa: PLW0108
        with script.vectorized(0, side) as lane:
            fill(sums, lane, tirx.const(0, "int32"))
        with script.serial(0, size // side) as part, script.vectorized(0, side) as lane:
            place = b * size + part * side + lane
            number = rounded(data[i, place].astype("float32"), units[block]).astype("int8")
            fill(numbers, i * k + place, number)
            fill(sums, lane, sums[lane] + number.astype("int32"))
        total = fold(lambda a, b: a + b, [sums[lane] for lane in range(side)])
        fill(shares, block, total * -attrs.zero_point)
    return numbers, units, shares
