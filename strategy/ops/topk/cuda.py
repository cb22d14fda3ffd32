"""topk on NVIDIA's GPUs, in CUDA C: a block of threads sorts a row piece by piece, and keeps the best.

The best so far and the next piece lie in shared memory together; a bitonic sort of both leaves the
best in front. So rows of any length take `SORT` places, a power of two of at least 2·k. Where those do not
fit, and as rivals for long rows, `radix_cuda.py` and `merge_cuda.py` sort through global memory;
`select_cuda.py` takes few elements without sorting all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.cuda.limit import limits_of
from strategy.cuda.program import Launch, Pointer
from strategy.cuda.template import Template, outputs_of, refuse_epilogue, rows_along
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.ops.topk.merge_cuda import (
    SORT_PLACES,
    key_type,
    level_of_merge,
    outputs,
    schedule_merge,
    space_of_merge,
)
from strategy.ops.topk.operator import TopKAttrs
from strategy.ops.topk.radix_cuda import level_of_radix, schedule_radix, space_of_radix
from strategy.ops.topk.select_cuda import level_of_select, schedule_select, space_of_select
from strategy.schedule import Outs, dtype_bytes, integer
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_SOURCE = (
    SORT_PLACES
    + r"""
extern "C" __global__ void __launch_bounds__(THREADS) topk_rows(
    const IN* __restrict__ data OUTPUTS) {
  extern __shared__ __align__(16) unsigned char shared[];
  KEY* keys = (KEY*)shared;
  int* indices = (int*)(keys + SORT);
  long long row = blockIdx.x;
  long long base = row / INNER * LENGTH * INNER + row % INNER;
  for (int i = threadIdx.x; i < K; i += THREADS) indices[i] = -1;
  for (int from = 0; from < LENGTH; from += SORT - K) {
    for (int i = K + threadIdx.x; i < SORT; i += THREADS) {
      int at = from + i - K;
      indices[i] = at < LENGTH ? at : -1;
      if (at < LENGTH) keys[i] = (KEY)data[base + (long long)at * INNER];
    }
    __syncthreads();
    sort_places(keys, indices);
  }
  long long place = row / INNER * K * INNER + row % INNER;
  for (int i = threadIdx.x; i < K; i += THREADS) {
#if VALUES
    values[place + (long long)i * INNER] = (IN)keys[i];
#endif
#if INDICES
    positions[place + (long long)i * INNER] = indices[i];
#endif
  }
}
"""
)
_SORTS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def topk_strategy_cuda(
    attrs: TopKAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> OpStrategy:
    """The implementations for NVIDIA's GPUs: sorts of a row in shared memory and of long rows, and for few elements."""
    strategy = OpStrategy()
    kind = inputs[0]
    if not kind.is_constant or not kind.size:
        return strategy
    if sorts_that_fit(kind.dtype, attrs.k, limits_of(target).shared_bytes):
        strategy.add_implementation(
            compute, schedule, "topk_sort.cuda", 10, version=2, space=space, symbolic=False
        )
    level = level_of_merge(kind.concrete_shape, attrs.axis, limits_of(target))
    if level is not None:
        strategy.add_implementation(
            compute, schedule_merge, "topk_merge.cuda", level, version=2, space=space_of_merge, symbolic=False
        )
    level = level_of_radix(attrs.k, kind.concrete_shape[attrs.axis], limits_of(target))
    if level is not None:
        strategy.add_implementation(
            compute, schedule_radix, "topk_radix.cuda", level, space=space_of_radix, symbolic=False
        )
    level = level_of_select(attrs.k, kind.concrete_shape[attrs.axis])
    if level is not None:
        strategy.add_implementation(
            compute, schedule_select, "topk_select.cuda", level, space=space_of_select, symbolic=False
        )
    return strategy


def sorts_that_fit(dtype: str, k: int, most_bytes: int) -> list[int]:
    """Numbers of places that a block may sort at a time, to keep the best k."""
    each = dtype_bytes(key_type(dtype)) + 4
    return [s for s in _SORTS if 2 * k <= s and s * each <= most_bytes]


def space(
    attrs: TopKAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Threads of a block, and how much is sorted at a time."""
    limits, dtype = limits_of(target), inputs[0].dtype
    length = int(inputs[0].shape[attrs.axis])
    fitting = sorts_that_fit(dtype, attrs.k, limits.shared_bytes)
    sorts = [s for s in fitting if s < 2 * (length + attrs.k)] or fitting[:1]
    usual = [s for s in sorts if s <= 1024] or sorts[:1]
    return ConfigSpace(
        [Knob("threads", [32, 64, 128, 256, 512, 1024]), Knob("sort", sorts)],
        [knob("threads") <= limits.threads, knob("threads") <= knob("sort")],
        fallback={"threads": min(256, usual[-1]), "sort": usual[-1]},
    )


def compute(attrs: TopKAttrs, inputs: Sequence[Any], out_type: Type, config: Config) -> list[Any]:
    """The outputs, which the template computes."""
    return outputs_of(out_type)


def schedule(attrs: TopKAttrs, outs: Outs, target: Target, config: Config) -> Template:
    """The kernel for one shape, axis and dtype."""
    refuse_epilogue(outs)
    data = outs.args[0]
    (rows, length, inner), dtype = rows_along([int(e) for e in data.shape], attrs.axis), str(data.dtype)
    threads, sort = integer(config, "threads"), integer(config, "sort")
    names, macros = outputs(attrs, dtype)
    launch = Launch(
        "topk_rows", tuple(Pointer(n) for n in ("data", *names)),
        (rows, 1, 1), (threads, 1, 1),
        sort * (dtype_bytes(key_type(dtype)) + 4),
    )
    return Template(
        source=_SOURCE,
        macros={
            **macros, "LENGTH": length, "INNER": inner, "THREADS": threads, "SORT": sort,
        },
        parameters=("data", *names),
        launches=(launch,),
    )


get_registered_op("topk").get_attr("FTVMStrategy").register(["cuda", "gpu"], topk_strategy_cuda)


# argsort is a topk of all
