"""`batch_matmul` on this host's CPU, at attention's shapes, beside PyTorch.

    python benchmarks/batch_matmul_cpu.py
    python benchmarks/batch_matmul_cpu.py --layers bert --trials 16 --tuned tuned.json

The scores (queries · keysᵀ) and the values (weights · values) of BERT-base and LLaMA-7B, for prompts and
for one new token, batch 1, float32; nothing is constant, so packing is inside the timed function. Each
implementation is tuned for as many trials as `--trials` says; what is selected and the best of each
are then timed in turns with `torch.bmm`, which returns a new tensor or writes where it is told to; the
faster counts.

Prints medians, and the ratio of PyTorch's time to that of what plevel selects: above 1, plevel is faster.
Needs torch==2.13.0.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from race import Call, benchmark, plevel_calls

if TYPE_CHECKING:
    from strategy.workload import Workload


class Product(NamedTuple):
    """Heads × [m, k] · [k, n]; `scores` where the second is given transposed."""

    model: str
    heads: int
    m: int
    n: int
    k: int
    scores: bool

    @property
    def name(self) -> str:
        kind = "scores" if self.scores else "values"
        return f"{self.model}:{kind},{self.heads}×{self.m}×{self.n}×{self.k}"

    def workload(self) -> Workload:
        from strategy.workload import Workload

        y = (self.n, self.k) if self.scores else (self.k, self.n)
        return Workload.make(
            "batch_matmul",
            {"x": f"float32[{self.heads},{self.m},{self.k}]", "y": f"float32[{self.heads},{y[0]},{y[1]}]"},
            {"transpose_b": self.scores},
        )


def _attention(model: str, heads: int, width: int, queries: int, keys: int) -> list[Product]:
    return [
        Product(model, heads, queries, keys, width, True),
        Product(model, heads, queries, width, keys, False),
    ]


GROUPS = {
    "bert": [p for length in (128, 384, 512) for p in _attention("bert", 12, 64, length, length)],
    "llama": [
        p
        for queries, keys in ((128, 128), (512, 512), (1, 512), (1, 2048))
        for p in _attention("llama", 32, 128, queries, keys)
    ],
}


def _plevel(product: Product, threads: int, best: dict[str, Any]) -> dict[str, Call]:
    return plevel_calls(product.workload(), threads, best)


def _torch(product: Product, threads: int, best: dict[str, Any]) -> dict[str, Call]:
    import torch

    torch.set_num_threads(threads)
    torch.inference_mode().__enter__()  # for as long as this process lives
    x = torch.randn(product.heads, product.m, product.k)
    if product.scores:
        y = torch.randn(product.heads, product.n, product.k).transpose(1, 2)
    else:
        y = torch.randn(product.heads, product.k, product.n)
    out = torch.empty(product.heads, product.m, product.n)
    return {"new": lambda: torch.bmm(x, y), "out": lambda: torch.bmm(x, y, out=out)}


if __name__ == "__main__":
    sys.exit(benchmark(__file__, __doc__, Product, GROUPS, {"plevel": _plevel, "torch": _torch}))
