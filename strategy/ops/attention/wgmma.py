"""`attention_wgmma.cuda`: attention of many queries by Hopper's `wgmma`; sm_90 alone.

After FlashAttention-3 (Shah et al., 2024): the product of powers with their values runs while the powers of the next
keys are computed. A warpgroup has 64 rows of queries, as `attention_flash.cuda` has them; all warpgroups of a block
share the keys and values that `cp.async` copies ahead. Powers are a left operand in registers. Rows lie in the swizzle
of `strategy/cuda/wgmma.py`, those of more than 128 bytes in several panels of 64 columns.
"""
# Over 300 lines: one kernel in CUDA C, with the space and the launch that its macros follow.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.cuda.library import (
    FOURTH,
    LEFT,
    OUTPUT,
    RIGHT,
    THIRD,
    Handwritten,
    call_in_place,
    number_of,
)
from strategy.cuda.limit import REGISTERS_PER_THREAD, DeviceLimits, limits_of
from strategy.cuda.program import Launch, Pointer, Scalar, times
from strategy.cuda.staging import PTX_TYPES, TRANSPOSE
from strategy.cuda.template import Template
from strategy.cuda.wgmma import multiply, multiply_held, settle
from strategy.ops.attention.flash_kernel import PACK, SHARED, macros_of, tiles_of
from strategy.ops.attention.operator import AttentionAttrs
from strategy.schedule import integer
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

FEWEST_ROWS = 33  # fewer leave half of a warpgroup's tile empty
_SIZES = (32, 64, 96, 112, 128, 160, 208)  # keys of a block; 208 are all of an image's 197

