"""cumsum, cumprod and cummax on NVIDIA's GPUs, in CUDA C: blocks of threads scan the parts of each row.

A first kernel sums each part, a second scans it from the sum of those before: so a long row keeps the
whole device busy. With one part for each row the first is left out. The elements of a row lie side by
side where the axis is the last one, and then a thread reads and writes 16 bytes at once, as many times
as it has vectors, before threads wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from strategy.cuda.limit import limits_of
from strategy.cuda.matmul import accumulator
from strategy.cuda.program import Launch, Pointer, Workspace
from strategy.cuda.template import C_TYPES, Template, outputs_of, refuse_epilogue, rows_along
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.ops.scan.operator import ScanopAttrs
from strategy.schedule import Outs, dtype_bytes, integer
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>

__device__ ACC scan_warp(ACC value) {
  for (int by = 1; by < 32; by *= 2) {
    ACC other = __shfl_up_sync(0xffffffffu, value, by);
    if (threadIdx.x % 32 >= by) value = OPERATION(other, value);
  }
  return value;
}

// The scan of one value of each thread; `total` becomes that of all.
__device__ ACC scan_block(ACC value, ACC* warps, ACC* total) {
  ACC found = scan_warp(value);
  if (threadIdx.x % 32 == 31) warps[threadIdx.x / 32] = found;
  __syncthreads();
  if (threadIdx.x < 32) {
    ACC mine = threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : (ACC)IDENTITY;
    mine = scan_warp(mine);
    if (threadIdx.x < THREADS / 32) warps[threadIdx.x] = mine;
  }
  __syncthreads();
  if (threadIdx.x >= 32) found = OPERATION(warps[threadIdx.x / 32 - 1], found);
  *total = warps[THREADS / 32 - 1];
  __syncthreads();
  return found;
}

// What a thread reads, and writes, at once.
struct __align__(WIDTH * sizeof(IN)) Read { IN at[WIDTH]; };
// Stored as one number: parts of a structure nvcc may store one by one.
union Written { OUT at[WIDTH]; STORED whole; };
#define WARPS (THREADS / 32)
#define SUMS (VECTORS * WARPS)
#define SUMS_OF_LANE ((SUMS + 31) / 32)

__device__ long long place(long long row, long long i) {
  return (row / INNER * LENGTH + i) * INNER + row % INNER;
}

extern "C" __global__ void __launch_bounds__(THREADS) scan_totals(
    const IN* __restrict__ data, ACC* __restrict__ totals) {
  __shared__ ACC warps[32];
  long long row = blockIdx.y + (long long)blockIdx.z * ROWS_Y;
  if (row >= ROWS) return;
  long long from = (long long)blockIdx.x * PART;
  long long to = from + PART < LENGTH ? from + PART : LENGTH;
  ACC sum = (ACC)IDENTITY;
#pragma unroll 8
  for (long long i = from + threadIdx.x * WIDTH; i < to; i += THREADS * WIDTH) {
    Read read = *(const Read*)(data + place(row, i));
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) sum = OPERATION(sum, (ACC)read.at[w]);
  }
  ACC total;
  scan_block(sum, warps, &total);
  if (threadIdx.x == 0) totals[row * PARTS + blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS) scan_parts(
    const IN* __restrict__ data, const ACC* __restrict__ totals, OUT* __restrict__ output) {
  __shared__ ACC warps[SUMS > 32 ? SUMS : 32];
  long long row = blockIdx.y + (long long)blockIdx.z * ROWS_Y;
  if (row >= ROWS) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // The last part first: of what the totals were made of, the cache holds the end.
  const int part = PARTS - 1 - blockIdx.x;
  ACC before = (ACC)IDENTITY;
#if PARTS > 1
  ACC sum = (ACC)IDENTITY;
  for (int i = threadIdx.x; i < part; i += THREADS) sum = OPERATION(sum, totals[row * PARTS + i]);
  scan_block(sum, warps, &before);
#endif
  long long from = (long long)part * PART;
  long long to = from + PART < LENGTH ? from + PART : LENGTH;
  for (long long chunk = from; chunk < to; chunk += THREADS * WIDTH * VECTORS) {
    // The vectors of a warp lie side by side; those of one thread, a block's width apart.
    ACC values[VECTORS][WIDTH], sums[VECTORS];
    Read read[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      long long first = chunk + (v * THREADS + threadIdx.x) * WIDTH;
      if (first < to) read[v] = *(const Read*)(data + place(row, first));
    }
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      bool inside = chunk + (v * THREADS + threadIdx.x) * WIDTH < to;
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) {
        ACC value = inside ? (ACC)read[v].at[w] : (ACC)IDENTITY;
        values[v][w] = w ? OPERATION(values[v][w ? w - 1 : 0], value) : value;
      }
      sums[v] = scan_warp(values[v][WIDTH - 1]);
      if (lane == 31) warps[v * WARPS + warp] = sums[v];
    }
    __syncthreads();
    if (warp == 0) {
      ACC mine[SUMS_OF_LANE];
#pragma unroll
      for (int e = 0; e < SUMS_OF_LANE; ++e) {
        int at = lane * SUMS_OF_LANE + e;
        ACC value = at < SUMS ? warps[at] : (ACC)IDENTITY;
        mine[e] = e ? OPERATION(mine[e ? e - 1 : 0], value) : value;
      }
      ACC found = scan_warp(mine[SUMS_OF_LANE - 1]);
      ACC earlier = __shfl_up_sync(0xffffffffu, found, 1);
#pragma unroll
      for (int e = 0; e < SUMS_OF_LANE; ++e) {
        int at = lane * SUMS_OF_LANE + e;
        if (at < SUMS) warps[at] = lane ? OPERATION(earlier, mine[e]) : mine[e];
      }
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      int at = v * WARPS + warp;
      ACC running = at ? OPERATION(before, warps[at ? at - 1 : 0]) : before;
      ACC earlier = __shfl_up_sync(0xffffffffu, sums[v], 1);
      if (lane) running = OPERATION(running, earlier);
      Written written;
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) {
        ACC next = OPERATION(running, values[v][w]);
        if (EXCLUSIVE) next = w ? OPERATION(running, values[v][w ? w - 1 : 0]) : running;
        written.at[w] = (OUT)next;
      }
      long long first = chunk + (v * THREADS + threadIdx.x) * WIDTH;
      if (first < to) __stcs((STORED*)(output + place(row, first)), written.whole);
    }
    before = OPERATION(before, warps[SUMS - 1]);
    __syncthreads();
  }
}
"""
_ROWS_Y = 32768
_STORED = {
    1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "uint2",
    16: "uint4",
}


