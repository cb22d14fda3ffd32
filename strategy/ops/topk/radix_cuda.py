"""Long rows of topk and argsort on NVIDIA's GPUs, in CUDA C: keys and their indices sorted by their digits.

Keys are unsigned integers in the order of the elements. One kernel counts all their digits; then each pass, from the
lowest digit on, moves every element once: a block puts a tile in order in shared memory, and learns from the tiles
before it, while these run, where each digit of its own begins (Adinets, Merrill, "Onesweep: A Faster Least
Significant Digit Radix Sort for GPUs", 2022). Equal elements stay in their order.
"""
# Over 300 lines: one kernel in CUDA C, with the space and the launches that its macros follow.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.cuda.limit import DeviceLimits, limits_of
from strategy.cuda.lookback import LEAST_CAPABILITY, SOURCE, clear
from strategy.cuda.program import Launch, Pointer, Scalar, Workspace
from strategy.cuda.template import Template, refuse_epilogue, rows_along
from strategy.ops.topk.merge_cuda import outputs
from strategy.ops.topk.operator import TopKAttrs
from strategy.schedule import Outs, dtype_bytes, integer
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_SOURCE = (
    r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
"""
    + SOURCE
    + r"""
#define BINS (1 << DIGIT)
#define WARPS (THREADS / 32)
#define TILE (THREADS * ITEMS)
#define TILES ((LENGTH + TILE - 1) / TILE)
#define LAST_KEY ((BITS)~(BITS)0)
// Counters of one digit in shared memory, as many lanes of a warp often count the same.
#define COPIES (16 / PASSES > 1 ? 16 / PASSES : 1)
// Flags of a word, above the number of a tile's elements with a digit, or of those and all before.
#define OF_TILE (1u << 30)
#define OF_ALL (2u << 30)

__device__ __forceinline__ BITS key_of(BITS bits) {
#if FLOATING
  const BITS size = bits & (BITS)~SIGN;
  BITS key = bits & SIGN ? (BITS)~bits : (BITS)(bits | SIGN);
  if (size == 0) key = SIGN;  // both zeros are equal
  if (size > INFINITE) key = LAST_KEY;  // NaN is larger than all numbers
#else
  BITS key = bits ^ SIGN;
#endif
  return ASCENDING ? key : (BITS)~key;
}

__device__ __forceinline__ int digit_of(BITS key, int pass) { return (int)(key >> pass * DIGIT) & (BINS - 1); }

__device__ __forceinline__ long long place_of(long long row, int i, int length) {
  return (row / INNER * length + i) * INNER + row % INNER;
}

// The state: a ticket of each pass, then of each row and pass how often each digit occurs, then the words of tiles.
__device__ __forceinline__ int* counts_of(int* state, long long row, int pass) {
  return state + PASSES + (row * PASSES + pass) * BINS;
}

__device__ __forceinline__ unsigned* words_of(int* state, long long row, int pass) {
  return (unsigned*)state + PASSES + (long long)ROWS * PASSES * BINS + (row * PASSES + pass) * TILES * BINS;
}

extern "C" __global__ void __launch_bounds__(THREADS) count_digits(
    const BITS* __restrict__ data, int* __restrict__ state) {
  __shared__ int counts[PASSES * BINS * COPIES];
  const long long row = blockIdx.x / PARTS;
  for (int i = threadIdx.x; i < PASSES * BINS * COPIES; i += THREADS) counts[i] = 0;
  __syncthreads();
  for (int tile = blockIdx.x % PARTS; tile < TILES; tile += PARTS) {
    BITS bits[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int at = tile * TILE + i * THREADS + threadIdx.x;
      if (at < LENGTH) bits[i] = data[place_of(row, at, LENGTH)];
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
      if (tile * TILE + i * THREADS + threadIdx.x < LENGTH) {
        const BITS key = key_of(bits[i]);
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
          atomicAdd(counts + (pass * BINS + digit_of(key, pass)) * COPIES + threadIdx.x % COPIES, 1);
      }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < PASSES * BINS; i += THREADS) {
    int sum = 0;
#pragma unroll
    for (int copy = 0; copy < COPIES; ++copy) sum += counts[i * COPIES + copy];
    if (sum) atomicAdd(counts_of(state, row, 0) + i, sum);
  }
}

// The number of earlier elements with the digit of these words, which are BINS apart; `last` is of the latest tile.
__device__ __forceinline__ int look_back(const unsigned* last, int tile) {
  int sum = 0;
  for (;; tile -= LOOKS, last -= LOOKS * BINS) {
    unsigned words[LOOKS];
#pragma unroll
    for (int i = 0; i < LOOKS; ++i) words[i] = i < tile ? load_word(last - i * BINS) : OF_ALL;
#pragma unroll
    for (int i = 0; i < LOOKS; ++i) {
      while (words[i] == 0) words[i] = load_word(last - i * BINS);
      sum += words[i] & (OF_TILE - 1);
      if (words[i] & OF_ALL) return sum;  // as that of the first tile always is
    }
  }
}

// Put the elements of one tile where those of a digit are to lie, in the order in which they came.
template <bool FIRST, bool LAST>
__device__ __forceinline__ void move_tile(
    const BITS* __restrict__ data, const BITS* __restrict__ keys, const int* __restrict__ order,
    BITS* __restrict__ moved, int* __restrict__ moved_order, int* __restrict__ state, int pass OUTPUTS) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ long long sums[WARPS];
  __shared__ int starts[BINS];
  BITS* tile_keys = (BITS*)shared;
  int* tile_order = (int*)(tile_keys + TILE);
  int* counts = (int*)shared;  // of each warp and digit, before the tile's elements are there
  const int ticket = take_ticket(state + pass);
  const long long row = ticket / TILES;
  const int tile = ticket % TILES, begin = tile * TILE;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int* row_counts = counts_of(state, row, pass);
  unsigned* words = words_of(state, row, pass) + (long long)tile * BINS + thread;

  // A warp has neighbouring elements, of which each lane has every 32nd.
  const int first = begin + warp * ITEMS * 32 + lane;
  BITS key[ITEMS];
  int index[ITEMS], place[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int at = first + i * 32;
    key[i] = LAST_KEY;  // places beyond the row stay behind all of it
    if (at < LENGTH) key[i] = FIRST ? key_of(data[place_of(row, at, LENGTH)]) : keys[row * LENGTH + at];
  }
  const int in_row = thread < BINS ? row_counts[thread] : 0;

  // The number of elements of the warp with the same digit before each.
  int* mine = counts + warp * BINS;
#pragma unroll
  for (int bin = lane; bin < BINS; bin += 32) mine[bin] = 0;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int digit = digit_of(key[i], pass);
    unsigned peers = 0xffffffffu;
#pragma unroll
    for (int bit = 0; bit < DIGIT; ++bit) {
      const bool set = digit >> bit & 1;
      const unsigned with = __ballot_sync(0xffffffffu, set);
      peers &= set ? with : ~with;
    }
    const int before = mine[digit];
    __syncwarp();
    if (peers >> lane == 1) mine[digit] = before + __popc(peers);  // the last of them
    __syncwarp();
    place[i] = before + __popc(peers & (1u << lane) - 1);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int at = first + i * 32;
    index[i] = FIRST || at >= LENGTH ? at : order[row * LENGTH + at];
  }

  int in_tile = 0;
  if (thread < BINS) {
#pragma unroll
    for (int w = 0; w < WARPS; ++w) in_tile += counts[w * BINS + thread];
    if (TILES > 1 && tile + 1 < TILES) store_word(words, (tile ? OF_TILE : OF_ALL) | in_tile);
  }
  // The sums before each digit, of the tile's elements above, and of the row's below.
  const long long own = (long long)in_tile << 32 | in_row;
  long long sum = own;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const long long other = __shfl_up_sync(0xffffffffu, sum, by);
    if (lane >= by) sum += other;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  sum -= own;
  int start = 0;
  if (thread < BINS) {
    for (int w = 0; w < warp; ++w) sum += sums[w];
    start = (int)(sum >> 32);
    int at = start;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const int count = counts[w * BINS + thread];
      counts[w * BINS + thread] = at;
      at += count;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) place[i] += mine[digit_of(key[i], pass)];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    tile_keys[place[i]] = key[i];
    tile_order[place[i]] = index[i];
  }

  if (thread < BINS) {
    int before = 0;
    if (tile > 0) {
      before = look_back(words - BINS, tile);
      if (tile + 1 < TILES) store_word(words, OF_ALL | before + in_tile);
    }
    starts[thread] = (int)sum + before - start;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int at = i * THREADS + thread;
    if (begin + at < LENGTH) {
      const BITS found = tile_keys[at];
      const int from = tile_order[at], to = starts[digit_of(found, pass)] + at;
      if (!LAST) {
        moved[row * LENGTH + to] = found;
        moved_order[row * LENGTH + to] = from;
      } else if (to < K) {
#if VALUES
        ((BITS*)values)[place_of(row, to, K)] = data[place_of(row, from, LENGTH)];
#endif
#if INDICES
        positions[place_of(row, to, K)] = from;
#endif
      }
    }
  }
}

