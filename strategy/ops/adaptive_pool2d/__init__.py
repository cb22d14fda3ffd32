"""adaptive_avg_pool2d and adaptive_max_pool2d: pooling to an output size."""

from __future__ import annotations

from strategy.ops.adaptive_pool2d import row
from strategy.ops.adaptive_pool2d.operator import (
    AdaptivePool2DAttrs,
    adaptive_avg_pool2d,
    adaptive_max_pool2d,
)

__all__ = ["AdaptivePool2DAttrs", "adaptive_avg_pool2d", "adaptive_max_pool2d", "row"]
