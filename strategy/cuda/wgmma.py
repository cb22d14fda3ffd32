"""Products of matrices by Hopper's `wgmma`, which reads both operands from shared memory; sm_90 alone.

CUDA C by hand. A warpgroup of four warps starts products that run while it copies the next tiles
(`strategy/cuda/staging.py`); it waits for those of the previous step, so that one group is always in flight. Operands
are where the PTX ISA puts them, "Asynchronous Warpgroup Level Matrix Shared Memory Layout": rows of 128 bytes along k
in the 128-byte swizzle, whose atom is eight rows.
"""

from __future__ import annotations

from strategy.condition import Clause
from strategy.cuda.library import Handwritten
from strategy.cuda.limit import REGISTERS_PER_THREAD, DeviceLimits
from strategy.cuda.staging import PTX_TYPES, ByHand, product_by_hand, takes_copies
from strategy.schedule import integer
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.types import Dim

BLOCK_K = 64  # a row of 128 bytes: the widest swizzle
_GROUP = 128  # threads of a warpgroup
_ATOM_BYTES = 1024  # eight rows; swizzled by the bits of their address, so that they lie at multiples

_SOURCE = r"""
#define TILES (BLOCK_M / GROUPS / 64)
#define ATOM 1024

// Where an operand of 16 along k starts: its address and the distance of its atoms, both without
// their last four bits, and the swizzle. The third number is not used where rows are swizzled.
__device__ __forceinline__ unsigned long long describe(unsigned start) {
  return 1ull << 62 | (unsigned long long)(ATOM >> 4) << 32 | 1ull << 16 | (start & 0x3FFFF) >> 4;
}

__device__ __forceinline__
void multiply(float (&sum)[BLOCK_N / 2], unsigned long long a, unsigned long long b) {
  MULTIPLY
}

// Sums are read after all products have come.
__device__ __forceinline__ void settle(float (&sum)[BLOCK_N / 2]) {
  SETTLE
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) product_wgmma(
    const TYPE* __restrict__ left, const TYPE* __restrict__ right, OUT* __restrict__ output, int mMORE_INPUTS) {
  extern __shared__ __align__(1024) unsigned char storage[];
  const unsigned shared = ((unsigned)__cvta_generic_to_shared(storage) + ATOM - 1) & ~(ATOM - 1);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group_row = warp / 4 * (BLOCK_M / GROUPS);
  OPERANDS

  float sums[TILES][BLOCK_N / 2];
  #pragma unroll
  for (int t = 0; t < TILES; ++t)
    #pragma unroll
    for (int e = 0; e < BLOCK_N / 2; ++e) sums[t][e] = 0;

  #pragma unroll
  for (int step = 0; step < STAGES - 2; ++step) tile.fetch_both(step, shared + step * STAGE);
  unsigned read = shared, next = shared + (STAGES - 2) * STAGE;
  for (int step = 0; step < STEPS; ++step) {
    // All groups but the newest STAGES - 3 have come, for the tensor cores too.
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 3) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const unsigned a = read + group_row * ROW, b = read + BLOCK_M * ROW;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int k = 0; k < BLOCK_K / 16; ++k)
      #pragma unroll
      for (int t = 0; t < TILES; ++t)
        multiply(sums[t], describe(a + t * 64 * ROW + k * 32), describe(b + k * 32));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    // Into the stage of two steps before: all threads have waited for its products.
    tile.fetch_both(step + STAGES - 2, next);
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(1) : "memory");
    read = after(read, shared);
    next = after(next, shared);
  }

  #pragma unroll
  for (int t = 0; t < TILES; ++t) {
    settle(sums[t]);
    #pragma unroll
    for (int e = 0; e < 4; e += 2)
      write_row<BLOCK_N / 8>(
          tile, output, m, tile.row + group_row + t * 64 + warp % 4 * 16 + e / 2 * 8 + lane / 4, tile.column,
          &sums[t][e]);
  }
}
"""


def takes_wgmma(
    batch: Dim, n: Dim, k: Dim, dtype: str, out_dtype: str, limits: DeviceLimits
) -> bool:
    """True if the product's operands can be copied in 16 bytes and the device has `wgmma` (sm_90)."""
    return limits.capability == 90 and takes_copies(batch, n, k, dtype, out_dtype)


