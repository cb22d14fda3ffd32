"""Scans: cumulative sums and products along an axis."""

from strategy.ops.scan.operator import ScanopAttrs, cumprod, cumsum

__all__ = ["ScanopAttrs", "cumprod", "cumsum"]
