"""Small models of each kind."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from plevel.torch.quantization import define_quantized


class Block(nn.Module):
    """A feed-forward layer of a transformer: two products, a GELU, and the input added."""

    def __init__(self, width: int = 64, inner: int = 128) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


class Attention(nn.Module):
    """Attention written out, with both products of activations."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.transpose(1, 2), -1) @ x


def transformer() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Attention(), Block()).eval(), (torch.randn(2, 24, 64),)


def named() -> tuple[nn.Module, dict[str, Any]]:
    return Block(), {"x": torch.randn(2, 64)}


def convolutions() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU(),
        nn.Conv2d(16, 32, 1), nn.Hardswish(),
        nn.Conv2d(32, 32, 3, groups=4),
    )
    return layers.eval(), (torch.randn(1, 3, 20, 20),)


class Quantised(nn.Module):
    """Layers as PyTorch's export quantises them (PT2E): weights of bytes with a scale for each output.

    Data are bytes whose scale is fixed ("static") or that of their values ("dynamic"), or stay numbers ("weight").
    """

    def __init__(self, *layers: nn.Module, kind: str = "static") -> None:
        super().__init__()
        define_quantized()
        self.kind, self.layers = kind, nn.ModuleList(layers)
        for i, layer in enumerate(layers):
            weight = layer.weight.detach()
            scales = weight.flatten(1).abs().amax(1) / 127
            shape = (-1, *(1,) * (weight.ndim - 1))
            self.register_buffer(f"weight{i}", (weight / scales.view(shape)).round().to(torch.int8))
            self.register_buffer(f"scales{i}", scales)
            self.register_buffer(f"points{i}", torch.zeros(len(scales), dtype=torch.int64))
            layer.weight = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        of, own = torch.ops.quantized_decomposed, (0, 255, torch.uint8)
        for i, layer in enumerate(self.layers):
            if self.kind == "static":
                x = of.dequantize_per_tensor(of.quantize_per_tensor(x, 0.013, 3, *own), 0.013, 3, *own)
            elif self.kind == "dynamic":
                numbers = *of.choose_qparams(x, 0, 255, 1e-5, torch.uint8), *own
                x = of.dequantize_per_tensor(of.quantize_per_tensor(x, *numbers), *numbers)
            given = (getattr(self, f"{name}{i}") for name in ("weight", "scales", "points"))
            weight = of.dequantize_per_channel(*given, 0, -128, 127, torch.int8)
            if isinstance(layer, nn.Conv2d):
                x = nn.functional.conv2d(x, weight, layer.bias, layer.stride, layer.padding)
            else:
                x = nn.functional.linear(x, weight, layer.bias)
            x = x.relu()
        return x


class Lines(nn.Module):
    """Convolutions of one dimension: strided, dilated with the input added, and in groups."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(channels, 16, 5, stride=2, padding=2)
        self.second = nn.Conv1d(16, 16, 3, padding=2, dilation=2)
        self.third = nn.Conv1d(16, 8, 3, groups=4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.gelu(self.first(x))
        return self.third(self.second(y) + y)


def grouped() -> tuple[nn.Module, tuple[Any, ...]]:
    """Convolutions of groups of several channels, with more channels than groups, of one pixel, and of lines."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, groups=32), nn.SiLU(),
        nn.Conv2d(64, 48, 1, groups=8), nn.Flatten(2), Lines(48),
    )
    return layers.eval(), (torch.randn(2, 16, 15, 13),)


class Activations(nn.Module):
    """A product before each activation and number, as PyTorch has it and as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 48, bias=False)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        f = nn.functional
        tanh = math.sqrt(2 / math.pi)
        made = [
            f.silu, lambda y: y * torch.sigmoid(y), f.hardswish, f.hardsigmoid,
            lambda y: f.gelu(y, approximate="tanh"),
            lambda y: 0.5 * y * (1 + torch.tanh(tanh * (y + 0.044715 * torch.pow(y, 3)))),
            f.mish, f.leaky_relu, f.gelu, lambda y: y.clamp(-0.125, 0.7),
            lambda y: y.clamp(3, 1), lambda y: (y / 8 - 3).relu() * 0.5, lambda y: y * torch.tanh(y),
        ]
        return [act(self.linear(x[i : i + 20])) for i, act in enumerate(made)]


def activations() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return Activations().eval(), (torch.randn(32, 32),)


class Rowwise(nn.Module):
    """Both norms and a softmax, with a product between them."""

    def __init__(self) -> None:
        super().__init__()
        self.rms, self.layer, self.linear = nn.RMSNorm(32), nn.LayerNorm(32), nn.Linear(32, 48, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(self.layer(self.rms(x))), -1)


def rowwise() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return Rowwise().eval(), (torch.randn(2, 12, 32),)


class Decoder(nn.Module):
    """Attention and a gated layer of a LLaMA: products that share their operand."""

    def __init__(self, width: int = 32, inner: int = 48) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, 16), nn.Linear(width, 16)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, *, is_causal: bool = False
    ) -> torch.Tensor:
        n, t, width = x.shape
        q, k, v = (f(x).view(n, t, -1, 16).transpose(1, 2) for f in (self.q, self.k, self.v))
        found = nn.functional.scaled_dot_product_attention(
            q, k.expand_as(q), v.expand_as(q), attn_mask=mask, is_causal=is_causal
        )
        y = x + found.transpose(1, 2).reshape(n, t, width)
        return y + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def decoder() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return Decoder().eval(), (torch.randn(2, 12, 32),)
