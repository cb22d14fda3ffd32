"""Our search in the replay harness of recorded spaces: `python replay.py replay_tuner.py:make`.

`make(space, seed, batch)` starts cold; `make_warm(space, seed, batch, history)` with records of other
spaces of the same parameters, `{source: [(configuration, milliseconds or None), …]}`. Nothing but the
knobs' values, the list of valid configurations and the times is used: no name of a kernel, a
device or a parameter.
"""

from __future__ import annotations

import os

# One core, as beside measurements; NumPy reads this when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from service.cost_model import InlineModel
from service.search import Search, Source
from strategy.space import Config, ConfigSpace, Knob

Told = Sequence[tuple[Mapping[str, Any], float | None]]


class ReplayTuner:
    """The harness's ask and tell, in front of a `Search`."""

    def __init__(self, space: Any, seed: int, history: Mapping[str, Told]) -> None:
        knobs = [Knob(name, values) for name, values in space.params.items()]
        # A recorded space names no fallback; any will do.
        recorded = ConfigSpace(knobs, fallback=space.configs[len(space.configs) // 2])
        listed = np.array([recorded.digits(c) for c in space.configs], dtype=np.int32)
        sources = [Source([c for c, _ in told], [t for _, t in told]) for told in history.values()]
        self._search = Search(recorded, seed, InlineModel(), sources, listed)

    def ask(self, n: int) -> list[dict[str, Any]]:
        return [config.to_json() for config in self._search.ask(n)]

    def tell(self, results: Told) -> None:
        for config, time_ms in results:
            self._search.tell(Config(config), None if time_ms is None else time_ms * 1e-3)


def make(space: Any, seed: int, batch: int) -> ReplayTuner:
    return ReplayTuner(space, seed, {})


def make_warm(space: Any, seed: int, batch: int, history: Mapping[str, Told]) -> ReplayTuner:
    return ReplayTuner(space, seed, history)
