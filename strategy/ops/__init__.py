"""The operators, one file or folder per family; importing this registers them."""

from strategy.cuda import schedule as cuda_schedule
from strategy.ops import (
    batch_matmul,
    broadcast,
    concatenate,
    conv2d,
    dense,
    elemwise,
    max_pool2d,
    plain_cuda,
    reduce,
    reshape,
    scan,
    scan_cuda,
    softmax,
    softmax_cuda,
    topk,
    topk_cuda,
    transpose,
)
from strategy.ops.batch_matmul import cuda as batch_matmul_cuda
from strategy.ops.conv2d import cuda as conv2d_cuda
from strategy.ops.dense import cuda as dense_cuda
from strategy.ops.dense import gradient as dense_gradient

__all__ = [
    "batch_matmul",
    "broadcast",
    "concatenate",
    "conv2d",
    "batch_matmul_cuda",
    "conv2d_cuda",
    "cuda_schedule",
    "dense",
    "dense_cuda",
    "dense_gradient",
    "elemwise",
    "max_pool2d",
    "plain_cuda",
    "reduce",
    "reshape",
    "scan",
    "scan_cuda",
    "softmax",
    "softmax_cuda",
    "topk",
    "topk_cuda",
    "transpose",
]
