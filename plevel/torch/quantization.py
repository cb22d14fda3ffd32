"""Operators of programs that PyTorch has quantised (PT2E), by PyTorch's own parts of them.

Values are those of PyTorch without a backend: products are of the real numbers that integers stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._ops import OpOverload

NAMESPACE = "quantized_decomposed"


def define_quantized() -> Any:
    """Define the operators, as they are where PyTorch's module of them is imported; return that module."""
    from torch.ao.quantization.fx import _decomposed

    return _decomposed


def is_quantized_defined() -> bool:
    return hasattr(torch.ops.quantized_decomposed, "quantize_per_tensor")


def quantized_parts(nodes: Iterable[Any]) -> dict[OpOverload, Callable[..., Any]]:
    """The functions that compute the quantised operators among nodes by operators of ATen."""
    targets = {n.target for n in nodes if isinstance(n.target, OpOverload) and n.target.namespace == NAMESPACE}
    if not targets:
        return {}
    own: dict[OpOverload, Callable[..., Any]] = {
        torch.ops.quantized_decomposed.quantize_per_tensor.tensor: _quantize,
        torch.ops.quantized_decomposed.dequantize_per_tensor.tensor: _dequantize,
        torch.ops.quantized_decomposed.choose_qparams.tensor: _choose,
        torch.ops.quantized_decomposed.choose_qparams_symmetric.tensor: _choose_symmetric,
    }
    module = define_quantized()
    found: dict[OpOverload, Any] = {t: own.get(t) or getattr(module, t.overloadpacket.__name__, None) for t in targets}
    return {target: part for target, part in found.items() if part is not None}


def _quantize(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    """As PyTorch's, which reads scales that are tensors as numbers."""
    factor = (1.0 / scale).reshape(()).to(torch.float32)
    return ((x.to(torch.float32) * factor).round() + zero_point.reshape(())).clamp(low, high).to(dtype)


def _dequantize(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, *_: Any, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    wanted = out_dtype or torch.float32
    return (x.to(wanted) - zero_point.reshape(())) * scale.reshape(()).to(wanted)


def _choose(
    x: torch.Tensor, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and the zero point for which integers from `low` to `high` span a tensor's values and 0.

    As PyTorch's, which looks at the values to check them, and thus cannot be traced.
    """
    least, most = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = _at_least(eps, (most - least) / float(high - low))
    zero_point = (low - (least / scale).round().to(torch.int32)).clamp(low, high)
    return scale.to(torch.float64), zero_point.to(torch.int64)


def _choose_symmetric(
    x: torch.Tensor, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `_choose`, of integers on both sides of the zero point."""
    most = torch.maximum(-x.amin().clamp(max=0), x.amax().clamp(min=0))
    scale = _at_least(eps, most / (float(high - low) / 2))
    return scale.to(torch.float64), torch.full((1,), 128 if dtype == torch.uint8 else 0, dtype=torch.int64)


def _at_least(eps: float, scale: torch.Tensor) -> torch.Tensor:
    return scale.to(torch.float32).clamp(min=eps).reshape(1)
