"""Operators of quantised ONNX models: integers with scales and zero points, and products of few bits."""
# Over 300 lines: a table of operators.

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx.helper

from plevel.onnx.image import windows
from plevel.onnx.node import OPERATORS, Node, constant, register
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.integer import subtract_point
from strategy.network.layer import number
from strategy.network.rewriter import extents

_BYTES = ("int8", "uint8")


def _point(value: Expr | None) -> int | None:
    """The zero point of a tensor, 0 without one; None where it is not constant, or there are several."""
    if value is None:
        return 0
    if not isinstance(value, Constant):
        return None
    first, *others = set(value.value.reshape(-1).tolist())
    return None if others else int(first)


def _widened(zero_point: Expr, shape: Sequence[int]) -> Expr:
    """Zero points in the dtype of sums, of a shape that broadcasts to theirs."""
    found = call("cast", zero_point, dtype="int32")
    return layer.reshape(found, () if math.prod(extents(zero_point)) == 1 else shape)


def _quantity(value: Expr | None, dtype: str) -> Constant:
    """A scale or zero points, 0 where there are none, with a number for each entry of an axis, or one for all."""
    found = np.zeros((), dtype) if value is None else constant(value, "a scale or zero point").astype(dtype)
    if found.ndim > 1:
        raise NetworkError("scales of blocks: plevel takes one scale, or one for each entry of an axis")
    return Constant(found.reshape(()) if found.size == 1 else found)


@register("QuantizeLinear", "com.microsoft.QuantizeLinear")
def _quantize(node: Node, x: Expr, scale: Expr, zero_point: Expr | None = None) -> Expr:
    dtype = _named_dtype(node) or "uint8" if zero_point is None else zero_point.tensor_type.dtype
    x = x if x.tensor_type.dtype == "float32" else call("cast", x, dtype="float32")  # as ONNX Runtime divides them
    if dtype not in _BYTES or not _is_plain(scale, zero_point):
        return _quantized_by_parts(node, x, scale, zero_point, dtype)
    given = _quantity(scale, "float32"), _quantity(zero_point, "int32")
    return call("quantize", x, *given, **_axis(node, given), out_dtype=dtype)


def _axis(node: Node, numbers: Sequence[Constant]) -> dict[str, int]:
    """The attribute of scales and zero points of an axis; none where there is one of each, whatever the file says."""
    return {"axis": node.get("axis", 1)} if any(number.value.ndim for number in numbers) else {}


def _is_plain(*numbers: Expr | None) -> bool:
    """Return whether scales and zero points are constant, of one axis at most: plevel has operators for them."""
    return all(v is None or (isinstance(v, Constant) and v.value.ndim < 2) for v in numbers)


def _spread(node: Node, value: Expr, x: Expr) -> Expr:
    """A scale or zero point, or those of an axis, or of blocks of it, in a shape that broadcasts to that of x."""
    whole, shape = extents(x), extents(value)
    if math.prod(shape) == 1:
        return layer.reshape(value, ())
    axis = node.get("axis", 1) % len(whole)
    if len(shape) == 1:
        return layer.reshape(value, (*shape, *(1,) * (len(whole) - 1 - axis)))
    each = call("repeat", value, repeats=node.require("block_size"), axis=axis)
    return layer.take_slice(each, axis, 0, whole[axis])


def _quantized_by_parts(node: Node, x: Expr, scale: Expr, zero_point: Expr | None, dtype: str) -> Expr:
    """A tensor as integers, with scales and zero points of any form, which may be computed at the call."""
    factor = scale if scale.tensor_type.dtype == "float32" else call("cast", scale, dtype="float32")
    found = call("round", call("divide", x, _spread(node, factor, x)))
    if zero_point is not None:
        found = call("add", found, call("cast", _spread(node, zero_point, x), dtype=x.tensor_type.dtype))
    limits = np.iinfo(dtype)
    return call("cast", layer.clip(found, limits.min, limits.max), dtype=dtype)


