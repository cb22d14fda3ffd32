"""qdense: data[m, k] · weight[n, k]ᵀ of 8-bit integers, less their zero points, summed in int32.

As Relay's qnn.dense, whose zero points are attributes here; the scales belong to the `dequantize` or `requantize`
that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_flops,
    register_op,
    register_reference,
)
from strategy.op_strategy import OpStrategy
from strategy.ops.dense import amx, dense_flops, dot
from strategy.pattern import register_cpu_implementations, register_reduce_schedule
from strategy.shape_func import register_shape_func
from strategy.target import Target
from strategy.type_relation import require_nonempty, require_rank
from strategy.types import TensorType, Type

_NARROW = ("int8", "uint8")


class QDenseAttrs(Attrs):
    """Attributes of qdense."""

    input_zero_point: int = field(0, "The value of the data that stands for zero", lower=-128, upper=255)
    kernel_zero_point: int = field(0, "The value of the weight that stands for zero", lower=-128, upper=255)
    units: int | None = field(None, "Number of output features; default: that of the weight", lower=1)


def qdense_rel(types: Sequence[Type], attrs: QDenseAttrs, reporter: TypeReporter) -> bool:
    """[m, k] by [n, k] gives int32[m, n]; a weight without a type is int8[units, k]."""
    data, weight = reporter.tensor(0), reporter.tensor(1)
    if data is None:
        return False
    require_rank(reporter, 0, data, 2, "[m, k]")
    if weight is None:
        if attrs.units is None:
            return False
        weight = TensorType([attrs.units, data.shape[1]], "int8")
        reporter.assign(1, weight)
    require_rank(reporter, 1, weight, 2, "[n, k]")
    for index, given in enumerate((data, weight)):
        reporter.check(given.dtype in _NARROW, index, f"its dtype must be one of {', '.join(_NARROW)}")
        require_nonempty(reporter, index, given)
    reporter.check(weight.shape[1] == data.shape[1], 1, f"its last dimension must be that of the data, {data}")
    if attrs.units is not None:
        reporter.check(weight.shape[0] == attrs.units, 1, f"its first dimension must be units = {attrs.units}")
    reporter.assign(2, TensorType([data.shape[0], weight.shape[0]], "int32"))
    return True


(
    register_op("qdense")
    .describe("(data - zero point) · (weight - zero point)ᵀ of 8-bit integers, summed in int32.")
    .add_argument("data", "Tensor", "int8 or uint8 [m, k]")
    .add_argument("weight", "Tensor", "int8 or uint8 [n, k]")
    .set_attrs_type(QDenseAttrs)
    .set_support_level(11)
    .add_type_rel("QDense", qdense_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"data": "uint8[7,36]", "weight": "int8[21,36]"}, {"input_zero_point": 3})
    .example({"data": "int8[3,19]", "weight": "int8[5,19]"}, {"kernel_zero_point": -2})
)


@register_compute("qdense")
def compute_qdense(attrs: QDenseAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    from tvm import te

    data, weight = inputs
    k = te.reduce_axis((0, data.shape[1]), name="k")

    def term(i: Any, j: Any) -> Any:
        number = data[i, k].astype("int32") - attrs.input_zero_point
        return te.sum(number * (weight[j, k].astype("int32") - attrs.kernel_zero_point), axis=k)

    return [te.compute((data.shape[0], weight.shape[0]), term, name="qdense")]


@register_reference("qdense")
def reference_qdense(attrs: QDenseAttrs, inputs: Sequence[Any]) -> Any:
    """In float64, which is exact and faster than NumPy's product of integers."""
    import numpy as np

    data, weight = (np.asarray(x, np.float64) for x in inputs)
    return ((data - attrs.input_zero_point) @ (weight - attrs.kernel_zero_point).T).astype(np.int64).astype(np.int32)


def _add_products(
    strategy: OpStrategy, attrs: QDenseAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> None:
    instruction = dot.dot_of(inputs, target)
    if instruction is not None:
        dot.add(strategy, instruction, "qdense_dot.cpu", 14)
    dot.add_matrix(strategy, inputs, "qdense_mmla.cpu", target)
    product = amx.product_of(inputs, target)
    if product is not None:
        # One row is bound by memory, and needs no copy there.
        is_row = (inputs[0].shape[0] == 1).decide()
        amx.add(strategy, product, "qdense_amx.cpu", 13 if is_row else 18)


@register_shape_func("qdense", False)
def qdense_shape_func(attrs: QDenseAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [(inputs[0][0], inputs[1][0])]


register_flops("qdense", dense_flops)
register_reduce_schedule("qdense")
register_cpu_implementations("qdense", _add_products)


qdense = caller("qdense")
