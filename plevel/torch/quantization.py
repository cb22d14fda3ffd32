"""Operators of programs that PyTorch (PT2E) or torchao has quantised, by PyTorch's own parts of them.

Integers are those of PyTorch without a backend. Their real numbers are plevel's `dequantize`, so that products of them
can be products of the integers (`strategy/network/integer.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Interpreter, Node

from plevel.torch.aten import OPERATORS, cast
from strategy.expr import Constant, Expr, call
from strategy.network import layer

NAMESPACE = "quantized_decomposed"
_AFFINE = "torchao.dequantize_affine.default"  # torchao's, which its package defines by operators of ATen


def define_quantized() -> Any:
    """Define the operators, as they are where PyTorch's module of them is imported; return that module."""
    from torch.ao.quantization.fx import _decomposed

    return _decomposed


def is_quantized_defined() -> bool:
    return hasattr(torch.ops.quantized_decomposed, "quantize_per_tensor")


def quantized_parts(nodes: Sequence[Node]) -> dict[OpOverload, Callable[..., Any]]:
    """The functions that compute the quantised operators among nodes by others that plevel has, where it lacks them."""
    return _pytorch_parts(nodes) | _torchao_parts(nodes)


def _torchao_parts(nodes: Iterable[Node]) -> dict[OpOverload, Callable[..., Any]]:
    of = {n.target for n in nodes if isinstance(n.target, OpOverload) and str(n.target) == _AFFINE}
    if of:
        define_quantized()
    return {target: partial(_dequantize_affine, target) for target in of}


def _dequantize_affine(
    own: OpOverload, x: torch.Tensor, block: Sequence[Any], scale: torch.Tensor, points: torch.Tensor | None,
    dtype: torch.dtype, low: Any = None, high: Any = None, output_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Numbers of blocks as those of rows with a scale each; of other blocks and dtypes by torchao's own parts."""
    leading = len(list(takewhile(lambda n: isinstance(n, int) and n == 1, block)))
    inner = list(zip(block, x.shape, strict=True))[leading:]
    is_rows = all(isinstance(n, int) for pair in inner for n in pair) and all(n == size for n, size in inner[1:])
    is_plain = x.dtype == dtype in (torch.int8, torch.uint8) and scale.dtype == output_dtype == torch.float32
    if not (is_rows and is_plain) or (points is not None and points.is_floating_point()):
        composite = torch._C.DispatchKey.CompositeImplicitAutograd  # what `decompose` does, which is this function here
        made: torch.Tensor = own._op_dk(composite, x, block, scale, points, dtype, low, high, output_dtype)
        return made
    rows = x.reshape(-1, math.prod(n for n, _ in inner))
    # PyTorch's subtracts them in their dtype, where bytes overflow.
    each = None if points is None else points.reshape(-1).to(torch.int32)
    low, high = (torch.iinfo(dtype).min, torch.iinfo(dtype).max) if low is None or high is None else (low, high)
    found: torch.Tensor = torch.ops.quantized_decomposed.dequantize_per_channel.default(
        rows, scale.reshape(-1), each, 0, low, high, dtype
    )
    return found.reshape(x.shape)


def _pytorch_parts(nodes: Iterable[Node]) -> dict[OpOverload, Callable[..., Any]]:
    of = [n for n in nodes if isinstance(n.target, OpOverload) and n.target.namespace == NAMESPACE]
    others = {n.target for n in of if str(n.target) not in OPERATORS or not _is_plain(n)}
    if not (targets := {n.target for n in of} & others):
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


def is_rounding(node: Node) -> bool:
    """Return whether a node rounds numbers to integers."""
    return node.op == "call_function" and str(node.target).startswith(("aten.round.default", f"{NAMESPACE}.quantize_"))


class Rounded(Interpreter):  # type: ignore[misc]
    """A run of a graph with numbers off by a part of them, up or down, where they are rounded to integers."""

    def __init__(self, module: GraphModule, part: float) -> None:
        super().__init__(module)
        self.part, self.generator = part, torch.Generator().manual_seed(0)

    def run_node(self, n: Node) -> Any:
        if not is_rounding(n):
            return super().run_node(n)
        (x, *args), kwargs = self.fetch_args_kwargs_from_env(n)
        if x.is_floating_point():
            x = x * (1 + self.part * torch.randn(x.shape, generator=self.generator).sign()).to(x.dtype)
        return n.target(x, *args, **kwargs)


def _is_plain(node: Node) -> bool:
    """Return whether a node makes numbers of float32 from bytes, by scales that it does not round first.

    Zero points of embeddings may lie between integers (`per_channel_affine_float_qparams`).
    """
    given = (*node.args, *node.kwargs.values())
    x, scale, *others = (value.meta["val"] if isinstance(value, Node) else value for value in given)
    is_wide = isinstance(scale, torch.Tensor) and scale.dtype != torch.float32 and "channel" in str(node.target)
    if is_wide or any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in others):
        return False
    return x.dtype in (torch.int8, torch.uint8) and node.meta["val"].dtype == torch.float32


def _dequantized(x: Expr, scale: Any, zero_point: Any, *_: Any, **__: Any) -> Expr:
    given = _quantity(scale, "float32"), _quantity(zero_point, "int32")
    return call("dequantize", x, *(layer.reshape(number, ()) for number in given))


def _dequantized_along(x: Expr, scales: Expr, zero_points: Expr | None, axis: int, *_: Any, **__: Any) -> Expr:
    given = _quantity(scales, "float32"), _quantity(0 if zero_points is None else zero_points, "int32")
    return call("dequantize", x, *given, axis=axis)


def _quantity(value: Any, dtype: str) -> Expr:
    """Scales or zero points, numbers or tensors, in the dtype of plevel's."""
    if isinstance(value, Expr) and not isinstance(value, Constant):
        return cast(value, dtype)
    return Constant(np.asarray(value.value if isinstance(value, Constant) else value, dtype))


for _overload in ("default", "tensor", "tensor2"):
    OPERATORS[f"{NAMESPACE}.dequantize_per_tensor.{_overload}"] = _dequantized
OPERATORS[f"{NAMESPACE}.dequantize_per_channel.default"] = _dequantized_along


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
