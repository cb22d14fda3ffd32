"""resize2d: an image at another size."""

from __future__ import annotations

from strategy.ops.resize2d import row
from strategy.ops.resize2d.operator import Resize2DAttrs, resize2d

__all__ = ["Resize2DAttrs", "resize2d", "row"]
