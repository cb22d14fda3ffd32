"""Common parts of hand-written CUDA products that copy tiles ahead of their use by `cp.async`.

Both operands are contiguous along k. Tiles of BLOCK_K steps of k are copied to shared
memory into STAGES places in turn, 16 bytes at a time, so that k is a multiple of 8. What follows the
product runs in a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strategy.cuda.library import LEFT, OUTPUT, RIGHT, THIRD, Handwritten
from strategy.cuda.limit import GRID
from strategy.cuda.program import Launch, Number, Pointer, Scalar, times
from strategy.cuda.template import C_TYPES, Template
from strategy.types import Dim

_CHUNK = 8  # elements of 16 bytes, which is what one thread copies at a time
PTX_TYPES = {"float16": "f16", "bfloat16": "bf16"}

TRANSPOSE = r"""
// What four lanes hold, a row each, by columns.
__device__ __forceinline__ void transpose(unsigned (&rows)[4]) {
  #pragma unroll
  for (int by = 1; by <= 2; by *= 2) {
    const bool upper = threadIdx.x & by;
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned &low = rows[i * (3 - by)], &high = rows[i * (3 - by) + by];
      const unsigned got = __shfl_xor_sync(0xFFFFFFFF, upper ? low : high, by);
      low = upper ? got : low, high = upper ? high : got;
    }
  }
}
"""
_COPIES = (
    r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define CHUNKS (BLOCK_K / CHUNK)
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

// Tiles of GROUP rows of tiles follow each other down the columns: they share what the L2 cache holds.
__device__ __forceinline__ void find_tile(int m, int& row, int& column) {
  const int tiles_m = (m + BLOCK_M - 1) / BLOCK_M, tiles_n = (COLUMNS + BLOCK_N - 1) / BLOCK_N;
  const int in_group = GROUP * tiles_n;
  const int above = blockIdx.x / in_group * GROUP, within = blockIdx.x % in_group;
  const int height = tiles_m - above < GROUP ? tiles_m - above : GROUP;
  row = (above + within % height) * BLOCK_M, column = within / height * BLOCK_N;
}

// A block's tile of the output, and what each of its threads copies next of the operands.
struct Tile {
  int row, column;
  const TYPE *a, *b;
  int a_left, b_left;

  __device__ __forceinline__ Tile() {}
  __device__ __forceinline__ Tile(const TYPE* left, const TYPE* right, int m) {
    find_tile(m, row, column);
    const long long first = (long long)(threadIdx.x / CHUNKS) * DEPTH + threadIdx.x % CHUNKS * CHUNK;
    a = left + ((long long)(ONE_LEFT ? 0 : blockIdx.z) * m + row) * DEPTH + first;
    b = right + ((long long)(ONE_RIGHT ? 0 : blockIdx.z) * COLUMNS + column) * DEPTH + first;
    a_left = m - row, b_left = COLUMNS % BLOCK_N ? COLUMNS - column : 0x7FFFFFFF;  // whole tiles have all
  }

  // Both operands of a step, if there is one, as a group of copies of its own.
  __device__ __forceinline__ void fetch_both(int step, unsigned stage) {
    if (step < STEPS) {
      fetch<BLOCK_M>(stage, a, a_left, step);
      fetch<BLOCK_N>(stage + BLOCK_M * ROW, b, b_left, step);
      a += BLOCK_K, b += BLOCK_K;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  // Where a number of the output lies; `run` columns lie side by side.
  static constexpr int run = COLUMNS;
  __device__ __forceinline__ OUT* at(OUT* output, int m, int y, int x) const {
    return output + ((long long)blockIdx.z * m + y) * COLUMNS + x;
  }
};
"""
    + TRANSPOSE
    + r"""
// A row of a warp's fragments, from column x on: the lane has the first two of four numbers for each of
// BLOCKS times eight columns. Where it can, it writes eight of a block that four lanes have.
template <int BLOCKS, class Where>
__device__ __forceinline__
void write_row(const Where& tile, OUT* output, int m, int y, int x, const float* numbers) {
  const int lane = threadIdx.x % 4;
  if constexpr (sizeof(OUT) == 2 && Where::run % 8 == 0 && BLOCKS % 4 == 0) {
    #pragma unroll
    for (int j = 0; j < BLOCKS; j += 4) {
      unsigned pairs[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Pair pair{OUT(numbers[(j + i) * 4]), OUT(numbers[(j + i) * 4 + 1])};
        pairs[i] = *(const unsigned*)&pair;
      }
      transpose(pairs);
      const int column = x + (j + lane) * 8;
      if (y < m && column < COLUMNS)
        *(uint4*)tile.at(output, m, y, column) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  } else {
    #pragma unroll
    for (int j = 0; j < BLOCKS; ++j) {
      const int column = x + j * 8 + lane * 2;
      const OUT first = OUT(numbers[j * 4]), second = OUT(numbers[j * 4 + 1]);
      if (Where::run % 2 == 0) {
        if (y < m && column < COLUMNS) *(Pair*)tile.at(output, m, y, column) = Pair{first, second};
      } else {
        if (y < m && column < COLUMNS) *tile.at(output, m, y, column) = first;
        if (y < m && column + 1 < COLUMNS) *tile.at(output, m, y, column + 1) = second;
      }
    }
  }
}

__device__ __forceinline__ unsigned after(unsigned stage, unsigned first) {
  return stage == first + (STAGES - 1) * STAGE ? first : stage + STAGE;
}
"""
)


