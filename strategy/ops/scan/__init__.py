"""Scans: cumulative sums, products and maxima along an axis."""

from strategy.ops.scan.operator import ScanopAttrs, cummax, cumprod, cumsum

__all__ = ["ScanopAttrs", "cummax", "cumprod", "cumsum"]
