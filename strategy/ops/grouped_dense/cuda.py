"""`grouped_dense` on NVIDIA's GPUs: one launch for all groups, with the products of `dense`.

    reduce.cuda                every dtype and all dimensions symbolic
    grouped_dense_mma.cuda     float16 and bfloat16 by mma.sync; sm_80 and later
    grouped_dense_wgmma.cuda   the same by Hopper's wgmma

Ends are known to the device alone. So there are blocks for as many tiles as there can be. Each finds its group by
adding up the tiles of those before; blocks beyond all tiles end at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.library import Handwritten, call_in_place, number_of, schedule_in_place
from strategy.cuda.limit import limits_of
from strategy.cuda.mma import mma_product, mma_space, takes_mma
from strategy.cuda.staging import ByHand, Operands
from strategy.cuda.wgmma import takes_wgmma, wgmma_product, wgmma_space
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import Dim, TensorType, Type

_GROUP_ROWS = r"""
// A tile whose rows are all of one group. Those behind the last group are one more, of zeros; m becomes the end of the
// group.
struct GroupRows : Tile {
  __device__ __forceinline__ GroupRows(const TYPE* left, const TYPE* right, int& m, const int* ends) {
    find_tile(gridDim.x / ((COLUMNS + BLOCK_N - 1) / BLOCK_N) * BLOCK_M, row, column);
    int tile = row / BLOCK_M, end = 0, of = 0;
    row = m;
    for (; of <= EXPERTS; ++of) {
      const int begin = end;
      const int next = of < EXPERTS && ends[of] < m ? ends[of] : m;
      end = next < begin ? begin : next;
      const int tiles = (end - begin + BLOCK_M - 1) / BLOCK_M;
      if (tile < tiles) {
        row = begin + tile * BLOCK_M;
        break;
      }
      tile -= tiles;
    }
    m = end;
    const bool is_group = of < EXPERTS;
    const long long first = (long long)(threadIdx.x / CHUNKS) * DEPTH + threadIdx.x % CHUNKS * CHUNK;
    a = left + (long long)row * DEPTH + first;
    b = right + ((long long)(is_group ? of : 0) * COLUMNS + column) * DEPTH + first;
    a_left = is_group ? end - row : 0, b_left = is_group ? COLUMNS - column : 0;
  }
};
"""


def grouped_dense_strategy_cuda(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The plain schedule of all reductions, and tensor cores where they have the dtype."""
    strategy: OpStrategy = _generic.default(attrs, inputs, out_type, target)
    groups, n, k = inputs[1].shape
    limits = limits_of(target)
    for takes, make, product, name, plevel in (
        (takes_mma, mma_space, mma_product, "grouped_dense_mma.cuda", 18),
        (takes_wgmma, wgmma_space, wgmma_product, "grouped_dense_wgmma.cuda", 19),
    ):
        if groups.is_constant and takes(Dim(1), n, k, inputs[0].dtype, out_type.dtype, limits):
            strategy.add_implementation(
                partial(compute, product), schedule_in_place, name, plevel, space=partial(space, make)
            )
    return strategy


def space(
    make: Callable[..., ConfigSpace], attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """The space that `make`, `mma_space` or `wgmma_space`, has for the rows of a group, as many in each."""
    m, (groups, n, _) = inputs[0].shape[0], inputs[1].shape
    return make(limits_of(target), -(-int(m) // int(groups)) if m.is_constant else None, int(n))


def compute(
    product: Callable[[ByHand, Config], Handwritten],
    attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config,
) -> list[Any]:
    """The product of each row by its group's weight, by one launch; m may be symbolic."""
    data, weight, _ = inputs
    m, (groups, n, k) = data.shape[0], (int(e) for e in weight.shape)
    operands = Operands("GroupRows", _GROUP_ROWS, {"EXPERTS": groups}, third="int", skip="tile.row >= m")
    of = ByHand(
        1, number_of(m), n, k, str(data.dtype), out_type.dtype, operands=operands, parts=groups + 1
    )
    return [call_in_place(product(of, config), inputs, (m, n), out_type.dtype, "grouped_dense")]


_generic = get_registered_op("grouped_dense").get_attr("FTVMStrategy")
_generic.register(["cuda", "gpu"], grouped_dense_strategy_cuda)
