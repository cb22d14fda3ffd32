"""topk of few elements on NVIDIA's GPUs, in CUDA C: `topk_select.cuda`, which sorts only what may be chosen.

The best elements of groups of threads are ordered first. The k-th of them is no better than the k-th of the row, so
whatever it beats is passed over: about 1.4 k elements are left with 2 k groups, more where few groups have the best.
No two are equal, as of equal ones the lower place is better. Those are collected in shared memory and sorted. The row
is read once; only threads whose own best may be chosen read their part of it again, from a cache. A long row is left
to several blocks, and a second kernel chooses among what these have kept.
"""
# Over 300 lines: one kernel in CUDA C, with the space and the launches that its macros follow.

from __future__ import annotations

import math
from collections.abc import Sequence

from strategy.condition import maximum
from strategy.cuda.limit import DeviceLimits, limits_of
from strategy.cuda.program import Launch, Pointer, Workspace
from strategy.cuda.template import Template, refuse_epilogue, rows_along
from strategy.ops.topk.merge_cuda import outputs
from strategy.ops.topk.operator import TopKAttrs
from strategy.schedule import Outs, dtype_bytes, integer
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>

#define NONE 0x7fffffff
// Of a larger key the element is better, of equal ones that with the lower place; none has a place beyond the row.
struct __align__(2 * sizeof(BITS)) Best { BITS key; int place; };

__device__ __forceinline__ bool beats(Best a, Best b) {
  return a.key > b.key || (a.key == b.key && a.place < b.place);
}

__device__ __forceinline__ BITS key_of(IN value) {
#if FLOATING
  union { REAL real; BITS bits; } both;
  both.real = (REAL)value + (REAL)0;  // both zeros are equal
  BITS key = both.bits ^ ((BITS)0 - (both.bits >> (8 * sizeof(BITS) - 1)) | FIRST_BIT);
  if (both.real != both.real) key = ~(BITS)0;  // NaN is larger than all numbers
#else
  BITS key = (BITS)value ^ FIRST_BIT;
#endif
  return ASCENDING ? ~key : key;
}

__device__ __forceinline__ void join() {
  if (THREADS == 32) __syncwarp(); else __syncthreads();
}

// What a thread reads at once, of a row of the input.
struct Row {
  struct __align__(WIDTH * sizeof(IN)) Read { IN at[WIDTH]; };
  static const int kWidth = WIDTH;
  const IN* data;
  int before;  // elements before the row in its first vector

  __device__ __forceinline__ Read fetch(int vector) const {
    const int place = vector * WIDTH - before;
    const IN* from = data + (long long)place * INNER;
    if (WHOLE || (place >= 0 && place + WIDTH <= LENGTH)) return *(const Read*)from;
    Read read;
#pragma unroll
    for (int w = 0; w < WIDTH; ++w)
      if ((unsigned)(place + w) < LENGTH) read.at[w] = from[w];
    return read;
  }

  __device__ __forceinline__ Best take(const Read& read, int vector, int w) const {
    Best found;
    found.place = vector * WIDTH - before + w;
    found.key = key_of(read.at[w]);
    if (!WHOLE && (unsigned)found.place >= LENGTH) found.key = 0, found.place = NONE;
    return found;
  }
};

// What blocks have kept of a row.
struct Kept {
  typedef Best Read;
  static const int kWidth = 1;
  const Best* kept;

  __device__ __forceinline__ Best fetch(int at) const { return kept[at]; }
  __device__ __forceinline__ Best take(const Best& read, int, int) const { return read; }
};

// Put the best first, no two of which are equal. There is room for a power of two.
__device__ __forceinline__ void put_in_order(Best* places, int count) {
  const int thread = threadIdx.x;
  if (count <= COUNTED) {  // each goes where as many are better
    Best mine;
    int better = 0;
    if (thread < count) {
      mine = places[thread];
      for (int i = 0; i < count; ++i) better += beats(places[i], mine);
    }
    join();
    if (thread < count) places[better] = mine;
    join();
    return;
  }
  int size = 1;  // a bitonic network
  while (size < count) size *= 2;
#pragma unroll 1
  for (int i = count + thread; i < size; i += THREADS) places[i].key = 0, places[i].place = NONE;
  join();
#pragma unroll 1
  for (int sorted = 2; sorted <= size; sorted *= 2)
#pragma unroll 1
    for (int apart = sorted / 2; apart > 0; apart /= 2) {
#pragma unroll 1
      for (int pair = thread; pair < size / 2; pair += THREADS) {
        int i = pair / apart * apart * 2 + pair % apart;
        Best a = places[i], b = places[i + apart];
        if ((i & sorted) == 0 ? beats(b, a) : beats(a, b)) places[i] = b, places[i + apart] = a;
      }
      join();
    }
}

