"""The mathematics of one proposal: the candidates to try next, given the trials so far.

Three Gaussian processes model the trials: log-seconds; performance, the ratio of the best time to the time, which
compresses slow configurations; and, with a prior from other tasks' records, the departure from it. A batch takes
candidates of largest expected improvement one by one, treating chosen ones as measured (Ginsbourger et al.,
"Kriging is well-suited to parallelize optimization", 2010). A part of the proposals ignores the prior, which may
mislead.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.search.embedding import Places
from service.search.gaussian_process import Floats, GaussianProcess, Posterior, interpolate

ENOUGH = 8  # trials from which the processes without a prior are used
MOST_TRIALS = 400  # a fit takes cubic time: beyond this, the best half and a sample of the others
MOST_TUNED = 200  # the same for hyper-parameters, whose fit takes many steps
# Without trials, take the farthest of a few random candidates (Mitchell, "Spectrally optimal sampling for
# distribution ray tracing", 1991), as the farthest of all are corners, where kernels are slow.
FEW = 12
FREE = 0.125  # share of the proposals that ignore priors
UNLIKELY = 0.1  # least probability of running, relative to the likeliest candidate
_LIKELY = 0.5  # the same, to count as likely
_INTERCEPT, _SLOPE = 3.0, 2.0  # prior deviations of the coefficients, in units of the departure's
_DEPARTURE = (0.5, 4.0)  # expected deviation, in units of the prior's; and its weight in trials
VIEWS = 4  # log-seconds, performance, departure from the prior, failure


class Request(NamedTuple):
    """The inputs of a proposal. Arrays have a row per trial, pending trial, or candidate.

    Attributes:
        groups, reach: of the columns of places; see `Embedding`.
        theta: hyper-parameters of the processes, a row each, from the last answer; NaN at first.
        tune: fit the hyper-parameters again.
        n: the number of candidates to choose.
        places, log_s: the trials; NaN for a failure.
        prior: log-seconds by each source of transfer learning, in columns.
        risk: the probability of failure by the sources.
        pending: the pending trials.
        pool: the candidates.
    """

    groups: NDArray[np.intp]
    reach: Floats
    theta: Floats
    tune: bool
    n: int
    places: Places
    log_s: Floats
    prior: Floats
    risk: Floats
    pending: Places
    pending_prior: Floats
    pool: Places
    pool_prior: Floats
    pool_risk: Floats


class Proposal(NamedTuple):
    """Rows of the pool, the most promising first.

    Attributes:
        rows: the chosen candidates.
        front: mean and deviation of log-seconds of the Pareto front of likely candidates, a row each; empty
            if too little is known.
        theta: the hyper-parameters for the next request.
    """

    rows: NDArray[np.intp]
    front: Floats
    theta: Floats


class _View:
    """A Gaussian process over pool and pending trials, and the best value to improve on.

    A value times `scale` plus `centre` is the modelled quantity (log-seconds or performance).
    """

    def __init__(
        self, posterior: Posterior, best: float, pending: int, centre: float = 0.0, scale: float = 1.0
    ) -> None:
        self.posterior, self.best = posterior, best
        self._centre, self._scale = centre, scale
        for row in range(len(posterior.mean) - pending, len(posterior.mean)):
            posterior.condition(row)

    def front(self, likely: NDArray[np.bool_]) -> Floats:
        """Mean and deviation of the Pareto front of likely candidates."""
        mean = self.posterior.mean[: len(likely)][likely] * self._scale + self._centre
        deviation = np.sqrt(self.posterior.variance[: len(likely)][likely]) * self._scale
        order = np.lexsort((-deviation, mean))
        mean, deviation = mean[order], deviation[order]
        before = np.append(-np.inf, np.maximum.accumulate(deviation)[:-1])
        return np.asarray(np.stack([mean, deviation], axis=1)[deviation > before], dtype=np.float64)

    def improvement(self, n: int) -> Floats:
        mean, deviation = self.posterior.mean[:n], np.sqrt(self.posterior.variance[:n])
        return expected_improvement(mean, deviation, self.best)


def propose(request: Request) -> Proposal:
    """Choose `request.n` rows of the pool, fewer if it has fewer. Deterministic."""
    size = len(request.pool)
    n = min(request.n, size)
    theta = request.theta.copy()
    worked = np.isfinite(request.log_s)
    valid = _validity(request, theta)
    likely = valid >= UNLIKELY * valid.max(initial=0.0)
    spot = np.concatenate([request.pool, request.pending])
    open_views: list[_View] = []
    front = np.zeros((0, 2))
    if len(worked) >= ENOUGH and worked.sum() >= 3:
        open_views = _free_views(request, _kept(request.log_s), spot, theta)
        front = open_views[0].front(valid >= _LIKELY * valid.max(initial=0.0))
    guided: list[_View] = []
    if request.prior.shape[1]:
        guided = [_guided_view(request, spot, theta)]
    before = len(worked) + len(request.pending)
    free = int((before + n) * FREE) - int(before * FREE) if guided else n
    taken = np.zeros(size, dtype=bool)
    room = _distances(request) if not open_views else None
    chosen: list[int] = []
    for i in range(n):
        # Proposals without the prior are spread evenly over the batch.
        turn_free = (i + 1) * free // n > i * free // n
        if turn_free and room is not None:
            worth = _remoteness(room, valid, i)
        else:
            worth = _worth(open_views if turn_free else guided, valid, taken)
        # Candidates that most likely fail come last, whatever their gain.
        worth = np.where(likely, worth, valid - 2)
        row = int(np.argmax(np.where(taken, -3.0, worth)))
        taken[row] = True
        chosen.append(row)
        for view in (*open_views, *guided):
            view.posterior.condition(row)
        if room is not None:
            room = np.minimum(room, _squared(request.pool, request.pool[row]))
    return Proposal(np.array(chosen, dtype=np.intp), front, theta)


def _remoteness(room: Floats, valid: Floats, turn: int) -> Floats:
    """The distances, weighted by validity, of a few candidates: others at each turn."""
    step = max(len(room) // FEW, 1)
    few = np.arange(len(room)) % step == turn % step
    return np.where(few, np.minimum(room, 1e9) * valid, 0.0)


def _worth(views: list[_View], valid: Floats, taken: NDArray[np.bool_]) -> Floats:
    """The mean of the processes' expected improvements, each relative to its largest."""
    total = np.zeros(len(valid))
    for view in views:
        gain = view.improvement(len(valid)) * valid
        total += gain / max(float(gain[~taken].max()), 1e-300)
    return total


