"""A Gaussian process over the ranks of features: smooth where trees are steps.

Matérn 5/2 with a length scale per column, fitted by maximum a posteriori (L-BFGS on analytic
gradients), as Rasmussen and Williams, "Gaussian Processes for Machine Learning", chapters 2 and 5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import (  # type: ignore[import-untyped,unused-ignore]
    cho_solve,
    solve_triangular,
)
from scipy.optimize import minimize  # type: ignore[import-untyped,unused-ignore]

Floats = NDArray[np.float64]

MAX_TRIALS = 200  # a fit takes cubic time: beyond this the best half and a spread of the others
STEPS = 10
_ROOT5 = 5.0**0.5
_JITTER = 1e-6
_NOISE_PRIOR = -3.0  # of the logarithm, in units of the times' deviation


def fit_and_predict(trials: NDArray[Any], values: Floats, pool: NDArray[Any]) -> tuple[Floats, Floats]:
    """Mean and standard deviation at the rows of `pool`, given values at the rows of `trials`."""
    x, p = _ranks(trials, pool)
    if len(values) > MAX_TRIALS:
        kept = _kept(values)
        x, values = x[kept], values[kept]
    centre, scale = float(values.mean()), float(values.std()) or 1.0
    y = (values - centre) / scale
    theta = _fitted(x, y)
    weights, variance = np.exp(-theta[:-2]), float(np.exp(2 * theta[-2]))
    noise = float(np.exp(2 * theta[-1]))
    covariance = variance * _matern(_distances(x * weights, x * weights))
    covariance.flat[:: len(x) + 1] += noise + _JITTER
    lower = np.linalg.cholesky(covariance)
    cross = variance * _matern(_distances(p * weights, x * weights))
    mean = cross @ cho_solve((lower, True), y)
    explained = solve_triangular(lower, cross.T, lower=True)
    spread = np.sqrt(np.maximum(variance - (explained**2).sum(axis=0), 1e-9))
    return mean * scale + centre, spread * scale


def _ranks(trials: NDArray[Any], pool: NDArray[Any]) -> tuple[Floats, Floats]:
    """Each column as the rank of its value among those there are, 0 to 1: 1, 2, 4, 8 are even steps."""
    both = np.nan_to_num(np.concatenate([trials, pool]).astype(np.float64), nan=-1e30)
    columns = []
    for column in both.T:
        values, places = np.unique(column, return_inverse=True)
        if len(values) > 1:
            columns.append(places / (len(values) - 1))
    ranks = np.array(columns).T if columns else np.zeros((len(both), 1))
    return ranks[: len(trials)], ranks[len(trials) :]


def _kept(values: Floats) -> NDArray[np.intp]:
    order = np.argsort(values, kind="stable")
    half = MAX_TRIALS // 2
    others = np.linspace(half, len(values) - 1, MAX_TRIALS - half).astype(np.intp)
    return np.concatenate([order[:half], order[others]])


def _fitted(x: Floats, y: Floats) -> Floats:
    """Logarithms of the length scales, of the signal's deviation and of the noise's."""
    n, d = x.shape
    squares = ((x[:, None, :] - x[None, :, :]) ** 2).reshape(n * n, d).T.copy()
    prior = np.zeros(d + 2)
    prior[-1] = _NOISE_PRIOR

    def loss(theta: Floats) -> tuple[float, Floats]:
        weights, variance, noise = np.exp(-2 * theta[:d]), np.exp(2 * theta[d]), np.exp(2 * theta[-1])
        r2 = (weights @ squares).reshape(n, n)
        r = np.sqrt(r2)
        decay = np.exp(-_ROOT5 * r)
        signal = variance * (1 + _ROOT5 * r + 5 / 3 * r2) * decay
        covariance = signal.copy()
        covariance.flat[:: n + 1] += noise + _JITTER
        try:
            lower = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return 1e9, np.zeros_like(theta)
        inverse = cho_solve((lower, True), np.eye(n))
        alpha = inverse @ y
        slope = inverse - np.outer(alpha, alpha)
        by_scale = (variance * 5 / 3 * (1 + _ROOT5 * r) * decay * slope).ravel()
        gradient = np.empty(d + 2)
        gradient[:d] = 0.5 * (squares @ by_scale) * weights
        gradient[d] = (slope * signal).sum()
        gradient[-1] = noise * np.trace(slope)
        off = theta - prior
        value = 0.5 * y @ alpha + np.log(np.diag(lower)).sum() + 0.5 * off @ off
        return float(value), gradient + off

    bounds = [(-3.0, 4.0)] * d + [(-3.0, 3.0), (-6.0, 0.0)]
    options = {"maxiter": STEPS}
    fit = minimize(loss, prior, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.asarray(fit.x, dtype=np.float64)


def _distances(a: Floats, b: Floats) -> Floats:
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2 * a @ b.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def _matern(r: Floats) -> Floats:
    return np.asarray((1 + _ROOT5 * r + 5 / 3 * r * r) * np.exp(-_ROOT5 * r))
