"""CUDA C of `attention_flash.cuda`, after FlashAttention-2 (Dao, 2023), and what `attention_wgmma.cuda` shares with it.

A block has a tile of queries, and takes keys and values tile by tile through shared memory, which `cp.async` fills
ahead. A warp keeps its scores, and the sums of its values, in fragments of `mma.sync`; powers become operands of the
second product where they are. Of several parts, each has some of the keys (Flash-Decoding), and `JOIN` joins them.
"""
# Over 300 lines: one kernel in CUDA C, and the parts of it that the kernel by wgmma shares.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.cuda.library import number_of
from strategy.cuda.mma import FRAGMENTS
from strategy.cuda.program import Number
from strategy.cuda.template import C_TYPES
from strategy.ops.attention.operator import PLAIN, AttentionAttrs, factor

_LEAST_SCALE = 2.0**-126  # that float32 has

# Shared by all kernels.
SHARED = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define THREADS (WARPS * 32)
#define BLOCK_M (WARPS * TILES * 16)
#define STEPS ((DEPTH + 15) / 16)  // of the first product
#define BANDS ((WIDTH + 15) / 16)  // of 16 columns of the second
#define HIDDEN __int_as_float(0xFF800000)

// Not `min`, which code of TVM's before this has for narrow floats.
__device__ __forceinline__ int lower(int a, int b) { return a < b ? a : b; }

