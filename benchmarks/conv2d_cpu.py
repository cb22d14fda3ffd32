"""`conv2d` on this host's CPU: plevel's implementations beside PyTorch, which calls oneDNN.

    python benchmarks/conv2d_cpu.py                                # all layers, two threads
    python benchmarks/conv2d_cpu.py --layers resnet50 --trials 16 --tuned tuned.json
    python benchmarks/conv2d_cpu.py --tuned tuned.json --trials 0  # what was found before, else fallbacks

The distinct convolutions of ResNet-50 and the depthwise and pointwise ones of MobileNetV2, batch 1,
float32, weights constant. Each implementation is tuned for as many trials as `--trials` says; what is
selected and the best of each implementation are then timed in turns with PyTorch. Its module is
frozen, with weights prepacked for oneDNN: for a plain image, a channels-last one, and through an
mkldnn tensor; the fastest counts. PyTorch returns a new tensor, plevel writes where it is told to.

Prints medians, and the ratio of PyTorch's time to that of what plevel selects: above 1, plevel is faster.
Needs torch==2.13.0.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from race import Call, benchmark, plevel_calls

if TYPE_CHECKING:
    from strategy.workload import Workload


class Layer(NamedTuple):
    """A convolution with 'same' padding of a square image."""

    channels: int
    size: int
    out_channels: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def name(self) -> str:
        kind = "dw" if self.groups > 1 else f"→{self.out_channels}"
        stride = f"/{self.stride}" if self.stride > 1 else ""
        return f"{self.channels}{kind}@{self.size},{self.kernel}×{self.kernel}{stride}"

    def workload(self) -> Workload:
        from strategy.workload import Workload

        weight = f"float32[{self.out_channels},{self.channels // self.groups},{self.kernel},{self.kernel}]"
        return Workload.make(
            "conv2d",
            {"data": f"float32[1,{self.channels},{self.size},{self.size}]", "weight": weight},
            {"strides": self.stride, "padding": self.kernel // 2, "groups": self.groups},
            ["weight"],
        )


RESNET50 = [
    Layer(3, 224, 64, 7, 2),
    Layer(64, 56, 64, 1), Layer(64, 56, 64, 3), Layer(64, 56, 256, 1), Layer(256, 56, 64, 1),
    Layer(256, 56, 128, 1), Layer(128, 56, 128, 3, 2), Layer(256, 56, 512, 1, 2),
    Layer(128, 28, 512, 1), Layer(512, 28, 128, 1), Layer(128, 28, 128, 3),
    Layer(512, 28, 256, 1), Layer(256, 28, 256, 3, 2), Layer(512, 28, 1024, 1, 2),
    Layer(256, 14, 1024, 1), Layer(1024, 14, 256, 1), Layer(256, 14, 256, 3),
    Layer(1024, 14, 512, 1), Layer(512, 14, 512, 3, 2), Layer(1024, 14, 2048, 1, 2),
    Layer(512, 7, 2048, 1), Layer(2048, 7, 512, 1), Layer(512, 7, 512, 3),
]  # fmt: skip
DEPTHWISE = [
    Layer(c, size, c, 3, stride, c)
    for c, size, stride in [
        (32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1), (192, 28, 2),
        (384, 14, 1), (576, 14, 1), (576, 14, 2), (960, 7, 1),
    ]
]  # fmt: skip
POINTWISE = [
    Layer(c, size, o, 1)
    for c, size, o in [
        (32, 112, 16), (16, 112, 96), (96, 56, 24), (24, 56, 144), (144, 56, 24), (144, 28, 32),
        (32, 28, 192), (192, 28, 32), (192, 14, 64), (64, 14, 384), (384, 14, 64), (384, 14, 96),
        (96, 14, 576), (576, 14, 96), (576, 7, 160), (160, 7, 960), (960, 7, 160), (960, 7, 320),
        (320, 7, 1280),
    ]
]  # fmt: skip
GROUPS = {"resnet50": RESNET50, "depthwise": DEPTHWISE, "pointwise": POINTWISE}


def _plevel(layer: Layer, threads: int, best: dict[str, Any]) -> dict[str, Call]:
    return plevel_calls(layer.workload(), threads, best)


def _torch(layer: Layer, threads: int, best: dict[str, Any]) -> dict[str, Call]:
    import warnings

    import torch
    from torch.utils import mkldnn

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    torch.inference_mode().__enter__()  # for as long as this process lives
    module = torch.nn.Conv2d(
        layer.channels, layer.out_channels, layer.kernel, layer.stride, layer.kernel // 2,
        groups=layer.groups, bias=False,
    ).eval()  # fmt: skip
    image = torch.randn(1, layer.channels, layer.size, layer.size)
    last = image.contiguous(memory_format=torch.channels_last)
    plain = torch.jit.freeze(torch.jit.trace(module, image))
    channels_last = torch.jit.freeze(torch.jit.trace(module.to(memory_format=torch.channels_last), last))
    prepacked = mkldnn.to_mkldnn(module)
    return {
        "plain": lambda: plain(image),
        "channels last": lambda: channels_last(last),
        "mkldnn": lambda: prepacked(image.to_mkldnn()).to_dense(),
    }


if __name__ == "__main__":
    sys.exit(benchmark(__file__, __doc__, Layer, GROUPS, {"plevel": _plevel, "torch": _torch}))