_SOURCE = r"""
#define PANEL (BLOCK_N * 128)  // bytes of 64 columns of a block's keys or values
#define QUERY_PANEL (BLOCK_M * 128)
#define KEY_PANELS ((STEPS + 3) / 4)
#define STAGE (PANEL * (KEY_PANELS + (BANDS + 3) / 4))
#define APART (BY_TOKENS ? GROUPS : 1)  // keys that follow each other, in rows

// Where an operand of 16 along k starts: its address, the distance of its atoms of eight rows, and of its panels where
// it lies along n, all without their last four bits; and the swizzle.
__device__ __forceinline__ unsigned long long describe(unsigned start) {
  return 1ull << 62 | 1024ull >> 4 << 32 | PANEL / 16ull << 16 | (start & 0x3FFFF) >> 4;
}

__device__ __forceinline__
void score_first(float (&sum)[BLOCK_N / 2], unsigned long long a, unsigned long long b) {
  FIRST
}

__device__ __forceinline__ void score(float (&sum)[BLOCK_N / 2], unsigned long long a, unsigned long long b) {
  NEXT
}

__device__ __forceinline__ void weigh(float (&sum)[BANDS * 8], const unsigned (&a)[4], unsigned long long b) {
  WEIGH
}

// Scores are read after their products have come; those of the values, which were started later, still run.
__device__ __forceinline__ void settle_scores(float (&sum)[BLOCK_N / 2]) {
  SETTLE_SCORES
}

__device__ __forceinline__ void settle_sums(float (&sum)[BANDS * 8]) {
  SETTLE_SUMS
}

__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Rows of LENGTH numbers at their places to panels; zeros behind the length, and behind the `left` rows.
template <int ROWS, int LENGTH, typename Place>
__device__ __forceinline__ void fetch(unsigned to, const TYPE* from, int left, Place place) {
  constexpr int chunks = (LENGTH + 15) / 16 * 2;
  constexpr int wide = chunks <= 2 ? 2 : chunks <= 4 ? 4 : chunks <= 8 ? 8 : chunks <= 16 ? 16 : 32;
  constexpr int pace = THREADS / wide;  // rows that are copied at once, a chunk by each thread
  const int chunk = threadIdx.x % wide;
  if (chunk >= chunks) return;
  #pragma unroll
  for (int i = 0; i < ROWS; i += pace) {
    const int row = threadIdx.x / wide + i;
    if (ROWS % pace == 0 || row < ROWS) {
      const int bytes = row < left && (LENGTH % 16 == 0 || chunk * 8 < LENGTH) ? 16 : 0;
      const unsigned at = to + chunk / 8 * (ROWS * 128) + row * 128 + ((chunk ^ row) & 7) * 16;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                   :: "r"(at), "l"(from + place(row) + chunk * 8), "r"(bytes) : "memory");
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_wgmma(
    const TYPE* __restrict__ query, const TYPE* __restrict__ key, const TYPE* __restrict__ value,
#if BIASED
    const BIAS* __restrict__ bias,
#endif
    TYPE* __restrict__ output, int m, int n) {
  extern __shared__ __align__(1024) unsigned char storage[];
  const unsigned queries = ((unsigned)__cvta_generic_to_shared(storage) + 1023) & ~1023;
  const unsigned stages = queries + KEY_PANELS * QUERY_PANEL;
  // The same in all lanes, which the compiler must know for uniform registers.
  const int lane = threadIdx.x % 32, warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
  // Tiles that share keys begin together. Causal tiles are the longer the later: the longest of all groups begin first.
  const int rows = EACH * m, tiles = gridDim.x / GROUPS;
  const int group = CAUSAL ? blockIdx.x % GROUPS : blockIdx.x / tiles;
  const int first = (CAUSAL ? tiles - 1 - blockIdx.x / GROUPS : blockIdx.x % tiles) * BLOCK_M;
  auto query_place = [&](int row) -> long long {
    if (!BY_TOKENS) return ((long long)blockIdx.z * GROUPS + group) * rows + row;
    return ((blockIdx.z * (long long)m + row % m) * GROUPS + group) * EACH + row / m;
  };
  if (n == 0) {  // queries that see no key give 0
    for (int i = threadIdx.x; i < BLOCK_M * WIDTH; i += THREADS)
      if (first + i / WIDTH < rows) output[query_place(first + i / WIDTH) * WIDTH + i % WIDTH] = (TYPE)0.0f;
    return;
  }
  const long long key_place = BY_TOKENS ? blockIdx.z * (long long)n * GROUPS + group
                                        : ((long long)blockIdx.z * GROUPS + group) * n;
  const TYPE *keys = key + key_place * DEPTH, *values = value + key_place * WIDTH;

  // Keys that some query of the block sees, and those that all of the warpgroup see.
  int seen = n, seen_by_all = n;
  if (CAUSAL) {
    const int last = lower(first + BLOCK_M, rows) - 1;
    seen = lower(n, (first / m == last / m ? last % m : m - 1) + 1);
    const int own = lower(first + warp / 4 * 64, rows - 1), own_last = lower(own + 63, rows - 1);
    seen_by_all = lower(n, (own / m == own_last / m ? own % m : 0) + 1);
  }
  const int blocks = (seen + BLOCK_N - 1) / BLOCK_N;

  // A stage has the keys of a block and the values of the block before, which are multiplied together.
  auto fetch_stage = [&](int block, unsigned to) {
    if (block < blocks)
      fetch<BLOCK_N, DEPTH>(to, keys + (long long)block * BLOCK_N * APART * DEPTH, n - block * BLOCK_N,
                            [](int row) { return row * (APART * DEPTH); });
    if (0 < block && block <= blocks)
      fetch<BLOCK_N, WIDTH>(to + KEY_PANELS * PANEL, values + (long long)(block - 1) * BLOCK_N * APART * WIDTH,
                            n - (block - 1) * BLOCK_N, [](int row) { return row * (APART * WIDTH); });
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  fetch<BLOCK_M, DEPTH>(queries, query, rows - first, [&](int row) { return query_place(first + row) * DEPTH; });
  #pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) fetch_stage(stage, stages + stage * STAGE);
  unsigned read = stages, next = stages + (STAGES - 1) * STAGE;
  auto after = [&](unsigned stage) { return stage == stages + (STAGES - 1) * STAGE ? stages : stage + STAGE; };
  // The stage that is read next has come, for the tensor cores too, and all threads have left the one before.
  auto await = [&] {
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
  };

  // A lane has numbers of two rows, eight apart.
  float scores[BLOCK_N / 2], sums[BANDS * 8];
  unsigned powers[BLOCK_N / 16][4];
  float largest[2], total[2], shrunk[2];
  int limit[2];
#if BIASED
  const BIAS* bias_row[2];
#endif
  #pragma unroll
  for (int i = 0; i < BANDS * 8; ++i) sums[i] = 0;
  #pragma unroll
  for (int h = 0; h < 2; ++h) {
    largest[h] = HIDDEN, total[h] = 0;
    const int row = lower(first + warp * 16 + h * 8 + lane / 4, rows - 1), i = row % m;
    limit[h] = CAUSAL ? lower(n, i + 1) : n;
#if BIASED
    const long long head = (long long)group * EACH + row / m;
    const long long at = (BIAS_BATCH ? blockIdx.z : 0) * (BIAS_HEADS ? (long long)GROUPS * EACH : 1) +
                         (BIAS_HEADS ? head : 0);
    bias_row[h] = bias + (at * (BIAS_ROWS ? m : 1) + (BIAS_ROWS ? i : 0)) * (BIAS_KEYS ? n : 1);
#endif
  }

  const unsigned long long left = describe(queries + warp / 4 * (64 * 128));
  auto start_scores = [&] {
    const unsigned long long right = describe(read);
    begin();
    #pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int panel = step / 4, along = step % 4 * 32 >> 4;
      const unsigned long long a = left + panel * (QUERY_PANEL >> 4) + along, b = right + panel * (PANEL >> 4) + along;
      if (step == 0) score_first(scores, a, b);
      else score(scores, a, b);
    }
    commit();
  };
  auto start_sums = [&] {
    const unsigned long long right = describe(read + KEY_PANELS * PANEL);
    begin();
    #pragma unroll
    for (int k = 0; k < BLOCK_N / 16; ++k) weigh(sums, powers[k], right + k * (16 * 128 >> 4));
    commit();
  };

  // Scores become powers; `shrunk` is what the sums so far are to be multiplied by.
  auto raise = [&](int block) {
    const int origin = block * BLOCK_N + lane % 4 * 2;
#if SCALE_FIRST
    #pragma unroll
    for (int i = 0; i < BLOCK_N / 2; ++i) {
      scores[i] *= SCALE;
#if BIASED
      const BIAS* at = bias_row[i / 2 % 2] + (BIAS_KEYS ? lower(origin + i / 4 * 8 + i % 2, n - 1) : 0);
#if BIAS_BOOL
      scores[i] = *at ? scores[i] : HIDDEN;
#else
      scores[i] += (float)*at;
#endif
#endif
    }
#endif
    if ((block + 1) * BLOCK_N > seen_by_all) {
      #pragma unroll
      for (int i = 0; i < BLOCK_N / 2; ++i)
        if (origin + i / 4 * 8 + i % 2 >= limit[i / 2 % 2]) scores[i] = HIDDEN;
    }
    constexpr float unit = 1.44269504f * (SCALE_FIRST ? 1.0f : SCALE);
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
      float found = largest[h];
      #pragma unroll
      for (int j = 0; j < BLOCK_N / 2; j += 4) found = fmaxf(found, fmaxf(scores[j + h * 2], scores[j + h * 2 + 1]));
      found = fmaxf(found, __shfl_xor_sync(0xFFFFFFFF, found, 1));
      found = fmaxf(found, __shfl_xor_sync(0xFFFFFFFF, found, 2));
      const float less = shift(found) * unit;
      shrunk[h] = power(largest[h] * unit - less);
      largest[h] = found;
      float added = 0;
      #pragma unroll
      for (int j = 0; j < BLOCK_N / 2; j += 4)
        #pragma unroll
        for (int e = j + h * 2; e < j + h * 2 + 2; ++e) added += scores[e] = power(scores[e] * unit - less);
      total[h] = total[h] * shrunk[h] + added;
    }
  };
  // Two blocks of eight scores, as the lanes have them, are a fragment of a left operand.
  auto keep = [&] {
    #pragma unroll
    for (int k = 0; k < BLOCK_N / 16; ++k)
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (k * 2 + i / 2) * 4 + i % 2 * 2;
        powers[k][i] = pack(scores[at], scores[at + 1]);
      }
  };

  await();
  start_scores();
  commit();  // nothing, in place of the sums that come after scores below
  fetch_stage(STAGES - 1, next);
  read = after(read), next = after(next);
  settle_scores(scores);
  raise(0);
  keep();
  for (int block = 1; block < blocks; ++block) {
    await();
    start_scores();
    start_sums();
    fetch_stage(block + STAGES - 1, next);
    read = after(read), next = after(next);
    settle_scores(scores);
    raise(block);
    settle_sums(sums);
    #pragma unroll
    for (int i = 0; i < BANDS * 8; ++i) sums[i] *= shrunk[i / 2 % 2];
    keep();
  }
  await();
  start_sums();
  settle_sums(sums);

  #pragma unroll
  for (int h = 0; h < 2; ++h) {
    float whole = total[h];
    whole += __shfl_xor_sync(0xFFFFFFFF, whole, 1);
    whole += __shfl_xor_sync(0xFFFFFFFF, whole, 2);
    // A query that sees no key gives 0.
    const float factor = whole == 0 ? 1 : 1 / whole;
    const int row = first + warp * 16 + h * 8 + lane / 4;
    TYPE* to = output + query_place(row) * WIDTH;
#if WIDTH % 32 == 0
    #pragma unroll
    for (int j = 0; j < WIDTH / 8; j += 4) {
      unsigned pairs[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[i] = pack(sums[(j + i) * 4 + h * 2] * factor, sums[(j + i) * 4 + h * 2 + 1] * factor);
      transpose(pairs);
      if (row < rows) *(uint4*)(to + (j + lane % 4) * 8) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
#else
    #pragma unroll
    for (int j = 0; j < BANDS * 2; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      if (row < rows && column < WIDTH)
        *(unsigned*)(to + column) = pack(sums[j * 4 + h * 2] * factor, sums[j * 4 + h * 2 + 1] * factor);
    }
#endif
  }
}
"""


