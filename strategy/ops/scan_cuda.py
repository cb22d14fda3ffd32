"""cumsum and cumprod on NVIDIA's GPUs, in CUDA C: blocks of threads scan the parts of each row.

A first kernel sums each part, a second scans it from the sum of those before: so a long row keeps the
whole device busy. With one part for each row the first is left out. The elements of a row lie side by
side where the axis is the last one, and then reads and writes are coalesced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.limit import limits_of
from strategy.cuda.matmul import accumulator
from strategy.cuda.program import Launch, Pointer, Workspace
from strategy.cuda.template import C_TYPES, Template, outputs_of, refuse_epilogue
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.ops.scan import ScanopAttrs
from strategy.pattern import element_bytes
from strategy.schedule import Outs, integer
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
  for (long long i = from + threadIdx.x; i < to; i += THREADS)
    sum = OPERATION(sum, (ACC)data[place(row, i)]);
  ACC total;
  scan_block(sum, warps, &total);
  if (threadIdx.x == 0) totals[row * PARTS + blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS) scan_parts(
    const IN* __restrict__ data, const ACC* __restrict__ totals, OUT* __restrict__ output) {
  __shared__ ACC warps[32];
  long long row = blockIdx.y + (long long)blockIdx.z * ROWS_Y;
  if (row >= ROWS) return;
  ACC before = (ACC)IDENTITY, total;
#if PARTS > 1
  for (int part = threadIdx.x; part < blockIdx.x; part += THREADS)
    before = OPERATION(before, totals[row * PARTS + part]);
  scan_block(before, warps, &total);
  before = total;
#endif
  long long from = (long long)blockIdx.x * PART;
  long long to = from + PART < LENGTH ? from + PART : LENGTH;
  for (long long chunk = from; chunk < to; chunk += THREADS * ITEMS) {
    long long first = chunk + (long long)threadIdx.x * ITEMS;
    ACC values[ITEMS], sum = (ACC)IDENTITY;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      values[i] = first + i < to ? (ACC)data[place(row, first + i)] : (ACC)IDENTITY;
      sum = OPERATION(sum, values[i]);
    }
    ACC found = scan_block(sum, warps, &total);
    // What comes before this thread's first value: the scan of the thread before it.
    ACC running = __shfl_up_sync(0xffffffffu, found, 1);
    if (threadIdx.x % 32 == 31) warps[threadIdx.x / 32] = found;
    __syncthreads();
    if (threadIdx.x % 32 == 0)
      running = threadIdx.x ? warps[threadIdx.x / 32 - 1] : (ACC)IDENTITY;
    __syncthreads();
    running = OPERATION(before, running);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      ACC next = OPERATION(running, values[i]);
      if (first + i < to) output[place(row, first + i)] = (OUT)(EXCLUSIVE ? running : next);
      running = next;
    }
    before = OPERATION(before, total);
  }
}
"""
_ROWS_Y = 32768


def _strategy(name: str, operation: str, identity: int) -> None:
    def strategy_cuda(
        attrs: ScanopAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
    ) -> OpStrategy:
        strategy = OpStrategy()
        if not isinstance(out_type, TensorType) or not out_type.is_constant:
            return strategy

        def schedule(attrs: ScanopAttrs, outs: Outs, target: Target, config: Config) -> Template:
            return schedule_scan(attrs, outs, config, operation, identity)

        strategy.add_implementation(
            compute, schedule, f"{name}_parts.cuda", 10, space=space, symbolic=False
        )
        return strategy

    get_registered_op(name).get_attr("FTVMStrategy").register("cuda", strategy_cuda)


def _rows(attrs: ScanopAttrs, shape: Sequence[int]) -> tuple[int, int, int]:
    """Rows, their length, and how far apart their elements lie."""
    if attrs.axis is None:
        return 1, math.prod(shape), 1
    axis = attrs.axis % len(shape)
    inner = math.prod(shape[axis + 1 :])
    return math.prod(shape[:axis]) * inner, shape[axis], inner


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Threads of a block, elements that each holds, and parts of a row."""
    assert isinstance(attrs, ScanopAttrs)
    limits = limits_of(target)
    rows, length, _ = _rows(attrs, inputs[0].concrete_shape)
    sizes = [t for t in (32, 64, 128, 256, 512, 1024) if t == 32 or t < 2 * length]
    parts = [p for p in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if p == 1 or p * 64 <= length]
    # As many parts as keep the device busy, but each worth a block's while.
    wanted = max(1, min(2 * limits.multiprocessors // rows, length // 1024))
    size = min(sizes[-1], 256)
    return ConfigSpace(
        [Knob("threads", sizes), Knob("items", [1, 2, 4, 8, 16]), Knob("parts", parts)],
        [knob("threads") <= limits.threads],
        derived={"chunk": knob("threads") * knob("items")},
        fallback={"threads": size, "items": 4, "parts": max(p for p in parts if p <= wanted)},
    )


def compute(attrs: ScanopAttrs, inputs: Sequence[Any], out_type: Type, config: Config) -> list[Any]:
    """The output, which the template computes."""
    return outputs_of(out_type)


def schedule_scan(
    attrs: ScanopAttrs, outs: Outs, config: Config, operation: str, identity: int
) -> Template:
    """The kernels for one shape, axis and pair of dtypes."""
    refuse_epilogue(outs)
    data, output = outs.args
    dtype = str(output.dtype)
    summed = accumulator(dtype)
    rows, length, inner = _rows(attrs, [int(e) for e in data.shape])
    threads, items, parts = (integer(config, name) for name in ("threads", "items", "parts"))
    part = -(-length // parts)
    grid = (parts, min(rows, _ROWS_Y), -(-rows // _ROWS_Y))
    block = (threads, 1, 1)
    source, totals, result = Pointer("data"), Pointer("totals"), Pointer("output")
    last = Launch("scan_parts", (source, totals, result), grid, block)
    first = Launch("scan_totals", (source, totals), grid, block)
    return Template(
        source=_SOURCE,
        macros={
            "IN": C_TYPES[str(data.dtype)], "ACC": C_TYPES[summed], "OUT": C_TYPES[dtype],
            "OPERATION(a, b)": f"((a) {operation} (b))", "IDENTITY": identity,
            "EXCLUSIVE": int(attrs.exclusive), "ROWS": rows, "ROWS_Y": _ROWS_Y, "LENGTH": length,
            "INNER": inner, "THREADS": threads, "ITEMS": items, "PARTS": parts, "PART": part,
        },
        parameters=("data", "output"),
        launches=(last,) if parts == 1 else (first, last),
        workspaces=(Workspace("totals", rows * parts * element_bytes(summed)),),
        shared_bytes=dict.fromkeys(("scan_totals", "scan_parts"), 32 * element_bytes(summed)),
    )  # fmt: skip


_strategy("cumsum", "+", 0)
_strategy("cumprod", "*", 1)
