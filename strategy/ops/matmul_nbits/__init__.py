"""Products with weights of 4 or 8 bits, which memory bounds where one token is decoded."""

from __future__ import annotations

from strategy.ops.matmul_nbits import panel
from strategy.ops.matmul_nbits.operator import MatMulNBitsAttrs, matmul_nbits

__all__ = ["MatMulNBitsAttrs", "matmul_nbits", "panel"]