def _free_views(
    request: Request, rows: NDArray[np.intp], spot: Places, theta: Floats
) -> list[_View]:
    log_s = request.log_s[rows]
    places, none = request.places[rows], np.zeros((len(rows), 0))
    few = _spread(log_s, MOST_TUNED)
    views = []
    for i, raw in enumerate((log_s, -np.exp(log_s.min() - log_s))):
        centre, scale = float(raw.mean()), float(raw.std()) or 1.0
        values = (raw - centre) / scale
        process = GaussianProcess(request.groups, request.reach)
        _fit(process, theta, i, places, values, none, few if request.tune else None)
        posterior = process.predict(spot, np.zeros((len(spot), 0)))
        views.append(_View(posterior, float(values.min()), len(request.pending), centre, scale))
    return views


def _guided_view(request: Request, spot: Places, theta: Floats) -> _View:
    """Log-seconds as the sources' mean, a linear function of each, and a smooth departure."""
    rows = _kept(request.log_s)
    source = np.concatenate([request.prior[rows], request.pool_prior, request.pending_prior])
    centre, scale = source.mean(axis=0), float(source.std(axis=0).mean()) or 1.0
    source = (source - centre) / scale
    mean = source.mean(axis=1)
    k = len(rows)
    log_s = request.log_s[rows] / scale
    offset = float(np.median(log_s - mean[:k])) if k else 0.0
    values = log_s - offset
    # Before the first result the coefficients are fixed, as their uncertainty would favour extreme predictions.
    doubt = 1.0 if k else 1e-3
    trend = np.concatenate([np.full((len(source), 1), _INTERCEPT), _SLOPE * source], axis=1) * doubt
    process = GaussianProcess(
        request.groups, request.reach, reach_sd=0.7, noise=-4.6, scale=_DEPARTURE
    )
    few = _spread(log_s, MOST_TUNED) if request.tune and k >= ENOUGH else None
    _fit(process, theta, 2, request.places[rows], values - mean[:k], trend[:k], few)
    posterior = process.predict(spot, trend[k:])
    posterior.mean = posterior.mean + mean[k:]
    best = float(values.min()) if k else float(posterior.mean.min())
    return _View(posterior, best, len(request.pending))


