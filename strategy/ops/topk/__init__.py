"""topk: the k largest or smallest elements along an axis."""

from strategy.ops.topk.operator import (
    TopKAttrs,
    reference_topk,
    sort_keys,
    sorted_order,
    topk,
    topk_rel,
)

__all__ = ["TopKAttrs", "reference_topk", "sort_keys", "sorted_order", "topk", "topk_rel"]
