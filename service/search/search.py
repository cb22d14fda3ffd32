"""Ask/tell search over one configuration space.

The first trials fill the space evenly, or follow other tasks' records, if any. Then the model chooses from a pool
of candidates: neighbours of the best so far, and random ones. Failures are learnt by a model of validity, never
as a large time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from service.search.child import CostModel, CostModelError
from service.search.embedding import Embedding
from service.search.features import Digits
from service.search.gaussian_process import Floats
from service.search.pool import Candidates, Key
from service.search.proposal import VIEWS, Request, expected_improvement
from service.search.transfer import Priors, Source, lower
from strategy.space import Config, ConfigError, ConfigSpace
from strategy.workload import Workload

log = logging.getLogger(__name__)
POOL = 2000
LEAST_POOL = 800
EFFORT = 600_000  # maximum of trials times candidates times processes, which bounds the time of a proposal
PRIOR_POOL = 20_000  # rows of a table, from which a prior chooses half of the pool
ELITE = 12  # configurations whose neighbours are candidates
NEIGHBOURS = 400
REFIT = 1.25  # hyper-parameters are fitted again when the trials have grown by this factor


class Search:
    """Ask/tell search over one space.

    Any number of proposals may be pending, and results come in any order. Configurations that differ in idle knobs
    alone are one, which is proposed with the fallback's values of these. Deterministic for a seed. Memory grows with
    the trials, not with the space. Not thread-safe.

    Args:
        seed: the seed of all random choices.
        model: chooses among candidates; None: random proposals.
        sources: other tasks' records, the most similar first. They guide the first trials; the search's own
            trials soon outweigh them.
        listed: the digits of the valid configurations, if they are a list instead of constraints.
        first: configurations to propose first if they are in the space: the best of another version.
        workload, target: those of the space, for sources of other shapes.
    """

    def __init__(
        self,
        space: ConfigSpace,
        seed: int = 0,
        model: CostModel | None = None,
        sources: Sequence[Source] = (),
        listed: Digits | None = None,
        first: Sequence[Config] = (),
        workload: Workload | None = None,
        target: str = "",
    ) -> None:
        self.space = space
        self._first = list(first)
        self.model = model
        self._rng = np.random.default_rng(seed)
        self._candidates = Candidates(space, self._rng, listed)
        self._told: dict[Key, float] = {}  # log-seconds, NaN for a failure
        self._pending: dict[Key, None] = {}
        self._embedding = Embedding(space)
        self._workload, self._target = workload, target
        self._sources = list(sources)
        self._priors: Priors | None = None
        self._table_prior: tuple[Floats, Floats] | None = None
        self._theta = np.full((VIEWS, len(self._embedding.reach) + 1), np.nan)
        self._tuned_at = 0
        self._front: Floats = np.zeros((0, 2))
        self._is_random = False  # the model failed at the last proposal

    def teach(self, sources: Sequence[Source]) -> None:
        """Replace the sources of transfer learning, from the next `ask` on."""
        if list(sources) != self._sources:
            self._sources = list(sources)
            self._priors = self._table_prior = None

    @property
    def trials(self) -> int:
        """The number of trials told."""
        return len(self._told)

    @property
    def best_s(self) -> float | None:
        """The lowest time told."""
        times = [t for t in self._told.values() if not math.isnan(t)]
        return math.exp(min(times)) if times else None

    @property
    def lower_bound_s(self) -> float | None:
        """The lowest possible time in the last pool (mean less two deviations); None before the first."""
        if not len(self._front):
            return None
        return math.exp(float((self._front[:, 0] - 2 * self._front[:, 1]).min()))

    def expected_gain(self, to_beat_s: float) -> float | None:
        """The largest expected saving of a trial, as a share of `to_beat_s`.

        The expected improvement of the logarithm at the last `ask`; None if too little was known.
        """
        if not len(self._front):
            return None
        mean, deviation = self._front.T
        gain = expected_improvement(mean, deviation, math.log(to_beat_s))
        return 1 - math.exp(-float(gain.max()))

    @property
    def exhausted(self) -> bool:
        """True if every configuration of the space has been proposed or told."""
        return self._candidates.exhausted

    def tell(self, config: Mapping[str, object], seconds: float | None) -> None:
        """Record the seconds of a configuration, None for a failure; it is not proposed again.

        Configurations outside of this space are ignored. Of repeated times, the lower counts.
        """
        key = self._key(config)
        if key is None:
            return
        self._candidates.take(key)
        self._pending.pop(key, None)
        self._told[key] = lower(self._told.get(key, math.nan), seconds)

    def skip(self, config: Mapping[str, object]) -> None:
        """Note that a trial of a configuration says nothing, such as on another device: it is not proposed again."""
        key = self._key(config)
        if key is not None:
            self._candidates.take(key)
            self._pending.pop(key, None)

    def avoid(self, configs: Iterable[Mapping[str, object]]) -> None:
        """Mark configurations as pending, unless they were told or skipped: they are not proposed again."""
        for config in configs:
            key = self._key(config)
            if key is not None and not self._candidates.is_taken(key):
                self._start([key])

    def release(self, config: Mapping[str, object]) -> None:
        """Let a pending configuration be proposed, as nobody tries it any more."""
        key = self._key(config)
        if key is not None and key in self._pending:
            del self._pending[key]
            self._candidates.give_back(key)

    def _key(self, config: Mapping[str, object]) -> Key | None:
        """The digits of a configuration, or of the candidate with the same code; None if it is not in this space."""
        try:
            key = _tuple(self._candidates.settle(self._digits([self.space.digits(config)]))[0])
        except ConfigError:
            return None
        return key if self._candidates.contains(key) else None

    def ask(self, n: int) -> list[Config]:
        """Propose up to `n` new configurations; fewer if no more are left.

        The best of another version come first, then the most promising ones. The fallback comes once: before these, or
        behind them if there are sources to judge by.
        """
        carried = self._carry(n)
        fallback = self._fall_back(n - len(carried))
        n -= len(carried) + len(fallback)
        chosen = self._propose(n)
        chosen += self._random(n - len(chosen))
        order = [*carried, *chosen, *fallback] if self._sources else [*carried, *fallback, *chosen]
        knobs = self.space.knobs
        return [Config({k.name: k.values[d] for k, d in zip(knobs, key, strict=True)}) for key in order]

    def _carry(self, n: int) -> list[Key]:
        chosen: list[Key] = []
        while self._first and len(chosen) < n:
            key = self._key(self._first.pop(0))
            if key is not None and not self._candidates.is_taken(key):
                chosen += self._start([key])
        return chosen

    def _fall_back(self, n: int) -> list[Key]:
        """The fallback, if it is not taken, and one of `n` is left for it."""
        key = self._key(self.space.fallback) if n > 0 else None
        return [] if key is None or self._candidates.is_taken(key) else self._start([key])

    def _start(self, chosen: list[Key]) -> list[Key]:
        for key in chosen:
            self._candidates.take(key)
            self._pending[key] = None
        return chosen

    def _random(self, n: int) -> list[Key]:
        return self._start([_tuple(row) for row in self._candidates.draw(n)] if n > 0 else [])

    def _propose(self, n: int) -> list[Key]:
        if n <= 0 or self.model is None:
            return []
        try:
            priors = self._learn(self.model)
            pool, prior, risk = self._pool(priors)
            if not len(pool):
                return []
            tune = len(self._told) >= self._tuned_at * REFIT
            proposal = self.model.propose(self._request(priors, pool, prior, risk, n, tune=tune))
        except CostModelError as error:
            if not self._is_random:
                log.warning("proposals for %s are random until it answers: %s", self._workload or "a space", error)
            self._is_random = True
            return []
        self._is_random = False
        if tune:
            self._tuned_at = len(self._told)
        self._theta = proposal.theta
        self._front = proposal.front
        return self._start([_tuple(row) for row in pool[proposal.rows]])

    def _request(
        self, priors: Priors, pool: Digits, pool_prior: Floats, pool_risk: Floats, n: int, *, tune: bool
    ) -> Request:
        trials, pending = self._digits(self._told), self._digits(self._pending)
        place = self._embedding.place
        prior, risk = self._prior_at(priors, trials)
        return Request(
            groups=self._embedding.groups, reach=priors.reach, theta=self._theta, tune=tune, n=n,
            places=place(trials), log_s=np.array(list(self._told.values()), dtype=np.float64),
            prior=prior, risk=risk,
            pending=place(pending), pending_prior=self._prior_at(priors, pending)[0],
            pool=place(pool), pool_prior=pool_prior, pool_risk=pool_risk,
        )

    def _learn(self, model: CostModel) -> Priors:
        """Learn the priors of the sources, once."""
        if self._priors is None:
            self._priors = Priors(
                self.space, self._embedding, self._workload, self._target, self._sources, model
            )
            table = self._candidates.table
            if self._priors.count and table is not None:
                self._table_prior = self._priors.predict(table)
        return self._priors

    def _prior_at(self, priors: Priors, digits: Digits) -> tuple[Floats, Floats]:
        """The priors' predictions; those of a table are computed once."""
        if self._table_prior is None:
            return priors.predict(digits)
        rows = self._candidates.rows(digits)
        return self._table_prior[0][rows], self._table_prior[1][rows]

    def _pool(self, priors: Priors) -> tuple[Digits, Floats, Floats]:
        """Candidates: neighbours of the best, those preferred by a prior, and random ones.

        With the priors' predictions, as `_prior_at`.
        """
        ranked = sorted((t, key) for key, t in self._told.items() if not math.isnan(t))
        near = self._candidates.near([key for _, key in ranked[:ELITE]], NEIGHBOURS)
        # Without a table, the priors' predictions are computed each time, which costs as much as a process.
        views = 3 if priors.count and self._table_prior is None else 2
        size = min(POOL, max(LEAST_POOL, EFFORT // (views * max(len(self._told), 1))))
        drawn = size
        if priors.count:
            drawn = PRIOR_POOL if self._table_prior is not None else 2 * size
        both = np.concatenate([near, self._candidates.draw(drawn)])
        pool = self._digits(dict.fromkeys(map(tuple, both.tolist())))
        prior, risk = self._prior_at(priors, pool)
        if len(pool) > size + len(near):
            liked = len(near) + np.argsort(prior[len(near) :].mean(axis=1), kind="stable")
            kept = np.concatenate([np.arange(len(near)), liked[: size // 2], np.sort(liked[size // 2 :])[: size // 2]])
            pool, prior, risk = pool[kept], prior[kept], risk[kept]
        return pool, prior, risk

    def _digits(self, keys: Iterable[Key]) -> Digits:
        rows = list(keys)
        return np.array(rows, dtype=np.int32).reshape(len(rows), len(self.space.knobs))


def _tuple(row: Digits) -> Key:
    return tuple(row.tolist())