def _validity(request: Request, theta: Floats) -> Floats:
    """The probability that each candidate runs."""
    failed = np.isnan(request.log_s)
    risk = request.pool_risk
    if failed.any():
        rows = _latest(failed, MOST_TRIALS)
        label = failed[rows].astype(np.float64) - request.risk[rows]
        centre = float(label.mean())
        process = GaussianProcess(request.groups, request.reach)
        few = _latest(failed[rows], MOST_TUNED) if request.tune and len(rows) >= ENOUGH else None
        _fit(process, theta, 3, request.places[rows], label - centre, np.zeros((len(rows), 0)), few)
        risk = risk + centre
        risk += interpolate(process.weighted, request.groups, process.theta, request.pool)
    return np.clip(1 - risk, 0.01, 1.0)


def _fit(
    process: GaussianProcess, theta: Floats, view: int, places: Places, values: Floats, trend: Floats,
    few: NDArray[np.intp] | None,
) -> None:
    """Fit the process of a view, from its hyper-parameters in `theta`; first these to a few of the rows, if given."""
    if np.isfinite(theta[view]).all():
        process.theta = theta[view].copy()
    if few is not None:
        theta[view] = process.tune(places[few], values[few], trend[few]).theta
    process.fit(places, values, trend)


def _kept(log_s: Floats) -> NDArray[np.intp]:
    """Rows of the trials used by a process of times."""
    worked = np.flatnonzero(np.isfinite(log_s))
    return worked[_spread(log_s[worked], MOST_TRIALS)]


def _spread(log_s: Floats, most: int) -> NDArray[np.intp]:
    """Up to `most` rows, in their order: the best half, and others evenly by rank."""
    if len(log_s) <= most:
        return np.arange(len(log_s))
    order = np.argsort(log_s, kind="stable")
    others = np.linspace(most // 2, len(order) - 1, most - most // 2).astype(np.intp)
    return np.sort(np.concatenate([order[: most // 2], order[others]]))


def _latest(failed: NDArray[np.bool_], most: int) -> NDArray[np.intp]:
    """Up to `most` rows, half of each outcome."""
    half = most // 2
    return np.sort(np.concatenate([np.flatnonzero(failed)[-half:], np.flatnonzero(~failed)[-half:]]))


def _distances(request: Request) -> Floats:
    """Squared distances of the candidates to the nearest tried or pending place."""
    nearest = np.full(len(request.pool), np.inf)
    for place in (*request.places, *request.pending):
        nearest = np.minimum(nearest, _squared(request.pool, place))
    return nearest


def _squared(places: Places, place: Places) -> Floats:
    return np.asarray(((places - place) ** 2).sum(axis=1), dtype=np.float64)


def expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """The expected improvement of each value below `best`."""
    # Loaded here: a service asks a child for proposals, and would take a fifth longer to load.
    from scipy.special import ndtr

    z = (best - mean) / deviation
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    return np.asarray(np.maximum(deviation * (z * ndtr(z) + density), 0.0))
