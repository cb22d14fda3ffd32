"""Products with what models put after them, as one function, beside PyTorch.

    python benchmarks/epilogue_cpu.py
    python benchmarks/epilogue_cpu.py --layers conv2d --trials 16 --tuned tuned.json

`dense` with bias and gelu or with bias and residual (BERT-base), `conv2d` with bias and relu or with bias,
residual and relu (ResNet-50), `batch_matmul` with a mask (BERT-base); float32, weights and biases constant.
plevel tunes and times each as one workload. PyTorch's graph is traced and frozen, which fuses what
it can; for a convolution the fastest of a plain and a channels-last image counts.

Prints medians, and the ratio of PyTorch's time to that of what plevel selects: above 1, plevel is faster.
Needs torch==2.13.0.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from race import Call, benchmark, plevel_calls

if TYPE_CHECKING:
    from strategy.workload import EpilogueStep, Input, Workload


class Fused(NamedTuple):
    """An operator, its extents, and what follows: of `bias`, `residual`, `mask`, `relu` and `gelu`.

    The extents are m, n, k of a dense; heads, m, n, k of a batch_matmul; channels, size, out channels
    and window of a conv2d.
    """

    op: str
    extents: tuple[int, ...]
    after: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.op}:{'×'.join(map(str, self.extents))}+{'+'.join(self.after)}"

    @property
    def out_shape(self) -> tuple[int, ...]:
        if self.op == "conv2d":
            _, size, out_channels, _ = self.extents
            return (1, out_channels, size, size)
        return tuple(self.extents[:-1])

    def workload(self) -> Workload:
        from strategy.workload import Workload

        types, attrs, constants = self._anchor()
        return Workload.make(self.op, types, attrs, constants, [self._step(what) for what in self.after])

    def _anchor(self) -> tuple[dict[str, str], dict[str, Any], list[str]]:
        if self.op == "dense":
            m, n, k = self.extents
            return {"data": f"float32[{m},{k}]", "weight": f"float32[{n},{k}]"}, {}, ["weight"]
        if self.op == "batch_matmul":
            b, m, n, k = self.extents
            return {"x": f"float32[{b},{m},{k}]", "y": f"float32[{b},{n},{k}]"}, {}, []
        channels, size, out_channels, window = self.extents
        types = {
            "data": f"float32[1,{channels},{size},{size}]",
            "weight": f"float32[{out_channels},{channels},{window},{window}]",
        }
        return types, {"padding": window // 2}, ["weight"]

    def _step(self, what: str) -> EpilogueStep:
        from strategy.workload import EpilogueStep

        if what in ("relu", "gelu"):
            return EpilogueStep(what, (None,))
        return EpilogueStep("add", (None, self._operand(what)))

    def _operand(self, what: str) -> Input:
        from strategy.workload import Input

        shape = operand_shape(self, what)
        return Input(what, f"float32[{','.join(map(str, shape))}]", constant=what == "bias")


def operand_shape(fused: Fused, what: str) -> tuple[int, ...]:
    out = fused.out_shape
    if what == "residual":
        return out
    if what == "mask":
        return (1, 1, out[-1])
    return (out[1], 1, 1) if fused.op == "conv2d" else (out[-1],)


GROUPS = {
    "dense": [
        Fused("dense", (128, 3072, 768), ("bias", "gelu")),
        Fused("dense", (128, 768, 3072), ("bias", "residual")),
    ],
    "conv2d": [
        Fused("conv2d", (64, 56, 64, 3), ("bias", "relu")),
        Fused("conv2d", (64, 56, 256, 1), ("bias", "residual", "relu")),
        Fused("conv2d", (256, 14, 1024, 1), ("bias", "residual", "relu")),
    ],
    "batch_matmul": [Fused("batch_matmul", (12, 384, 384, 64), ("mask",))],
}


def _plevel(fused: Fused, threads: int, best: dict[str, Any]) -> dict[str, Call]:
    return plevel_calls(fused.workload(), threads, best)


def _torch(fused: Fused, threads: int, best: dict[str, Any]) -> dict[str, Call]:
    import warnings

    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    torch.inference_mode().__enter__()  # for as long as this process lives
    op, extents, after = fused

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if op == "conv2d":
                channels, _, out_channels, window = extents
                self.anchor = torch.nn.Conv2d(channels, out_channels, window, padding=window // 2)
            elif op == "dense":
                self.anchor = torch.nn.Linear(extents[2], extents[1])

        def forward(self, x: Any, other: Any) -> Any:
            y = torch.bmm(x, other.transpose(1, 2)) if op == "batch_matmul" else self.anchor(x)
            for what in after:
                if what in ("residual", "mask"):
                    y = y + operands[what]
                elif what != "bias":  # which the module has
                    y = torch.nn.functional.relu(y) if what == "relu" else torch.nn.functional.gelu(y)
            return y

    operands = {w: torch.randn(operand_shape(fused, w)) for w in after if w in ("residual", "mask")}
    module = Module().eval()
    if op == "conv2d":
        x = torch.randn(1, extents[0], extents[1], extents[1])
    else:
        x = torch.randn(*extents[:-2], extents[-1]) if op == "batch_matmul" else torch.randn(extents[0], extents[2])
    other = torch.randn(extents[0], extents[2], extents[3]) if op == "batch_matmul" else x
    plain = torch.jit.freeze(torch.jit.trace(module, (x, other)))
    calls: dict[str, Call] = {"plain": lambda: plain(x, other)}
    if op == "conv2d":
        form = torch.channels_last
        operands = {w: t.contiguous(memory_format=form) for w, t in operands.items()}
        last = x.contiguous(memory_format=form)
        channels_last = torch.jit.freeze(torch.jit.trace(module.to(memory_format=form), (last, last)))
        calls["channels last"] = lambda: channels_last(last, last)
    return calls


if __name__ == "__main__":
    sys.exit(benchmark(__file__, __doc__, Fused, GROUPS, {"plevel": _plevel, "torch": _torch}))
