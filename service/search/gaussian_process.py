"""A Gaussian process with trends, fast enough to use between two measurements.

Matérn 5/2 with a length scale per group of columns, by maximum a posteriori, as Rasmussen and
Williams, "Gaussian Processes for Machine Learning", chapters 2 (2.7 for the trends) and 5. The scale
of the function is integrated out under an inverse-gamma prior.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_Floating = TypeVar("_Floating", Floats, NDArray[np.float32])

_LEAST_NOISE, _MOST_NOISE = np.log(1e-6), 0.0
_STEPS = 15  # of the optimiser, from each start
_SETTLED = 100
_NOISE_SD = 1.5  # prior deviation of the logarithm of the noise
_SMALL = 32  # size up to which triangles are inverted by a general inverse


class GaussianProcess:
    """Values at places: a trend with unknown coefficients, plus a smooth departure from it.

    Hyper-parameters are a vector of logarithms: the length scales, then the noise's variance in
    units of the function's. Predictions are made in single precision.

    Args:
        groups: for each column of a place, its length scale.
        reach: the expected logarithm of each length scale.
        reach_sd: the prior deviation of it.
        noise: the expected logarithm of the noise.
        scale: the expected deviation of the function, and its weight in trials; None: no prior.
    """

    def __init__(
        self, groups: NDArray[np.intp], reach: Floats, *, reach_sd: float = 0.8, noise: float = -5.8,
        scale: tuple[float, float] | None = None,
    ) -> None:
        self._groups = groups
        self._expected = np.append(reach, noise)
        self._deviation = np.append(np.full(len(reach), reach_sd), _NOISE_SD)
        self._expected_square, self._worth = (scale[0] ** 2, scale[1]) if scale else (0.0, 0.0)
        self.theta = self._expected.copy()

    def tune(self, places: NDArray[Any], values: Floats, trend: Floats) -> Self:
        """Optimise the hyper-parameters, starting from the current and the expected ones."""
        x = places.astype(np.float64)
        best: tuple[float, Floats] | None = None
        starts = [self.theta]
        # With many trials there is one dominant mode, which has been found before.
        if len(values) < _SETTLED and not np.array_equal(self.theta, self._expected):
            starts.append(self._expected)
        for start in starts:
            theta = start.copy()
            _, slope = self._loss(theta, x, values, trend)
            step, sign = np.full(len(theta), 0.3), np.sign(slope)
            for _ in range(_STEPS):  # resilient propagation: only signs of slopes, no line search
                theta = np.clip(theta - sign * step, -4.0, 5.0)
                theta[-1] = np.clip(theta[-1], _LEAST_NOISE, _MOST_NOISE)
                loss, slope = self._loss(theta, x, values, trend)
                turned = np.sign(slope) * sign
                step = np.where(turned < 0, step * 0.5, np.minimum(step * 1.3, 1.0))
                sign = np.where(turned < 0, 0.0, np.sign(slope))
                if best is None or loss < best[0]:
                    best = loss, theta
        assert best is not None
        if np.isfinite(best[0]):
            self.theta = best[1]
        return self

    def _loss(
        self, theta: Floats, x: Floats, values: Floats, trend: Floats
    ) -> tuple[float, Floats]:
        """The negative logarithm of the posterior density, and its gradient."""
        n = len(values)
        scaled = x / np.exp(theta[:-1])[self._groups]
        covariance, weight = _matern(scaled, scaled)
        covariance += trend @ trend.T
        noise = float(np.exp(theta[-1]))
        covariance.flat[:: n + 1] += noise
        try:
            lower = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return np.inf, np.zeros_like(theta)
        root = _invert(lower)
        inverse = root.T @ root
        alpha = inverse @ values
        square = self._square(float(values @ alpha), n)
        loss = 0.5 * (n + self._worth) * np.log(square) + np.log(lower.diagonal()).sum()
        slope = inverse - np.outer(alpha, alpha) / square
        gradient = np.empty_like(theta)
        gradient[-1] = 0.5 * noise * slope.trace()
        # Σ slopeᵢⱼ weightᵢⱼ (xᵢ - xⱼ)² of each column, without a matrix per column.
        slope *= weight
        columns = 2 * (slope.sum(axis=1) @ (scaled * scaled)) - 2 * (scaled * (slope @ scaled)).sum(axis=0)
        gradient[:-1] = 0.5 * np.bincount(self._groups, columns, minlength=len(theta) - 1)
        off = (theta - self._expected) / self._deviation
        return float(loss + 0.5 * off @ off), gradient + off / self._deviation

    def _square(self, fit: float, n: int) -> float:
        return max((fit + self._worth * self._expected_square) / max(n + self._worth, 1e-9), 1e-10)

    def fit(self, places: NDArray[Any], values: Floats, trend: Floats) -> Self:
        """Learn values at places.

        Args:
            places: one row per trial.
            values: the values, less the known part of the trend.
            trend: columns of the trend's functions at the places, each times the prior deviation of its
                coefficient, in units of the function's.
        """
        self._scales = np.exp(self.theta[:-1])[self._groups].astype(np.float32)
        self._x = (places / self._scales).astype(np.float32)
        self._trend = trend.astype(np.float32)
        n = len(values)
        x = self._x.astype(np.float64)
        covariance = _matern(x, x)[0] + trend @ trend.T
        self.noise = float(np.exp(self.theta[-1]))
        while True:
            noisy = covariance + self.noise * np.eye(n)
            try:
                root = _invert(np.linalg.cholesky(noisy))
            except np.linalg.LinAlgError:
                self.noise *= 10  # equal places with too little noise: singular by rounding
            else:
                break
        alpha = root.T @ (root @ values)
        self.square = self._square(float(values @ alpha), n)
        self._alpha = alpha.astype(np.float32)
        self._root = root.astype(np.float32)
        return self

    @property
    def weighted(self) -> NDArray[np.float32]:
        """The inputs of means without a trend: see `interpolate`."""
        return np.hstack([self._x, self._alpha[:, None]])

    def predict(self, places: NDArray[Any], trend: Floats) -> Posterior:
        """The posterior at other places."""
        return Posterior(self, (places / self._scales).astype(np.float32), trend.astype(np.float32))


def interpolate(
    weighted: NDArray[np.float32], groups: NDArray[np.intp], theta: Floats, places: NDArray[Any]
) -> Floats:
    """The means of a process without a trend at other places, from its `weighted` places."""
    x = (places / np.exp(theta[:-1])[groups]).astype(np.float32)
    return np.asarray(_kernel(x, weighted[:, :-1]) @ weighted[:, -1], dtype=np.float64)


class Posterior:
    """Means and variances at candidates, to be conditioned on measuring some of them."""

    def __init__(self, process: GaussianProcess, x: NDArray[np.float32], trend: NDArray[np.float32]) -> None:
        self._process, self._x, self._trend = process, x, trend
        cross = _kernel(x, process._x) + trend @ process._trend.T
        self.mean = np.asarray(cross @ process._alpha, dtype=np.float64)
        known = cross @ process._root.T
        self._known = [known]
        explained = np.einsum("ij,ij->i", known, known).astype(np.float64)
        prior = 1 + np.einsum("ij,ij->i", trend, trend).astype(np.float64)
        self.variance = process.square * np.maximum(prior - explained, 1e-7)

    def condition(self, row: int) -> None:
        """Condition on the value at `row`, which lowers the variance near it."""
        process = self._process
        covariance = _kernel(self._x[row : row + 1], self._x)[0] + self._trend @ self._trend[row]
        for known in self._known:
            covariance -= known @ known[row]
        scale = np.sqrt(self.variance[row] / process.square + process.noise)
        column = (covariance / scale).astype(np.float32)
        self._known.append(column[:, None])
        self.variance = np.maximum(self.variance - process.square * column.astype(np.float64) ** 2, 1e-9)


def _invert(lower: NDArray[Any]) -> NDArray[Any]:
    """The inverse of a lower triangle, by halves, at an eighth of the cost of a general inverse."""
    n = len(lower)
    if n <= _SMALL:
        return np.linalg.inv(lower)
    half = n // 2
    inverse = np.zeros_like(lower)
    inverse[:half, :half] = _invert(lower[:half, :half])
    inverse[half:, half:] = _invert(lower[half:, half:])
    inverse[half:, :half] = -inverse[half:, half:] @ lower[half:, :half] @ inverse[:half, :half]
    return inverse


def _squares(a: _Floating, b: _Floating) -> _Floating:
    """Five times the squared distances."""
    squares = a @ (-10 * b.T)
    squares += 5 * (a * a).sum(axis=1)[:, None]
    squares += 5 * (b * b).sum(axis=1)
    np.maximum(squares, 0, out=squares)
    return squares


def _matern(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """The kernel, and the factor of squared differences in its derivative by the logarithm of a scale."""
    squares = _squares(a, b)
    distances = np.sqrt(squares)
    decay = np.exp(-distances)
    return (1 + distances + squares / 3) * decay, (5 / 3) * (1 + distances) * decay


def _kernel(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    squares = _squares(a, b)
    distances = np.sqrt(squares)
    squares /= 3
    squares += distances
    squares += 1
    np.exp(-distances, out=distances)
    squares *= distances
    return squares