// Put the K best vectors' elements from `first` on into `places`, in order, and none for those that lack.
template <class From>
__device__ __forceinline__ void choose(const From from, int first, int last, Best* places, int* count) {
  const int thread = threadIdx.x;
  Best mine;
  mine.key = 0, mine.place = NONE - thread;  // no two are equal
  for (int vector = first + thread; vector < last; vector += THREADS * LOADS) {
    typename From::Read read[LOADS];
#pragma unroll
    for (int l = 0; l < LOADS; ++l)
      if (vector + l * THREADS < last) read[l] = from.fetch(vector + l * THREADS);
#pragma unroll
    for (int l = 0; l < LOADS; ++l)
      if (vector + l * THREADS < last) {
#pragma unroll
        for (int w = 0; w < From::kWidth; ++w) {
          Best found = from.take(read[l], vector + l * THREADS, w);
          if (beats(found, mine)) mine = found;
        }
      }
  }
  Best group = mine;
#pragma unroll
  for (int by = 1; by < THREADS / GROUPS; by *= 2) {
    Best other;
    other.key = __shfl_xor_sync(0xffffffffu, group.key, by);
    other.place = __shfl_xor_sync(0xffffffffu, group.place, by);
    if (beats(other, group)) group = other;
  }
  if (thread % (THREADS / GROUPS) == 0) places[thread / (THREADS / GROUPS)] = group;
  join();
  put_in_order(places, GROUPS);
  for (;;) {
    const Best least = places[K - 1];
    if (thread == 0) *count = 0;
    join();
    if (!beats(least, mine)) {
#pragma unroll 1
      for (int vector = first + thread; vector < last; vector += THREADS) {
        typename From::Read read = from.fetch(vector);
#pragma unroll
        for (int w = 0; w < From::kWidth; ++w) {
          Best found = from.take(read, vector, w);
          if (beats(least, found) || found.place >= LENGTH) continue;
          int at = atomicAdd(count, 1);
          if (at < ROOM) places[at] = found;
        }
      }
    }
    join();
    const int total = *count;
    put_in_order(places, total < ROOM ? total : ROOM);
    if (total <= ROOM) {
#pragma unroll 1
      for (int i = total + thread; i < K; i += THREADS) places[i].key = 0, places[i].place = NONE;
      join();
      return;
    }
    // More than there is room for: those of them that have been kept give a better bound.
  }
}

// A row's first element, places in shared memory, and their number.
#define BEGIN                                                                          \
  extern __shared__ __align__(16) unsigned char shared[];                              \
  const long long row = (long long)blockIdx.x * TOGETHER + threadIdx.y;                \
  Best* places = (Best*)shared + threadIdx.y * ROOM;                                   \
  int* count = (int*)((Best*)shared + TOGETHER * ROOM) + threadIdx.y;                  \
  if (row >= ROWS) return;                                                             \
  const long long begin = row / INNER * LENGTH * INNER + row % INNER;

#define END                                                                            \
  const long long to = row / INNER * K * INNER + row % INNER;                          \
  _Pragma("unroll 1")                                                                  \
  for (int i = threadIdx.x; i < K; i += THREADS) {                                     \
    const int place = places[i].place;                                                 \
    WRITE(to + (long long)i * INNER, begin + (long long)place * INNER, place)          \
  }

extern "C" __global__ void __launch_bounds__(THREADS * TOGETHER) select_parts(
    const IN* __restrict__ data TO) {
  BEGIN
  Row from;
  from.data = data + begin;
  from.before = WHOLE ? 0 : (int)(begin % WIDTH);
  const int first = blockIdx.y * PART, last = first + PART < VECTORS ? first + PART : VECTORS;
  choose(from, first, last, places, count);
#if PARTS == 1
  END
#else
#pragma unroll 1
  for (int i = threadIdx.x; i < K; i += THREADS) kept[(row * PARTS + blockIdx.y) * K + i] = places[i];
#endif
}
"""
_SOURCE_OF_KEPT = r"""
extern "C" __global__ void __launch_bounds__(THREADS * TOGETHER) select_kept(
    const IN* __restrict__ data, const Best* __restrict__ kept OUTPUTS) {
  BEGIN
  Kept from;
  from.kept = kept + row * PARTS * K;
  choose(from, 0, PARTS * K, places, count);
  END
}
"""
_THREADS = (32, 64, 128, 256, 512, 1024)
_COUNTED = 128  # so many are ordered by counting, more by a network
_MOST, _LONGEST = 512, 2**30
_FEW = 256  # preferred up to this k, of rows of twice as many: many times as fast as sorting (docs/performance-gpu.md)
_REALS = {"float16": "float", "bfloat16": "float", "float32": "float", "float64": "double"}


def level_of_select(k: int, length: int) -> int | None:
    """The plevel of selecting, against 10 where a block sorts a row; None where it is not offered."""
    if k > _MOST or length > _LONGEST:
        return None
    return 12 if k <= _FEW and 2 * k <= length else 8


def _best_bytes(dtype: str) -> int:
    """Bytes of a key and its place."""
    return 16 if dtype_bytes(dtype) == 8 else 8


def _power(least: float) -> int:
    """The next power of two."""
    return 1 << max(0, math.ceil(least) - 1).bit_length()


def space_of_select(
    attrs: TopKAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Threads of a row, groups of them, rows of a block, vectors that a thread reads at once, and parts of a row."""
    limits, data = limits_of(target), inputs[0]
    rows, length, _ = rows_along(data.concrete_shape, attrs.axis)
    k, each = attrs.k, _best_bytes(data.dtype)
    parts = [p for p in (2**e for e in range(10)) if p == 1 or p * max(1024, 2 * k) <= length]
    room = maximum(knob("groups"), _power(4 * k))
    return ConfigSpace(
        [
            Knob("threads", _THREADS), Knob("groups", [g for g in _THREADS if g >= k]), Knob("rows", [1, 2, 4, 8]),
            Knob("loads", [1, 2, 4, 8]), Knob("parts", parts),
        ],
        [
            knob("threads") <= limits.threads, knob("groups") <= knob("threads"),
            knob("threads") <= 32 * knob("groups"),
            (knob("rows") - 1) * (knob("threads") - 32) <= 0,  # several rows only of one warp each
            knob("rows") * (room * each + 4) <= limits.shared_bytes,
        ],
        fallback={**_untuned(k, rows, length, limits, parts), "loads": 1 if dtype_bytes(data.dtype) == 1 else 4},
    )


