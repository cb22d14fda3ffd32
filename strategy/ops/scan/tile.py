"""`cumsum_tile.cpu`, `cumprod_tile.cpu`, `cummax_tile.cpu`: several scans side by side, whose totals stay in registers.

A scan waits for the element before it. Along an axis before the last, neighbours fill vectors; along the
last, some rows take turns, so that each has its total ready when it is its turn again. Totals of narrow floats are of
float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from strategy.cpu.loop import allocate, fill, written
from strategy.cpu.row import PARALLEL_BYTES, reduction_accumulator
from strategy.op_strategy import OpStrategy
from strategy.ops.scan import parts
from strategy.ops.scan.operator import ScanopAttrs, Start, one, zero
from strategy.order import larger, lowest
from strategy.pattern import register_cpu_implementations, schedule_extern_cpu
from strategy.schedule import dtype_bytes, integer, lanes_of
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_DTYPES = frozenset({"bfloat16", "float16", "float32", "float64", "int32", "int64"})
_LONG = 1 << 15  # elements of a row that is worth two threads' while


def _split(attrs: ScanopAttrs, shape: Sequence[Any]) -> tuple[int, int, int]:
    """Numbers of elements before the axis, along it, and behind it."""
    extents = [int(d) for d in shape]
    if attrs.axis is None:
        return 1, math.prod(extents), 1
    axis = attrs.axis % len(extents)
    return math.prod(extents[:axis]), extents[axis], math.prod(extents[axis + 1 :])


def space(attrs: ScanopAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """Number of scans side by side (`lanes` in each of `vectors`), unrolling, and threads or none."""
    full = lanes_of(target, reduction_accumulator(out_type.dtype))
    parallel = out_type.size * dtype_bytes(out_type.dtype) >= PARALLEL_BYTES
    threads = target.threads if parallel else 1
    return _space(*_split(attrs, inputs[0].shape), full, target.vector_registers, threads)


@lru_cache(maxsize=1024)
def _space(count: int, extent: int, inner: int, full: int, registers: int, threads: int) -> ConfigSpace:
    across = inner > 1
    lanes = tuple(x for x in (full // 4, full // 2, full) if x >= 1) if across else (1,)
    if across:
        vectors = tuple(v for v in (1, 2, 3, 4, 6, 8, 12) if (v - 1) * lanes[0] < inner)
    else:
        vectors = tuple(v for v in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16) if count % v == 0)
    unrolls = tuple(u for u in (1, 2, 3, 4, 5, 6, 8, 16) if extent % u == 0)

    def fallback() -> dict[str, Any]:
        fitting = [v for v in vectors if v <= 8 and (v == 1 or not across or v * full <= inner)]
        tasks = {v: count * -(-inner // (v * full)) if across else count // v for v in fitting}
        shared = [v for v in fitting if tasks[v] % threads == 0]
        return {
            "lanes": lanes[-1], "vectors": max(shared or fitting[:1]),
            "unroll": max(u for u in unrolls if u <= (1 if across else 4)), "parallel": threads > 1,
        }

    return ConfigSpace(
        [Knob("lanes", lanes), Knob("vectors", vectors), Knob("unroll", unrolls), Knob("parallel", (False, True))],
        # The totals and a vector that is read fit the registers; beyond so many, code is only longer.
        [knob("vectors") < registers, knob("vectors") * knob("unroll") <= 2 * registers],
        derived={"width": knob("lanes") * knob("vectors")},
        fallback=fallback,
    )


def _compute(
    combine: Callable[[Any, Any], Any], start: Start, attrs: ScanopAttrs, inputs: Sequence[Any],
    out_type: TensorType, config: Config,
) -> list[Any]:
    return written(lambda ins, out: _scan(combine, start, attrs, ins[0], out, config), inputs, out_type, "scan")


def _scan(
    combine: Callable[[Any, Any], Any], start: Start, attrs: ScanopAttrs, data: Any, out: Any, config: Config
) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    count, extent, inner = _split(attrs, data.shape)
    lanes, vectors, unroll = (integer(config, name) for name in ("lanes", "vectors", "unroll"))
    width, dtype = lanes * vectors, reduction_accumulator(str(out.dtype))
    blocks, first = -(-inner // width), start(dtype)
    whole = inner == 1 or inner % width == 0

    def scan_block(block: Any) -> None:
        totals = allocate(width, dtype)

        def each(step: Callable[[Any], None]) -> None:
            inner_loop = script.vectorized if lanes > 1 else script.unroll
            with script.unroll(0, vectors) as vector, inner_loop(0, lanes) as lane:
                step(vector * lanes + lane)

        each(lambda n: fill(totals, n, first))
        with script.serial(0, extent // unroll) as outer, script.unroll(0, unroll) as inner_step:
            element = outer * unroll + inner_step

            def place(n: Any) -> Any:
                if inner == 1:
                    return (block * width + n) * extent + element
                return (block // blocks * extent + element) * inner + column(n)

            def column(n: Any) -> Any:
                return block % blocks * width + n

            def add(n: Any) -> None:
                value = tirx.Cast(dtype, source[place(n)])
                if not whole:
                    value = tirx.if_then_else(column(n) < inner, value, first)
                totals[n] = combine(totals[n], value)

            def store(n: Any) -> None:
                total = totals[n].astype(str(out.dtype))
                if whole:
                    result[place(n)] = total
                    return
                with script.If(column(n) < inner), script.Then():
                    result[place(n)] = total

            for step in (store, add) if attrs.exclusive else (add, store):
                each(step)

    with IRBuilder() as builder:
        source, result = script.buffer_proxy(data), script.buffer_proxy(out)
        tasks = count // vectors if inner == 1 else count * blocks
        with (script.parallel if config["parallel"] else script.serial)(0, tasks) as block:
            scan_block(block)
        return builder.get()


def _add(name: str, combine: Callable[[Any, Any], Any], start: Start) -> None:
    compute, compute_parts = partial(_compute, combine, start), partial(parts.compute, combine, start)

    def add(
        strategy: OpStrategy, attrs: ScanopAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
    ) -> None:
        data = inputs[0]
        known = all(d.is_constant and int(d) >= 1 for d in data.shape)
        if not known or data.dtype not in _DTYPES or out_type.dtype not in _DTYPES:
            return
        count, extent, inner = _split(attrs, data.shape)
        if count * inner == 1 and extent >= parts.LEAST and (name != "cumprod" or out_type.dtype.startswith("int")):
            # Two threads take half of the generic one's time for 65,536 elements; for few, they only start in it.
            level = 12 if target.threads > 1 and extent >= _LONG else 8
            strategy.add_implementation(
                compute_parts, schedule_extern_cpu, f"{name}_parts.cpu", level, space=parts.space, symbolic=False
            )
        if count * inner > 1:
            strategy.add_implementation(
                compute, schedule_extern_cpu, f"{name}_tile.cpu", 12, space=space, symbolic=False
            )

    register_cpu_implementations(name, add)


_add("cumsum", lambda a, b: a + b, zero)
_add("cumprod", lambda a, b: a * b, one)
_add("cummax", larger, lowest)
