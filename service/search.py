"""Ask/tell over one configuration space: which configurations to try next.

Trials start with the fallback and random ones. Then a cost model scores a pool of candidates, the
neighbours of the best so far and others from anywhere, and each proposal takes the one of largest
expected improvement; what is near to it is then worth less, so that a batch spreads out (local
penalisation, González et al. 2016). Failures are learnt from by a model of validity, never as a
large time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from service.cost_model import CostModel, CostModelError, Scores
from service.features import Digits, SpaceFeatures
from strategy.space import Config, ConfigSpace

Key = tuple[int, ...]

ENUMERATE = 20_000  # a space of up to this many valid configurations is held as a table of digits
POOL = 2048
ELITE = 12  # configurations whose neighbours are candidates
EXPLORE = 0.03  # share of proposals that no model has a say in
UNLIKELY = 0.25  # candidates whose chance of running is below this share of the best chance
NEAR = 0.3  # squared distance, in whole ranges of knobs, within which a batch avoids itself


class Search:
    """Proposes configurations of one space, and learns from their times.

    Any number may be outstanding, and results come in any order. The same calls with the same seed
    give the same proposals. Memory grows with the trials, not with the space. Not safe to share
    between threads.

    Args:
        space: what to search.
        seed: of all random choices.
        model: what scores candidates; None proposes at random.
    """

    def __init__(self, space: ConfigSpace, seed: int = 0, model: CostModel | None = None) -> None:
        self.space = space
        self.model = model
        self.features = SpaceFeatures(space)
        self._rng = random.Random(seed)
        self._asked: set[Key] = set()
        self._told: dict[Key, float] = {}  # log-seconds, NaN for a failure
        self._table: Digits | None = None
        self._rows: dict[Key, int] = {}
        self._free: NDArray[np.bool_] | None = None
        if space.count(ENUMERATE) is not None:
            self._table = self.features.digits(list(space))
            self._free = np.ones(len(self._table), dtype=bool)
            self._rows = {tuple(row): i for i, row in enumerate(self._table.tolist())}
        # Enough to tell the knobs apart before a model is worth listening to.
        self.initial = max(8, min(20, 2 * len(self.features.names)))
        self._floor: float | None = None

    @property
    def trials(self) -> int:
        """How many configurations have been told."""
        return len(self._told)

    @property
    def best_s(self) -> float | None:
        """The lowest time told."""
        times = [t for t in self._told.values() if not math.isnan(t)]
        return math.exp(min(times)) if times else None

    @property
    def lower_bound_s(self) -> float | None:
        """The most optimistic time of the last pool (mean less two deviations); None before."""
        return self._floor

    @property
    def exhausted(self) -> bool:
        """Whether every configuration of the space has been proposed or told."""
        return self._free is not None and not self._free.any()

    def tell(self, config: Mapping[str, object], seconds: float | None) -> None:
        """What came of a configuration; None for a failure. It is not proposed again.

        One that is not of this space (an older version's) is passed over. Told twice, the lower
        time counts.
        """
        if not self.space.contains(config):
            return
        key = self.space.digits(config)
        self._mark(key)
        known = self._told.get(key, math.nan)
        found = math.nan if seconds is None else math.log(seconds)
        self._told[key] = known if math.isnan(found) else min(found, known if known == known else found)

    def avoid(self, configs: Iterable[Mapping[str, object]]) -> None:
        """Configurations under way: they are not proposed again."""
        for config in configs:
            if self.space.contains(config):
                self._mark(self.space.digits(config))

    def _mark(self, key: Key) -> None:
        self._asked.add(key)
        if self._free is not None:
            self._free[self._rows[key]] = False

    def ask(self, n: int) -> list[Config]:
        """Up to `n` configurations that were never proposed or told; fewer where no more are left."""
        chosen: list[Key] = []
        fallback = self.space.digits(self.space.fallback)
        if fallback not in self._asked and n > 0:
            self._mark(fallback)
            chosen.append(fallback)
        worked = sum(not math.isnan(t) for t in self._told.values())
        if self.model is not None and len(self._told) >= self.initial and worked >= 2:
            chosen += self._propose(n - len(chosen))
        chosen += self._random(n - len(chosen))
        return [self._config(key) for key in chosen]

    def _config(self, key: Key) -> Config:
        knobs = self.space.knobs
        return Config({k.name: k.values[d] for k, d in zip(knobs, key, strict=True)})

    def _random(self, n: int) -> list[Key]:
        """Uniform over what is left, or nearly."""
        chosen: list[Key] = []
        if n <= 0:
            return chosen
        if self._free is not None and self._table is not None:
            free = np.flatnonzero(self._free).tolist()
            chosen = [tuple(self._table[i].tolist()) for i in self._rng.sample(free, min(n, len(free)))]
        else:
            # A few rounds suffice unless nearly all of the space has been tried.
            for _ in range(8):
                found = (self.space.digits(c) for c in self.space.sample(self._rng, 2 * n))
                chosen += [k for k in dict.fromkeys(found) if k not in self._asked and k not in chosen]
                if len(chosen) >= n:
                    break
            chosen = chosen[:n]
        for key in chosen:
            self._mark(key)
        return chosen

    def _propose(self, n: int) -> list[Key]:
        if n <= 0:
            return []
        assert self.model is not None
        pool = self._pool()
        if not len(pool):
            return []
        keys = list(self._told)
        told = self.features.matrix(np.array(keys, dtype=np.int32))
        times = np.array([self._told[k] for k in keys])
        try:
            scores = self.model.score(
                told, times, self.features.matrix(pool), self._rng.randrange(2**20)
            )
        except CostModelError:
            return []  # random ones serve until the model is back
        self._floor = float(np.exp((scores.mean - 2 * scores.sigma).min()))
        worth = expected_improvement(scores, float(np.nanmin(times)))
        picked = self._pick(worth, pool, n)
        chosen = [tuple(pool[i].tolist()) for i in picked]
        for key in chosen:
            self._mark(key)
        return chosen

    def _pick(self, worth: NDArray[np.float64], pool: Digits, n: int) -> list[int]:
        """Rows of the pool, the worthiest first, each away from those before it."""
        steps = np.array([max(len(k.values) - 1, 1) for k in self.space.knobs])
        places = pool / steps
        free = np.ones(len(pool), dtype=bool)
        picked: list[int] = []
        for _ in range(min(n, len(pool))):
            if self._rng.random() < EXPLORE:
                row = self._rng.choice(np.flatnonzero(free).tolist())
            else:
                row = int(np.argmax(np.where(free, worth, -1.0)))
            free[row] = False
            picked.append(row)
            away = ((places - places[row]) ** 2).sum(axis=1)
            worth = worth * (1 - np.exp(-away / NEAR))
        return picked

    def _pool(self) -> Digits:
        """Candidates never asked for: neighbours of the best, and others from the whole space."""
        near = [k for k in self._neighbours() if k not in self._asked]
        if self._free is not None and self._table is not None:
            free = np.flatnonzero(self._free).tolist()
            if len(free) > POOL:
                free = self._rng.sample(free, POOL)
            near += [tuple(self._table[i].tolist()) for i in free]
        else:
            far = self.space.sample(self._rng, POOL // 4, tries=20)
            near += [k for k in (self.space.digits(c) for c in far) if k not in self._asked]
        pool = list(dict.fromkeys(near))
        return np.array(pool, dtype=np.int32).reshape(len(pool), len(self.space.knobs))

    def _neighbours(self) -> list[Key]:
        """Valid configurations one to three knobs away from the best told."""
        ranked = sorted((t, k) for k, t in self._told.items() if not math.isnan(t))
        elite = [k for _, k in ranked[:ELITE]]
        sizes = [len(k.values) for k in self.space.knobs]
        movable = [i for i, size in enumerate(sizes) if size > 1]
        found: dict[Key, None] = {}
        if not movable:
            return []
        for key in elite:
            for _ in range(POOL // 4 // ELITE):
                moved = list(key)
                for i in self._rng.sample(movable, min(len(movable), self._rng.choice((1, 1, 2, 3)))):
                    step = self._rng.choice((-1, 1))
                    if self._rng.random() < 0.5 and 0 <= moved[i] + step < sizes[i]:
                        moved[i] += step
                    else:
                        moved[i] = self._rng.randrange(sizes[i])
                candidate = tuple(moved)
                if candidate not in found and self._allows(candidate):
                    found[candidate] = None
        return list(found)

    def _allows(self, key: Key) -> bool:
        if self._free is not None:
            return key in self._rows
        knobs = self.space.knobs
        return self.space.allows({k.name: k.values[d] for k, d in zip(knobs, key, strict=True)})


def expected_improvement(scores: Scores, best: float) -> NDArray[np.float64]:
    """How far below `best` (log-seconds) each candidate is expected to come, if it runs at all."""
    z = (best - scores.mean) / scores.sigma
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in z.tolist()])
    gain = scores.sigma * (z * below + density)
    # Where nothing ever ran the times are unknown and the gain looks large: a small chance of running
    # must not make up for that.
    likely = scores.valid >= UNLIKELY * scores.valid.max(initial=0.0)
    return np.asarray(np.maximum(gain, 0.0) * scores.valid * likely)
