"""`conv2d_nchw_mma.cuda` and `conv2d_nchw_wgmma.cuda`: the weight times windows that are never stored.

The products are those of `strategy/cuda/mma.py` and `wgmma.py`. The weight is packed as [o, kh, kw, c],
with channels up to whole steps, so that at one step of the depth all channels are of one place of the
window: a thread that reads for one output knows once for all of them where they lie, and whether that is
in the padding. What it reads waits in registers for one step before it goes to shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.library import Handwritten, call_in_place
from strategy.cuda.limit import DeviceLimits, limits_of
from strategy.cuda.schedule import bind_block, bind_flat
from strategy.cuda.staging import ByHand, Operands
from strategy.cuda.wgmma import BLOCK_K
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.schedule import (
    Outs,
    compute_stage,
    find_stages,
    integer,
    join_epilogue,
    new_schedule,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import Dim, TensorType

_FEWEST_CHANNELS = 16  # with fewer, most of a step is padding
_LARGEST_WINDOW = 64  # places, one bit each

_WINDOWS = r"""
#define PLACES (OUT_H * OUT_W)
#define IMAGE (HEIGHT * WIDTH)
#define TURNS (DEPTH / (WINDOW_H * WINDOW_W) / BLOCK_K)  // steps at one place of the window
#define HELD (BLOCK_N * CHUNKS / THREADS)                // chunks of a step that a thread reads

// As Tile, where a row of the right operand is the window of one output.
struct Windows {
  int row, column, a_left;
  const TYPE* a;
  const unsigned short* corner;  // of the window, in the first channel
  unsigned long long inside;     // the places of the window that are in the image
  unsigned short held[HELD][CHUNK];

  __device__ __forceinline__ Windows(const TYPE* left, const TYPE* right, int m) {
    find_tile(m, row, column);
    a = left + (long long)(row + threadIdx.x / CHUNKS) * DEPTH + threadIdx.x % CHUNKS * CHUNK;
    a_left = m - row;
    const int output = column + threadIdx.x % BLOCK_N, place = output % PLACES;
    const int y = place / OUT_W * STRIDE_H - TOP, x = place % OUT_W * STRIDE_W - LEFT_SIDE;
    corner = (const unsigned short*)right + (long long)(output / PLACES) * CHANNELS * IMAGE + y * WIDTH + x;
    inside = 0;
    #pragma unroll
    for (int i = 0; i < WINDOW_H; ++i)
      #pragma unroll
      for (int j = 0; j < WINDOW_W; ++j) {
        const bool there = output < COLUMNS && y + i * DILATION_H >= 0 && y + i * DILATION_H < HEIGHT &&
                           x + j * DILATION_W >= 0 && x + j * DILATION_W < WIDTH;
        inside |= (unsigned long long)there << (i * WINDOW_W + j);
      }
    gather(0);
  }

  __device__ __forceinline__ void gather(int step) {
    const int at = step / TURNS, first = step % TURNS * BLOCK_K;
    const bool there = step < STEPS && inside >> at & 1;
    const unsigned short* from =
        corner + (long long)first * IMAGE + at / WINDOW_W * DILATION_H * WIDTH + at % WINDOW_W * DILATION_W;
    #pragma unroll
    for (int i = 0; i < HELD; ++i)
      #pragma unroll
      for (int e = 0; e < CHUNK; ++e) {
        const int channel = (threadIdx.x / BLOCK_N + i * (THREADS / BLOCK_N)) * CHUNK + e;
        const bool exists = CHANNELS % BLOCK_K == 0 || first + channel < CHANNELS;
        held[i][e] = there && exists ? from[(long long)channel * IMAGE] : 0;
      }
  }

