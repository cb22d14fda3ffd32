"""`dense`: data[m, k] · weight[n, k]ᵀ → [m, n], with seven implementations on CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from strategy.attrs import Attrs, field
from strategy.condition import SpecializedCondition
from strategy.cpu.dot import plevel_of
from strategy.expr import Call, Expr, call
from strategy.generic_func import override_native_generic_func
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_flops,
    register_op,
    register_reference,
    register_strategy,
)
from strategy.op_strategy import OpStrategy
from strategy.ops.dense import amx, cblas, dot, gemv, large_m, nopack, pack
from strategy.target import Target
from strategy.types import Dim, TensorType, Type

_FLOATS = ("float32", "float64", "float16", "bfloat16")


class DenseAttrs(Attrs):
    """Attributes of `dense`."""

    units: int | None = field(None, "Number of output features; default: that of the weight", lower=1)
    out_dtype: str | None = field(None, "Dtype of the output; default: that of the data", choices=_FLOATS)


def dense(data: Expr, weight: Expr, *, units: int | None = None, out_dtype: str | None = None) -> Call:
    """data[m, k] · weight[n, k]ᵀ → [m, n], accumulated in float32 (float64 for float64).

    Args:
        units: n, where the weight's type is to be inferred from it.
        out_dtype: dtype of the result; default: that of the data.
    """
    return call("dense", data, weight, units=units, out_dtype=out_dtype)


def _dense_rel(types: Sequence[Type], attrs: Any, reporter: TypeReporter) -> bool:
    data, weight = reporter.tensor(0), reporter.tensor(1)
    if data is None:
        return False
    reporter.check(data.ndim == 2, 0, "it must have 2 dimensions [m, k]")
    reporter.check(data.dtype in _FLOATS, 0, f"its dtype must be one of {', '.join(_FLOATS)}")
    if weight is None:
        if attrs.units is None:
            return False
        weight = TensorType([attrs.units, data.shape[1]], data.dtype)
        reporter.assign(1, weight)
    reporter.check(weight.ndim == 2, 1, "it must have 2 dimensions [n, k]")
    (m, k), (n, weight_k) = data.shape, weight.shape
    reporter.check(weight_k == k, 1, f"its last dimension must be that of the data, {k.value or k}")
    reporter.check(weight.dtype == data.dtype, 1, f"its dtype must be that of the data, {data.dtype}")
    for index, dim in ((0, m), (0, k), (1, n)):
        reporter.check(dim >= 1, index, "no dimension may be empty")
    if attrs.units is not None:
        reporter.check(n == attrs.units, 1, f"its first dimension must be units = {attrs.units}")
    reporter.assign(2, TensorType([m, n], attrs.out_dtype or data.dtype))
    return True


(
    register_op("dense")
    .describe("Applies a linear transformation: data · weightᵀ.")
    .add_argument("data", "Tensor", "[m, k]")
    .add_argument("weight", "Tensor", "[n, k]")
    .set_attrs_type(DenseAttrs)
    .set_support_level(1)
    .add_type_rel("Dense", _dense_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"data": "float32[1,19]", "weight": "float32[5,19]"})
    .example({"data": "float32[3,19]", "weight": "float32[5,19]"})
    .example({"data": "float32[17,19]", "weight": "float32[5,19]"})
    .example({"data": "float16[64,32]", "weight": "float16[48,32]"})
    .example({"data": "bfloat16[13,30]", "weight": "bfloat16[37,30]"})
)


def dense_reference(attrs: DenseAttrs, inputs: Sequence[Any]) -> Any:
    """NumPy's answer in float64."""
    import numpy as np

    data, weight = (np.asarray(x, dtype=np.float64) for x in inputs)
    return data @ weight.T


def dense_flops(attrs: DenseAttrs, inputs: Sequence[TensorType], out_type: TensorType) -> int:
    """One multiplication and one addition per element of the product."""
    return 2 * out_type.size * int(inputs[0].shape[1])


@override_native_generic_func("dense_strategy")
def dense_strategy(
    attrs: DenseAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The implementations for processors."""
    strategy = OpStrategy()
    m = inputs[0].shape[0]
    blocked = large_m.pays(inputs, target)
    level = _Plevels.of(m, inputs[0].dtype, blocked=blocked)
    strategy.add_implementation(
        nopack.compute, nopack.schedule, "dense_nopack.cpu", 5, space=nopack.space, varying_plevel=level.in_place
    )
    strategy.add_implementation(
        pack.compute, pack.schedule, "dense_pack.cpu", 10, space=pack.space, prepare=pack.prepare
    )
    with SpecializedCondition(m > 16):
        strategy.add_implementation(
            large_m.compute, large_m.schedule, "dense_large_m.cpu", 12 if blocked else 9,
            version=2, space=large_m.space, prepare=large_m.prepare,
        )
    with SpecializedCondition(m == 1):
        strategy.add_implementation(
            gemv.compute, gemv.schedule, "dense_gemv.cpu", 12, space=gemv.space, prepare=pack.prepare
        )
    if (instruction := dot.dot_of(inputs, target)) is not None:
        dot.add(strategy, instruction, "dense_dot.cpu", plevel_of(target, inputs[0].dtype, 14))
    dot.add_matrix(strategy, inputs, "dense_mmla.cpu", target)
    if (product := amx.product_of(inputs, target)) is not None:
        amx.add(strategy, product, "dense_amx.cpu", 18)
    if "cblas" in target.libs and inputs[0].dtype == out_type.dtype == "float32":
        strategy.add_implementation(
            cblas.compute, cblas.schedule, "dense_cblas.cpu", level.library, library="cblas",
            varying_plevel=_LIBRARY,
        )
    return strategy


_LIBRARY = 15


class _Plevels(NamedTuple):
    """Plevels that depend on m.

    `library` is that of OpenBLAS where the weight is constant; `in_place` that of `dense_nopack` where it is not.
    """

    library: int
    in_place: int

    @classmethod
    def of(cls, m: Dim, dtype: str, *, blocked: bool) -> _Plevels:
        """Over few rows, packing the weight takes a large part of the time; OpenBLAS packs the data too, at each call.

        Many rows pay for it where sums are so long that they are `blocked`. Of one row it packs nothing, but reads the
        weight in place, as many rows of it at a time as there are sums: no faster than a packed one is read in order.
        """
        if not m.is_constant or dtype not in ("float32", "float64"):
            return cls(_LIBRARY, 5)
        rows = int(m)
        library = _LIBRARY if rows > 512 and blocked else 8
        if 1 < rows <= 32:
            return cls(library, _LIBRARY + 1)
        return cls(library, 13 if rows <= 64 else 5)


register_reference("dense", dense_reference)
register_flops("dense", dense_flops)
register_strategy("dense", dense_strategy)
