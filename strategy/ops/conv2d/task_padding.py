"""Padding of a large image by tasks of whole lines: each pads what it reads, which then is in its second level.

Padded before all tasks, an image leaves the second level, and half of it is in that of another thread.
"""

from __future__ import annotations

from strategy.condition import Clause
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.product import BLOCKS, Geometry
from strategy.schedule import dtype_bytes
from strategy.space import Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType

BY_TASK = Knob("by_task", [False, True])
_LARGE = 1 << 20  # bytes


def is_large(attrs: Conv2DAttrs, data: TensorType) -> bool:
    """Return whether the padding of an image [n, c, h, w] of known size is a copy of 1 MiB or more."""
    return any(attrs.padding) and _line_bytes(attrs, data) * _height(attrs, data) >= _LARGE


def _height(attrs: Conv2DAttrs, data: TensorType) -> int:
    return int(data.shape[2]) + attrs.padding[0] + attrs.padding[2]


def _line_bytes(attrs: Conv2DAttrs, data: TensorType) -> int:
    """Bytes of a padded line of all channels."""
    width = int(data.shape[3]) + attrs.padding[1] + attrs.padding[3]
    return int(data.shape[1]) * width * dtype_bytes(data.dtype)


def have_lines(geometry: Geometry) -> Clause:
    """The constraint that tasks have whole lines if they pad them."""
    out_w, pixels = int(geometry.out_w), int(geometry.pixels)
    return knob("by_task") * (knob("p_block") * knob("rows") % out_w + pixels % knob("rows")) == 0


def tiles_of_task(rows: int, attrs: Conv2DAttrs, data: TensorType, geometry: Geometry, target: Target) -> int:
    """The tiles of `rows` pixels of an untuned task that pads what it reads; 0 if there are none.

    All threads have tasks, what one pads takes a quarter of the second level, and few lines are padded twice.
    """

    def fits(lines: int) -> bool:
        height = (lines - 1) * attrs.strides[0] + (geometry.kernel_h - 1) * attrs.dilation[0] + 1
        parts = geometry.out_h // lines
        tasks = parts * geometry.batch
        is_even = tasks % target.threads == 0 or tasks >= 8 * target.threads
        is_kept = height * _line_bytes(attrs, data) <= target.l2_bytes // 4
        return is_even and is_kept and 4 * parts * height <= 5 * _height(attrs, data)

    pixels = {lines * geometry.out_w for lines in divisors(geometry.out_h) if fits(lines)}
    return max((block for block in BLOCKS if block * rows in pixels), default=0)
