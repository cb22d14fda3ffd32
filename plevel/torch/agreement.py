"""Agreement of the outputs of two forms of a graph: they are the same but for rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

TOLERANCE = 1e-3  # relative error of an output, between two ways of summing; more with products of 16 bits
_PIECE = 1 << 20  # elements that are compared at once: those of a cache, in float64, take several times its memory


def agree(
    found: Sequence[Any], expected: Sequence[Any], tolerance: float = TOLERANCE, *, by_strides: bool = True
) -> bool:
    """Compare dtypes, shapes and strides; numbers by their norm; counts and truths by their share that differs.

    Rounding may turn some counts and truths.

    Args:
        by_strides: whether strides are compared.
    """
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if isinstance(b, torch.Tensor)]
    if by_strides and any(_steps(a) != _steps(b) for a, b in pairs):
        return False
    return all(a.dtype == b.dtype and a.shape == b.shape for a, b in pairs) and all(
        _close(_real(a), _real(b), tolerance)
        if b.is_floating_point() or b.is_complex()
        else (a != b).sum().item() <= tolerance * b.numel()
        for a, b in pairs
    )


def _steps(x: torch.Tensor) -> list[int]:
    """The strides that tell elements apart."""
    return [step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1 and x.numel()]


def _real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    """Equal beyond rounding; infinities and NaN, of masks, are equal to themselves alone."""
    errors, sizes = [], []
    for found, expected in zip(_pieces(a), _pieces(b), strict=True):
        x, y = found.double(), expected.double()
        same = (x == y) | (x.isnan() & y.isnan())
        errors.append(torch.where(same, 0.0, x - y).norm().item())
        sizes.append(torch.where(y.isfinite(), y, 0.0).norm().item())
    return math.hypot(*errors) <= tolerance * (math.hypot(*sizes) or 1.0)


def _pieces(x: torch.Tensor) -> Sequence[torch.Tensor]:
    pieces: Sequence[torch.Tensor] = x.reshape(-1).split(_PIECE)
    return pieces