@dataclass(frozen=True)
class Operands:
    """CUDA C of a type that copies both operands and addresses the output, as `Tile` does.

    Args:
        macros: names in its source, with their values.
        third: type of a third input, which its constructor takes after m.
        skip: condition on `tile` and m under which a block has nothing to compute.
    """

    name: str = "Tile"
    source: str = ""
    macros: Mapping[str, int] = field(default_factory=dict)
    third: str = ""
    skip: str = ""

    def insert(self, source: str) -> str:
        """The source of a kernel with MORE_INPUTS in its parameters and OPERANDS where the type is constructed."""
        parameter, argument = (f", const {self.third}* __restrict__ third", ", third") if self.third else ("", "")
        skip = f"\n  if ({self.skip}) return;" if self.skip else ""
        made = f"{self.name} tile(left, right, m{argument});{skip}"
        return source.replace("MORE_INPUTS", parameter).replace("OPERANDS", made)


@dataclass(frozen=True)
class ByHand:
    """A product, [batch, m, k] · [batch, n, k]ᵀ.

    Args:
        one_left, one_right: True if the operand is shared by all entries of the batch.
        operands: the type that reads them and addresses the output.
        parts: of m, where rows of two parts are never in one tile.
    """

    batch: Number
    m: Number
    n: int
    k: int
    dtype: str
    out_dtype: str
    one_left: bool = False
    one_right: bool = False
    operands: Operands = Operands()
    parts: int = 1

    def tiles(self, block_m: int) -> Number:
        """Tiles along m, or with several parts the most there can be."""
        spare = self.parts * (block_m - 1)
        if isinstance(self.m, int):
            return min((self.m + spare) // block_m, self.m)
        tiles: Number = ["//", ["+", self.m, spare], block_m]
        return tiles if self.parts == 1 else ["min", tiles, self.m]


def takes_copies(batch: Dim, n: Dim, k: Dim, dtype: str, out_dtype: str) -> bool:
    """True if a product's operands can be copied in 16 bytes, and tensor cores have its dtypes."""
    return (
        dtype in PTX_TYPES
        and out_dtype in (dtype, "float32")
        and not (batch.is_constant and int(batch) > GRID[2])
        and n.is_constant
        and k.is_constant
        and int(k) % _CHUNK == 0
    )


def product_by_hand(
    kernel: str, source: str, of: ByHand, knobs: Mapping[str, int], threads: int, shared_bytes: int
) -> Handwritten:
    """The kernel of a product, and its launch.

    Args:
        source: of `kernel`, which takes both operands, the output and m, for `Operands.insert`.
        knobs: values of BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GROUP and the source's other macros.
    """
    macros: dict[str, int | str] = {
        **knobs, **of.operands.macros, "THREADS": threads,
        "TYPE": C_TYPES[of.dtype], "OUT": C_TYPES[of.out_dtype], "CHUNK": _CHUNK, "COLUMNS": of.n,
        "DEPTH": of.k, "ONE_LEFT": int(of.one_left), "ONE_RIGHT": int(of.one_right),
    }
    arguments = (Pointer(LEFT), Pointer(RIGHT), Pointer(OUTPUT), Scalar("int32", of.m))
    launch = Launch(
        kernel, (*arguments, Pointer(THIRD)) if of.operands.third else arguments,
        (times(of.tiles(knobs["BLOCK_M"]), -(-of.n // knobs["BLOCK_N"])), 1, of.batch), (threads, 1, 1), shared_bytes,
    )
    text = _COPIES + of.operands.source + of.operands.insert(source)
    return Handwritten(Template(text, macros, (), (launch,)).code, launch)