def _dequantized_by_parts(node: Node, x: Expr, scale: Expr, zero_point: Expr | None) -> Expr:
    """The numbers of integers, with scales and zero points of any form, in the dtype of the scales."""
    found = call("cast", x, dtype="int32")
    if zero_point is not None:
        found = call("subtract", found, call("cast", _spread(node, zero_point, x), dtype="int32"))
    return call("multiply", call("cast", found, dtype=scale.tensor_type.dtype), _spread(node, scale, x))


@register("DynamicQuantizeLinear")
def _dynamic_quantize(node: Node, x: Expr) -> tuple[Expr, Expr, Expr]:
    """Bytes whose scale spans the tensor's values and 0; 1 where all are 0, as ONNX Runtime has it."""
    zero, axes = number(0, x), tuple(range(len(extents(x))))
    least, most = (
        call(by, call(of, x, axis=axes, keepdims=False), zero) for by, of in (("minimum", "min"), ("maximum", "max"))
    )
    width = call("subtract", most, least)
    scale = call("where", call("equal", width, zero), number(1, x), call("divide", width, number(255, x)))
    place = call("round", call("divide", call("negative", least), scale))
    point = call("cast", layer.clip(place, 0, 255), dtype="uint8")
    return _quantized_by_parts(node, x, scale, point, "uint8"), scale, point


def _named_dtype(node: Node) -> str | None:
    """The dtype that the attribute `output_dtype` names, if it is given."""
    named = node.get("output_dtype", 0)
    return onnx.helper.tensor_dtype_to_np_dtype(named).name if named else None


@register("DequantizeLinear", "com.microsoft.DequantizeLinear")
def _dequantize(node: Node, x: Expr, scale: Expr, zero_point: Expr | None = None) -> Expr:
    if x.tensor_type.dtype in (*_BYTES, "int32") and _is_plain(scale, zero_point):
        given = _quantity(scale, "float32"), _quantity(zero_point, "int32")
        found: Expr = call("dequantize", x, *given, **_axis(node, given))
    else:
        found = _dequantized_by_parts(node, x, scale, zero_point)
    dtype = _named_dtype(node) or scale.tensor_type.dtype
    return found if found.tensor_type.dtype == dtype else call("cast", found, dtype=dtype)


@register("ConvInteger")
def _conv_integer(
    node: Node, x: Expr, weight: Expr, x_zero_point: Expr | None = None, w_zero_point: Expr | None = None
) -> Expr:
    rank = len(extents(x)) - 2
    if rank not in (1, 2):
        raise NetworkError(f"a convolution of integers of {rank} dimensions: plevel has one and two")
    of_data, of_weight = _point(x_zero_point), _point(w_zero_point)
    if of_weight is None:
        raise NetworkError("w_zero_point: several zero points, or not constant: quantize weights symmetrically")
    given = {n: tuple(v) if isinstance(v, list) else v for n, v in windows(node, x, weight).items()}
    given["kernel_zero_point"] = of_weight
    if rank == 1:
        (begin, end), step, distance = given["padding"], given["strides"], given["dilation"]
        given |= {"padding": (0, begin, 0, end), "strides": (1, *step), "dilation": (1, *distance)}
        x, weight = (layer.reshape(v, (*extents(v)[:2], 1, extents(v)[2])) for v in (x, weight))
    found = call("qconv2d", x, weight, **given, input_zero_point=of_data or 0)
    if of_data is None:
        assert x_zero_point is not None
        found = subtract_point(found, _widened(x_zero_point, ()), given)
    return layer.reshape(found, (*extents(found)[:2], *extents(found)[4 - rank :]))


@register("MatMulInteger")
def _matmul_integer(
    node: Node, x: Expr, y: Expr, x_zero_point: Expr | None = None, y_zero_point: Expr | None = None
) -> Expr:
    return layer.reshape(*_sums(x, y, x_zero_point, y_zero_point))


