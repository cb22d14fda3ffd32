"""Division, rounded down and towards 0, of numbers that trap or round: zeros, the smallest integer, infinities."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.compile import compile as compile_graph
from strategy.expr import Tuple, Var
from strategy.network.layer import truncated_quotient
from strategy.ops.broadcast import floor_divide, floor_mod

LEAST = np.iinfo("int32").min


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        ("int32", [0, -1, 1, 3, -3, LEAST]),
        ("float32", [0.0, -0.0, 1, -1, 0.1, np.inf, -np.inf, np.nan, 7.3, 1e30, -2.5]),
    ],
)
def test_pairs_have_numpys_quotient_and_remainder(dtype: str, numbers: list[float]) -> None:
    x, y = (a.ravel().copy() for a in np.meshgrid(np.array(numbers, dtype), np.array(numbers, dtype)))
    lhs, rhs = (Var(name, f"{dtype}[{x.size}]") for name in ("lhs", "rhs"))
    quotient, rest = compile_graph(Tuple([floor_divide(lhs, rhs), floor_mod(lhs, rhs)]), "cpu")(x, y)
    with np.errstate(all="ignore"):
        for got, right in ((quotient, x // y), (rest, x % y)):
            np.testing.assert_allclose(got, right, rtol=1e-6)
            np.testing.assert_array_equal(np.signbit(got[right == 0]), np.signbit(right[right == 0]))


def test_remainders_of_numbers_of_any_size_are_exact() -> None:
    draw = np.random.default_rng(0)
    x, y = (draw.integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32) for _ in range(2))
    x[:4], y[:4] = np.finfo(np.float32).max, np.float32([1e-45, 3e-45, 1.1754944e-38, 0.1])
    near = slice(4, 8_000)  # quotients around a whole number
    with np.errstate(all="ignore"):
        x[near] = y[near] * draw.integers(1, 2**24, 7_996).astype(np.float32)
        right = x % y
    lhs, rhs = (Var(name, "float32[20000]") for name in ("lhs", "rhs"))
    (found,) = compile_graph(Tuple([floor_mod(lhs, rhs)]), "cpu")(x, y)
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_quotients_are_rounded_towards_zero(dtype: str) -> None:
    least = np.iinfo(dtype).min
    numbers = np.array([0, -1, 1, 2, 3, -3, 7, -7, least, least + 1], dtype)
    x, y = (a.ravel().copy() for a in np.meshgrid(numbers, numbers))
    lhs, rhs = (Var(name, f"{dtype}[{x.size}]") for name in ("lhs", "rhs"))
    (found,) = compile_graph(Tuple([truncated_quotient(lhs, rhs)]), "cpu")(x, y)
    right = [int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0 for a, b in zip(
        x.tolist(), y.tolist(), strict=True
    )]
    np.testing.assert_array_equal(found, np.array(right).astype(dtype))