__device__ __forceinline__ float power(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The number that scores are lessened by: the largest, or 0 where all keys are hidden.
__device__ __forceinline__ float shift(float largest) { return largest == HIDDEN ? 0 : largest; }
"""

# Shared by those that attend. KIND is the type in PTX.
PACK = r"""
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned both;
  asm volatile("cvt.rn.KINDx2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
"""

ATTEND = (
    FRAGMENTS
    + PACK
    + r"""
// Bytes from row to row in shared memory: an odd number of 16, so that eight rows are in different banks.
#define KEY_ROW (STEPS * 32 + 16)
#define VALUE_ROW (BANDS * 32 + 16)
#define STAGE (BLOCK_N * (KEY_ROW + VALUE_ROW))

__device__ __forceinline__ void load_transposed(unsigned (&to)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

// Rows of LENGTH numbers at their places to shared memory; zeros behind the length, and behind the `left` rows.
template <int ROWS, int LENGTH, typename Place>
__device__ __forceinline__ void fetch(unsigned to, const TYPE* from, int left, Place place) {
  constexpr int chunks = (LENGTH + 15) / 16 * 2;
  for (int i = threadIdx.x; i < ROWS * chunks; i += THREADS) {
    const int row = i / chunks, chunk = i % chunks;
    const bool there = row < left && chunk * 8 < LENGTH;
    const TYPE* at = there ? from + place(row) * LENGTH + chunk * 8 : from;
    const int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(to + row * (chunks + 1) * 16 + chunk * 16), "l"(at), "r"(bytes) : "memory");
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_flash(
    const TYPE* __restrict__ query, const TYPE* __restrict__ key, const TYPE* __restrict__ value,
#if BIASED
    const BIAS* __restrict__ bias,
#endif
    SUM* __restrict__ output, int m, int n) {
  extern __shared__ __align__(128) unsigned char storage[];
  const unsigned queries = (unsigned)__cvta_generic_to_shared(storage), stages = queries + BLOCK_M * KEY_ROW;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Causal tiles are the longer the later: those begin first.
  const int rows = EACH * m, part = blockIdx.x % PARTS;
  const int first = (gridDim.x / PARTS - 1 - blockIdx.x / PARTS) * BLOCK_M;
  const long long group = (long long)blockIdx.z * gridDim.y + blockIdx.y;
  // The rows of a query and of its result, and of a key and its value, in memory.
  auto query_place = [&](int row) {
    if (!BY_TOKENS) return group * rows + row;
    return ((blockIdx.z * (long long)m + row % m) * gridDim.y + blockIdx.y) * EACH + row / m;
  };
  auto key_place = [&](long long row) {
    return BY_TOKENS ? (blockIdx.z * (long long)n + row) * gridDim.y + blockIdx.y : group * n + row;
  };

  int seen = n, seen_by_all = n;
  if (CAUSAL) {
    const int last = lower(first + BLOCK_M, rows) - 1;
    const bool one_head = first / m == last / m;
    seen = lower(n, (one_head ? last % m : m - 1) + 1), seen_by_all = lower(n, (one_head ? first % m : 0) + 1);
  }
  const int blocks = (seen + BLOCK_N - 1) / BLOCK_N;
  const int begin = blocks * part / PARTS, end = blocks * (part + 1) / PARTS;

  // The keys and values of a block, if there is one, as a group of copies of its own.
  auto fetch_both = [&](int block, unsigned to) {
    if (block < end) {
      const int origin = block * BLOCK_N, left = n - origin;
      auto place = [&](int row) { return key_place(origin + row); };
      fetch<BLOCK_N, DEPTH>(to, key, left, place);
      fetch<BLOCK_N, WIDTH>(to + BLOCK_N * KEY_ROW, value, left, place);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  fetch<BLOCK_M, DEPTH>(queries, query, rows - first, [&](int row) { return query_place(first + row); });
  #pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) fetch_both(begin + stage, stages + stage * STAGE);

  const int warp_row = warp * TILES * 16;
  const unsigned query_at = queries + (warp_row + lane % 16) * KEY_ROW + lane / 16 * 16;
  const unsigned key_at = (lane % 8 + lane / 16 * 8) * KEY_ROW + lane / 8 % 2 * 16;
  const unsigned value_at = BLOCK_N * KEY_ROW + lane % 16 * VALUE_ROW + lane / 16 * 16;
  // A lane has numbers of two rows of each tile of 16.
  float sums[TILES][BANDS * 2][4], largest[TILES][2], total[TILES][2];
  unsigned kept[TILES][KEEP ? STEPS : 1][4];
  int limit[TILES][2];
#if BIASED
  const BIAS* bias_row[TILES][2];
#endif
  #pragma unroll
  for (int t = 0; t < TILES; ++t) {
    #pragma unroll
    for (int j = 0; j < BANDS * 2; ++j)
      #pragma unroll
      for (int e = 0; e < 4; ++e) sums[t][j][e] = 0;
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[t][h] = HIDDEN, total[t][h] = 0;
      const int row = lower(first + warp_row + t * 16 + h * 8 + lane / 4, rows - 1), i = row % m;
      limit[t][h] = CAUSAL ? lower(n, i + 1) : n;
#if BIASED
      const long long head = (long long)blockIdx.y * EACH + row / m;
      const long long at = (BIAS_BATCH ? blockIdx.z : 0) * (BIAS_HEADS ? (long long)gridDim.y * EACH : 1) +
                           (BIAS_HEADS ? head : 0);
      bias_row[t][h] = bias + (at * (BIAS_ROWS ? m : 1) + (BIAS_ROWS ? i : 0)) * (BIAS_KEYS ? n : 1);
#endif
    }
  }

  unsigned read = stages;
  for (int block = begin; block < end; ++block) {
    // All groups but the newest STAGES - 2 have come, and all threads have left the stage that is filled next.
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
    __syncthreads();
    fetch_both(block + STAGES - 1, stages + (block - begin + STAGES - 1) % STAGES * STAGE);
    if (KEEP && block == begin) {
      #pragma unroll
      for (int t = 0; t < TILES; ++t)
        #pragma unroll
        for (int step = 0; step < STEPS; ++step)
          load(kept[t][KEEP ? step : 0], query_at + t * 16 * KEY_ROW + step * 32);
    }

    float scores[TILES][BLOCK_N / 8][4];
    #pragma unroll
    for (int t = 0; t < TILES; ++t)
      #pragma unroll
      for (int j = 0; j < BLOCK_N / 8; ++j)
        #pragma unroll
        for (int e = 0; e < 4; ++e) scores[t][j][e] = 0;
    #pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      if (!KEEP) {
        #pragma unroll
        for (int t = 0; t < TILES; ++t) load(kept[t][0], query_at + t * 16 * KEY_ROW + step * 32);
      }
      #pragma unroll
      for (int j = 0; j < BLOCK_N / 16; ++j) {
        unsigned keys[4];
        load(keys, read + key_at + j * 16 * KEY_ROW + step * 32);
        #pragma unroll
        for (int t = 0; t < TILES; ++t) {
          multiply(scores[t][j * 2], kept[t][KEEP ? step : 0], keys[0], keys[1]);
          multiply(scores[t][j * 2 + 1], kept[t][KEEP ? step : 0], keys[2], keys[3]);
        }
      }
    }

    const int origin = block * BLOCK_N + lane % 4 * 2;
    const bool all_seen = (block + 1) * BLOCK_N <= seen_by_all;
    #pragma unroll
    for (int t = 0; t < TILES; ++t)
      #pragma unroll
      for (int j = 0; j < BLOCK_N / 8; ++j)
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& score = scores[t][j][e];
          const int column = origin + j * 8 + e % 2;
          if (SCALE_FIRST) score *= SCALE;
#if BIASED
          const BIAS* at = bias_row[t][e / 2] + (BIAS_KEYS ? lower(column, n - 1) : 0);
#if BIAS_BOOL
          score = *at ? score : HIDDEN;
#else
          score += (float)*at;
#endif
#endif
          if (!all_seen && column >= limit[t][e / 2]) score = HIDDEN;
        }

    // The sums so far shrink by the growth of the largest score.
    constexpr float unit = 1.44269504f * (SCALE_FIRST ? 1.0f : SCALE);
    #pragma unroll
    for (int t = 0; t < TILES; ++t)
      #pragma unroll
      for (int h = 0; h < 2; ++h) {
        float found = largest[t][h];
        #pragma unroll
        for (int j = 0; j < BLOCK_N / 8; ++j) found = fmaxf(found, fmaxf(scores[t][j][h * 2], scores[t][j][h * 2 + 1]));
        found = fmaxf(found, __shfl_xor_sync(0xFFFFFFFF, found, 1));
        found = fmaxf(found, __shfl_xor_sync(0xFFFFFFFF, found, 2));
        const float less = shift(found) * unit, shrunk = power(largest[t][h] * unit - less);
        largest[t][h] = found;
        float added = 0;
        #pragma unroll
        for (int j = 0; j < BLOCK_N / 8; ++j)
          #pragma unroll
          for (int e = h * 2; e < h * 2 + 2; ++e) added += scores[t][j][e] = power(scores[t][j][e] * unit - less);
        total[t][h] = total[t][h] * shrunk + added;
        #pragma unroll
        for (int j = 0; j < BANDS * 2; ++j) sums[t][j][h * 2] *= shrunk, sums[t][j][h * 2 + 1] *= shrunk;
      }

    // Two blocks of eight scores, as the lanes have them, are a fragment of a left operand.
    #pragma unroll
    for (int k = 0; k < BLOCK_N / 16; ++k) {
      unsigned powers[TILES][4];
      #pragma unroll
      for (int t = 0; t < TILES; ++t)
        #pragma unroll
        for (int i = 0; i < 4; ++i)
          powers[t][i] = pack(scores[t][k * 2 + i / 2][i % 2 * 2], scores[t][k * 2 + i / 2][i % 2 * 2 + 1]);
      #pragma unroll
      for (int j = 0; j < BANDS; ++j) {
        unsigned values[4];
        load_transposed(values, read + value_at + k * 16 * VALUE_ROW + j * 32);
        #pragma unroll
        for (int t = 0; t < TILES; ++t) {
          multiply(sums[t][j * 2], powers[t], values[0], values[1]);
          multiply(sums[t][j * 2 + 1], powers[t], values[2], values[3]);
        }
      }
    }
    read = read == stages + (STAGES - 1) * STAGE ? stages : read + STAGE;
  }

  const long long all = (long long)gridDim.z * gridDim.y * rows;
  #pragma unroll
  for (int t = 0; t < TILES; ++t)
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
      float whole = total[t][h];
      whole += __shfl_xor_sync(0xFFFFFFFF, whole, 1);
      whole += __shfl_xor_sync(0xFFFFFFFF, whole, 2);
      const int row = first + warp_row + t * 16 + h * 8 + lane / 4;
      if (row >= rows) continue;
      // A query that sees no key gives 0.
      const float factor = PARTS > 1 || whole == 0 ? 1 : 1 / whole;
      SUM* to = output + (part * all + query_place(row)) * (PARTS > 1 ? WIDTH + 2 : WIDTH);
      #pragma unroll
      for (int j = 0; j < BANDS * 2; ++j) {
        const int column = j * 8 + lane % 4 * 2;
        if (WIDTH % 16 == 0 || column < WIDTH) {
#if PARTS > 1
          *(float2*)(to + column) = make_float2(sums[t][j][h * 2], sums[t][j][h * 2 + 1]);
#else
          *(unsigned*)(to + column) = pack(sums[t][j][h * 2] * factor, sums[t][j][h * 2 + 1] * factor);
#endif
        }
      }
#if PARTS > 1
      if (lane % 4 == 0) *(float2*)(to + WIDTH) = make_float2(largest[t][h], whole);
#endif
    }
}
"""
)

JOIN = r"""
// The parts of a row, each with its largest score and the sum of its powers behind.
extern "C" __global__ void __launch_bounds__(JOIN_ROWS * 32) attention_join(
    const float* __restrict__ parts, TYPE* __restrict__ output, int rows) {
  const int row = blockIdx.x * JOIN_ROWS + threadIdx.x / 32;
  if (row >= rows) return;
  constexpr float unit = 1.44269504f * (SCALE_FIRST ? 1.0f : SCALE);
  auto of = [&](int part) { return parts + ((long long)part * rows + row) * (WIDTH + 2); };
  float largest = HIDDEN, total = 0;
  for (int part = 0; part < PARTS; ++part) largest = fmaxf(largest, of(part)[WIDTH]);
  const float less = shift(largest) * unit;
  for (int part = 0; part < PARTS; ++part) total += power(of(part)[WIDTH] * unit - less) * of(part)[WIDTH + 1];
  for (int column = threadIdx.x % 32; column < WIDTH; column += 32) {
    float sum = 0;
    for (int part = 0; part < PARTS; ++part) sum += power(of(part)[WIDTH] * unit - less) * of(part)[column];
    output[(long long)row * WIDTH + column] = (TYPE)(total == 0 ? sum : sum / total);
  }
}
"""


def macros_of(attrs: AttentionAttrs, inputs: Sequence[Any]) -> dict[str, int | str]:
    """Macros of the tensors and their attributes: all but the knobs."""
    query, key, value, *bias = inputs
    _, heads, _, depth = attrs.order(query.shape)
    groups = int(attrs.order(key.shape)[1])
    scale = factor(attrs, int(depth))
    scale = scale if abs(scale) >= _LEAST_SCALE else 0  # of which float32 may make 0, and -infinity times 0 is NaN
    return {
        "TYPE": C_TYPES[str(query.dtype)], "DEPTH": int(depth), "WIDTH": int(value.shape[3]),
        "EACH": int(heads) // groups, "CAUSAL": int(attrs.is_causal), "BY_TOKENS": int(attrs.layout != PLAIN),
        # The largest score is that of the largest product only where the scale is positive and nothing is added.
        "SCALE": f"{float(scale)!r}f", "SCALE_FIRST": int(bool(bias) or scale <= 0),
        "BIASED": len(bias), **(_bias_macros(bias[0]) if bias else {}),
    }


def _bias_macros(bias: Any) -> dict[str, int | str]:
    """The dtype of a bias, and the dimensions of the scores along which it varies."""
    names = ("BIAS_BATCH", "BIAS_HEADS", "BIAS_ROWS", "BIAS_KEYS")
    shape = [1] * (4 - len(bias.shape)) + [number_of(e) for e in bias.shape]
    return {
        "BIAS": C_TYPES[str(bias.dtype)], "BIAS_BOOL": int(str(bias.dtype) == "bool"),
        **{name: int(extent != 1) for name, extent in zip(names, shape, strict=True)},
    }


def tiles_of(extent: Number, size: int) -> Number:
    """The number of tiles that cover an extent."""
    return -(-extent // size) if isinstance(extent, int) else ["//", ["+", extent, size - 1], size]