def _sums(
    x: Expr, y: Expr, x_zero_point: Expr | None, y_zero_point: Expr | None
) -> tuple[Expr, tuple[int, ...]]:
    """The product of integers as NumPy's `matmul`, in int32, and its shape; one with a matrix has all rows."""
    if len(extents(y)) == 2:
        return _sums_of_rows(x, y, x_zero_point, y_zero_point), (*extents(x)[:-1], extents(y)[-1])
    wide = []
    for value, zero_point in ((x, x_zero_point), (y, y_zero_point)):
        if zero_point is not None and math.prod(extents(zero_point)) != 1:
            raise NetworkError("zero points of rows or columns of several matrices: plevel takes one for all")
        each = call("cast", value, dtype="int32")
        wide.append(each if zero_point is None else call("subtract", each, _widened(zero_point, ())))
    product = layer.matmul(*wide)
    return product, extents(product)


def _sums_of_rows(x: Expr, y: Expr, x_zero_point: Expr | None, y_zero_point: Expr | None) -> Expr:
    """The product of all rows of x with a matrix of integers."""
    shape = extents(x)
    rows = layer.reshape(x, (math.prod(shape[:-1]), shape[-1]))
    of_rows, of_columns = _point(x_zero_point), _point(y_zero_point)
    found = call(
        "qdense", rows, layer.swap(y), input_zero_point=of_rows or 0, kernel_zero_point=of_columns or 0
    )
    if of_rows is None:
        assert x_zero_point is not None
        point = _widened(x_zero_point, (extents(rows)[0], 1))
        each = _less(call("cast", y, dtype="int32"), of_columns)
        columns = call("negative", call("sum", each, axis=(0,), keepdims=False))
        if extents(point):
            found = call("add", found, call("multiply", columns, point))
        else:  # a bias, which the product's kernel adds
            found = call("bias_add", found, call("multiply", columns, point), axis=1)
    if of_columns is None:
        assert y_zero_point is not None
        each = _less(call("cast", rows, dtype="int32"), of_rows)
        if of_rows is None and x_zero_point is not None:
            each = call("subtract", each, _widened(x_zero_point, (extents(rows)[0], 1)))
        sums = call("sum", each, axis=(1,), keepdims=True)
        found = call("subtract", found, call("multiply", sums, _widened(y_zero_point, (1, extents(y)[1]))))
    return found


def _less(x: Expr, by: int | None) -> Expr:
    return call("subtract", x, number(by, x)) if by else x


@register("QLinearConv")
def _qlinear_conv(
    node: Node, x: Expr, x_scale: Expr, x_zero_point: Expr, weight: Expr, w_scale: Expr, w_zero_point: Expr,
    y_scale: Expr, y_zero_point: Expr, bias: Expr | None = None,
) -> Expr:
    found = _conv_integer(node, x, weight, x_zero_point, w_zero_point)
    found = found if bias is None else layer.add_bias(found, bias)
    return _requantized(found, (x_scale, w_scale), y_scale, y_zero_point, axis=1)


@register("QLinearMatMul")
def _qlinear_matmul(
    node: Node, x: Expr, x_scale: Expr, x_zero_point: Expr, y: Expr, y_scale: Expr, y_zero_point: Expr,
    out_scale: Expr, out_zero_point: Expr,
) -> Expr:
    if any(constant(scale, "a scale").size > 1 for scale in (x_scale, out_scale)):
        raise NetworkError("scales of rows: plevel takes one of the data, one of the output, one of each column of b")
    sums, shape = _sums(x, y, x_zero_point, y_zero_point)
    return layer.reshape(_requantized(sums, (x_scale, y_scale), out_scale, out_zero_point, axis=-1), shape)


def _requantized(sums: Expr, factors: Sequence[Expr], scale: Expr, zero_point: Expr, axis: int) -> Expr:
    """Sums of products of integers, whose scales are `factors`, in the scale and dtype of the output."""
    of_sums = math.prod(_quantity(factor, "float32").value for factor in factors)
    given = Constant(np.asarray(of_sums)), _quantity(None, "int32"), _quantity(scale, "float32")
    dtype = zero_point.tensor_type.dtype
    return call("requantize", sums, *given, _quantity(zero_point, "int32"), axis=axis, out_dtype=dtype)