def wgmma_space(
    limits: DeviceLimits, m: int | None, n: int, *, gathered: bool = False
) -> ConfigSpace:
    """Tiles of blocks, their warpgroups, stages of the copy pipeline, and the grouping of tiles.

    Args:
        m: None where it is symbolic.
        gathered: whether each thread gathers one row of the right operand.
    """
    rows = 256 if m is None else m
    block_m, block_n, groups = (knob(name) for name in ("block_m", "block_n", "groups"))
    shared = (block_m + block_n) * BLOCK_K * 2 * knob("stages") + _ATOM_BYTES
    sums = block_m * block_n // (groups * _GROUP)
    # A thread holds its sums, addresses of what it copies, and what it has read.
    registers = sums + 48 + (block_n * BLOCK_K // (groups * _GROUP) if gathered else 0)
    constraints: list[Clause] = [
        block_m % (groups * 64) == 0,
        shared <= limits.shared_bytes,
        registers <= REGISTERS_PER_THREAD,
        registers * groups * _GROUP <= limits.registers,
    ]
    if gathered:
        constraints.append((groups * _GROUP) % block_n == 0)
    return ConfigSpace(
        [
            Knob("block_m", _sizes((64, 128, 256), rows)),
            Knob("block_n", _sizes((32, 64, 128, 192, 256), n)),
            Knob("groups", [1, 2]),
            Knob("stages", [3, 4, 5, 6]),
            Knob("group", [1, 4, 8, 16]),
        ],
        constraints,
        derived={
            "warps": groups * 4, "sums": sums, "shared": shared,
            "reuse": block_m * block_n / (block_m + block_n),
        },
        fallback=lambda: _fallback(rows, n, limits, gathered=gathered),
    )


def _sizes(sizes: tuple[int, ...], extent: int) -> list[int]:
    """The sizes up to the first that covers the extent."""
    return [s for i, s in enumerate(sizes) if i == 0 or sizes[i - 1] < extent]


def _fallback(m: int, n: int, limits: DeviceLimits, *, gathered: bool) -> dict[str, int]:
    """The largest tile with a block for most multiprocessors, else a small one."""
    tallest, widest = _sizes((64, 128), m)[-1], _sizes((32, 64, 128, 256), n)[-1]
    for tile_m, tile_n in ((128, 256), (128, 128), (64, 128), (64, 64)):
        high, wide = min(tile_m, tallest), min(tile_n, widest)
        if gathered:
            wide = min(wide, 128)  # with twice as many, what threads hold takes too many registers
        if 4 * -(-m // high) * -(-n // wide) >= 3 * limits.multiprocessors:
            break
    return {"block_m": high, "block_n": wide, "groups": high // 64, "stages": 4, "group": 8}


def wgmma_product(of: ByHand, config: Config) -> Handwritten:
    """The kernel and its launch, as `product_by_hand` gives them."""
    names = ("block_m", "block_n", "groups", "stages", "group")
    knobs = {name.upper(): integer(config, name) for name in names} | {"BLOCK_K": BLOCK_K}
    block_m, block_n = knobs["BLOCK_M"], knobs["BLOCK_N"]
    source = _SOURCE.replace("MULTIPLY", multiply(block_n, PTX_TYPES[of.dtype]))
    return product_by_hand(
        "product_wgmma", source.replace("SETTLE", settle(block_n)), of, knobs,
        knobs["GROUPS"] * _GROUP,
        (block_m + block_n) * BLOCK_K * 2 * knobs["STAGES"] + _ATOM_BYTES,
    )


def multiply(n: int, kind: str, *, adds: bool = True) -> str:
    """One instruction, over as many accumulators as its width has: sum (+)= a[64, 16] · b[n, 16]ᵀ.

    Args:
        adds: whether the product is added to what the accumulators have.
    """
    count = n // 2
    return (
        f'asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} '
        f'{{{_names(count)}}}, %{count}, %{count + 1}, {int(adds)}, 1, 1, 0, 0;" '
        f': {_sums(count)} : "l"(a), "l"(b));'
    )


def multiply_held(n: int, kind: str) -> str:
    """The same with a in four registers of each thread, and b along n: sum += a[64, 16] · b[16, n]."""
    count = n // 2
    held = ", ".join(f'"r"(a[{i}])' for i in range(4))
    return (
        f'asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} '
        f'{{{_names(count)}}}, {{{_names(4, count)}}}, %{count + 4}, 1, 1, 1, 1;" '
        f': {_sums(count)} : {held}, "l"(b));'
    )


def settle(n: int, newest: int = 0) -> str:
    """Wait for all groups of products but the newest, of which none writes to these accumulators."""
    return f'asm volatile("wgmma.wait_group.sync.aligned {newest};" : {_sums(n // 2)} :: "memory");'


def _names(count: int, first: int = 0) -> str:
    return ", ".join(f"%{i}" for i in range(first, first + count))


def _sums(count: int) -> str:
    return ", ".join(f'"+f"(sum[{i}])' for i in range(count))
