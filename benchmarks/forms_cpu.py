"""Two forms of one calculation beside each other on this host's CPU.

    python benchmarks/forms_cpu.py                       # untuned: fallbacks
    python benchmarks/forms_cpu.py --only pairs --samples 10

- pairs: the depthwise convolutions of MobileNetV2 with the pointwise ones behind them, of images in blocked layouts,
  with bias and ReLU6 between: as two kernels, one behind the other, and as one. The last row is the sum over the
  model, in which some pairs stand several times.
- ahead: products by `dense_pack`, with the next panel of the weight prefetched or not.
- blocked: the same of products by `dense_large_m`, the last four those of LLaMA-7B's layer of 128 tokens.
- bfloat16, int8: the same of products by dot-product instructions, `dense_dot` and `qdense_dot`; if named.

With `--samples` each kernel runs with the fastest of its fallback and of so many configurations that are drawn. Each
call takes another copy of all its tensors, of so many that none is in the second-level caches. Prints medians of
rounds, in which the forms take turns, and the time of the second form over that of the first.

It takes some four minutes, with `--samples 10` fifteen.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.fixture import dense, make_parser, natural
from benchmarks.race import Call, bind, burst
from benchmarks.result import Table

if TYPE_CHECKING:
    from strategy.target import Target
    from strategy.workload import Workload

Bound = Sequence[tuple[Any, list[Any]]]  # a kernel, with each copy of its arguments
CACHES = 4  # that all copies together would fill
ROUNDS = 15
DRAWN_ROUNDS = 3
# Channels, size, stride and output channels, and how often MobileNetV2 has the pair.
PAIRS = (
    (32, 112, 1, 16, 1), (96, 112, 2, 24, 1), (144, 56, 1, 24, 1), (144, 56, 2, 32, 1), (192, 28, 1, 32, 2),
    (192, 28, 2, 64, 1), (384, 14, 1, 64, 3), (384, 14, 1, 96, 1), (576, 14, 1, 96, 2), (576, 14, 2, 160, 1),
    (960, 7, 1, 160, 2), (960, 7, 1, 320, 1),
)
PRODUCTS = (
    (16, 768, 768), (64, 768, 768), (128, 768, 768), (16, 768, 2048), (64, 768, 2048), (128, 3072, 768),
    (37, 1003, 531), (64, 4096, 1024), (200, 384, 1024), (64, 384, 4096),
)
BLOCKED = (
    (64, 384, 4096), (197, 1000, 8192), (333, 768, 6144), (128, 4096, 4096), (128, 12288, 4096), (128, 22016, 4096),
    (128, 4096, 11008),
)
NARROW = {"bfloat16": "dense_dot.cpu", "int8": "qdense_dot.cpu"}  # which not all processors have
WORDS = (
    (16, 768, 768), (128, 768, 768), (128, 3072, 768), (128, 768, 3072), (64, 4096, 1024), (37, 4096, 4096),
    (128, 4096, 4096), (512, 4096, 4096),
)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=(*KINDS,), default=[kind for kind in KINDS if kind not in NARROW])
    parser.add_argument("--samples", type=natural, default=0, help="configurations drawn for each kernel")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(arguments.threads)

    from strategy.target import Target

    target = Target.parse("cpu").with_threads(arguments.threads)
    for name in arguments.only:
        made, what, forms = KINDS[name]
        table = Table({what: "", forms[0]: "s", forms[1]: "s", "of the time": "×"})
        with table.saved(
            variant=f"{name}{'-drawn' * bool(arguments.samples)}-{arguments.threads}-threads",
            peer=forms[0], runs=ROUNDS,
            note=f"the fastest of {arguments.samples} drawn and the fallback" if arguments.samples else "fallbacks",
        ):
            for label, (first, second) in made(target, arguments.samples):
                table.add(label, first, second, second / first)
    return 0


def _pairs(target: Target, samples: int) -> Iterator[tuple[str, list[float]]]:
    sums = [0.0, 0.0]
    for channels, size, stride, out, count in PAIRS:
        depthwise, pointwise, joined = _pair(channels, size, stride, out)
        apart = [
            _fastest(depthwise, target, "depthwise_conv2d_nchwc.cpu", samples),
            _fastest(pointwise, target, "conv2d_nchwc_spatial_pack.cpu", samples),
        ]
        one = _fastest(joined, target, "depthwise_separable_conv2d_nchwc.cpu", samples)
        times = _race([_behind(*apart), _turns(one)])
        sums = [s + count * t for s, t in zip(sums, times, strict=True)]
        yield f"{channels}dw@{size}{f'/{stride}' if stride > 1 else ''}→{out}", times
    yield "all 17 of the model", sums


def _pair(channels: int, size: int, stride: int, out: int) -> tuple[Workload, Workload, Workload]:
    """The workloads of both convolutions, and of the operator that is both."""
    from strategy.workload import EpilogueStep, Input, Workload

    block, small = 16, size // stride
    out_block = 16 if out % 16 == 0 else 8
    layouts = {"data_layout": f"NCHW{block}c"}

    def bias(n: int, each: int) -> EpilogueStep:
        return EpilogueStep("add", (None, Input("bias", f"float32[1,{n // each},1,1,{each}]", constant=True)))

    image = f"float32[1,{channels // block},{size},{size},{block}]"
    between = f"float32[1,{channels // block},{small},{small},{block}]"
    window, product = f"float32[{channels},1,3,3]", f"float32[{out},{channels},1,1]"
    clip = EpilogueStep("clip", (None,), {"a_min": 0.0, "a_max": 6.0})
    return (
        Workload.make(
            "conv2d", {"data": image, "weight": window},
            {"groups": channels, "padding": 1, "strides": stride, **layouts}, ["weight"], [bias(channels, block), clip],
        ),
        Workload.make(
            "conv2d", {"data": between, "weight": product}, {"out_layout": f"NCHW{out_block}c", **layouts}, ["weight"],
            [bias(out, out_block)],
        ),
        Workload.make(
            "depthwise_separable_conv2d",
            {"data": image, "depthwise_weight": window, "depthwise_bias": f"float32[{channels}]",
             "pointwise_weight": product},
            {"padding": 1, "strides": stride, "activation": "relu6", "out_layout": f"NCHW{out_block}c", **layouts},
            ["depthwise_weight", "depthwise_bias", "pointwise_weight"], [bias(out, out_block)],
        ),
    )


def _products(
    name: str, shapes: Sequence[tuple[int, int, int]], target: Target, samples: int, *, dtype: str = "float32"
) -> Iterator[tuple[str, list[float]]]:
    for m, n, k in shapes:
        work = dense(m, n, k, dtype=dtype)
        forms = [_fastest(work, target, name, samples, ahead=ahead) for ahead in (False, True)]
        yield f"{m}×{n}×{k}", _race([_turns(form) for form in forms])


def _fastest(workload: Workload, target: Target, name: str, samples: int, **fixed: Any) -> Bound:
    """The kernel with the fastest of its configurations.

    Raises:
        SystemExit: the processor lacks its instructions.
    """
    from strategy.op_strategy import candidates

    space = next((c.space for c in candidates(workload, target) if c.implementation == name), None)
    if space is None:
        raise SystemExit(f"forms_cpu: {target} has no {name}, which needs instructions that it lacks: leave it out")
    drawn = [space.fallback, *space.sample(random.Random(0), samples)]
    made = [_bound(workload, target, name, {**config, **fixed}) for config in drawn]
    if len(made) == 1:
        return made[0]
    times = [statistics.median(burst(_turns(one)) for _ in range(DRAWN_ROUNDS)) for one in made]
    return made[times.index(min(times))]


def _bound(workload: Workload, target: Target, name: str, config: Any) -> Bound:
    """The kernel with copies of its arguments, the data first and the output last."""
    import tvm

    from strategy.compile.lower import lower
    from workers.reference import random_inputs

    artefact, given = lower(workload, target, name, config).compile(), random_inputs(workload, 0)

    def arguments() -> list[Any]:
        return bind(artefact, {n: tvm.runtime.tensor(x) for n, x in given.items()})

    first = arguments()
    more = CACHES * target.l2_bytes * target.threads // sum(x.numpy().nbytes for x in first)
    return [(artefact.main, a) for a in (first, *(arguments() for _ in range(more)))]


def _turns(bound: Bound) -> Call:
    """A call of a kernel, each time with the next copy of its arguments."""
    turn = itertools.cycle(bound)

    def call() -> None:
        main, arguments = next(turn)
        main(*arguments)

    return call


def _behind(first: Bound, second: Bound) -> Call:
    """A call of a kernel and of the one that reads its output."""
    longer = zip(first, itertools.cycle(second)) if len(first) > len(second) else zip(itertools.cycle(first), second)
    pairs = itertools.cycle(list(longer))

    def call() -> None:
        (one, given), (other, (_, *more)) = next(pairs)
        one(*given)
        other(given[-1], *more)

    return call


def _race(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """The median of each, in bursts that take turns."""
    rounds = [[burst(call) for call in calls] for _ in range(ROUNDS + 1)][1:]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


KINDS: dict[str, tuple[Callable[[Target, int], Iterator[tuple[str, list[float]]]], str, tuple[str, str]]] = {
    "pairs": (_pairs, "pair", ("two kernels", "one")),
    "ahead": (partial(_products, "dense_pack.cpu", PRODUCTS), "product", ("not ahead", "ahead")),
    "blocked": (partial(_products, "dense_large_m.cpu", BLOCKED), "product", ("not ahead", "ahead")),
    **{
        dtype: (partial(_products, name, WORDS, dtype=dtype), "product", ("not ahead", "ahead"))
        for dtype, name in NARROW.items()
    },
}

if __name__ == "__main__":
    sys.exit(main())
