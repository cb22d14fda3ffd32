"""Products of matrices on tensor cores by `mma.sync`, fed by `cp.async` and `ldmatrix`; sm_80 and later.

CUDA C by hand: TVM's wmma fragments go through registers and cannot be copied ahead of their use. Both
operands lie along k, as `mma.sync` wants them, row by column. Tiles are copied to shared memory some
steps ahead, 16 bytes at a time, so that k is a multiple of 8, and fragments are read from there one step of
16 ahead. What follows runs in a kernel of its own.
"""

from __future__ import annotations

from strategy.condition import Clause
from strategy.cuda.library import LEFT, OUTPUT, RIGHT, Handwritten
from strategy.cuda.limit import GRID, DeviceLimits
from strategy.cuda.matmul import block_sizes
from strategy.cuda.program import Launch, Number, Pointer, Scalar
from strategy.cuda.template import C_TYPES, Template
from strategy.schedule import integer
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.types import Dim

_CHUNK = 8  # elements of 16 bytes, which is what one thread copies at a time
_KINDS = {"float16": "f16", "bfloat16": "bf16"}

# Fragments are those of the PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
_SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define CHUNKS (BLOCK_K / CHUNK)
#define WARPS_N (BLOCK_N / WARP_N)
#define THREADS (BLOCK_M / WARP_M * WARPS_N * 32)
#define PACE (THREADS / CHUNKS)  // rows that are copied at once, a chunk by each thread
#define STEPS ((DEPTH + BLOCK_K - 1) / BLOCK_K)
#define ROW (BLOCK_K * 2)  // bytes of a row in shared memory, and of a stage of both operands
#define STAGE ((BLOCK_M + BLOCK_N) * ROW)

struct __align__(2 * sizeof(OUT)) Pair { OUT x, y; };

// Where a chunk of a row lies: the same chunk of eight rows is in eight different groups of banks.
__device__ __forceinline__ unsigned place(int row, int chunk) {
  int turn = CHUNKS == 8 ? row & 7 : row >> 1 & 3;
  return (row * CHUNKS + (chunk ^ turn)) * 16;
}

// A thread's chunks of ROWS rows of an operand at one step of k, zeros beyond the `left` rows there are.
template <int ROWS>
__device__ __forceinline__ void fetch(unsigned to, const TYPE* from, int left, int step) {
  const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  const bool along = DEPTH % BLOCK_K == 0 || step * BLOCK_K + chunk * CHUNK < DEPTH;
  #pragma unroll
  for (int i = 0; i < ROWS; i += PACE)
    if (ROWS % PACE == 0 || row + i < ROWS) {
      int bytes = along && row + i < left ? 16 : 0;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                   :: "r"(to + place(row + i, chunk)), "l"(from + (long long)i * DEPTH), "r"(bytes)
                   : "memory");
    }
}