def _untuned(k: int, rows: int, length: int, limits: DeviceLimits, parts: list[int]) -> dict[str, int]:
    """Parts that keep the device busy, and twice as many groups as elements are taken, which leaves about 1.4 k."""
    wanted = min(2 * limits.multiprocessors // rows, length // max(4096, 16 * k))
    part = max(p for p in parts if p <= max(1, wanted))
    part = part if part > 2 else 1  # two are not worth the second kernel
    groups = max(32, _power(k), min(_power(2 * k), _power(length)))
    most = limits.threads if rows * part <= limits.multiprocessors else 512
    threads = max(groups, min(most, _power(length / part / 16)))
    return {"threads": threads, "groups": groups, "rows": 4 if threads == 32 else 1, "parts": part}


def schedule_select(attrs: TopKAttrs, outs: Outs, target: Target, config: Config) -> Template:
    """The kernels for one shape, axis and dtype."""
    refuse_epilogue(outs)
    data = outs.args[0]
    dtype, k = str(data.dtype), attrs.k
    rows, length, inner = rows_along([int(e) for e in data.shape], attrs.axis)
    threads, groups, together, loads, parts = (
        integer(config, name) for name in ("threads", "groups", "rows", "loads", "parts")
    )
    width = min(16 // dtype_bytes(dtype), _power(length / parts / threads)) if inner == 1 else 1
    is_whole = length % width == 0
    # Of a row that begins within a vector, the last ends in another.
    vectors = -(-length // width) if is_whole else -(-(length + width - 1) // width)
    room, each = max(groups, _power(4 * k)), _best_bytes(dtype)
    names, macros = outputs(attrs, dtype)
    written = {"values": "values[at] = data[from];", "positions": "positions[at] = place;"}
    grid, block = -(-rows // together), (threads, together, 1)
    shared = together * (room * each + 4)
    source, kept, results = Pointer("data"), Pointer("kept"), tuple(Pointer(name) for name in names)
    launches = [
        Launch("select_parts", (source, *(results if parts == 1 else (kept,))), (grid, parts, 1), block, shared)
    ]
    if parts > 1:
        launches.append(Launch("select_kept", (source, kept, *results), (grid, 1, 1), block, shared))
    is_signed = not dtype.startswith(("uint", "bool"))
    return Template(
        source=_SOURCE + _SOURCE_OF_KEPT * (parts > 1),
        macros={
            **macros, "BITS": "unsigned long long" if each == 16 else "unsigned int",
            "FIRST_BIT": f"((BITS){int(is_signed)} << (8 * sizeof(BITS) - 1))",
            "FLOATING": int(dtype in _REALS), "REAL": _REALS.get(dtype, "float"),
            "TO": macros["OUTPUTS"] if parts == 1 else ", Best* __restrict__ kept",
            "WRITE(at, from, place)": " ".join(written[name] for name in names),
            "ROWS": rows, "LENGTH": length, "INNER": inner, "THREADS": threads, "GROUPS": groups,
            "TOGETHER": together, "LOADS": loads, "PARTS": parts, "WIDTH": width, "WHOLE": int(is_whole),
            "VECTORS": vectors, "PART": -(-vectors // parts), "ROOM": room, "COUNTED": min(threads, _COUNTED),
        },
        parameters=("data", *names),
        launches=tuple(launches),
        workspaces=(Workspace("kept", rows * parts * k * each),) if parts > 1 else (),
    )
