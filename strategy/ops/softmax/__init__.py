"""softmax along an axis, and its logarithm."""

from __future__ import annotations

from strategy.ops.softmax import column
from strategy.ops.softmax.operator import SoftmaxAttrs, log_softmax, softmax

__all__ = ["SoftmaxAttrs", "column", "log_softmax", "softmax"]
