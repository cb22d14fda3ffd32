"""Long rows of topk and argsort on NVIDIA's GPUs, in CUDA C: tiles are sorted, and then merged in pairs.

Each pass halves the runs of a row, over global memory, from one workspace to another. A block makes
`threads` × `items` elements of a pass: it finds by bisection which of the two runs it needs for them, and
so does each of its threads (merge path: Green, McColl, Bader, "GPU Merge Path", ICS 2012). Equal elements
stay in their order. Of each run only the first k are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from strategy.attrs import Attrs
from strategy.cuda.limit import DeviceLimits, limits_of
from strategy.cuda.program import Launch, Pointer, Scalar, Workspace
from strategy.cuda.template import C_TYPES, Template, refuse_epilogue, rows_along
from strategy.ops.topk.operator import TopKAttrs
from strategy.schedule import Outs, dtype_bytes, integer
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type

# Sorts SORT places in shared memory by all threads of a block: a bitonic network.
SORT_PLACES = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>

// Whether one key comes before another, which is no equal: NaN is larger than all numbers.
__device__ bool comes_before(KEY a, KEY b) {
  return ASCENDING ? a < b || (b != b && a == a) : a > b || (a != a && b == b);
}

// Whether one element comes before another: the lower index first among equals.
__device__ bool comes_first(KEY a, int i, KEY b, int j) {
  if (i < 0 || j < 0) return j < 0 && i >= 0;  // places without an element come last
  return comes_before(a, b) || (!comes_before(b, a) && i < j);
}

__device__ void sort_places(KEY* keys, int* indices) {
  for (int size = 2; size <= SORT; size *= 2)
    for (int apart = size / 2; apart > 0; apart /= 2) {
      for (int pair = threadIdx.x; pair < SORT / 2; pair += THREADS) {
        int i = pair / apart * apart * 2 + pair % apart, j = i + apart;
        bool forward = (i & size) == 0;
        bool swap = forward ? comes_first(keys[j], indices[j], keys[i], indices[i])
                            : comes_first(keys[i], indices[i], keys[j], indices[j]);
        if (swap) {
          KEY key = keys[i]; keys[i] = keys[j]; keys[j] = key;
          int index = indices[i]; indices[i] = indices[j]; indices[j] = index;
        }
      }
      __syncthreads();
    }
}
"""
_SOURCE = (
    SORT_PLACES
    + r"""
__device__ long long row_of_block() { return blockIdx.y + (long long)blockIdx.z * ROWS_Y; }

extern "C" __global__ void __launch_bounds__(THREADS) sort_tiles(
    const IN* __restrict__ data, KEY* __restrict__ sorted, int* __restrict__ order) {
  extern __shared__ __align__(16) unsigned char shared[];
  KEY* keys = (KEY*)shared;
  int* indices = (int*)(keys + SORT);
  long long row = row_of_block();
  if (row >= ROWS) return;
  int from = blockIdx.x * SORT;
  for (int i = threadIdx.x; i < SORT; i += THREADS) {
    int at = from + i;
    indices[i] = at < LENGTH ? at : -1;
    if (at < LENGTH) keys[i] = (KEY)data[(row / INNER * LENGTH + at) * INNER + row % INNER];
  }
  __syncthreads();
  sort_places(keys, indices);
  for (int i = threadIdx.x; i < SORT && i < K && from + i < LENGTH; i += THREADS) {
    sorted[row * LENGTH + from + i] = keys[i];
    order[row * LENGTH + from + i] = indices[i];
  }
}

// How many of the first `taken` of two merged runs are of the first run: of equal ones, those of it come first.
__device__ int of_first(const KEY* a, int a_count, const KEY* b, int b_count, int taken) {
  int low = taken > b_count ? taken - b_count : 0, high = taken < a_count ? taken : a_count;
  while (low < high) {
    int middle = (low + high) / 2;
    KEY left = a[middle], right = b[taken - 1 - middle];
    if (comes_before(right, left)) high = middle; else low = middle + 1;
  }
  return low;
}

// What is kept of the run that begins there.
__device__ int kept(int first, int width) {
  int count = first < LENGTH ? (width < LENGTH - first ? width : LENGTH - first) : 0;
  return count < K ? count : K;
}

extern "C" __global__ void __launch_bounds__(THREADS) merge_runs(
    const KEY* __restrict__ sorted, const int* __restrict__ order, KEY* __restrict__ merged,
    int* __restrict__ merged_order, int width) {
  extern __shared__ __align__(16) unsigned char shared[];
  KEY* keys = (KEY*)shared;
  int* indices = (int*)(keys + SPAN);
  __shared__ int ends[2];
  long long row = row_of_block();
  if (row >= ROWS) return;
  int first = blockIdx.x * SPAN / (2 * width) * (2 * width), at = blockIdx.x * SPAN - first;
  int a_count = kept(first, width), b_count = kept(first + width, width);
  int count = a_count + b_count < K ? a_count + b_count : K;
  if (at >= count) return;
  count = count - at < SPAN ? count - at : SPAN;
  long long a = row * LENGTH + first, b = a + width;
  if (threadIdx.x < 2)
    ends[threadIdx.x] = of_first(sorted + a, a_count, sorted + b, b_count, at + threadIdx.x * count);
  __syncthreads();
  int mine = ends[1] - ends[0];
  for (int i = threadIdx.x; i < count; i += THREADS) {
    long long from = i < mine ? a + ends[0] + i : b + at - ends[0] + i - mine;
    keys[i] = sorted[from];
    indices[i] = order[from];
  }
  __syncthreads();
  int begin = threadIdx.x * ITEMS, end = begin + ITEMS < count ? begin + ITEMS : count;
  if (begin >= end) return;
  int i = of_first(keys, mine, keys + mine, count - mine, begin), j = mine + begin - i;
  for (int to = begin; to < end; ++to) {
    bool left = i < mine && (j >= count || !comes_before(keys[j], keys[i]));
    int from = left ? i++ : j++;
    merged[a + at + to] = keys[from];
    merged_order[a + at + to] = indices[from];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) take_first(
    const KEY* __restrict__ sorted, const int* __restrict__ order OUTPUTS) {
  long long row = row_of_block();
  int i = blockIdx.x * THREADS + threadIdx.x;
  if (row >= ROWS || i >= K) return;
  long long place = (row / INNER * K + i) * INNER + row % INNER;
#if VALUES
  values[place] = (IN)sorted[row * LENGTH + i];
#endif
#if INDICES
  positions[place] = order[row * LENGTH + i];
#endif
}
"""
)
_TILES = (512, 1024, 2048, 4096, 8192)
_ROWS_Y = 32768
_LONG, _LONGEST = 1024, 2**29  # twice the width of a run is an int


