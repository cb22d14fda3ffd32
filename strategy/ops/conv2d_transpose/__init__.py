"""conv2d_transpose: each element of the data spread by the weight, the derivative of conv2d as an operator.

    conv2d_transpose.cpu                each output gathers what reaches it, with all dimensions symbolic too
    conv2d_transpose_im2col.cpu, conv2d_transpose_spatial_pack.cpu
                                        those of conv2d, with the phases of the result as groups
    conv2d_transpose_blocks.cpu         a product, whose results are interleaved: windows as large as the strides
"""

from __future__ import annotations

from strategy.ops.conv2d_transpose import blocks, phases
from strategy.ops.conv2d_transpose.operator import Conv2DTransposeAttrs, conv2d_transpose

__all__ = ["Conv2DTransposeAttrs", "blocks", "conv2d_transpose", "phases"]
