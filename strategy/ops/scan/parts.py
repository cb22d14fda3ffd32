"""`cumsum_parts.cpu`, `cumprod_parts.cpu`, `cummax_parts.cpu`: one long row in two passes, each by all threads.

The row is cut into parts, and each part into chunks. The first pass adds up each chunk; each chunk of the second
begins with the sum of all before it. A part's chunks take turns, so that each has its total ready when it is its turn
again. Totals of float32 are summed in float64, so that they lose less than one running total does. Those of narrow
floats are of float32: few processors convert float64 to float16.

Products of floating-point numbers are left out: a product of a part may overflow where none from the beginning does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from strategy.cpu.ahead import LINE_BYTES
from strategy.cpu.loop import allocate, bound, fill, written
from strategy.cpu.widened import NARROW
from strategy.ops.scan.operator import ScanopAttrs, Start
from strategy.order import FLOATS
from strategy.schedule import dtype_bytes, integer, lanes_of
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

# Fewer elements are scanned by one thread in less time than the second pass takes.
LEAST = 1 << 12
_SETS = 4096  # bytes between two cache lines that share a set of the first level


def space(attrs: ScanopAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """Number of parts, of chunks of each, and the vectors that sum a chunk."""
    # More chunks of a power of two of elements, each read and written, take all ways of a set of the cache.
    chunks = 4 if out_type.dtype in NARROW else 8
    apart = out_type.size // (target.threads * chunks) * dtype_bytes(out_type.dtype) % _SETS
    untuned = 6 if chunks == 8 and min(apart, _SETS - apart) < LINE_BYTES else chunks
    return _space(out_type.size, lanes_of(target, _wide(out_type.dtype)), target.threads, untuned)


@lru_cache(maxsize=1024)
def _space(extent: int, full: int, threads: int, untuned: int) -> ConfigSpace:
    counts = sorted({1, threads, 2 * threads, 4 * threads})
    chunks = (1, 2, 4, 6, 8, 12, 16)
    fallback = {"parts": threads, "chunks": untuned, "lanes": full, "vectors": 4}
    return ConfigSpace(
        [
            Knob("parts", [n for n in counts if n == threads or n * chunks[-1] * full <= extent]),
            Knob("chunks", chunks),
            Knob("lanes", tuple(n for n in (full // 2, full, 2 * full) if n >= 1)),
            Knob("vectors", (1, 2, 4, 8)),
        ],
        derived={"width": knob("lanes") * knob("vectors")},
        fallback=fallback,
    )


def _wide(dtype: str) -> str:
    if dtype in NARROW:
        return "float32"
    return "float64" if dtype in FLOATS else dtype


def compute(
    combine: Callable[[Any, Any], Any], start: Start, attrs: ScanopAttrs, inputs: Sequence[Any],
    out_type: TensorType, config: Config,
) -> list[Any]:
    return written(lambda ins, out: _loops(combine, start, attrs, ins[0], out, config), inputs, out_type, "scan")


def _loops(
    combine: Callable[[Any, Any], Any], start: Start, attrs: ScanopAttrs, data: Any, out: Any, config: Config
) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    dtype, extent = str(out.dtype), math.prod(int(n) for n in data.shape)
    wide = _wide(dtype)
    parts, chunks, lanes, vectors = (integer(config, name) for name in ("parts", "chunks", "lanes", "vectors"))
    size, width = extent // (parts * chunks), lanes * vectors
    first = start(wide)
    source, result = script.buffer_proxy(data), script.buffer_proxy(out)

    def read(place: Any) -> Any:
        return tirx.Cast(wide, source[place])

    def scan(total: Any, lane: Any, place: Any) -> None:
        """One element after `total[lane]`."""
        if attrs.exclusive:
            value = bound(read(place))
            result[place] = tirx.Cast(dtype, total[lane])
            total[lane] = combine(total[lane], value)
        else:
            total[lane] = combine(total[lane], read(place))
            result[place] = tirx.Cast(dtype, total[lane])

    def add_up(chunk: Any) -> None:
        sums = allocate(width, wide)
        total = allocate(1, wide)

        def each(step: Callable[[Any], None]) -> None:
            with script.unroll(0, vectors) as vector, script.vectorized(0, lanes) as lane:
                step(vector * lanes + lane)

        each(lambda n: fill(sums, n, first))
        with script.serial(0, size // width) as turn:
            each(lambda n: fill(sums, n, combine(sums[n], read(chunk * size + turn * width + n))))
        total[0] = first
        with script.unroll(0, width) as n:
            total[0] = combine(total[0], sums[n])
        with script.serial(size // width * width, size) as rest:
            total[0] = combine(total[0], read(chunk * size + rest))
        totals[chunk] = total[0]

    def scan_part(part: Any) -> None:
        current = allocate(chunks, wide)
        current[0] = first
        with script.serial(0, part * chunks) as before:
            current[0] = combine(current[0], totals[before])
        with script.unroll(1, chunks) as chunk:
            current[chunk] = combine(current[chunk - 1], totals[part * chunks + chunk - 1])
        with script.serial(0, size) as element, script.unroll(0, chunks) as chunk:
            scan(current, chunk, (part * chunks + chunk) * size + element)

    def scan_row() -> None:
        loop = script.parallel if parts > 1 else script.serial
        with loop(0, parts) as part, script.serial(0, chunks) as chunk:
            add_up(part * chunks + chunk)
        with loop(0, parts) as part:
            scan_part(part)
        if extent % (parts * chunks):
            last = allocate(1, wide)
            last[0] = first
            with script.serial(0, parts * chunks) as before:
                last[0] = combine(last[0], totals[before])
            with script.serial(size * parts * chunks, extent) as place:
                scan(last, 0, place)

    with IRBuilder() as builder:
        with script.serial(0, 1):  # one statement, which a function's body is
            totals = script.buffer_proxy(script.alloc_buffer([parts * chunks], wide, scope="global"))
            scan_row()
        return builder.get()
