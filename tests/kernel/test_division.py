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


def test_remainders_of_float32_are_exact() -> None:
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, (2, 40_000), dtype=np.uint32)
    divisors = rng.uniform(-8, 8, 40_000).astype(np.float32)
    times = rng.integers(-(1 << 25), 1 << 25, divisors.size) >> rng.integers(0, 25, divisors.size)
    near = np.nextafter((divisors * times.astype(np.float64)).astype(np.float32), np.float32(0))
    far = [(rng.integers(0, 1 << 20, 10_000) + n).astype(np.uint32).view(np.float32) for n in (0x7F60_0000, 1)]
    x, y = np.concatenate([bits.view(np.float32), [near, divisors], far], axis=1)
    lhs, rhs = (Var(name, f"float32[{x.size}]") for name in ("lhs", "rhs"))
    quotient, rest = compile_graph(Tuple([floor_divide(lhs, rhs), floor_mod(lhs, rhs)]), "cpu")(x, y)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(rest, np.mod(x, y))
        np.testing.assert_allclose(quotient, np.floor_divide(x, y), rtol=1e-6)


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
