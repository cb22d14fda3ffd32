"""Tolerances of outputs: rounding passes in any order, a missing term does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.workload import EpilogueStep, Input, Workload
from workers.reference import (
    Tolerance,
    WrongAnswerError,
    after,
    bounds,
    compare,
    epsilon,
    numpy_dtype,
    poison,
    random_inputs,
    reduction_length,
    reference,
    tolerances,
)

DTYPES = ("float64", "float32", "float16", "bfloat16")


def judge(workload: Workload, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, float]:
    """The reference of a workload of one output, and its tolerance."""
    (right,) = map(np.asarray, reference(workload, inputs))
    (tolerance,) = tolerances(workload, inputs, [right])
    return right, tolerance


def draw(workload: Workload, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray, float]:
    """Random inputs, with their reference and its tolerance."""
    inputs = random_inputs(workload, seed)
    return inputs, *judge(workload, inputs)


def dense(k: int, dtype: str = "float32", m: int = 24, n: int = 40) -> Workload:
    return Workload.make("dense", {"data": f"{dtype}[{m},{k}]", "weight": f"{dtype}[{n},{k}]"})


def kernel(data: np.ndarray, weight: np.ndarray, skip: int | None = None) -> np.ndarray:
    """A product that adds term after term, the worst order, in float32 or better."""
    kind = data.dtype if data.dtype == np.float64 else np.dtype(np.float32)
    total = np.zeros((data.shape[0], weight.shape[0]), kind)
    for k in range(data.shape[1]):
        if k != skip:
            total += np.outer(data[:, k].astype(kind), weight[:, k].astype(kind))
    return total.astype(data.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@given(k=st.integers(1, 3000), seed=st.integers(0, 2**32))
def test_rounding_passes_and_a_missing_term_does_not(dtype: str, k: int, seed: int) -> None:
    workload = dense(k, dtype)
    inputs, right, tolerance = draw(workload, seed)
    compare(kernel(inputs["data"], inputs["weight"]), right, tolerance)
    with pytest.raises(WrongAnswerError, match="largest error"):
        compare(kernel(inputs["data"], inputs["weight"], skip=k // 2), right, tolerance)


@pytest.mark.parametrize("chain", ["", "add relu add", "multiply", "gelu"])
def test_roundings_to_bfloat16_hide_no_term_of_many(chain: str) -> None:
    """Each value is rounded, as where steps are functions of their own."""
    steps = [
        EpilogueStep(op, (None, Input(f"o{n}", "bfloat16[40]")) if op in ("add", "multiply") else (None,))
        for n, op in enumerate(chain.split())
    ]
    workload = Workload.make("dense", dense(5000, "bfloat16").inputs, epilogue=steps)
    inputs, right, tolerance = draw(workload)

    def found(skip: int | None = None) -> np.ndarray:
        value = kernel(inputs["data"], inputs["weight"], skip)
        for step in steps:
            value = after([step], value, inputs).astype(value.dtype)
        return value

    compare(found(), right, tolerance)
    with pytest.raises(WrongAnswerError, match="largest error"):
        compare(found(skip=4999), right, tolerance)


def test_roundings_to_float16_hide_no_term_of_very_many() -> None:
    workload = dense(200_000, "float16", m=8, n=8)
    inputs, right, tolerance = draw(workload)
    data, weight = (x.astype("float32") for x in inputs.values())
    compare((data @ weight.T).astype("float16"), right, tolerance)
    with pytest.raises(WrongAnswerError, match="largest error"):
        compare((data[:, 1:] @ weight[:, 1:].T).astype("float16"), right, tolerance)


@pytest.mark.parametrize(("op", "shape", "kernel"), [
    ("cumsum", "4,3000", lambda x: np.cumsum(x, axis=1)),
    ("global_avg_pool2d", "2,32,60,50", lambda x: x.mean(axis=(2, 3), keepdims=True)),
])
def test_roundings_of_sums_to_bfloat16_hide_no_term(op: str, shape: str, kernel: Callable[..., np.ndarray]) -> None:
    workload = Workload.make(op, {"data": f"bfloat16[{shape}]"}, {"axis": 1} if op == "cumsum" else {})
    inputs, right, tolerance = draw(workload)
    data = inputs["data"].astype("float32")
    compare(kernel(data).astype(inputs["data"].dtype), right, tolerance)
    data[(..., *[0] * (data.ndim // 2))] = 0
    with pytest.raises(WrongAnswerError, match="largest error"):
        compare(kernel(data).astype(inputs["data"].dtype), right, tolerance)


def softmax(x: np.ndarray, skip: int | None) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / total(powers, skip)


def norm(x: np.ndarray, skip: int | None, *, centred: bool = True) -> np.ndarray:
    count = np.float32(x.shape[-1])
    offset = x - total(x, skip) / count if centred else x
    return offset / np.sqrt(total(offset * offset, skip) / count + np.float32(1e-5))


def total(x: np.ndarray, skip: int | None) -> np.ndarray:
    """The sum of each row, without one element of it."""
    return (x if skip is None else np.delete(x, skip, -1)).sum(-1, keepdims=True)


# Kernels of float32 for the first input, without one element of each row in its sums.
ROWS = {
    "softmax": softmax,
    "log_softmax": lambda x, skip: x - x.max(-1, keepdims=True) - np.log(
        total(np.exp(x - x.max(-1, keepdims=True)), skip)
    ),
    "rms_norm": lambda x, skip: norm(x, skip, centred=False),
    "layer_norm": norm,
    "instance_norm": norm,
    "group_norm": lambda x, skip: norm(x.reshape(2, 3, -1), skip).reshape(x.shape),
}


@pytest.mark.parametrize("extent", [40, 2001, 50_000])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ROWS)
def test_roundings_of_a_row_do_not_hide_its_last_element(op: str, dtype: str, extent: int) -> None:
    attrs = {"num_groups": 3} if op == "group_norm" else {}
    channels = 6 if op in ("group_norm", "instance_norm") else extent
    vectors = [] if "softmax" in op else ["gamma"] if op == "rms_norm" else ["gamma", "beta"]
    types = {"data": f"{dtype}[2,6,{extent}]"} | dict.fromkeys(vectors, f"{dtype}[{channels}]")
    workload = Workload.make(op, types, attrs)
    inputs, right, tolerance = draw(workload)
    data, *scales = (x.astype("float32") for x in inputs.values())

    def found(skip: int | None = None) -> np.ndarray:
        value = ROWS[op](data, skip)
        for vector, combine in zip(scales, (np.multiply, np.add), strict=False):
            value = combine(value, vector if channels == extent else vector[:, None])
        return value.astype(numpy_dtype(dtype))

    compare(found(), right, tolerance)
    with pytest.raises(WrongAnswerError, match="largest error"):
        compare(found(skip=-1), right, tolerance)


def squares(x: np.ndarray, add: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    mean = x.sum(-1, keepdims=True) / np.float32(x.shape[-1])
    return add((x - mean) ** 2) / np.float32(x.shape[-1])


# Kernels of float32 for rows, of which `add` sums the terms.
REDUCTIONS = {
    "sum": lambda x, add: add(x),
    "mean": lambda x, add: add(x) / np.float32(x.shape[-1]),
    "variance": squares,
    "std": lambda x, add: np.sqrt(squares(x, add)),
    "logsumexp": lambda x, add: np.log(add(np.exp(x - x.max(-1, keepdims=True)))) + x.max(-1),
}


@pytest.mark.parametrize(("shape", "axes"), [
    ((1 << 20,), None), ((2, 6, 40), [2]), ((3000, 7), [0]), ((2, 5, 60, 50), [2, 3]), ((20, 6, 50), [0, 2]),
    ((3, 40, 2, 30), [1, 3]), ((1, 1), [1]), ((2, 2), [0]),
])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_roundings_of_a_reduction_do_not_hide_its_last_term(
    op: str, dtype: str, shape: tuple[int, ...], axes: list[int] | None
) -> None:
    extents = ",".join(map(str, shape))
    workload = Workload.make(op, {"data": f"{dtype}[{extents}]"}, {} if axes is None else {"axis": axes})
    inputs, right, tolerance = draw(workload)
    kept = [n for axis, n in enumerate(shape) if axes is not None and axis not in axes]
    moved = np.moveaxis(inputs["data"].astype("float32"), axes or 0, range(-len(axes or "x"), 0))
    rows = np.ascontiguousarray(moved).reshape(*kept, -1)

    def found(add: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return np.asarray(REDUCTIONS[op](rows, add)).astype(numpy_dtype(dtype))

    compare(found(lambda x: x.sum(-1)), right, tolerance)
    compare(found(lambda x: np.add.accumulate(x, axis=-1)[..., -1]), right, tolerance)
    apart = axes is not None and axes != list(range(axes[0], axes[-1] + 1))
    if rows.shape[-1] > 1 and not (apart and op == "logsumexp" and dtype == "bfloat16"):
        with pytest.raises(WrongAnswerError, match="largest error"):
            compare(found(lambda x: x[..., :-1].sum(-1)), right, tolerance)


def test_the_square_of_a_sum_is_finite() -> None:
    square = EpilogueStep("multiply", (None, None))
    workload = Workload.make("sum", {"data": "float16[64,4096]"}, {"axis": [1]}, epilogue=[square])
    inputs, right, tolerance = draw(workload)
    with np.errstate(over="ignore"):
        found = np.square(inputs["data"].astype("float32").sum(1)).astype("float16")
    compare(found, right, tolerance)


@pytest.mark.parametrize("keys", [40, 6000])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_roundings_of_an_attention_do_not_hide_a_key(dtype: str, keys: int) -> None:
    types = {"query": f"{dtype}[1,2,5,64]", "key": f"{dtype}[1,2,{keys},64]", "value": f"{dtype}[1,2,{keys},64]"}
    workload = Workload.make("attention", types)
    inputs, right, tolerance = draw(workload)
    kind = numpy_dtype(dtype)
    query, key, value = (x.astype("float32") for x in inputs.values())

    def found(skip: int, kept: Any = np.float32) -> np.ndarray:
        scores = (query @ key.swapaxes(2, 3) * np.float32(0.125))[..., skip:]
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        rounded = powers.astype(kept).astype("float32")  # as matrix units take them
        return (rounded @ value[:, :, skip:] / powers.sum(-1, keepdims=True)).astype(kind)

    compare(found(0), right, tolerance)
    compare(found(0, kind), right, tolerance)
    with pytest.raises(WrongAnswerError, match="largest error"):
        compare(found(1), right, tolerance)


@pytest.mark.parametrize("scale", [1e-6, 0, -0.125])
def test_peaks_of_a_row_are_numbers(scale: float) -> None:
    workload = Workload.make("softmax", {"data": "float16[2,5000]"}, {"scale": scale})
    assert np.isfinite(random_inputs(workload, 0)["data"]).all()


def test_of_many_elements_the_worst_rounding_passes_too() -> None:
    workload = dense(64, m=1 << 16, n=1)
    inputs, right, tolerance = draw(workload)
    found = np.add.accumulate(inputs["data"] * inputs["weight"], axis=1)[:, -1:]
    assert np.abs(found - right).max() > tolerance / 4  # so that this says something
    compare(found, right, tolerance)


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_a_single_sum_that_is_nearly_0_may_be_rounded_as_any(op: str) -> None:
    workload = Workload.make(op, {"data": "float32[1000]"})
    for seed in range(400):
        inputs, right, tolerance = draw(workload, seed)
        total = np.add.accumulate(inputs["data"])[-1]
        compare(np.asarray(total / np.float32(1000 if op == "mean" else 1)), right, tolerance)


def test_a_function_of_a_single_sum_is_as_precise_as_the_sum() -> None:
    """The exponentials of other sums are much larger."""
    workload = Workload.make("sum", {"data": "float32[1000]"}, epilogue=[EpilogueStep("exp", (None,))])
    for seed in range(40):
        inputs, right, tolerance = draw(workload, seed)
        compare(np.exp(np.add.accumulate(inputs["data"])[-1]).reshape(()), right, tolerance)
        with pytest.raises(WrongAnswerError):
            compare(np.asarray(right * 1.01, "float32"), right, tolerance)


@pytest.mark.parametrize("steps", ["gelu", "gelu multiply"])
def test_a_gelu_that_is_nearly_0_has_the_error_of_its_parts(steps: str) -> None:
    scale = {"multiply": (None, Input("scale", "float32[40]"))}
    epilogue = [EpilogueStep(op, scale.get(op, (None,))) for op in steps.split()]
    workload = Workload.make("negative", {"data": "float32[24,40]"}, epilogue=epilogue)
    inputs = {"data": np.linspace(3, 5, 960, dtype="float32").reshape(24, 40), "scale": np.full(40, 1e3, "float32")}
    right, tolerance = judge(workload, inputs)
    x = -inputs["data"]
    one = 1 + np.vectorize(math.erf)(x / math.sqrt(2)).astype("float32")
    found = x * np.float32(0.5) * one * (inputs["scale"] if "multiply" in steps else np.float32(1))
    compare(found, right, tolerance)
    with pytest.raises(WrongAnswerError):
        compare(found + (1 if "multiply" in steps else np.float32(1e-3)), right, tolerance)


@pytest.mark.parametrize("op", ["gelu", "geglu"])
@pytest.mark.parametrize("scale", [1e3, 1e-6])
def test_a_gelu_that_is_nearly_0_and_scaled_has_its_error_scaled(op: str, scale: float) -> None:
    """The epilogue scales a gelu; a geglu has its own factor."""
    size, given = "float32[24,40]", {"lhs": np.linspace(-5, -3, 960, dtype="float32").reshape(24, 40)}
    if op == "geglu":
        workload = Workload.make(op, {"lhs": size, "rhs": size})
        given["rhs"] = np.full((24, 40), scale, "float32")
    else:
        step = EpilogueStep("multiply", (None, Input("scale", "float32[40]")))
        workload, given = Workload.make(op, {"data": size}, epilogue=[step]), {"data": given["lhs"]}
        given["scale"] = np.full(40, scale, "float32")
    right, tolerance = judge(workload, given)
    x, factor = given.values()
    one = 1 + np.vectorize(math.erf)(x / math.sqrt(2)).astype("float32")
    compare(x * np.float32(0.5) * one * factor, right, tolerance)
    with pytest.raises(WrongAnswerError):
        compare(np.zeros_like(x), right, tolerance)


def test_what_a_gelu_is_compared_with_may_be_a_truth() -> None:
    steps = [EpilogueStep("gelu", (None,)), EpilogueStep("greater", (None, Input("bound", "float32[40]")))]
    workload = Workload.make("negative", {"data": "float32[24,40]"}, epilogue=steps)
    inputs = random_inputs(workload, 0)
    (right,) = reference(workload, inputs)
    compare(right, right, tolerances(workload, inputs, [right])[0])


def test_a_gradient_is_a_sum_of_as_many_as_windows_reach_it() -> None:
    types = {"grad": "float32[1,1,8,61]", "data": "float32[1,1,10,63]"}
    workload = Workload.make("max_pool2d_backward", types, {"pool_size": [5, 5], "padding": 1})
    inputs = random_inputs(workload, 0)
    assert reduction_length(workload, inputs, reference(workload, inputs)) == 25


@pytest.mark.parametrize("method", ["linear", "cubic"])
def test_a_place_in_an_image_is_rounded(method: str) -> None:
    workload = Workload.make(
        "grid_sample", {"data": "float32[2,3,40,190]", "grid": "float32[2,1,23,2]"}, {"method": method}
    )
    inputs, right, tolerance = draw(workload)
    (found,) = reference(workload, {**inputs, "grid": inputs["grid"] * (1 + np.float32(2**-23))})
    compare(found.astype("float32"), right, tolerance)


def test_the_narrowest_input_says_what_rounding_there_may_be() -> None:
    bias = EpilogueStep("add", (None, Input("bias", "float16[40]")))
    workload = Workload.make("dense", dense(64).inputs, {"out_dtype": "float16"}, epilogue=[bias])
    inputs, right, tolerance = draw(workload)
    (precise,) = tolerances(dense(64), inputs, [right])
    assert tolerance > 100 * precise


@pytest.mark.parametrize("op", ["layer_norm", "instance_norm"])
def test_the_mean_of_few_numbers_may_be_as_large_as_they_are(op: str) -> None:
    """Differences of numbers that are nearly equal are as inexact as they are, and are scaled to 1."""
    shape = "4096,3" if op == "layer_norm" else "1,4096,3"
    vector = "3" if op == "layer_norm" else "4096"
    inputs = {"data": f"float32[{shape}]"} | dict.fromkeys(("gamma", "beta"), f"float32[{vector}]")
    workload = Workload.make(op, inputs)
    drawn = random_inputs(workload, 0)
    (right,) = reference(workload, drawn)
    data, count = drawn["data"], np.float32(3)

    def norm(skip: int = 0) -> np.ndarray:
        centre = data[..., skip:].sum(-1, keepdims=True) / count
        offset = data - centre
        deviation = np.sqrt((offset * offset).sum(-1, keepdims=True) / count + np.float32(1e-5))
        gamma, beta = (drawn[n] if op == "layer_norm" else drawn[n][:, None] for n in ("gamma", "beta"))
        return offset / deviation * gamma + beta

    (tolerance,) = tolerances(workload, drawn, [right])
    assert np.abs(norm() - right).max() > np.min(tolerance)  # so that this says something
    compare(norm(), right, tolerance)
    with pytest.raises(WrongAnswerError, match="largest error"):
        compare(norm(skip=1), right, tolerance)


def test_few_rows_are_each_of_another_group_and_groups_have_all_rows() -> None:
    for rows, groups in ((2, 8), (40, 8), (8, 8)):
        inputs = {"data": f"float32[{rows},4]", "weight": f"float32[{groups},3,4]", "ends": f"int32[{groups}]"}
        ends = random_inputs(Workload.make("grouped_dense", inputs), 0)["ends"]
        sizes = np.diff(ends, prepend=0)
        assert sizes.min() >= 0
        assert ends[-1] == rows
        assert sizes.max() == 1 or rows > groups


def test_inputs_are_those_of_their_seed() -> None:
    workload = dense(8)
    first, same, other = (random_inputs(workload, seed) for seed in (1, 1, 2))
    assert first.keys() == {"data", "weight"}
    for name, array in first.items():
        np.testing.assert_array_equal(array, same[name])
        assert (array != other[name]).any()
        assert array.min() >= -1 and array.max() <= 1 and array.std() > 0.4


@pytest.mark.parametrize(("op", "inputs", "name"), [
    ("qdense", {"data": "uint8[24,64]", "weight": "int8[40,64]"}, "data"),
    ("qdense", {"data": "int8[24,64]", "weight": "uint8[40,64]"}, "data"),
    ("matmul_nbits", {"data": "float32[3,64]", "weight": "uint8[24,2,16]", "scales": "float32[24,2]"}, "weight"),
])
def test_bytes_that_are_multiplied_are_of_their_whole_range(op: str, inputs: dict[str, str], name: str) -> None:
    """A kernel may take the largest unsigned numbers for negative ones, or a sum of two products for 16 bits."""
    found = random_inputs(Workload.make(op, inputs), 0)[name]
    bounds = np.iinfo(found.dtype)
    assert (found.min(), found.max()) == (bounds.min, bounds.max)


def test_what_a_block_has_beyond_k_is_not_multiplied() -> None:
    types = {"data": "float32[1,2]", "weight": "uint8[1,1,16]", "scales": "float32[1,1]"}
    workload = Workload.make("matmul_nbits", types, {"bits": 8, "block_size": 16})
    inputs = {
        "data": np.ones((1, 2), np.float32), "weight": np.full((1, 1, 16), 255, np.uint8),
        "scales": np.full((1, 1), np.inf, np.float32),
    }
    np.testing.assert_array_equal(reference(workload, inputs)[0], [[np.inf]])


def test_the_reduction_length_is_that_of_the_product() -> None:
    workload = dense(77)
    inputs = random_inputs(workload, 0)
    assert reduction_length(workload, inputs, reference(workload, inputs)) == 77


@pytest.mark.parametrize("dtype", [*DTYPES, "int8", "uint8", "int64", "bool"])
def test_poison_is_wrong_everywhere(dtype: str) -> None:
    right = np.asarray([[0, 1, 2], [3, 255, 1]]).astype(numpy_dtype(dtype))
    poisoned = poison(right, dtype)
    assert poisoned.dtype == right.dtype
    with pytest.raises(WrongAnswerError, match="6 of 6 elements"):
        compare(poisoned, right.astype(np.float64) if dtype in DTYPES else right, 0.0)
    compare(right, right.astype(np.float64), 0.0)


def test_the_message_names_the_worst_place() -> None:
    right = np.zeros((3, 4))
    found = right.astype(np.float32)
    found[1, 2], found[2, 0] = 0.5, -2.0
    with pytest.raises(
        WrongAnswerError, match=r"2 of 12 .* error is 2 at \[2, 0\]: -2\.0 instead of 0"
    ):
        compare(found, right, 1e-6)
    found[0, 3] = np.nan
    with pytest.raises(WrongAnswerError, match=r"3 of 12 .* inf|3 of 12 .* nan at \[0, 3\]"):
        compare(found, right, 1e-6)


@pytest.mark.parametrize("wrong", [0.5, np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 32767, 32768, 65536, 70000])
def test_a_wrong_element_of_many_is_found(at: int, wrong: float) -> None:
    right = np.zeros((7, 10001))
    found = right.astype(np.float32)
    compare(found, right, 1e-6)
    found.flat[at] = wrong
    with pytest.raises(WrongAnswerError, match=rf"1 of 70007 .* at \[{at // 10001}, {at % 10001}\]"):
        compare(found, right, 1e-6)


def test_integers_are_compared_as_integers() -> None:
    right = np.asarray([2**62, 5])
    compare(right.copy(), right, 0.0)
    with pytest.raises(WrongAnswerError, match="1 of 2"):
        compare(right + np.asarray([1, 0]), right, 0.0)


def test_infinities_and_nans_of_the_reference_are_right() -> None:
    right = np.asarray([np.inf, -np.inf, np.nan, 1.0])
    compare(right.astype(np.float32), right, 0.0)
    with pytest.raises(WrongAnswerError, match="1 of 4"):
        compare(np.asarray([-np.inf, -np.inf, np.nan, 1.0], np.float32), right, 0.0)


@pytest.mark.parametrize("op", ["floor_mod", "floor_divide", "floor"])
def test_a_jump_may_be_on_either_side_of_what_is_rounded(op: str) -> None:
    """Of divisors that are rounded: a remainder of many times one is off by as many roundings, or by all of one."""
    operands = (None,) if op == "floor" else (Input("number", "float32[4096]"), None)
    product = dict.fromkeys(("lhs", "rhs"), "float32[4096]")
    workload = Workload.make("multiply", product, epilogue=[EpilogueStep(op, operands)])
    inputs = random_inputs(workload, 0) | {"number": np.full(4096, 0.9, np.float32)}
    inputs["lhs"][:3000] = inputs["rhs"][:3000] ** -1  # 1, but for its rounding
    inputs["number"][:3000] = 5
    right, tolerance = judge(workload, inputs)
    rounded = inputs["lhs"] * inputs["rhs"]
    (found,) = reference(workload, inputs | {"lhs": rounded, "rhs": np.ones(4096)})
    (without,) = tolerances(workload.anchor, inputs, [right])
    with pytest.raises(WrongAnswerError):
        compare(found, right, without)
    compare(found, right, tolerance)
    for off in (0.01, -0.01):
        with pytest.raises(WrongAnswerError, match="^10[0-9]{2} of"):
            compare(found + off * (np.arange(4096) >= 3000), right, tolerance)


@pytest.mark.parametrize(("op", "k"), [("tanh", 12000), ("exp", 200)])
def test_an_epilogue_may_magnify_what_is_rounded(op: str, k: int) -> None:
    plain = dense(k)
    workload = Workload.make("dense", plain.inputs, epilogue=[EpilogueStep(op, (None,))])
    inputs, right, tolerance = draw(workload)

    def found(skip: int | None = None) -> np.ndarray:
        return getattr(np, op)(kernel(inputs["data"], inputs["weight"], skip))

    with pytest.raises(WrongAnswerError):  # so that this says something
        compare(found(), right, *tolerances(plain, inputs, [right]))
    compare(found(), right, tolerance)
    with pytest.raises(WrongAnswerError, match="largest error"):
        compare(found(skip=k // 2), right, tolerance)


@pytest.mark.parametrize("attrs", [{"dtype": "int32"}, {"dtype": "bool"}])
def test_a_number_that_is_rounded_may_be_on_either_side_of_a_whole_one(attrs: dict[str, str]) -> None:
    product = dict.fromkeys(("lhs", "rhs"), "bfloat16[3]")
    workload = Workload.make("subtract", product, epilogue=[EpilogueStep("cast", (None,), attrs)])
    inputs = {"lhs": np.array([1.5, 1.0, 0.5]), "rhs": np.array([0.5, 1e-9, 0.125])}
    inputs["rhs"][0] -= 1e-9
    right, tolerance = judge(workload, inputs)
    if attrs["dtype"] == "int32":
        compare(np.array([1, 1, 0]), right, tolerance)
        with pytest.raises(WrongAnswerError, match="^1 of 3"):
            compare(np.array([1, 1, 1]), right, tolerance)
    else:
        compare(right, right, tolerance)
        with pytest.raises(WrongAnswerError, match="^3 of 3"):
            compare(~right, right, tolerance)


@pytest.mark.parametrize("step", [
    EpilogueStep("cast", (None,), {"dtype": "bool"}), EpilogueStep("sign", (None,)), EpilogueStep("floor", (None,)),
], ids=lambda step: step.op)
def test_zeros_of_relu_are_not_rounded(step: EpilogueStep) -> None:
    inputs = random_inputs(dense(50), 0)
    without, workload = (
        Workload.make("dense", dense(50).inputs, epilogue=[*steps, step])
        for steps in ([], [EpilogueStep("relu", (None,))])
    )
    (right,), (wrong,) = (reference(w, inputs) for w in (workload, without))
    (tolerance,) = tolerances(workload, inputs, [right])
    with pytest.raises(WrongAnswerError):
        compare(np.maximum(wrong, -1), right, tolerance)


@pytest.mark.parametrize("step", [
    EpilogueStep("greater", (None, Input("zero", "bfloat16[1]"))), EpilogueStep("sign", (None,)),
], ids=lambda step: step.op)
def test_a_large_number_that_is_far_from_a_jump_is_on_its_side(step: EpilogueStep) -> None:
    """Sums may be off by more than one."""
    product = dense(30000, "bfloat16")
    workload = Workload.make("dense", product.inputs, epilogue=[EpilogueStep("floor", (None,)), step])
    inputs = random_inputs(workload, 0) | {"zero": np.zeros(1)}
    right, tolerance = judge(workload, inputs)
    compare(right, right, tolerance)
    with pytest.raises(WrongAnswerError):
        compare(np.zeros_like(right), right, tolerance)


def test_a_jump_of_integers_is_exact() -> None:
    """The quotient of 0 is 0, which that of floating-point numbers is far from; others are at a jump."""
    steps = [
        EpilogueStep("floor_divide", (None, Input("number", "int32[8]"))),
        EpilogueStep("cast", (None,), {"dtype": "float32"}),
        EpilogueStep("multiply", (None, Input("scale", "float32[8]"))),
    ]
    workload = Workload.make("multiply", dict.fromkeys(("lhs", "rhs"), "int32[8]"), epilogue=steps)
    inputs = random_inputs(workload, 0) | dict.fromkeys(("lhs", "rhs"), np.full(8, 10, np.int32))
    inputs |= {"number": np.arange(8, dtype=np.int32), "scale": np.ones(8, np.float32)}
    right, tolerance = judge(workload, inputs)
    with pytest.raises(WrongAnswerError, match="^8 of"):
        compare(right - 1, right, tolerance)


@pytest.mark.parametrize("last", [(), ("clip", "cast")])
def test_rounded_sums_of_integers_may_be_either_of_two_beside_a_half_alone(last: tuple[str, ...]) -> None:
    """A kernel may round a product and the sum with a bias at once."""
    given = {
        "dequantize": ((None, Input("scale", "float32[]"), Input("zero", "int32[]")), {}),
        "bias_add": ((None, Input("bias", "float32[32]")), {}),
        "clip": ((None,), {"a_min": -2e4, "a_max": 2e4}),
        "cast": ((None,), {"dtype": "int16"}),
    }
    steps = [EpilogueStep(op, *given.get(op, ((None,), {}))) for op in ("dequantize", "bias_add", "round", *last)]
    workload = Workload.make("qdense", {"data": "uint8[64,40]", "weight": "int8[32,40]"}, epilogue=steps)
    inputs = random_inputs(workload, 0) | {"scale": np.float32(1 / 3), "zero": np.int32(0)}
    inputs["bias"] = np.full(32, 1 / 6, np.float32)  # a third of the sums is beside a half
    right, tolerance = judge(workload, inputs)
    sums = reference(workload.anchor, inputs)[0]
    exact = sums / 3 + 1 / 6
    beside = np.abs(exact - np.floor(exact) - 0.5) < 0.01
    assert 0.2 < beside.mean() < 0.5
    inside = (np.abs(exact) < 19_999) if last else np.full(right.shape, True)
    other = np.where(right > exact, right - 1.0, right + 1.0).astype(right.dtype)
    compare(np.where(beside & inside, other, right), right, tolerance)
    with pytest.raises(WrongAnswerError, match=f"^{(~beside & inside).sum()} of"):
        compare(np.where(~beside & inside, other, right), right, tolerance)


def test_integers_that_are_rounded_again_may_be_either_of_two_beside_a_half_alone() -> None:
    steps = [
        EpilogueStep("dequantize", (None, Input("scale", "float32[]"), Input("zero", "int32[]"))),
        EpilogueStep("quantize", (None, Input("step", "float32[]"), Input("zero", "int32[]")), {"out_dtype": "int8"}),
        EpilogueStep("dequantize", (None, Input("third", "float32[]"), Input("zero", "int32[]"))),
        EpilogueStep("bias_add", (None, Input("bias", "float32[32]"))),
        EpilogueStep("quantize", (None, Input("step", "float32[]"), Input("zero", "int32[]")), {"out_dtype": "int8"}),
    ]
    workload = Workload.make("qdense", {"data": "uint8[64,40]", "weight": "int8[32,40]"}, epilogue=steps)
    inputs = random_inputs(workload, 0) | {"scale": np.float32(2**-11), "step": np.float32(1), "zero": np.int32(0)}
    inputs |= {"third": np.float32(1 / 3), "bias": np.full(32, 1 / 6, np.float32)}
    right, tolerance = judge(workload, inputs)
    sums = reference(workload.anchor, inputs)[0] * 2.0**-11
    exact = np.clip(np.rint(sums), -128, 127) / 3 + 1 / 6
    sure = np.abs(sums - np.floor(sums) - 0.5) > 0.01
    beside = np.abs(exact - np.floor(exact) - 0.5) < 0.01
    assert 0.2 < beside.mean() < 0.5
    other = np.where(right > exact, right - 1, right + 1).astype(right.dtype)
    compare(np.where(beside & sure, other, right), right, tolerance)
    with pytest.raises(WrongAnswerError, match=f"^{(~beside & sure).sum()} of"):
        compare(np.where(~beside & sure, other, right), right, tolerance)


def test_nothing_is_rounded_between_two_jumps() -> None:
    workload = Workload.make("round", {"data": "float32[40]"}, epilogue=[EpilogueStep("floor", (None,))])
    inputs = random_inputs(workload, 0)
    (right,) = reference(workload, inputs)
    with pytest.raises(WrongAnswerError):
        compare(right - 1, right, *tolerances(workload, inputs, [right]))


def test_infinities_do_not_widen_the_tolerance() -> None:
    workload = dense(8)
    inputs = random_inputs(workload, 0)
    (right,) = reference(workload, inputs)
    (narrow,) = tolerances(workload, inputs, [right])
    right[0, 0] = np.inf
    (tolerance,) = tolerances(workload, inputs, [right])
    assert tolerance == pytest.approx(narrow, rel=0.01)


def test_a_number_is_compared_as_an_array_is() -> None:
    compare(np.asarray(2.5, "float32"), np.asarray(2.5), 1e-6)
    with pytest.raises(WrongAnswerError, match="largest error"):
        compare(np.asarray(2.6, "float32"), np.asarray(2.5), 1e-6)


def test_a_wrong_shape_is_wrong() -> None:
    with pytest.raises(WrongAnswerError, match=r"\(2, 3\), expected \(3, 2\)"):
        compare(np.zeros((2, 3), np.float32), np.zeros((3, 2)), 1.0)


def test_the_error_function_is_right_to_the_last_digits():
    x = np.array([0.0, -0.0, 1e-300, 0.3, -1.7, 2.5, 2.99, 3.0, -3.01, 5.9, 40.0, np.inf, -np.inf])
    (found,) = reference(Workload.make("erf", {"data": "float64[13]"}), {"data": x})
    np.testing.assert_allclose(found, [math.erf(v) for v in x], rtol=4e-16, atol=0)


@pytest.mark.parametrize("op", ["prod", "cumprod"])
@pytest.mark.parametrize("dtype", [*DTYPES, "int8", "uint8", "int64"])
def test_products_of_random_inputs_say_whether_a_factor_is_missing(op, dtype):
    for size in (1, 7, 300, 20000):
        work = Workload.make(op, {"data": f"{dtype}[{size}]"}, {"axis": 0 if op == "cumprod" else [0]})
        inputs = random_inputs(work, 3)
        (found,) = (np.asarray(x) for x in reference(work, inputs))
        last = float(found.reshape(-1)[-1])
        assert last != 0
        assert 2.0**-60 < abs(last) < 2.0**64
    assert epsilon(dtype) == 0 or 2.0**-14 < abs(last) < 2.0**15


@pytest.mark.parametrize(("data", "dtype"), [
    ("int32", "float32"), ("int8", "float16"), ("uint8", "bfloat16"), ("float32", "int32"), ("float16", "uint8"),
])
def test_products_of_another_dtype_are_numbers_of_it(data, dtype):
    for size in (1, 7, 300, 20000):
        work = Workload.make("cumprod", {"data": f"{data}[{size}]"}, {"axis": 0, "dtype": dtype})
        (found,) = reference(work, random_inputs(work, 3))
        assert (found != 0).all()
        assert epsilon(dtype) == 0 or np.isfinite(found.astype(numpy_dtype(dtype))).all()
        assert size < 300 or len(set(found.tolist())) > 3


@pytest.mark.parametrize("axis", [None, 1])
def test_an_index_far_beyond_its_axis_wraps_at_once(axis: int | None) -> None:
    workload = Workload.make("take", {"data": "float32[1,7]", "indices": "int64[2]"}, {"axis": axis, "mode": "wrap"})
    data = np.arange(7, dtype=np.float32)[None]
    (found,) = reference(workload, {"data": data, "indices": np.array([-(2**63), 2**63 - 1])})
    np.testing.assert_array_equal(found.ravel(), [-(2**63) % 7, (2**63 - 1) % 7])


def test_powers_of_minus_infinity():
    inputs = {"lhs": np.full(9, -np.inf), "rhs": np.array([0.5])}
    (found,) = reference(Workload.make("power", {"lhs": "float64[9]", "rhs": "float64[1]"}), inputs)
    assert (found == np.inf).all()


def test_a_separable_convolution_is_summed_in_float64():
    types = {"data": "float32[1,1,9,9,8]", "depthwise_weight": "float32[8,1,3,3]", "depthwise_bias": "float32[8]",
             "pointwise_weight": "float32[8,8,1,1]"}
    layouts = {"data_layout": "NCHW8c", "out_layout": "NCHW8c"}
    work = Workload.make("depthwise_separable_conv2d", types, layouts)
    (found,) = reference(work, random_inputs(work, 0))
    assert found.dtype == np.float64


@pytest.mark.parametrize("tolerance", [0.0, 1e-3, np.geomspace(1e-9, 1.0, 4096)])
def test_bounds_are_the_outermost_numbers_within_the_tolerance(tolerance: Tolerance) -> None:
    right = np.random.default_rng(0).standard_normal(4096)
    if np.ndim(tolerance) == 0 and not tolerance:
        right = right.astype(np.float32).astype(np.float64)
    found = bounds(right, tolerance, np.dtype(np.float32))
    assert found is not None
    for bound, outwards in zip(found, (-np.inf, np.inf), strict=True):
        beyond = np.nextafter(bound, np.float32(outwards))
        assert bound.dtype == np.float32
        # A number that no float32 is near enough to has bounds that nothing is within.
        assert ((np.abs(beyond - right) > tolerance) | (found[0] > found[1])).all()
        assert ((np.abs(bound - right) <= tolerance) | (found[0] > found[1])).all()
        compare(bound, right, tolerance, found)
    assert bounds(right, tolerance, np.dtype(np.float16)) is None


def test_bounds_accept_no_more_than_the_tolerance() -> None:
    right = np.asarray([1.0, np.inf, np.nan])
    within = bounds(right, 1e-3, np.dtype(np.float32))
    compare(np.asarray([1.0005, np.inf, np.nan], np.float32), right, 1e-3, within)
    for wrong in ([1.002, np.inf, np.nan], [np.nan, np.inf, np.nan], [1.0, -np.inf, np.nan], [1.0, np.inf, 0.0]):
        with pytest.raises(WrongAnswerError):
            compare(np.asarray(wrong, np.float32), right, 1e-3, within)
