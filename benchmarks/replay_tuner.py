"""The search in the replay harness of recorded spaces: trials needed, cold and with transfer learning.

`make(space, seed, batch)` starts cold; `make_warm(space, seed, batch, history)` with records of other
spaces of the same parameters, `{source: [(configuration, milliseconds or None), …]}`. Nothing but the
knobs' values, the list of valid configurations and the times is used: no name of a kernel, a
device or a parameter.

The harness (`replay.py`, and its folder of spaces) is not part of the repository; say where it is:

    python FOLDER/replay.py benchmarks/replay_tuner.py:make --spaces visible --batch 8
    python benchmarks/replay_tuner.py --data FOLDER --batch 8 --seeds 10           (warm)
    python benchmarks/replay_tuner.py --data FOLDER --misleading                   (warm, and misled)

Without `--data` the variable PLEVEL_SEARCHBENCH names the folder. Warm: each visible space with 500
records, drawn at random, of each other recording of the same kernel, one source at a time. A
score is the harness's: 0 is random search, 1 the optimum at once.

A case takes about a minute.
"""

from __future__ import annotations

import os

# One core, as beside measurements; NumPy reads this when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fixture import make_parser
from benchmarks.result import Table
from service.search.child import InlineModel
from service.search.search import Search
from service.search.transfer import Source
from strategy.space import Config, ConfigSpace, Knob

Told = Sequence[tuple[Mapping[str, Any], float | None]]
RECORDS = 500
TRIALS = 400


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


class Elsewhere:
    """Records of other spaces, drawn at random, with the parameters named as the target has them.

    Two recordings of one kernel by different tools differ in the case of their names: that is
    undone here, before the search sees anything.
    """

    def __init__(self, target: Any, sources: Sequence[Any]) -> None:
        own = {name.lower(): name for name in target.params}
        self._sources = [(s, {name: own[name.lower()] for name in s.params}) for s in sources]

    def draw(self, seed: int) -> dict[str, Told]:
        history: dict[str, Told] = {}
        for i, (space, names) in enumerate(self._sources):
            rng = np.random.default_rng((seed, i))
            rows = rng.permutation(space.N)[:RECORDS]
            history[space.name] = [
                (
                    {names[k]: v for k, v in space.configs[row].items()},
                    None if np.isnan(space.time[row]) else float(space.time[row]),
                )
                for row in rows
            ]
        return history


def same_kernel(a: Any, b: Any) -> bool:
    names = [{k.lower() for k in s.params} for s in (a, b)]
    return names[0] == names[1] and bool(a.N == b.N)


def warm_cases(
    harness: Any, splits: Mapping[str, Sequence[str]]
) -> Iterator[tuple[Any, list[Any]]]:
    """Each visible space with one other recording of the same parameters and configurations."""
    spaces = [harness.Space(name) for name in (*splits["visible"], *splits["visible_extra"])]
    for target in spaces[: len(splits["visible"])]:
        for source in spaces:
            if source is not target and same_kernel(source, target):
                yield target, [source]


class Misleading:
    """A space whose times are another's upside down: the fastest there is the slowest here."""

    def __init__(self, space: Any) -> None:
        self.params, self.configs, self.N = space.params, space.configs, space.N
        self.name = f"{space.name} upside down"
        self.time = 1.0 / space.time


def replay(
    harness: Any, target: Any, sources: Sequence[Any], batch: int, seeds: int
) -> dict[str, Any]:
    elsewhere = Elsewhere(target, sources)
    rows = []
    for seed in range(seeds):
        history = elsewhere.draw(seed)
        rows.append(
            harness.run(
                target, lambda view, s, b, h=history: make_warm(view, s, b, h), seed, batch, TRIALS
            )
        )
    measured: dict[str, Any] = harness.measure(target, np.array(rows))
    return measured


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", default=os.environ.get("PLEVEL_SEARCHBENCH"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--misleading", action="store_true", help="its own times, upside down")
    parser.add_argument("--spaces", default="", help="only targets whose name contains this")
    given = parser.parse_args()
    if not given.data or not Path(given.data, "replay.py").exists():
        parser.error("--data FOLDER, or PLEVEL_SEARCHBENCH: where replay.py and its spaces are")
    sys.path.insert(0, given.data)
    harness = importlib.import_module("replay")
    splits = json.loads((Path(given.data) / "splits.json").read_text())
    cases: list[tuple[Any, list[Any]]]
    if given.misleading:
        cases = [(s, [Misleading(s)]) for s in map(harness.Space, splits["visible"])]
    else:
        cases = list(warm_cases(harness, splits))
    cases = [(target, sources) for target, sources in cases if given.spaces in target.name]
    if not cases:
        parser.error(f"--spaces {given.spaces}: no visible space has that in its name")
    scores: dict[str, list[float]] = {}
    table = Table({"space": "", "from": "", "score": "", "standard error": ""})
    with table.saved(
        keep=not given.spaces, variant=f"{'misleading' if given.misleading else 'warm'}-{given.batch}",
        peer="random search (0) and the optimum at once (1)", runs=given.seeds,
    ):
        for target, sources in cases:
            found = replay(harness, target, sources, given.batch, given.seeds)
            scores.setdefault(target.name, []).append(found["score"])
            table.add(target.name, ", ".join(s.name for s in sources), found["score"], found["score_se"])
        table.add("mean of the spaces", None, float(np.mean([np.mean(s) for s in scores.values()])), None)


if __name__ == "__main__":
    main()
