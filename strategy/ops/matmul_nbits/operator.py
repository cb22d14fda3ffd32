"""matmul_nbits: data[m, k] · weightᵀ, with a weight of 4 or 8 bits and a scale for each block of it along k.

As MatMulNBits of ONNX Runtime, without zero points of its own: a number q of b bits stands for q - 2^(b - 1). With
`accuracy_level` 4 the data are rounded to 8 bits, too, with a scale for each block, so that products are of integers.
"""

from __future__ import annotations

import math
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
from strategy.ops.dense import dense_flops
from strategy.order import largest
from strategy.pattern import in_float32, register_reduce_schedule
from strategy.shape_func import register_shape_func
from strategy.type_relation import require_dtype_of, require_nonempty, require_rank, require_shape
from strategy.types import TensorType, Type

_FLOATS = ("float32", "float16", "bfloat16")
LARGEST = 127  # of 8 bits, by which `accuracy_level` 4 rounds the largest number of a block


class MatMulNBitsAttrs(Attrs):
    """Attributes of matmul_nbits."""

    bits: int = field(4, "Bits of a number of the weight", choices=(4, 8))
    # Sums of a block's products of two bytes fit into int32.
    block_size: int = field(32, "Numbers along k that share a scale, an even number", lower=2, upper=2**17)
    accuracy_level: int = field(0, "0: the data as they are; 4: rounded to 8 bits for each block", choices=(0, 4))

    @property
    def zero_point(self) -> int:
        """The number that stands for 0."""
        return int(2 ** (self.bits - 1))


def matmul_nbits_rel(types: Sequence[Type], attrs: MatMulNBitsAttrs, reporter: TypeReporter) -> bool:
    """[m, k] by [n, blocks, bytes] gives [m, n]; the last block may be longer than what is left of k."""
    data, weight, scales = (reporter.tensor(i) for i in range(3))
    reporter.check(attrs.block_size % 2 == 0, 1, f"block_size = {attrs.block_size} is odd: give an even one")
    if data is None or weight is None:
        return False
    require_rank(reporter, 0, data, 2, "[m, k]")
    reporter.check(data.dtype in _FLOATS, 0, f"its dtype must be one of {', '.join(_FLOATS)}")
    require_rank(reporter, 1, weight, 3, "[n, blocks, bytes of a block]")
    reporter.check(weight.dtype == "uint8", 1, "its dtype must be uint8, with the first number in the lowest bits")
    for index, given in enumerate((data, weight)):
        require_nonempty(reporter, index, given)
    (m, k), (n, blocks, size) = data.shape, weight.shape
    wanted = attrs.block_size * attrs.bits // 8
    reporter.check(size == wanted, 1, f"a block of {attrs.block_size} numbers of {attrs.bits} bits has {wanted} bytes")
    fits = blocks == (k + attrs.block_size - 1) // attrs.block_size
    reporter.check(fits, 1, f"k = {k} of {reporter.name(0)} has another number of blocks of {attrs.block_size}")
    if scales is None:
        reporter.assign(2, TensorType([n, blocks], data.dtype))
    else:
        require_dtype_of(reporter, 2, 0)
        require_shape(reporter, 2, scales.shape, (n, blocks), f"expected a scale for each block, [{n}, {blocks}]")
    reporter.assign(3, TensorType([m, n], data.dtype))
    return True


(
    register_op("matmul_nbits")
    .describe("data · weightᵀ with a weight of 4 or 8 bits, scaled by blocks, as ONNX Runtime's MatMulNBits.")
    .add_argument("data", "Tensor", "[m, k]")
    .add_argument(
        "weight", "Tensor", "uint8 [n, blocks, block_size · bits / 8]: the first in the lowest bits; 2^(bits - 1) is 0"
    )
    .add_argument("scales", "Tensor", "[n, blocks], of the dtype of the data")
    .set_attrs_type(MatMulNBitsAttrs)
    .set_support_level(11)
    .add_type_rel("MatMulNBits", matmul_nbits_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"data": "float32[1,32]", "weight": "uint8[5,2,8]", "scales": "float32[5,2]"}, {"block_size": 16})
    .example({"data": "float16[2,32]", "weight": "uint8[5,1,16]", "scales": "float16[5,1]"})
    .example(
        {"data": "float32[3,19]", "weight": "uint8[21,3,8]", "scales": "float32[21,3]"}, {"bits": 8, "block_size": 8}
    )
    .example(
        {"data": "float32[7,32]", "weight": "uint8[21,2,16]", "scales": "float32[21,2]"},
        {"bits": 8, "block_size": 16, "accuracy_level": 4},
    )
)


