"""The transforms of winograd's convolutions are exact, and the larger one is precise enough."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.ops.conv2d.transform import F2, F4, Transform
from strategy.workload import Workload
from workers.reference import tolerances


def convolve(transform: Transform, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Tiles of [c, …, alpha, alpha] with [c, 3, 3], in the dtype of the data, channel after channel."""
    to_data, to_weight, back = (
        np.asarray(m, data.dtype) for m in (transform.data, transform.weight, transform.inverse)
    )
    product = np.zeros(data.shape[1:], data.dtype)
    for d, w in zip(data, weight, strict=True):
        product += (to_data @ d @ to_data.T) * (to_weight @ w @ to_weight.T)
    return back @ product @ back.T


def direct(tile: int, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return sum(
        np.einsum("c...ij,c->...ij", data[..., y : y + tile, x : x + tile], weight[:, y, x])
        for y in range(3)
        for x in range(3)
    )


@pytest.mark.parametrize("transform", [F2, F4], ids=["2x2", "4x4"])
def test_it_is_the_convolution(transform):
    rng = np.random.default_rng(0)
    data = rng.uniform(-1, 1, (5, transform.alpha, transform.alpha))
    weight = rng.uniform(-1, 1, (5, 3, 3))
    expected = direct(transform.tile, data, weight)
    np.testing.assert_allclose(convolve(transform, data, weight), expected, atol=1e-12)


@pytest.mark.sample(1)
@pytest.mark.parametrize("channels", [16, 64])
@pytest.mark.parametrize("transform", [F2, F4], ids=["2x2", "4x4"])
def test_float32_is_within_what_a_convolution_may_be_off(transform, channels):
    """On as many outputs as a layer has, one of which is further off than most."""
    rng = np.random.default_rng(1)
    shape = (channels, 64 * 56 * 56 // transform.tile**2, transform.alpha, transform.alpha)
    data = rng.uniform(-1, 1, shape).astype("float32")
    weight = rng.uniform(-1, 1, (channels, 3, 3)).astype("float32")
    right = direct(transform.tile, data.astype("float64"), weight.astype("float64"))
    workload = Workload.make(
        "conv2d", {"data": f"float32[1,{channels},56,56]", "weight": f"float32[64,{channels},3,3]"}, {"padding": 1}
    )
    (tolerance,) = tolerances(workload, {}, [right])
    error = np.abs(convolve(transform, data, weight) - right).max()
    assert error < 0.75 * tolerance
