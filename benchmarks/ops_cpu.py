"""Operators that memory bounds, on this host's CPU: plevel's implementations beside PyTorch.

    python benchmarks/ops_cpu.py                                # all, two threads
    python benchmarks/ops_cpu.py --layers softmax --trials 16 --tuned tuned.json
    python benchmarks/ops_cpu.py --tuned tuned.json --trials 0  # times again what was found before
    python benchmarks/ops_cpu.py --trials 0                     # untuned: fallbacks of the highest plevel

softmax, layer_norm, sum, max_pool2d, transpose, cumsum, topk and add with a broadcast, at sizes of
BERT-base and ResNet-50, float32. Each implementation is tuned for as many trials as `--trials` says;
what is selected is then timed in turns with PyTorch, which returns a new tensor, while plevel writes
where it is told to.

Prints medians, and the ratio of PyTorch's time to that of what plevel selects: above 1, plevel is faster.
Needs torch==2.13.0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from race import Call, benchmark, plevel_calls

if TYPE_CHECKING:
    from strategy.workload import Workload


class Layer(NamedTuple):
    """An operator on tensors of these shapes; attributes as pairs, so that it is plain values."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    attrs: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        axes = dict(self.attrs).get("axes", dict(self.attrs).get("axis"))
        along = "" if axes is None else f"@{axes}".replace(" ", "")
        return f"{self.op}:{'x'.join(map(str, self.shapes[0]))}{along}"

    def workload(self) -> Workload:
        from strategy.op import get_op
        from strategy.workload import Workload

        names = [a.name for a in get_op(self.op).arguments]
        types = [f"float32[{','.join(map(str, shape))}]" for shape in self.shapes]
        return Workload.make(self.op, dict(zip(names, types, strict=True)), dict(self.attrs))


_POOL = (("pool_size", 3), ("strides", 2), ("padding", 1))
OPS = {
    "softmax": [Layer("softmax", (shape,)) for shape in ((12, 128, 128), (12, 384, 384), (1, 1000), (64, 1000))],
    "layer_norm": [
        Layer("layer_norm", ((rows, 768), (768,), (768,))) for rows in (16, 128, 384)
    ],
    "sum": [
        Layer("sum", ((1, 2048, 7, 7),), (("axis", (2, 3)),)),
        Layer("sum", ((384, 768),), (("axis", -1),)),
        Layer("sum", ((384, 768),), (("axis", 0),)),
        Layer("sum", ((1, 64, 112, 112),), (("axis", (2, 3)),)),
    ],
    "max_pool2d": [Layer("max_pool2d", ((1, 64, 112, 112),), _POOL), Layer("max_pool2d", ((1, 256, 56, 56),), _POOL)],
    "transpose": [
        Layer("transpose", ((1, 384, 12, 64),), (("axes", (0, 2, 1, 3)),)),
        Layer("transpose", ((1, 12, 384, 64),), (("axes", (0, 1, 3, 2)),)),
        Layer("transpose", ((1, 64, 56, 56),), (("axes", (0, 2, 3, 1)),)),
        Layer("transpose", ((768, 3072),)),
    ],
    "cumsum": [Layer("cumsum", ((128, 1000),), (("axis", -1),)), Layer("cumsum", ((384, 768),), (("axis", 0),))],
    "topk": [
        Layer("topk", ((1, 1000),), (("k", 5), ("ret_type", "values"))),
        Layer("topk", ((64, 1000),), (("k", 5), ("ret_type", "values"))),
        Layer("topk", ((8, 30522),), (("k", 50), ("ret_type", "values"))),
    ],
    "add": [
        Layer("add", ((384, 768), (768,))),
        Layer("add", ((1, 64, 112, 112), (64, 1, 1))),
        Layer("add", ((1, 256, 56, 56), (1, 256, 56, 56))),
    ],
}  # fmt: skip


def torch_calls(layer: Layer, threads: int, _best: Any) -> dict[str, Call]:
    """PyTorch's own function for the operator; pooling in three layouts, of which the fastest counts."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    torch.inference_mode().__enter__()  # for as long as the process lives
    generator = torch.Generator().manual_seed(0)
    x, *more = (torch.rand(*shape, generator=generator) * 2 - 1 for shape in layer.shapes)
    attrs = {name: tuple(v) if isinstance(v, list) else v for name, v in layer.attrs}
    functions: dict[str, Callable[..., Any]] = {
        "softmax": lambda: functional.softmax(x, -1),
        "layer_norm": lambda: functional.layer_norm(x, x.shape[-1:], *more),
        "sum": lambda: x.sum(attrs["axis"]),
        "max_pool2d": lambda image=x: functional.max_pool2d(
            image, attrs["pool_size"], attrs["strides"], attrs["padding"]
        ),
        "transpose": lambda: x.permute(attrs.get("axes", (1, 0))).contiguous(),
        "cumsum": lambda: x.cumsum(attrs["axis"]),
        "topk": lambda: x.topk(attrs["k"]),
        "add": lambda: x + more[0],
    }
    call = functions[layer.op]
    if layer.op != "max_pool2d":
        return {"torch": call}
    images = {"plain": x, "channels-last": x.to(memory_format=torch.channels_last), "mkldnn": x.to_mkldnn()}
    return {name: partial(call, image) for name, image in images.items()}


def own_calls(layer: Layer, threads: int, best: Any) -> dict[str, Call]:
    return plevel_calls(layer.workload(), threads, best)


if __name__ == "__main__":
    sides = {"plevel": own_calls, "torch": torch_calls}
    sys.exit(benchmark(__file__, __doc__ or "", Layer, OPS, sides))
