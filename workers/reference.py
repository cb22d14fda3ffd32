"""Correctness of kernels: inputs drawn from a seed, NumPy's outputs for them, and tolerances."""
# Over 300 lines: a tolerance needs references of parts of the workload, and a comparison both.

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategy.op import OpError, TOpPattern, get_op
from strategy.types import TensorType, TupleType
from strategy.workload import EpilogueStep, Workload

Array = NDArray[Any]
Tolerance = float | Array
# Operators whose results have about the error of their operand, relative to their size.
_EVEN = frozenset(
    "abs add bias_add gelu hardswish leaky_relu maximum minimum mish multiply negative relu silu subtract".split()
)
# Even ones that subtract numbers of about the size of their operand, as where a gelu is nearly 0.
_CANCELLING = frozenset({"gelu", "hardswish", "geglu"})
# Those whose terms are summed in float32, or wider, and whose result alone is rounded.
_CONVOLUTIONS = frozenset("conv2d conv2d_backward_data conv2d_backward_weight conv2d_transpose".split())
_SUMS = _CONVOLUTIONS | frozenset(
    "adaptive_avg_pool2d avg_pool2d batch_matmul collapse_sum_like cumsum dense global_avg_pool2d grouped_dense "
    "matmul_nbits mean sum".split()
)
_WEIGHTED = frozenset({"attention", "attention_bias"})  # sums of products with numbers that may be rounded, too
_LONG = 1 << 14  # terms, of which roundings to float16 may hide one
_PEAKS = 4  # of a row (`register_peaks`)
_HIGHEST = 1e4  # of them, of which float16 has the numbers
_COARSE = 8  # times float32's error have sums of matrix units, which drop bits
_FEW = 4  # outputs, of which the size of all is not known well
_PIECE = 1 << 15  # elements that are compared at once: their errors stay in a core's cache


class WrongAnswerError(Exception):
    """An output differs from the reference, or an input was written to."""


def random_inputs(workload: Workload, seed: int) -> dict[str, Array]:
    """The inputs by name, the epilogue's included, equal for all candidates of a workload.

    Real numbers are uniform in -1 … 1, integers small enough that sums of products do not overflow. Those of 8 bits
    whose products are summed in more are of their whole range. Those of an operator with the attribute `TFactors`,
    which multiplies all of them, are such that the products are neither 0 nor infinite, however many they are. The
    input that `TEnds` names has the ends of groups of the first input's rows. With `FPeaks` every second row of narrow
    floats has a few large elements, the last one among them: a result without one of these is no rounding.
    """
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    factors, ends = workload.operator.get_attr("TFactors", False), workload.operator.get_attr("TEnds")
    product = workload.out_type
    is_product = workload.operator.get_attr("TOpPattern") == TOpPattern.kOutEWiseFusable
    for given in workload.all_inputs:
        if given.name not in found:
            kind, own = given.tensor, given in workload.inputs
            result = product if isinstance(product, TensorType) else kind
            whole = is_product and own and numpy_dtype(result.dtype).itemsize > 1
            if own and given.name == ends:
                found[given.name] = _ends(kind, workload.inputs[0].tensor, rng)
            else:
                found[given.name] = _factors(kind, result, rng) if own and factors else _random(kind, rng, whole)
    if found[workload.inputs[0].name].size and _has_peaks(workload):
        _raise_peaks(workload, found, rng)
    return found


def _has_peaks(workload: Workload) -> bool:
    """Return whether sums of narrow floats have a few large terms, of which no function of a sum may be infinite."""
    if workload.operator.get_attr("FPeaks") is None:
        return False
    is_sum = workload.operator.get_attr("TOpPattern") == TOpPattern.kCommReduce
    # A square is infinite, too: float16 has none of what a sum of a few thousand terms then is.
    grows = is_sum and not all(_is_even(step) and step.operands.count(None) == 1 for step in workload.epilogue)
    return epsilon(workload.inputs[0].tensor.dtype) > epsilon("float32") and not grows


