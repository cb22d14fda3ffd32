"""`dense_mma.cuda`: see `strategy/cuda/mma.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.library import call_in_place, number_of
from strategy.cuda.limit import limits_of
from strategy.cuda.mma import mma_product, mma_space
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType, Type


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """See `mma_space`."""
    m, n = inputs[0].shape[0], inputs[1].shape[0]
    return mma_space(limits_of(target), int(m) if m.is_constant else None, int(n))


def compute(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """data[m, k] · weight[n, k]ᵀ by one launch; m may be symbolic."""
    data, weight = inputs
    m, (n, k) = data.shape[0], (int(e) for e in weight.shape)
    product = mma_product(1, number_of(m), n, k, str(data.dtype), out_type.dtype, config)
    return [call_in_place(product, inputs, (m, n), out_type.dtype, "dense")]