@register_compute("matmul_nbits")
@in_float32
def compute_matmul_nbits(attrs: MatMulNBitsAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    from tvm import te, tirx

    data, weight, scales = inputs
    (m, k), (n, blocks, _) = data.shape, weight.shape
    size, bits = attrs.block_size, attrs.bits
    if attrs.accuracy_level:
        r = te.reduce_axis((0, size), name="r")
        zero = tirx.const(0, data.dtype)

        def magnitude(i: Any, b: Any) -> Any:
            place = b * size + r
            number = tirx.abs(data[i, tirx.min(place, k - 1)])
            return largest()(tirx.if_then_else(place < k, number, zero), axis=r)

        sizes = te.compute((m, blocks), magnitude, name="sizes")
        steps = te.compute((m, blocks), lambda i, b: step_of(sizes[i, b]), name="steps")
        given = data
        data = te.compute(
            (m, k), lambda i, r: rounded(given[i, r], steps[i, r // size]) * steps[i, r // size], name="rounded"
        )
    r = te.reduce_axis((0, k), name="r")

    def term(i: Any, j: Any) -> Any:
        place = r % size * bits
        q = (weight[j, r // size, place // 8].astype("int32") >> place % 8) & (2**bits - 1)
        return te.sum(data[i, r] * (q - attrs.zero_point).astype(data.dtype) * scales[j, r // size], axis=r)

    return [te.compute((m, n), term, name="matmul_nbits")]


def step_of(magnitude: Any) -> Any:
    """The scale of a block's data by its largest absolute value; NaN of one that is not finite."""
    from tvm import tirx

    step = magnitude / tirx.const(LARGEST, "float32")
    return tirx.Select(step < tirx.const(math.inf, "float32"), step, tirx.const(math.nan, "float32"))


def rounded(number: Any, step: Any) -> Any:
    """A number in units of its block's scale, as a whole number; NaN is the least."""
    from tvm import tirx

    low, high = (tirx.const(bound, "float32") for bound in (-LARGEST, LARGEST))
    found = tirx.nearbyint(number / step)
    return tirx.Select(found > low, tirx.min(found, high), low)


@register_reference("matmul_nbits")
def reference_matmul_nbits(attrs: MatMulNBitsAttrs, inputs: Sequence[Any]) -> Any:
    """In float64; what is rounded is rounded in float32, as kernels do."""
    import numpy as np

    data, weight, scales = map(np.asarray, inputs)
    m, k = data.shape
    numbers = weight if attrs.bits == 8 else np.stack([weight & 15, weight >> 4], -1)
    signed = numbers.reshape(*weight.shape[:2], -1).astype(np.float64) - attrs.zero_point
    wide = np.zeros((m, signed[0].size), np.float32)
    wide[:, :k] = data
    blocks = wide.reshape(m, -1, attrs.block_size)
    if attrs.accuracy_level:
        with np.errstate(all="ignore"):
            step = abs(blocks).max(-1, keepdims=True) / np.float32(LARGEST)
            step = np.where(step < np.inf, step, np.float32(np.nan))
            found = np.rint(blocks / step)
            blocks = np.where(found > -LARGEST, np.minimum(found, LARGEST), -LARGEST).astype(np.float64) * step
    product = signed * scales.astype(np.float64)[..., None]
    # Without what the last block has beyond k: 0 times an infinite scale would be NaN.
    return blocks.reshape(m, -1)[:, :k].astype(np.float64) @ product.reshape(len(product), -1)[:, :k].T


register_flops("matmul_nbits", dense_flops)
register_shape_func("matmul_nbits", False, lambda attrs, inputs: [(inputs[0][0], inputs[1][0])])
register_reduce_schedule("matmul_nbits")


matmul_nbits = caller("matmul_nbits")