#define KERNEL(NAME, FIRST, LAST)                                                                       \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(                                       \
      const BITS* __restrict__ data, const BITS* __restrict__ keys, const int* __restrict__ order,      \
      BITS* __restrict__ moved, int* __restrict__ moved_order, int* __restrict__ state, int pass OUTPUTS) { \
    move_tile<FIRST, LAST>(data, keys, order, moved, moved_order, state, pass GIVEN);                   \
  }
#if PASSES == 1
KERNEL(move_once, true, true)
#else
KERNEL(move_first, true, false)
KERNEL(move_last, false, true)
#endif
#if PASSES > 2
KERNEL(move_again, false, false)
#endif
"""
)
_THREADS, _ITEMS, _DIGITS = (256, 512, 1024), (4, 8, 12, 16, 20), (7, 8)  # a block has a thread for each digit
_LONG, _LONGEST = 1024, 2**29  # a word has 30 bits for a number
_FEW = 512  # so many `topk_select.cuda` takes without sorting the others
_STATIC_BYTES = 2048  # of shared memory beside a tile
_BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
_INFINITE = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}
_NOTHING = Scalar("int64", 0)  # for a pointer


def level_of_radix(k: int, length: int, limits: DeviceLimits) -> int | None:
    """The plevel of sorting by digits, against 10 where a block sorts a row; None where it is not offered."""
    if k <= _FEW or not _LONG < length <= _LONGEST or limits.capability < LEAST_CAPABILITY:
        return None
    return 12  # several times as fast as a block's sort and as merges (docs/performance-gpu.md)


def space_of_radix(
    attrs: TopKAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Threads of a block, elements of each, the bits of a digit, and how many tiles are looked at at once."""
    limits, data = limits_of(target), inputs[0]
    rows, length, _ = rows_along(data.concrete_shape, attrs.axis)
    size = dtype_bytes(data.dtype)
    most = (limits.shared_bytes - _STATIC_BYTES) // (size + 4)
    # As tiles wait for those before them, one for each multiprocessor is best.
    wanted = min(length, max(2048, rows * length // limits.multiprocessors))
    items = [i for i in _ITEMS if i * 512 <= most and _registers(i, size) * 512 <= limits.registers]
    return ConfigSpace(
        [Knob("threads", _THREADS), Knob("items", _ITEMS), Knob("digit", _DIGITS),
         Knob("looks", (2, 4, 8, 16))],
        [knob("threads") <= limits.threads, knob("threads") * knob("items") <= most,
         _registers(knob("items"), size) * knob("threads") <= limits.registers],
        fallback={
            "threads": 512, "digit": 8, "looks": 8,
            "items": next((i for i in items if i * 512 >= wanted), items[-1]),
        },
    )


def _registers(items: Any, size: int) -> Any:
    """Registers of a thread that has so many elements, by their bytes, with which nvcc 13 spills none."""
    return 30 + items * (2 + 2 * -(-size // 4))


def schedule_radix(attrs: TopKAttrs, outs: Outs, target: Target, config: Config) -> Template:
    """The kernels for one shape, axis and dtype."""
    refuse_epilogue(outs)
    data = outs.args[0]
    (rows, length, inner), dtype = rows_along([int(e) for e in data.shape], attrs.axis), str(data.dtype)
    threads, items, digit, looks = (integer(config, name) for name in ("threads", "items", "digit", "looks"))
    names, macros = outputs(attrs, dtype)
    key_bytes, tile, bins = dtype_bytes(dtype), threads * items, 1 << digit
    passes, tiles = -(-8 * key_bytes // digit), -(-length // tile)
    block, state = (threads, 1, 1), Pointer("state")
    shared = max(tile * (key_bytes + 4), threads // 32 * bins * 4)
    words = passes + rows * passes * bins * (1 + (tiles if tiles > 1 else 0))
    limits = limits_of(target)
    parts = min(tiles, max(1, 4 * limits.multiprocessors // rows))
    registers = -(-_registers(items, key_bytes) // 8) * 8
    results = tuple(Pointer(name) for name in names)
    launches = [
        clear("state", words),
        Launch("count_digits", (Pointer("data"), state), (rows * parts, 1, 1), block),
    ]
    pairs = [(Pointer(f"keys{i}"), Pointer(f"order{i}")) for i in range(min(2, passes - 1))]
    nothing = (_NOTHING, _NOTHING)
    for number in range(passes):
        is_first, is_last = number == 0, number == passes - 1
        name = {(True, True): "move_once", (True, False): "move_first", (False, True): "move_last"}.get(
            (is_first, is_last), "move_again"
        )
        source = nothing if is_first else pairs[(number - 1) % 2]
        moved = nothing if is_last else pairs[number % 2]
        arguments = (Pointer("data"), *source, *moved, state, Scalar("int32", number), *results)
        launches.append(Launch(name, arguments, (rows * tiles, 1, 1), block, shared))
    is_signed = not dtype.startswith(("uint", "bool"))
    return Template(
        source=_SOURCE,
        macros={
            **macros, "BITS": _BITS[key_bytes], "SIGN": f"((BITS){int(is_signed)} << {8 * key_bytes - 1})",
            "FLOATING": int(dtype in _INFINITE), "INFINITE": hex(_INFINITE.get(dtype, 0)),
            "GIVEN": "".join(f", {name}" for name in names), "ROWS": rows, "LENGTH": length, "INNER": inner,
            "THREADS": threads, "ITEMS": items, "DIGIT": digit, "LOOKS": looks, "PASSES": passes, "PARTS": parts,
            "BLOCKS": max(1, limits.registers // (registers * threads)),
        },
        parameters=("data", *names),
        launches=tuple(launches),
        workspaces=(
            Workspace("state", 4 * words),
            *(Workspace(keys.buffer, rows * length * key_bytes) for keys, _ in pairs),
            *(Workspace(order.buffer, rows * length * 4) for _, order in pairs),
        ),
        shared_bytes={
            "count_digits": passes * bins * max(1, 16 // passes) * 4,
            **dict.fromkeys(("move_once", "move_first", "move_again", "move_last"), _STATIC_BYTES),
        },
    )
