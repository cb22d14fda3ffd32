"""The operators, one file or folder per family; importing this registers them."""

from strategy.ops import (
    batch_matmul,
    broadcast,
    concatenate,
    conv2d,
    dense,
    elemwise,
    max_pool2d,
    reduce,
    reshape,
    scan,
    softmax,
    topk,
    transpose,
)
from strategy.ops.dense import gradient as dense_gradient

__all__ = [
    "batch_matmul",
    "broadcast",
    "concatenate",
    "conv2d",
    "dense",
    "dense_gradient",
    "elemwise",
    "max_pool2d",
    "reduce",
    "reshape",
    "scan",
    "softmax",
    "topk",
    "transpose",
]