def _raise_peaks(workload: Workload, inputs: Mapping[str, Array], rng: np.random.Generator) -> None:
    """Raise a few elements of every second row, the last one among them."""
    data = inputs[workload.inputs[0].name]
    peaks = workload.operator.get_attr("FPeaks")
    rows, height, shift = peaks(workload.attr_node, [inputs[i.name] for i in workload.inputs])
    some = rows[..., ::2, :] if rows.ndim > 1 else rows
    if shift:
        some[...] = some.astype(np.float32) + np.float32(shift)
    places = rng.integers(0, some.shape[-1], (*some.shape[:-1], _PEAKS))
    places[..., 0] = some.shape[-1] - 1
    height = np.clip(height, -_HIGHEST, _HIGHEST)
    np.put_along_axis(some, places, np.asarray(height).astype(data.dtype), axis=-1)


def _random(kind: TensorType, rng: np.random.Generator, whole: bool) -> Array:
    """Numbers of a type; integers of 8 bits of their `whole` range, if so."""
    shape, dtype = kind.concrete_shape, numpy_dtype(kind.dtype)
    if kind.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.dtype.startswith(("int", "uint")):
        if whole and dtype.itemsize == 1:
            bounds = np.iinfo(dtype)
            return rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
        return rng.integers(0 if kind.dtype.startswith("u") else -8, 9, shape).astype(dtype)
    if kind.dtype == "float64":
        return rng.uniform(-1, 1, shape)
    return (rng.random(shape, dtype=np.float32) * 2 - 1).astype(dtype)


def _ends(kind: TensorType, grouped: TensorType, rng: np.random.Generator) -> Array:
    """The ends of groups that together have all rows: few rows are each of another group, as a token's experts are."""
    groups, rows = kind.concrete_shape[0], grouped.concrete_shape[0]
    chosen = np.concatenate([rng.permutation(groups)[:rows], rng.integers(0, groups, max(rows - groups, 0))])
    return np.cumsum(np.bincount(chosen, minlength=groups)).astype(kind.dtype)


