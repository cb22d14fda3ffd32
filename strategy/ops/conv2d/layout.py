"""Other layouts of conv2d: `data_layout` and `out_layout`, and `kernel_layout` HWIO and OHWI.

Implementations compute NCHW and OIHW. What reads through another order is inlined, and a weight is packed from it, so
that nothing is copied for the order alone. Only implementations that write an image of another layout in place are
offered there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from strategy.layout import block_of, laid_out_view, plain_type, plain_view
from strategy.op_strategy import OpImplementation, OpStrategy
from strategy.ops.conv2d.operator import DATA, KERNEL, Conv2DAttrs, permuted, permuted_type
from strategy.schedule import VIEW
from strategy.target import Target
from strategy.types import TensorType

_ANY_LAYOUT = frozenset(
    {"conv2d_nchw.cpu", "conv2d_nchw.cuda", "depthwise_conv2d_nchw.cuda", "qconv2d_nchw.cpu", "qconv2d_nchw.cuda"}
)

Strategy = Callable[[Conv2DAttrs, Sequence[TensorType], TensorType, Target], OpStrategy]


def in_any_layout(make: Strategy) -> Strategy:
    """The strategy of all layouts by that of NCHW and OIHW."""

    def strategy(
        attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
    ) -> OpStrategy:
        layouts = attrs.data_layout, attrs.result_layout
        if layouts == (DATA, DATA) and attrs.kernel_layout == KERNEL:
            return make(attrs, inputs, out_type, target)
        written = "conv2d_nchw_spatial_pack.cpu" if layouts == ("NHWC", "NHWC") else None

        def adapt(found: OpImplementation) -> OpImplementation | None:
            moves = layouts != (DATA, DATA) or target.is_gpu
            if moves and found.name not in (*_ANY_LAYOUT, written):
                return None
            return _adapted(found, named(attrs))

        plain = plain_inputs(attrs, inputs), plain_type(out_type, attrs.result_layout)
        return make(attrs, *plain, target).changed(adapt)

    strategy.__doc__ = make.__doc__
    return strategy


def named(attrs: Conv2DAttrs) -> str:
    """The layout in names of implementations: `nchwc` with blocks of any size, in the data or the result."""
    layouts = {attrs.data_layout, attrs.result_layout}
    if any(block_of(layout) > 1 for layout in layouts):
        return "nchwc"
    return "nhwc" if "NHWC" in layouts else "nchw"


def plain_inputs(attrs: Conv2DAttrs, inputs: Sequence[TensorType]) -> list[TensorType]:
    """The types in NCHW and OIHW."""
    data, weight = inputs
    return [plain_type(data, attrs.data_layout), permuted_type(weight, attrs.kernel_layout, KERNEL)]


def _adapted(found: OpImplementation, layout: str) -> OpImplementation:
    space, prepare = found.space, found.prepare

    def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, *config: Any) -> list[Any]:
        data, weight = inputs
        data = plain_view(data, attrs.data_layout)
        if prepare is None:
            weight = plain_weight(attrs, weight)
        (out,) = found.compute(_of_plain(attrs), [data, weight], plain_type(out_type, attrs.result_layout), *config)
        return [laid_out_view(out, attrs.result_layout)]

    def adapted_space(attrs: Any, inputs: Sequence[TensorType], out_type: Any, target: Target) -> Any:
        assert space is not None
        plain = plain_inputs(attrs, inputs), plain_type(out_type, attrs.result_layout)
        return space(_of_plain(attrs), *plain, target)

    def adapted_prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType], *config: Any) -> dict[int, Any]:
        assert prepare is not None
        (pack,) = prepare(_of_plain(attrs), plain_inputs(attrs, inputs), *config).values()
        return {1: lambda weight: pack(plain_weight(attrs, weight))}

    return replace(
        found, compute=compute, space=space and adapted_space, prepare=prepare and adapted_prepare,
        name=found.name.replace("nchw", layout),
    )


def _of_plain(attrs: Conv2DAttrs) -> Conv2DAttrs:
    """The attributes beside a weight that is read as OIHW: by those of its own layout it would be turned again."""
    return type(attrs).from_json({**attrs.to_json(), "kernel_layout": KERNEL})


def plain_weight(attrs: Conv2DAttrs, weight: Any) -> Any:
    """A TE tensor of the weight read as one of OIHW."""
    from tvm import te

    given = attrs.kernel_layout
    if given == KERNEL:
        return weight
    back = [KERNEL.index(axis) for axis in given]
    return te.compute(
        permuted(weight.shape, given, KERNEL), lambda *i: weight(*(i[n] for n in back)), name="permuted",
        attrs={VIEW: "permuted"},
    )
