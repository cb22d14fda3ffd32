"""Non-maximum suppression: the boxes of the highest scores, without those that overlap a chosen one."""

from strategy.ops.non_max_suppression.operator import (
    AllClassNonMaxSuppressionAttrs,
    all_class_non_max_suppression,
)

__all__ = ["AllClassNonMaxSuppressionAttrs", "all_class_non_max_suppression"]
