"""Products of matrices on tensor cores by `mma.sync`, read from shared memory by `ldmatrix`; sm_80 and later.

CUDA C by hand: TVM's wmma fragments go through registers and cannot be copied ahead of their use. Tiles
are copied as `strategy/cuda/staging.py` says, and fragments are read from there one step of 16 ahead.
"""

from __future__ import annotations

from strategy.condition import Clause
from strategy.cuda.library import Handwritten
from strategy.cuda.limit import REGISTERS_PER_THREAD, DeviceLimits
from strategy.cuda.matmul import block_sizes
from strategy.cuda.staging import PTX_TYPES, ByHand, product_by_hand, takes_copies
from strategy.schedule import integer
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.types import Dim

_STAGES = (2, 3, 4, 5, 8)

# Fragments are those of the PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". KIND is that type.
FRAGMENTS = r"""
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
"""
_SOURCE = (
    r"""
#define WARPS_N (BLOCK_N / WARP_N)
"""
    + FRAGMENTS
    + r"""
extern "C" __global__ void __launch_bounds__(THREADS) product_mma(
    const TYPE* __restrict__ left, const TYPE* __restrict__ right, OUT* __restrict__ output, int mMORE_INPUTS) {
  extern __shared__ __align__(128) unsigned char storage[];
  const unsigned shared = (unsigned)__cvta_generic_to_shared(storage);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  OPERANDS
  const int warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;

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
  for (int step = 0; step < STAGES - 1; ++step) tile.fetch_both(step, shared + step * STAGE);
  await();
  load_both(0, shared, 0);
  unsigned read = shared, next = shared + (STAGES - 1) * STAGE;
  for (int step = 0; step < STEPS; ++step) {
    #pragma unroll
    for (int k = 0; k < BLOCK_K / 16; ++k) {
      // The fragments that are multiplied next are on their way while these are.
      if (k + 1 < BLOCK_K / 16) {
        load_both((k + 1) % 2, read, k + 1);
      } else {
        await();
        read = after(read, shared);
        load_both(0, read, 0);
      }
      if (k == 0) {
        // Into the stage that was read in the step before, which all threads have left.
        tile.fetch_both(step + STAGES - 1, next);
        next = after(next, shared);
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
    for (int e = 0; e < 4; e += 2)
      write_row<WARP_N / 8>(tile, output, m, tile.row + warp_row + i * 16 + e / 2 * 8 + lane / 4,
                            tile.column + warp_column, &sums[i][0][e]);
}
"""
)


def takes_mma(
    batch: Dim, n: Dim, k: Dim, dtype: str, out_dtype: str, limits: DeviceLimits
) -> bool:
    """True if the product's operands can be copied in 16 bytes and the device has `mma.sync` (sm_80)."""
    return limits.capability >= 80 and takes_copies(batch, n, k, dtype, out_dtype)


def mma_space(
    limits: DeviceLimits, m: int | None, n: int, *, gathered: bool = False
) -> ConfigSpace:
    """Tiles of blocks and warps, stages of the copy pipeline, and the grouping of tiles.

    Args:
        m: None where it is symbolic.
        gathered: whether each thread gathers one row of the right operand.
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
    if gathered:
        threads = warps * limits.warp
        held = block_n * block_k // threads
        constraints += [
            threads % block_n == 0,
            (block_n * block_k) % (threads * 8) == 0,
            registers + held <= REGISTERS_PER_THREAD,
            threads * (registers + held) <= limits.registers,
        ]
    return ConfigSpace(
        [
            Knob("block_m", block_sizes(rows)),
            Knob("block_n", block_sizes(n)),
            Knob("block_k", [32, 64]),
            Knob("warp_m", [16, 32, 64]),
            Knob("warp_n", [16, 32, 64]),
            Knob("stages", _STAGES),
            Knob("group", [1, 4, 8]),
        ],
        constraints,
        derived={
            "warps": warps, "sums": sums, "shared": shared,
            "reuse": block_m * block_n / (block_m + block_n),
        },
        fallback=lambda: _fallback(rows, n, limits, gathered=gathered),
    )


def _fallback(m: int, n: int, limits: DeviceLimits, *, gathered: bool) -> dict[str, int]:
    """The largest tile with a block for each multiprocessor, else a small one.

    As many stages as leave room for two blocks on a multiprocessor, four for the largest tile. A gathered
    operand takes registers, so its threads have fewer accumulators.
    """
    for block in (128, 64, 32):
        high, wide = min(block, block_sizes(m)[-1]), min(block, block_sizes(n)[-1])
        if -(-m // high) * -(-n // wide) >= limits.multiprocessors:
            break
    block_k = 32 if block == 128 or gathered else 64
    room = min(limits.shared_bytes // 2 // ((high + wide) * block_k * 2), 4 if block == 128 else 8)
    return {
        "block_m": high, "block_n": wide, "block_k": block_k, "warp_m": max(16, high // 2),
        "warp_n": max(16, wide // (4 if gathered else 2)),
        "stages": max((s for s in _STAGES if s <= room), default=_STAGES[0]), "group": 8,
    }


def mma_product(of: ByHand, config: Config) -> Handwritten:
    """The kernel and its launch, as `product_by_hand` gives them."""
    names = ("block_m", "block_n", "block_k", "warp_m", "warp_n", "stages", "group")
    knobs = {name.upper(): integer(config, name) for name in names}
    block_m, block_n = knobs["BLOCK_M"], knobs["BLOCK_N"]
    warps = (block_m // knobs["WARP_M"]) * (block_n // knobs["WARP_N"])
    return product_by_hand(
        "product_mma", _SOURCE.replace("KIND", PTX_TYPES[of.dtype]), of, knobs, warps * 32,
        (block_m + block_n) * knobs["BLOCK_K"] * 2 * knobs["STAGES"],
    )
