"""transpose: the axes in another order."""

from strategy.ops.transpose.operator import TransposeAttrs, transpose

__all__ = ["TransposeAttrs", "transpose"]