def key_type(dtype: str) -> str:
    """The dtype that is compared: float32 for narrower floats, which hold the same values."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def outputs(attrs: TopKAttrs, dtype: str) -> tuple[list[str], dict[str, int | str]]:
    """The outputs that are wanted, as launches call them, and the macros of what is sorted how."""
    wanted = {
        "values": f"{C_TYPES[dtype]}* __restrict__ values",
        "positions": f"{C_TYPES[attrs.dtype]}* __restrict__ positions",
    }
    if attrs.ret_type != "both":
        del wanted["positions" if attrs.ret_type == "values" else "values"]
    return list(wanted), {
        "IN": C_TYPES[dtype], "KEY": C_TYPES[key_type(dtype)],
        "OUTPUTS": "".join(f", {declared}" for declared in wanted.values()),
        "VALUES": int("values" in wanted), "INDICES": int("positions" in wanted),
        "ASCENDING": int(attrs.is_ascend), "K": attrs.k,
    }


def level_of_merge(shape: Sequence[int], axis: int, limits: DeviceLimits) -> int | None:
    """The plevel of sorting through global memory, against 10 where a block sorts a row.

    It is preferred where fewer rows than the device has multiprocessors would leave most of it idle;
    None where it is not offered.
    """
    length = shape[axis]
    if not _LONG < length <= _LONGEST:
        return None
    return 11 if math.prod(shape) // length < limits.multiprocessors and length > 16 * _LONG else 9


def space_of_merge(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Threads of a block, elements of each in a merge, and how many elements a tile has."""
    limits, each = limits_of(target), dtype_bytes(key_type(inputs[0].dtype)) + 4
    tiles = [t for t in _TILES if t * each <= limits.shared_bytes]
    span = knob("threads") * knob("items")
    return ConfigSpace(
        [
            Knob("threads", [64, 128, 256, 512, 1024]), Knob("items", [2, 4, 8, 16]),
            Knob("tile", tiles),
        ],
        # Merges are of pairs of tiles at first, and a block's share divides those.
        [knob("threads") <= limits.threads, span <= 2 * knob("tile"), span * each <= limits.shared_bytes],
        fallback={"threads": 256, "items": 4, "tile": min(2048, tiles[-1])},
    )


def schedule_merge(attrs: TopKAttrs, outs: Outs, target: Target, config: Config) -> Template:
    """The kernels for one shape, axis and dtype."""
    refuse_epilogue(outs)
    data = outs.args[0]
    (rows, length, inner), dtype = rows_along([int(e) for e in data.shape], attrs.axis), str(data.dtype)
    threads, items, tile = (integer(config, name) for name in ("threads", "items", "tile"))
    names, macros = outputs(attrs, dtype)
    key_bytes, span = dtype_bytes(key_type(dtype)), threads * items

    def launch(kernel: str, count: int, each: int, shared: int, *arguments: Pointer | Scalar) -> Launch:
        grid = (-(-count // each), min(rows, _ROWS_Y), -(-rows // _ROWS_Y))
        return Launch(kernel, arguments, grid, (threads, 1, 1), shared * (key_bytes + 4))

    here, there = ((Pointer(f"keys{i}"), Pointer(f"order{i}")) for i in range(2))
    launches = [launch("sort_tiles", length, tile, tile, Pointer("data"), *here)]
    width = tile
    while width < length:
        passed = launch("merge_runs", length, span, span, *here, *there, Scalar("int32", width))
        launches.append(passed)
        here, there, width = there, here, 2 * width
    launches.append(
        launch("take_first", attrs.k, threads, 0, *here, *(Pointer(name) for name in names))
    )
    return Template(
        source=_SOURCE,
        macros={
            **macros, "ROWS": rows, "ROWS_Y": _ROWS_Y, "LENGTH": length, "INNER": inner,
            "THREADS": threads, "ITEMS": items, "SPAN": span, "SORT": tile,
        },
        parameters=("data", *names),
        launches=tuple(launches),
        workspaces=tuple(
            Workspace(f"{name}{i}", rows * length * size)
            for i in range(2)
            for name, size in (("keys", key_bytes), ("order", 4))
        ),
        shared_bytes={"merge_runs": 8},
    )
