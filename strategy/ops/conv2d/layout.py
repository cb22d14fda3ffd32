"""Other orders of axes of conv2d: `data_layout` NHWC, `kernel_layout` HWIO and OHWI.

Implementations compute NCHW and OIHW. What reads through another order is inlined, and a weight is packed from it, so
that nothing is copied for the order alone. Only implementations that write an image of NHWC in place are offered there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from strategy.op_strategy import OpImplementation, OpStrategy
from strategy.ops.conv2d.operator import DATA, KERNEL, Conv2DAttrs, permuted, permuted_type
from strategy.target import Target
from strategy.types import TensorType

_ANY_ORDER = frozenset(
    {
        "conv2d_nchw.cpu", "conv2d_nchw_spatial_pack.cpu", "conv2d_nchw.cuda", "depthwise_conv2d_nchw.cuda",
        "qconv2d_nchw.cpu", "qconv2d_nchw.cuda",
    }
)  # fmt: skip

Strategy = Callable[[Conv2DAttrs, Sequence[TensorType], TensorType, Target], OpStrategy]


def in_any_layout(make: Strategy) -> Strategy:
    """The strategy of all layouts by that of NCHW and OIHW."""

    def strategy(
        attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
    ) -> OpStrategy:
        if attrs.data_layout == DATA and attrs.kernel_layout == KERNEL:
            return make(attrs, inputs, out_type, target)
        moves_image = attrs.data_layout != DATA

        def adapt(found: OpImplementation) -> OpImplementation | None:
            if found.name not in _ANY_ORDER and (moves_image or target.is_gpu):
                return None
            return _adapted(found, attrs.data_layout.lower())

        plain = _plain_types(attrs, inputs), permuted_type(out_type, attrs.data_layout, DATA)
        return make(attrs, *plain, target).changed(adapt)

    strategy.__doc__ = make.__doc__
    return strategy


def _plain_types(attrs: Conv2DAttrs, inputs: Sequence[TensorType]) -> list[TensorType]:
    return [
        permuted_type(kind, *orders)
        for kind, orders in zip(inputs, ((attrs.data_layout, DATA), (attrs.kernel_layout, KERNEL)), strict=True)
    ]


def _adapted(found: OpImplementation, layout: str) -> OpImplementation:
    space, prepare = found.space, found.prepare

    def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, *config: Any) -> list[Any]:
        data, weight = inputs
        data = _permuted_tensor(data, attrs.data_layout, DATA)
        if prepare is None:
            weight = _permuted_tensor(weight, attrs.kernel_layout, KERNEL)
        (out,) = found.compute(attrs, [data, weight], permuted_type(out_type, attrs.data_layout, DATA), *config)
        return [_permuted_tensor(out, DATA, attrs.data_layout)]

    def adapted_space(attrs: Any, inputs: Sequence[TensorType], out_type: Any, target: Target) -> Any:
        assert space is not None
        return space(attrs, _plain_types(attrs, inputs), permuted_type(out_type, attrs.data_layout, DATA), target)

    def adapted_prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType], *config: Any) -> dict[int, Any]:
        assert prepare is not None
        (pack,) = prepare(attrs, _plain_types(attrs, inputs), *config).values()
        return {1: lambda weight: pack(_permuted_tensor(weight, attrs.kernel_layout, KERNEL))}

    return replace(
        found, compute=compute, space=space and adapted_space, prepare=prepare and adapted_prepare,
        name=found.name.replace("nchw", layout),
    )  # fmt: skip


def _permuted_tensor(tensor: Any, given: str, wanted: str) -> Any:
    """A TE tensor read in another order of axes."""
    from tvm import te

    if given == wanted:
        return tensor
    back = [wanted.index(axis) for axis in given]
    return te.compute(
        permuted(tensor.shape, given, wanted), lambda *i: tensor(*(i[n] for n in back)), name="permuted"
    )
