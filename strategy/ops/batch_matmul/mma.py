"""`batch_matmul_mma.cuda` and `batch_matmul_wgmma.cuda`, of matrices that both lie along k.

See `strategy/cuda/mma.py` and `wgmma.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.library import Handwritten, call_in_place, number_of
from strategy.cuda.limit import limits_of
from strategy.cuda.mma import mma_product, mma_space, takes_mma
from strategy.cuda.staging import ByHand
from strategy.cuda.wgmma import takes_wgmma, wgmma_product, wgmma_space
from strategy.ops.batch_matmul.operator import BatchMatmulAttrs
from strategy.pattern import extents_of
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType


def takes(
    attrs: BatchMatmulAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> bool:
    """Return whether both operands lie along k, and as `takes_mma` wants them."""
    return _takes(takes_mma, attrs, inputs, out_type, target)


def takes_groups(
    attrs: BatchMatmulAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> bool:
    """Return whether both operands lie along k, and as `takes_wgmma` wants them."""
    return _takes(takes_wgmma, attrs, inputs, out_type, target)


def _takes(
    takes: Callable[..., bool],
    attrs: BatchMatmulAttrs,
    inputs: Sequence[TensorType],
    out_type: TensorType,
    target: Target,
) -> bool:
    _, n, k = inputs[1].shape
    batch, kinds = out_type.shape[0], (inputs[0].dtype, out_type.dtype)
    along = attrs.transpose_b and not attrs.transpose_a
    return along and takes(batch, n, k, *kinds, limits_of(target))


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """See `mma_space`."""
    return mma_space(limits_of(target), *_extents(inputs))


def space_of_groups(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """See `wgmma_space`."""
    return wgmma_space(limits_of(target), *_extents(inputs))


def _extents(inputs: Sequence[TensorType]) -> tuple[int | None, int]:
    m, n = inputs[0].shape[1], inputs[1].shape[1]
    return int(m) if m.is_constant else None, int(n)


def compute(
    attrs: BatchMatmulAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """Products of the entries by one launch; a batch of 1 is read for all."""
    return _compute(mma_product, inputs, out_type, config)


def compute_by_groups(
    attrs: BatchMatmulAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The same by warpgroups."""
    return _compute(wgmma_product, inputs, out_type, config)


def _compute(
    product: Callable[[ByHand, Config], Handwritten], inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    x, y = inputs
    batch, m, n = extents_of(out_type, inputs)
    of = ByHand(
        number_of(batch), number_of(m), n, int(y.shape[2]), str(x.dtype), out_type.dtype,
        one_left=number_of(x.shape[0]) == 1, one_right=number_of(y.shape[0]) == 1,
    )  # fmt: skip
    return [call_in_place(product(of, config), inputs, (batch, m, n), out_type.dtype, "batch_matmul")]
