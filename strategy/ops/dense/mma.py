"""`dense_mma.cuda` and `dense_wgmma.cuda`: see `strategy/cuda/mma.py` and `wgmma.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.library import Handwritten, call_in_place, number_of
from strategy.cuda.limit import limits_of
from strategy.cuda.staging import ByHand
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType, Type


def space(
    make: Callable[..., ConfigSpace], attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """The space that `make`, `mma_space` or `wgmma_space`, has for the extents of a call of dense or batch_matmul."""
    m, n = inputs[0].shape[-2], inputs[1].shape[-2]
    return make(limits_of(target), int(m) if m.is_constant else None, int(n))


def compute(
    product: Callable[[ByHand, Config], Handwritten],
    attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config,
) -> list[Any]:
    """data[m, k] · weight[n, k]ᵀ by one launch of `mma_product` or `wgmma_product`; m may be symbolic."""
    data, weight = inputs
    m, (n, k) = data.shape[0], (int(e) for e in weight.shape)
    step = product(ByHand(1, number_of(m), n, k, str(data.dtype), out_type.dtype), config)
    return [call_in_place(step, inputs, (m, n), out_type.dtype, "dense")]
