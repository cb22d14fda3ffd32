"""all_class_non_max_suppression on NVIDIA's GPUs, in CUDA C: a block of threads for each class of an image.

In each turn the threads find the best score that is left, and drop what overlaps its box. So the time is that of a
pass over all boxes for each that is chosen, which needs no sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.cuda.limit import limits_of
from strategy.cuda.matmul import accumulator
from strategy.cuda.program import Launch, Pointer, Workspace
from strategy.cuda.template import C_TYPES, Template, outputs_of, refuse_epilogue
from strategy.op_strategy import OpStrategy
from strategy.ops.non_max_suppression.operator import (
    AllClassNonMaxSuppressionAttrs,
    all_class_non_max_suppression_strategy,
)
from strategy.schedule import Outs, dtype_bytes, integer
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>

struct Box { NUMBER low[2], high[2]; };

__device__ Box box_of(const IN* box) {
  Box found;
  for (int i = 0; i < 2; ++i) {
    NUMBER a = (NUMBER)box[i], b = (NUMBER)box[2 + i];
    found.low[i] = CENTER ? a - b * (NUMBER)0.5 : a < b ? a : b;
    found.high[i] = CENTER ? a + b * (NUMBER)0.5 : a < b ? b : a;
  }
  return found;
}

__device__ bool overlap(const Box& a, const Box& b) {
  NUMBER shared = 1;
  for (int i = 0; i < 2; ++i) {
    NUMBER length = (a.high[i] < b.high[i] ? a.high[i] : b.high[i]) - (a.low[i] > b.low[i] ? a.low[i] : b.low[i]);
    shared *= length > 0 ? length : 0;
  }
  NUMBER one = (a.high[0] - a.low[0]) * (a.high[1] - a.low[1]);
  NUMBER other = (b.high[0] - b.low[0]) * (b.high[1] - b.low[1]);
  return shared / (one + other - shared) > (NUMBER)(MOST_SHARED);
}

// Whether one box comes before another, of which places without a box are -1: the lower among equal scores.
__device__ bool comes_first(NUMBER a, int i, NUMBER b, int j) {
  return i >= 0 && (j < 0 || a > b || (a == b && i < j));
}

extern "C" __global__ void __launch_bounds__(THREADS) choose_boxes(
    const IN* __restrict__ boxes, const IN* __restrict__ scores, signed char* __restrict__ gone,
    int* __restrict__ chosen, int* __restrict__ counts) {
  __shared__ NUMBER best[THREADS];
  __shared__ int places[THREADS];
  const IN* box = boxes + (long long)(blockIdx.x / CLASSES) * BOXES * 4;
  const IN* score = scores + (long long)blockIdx.x * BOXES;
  signed char* dropped = gone + (long long)blockIdx.x * BOXES;
  for (int i = threadIdx.x; i < BOXES; i += THREADS) dropped[i] = !(IS_CANDIDATE((NUMBER)score[i]));
  int count = 0;
  for (; count < MOST; ++count) {
    NUMBER mine = 0;
    int place = -1;
    for (int i = threadIdx.x; i < BOXES; i += THREADS)
      if (!dropped[i] && comes_first((NUMBER)score[i], i, mine, place)) mine = (NUMBER)score[i], place = i;
    best[threadIdx.x] = mine;
    places[threadIdx.x] = place;
    __syncthreads();
    for (int apart = THREADS / 2; apart > 0; apart /= 2) {
      if (threadIdx.x < apart) {
        int other = threadIdx.x + apart;
        if (comes_first(best[other], places[other], best[threadIdx.x], places[threadIdx.x])) {
          best[threadIdx.x] = best[other];
          places[threadIdx.x] = places[other];
        }
      }
      __syncthreads();
    }
    int first = places[0];
    __syncthreads();
    if (first < 0) break;
    if (threadIdx.x == 0) chosen[(long long)blockIdx.x * MOST + count] = first;
    Box kept = box_of(box + (long long)first * 4);
    for (int i = threadIdx.x; i < BOXES; i += THREADS)
      if (!dropped[i] && (i == first || overlap(kept, box_of(box + (long long)i * 4)))) dropped[i] = 1;
  }
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

extern "C" __global__ void __launch_bounds__(THREADS) gather_rows(
    const int* __restrict__ chosen, const int* __restrict__ counts, long long* __restrict__ rows,
    long long* __restrict__ number) {
  long long total = 0;
  for (int task = 0; task < TASKS; ++task) {
    for (int i = threadIdx.x; i < counts[task]; i += THREADS) {
      long long* row = rows + (total + i) * 3;
      row[0] = task / CLASSES;
      row[1] = task % CLASSES;
      row[2] = chosen[(long long)task * MOST + i];
    }
    total += counts[task];
  }
  for (long long i = total * 3 + threadIdx.x; i < (long long)TASKS * MOST * 3; i += THREADS) rows[i] = -1;
  if (threadIdx.x == 0) number[0] = total;
}
"""


@all_class_non_max_suppression_strategy.register(["cuda", "gpu"])
def all_class_non_max_suppression_strategy_cuda(
    attrs: AllClassNonMaxSuppressionAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> OpStrategy:
    """A block of threads for each class of an image."""
    strategy = OpStrategy()
    if all(t.is_constant for t in inputs):
        strategy.add_implementation(
            compute, schedule, "non_max_suppression_greedy.cuda", 10, space=space, symbolic=False
        )
    return strategy


def space(
    attrs: AllClassNonMaxSuppressionAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Threads of a block."""
    return ConfigSpace(
        [Knob("threads", [32, 64, 128, 256, 512, 1024])], [knob("threads") <= limits_of(target).threads],
        fallback={"threads": 256},
    )


def compute(
    attrs: AllClassNonMaxSuppressionAttrs, inputs: Sequence[Any], out_type: Type, config: Config
) -> list[Any]:
    """The outputs, which the template computes."""
    return outputs_of(out_type)


def schedule(attrs: AllClassNonMaxSuppressionAttrs, outs: Outs, target: Target, config: Config) -> Template:
    """The kernels for one shape and dtype."""
    refuse_epilogue(outs)
    data, scores = outs.args[:2]
    (batch, classes, boxes), dtype = (int(n) for n in scores.shape), str(data.dtype)
    threads, most, number = integer(config, "threads"), attrs.most(boxes), accumulator(dtype)
    bound = "(x) == (x)" if attrs.score_threshold is None else f"(x) > (NUMBER)({attrs.score_threshold!r})"
    parts = Pointer("chosen"), Pointer("counts")
    return Template(
        source=_SOURCE,
        macros={
            "IN": C_TYPES[dtype], "NUMBER": C_TYPES[number], "CENTER": int(attrs.center_point_box),
            "MOST_SHARED": repr(attrs.iou_threshold), "IS_CANDIDATE(x)": bound, "TASKS": batch * classes,
            "CLASSES": classes, "BOXES": boxes, "MOST": most, "THREADS": threads,
        },
        parameters=("boxes", "scores", "rows", "number"),
        launches=(
            Launch(
                "choose_boxes", (Pointer("boxes"), Pointer("scores"), Pointer("gone"), *parts),
                (batch * classes, 1, 1), (threads, 1, 1),
            ),
            Launch("gather_rows", (*parts, Pointer("rows"), Pointer("number")), (1, 1, 1), (threads, 1, 1)),
        ),
        workspaces=(
            Workspace("gone", batch * classes * boxes), Workspace("chosen", batch * classes * most * 4),
            Workspace("counts", batch * classes * 4),
        ),
        shared_bytes={"choose_boxes": threads * (dtype_bytes(number) + 4)},
    )
