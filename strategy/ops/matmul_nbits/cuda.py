"""`matmul_nbits_rows.cuda`: few rows by a weight of 4 or 8 bits, which is read once, 16 bytes at a time.

CUDA C by hand. A warp has some columns of the result, and its lanes take chunks of the weight along k, each with one
scale.
Numbers become floats by the exponent of 2²³, whose last bits they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.cuda.library import (
    LEFT,
    OUTPUT,
    RIGHT,
    THIRD,
    Handwritten,
    call_in_place,
    schedule_in_place,
)
from strategy.cuda.limit import limits_of
from strategy.cuda.program import Launch, Pointer
from strategy.cuda.template import C_TYPES, Template
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.ops.matmul_nbits.operator import MatMulNBitsAttrs
from strategy.schedule import integer
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_MOST_ROWS = 8  # for more, products by tensor cores of the weight as floats are worth their memory
_CHUNK_BITS = 128  # that a lane reads at a time

_SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define WORD (32 / BITS)  // numbers of a word
#define CHUNKS (K / (WORD * 4))

struct __align__(WORD * sizeof(TYPE) < 16 ? WORD * sizeof(TYPE) : 16) Numbers { TYPE x[WORD]; };

extern "C" __global__ void __launch_bounds__(WARPS * 32) product_of_bits(
    const TYPE* __restrict__ data, const unsigned char* __restrict__ weight, const TYPE* __restrict__ scales,
    TYPE* __restrict__ output) {
  const int lane = threadIdx.x % 32, first = (blockIdx.x * WARPS + threadIdx.x / 32) * EACH;
  float sums[EACH][ROWS];
  #pragma unroll
  for (int c = 0; c < EACH; ++c)
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) sums[c][i] = 0;

  #pragma unroll UNROLL
  for (int chunk = lane; chunk < CHUNKS; chunk += 32) {
    uint4 words[EACH];
    float scale[EACH], part[EACH][ROWS];
    #pragma unroll
    for (int c = 0; c < EACH; ++c) {
      const long long column = first + c < COLUMNS ? first + c : COLUMNS - 1;
      words[c] = *(const uint4*)(weight + column * ROW_BYTES + chunk * 16);
      scale[c] = (float)scales[column * BLOCKS + chunk / PER_BLOCK];
      #pragma unroll
      for (int i = 0; i < ROWS; ++i) part[c][i] = 0;
    }
    #pragma unroll
    for (int w = 0; w < 4; ++w) {
      float numbers[EACH][WORD];
      #pragma unroll
      for (int c = 0; c < EACH; ++c) {
        const unsigned word = w == 0 ? words[c].x : w == 1 ? words[c].y : w == 2 ? words[c].z : words[c].w;
        #pragma unroll
        for (int e = 0; e < WORD; ++e)
          numbers[c][e] = __int_as_float(0x4B000000 | (word >> e * BITS & ((1 << BITS) - 1))) - (8388608.0f + ZERO);
      }
      #pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        const Numbers given = *(const Numbers*)(data + (long long)i * K + (chunk * 4 + w) * WORD);
        #pragma unroll
        for (int e = 0; e < WORD; ++e) {
          const float x = (float)given.x[e];
          #pragma unroll
          for (int c = 0; c < EACH; ++c) part[c][i] += numbers[c][e] * x;
        }
      }
    }
    #pragma unroll
    for (int c = 0; c < EACH; ++c)
      #pragma unroll
      for (int i = 0; i < ROWS; ++i) sums[c][i] += part[c][i] * scale[c];
  }

  #pragma unroll
  for (int c = 0; c < EACH; ++c)
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      float sum = sums[c][i];
      #pragma unroll
      for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, by);
      if (lane == 0 && first + c < COLUMNS) output[(long long)i * COLUMNS + first + c] = (TYPE)sum;
    }
}
"""


def _strategy(
    attrs: MatMulNBitsAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The plain schedule of all reductions, and the kernel for few rows."""
    strategy: OpStrategy = _generic.default(attrs, inputs, out_type, target)
    if takes(attrs, inputs):
        strategy.add_implementation(compute, schedule_in_place, "matmul_nbits_rows.cuda", 15, space=space)
    return strategy


def takes(attrs: MatMulNBitsAttrs, inputs: Sequence[TensorType]) -> bool:
    """True if the rows are few, no chunk has two scales, and the data are not rounded."""
    (m, k), numbers = inputs[0].shape, _CHUNK_BITS // attrs.bits
    constant = all(e.is_constant for kind in inputs[:2] for e in kind.shape)
    return (
        constant and int(m) <= _MOST_ROWS and int(k) % numbers == 0
        and attrs.block_size % numbers == 0 and attrs.accuracy_level == 0
    )


def space(
    attrs: MatMulNBitsAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Warps of a block, columns of each, and chunks that are read at once."""
    rows, columns = out_type.concrete_shape
    most = max(32 // rows, 1)  # columns, whose sums are in registers
    enough = columns // (4 * limits_of(target).multiprocessors)  # for each multiprocessor to have a block of four warps
    return ConfigSpace(
        [Knob("warps", [1, 2, 4, 8, 16]), Knob("columns", [1, 2, 4, 8]), Knob("unroll", [1, 2, 4])],
        [knob("columns") <= most],
        fallback={"warps": 4, "columns": max(c for c in (1, 2, 4) if c == 1 or c <= min(enough, most)), "unroll": 2},
    )


def compute(attrs: MatMulNBitsAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The product by one launch."""
    (m, k), (n, blocks, size) = ([int(e) for e in t.shape] for t in inputs[:2])
    dtype, warps, columns = out_type.dtype, integer(config, "warps"), integer(config, "columns")
    macros: dict[str, int | str] = {
        "WARPS": warps, "EACH": columns, "TYPE": C_TYPES[dtype], "ROWS": m, "K": k,
        "COLUMNS": n, "BLOCKS": blocks, "ROW_BYTES": blocks * size, "BITS": attrs.bits, "ZERO": attrs.zero_point,
        "PER_BLOCK": attrs.block_size * attrs.bits // _CHUNK_BITS,
    }
    launch = Launch(
        "product_of_bits", tuple(Pointer(name) for name in (LEFT, RIGHT, THIRD, OUTPUT)),
        (-(-n // (warps * columns)), 1, 1), (warps * 32, 1, 1),
    )
    step = Handwritten(Template(_SOURCE.replace("UNROLL", str(config["unroll"])), macros, (), (launch,)).code, launch)
    return [call_in_place(step, inputs, (m, n), dtype, "matmul_nbits")]


_generic = get_registered_op("matmul_nbits").get_attr("FTVMStrategy")
_generic.register(["cuda", "gpu"], _strategy)