def _strategy(name: str, operation: str, identity: Callable[[str], str]) -> None:
    """Register the scan by a C expression of `a` and `b`, whose identity depends on the dtype."""

    def strategy_cuda(
        attrs: ScanopAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
    ) -> OpStrategy:
        strategy = OpStrategy()
        if not isinstance(out_type, TensorType) or not out_type.is_constant or not out_type.size:
            return strategy

        def schedule(attrs: ScanopAttrs, outs: Outs, target: Target, config: Config) -> Template:
            return schedule_scan(attrs, outs, config, operation, identity)

        strategy.add_implementation(
            compute, schedule, f"{name}_parts.cuda", 10, version=2, space=space, symbolic=False
        )
        return strategy

    get_registered_op(name).get_attr("FTVMStrategy").register(["cuda", "gpu"], strategy_cuda)


def _rows(attrs: ScanopAttrs, shape: Sequence[int]) -> tuple[int, int, int]:
    """As `rows_along`; the whole is one row without an axis."""
    return (1, math.prod(shape), 1) if attrs.axis is None else rows_along(shape, attrs.axis)


def space(
    attrs: ScanopAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Threads of a block, accesses that each makes at once, and parts of a row."""
    limits = limits_of(target)
    rows, length, inner = _rows(attrs, inputs[0].concrete_shape)
    width = _width(length, inner, inputs[0].dtype, out_type.dtype)
    sizes = [t for t in (32, 64, 128, 256, 512, 1024) if t == 32 or t < 2 * length]
    parts = [p for p in (2**e for e in range(12)) if p == 1 or p * 64 <= length]
    # As many parts as keep the device busy, but each worth a block's while. If that is more than what a larger block
    # takes at once, one row has a part for each such block.
    wanted = max(1, min(8 * limits.multiprocessors // rows, length // 4096))
    size, chunks = min(sizes[-1], 256), length // (512 * 4 * width)
    if rows == 1 and chunks > 8 * limits.multiprocessors:
        size, wanted = 512, chunks
    vectors = [v for v in (1, 2, 4, 8) if v * width <= 64]
    few = max(v for v in vectors if v == 1 or (v <= 4 and v * width * size < 2 * length))
    return ConfigSpace(
        [Knob("threads", sizes), Knob("vectors", vectors), Knob("parts", parts)],
        [knob("threads") <= limits.threads],
        derived={"chunk": knob("threads") * knob("vectors") * width},
        fallback={"threads": size, "vectors": few, "parts": max(p for p in parts if p <= wanted)},
    )


def _width(length: int, inner: int, dtype: str, out_dtype: str) -> int:
    """Number of elements side by side in one access of a thread: 16 bytes of the wider dtype."""
    width = 16 // max(dtype_bytes(dtype), dtype_bytes(out_dtype))
    return width if inner == 1 and length % width == 0 else 1


def compute(attrs: ScanopAttrs, inputs: Sequence[Any], out_type: Type, config: Config) -> list[Any]:
    """The output, which the template computes."""
    return outputs_of(out_type)


def schedule_scan(
    attrs: ScanopAttrs, outs: Outs, config: Config, operation: str, identity: Callable[[str], str]
) -> Template:
    """The kernels for one shape, axis and pair of dtypes."""
    refuse_epilogue(outs)
    data, output = outs.args
    dtype = str(output.dtype)
    summed = accumulator(dtype)
    rows, length, inner = _rows(attrs, [int(e) for e in data.shape])
    threads, vectors, parts = (integer(config, name) for name in ("threads", "vectors", "parts"))
    width = _width(length, inner, str(data.dtype), dtype)
    part = -(-length // (parts * width)) * width
    grid = (parts, min(rows, _ROWS_Y), -(-rows // _ROWS_Y))
    block = (threads, 1, 1)
    source, totals, result = Pointer("data"), Pointer("totals"), Pointer("output")
    last = Launch("scan_parts", (source, totals, result), grid, block)
    first = Launch("scan_totals", (source, totals), grid, block)
    return Template(
        source=_SOURCE,
        macros={
            "IN": C_TYPES[str(data.dtype)], "ACC": C_TYPES[summed], "OUT": C_TYPES[dtype],
            "OPERATION(a, b)": f"({operation})", "IDENTITY": identity(summed),
            "EXCLUSIVE": int(attrs.exclusive), "ROWS": rows, "ROWS_Y": _ROWS_Y, "LENGTH": length,
            "INNER": inner, "THREADS": threads, "VECTORS": vectors, "WIDTH": width, "PARTS": parts,
            "PART": part, "STORED": _STORED[width * dtype_bytes(dtype)],
        },
        parameters=("data", "output"),
        launches=(last,) if parts == 1 else (first, last),
        workspaces=(Workspace("totals", rows * parts * dtype_bytes(summed)),),
        shared_bytes={
            "scan_totals": 32 * dtype_bytes(summed),
            "scan_parts": max(32, vectors * threads // 32) * dtype_bytes(summed),
        },
    )


def _least(dtype: str) -> str:
    """The smallest number in C."""
    if dtype.startswith("float"):
        return "(-1.0 / 0.0)"
    bits = int(dtype.lstrip("uint"))
    return "0" if dtype.startswith("u") else f"(-{(1 << (bits - 1)) - 1}ll - 1)"


_strategy("cumsum", "(a) + (b)", lambda dtype: "0")
_strategy("cumprod", "(a) * (b)", lambda dtype: "1")
_strategy("cummax", "(b) != (b) || (b) > (a) ? (b) : (a)", _least)  # NaN stays