__device__ __forceinline__ void commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void load(unsigned (&to)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

__device__ __forceinline__
void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.KIND.KIND.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(THREADS) product_mma(
    const TYPE* __restrict__ left, const TYPE* __restrict__ right, OUT* __restrict__ output, int m) {
  extern __shared__ __align__(128) unsigned char storage[];
  const unsigned shared = (unsigned)__cvta_generic_to_shared(storage);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Tiles of GROUP rows of tiles follow each other down the columns: they share what the L2 cache holds.
  const int tiles_m = (m + BLOCK_M - 1) / BLOCK_M, tiles_n = (COLUMNS + BLOCK_N - 1) / BLOCK_N;
  const int in_group = GROUP * tiles_n;
  const int above = blockIdx.x / in_group * GROUP, within = blockIdx.x % in_group;
  const int height = tiles_m - above < GROUP ? tiles_m - above : GROUP;
  const int row = (above + within % height) * BLOCK_M, column = within / height * BLOCK_N;
  const int warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;

  // The thread's first chunk of each operand, which moves along k with what is fetched.
  const long long first = (long long)(threadIdx.x / CHUNKS) * DEPTH + threadIdx.x % CHUNKS * CHUNK;
  const TYPE* a_from = left + ((long long)(ONE_LEFT ? 0 : blockIdx.z) * m + row) * DEPTH + first;
  const TYPE* b_from = right + ((long long)(ONE_RIGHT ? 0 : blockIdx.z) * COLUMNS + column) * DEPTH + first;
  const int a_left = m - row, b_left = COLUMNS % BLOCK_N ? COLUMNS - column : BLOCK_N;
  auto fetch_both = [&](int step, unsigned stage) {
    if (step < STEPS) {
      fetch<BLOCK_M>(stage, a_from, a_left, step);
      fetch<BLOCK_N>(stage + BLOCK_M * ROW, b_from, b_left, step);
      a_from += BLOCK_K;
      b_from += BLOCK_K;
    }
    commit();
  };

  // Fragments of one step of 16 along k, whose chunks differ in bits of the place that are theirs alone.
  unsigned a_tiles[2][WARP_M / 16][4], b_tiles[2][WARP_N / 16][4];
  const unsigned a_place = place(warp_row + lane % 16, lane / 16);
  const unsigned b_place = BLOCK_M * ROW + place(warp_column + lane % 8 + lane / 16 * 8, lane / 8 % 2);
  auto load_both = [&](int buffer, unsigned stage, int k) {
    #pragma unroll
    for (int i = 0; i < WARP_M / 16; ++i) load(a_tiles[buffer][i], stage + (a_place ^ k * 32) + i * 16 * ROW);
    #pragma unroll
    for (int j = 0; j < WARP_N / 16; ++j) load(b_tiles[buffer][j], stage + (b_place ^ k * 32) + j * 16 * ROW);
  };
  // All groups but the newest STAGES - 2 have come: the stage that is read next is among them.
  auto await = [] {
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
    __syncthreads();
  };

  float sums[WARP_M / 16][WARP_N / 8][4];
  #pragma unroll
  for (int i = 0; i < WARP_M / 16; ++i)
    #pragma unroll
    for (int j = 0; j < WARP_N / 8; ++j)
      #pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;

  #pragma unroll
  for (int step = 0; step < STAGES - 1; ++step) fetch_both(step, shared + step * STAGE);
  await();
  load_both(0, shared, 0);
  unsigned read = shared, write = shared + (STAGES - 1) * STAGE;
  for (int step = 0; step < STEPS; ++step) {
    #pragma unroll
    for (int k = 0; k < BLOCK_K / 16; ++k) {
      // The fragments that are multiplied next are on their way while these are.
      if (k + 1 < BLOCK_K / 16) {
        load_both((k + 1) % 2, read, k + 1);
      } else {
        await();
        read = read == shared + (STAGES - 1) * STAGE ? shared : read + STAGE;
        load_both(0, read, 0);
      }
      if (k == 0) {
        // Into the stage that was read in the step before, which all threads have left.
        fetch_both(step + STAGES - 1, write);
        write = write == shared + (STAGES - 1) * STAGE ? shared : write + STAGE;
      }
      #pragma unroll
      for (int i = 0; i < WARP_M / 16; ++i)
        #pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j)
          multiply(sums[i][j], a_tiles[k % 2][i], b_tiles[k % 2][j / 2][j % 2 * 2],
                   b_tiles[k % 2][j / 2][j % 2 * 2 + 1]);
    }
  }

  #pragma unroll
  for (int i = 0; i < WARP_M / 16; ++i)
    #pragma unroll
    for (int j = 0; j < WARP_N / 8; ++j)
      #pragma unroll
      for (int half_tile = 0; half_tile < 2; ++half_tile) {
        const int y = row + warp_row + i * 16 + half_tile * 8 + lane / 4;
        const int x = column + warp_column + j * 8 + lane % 4 * 2;
        OUT* to = output + ((long long)blockIdx.z * m + y) * COLUMNS + x;
        const OUT first = OUT(sums[i][j][half_tile * 2]), second = OUT(sums[i][j][half_tile * 2 + 1]);
        if (COLUMNS % 2 == 0) {
          if (y < m && x < COLUMNS) *(Pair*)to = Pair{first, second};
        } else {
          if (y < m && x < COLUMNS) to[0] = first;
          if (y < m && x + 1 < COLUMNS) to[1] = second;
        }
      }
}
"""


def takes_mma(
    batch: Dim, n: Dim, k: Dim, dtype: str, out_dtype: str, limits: DeviceLimits
) -> bool:
    """Whether copies of a product's operands are whole and the device has the instructions."""
    return (
        limits.capability >= 80
        and dtype in _KINDS
        and out_dtype in (dtype, "float32")
        and not (batch.is_constant and int(batch) > GRID[2])
        and n.is_constant
        and k.is_constant
        and int(k) % _CHUNK == 0
    )


def mma_space(limits: DeviceLimits, m: int | None, n: int) -> ConfigSpace:
    """Tiles of blocks and warps, how many steps of k are on their way, and how tiles are grouped.

    m is None where it is symbolic.
    """
    rows = 64 if m is None else m
    block_m, block_n, block_k, warp_m, warp_n, stages = (
        knob(name) for name in ("block_m", "block_n", "block_k", "warp_m", "warp_n", "stages")
    )
    warps = (block_m // warp_m) * (block_n // warp_n)
    shared = (block_m + block_n) * block_k * 2 * stages
    sums = warp_m * warp_n // limits.warp
    # A thread holds its sums, two fragments of each operand, and addresses.
    registers = sums + (warp_m + warp_n) // 2 + 48
    constraints: list[Clause] = [
        block_m % warp_m == 0,
        block_n % warp_n == 0,
        warps >= 1,
        warps * limits.warp <= limits.threads,
        shared <= limits.shared_bytes,
        sums <= 128,
        warps * limits.warp * registers <= limits.registers,
    ]
    return ConfigSpace(
        [
            Knob("block_m", block_sizes(rows)),
            Knob("block_n", block_sizes(n)),
            Knob("block_k", [32, 64]),
            Knob("warp_m", [16, 32, 64]),
            Knob("warp_n", [16, 32, 64]),
            Knob("stages", [2, 3, 4, 5]),
            Knob("group", [1, 4, 8]),
        ],
        constraints,
        derived={
            "warps": warps, "sums": sums, "shared": shared,
            "reuse": block_m * block_n / (block_m + block_n),
        },
        fallback=lambda: _fallback(rows, n, limits),
    )  # fmt: skip


def _fallback(m: int, n: int, limits: DeviceLimits) -> dict[str, int]:
    """The largest tile that leaves a block for each multiprocessor, or else a small one.

    As many steps are on their way as leave room for two blocks.
    """
    for block in (128, 64, 32):
        high, wide = min(block, block_sizes(m)[-1]), min(block, block_sizes(n)[-1])
        if -(-m // high) * -(-n // wide) >= limits.multiprocessors:
            break
    room = limits.shared_bytes // 2 // ((high + wide) * 32 * 2)
    return {
        "block_m": high, "block_n": wide, "block_k": 32, "warp_m": max(16, high // 2),
        "warp_n": max(16, wide // 2), "stages": max(2, min(4, room)), "group": 8,
    }  # fmt: skip


def mma_product(
    batch: Number,
    m: Number,
    n: int,
    k: int,
    dtype: str,
    out_dtype: str,
    config: Config,
    *,
    one_left: bool = False,
    one_right: bool = False,
) -> Handwritten:
    """The kernel of [batch, m, k] · [batch, n, k]ᵀ and its launch.

    Args:
        one_left, one_right: whether there is one of them for all entries of the batch.
    """
    names = ("block_m", "block_n", "block_k", "warp_m", "warp_n", "stages", "group")
    knobs = {name.upper(): integer(config, name) for name in names}
    block_m, block_n = knobs["BLOCK_M"], knobs["BLOCK_N"]
    macros: dict[str, int | str] = {
        **knobs, "TYPE": C_TYPES[dtype], "OUT": C_TYPES[out_dtype], "CHUNK": _CHUNK, "COLUMNS": n,
        "DEPTH": k, "ONE_LEFT": int(one_left), "ONE_RIGHT": int(one_right),
    }  # fmt: skip
    across = -(-n // block_n)
    down: Number = -(-m // block_m) if isinstance(m, int) else ["//", ["+", m, block_m - 1], block_m]
    blocks: Number = down * across if isinstance(down, int) else ["*", down, across]
    warps = (block_m // knobs["WARP_M"]) * (block_n // knobs["WARP_N"])
    launch = Launch(
        "product_mma", (Pointer(LEFT), Pointer(RIGHT), Pointer(OUTPUT), Scalar("int32", m)),
        (blocks, 1, batch), (warps * 32, 1, 1), (block_m + block_n) * knobs["BLOCK_K"] * 2 * knobs["STAGES"],
    )  # fmt: skip
    code = Template(_SOURCE.replace("KIND", _KINDS[dtype]), macros, (), (launch,)).code
    return Handwritten(code, launch)