def _factors(kind: TensorType, product: TensorType, rng: np.random.Generator) -> Array:
    """Odd integers, of which no product is 0, or numbers of both signs, the nearer to 1 the more they are.

    Integers whose product is a real number are 1 or -1, but for four: float16 has all of their products.
    """
    shape, dtype = kind.concrete_shape, numpy_dtype(kind.dtype)
    unsigned = any(k.dtype.startswith("u") for k in (kind, product))
    if not epsilon(product.dtype):
        return (rng.integers(0 if unsigned else -4, 4, shape) * 2 + 1).astype(dtype)
    if not epsilon(kind.dtype):
        ones: Array = np.asarray(rng.choice([1] if unsigned else [-1, 1], shape)).astype(dtype)
        ones.flat[rng.permutation(kind.size)[:4]] *= 3
        return ones
    exponents = rng.uniform(-1, 1, shape) * min(1, 8 / math.sqrt(max(1, kind.size)))
    found: Array = (np.exp2(exponents) * rng.choice([-1, 1], shape)).astype(dtype)
    return found


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name; bfloat16 is from ml_dtypes, a dependency of TVM."""
    if name == "bfloat16":
        import ml_dtypes

        kind: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return kind
    return np.dtype(name)


def reference(workload: Workload, inputs: Mapping[str, Array]) -> Sequence[Array]:
    """NumPy's outputs of the operator and its epilogue, in float64 if the operators support it.

    Raises:
        OpError: an operator has no reference.
    """
    value = _reference_of(workload.op)(workload.attr_node, [inputs[i.name] for i in workload.inputs])
    value = after(workload.epilogue, value, inputs)
    return value if isinstance(value, list | tuple) else (value,)


def after(steps: Sequence[EpilogueStep], value: Any, inputs: Mapping[str, Array]) -> Any:
    """The value after the steps of an epilogue."""
    for step in steps:
        attrs = get_op(step.op).attrs_type.from_json(step.attrs)
        operands = [value if o is None else inputs[o.name] for o in step.operands]
        value = _reference_of(step.op)(attrs, operands)
    return value


def _reference_of(op: str) -> Callable[..., Any]:
    found = get_op(op).get_attr("FReference")
    if found is None:
        raise OpError(f"operator {op} has no reference: register one with register_reference")
    function: Callable[..., Any] = found
    return function


def reduction_length(workload: Workload, inputs: Mapping[str, Array], outputs: Sequence[Array]) -> int:
    """The approximate number of terms summed into one element of the output."""
    terms = workload.operator.get_attr("FTerms")
    if terms is not None:
        return max(1, int(terms(workload.attr_node, workload.input_types, workload.out_type)))
    produced = max(1, sum(o.size for o in outputs))
    if workload.flops is not None:
        return max(1, workload.flops // (2 * produced))
    return max(1, max(x.size for x in inputs.values()) // produced)


def tolerances(
    workload: Workload, inputs: Mapping[str, Array], outputs: Sequence[Array], anchor: Sequence[Array] | None = None
) -> tuple[Tolerance, ...]:
    """The absolute tolerance of each output, for all of its elements or for each.

    Args:
        anchor: the outputs without the epilogue, which are computed otherwise if they are needed.
    """
    length = reduction_length(workload, inputs, outputs)
    find, condition = workload.operator.get_attr("FCondition"), 1.0
    if find is not None and outputs[0].size:
        condition = np.maximum(1, find(workload.attr_node, [inputs[i.name] for i in workload.inputs]))
    # Intermediate values may be rounded to the least precise dtype of inputs and outputs.
    out = workload.out_type
    kinds = [*(i.tensor for i in workload.all_inputs), *(out.fields if isinstance(out, TupleType) else [out])]
    narrowest = max((k.dtype for k in kinds if isinstance(k, TensorType)), key=epsilon)
    found = tuple(absolute_tolerance(o, length, narrowest, condition) for o in outputs)
    steps = workload.epilogue
    first = next((n for n, step in enumerate(steps) if not _is_even(step)), len(steps))

    @functools.cache
    def value() -> Array:
        """The first output without the epilogue."""
        known = anchor if steps else outputs
        return np.asarray((reference(workload.anchor, inputs) if known is None else known)[0])

    others: Tolerance = 0.0
    few = outputs[0].size < _FEW and not _has_peaks(workload)
    if len(outputs) == 1 and few and outputs[0].size and outputs[0].dtype.kind in "fV":
        even = (*reversed(workload.shorter), workload)[first]
        others = absolute_tolerance(_others(even, inputs), length, narrowest)
    if first == len(steps) and _hides_terms(workload, length, narrowest) and not few:
        error = _COARSE * absolute_tolerance(value(), length, "float32", condition)
        if workload.op in _WEIGHTED:
            # Flash attention rounds the weights of values, too. Of few columns, a row's own size says less of them.
            size = np.sqrt(np.mean(np.square(value()), axis=-1, keepdims=True))
            error = error + max(2, 8 / np.sqrt(value().shape[-1])) * epsilon(narrowest) * size
        found = (_of_roundings(steps, value(), inputs, error, narrowest),)
    if any(op in _CANCELLING for op in (workload.op, *(step.op for step in steps))):
        found = (np.maximum(found[0], _cancelled(workload, value(), inputs, outputs[0], narrowest)),)
    if first < len(steps):

        def error_of(x: Array, least: Tolerance = 0.0) -> Array:
            return np.maximum(absolute_tolerance(x, length, narrowest, condition), least) + _relative(narrowest, x)

        others = _of_uneven(workload, first, value(), inputs, outputs[0], error_of, others)
    return (np.maximum(found[0], others), *found[1:])


def _of_uneven(
    workload: Workload, first: int, value: Array, inputs: Mapping[str, Array], right: Array,
    error_of: Callable[..., Array], least: Tolerance,
) -> Tolerance:
    """The error of each element after the step `first`, which may enlarge an error or jump.

    Args:
        value: the output without the epilogue.
        error_of: the error that a value may have, and has at least.
        least: the error before that step.
    """
    steps = workload.epilogue
    before = np.asarray(after(steps[:first], value, inputs))
    if before.dtype.kind in "iub":
        return _of_integers(steps[first:], before, inputs)
    if not first and workload.operator.get_attr("TJumps", False) and np.array_equal(before, np.rint(before)):
        return 0.0  # nothing is rounded before a jump
    error = error_of(before, least)
    last = first + _until_whole(steps[first:], before, inputs)
    right = right if last == len(steps) else np.asarray(after(steps[first:last], before, inputs))
    with np.errstate(invalid="ignore"):  # of infinities
        # Even steps may remove an error: that of a negative number before relu.
        off = error + error_of(value)
        ends = [after(steps[:first], end, inputs) for end in (value - off, value + off)]
        error = np.where((ends[0] == before) & (ends[1] == before), 0, error)
        offs = []
        for end in (before - error, before + error):
            off = np.abs(np.subtract(after(steps[first:last], end, inputs), right, dtype=np.float64))
            offs.append(np.nan_to_num(off, nan=0.0, posinf=np.inf))
    spread: Array = np.maximum(*offs)
    jumps = [step.op for step in steps[first:last] if get_op(step.op).get_attr("TJumps", False)]
    if jumps:
        # A jump may be on either side of what is rounded before it. Both ends may be whole turns of a remainder away.
        spread = offs[0] + offs[1] + (error if "floor_mod" in jumps else 0)
    return spread if last == len(steps) else _of_integers(steps[last:], right, inputs, spread)


def _of_integers(
    steps: Sequence[EpilogueStep], value: Array, inputs: Mapping[str, Array], error: Tolerance = 0.0
) -> Tolerance:
    """The error of each element after steps of integers: by real numbers made of them, before a jump alone.

    Args:
        error: of the integers, which are exact but for jumps before them.
    """
    if not steps:
        return error
    real = np.asarray(after(steps[:1], value, inputs))
    off = error if np.ndim(error) == 0 else _spread(steps[:1], value, real, error, inputs)
    jumps = [get_op(step.op).get_attr("TJumps", False) for step in steps]
    if real.dtype.kind != "f":
        return _of_integers(steps[1:], real, inputs, off)
    if not any(jumps[1:]):
        return off if np.ndim(off) == 0 else _of_roundings(steps[1:], real, inputs, off, "float32")
    # A sum may be rounded once with its product, or apart.
    first = 1 + jumps[1:].index(True)
    before = np.asarray(after(steps[1:first], real, inputs))
    last = first + _until_whole(steps[first:], before, inputs)
    right = np.asarray(after(steps[first:last], before, inputs))
    off = _of_roundings(steps[1:first], real, inputs, off, "float32")
    return _of_integers(steps[last:], right, inputs, _spread(steps[first:last], before, right, off, inputs))


def _spread(
    steps: Sequence[EpilogueStep], value: Array, right: Array, error: Tolerance, inputs: Mapping[str, Array]
) -> Array:
    """The larger difference from what is right after steps of values that are off by an error, up or down."""
    with np.errstate(invalid="ignore"):  # of infinities
        ends = (after(steps, end, inputs) for end in (value - error, value + error))
        offs = np.maximum(*(np.abs(np.subtract(end, right, dtype=np.float64)) for end in ends))
    found: Array = np.nan_to_num(offs, nan=0.0, posinf=np.inf)
    return found


def _until_whole(steps: Sequence[EpilogueStep], value: Array, inputs: Mapping[str, Array]) -> int:
    """The number of steps up to the first one that gives integers, of a jump before it or its own; else of all."""
    is_whole = False
    for place, step in enumerate(steps[:-1], 1):
        value = np.asarray(after([step], value, inputs))
        is_whole = is_whole or get_op(step.op).get_attr("TJumps", False)
        if is_whole and value.dtype.kind in "iu":
            return place
    return len(steps)


def _hides_terms(workload: Workload, length: int, narrowest: str) -> bool:
    """Return whether the roundings of large outputs hide one of many terms, which those of small ones do not.

    Convolutions of float16 are left out, as some of cuDNN's round what they transform.
    """
    if workload.op in _WEIGHTED or workload.operator.get_attr("FPeaks") is not None:
        return epsilon(narrowest) > epsilon("float32")
    is_long = length > _LONG and narrowest == "float16" and workload.op not in _CONVOLUTIONS
    return workload.op in _SUMS and (epsilon(narrowest) > epsilon("float16") or is_long)


def _of_roundings(
    steps: Sequence[EpilogueStep], value: Any, inputs: Mapping[str, Array], error: Tolerance, narrowest: str
) -> Array:
    """The error of each element of which a value has an error, and it and each value after it are rounded.

    Args:
        value: the output without the epilogue.
        error: of it, before it is rounded.
    """
    rounding, value = epsilon(narrowest), np.asarray(value)
    least = _subnormal(narrowest)
    with np.errstate(invalid="ignore", over="ignore"):
        error = error + rounding * np.abs(value) + least
        for step in steps:
            ends = [after([step], end, inputs) for end in (value - error, value + error)]
            value = np.asarray(after([step], value, inputs))
            off = np.maximum(*(np.abs(np.subtract(end, value, dtype=np.float64)) for end in ends))
            error = off + rounding * np.abs(value) + least
    found: Array = np.nan_to_num(error, nan=0.0, posinf=np.inf)
    return found


def _others(workload: Workload, inputs: Mapping[str, Array]) -> Array:
    """Outputs for the same numbers with other signs, as the size of a single sum may be near 0."""
    rng, found = np.random.default_rng(0), np.zeros(0)
    while found.size < _FEW:
        mixed = {
            name: np.where(rng.integers(0, 2, x.shape, np.uint8), x, -x) if epsilon(str(x.dtype)) else x
            for name, x in inputs.items()
        }
        with np.errstate(all="ignore"):
            found = np.append(found, np.asarray(reference(workload, mixed)[0], np.float64))
    return found


def _cancelled(
    workload: Workload, value: Array, inputs: Mapping[str, Array], right: Array, narrowest: str
) -> Array:
    """The error of each element by operators that subtract numbers of about the size of their first operand.

    Args:
        value: the output without the epilogue.
    """
    found, steps = np.zeros(right.shape), workload.epilogue
    operands = [inputs[i.name] for i in workload.inputs]
    with np.errstate(invalid="ignore", over="ignore"):
        for n, op in enumerate((workload.op, *(step.op for step in steps))):
            if n:
                operands = [value if o is None else inputs[o.name] for o in steps[n - 1].operands]
                value = np.asarray(after(steps[n - 1 : n], value, inputs))
            if op not in _CANCELLING:
                continue
            operand, *factors = (np.asarray(x, np.float64) for x in operands)
            error = math.prod(map(np.abs, factors), start=_relative(_precision(narrowest), operand))
            for end in (value - error, value + error):
                off = np.abs(np.subtract(after(steps[n:], end, inputs), right, dtype=np.float64))
                found = np.maximum(found, np.nan_to_num(off, nan=0.0, posinf=np.inf))
    return found


def _precision(dtype: str) -> str:
    """The dtype in which numbers of one are computed."""
    return dtype if epsilon(dtype) < epsilon("float32") else "float32"


def _is_even(step: EpilogueStep) -> bool:
    return step.op in _EVEN or (step.op == "cast" and epsilon(step.attrs["dtype"]) > 0)


def epsilon(dtype: str) -> float:
    """The distance of 1 to the next number of a dtype; 0 for integers, which are exact."""
    known = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    return known.get(dtype, 0.0)


def absolute_tolerance(right: Array, length: int, dtype: str, condition: Tolerance = 1.0) -> Tolerance:
    """The largest acceptable error of any element, for inputs of `dtype` and sums of `length` terms.

    Rounding errors of a sum add up like a random walk: about ε √length relative to the sum, with the ε of float32 or
    better, in which operators accumulate. Four times that allows any order of summation, while an omitted
    term is about 1 / √length of the sum. Narrower dtypes add the rounding of intermediate values. Where numbers that
    may be nearly equal are subtracted and the rest is scaled, it grows by `condition` (`register_condition`).
    """
    if right.dtype.kind not in "fV" or not right.size or not epsilon(dtype):
        return 0.0
    finite = right[np.isfinite(right)]
    scale = math.sqrt(float(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
    accumulated = min(epsilon(dtype), epsilon("float32")) * math.sqrt(length) * condition
    rounded = epsilon(dtype) if epsilon(dtype) > epsilon("float32") else 0.0
    return 4 * scale * (accumulated + rounded) + _subnormal(dtype)


def _subnormal(dtype: str) -> float:
    """The error of float16 near zero, where it is less precise."""
    return 2.0**-24 if dtype == "float16" else 0.0


def _relative(dtype: str, right: Array) -> Array:
    """The error of each element that its own rounding may have."""
    return 4 * epsilon(dtype) * np.abs(right)


def poison(right: Array, dtype: str) -> Array:
    """An initial output that fails the comparison if not overwritten: NaN, or wrong integers."""
    kind = numpy_dtype(dtype)
    if epsilon(dtype):
        return np.full(right.shape, np.nan, kind)
    if dtype == "bool":
        return ~right.astype(bool)
    wrong: Array = right.astype(kind) + kind.type(1)
    return wrong


def overwrite(output: Array, right: Array, dtype: str) -> None:
    """Fill an output with what `poison` makes."""
    output[...] = np.nan if epsilon(dtype) else poison(right, dtype)


def _is_within(found: Array, right: Array, tolerance: Tolerance) -> bool:
    """Return whether no element differs by more than the absolute tolerance."""
    bound = np.broadcast_to(tolerance, found.shape).reshape(-1)
    found, right = found.reshape(-1), right.reshape(-1)
    error = np.empty(min(found.size, _PIECE))
    with np.errstate(invalid="ignore", over="ignore"):
        for at in range(0, found.size, _PIECE):
            part = error[: found.size - at]
            np.subtract(found[at : at + _PIECE], right[at : at + _PIECE], out=part, dtype=np.float64)
            np.abs(part, out=part)
            if not (part <= bound[at : at + _PIECE]).all():  # NaN, too
                return False
    return True


def bounds(right: Array, tolerance: Tolerance, dtype: np.dtype[Any]) -> tuple[Array, Array] | None:
    """The least and the greatest number of each element that are within the absolute tolerance; None if not of float32.

    They take less than half as long to compare with as the reference in float64.
    """
    if dtype != np.float32:
        return None
    found = []
    with np.errstate(invalid="ignore", over="ignore"):
        for combine, inwards in ((np.subtract, np.inf), (np.add, -np.inf)):
            exact = combine(right, tolerance, dtype=np.float64)
            rounded = np.asarray(exact, dtype)
            outside = rounded < exact if inwards > 0 else rounded > exact
            found.append(np.where(outside, np.nextafter(rounded, dtype.type(inwards)), rounded))
    return found[0], found[1]


def compare(found: Array, right: Array, tolerance: Tolerance, within: tuple[Array, Array] | None = None) -> None:
    """Raise `WrongAnswerError` with the largest error and its index if `found` is wrong.

    Args:
        within: the `bounds` of the reference, if any.
    """
    if found.shape != right.shape:
        raise WrongAnswerError(f"the output has shape {found.shape}, expected {right.shape}")
    if not found.size:
        return
    if within is not None and (found >= within[0]).all() and (found <= within[1]).all():
        return
    # float64 cannot represent all integers.
    exact = found.dtype.kind in "iub" and right.dtype.kind in "iub"
    # The elementwise bound is only computed if the absolute one is exceeded.
    if np.array_equal(found, right) if exact else _is_within(found, right, tolerance):
        return
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.empty(found.shape)  # `out`, as the result for a scalar would be no array
        np.abs(np.subtract(found, right, out=error, dtype=np.float64), out=error)
        same = (found == right) | (np.isnan(error) & np.isnan(right) & (found != found))
        close = np.isfinite(error) & (error <= tolerance + _relative(str(found.dtype), right))
        bad = ~(same | ((error <= tolerance) & (np.asarray(tolerance) > 0))) if exact else ~(close | same)
    count = int(bad.sum())
    if not count:
        return
    worst = np.where(bad, np.where(np.isnan(error), np.inf, error), -1.0)
    place = tuple(int(i) for i in np.unravel_index(int(worst.argmax()), worst.shape))
    bound = np.broadcast_to(tolerance, error.shape)[place]
    raise WrongAnswerError(
        f"{count} of {found.size} elements are wrong; the largest error is {error[place]:.3g} at "
        f"{list(place)}: {found[place]} instead of {right[place]:.9g} (tolerance {bound:.3g})"
    )
