"""Scaled dot-product attention: products of queries, keys and values in one pass."""

from __future__ import annotations

from strategy.ops.attention import gradient, row, tile
from strategy.ops.attention.operator import AttentionAttrs, attention

__all__ = ["AttentionAttrs", "attention", "gradient", "row", "tile"]
