"""Agreement of the outputs of two forms of a graph: they are the same but for rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import starmap
from typing import Any

import torch

TOLERANCE = 1e-3  # relative error of an output, between two ways of summing; more with products of 16 bits
MOST = 3e-2  # that may be allowed of outputs that jump, as by numbers that are rounded
_PIECE = 1 << 20  # elements that are compared at once: those of a cache, in float64, take several times its memory


def agree(
    found: Sequence[Any],
    expected: Sequence[Any],
    tolerance: float = TOLERANCE,
    *,
    allowed: Sequence[float] | None = None,
    by_strides: bool = True,
) -> bool:
    """Compare dtypes, shapes and strides; numbers by their norm; counts and truths by their share that differs.

    Rounding may turn some counts and truths.

    Args:
        allowed: `differences` that agree, too. Of a sum whose terms cancel, little is left but rounding.
        by_strides: whether strides are compared.
    """
    pairs = _pairs(found, expected)
    if by_strides and any(_steps(a) != _steps(b) for a, b in pairs):
        return False
    more = [0.0] * len(pairs) if allowed is None else allowed
    return all(a.dtype == b.dtype and a.shape == b.shape for a, b in pairs) and all(
        error <= max(tolerance * (size or 1.0), least)
        for (error, size), least in zip(starmap(_difference, pairs), more, strict=True)
    )


def differences(found: Sequence[Any], expected: Sequence[Any]) -> list[float]:
    """The size of the difference of each tensor that is expected; 0 where it is not finite, or of another shape."""
    each = [_difference(a, b)[0] if a.shape == b.shape else 0.0 for a, b in _pairs(found, expected)]
    return [error if math.isfinite(error) else 0.0 for error in each]


def sizes(outputs: Sequence[Any]) -> list[float]:
    """The size of each tensor, as of `differences`."""
    return [_difference(x, x)[1] for x in outputs if isinstance(x, torch.Tensor)]


def _pairs(found: Sequence[Any], expected: Sequence[Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(a, b) for a, b in zip(found, expected, strict=True) if isinstance(b, torch.Tensor)]


def _steps(x: torch.Tensor) -> list[int]:
    """The strides that tell elements apart."""
    return [step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1 and x.numel()]


def _real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _difference(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """The size of what differs, and that of `b`: norms of numbers, and else counts.

    Infinities and NaN, of masks, are equal to themselves alone.
    """
    if not (b.is_floating_point() or b.is_complex()):
        return float((a != b).sum().item()), float(b.numel())
    errors, sizes = [], []
    for found, expected in zip(_pieces(_real(a)), _pieces(_real(b)), strict=True):
        x, y = found.double(), expected.double()
        same = (x == y) | (x.isnan() & y.isnan())
        errors.append(torch.where(same, 0.0, x - y).norm().item())
        sizes.append(torch.where(y.isfinite(), y, 0.0).norm().item())
    return math.hypot(*errors), math.hypot(*sizes)


def _pieces(x: torch.Tensor) -> Sequence[torch.Tensor]:
    pieces: Sequence[torch.Tensor] = x.reshape(-1).split(_PIECE)
    return pieces