def _by_numbers(name: str, tensors: int) -> None:
    """Register an operator of ONNX Runtime that quantises what another one makes of the numbers of its tensors.

    Each tensor has its scale and its zero point behind it, and so has the result, behind the tensors.
    """

    def make(node: Node, *given: Expr | None) -> Expr:
        inputs = [_dequantized(*given[i : i + 3]) for i in range(0, 3 * tensors, 3)]
        return _requantized_number(OPERATORS[name](node, *inputs), *given[3 * tensors :])

    OPERATORS[f"com.microsoft.QLinear{name}"] = make


for _name, _tensors in {"Add": 2, "Mul": 2, "Sigmoid": 1, "LeakyRelu": 1}.items():
    _by_numbers(_name, _tensors)


def _dequantized(x: Expr | None, scale: Expr | None, zero_point: Expr | None = None) -> Expr:
    if x is None or scale is None:
        raise NetworkError("a tensor or its scale is missing")
    return call("dequantize", x, _quantity(scale, "float32"), _quantity(zero_point, "int32"))


def _requantized_number(x: Expr, scale: Expr | None, zero_point: Expr | None = None) -> Expr:
    if scale is None:
        raise NetworkError("the scale of the output is missing")
    dtype = "uint8" if zero_point is None else zero_point.tensor_type.dtype
    return call("quantize", x, _quantity(scale, "float32"), _quantity(zero_point, "int32"), out_dtype=dtype)


@register("com.microsoft.QLinearConcat")
def _qlinear_concat(node: Node, scale: Expr, zero_point: Expr, *given: Expr) -> Expr:
    parts = [_dequantized(*given[i : i + 3]) for i in range(0, len(given), 3)]
    return _requantized_number(layer.concatenate(parts, node.get("axis")), scale, zero_point)


@register("com.microsoft.QLinearGlobalAveragePool", "com.microsoft.QLinearAveragePool")
def _qlinear_pool(node: Node, x: Expr, x_scale: Expr, x_zero_point: Expr | None, *of_y: Expr | None) -> Expr:
    if node.get("channels_last", 0):
        raise NetworkError("channels_last = 1: export the model with 0")
    pool = OPERATORS["GlobalAveragePool" if node.get("kernel_shape") is None else "AveragePool"]
    return _requantized_number(pool(node, _dequantized(x, x_scale, x_zero_point)), *of_y)


@register("com.microsoft.QGemm")
def _qgemm(
    node: Node, x: Expr, x_scale: Expr, x_zero_point: Expr, y: Expr, y_scale: Expr, y_zero_point: Expr,
    bias: Expr | None = None, out_scale: Expr | None = None, out_zero_point: Expr | None = None,
) -> Expr:
    if node.get("alpha", 1.0) != 1:
        raise NetworkError(f"alpha = {node.get('alpha'):g}: plevel has 1")
    x, y = (layer.swap(v) if node.get(f"trans{n}", 0) else v for v, n in ((x, "A"), (y, "B")))
    sums = _sums_of_rows(x, y, x_zero_point, y_zero_point)
    if bias is not None:
        sums = layer.add_bias(sums, bias)
    if out_scale is not None and out_zero_point is not None:
        return _requantized(sums, (x_scale, y_scale), out_scale, out_zero_point, axis=-1)
    factor = math.prod(_quantity(v, "float32").value for v in (x_scale, y_scale))
    numbers = call("cast", sums, dtype="float32")
    return call("multiply", numbers, Constant(np.asarray(factor, np.float32)))


@register("com.microsoft.MatMulIntegerToFloat")
def _matmul_integer_to_float(
    node: Node, x: Expr, y: Expr, x_scale: Expr, y_scale: Expr, x_zero_point: Expr | None = None,
    y_zero_point: Expr | None = None, bias: Expr | None = None,
) -> Expr:
    """The product of integers times the scale of the data, and that of the weight or of each of its columns."""
    if math.prod(extents(x_scale)) != 1:
        raise NetworkError("scales of rows: plevel takes one of the data, one of the weight or of each of its columns")
    sums, shape = _sums(x, y, x_zero_point, y_zero_point)
    columns = () if math.prod(extents(y_scale)) == 1 else (shape[-1],)
    factor = call("multiply", layer.reshape(x_scale, ()), layer.reshape(y_scale, columns))
    found: Expr = call("multiply", call("cast", sums, dtype=factor.tensor_type.dtype), factor)
    if bias is not None:
        found = layer.add_bias(found, bias) if len(extents(found)) == 2 else call("add", found, bias)
    return layer.reshape(found, shape)


