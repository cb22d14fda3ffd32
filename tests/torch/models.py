"""Small models of each kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


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


def convolutions() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU(),
        nn.Conv2d(16, 32, 1), nn.Hardswish(),
        nn.Conv2d(32, 32, 3, groups=4),
    )  # fmt: skip
    return layers.eval(), (torch.randn(1, 3, 20, 20),)
