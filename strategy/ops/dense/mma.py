"""`dense_mma.cuda` and `dense_wgmma.cuda`: see `strategy/cuda/mma.py` and `wgmma.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.library import Handwritten, call_in_place, number_of
from strategy.cuda.limit import limits_of
from strategy.cuda.mma import mma_product, mma_space
from strategy.cuda.staging import ByHand
from strategy.cuda.wgmma import wgmma_product, wgmma_space
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType, Type


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """See `mma_space`."""
    return mma_space(limits_of(target), *_extents(inputs))


def space_of_groups(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """See `wgmma_space`."""
    return wgmma_space(limits_of(target), *_extents(inputs))


def _extents(inputs: Sequence[TensorType]) -> tuple[int | None, int]:
    m, n = inputs[0].shape[0], inputs[1].shape[0]
    return int(m) if m.is_constant else None, int(n)


def compute(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """data[m, k] · weight[n, k]ᵀ by one launch; m may be symbolic."""
    return _compute(mma_product, inputs, out_type, config)


def compute_by_groups(
    attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The same by warpgroups."""
    return _compute(wgmma_product, inputs, out_type, config)


def _compute(
    product: Callable[[ByHand, Config], Handwritten], inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    data, weight = inputs
    m, (n, k) = data.shape[0], (int(e) for e in weight.shape)
    step = product(ByHand(1, number_of(m), n, k, str(data.dtype), out_type.dtype), config)
    return [call_in_place(step, inputs, (m, n), out_type.dtype, "dense")]