@register("com.microsoft.DynamicQuantizeMatMul")
def _dynamic_quantize_matmul(
    node: Node, x: Expr, y: Expr, y_scale: Expr, y_zero_point: Expr | None = None, bias: Expr | None = None
) -> Expr:
    numbers, scale, point = _dynamic_quantize(node, x)
    found: Expr = _matmul_integer_to_float(node, numbers, y, scale, y_scale, point, y_zero_point, bias)
    return found


@register("com.microsoft.QLinearSoftmax")
def _qlinear_softmax(node: Node, x: Expr, scale: Expr, zero_point: Expr | None, *of_y: Expr | None) -> Expr:
    rank = len(extents(x))
    axis = node.get("axis", -1) % rank
    if node.get("opset", 13) < 13 and axis != rank - 1:
        raise NetworkError("a softmax of several axes together: export the model with an operator set of 13 or later")
    return _requantized_number(call("softmax", _dequantized(x, scale, zero_point), axis=axis), *of_y)


@register("com.microsoft.QLinearWhere")
def _qlinear_where(node: Node, condition: Expr, *given: Expr | None) -> Expr:
    x, y = (_dequantized(*given[i : i + 3]) for i in (0, 3))
    return _requantized_number(call("where", condition, x, y), *given[6:])


@register("com.microsoft.MatMulNBits")
def _matmul_nbits(
    node: Node, x: Expr, weight: Expr, scales: Expr, zero_points: Expr | None = None, *more: Expr | None
) -> Expr:
    size, k, n = (node.require(name) for name in ("block_size", "K", "N"))
    bits = node.get("bits", 4)
    if bits not in (4, 8):
        raise NetworkError(f"bits = {bits}: plevel has 4 and 8")
    group, bias = (*more, None, None)[:2]
    if group is not None:
        raise NetworkError("it has g_idx: quantize without reordering along k")
    shape, blocks = extents(x), -(-k // size)
    rows, scales = layer.reshape(x, (math.prod(shape[:-1]), k)), layer.reshape(scales, (n, blocks))
    weight, dtype = layer.reshape(weight, (n, blocks, size * bits // 8)), x.tensor_type.dtype
    attrs = {"bits": bits, "block_size": size, "accuracy_level": 4 if node.get("accuracy_level", 0) == 4 else 0}
    if zero_points is None:
        found: Expr = call("matmul_nbits", rows, weight, scales, **attrs)
    else:
        # The difference of a block's own zero point from the usual one is taken from the block's sum: it may be
        # far smaller than its operands, so in float32, and of the data as the product rounds them.
        points, factors = constant(zero_points, "zero_points"), constant(scales, "scales").astype(np.float32)
        if points.dtype == np.uint8:
            parts = points.reshape(n, -1)
            unpacked = parts if bits == 8 else np.stack([parts & 15, parts >> 4], -1).reshape(n, -1)
            points = unpacked[:, :blocks]
        share = (points.reshape(n, blocks).astype(np.float32) - 2 ** (bits - 1)) * factors
        rows = rows if dtype == "float32" else call("cast", rows, dtype="float32")
        whole = call("pad", rows, pad_width=((0, 0), (0, blocks * size - k))) if k % size else rows
        ones = np.full((1, 1, size * bits // 8), 0x99 if bits == 4 else 0x81, np.uint8)
        sums = call(
            "matmul_nbits", layer.reshape(whole, (-1, size)), Constant(ones), Constant(np.ones((1, 1), np.float32)),
            **attrs,
        )
        found = call("matmul_nbits", rows, weight, Constant(factors), **attrs)
        found = call("subtract", found, call("dense", layer.reshape(sums, (-1, blocks)), Constant(share)))
        found = found if dtype == "float32" else call("cast", found, dtype=dtype)
    if bias is not None:
        found = layer.add_bias(found, bias)
    return layer.reshape(found, (*shape[:-1], n))
