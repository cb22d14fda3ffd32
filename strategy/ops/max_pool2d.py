"""max_pool2d: the largest element of each window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.expr import Expr, call
from strategy.generic_func import GenericFunc
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.window import four_sides, pair, windowed_extent, windows
from strategy.pattern import register_schedule, schedule_plain_cpu
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import require_number, require_rank
from strategy.types import TensorType, Type


class MaxPool2DAttrs(Attrs):
    """Attributes of max_pool2d. One number stands for both axes, or all sides."""

    pool_size: tuple[int, int] = field(description="Height and width of the window", lower=1)
    strides: tuple[int, int] = field((1, 1), "Steps of the window", lower=1)
    dilation: tuple[int, int] = field((1, 1), "Distance of the window's elements", lower=1)
    padding: tuple[int, int, int, int] = field((0, 0, 0, 0), "Top, left, bottom, right", lower=0)

    def __init__(self, **values: Any) -> None:
        for name in ("pool_size", "strides", "dilation"):
            if name in values:
                values[name] = pair(values[name])
        if "padding" in values:
            values["padding"] = four_sides(values["padding"])
        super().__init__(**values)


def max_pool2d_rel(types: Sequence[Type], attrs: Attrs, reporter: TypeReporter) -> bool:
    """[n, c, h, w] gives [n, c, number of windows down, across]."""
    assert isinstance(attrs, MaxPool2DAttrs)
    data = reporter.tensor(0)
    if data is None:
        return False
    require_rank(reporter, 0, data, 4, "[batch, channels, height, width]")
    require_number(reporter, 0, data)
    out = []
    for axis in range(2):
        extent = windowed_extent(
            data.shape[2 + axis], attrs.pool_size[axis], attrs.strides[axis], attrs.dilation[axis],
            attrs.padding[axis], attrs.padding[2 + axis],
        )  # fmt: skip
        reporter.check(extent >= 1, 0, f"is smaller than the window {attrs.pool_size} with its padding")
        # A window that lies in the padding alone would have no largest element.
        reach = (attrs.pool_size[axis] - 1) * attrs.dilation[axis]
        sides = max(attrs.padding[axis], attrs.padding[2 + axis])
        reporter.check(sides <= reach, 0, f"padding {attrs.padding} is wider than the window")
        out.append(extent)
    reporter.assign(1, TensorType((*data.shape[:2], *out), data.dtype))
    return True


register_op("max_pool2d").describe("The largest element of each window.").set_num_inputs(
    1
).add_argument("data", "Tensor", "[batch, channels, height, width]").set_attrs_type(
    MaxPool2DAttrs
).set_support_level(2).add_type_rel("MaxPool2D", max_pool2d_rel).set_attr(
    "TOpPattern", TOpPattern.kOutEWiseFusable
)


@register_compute("max_pool2d")
def compute_max_pool2d(attrs: MaxPool2DAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return [
        topi.nn.pool2d(
            inputs[0], list(attrs.pool_size), list(attrs.strides), list(attrs.dilation),
            list(attrs.padding), "max",
        )
    ]  # fmt: skip


@register_reference("max_pool2d")
def reference_max_pool2d(attrs: MaxPool2DAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data = widened(inputs[0])
    lowest = -np.inf if data.dtype.kind == "f" else np.iinfo(data.dtype).min
    view = windows(data, attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding, lowest)
    return view.max(axis=(-2, -1))


@register_shape_func("max_pool2d", False)
def max_pool2d_shape_func(
    attrs: MaxPool2DAttrs, inputs: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    n, c, *extents = inputs[0]
    out = (
        windowed_extent(
            extents[i], attrs.pool_size[i], attrs.strides[i], attrs.dilation[i],
            attrs.padding[i], attrs.padding[2 + i],
        )
        for i in range(2)
    )  # fmt: skip
    return [(n, c, *out)]


schedule_pool = GenericFunc("schedule_pool")
schedule_pool.register("cpu", schedule_plain_cpu)
register_schedule("max_pool2d", schedule_pool)


def max_pool2d(
    data: Expr,
    pool_size: int | tuple[int, int],
    strides: int | tuple[int, int] = (1, 1),
    dilation: int | tuple[int, int] = (1, 1),
    padding: int | tuple[int, ...] = (0, 0),
) -> Expr:
    """The largest element of each window; padding never is the largest.

    Args:
        data: [batch, channels, height, width].
        pool_size: height and width of the window.
        strides: steps of the window.
        dilation: distance of the window's elements.
        padding: one number, (vertical, horizontal), or (top, left, bottom, right).
    """
    return call(
        "max_pool2d", data, pool_size=pool_size, strides=strides, dilation=dilation, padding=padding
    )