  // The weight of a step is copied, what was read for it is stored, and the next is read.
  __device__ __forceinline__ void fetch_both(int step, unsigned stage) {
    if (step < STEPS) {
      fetch<BLOCK_M>(stage, a, a_left, step);
      a += BLOCK_K;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    const unsigned to = stage + BLOCK_M * ROW;
    #pragma unroll
    for (int i = 0; i < HELD; ++i) {
      unsigned pairs[CHUNK / 2];
      #pragma unroll
      for (int e = 0; e < CHUNK / 2; ++e) pairs[e] = held[i][2 * e] | (unsigned)held[i][2 * e + 1] << 16;
      const int chunk = threadIdx.x / BLOCK_N + i * (THREADS / BLOCK_N);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                   :: "r"(to + place(threadIdx.x % BLOCK_N, chunk)), "r"(pairs[0]), "r"(pairs[1]),
                      "r"(pairs[2]), "r"(pairs[3]) : "memory");
    }
    gather(step + 1);
  }

  static constexpr int run = PLACES;
  __device__ __forceinline__ OUT* at(OUT* output, int m, int y, int x) const {
    return output + ((long long)(x / PLACES) * m + y) * PLACES + x % PLACES;
  }
};
"""


def takes(
    fits: Callable[..., bool], inputs: Sequence[TensorType], out_type: TensorType, limits: DeviceLimits
) -> bool:
    """Return whether a convolution of constant shape and without groups is worth it, and has dtypes that fit.

    `fits` is `takes_mma` or `takes_wgmma`.
    """
    _, channels, height, width = inputs[1].concrete_shape
    return (
        channels >= _FEWEST_CHANNELS
        and height * width <= _LARGEST_WINDOW
        and fits(Dim(1), Dim(1), Dim(64), inputs[0].dtype, out_type.dtype, limits)
    )


def space(
    make: Callable[..., ConfigSpace], attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType,
    target: Target,
) -> ConfigSpace:
    """The space that `make`, `mma_space` or `wgmma_space`, has for the extents of a call."""
    batch, channels, rows, columns = out_type.concrete_shape
    return make(limits_of(target), channels, batch * rows * columns, gathered=True)


def prepare(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight [o, c, kh, kw] as [o, kh, kw, c], with zeros up to whole steps of c."""
    block = integer(config, "block_k") if "block_k" in config else BLOCK_K

    def pack(weight: Any) -> Any:
        out_channels, channels, height, width = (int(e) for e in weight.shape)
        return compute_stage(
            "packed_weight", (out_channels, height, width, -(-channels // block) * block),
            lambda o, y, x, c: zero_beyond(weight[o, c, y, x], c, channels, block),
        )

    return {1: pack}


def compute(
    by: Callable[[ByHand, Config], Handwritten],
    attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config,
) -> list[Any]:
    """The convolution by one launch of `mma_product` or `wgmma_product`; `prepare` has packed the weight."""
    data, weight = inputs
    _, channels, height, width = (int(e) for e in data.shape)
    batch, out_channels, rows, columns = out_type.concrete_shape
    _, window_h, window_w, depth = (int(e) for e in weight.shape)
    macros = {
        "CHANNELS": channels, "HEIGHT": height, "WIDTH": width, "OUT_H": rows, "OUT_W": columns,
        "WINDOW_H": window_h, "WINDOW_W": window_w, "TOP": attrs.padding[0], "LEFT_SIDE": attrs.padding[1],
        "STRIDE_H": attrs.strides[0], "STRIDE_W": attrs.strides[1],
        "DILATION_H": attrs.dilation[0], "DILATION_W": attrs.dilation[1],
    }
    of = ByHand(
        1, out_channels, batch * rows * columns, window_h * window_w * depth, str(data.dtype),
        out_type.dtype, operands=Operands("Windows", _WINDOWS, macros),
    )
    return [
        call_in_place(by(of, config), [weight, data], out_type.concrete_shape, out_type.dtype, "conv2d")
    ]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """The packing, where the weight is not constant, and an epilogue."""
    from tvm import te

    sch = new_schedule(outs)
    output = outs.tensors[0].op
    alone = isinstance(output, te.ExternOp)
    if alone and isinstance(output.inputs[0].op, te.PlaceholderOp):
        return sch  # one step, in which there are no stages to be found
    packed = find_stages(sch).get("packed_weight")
    if packed is not None:
        bind_flat(sch, sch.get_loops(packed))
    if not alone:
        bind_block(sch, join_epilogue(sch), limits_of(target))
    return sch
