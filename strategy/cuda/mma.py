"""Products of matrices on tensor cores by `mma.sync`, fed by `cp.async` and `ldmatrix`; sm_80 and later.

CUDA C by hand: TVM's wmma fragments go through registers and cannot be copied ahead of their use. Both
operands lie along k, as `mma.sync` wants them, row by column. Tiles are copied to shared memory some
steps ahead, 16 bytes at a time, so that k is a multiple of 8. What follows runs in a kernel of its own.
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
#define STEPS ((DEPTH + BLOCK_K - 1) / BLOCK_K)
#define STAGE ((BLOCK_M + BLOCK_N) * BLOCK_K)

struct __align__(2 * sizeof(OUT)) Pair { OUT x, y; };

// Where a chunk of a row lies: the same chunk of eight rows is in eight different groups of banks.
__device__ __forceinline__ int place(int row, int chunk) {
  int turn = CHUNKS == 8 ? row & 7 : row >> 1 & 3;
  return (row * CHUNKS + (chunk ^ turn)) * CHUNK;
}

__device__ __forceinline__ unsigned address(const void* pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

// Some rows of an operand at one step of k, zeros where it ends.
template <int ROWS>
__device__ __forceinline__ void fetch(TYPE* to, const TYPE* from, int first, int extent, int step) {
  #pragma unroll
  for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
    int row = i / CHUNKS, chunk = i % CHUNKS, k = step * BLOCK_K + chunk * CHUNK;
    bool inside = first + row < extent && k < DEPTH;
    unsigned target = address(to + place(row, chunk));
    const TYPE* source = inside ? from + (long long)(first + row) * DEPTH + k : from;
    int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(target), "l"(source), "r"(bytes) : "memory");
  }
}

__device__ __forceinline__ void commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void load(unsigned (&to)[4], const TYPE* from) {
  unsigned source = address(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(source) : "memory");
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
  TYPE* shared = (TYPE*)storage;
  const TYPE* rows = left + (long long)(ONE_LEFT ? 0 : blockIdx.z) * m * DEPTH;
  const TYPE* columns = right + (long long)(ONE_RIGHT ? 0 : blockIdx.z) * COLUMNS * DEPTH;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Tiles of GROUP rows of tiles follow each other down the columns: they share what the L2 cache holds.
  const int tiles_m = (m + BLOCK_M - 1) / BLOCK_M, tiles_n = (COLUMNS + BLOCK_N - 1) / BLOCK_N;
  const int in_group = GROUP * tiles_n;
  const int above = blockIdx.x / in_group * GROUP, within = blockIdx.x % in_group;
  const int height = tiles_m - above < GROUP ? tiles_m - above : GROUP;
  const int row = (above + within % height) * BLOCK_M, column = within / height * BLOCK_N;
  const int warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;

  float sums[WARP_M / 16][WARP_N / 8][4];
  #pragma unroll
  for (int i = 0; i < WARP_M / 16; ++i)
    #pragma unroll
    for (int j = 0; j < WARP_N / 8; ++j)
      #pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;

  #pragma unroll
  for (int step = 0; step < STAGES - 1; ++step) {
    if (step < STEPS) {
      fetch<BLOCK_M>(shared + step * STAGE, rows, row, m, step);
      fetch<BLOCK_N>(shared + step * STAGE + BLOCK_M * BLOCK_K, columns, column, COLUMNS, step);
    }
    commit();
  }
  for (int step = 0; step < STEPS; ++step) {
    // All groups but the newest STAGES - 2 have come: this step's is among them.
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
    __syncthreads();
    // Into the stage that was read in the step before, which all threads have left.
    if (step + STAGES - 1 < STEPS) {
      TYPE* next = shared + (step + STAGES - 1) % STAGES * STAGE;
      fetch<BLOCK_M>(next, rows, row, m, step + STAGES - 1);
      fetch<BLOCK_N>(next + BLOCK_M * BLOCK_K, columns, column, COLUMNS, step + STAGES - 1);
    }
    commit();
    const TYPE* a = shared + step % STAGES * STAGE;
    const TYPE* b = a + BLOCK_M * BLOCK_K;
    #pragma unroll
    for (int k = 0; k < BLOCK_K / 16; ++k) {
      unsigned a_tiles[WARP_M / 16][4], b_tiles[WARP_N / 16][4];
      #pragma unroll
      for (int i = 0; i < WARP_M / 16; ++i)
        load(a_tiles[i], a + place(warp_row + i * 16 + lane % 16, k * 2 + lane / 16));
      #pragma unroll
      for (int j = 0; j < WARP_N / 16; ++j)
        load(b_tiles[j], b + place(warp_column + j * 16 + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
      #pragma unroll
      for (int i = 0; i < WARP_M / 16; ++i)
        #pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j)
          multiply(sums[i][j], a_tiles[i], b_tiles[j / 2][j % 2 * 2], b_tiles[j / 2][j % 2 * 2 + 1]);
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
    # A thread holds its sums, its fragments of both operands, and addresses.
    registers = sums + (warp_m + warp_n) // 4 + 48
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
        fallback=lambda: _fallback(rows, n, limits.multiprocessors),
    )  # fmt: skip


def _fallback(m: int, n: int, multiprocessors: int) -> dict[str, int]:
    """The largest tile that leaves a block for each multiprocessor, or else a small one."""
    for block in (128, 64, 32):
        high, wide = min(block, block_sizes(m)[-1]), min(block, block_sizes(n)[-1])
        if -(-m // high) * -(-n // wide) >= multiprocessors:
            break
    return {
        "block_m": high, "block_n": wide, "block_k": 32, "warp_m": max(16, high // 2),
        "warp_n": max(16, wide // 2), "stages": 3, "group": 8,
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