def takes(attrs: AttentionAttrs, inputs: Sequence[TensorType], out_type: TensorType, limits: DeviceLimits) -> bool:
    """True if the device has `wgmma` (sm_90) and room for a tile, of heads that `attention_flash.cuda` takes."""
    depth, width = int(inputs[0].shape[3]), int(out_type.shape[3])
    return limits.capability == 90 and _bytes_of(depth, width, 1, _SIZES[0], 2) <= limits.shared_bytes


def space(attrs: AttentionAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """Warpgroups of 64 queries, keys of a block, and stages of copies."""
    batch, heads, m, _ = attrs.order(inputs[0].shape)
    _, of, n, _ = attrs.order(inputs[1].shape)
    limits = limits_of(target)
    depth, width = int(inputs[0].shape[3]), int(out_type.shape[3])
    rows = int(heads) // int(of) * int(m) if m.is_constant else 512
    keys = int(n) if n.is_constant else 512
    matrices = int(of) * (int(batch) if batch.is_constant else 1)
    sizes = [b for b in _SIZES if b == _SIZES[0] or b < 2 * keys]

    def registers_of(block_n: Any) -> Any:
        # A thread holds sums, scores, powers, and addresses.
        return -(-width // 16) * 8 + block_n // 2 + block_n // 4 + 44

    def fallback() -> dict[str, Any]:
        groups = 2 if -(-rows // 128) * matrices >= limits.multiprocessors else 1
        block_n = max(
            b for b in sizes
            if b == sizes[0] or (b <= 128 and registers_of(b) <= REGISTERS_PER_THREAD
                                 and _bytes_of(depth, width, groups, b, 2) <= limits.shared_bytes)
        )
        fits = _bytes_of(depth, width, groups, block_n, 2) <= limits.shared_bytes
        return {"groups": groups if fits else 1, "block_n": block_n, "stages": 2}

    groups, block_n, stages = (knob(name) for name in ("groups", "block_n", "stages"))
    shared = _bytes_of(depth, width, groups, block_n, stages)
    registers = registers_of(block_n)
    return ConfigSpace(
        [
            Knob("groups", [g for g in (1, 2, 3) if g == 1 or (g - 1) * 64 < rows]),
            Knob("block_n", sizes),
            Knob("stages", [2, 3, 4]),
        ],
        [
            shared <= limits.shared_bytes,
            registers <= REGISTERS_PER_THREAD,
            registers * groups * 4 * limits.warp <= limits.registers,
        ],
        derived={"rows": groups * 64, "shared": shared},
        fallback=fallback,
    )


def _bytes_of(depth: int, width: int, groups: Any, block_n: Any, stages: Any) -> Any:
    """Shared memory: queries, stages of keys and values, and the room to begin at a multiple of 1024."""
    key_panels, value_panels = -(-depth // 64), -(-width // 64)
    return (groups * 64 * key_panels + block_n * (key_panels + value_panels) * stages) * 128 + 1024


def compute(attrs: AttentionAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """One launch; batch and numbers of queries and keys may be symbolic."""
    query, key, value = inputs[:3]
    batch, heads, m, depth = attrs.order(query.shape)
    _, of, n, _ = attrs.order(key.shape)
    of, width, dtype = int(of), int(value.shape[3]), str(query.dtype)
    groups, block_n, stages = (integer(config, name) for name in ("groups", "block_n", "stages"))
    macros: dict[str, int | str] = {
        "WARPS": groups * 4, "TILES": 1, "BLOCK_N": block_n, "STAGES": stages, "GROUPS": of, **macros_of(attrs, inputs),
    }
    tiles = tiles_of(times(int(heads) // of, number_of(m)), groups * 64)
    buffers = [Pointer(name) for name in (LEFT, RIGHT, THIRD, FOURTH)[: len(inputs)]]
    launch = Launch(
        "attention_wgmma",
        (*buffers, Pointer(OUTPUT), Scalar("int32", number_of(m)), Scalar("int32", number_of(n))),
        (times(tiles, of), 1, number_of(batch)), (groups * 128, 1, 1),
        _bytes_of(int(depth), width, groups, block_n, stages),
    )
    kind, columns = PTX_TYPES[dtype], -(-width // 16) * 16
    text = _SOURCE
    for name, statement in (
        ("SETTLE_SCORES", settle(block_n, 1)), ("SETTLE_SUMS", settle(columns)),
        ("FIRST", multiply(block_n, kind, adds=False)), ("NEXT", multiply(block_n, kind)),
        ("WEIGH", multiply_held(columns, kind)),
    ):
        text = text.replace(f"  {name}\n", f"  {statement}\n")
    source = Template(SHARED + PACK.replace("KIND", kind) + TRANSPOSE + text, macros, (), (launch,)).code
    shape = attrs.order((batch, heads, m, width))
    return [call_in_place(Handwritten(source, launch), inputs, shape, dtype, "attention")]
