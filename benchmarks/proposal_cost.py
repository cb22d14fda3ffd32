"""The search's cost per trial, beside a trial of 100 ms: cold and with transfer learning.

Goal: less than 5 % of a trial, at any size of space. CPU time of proposing and telling in batches of 8 in
one process, from 200 to 400 trials, where it is highest. Spaces: those of dense's tunable implementations
at 128×3072×768, and one of 10¹² configurations. Warm: four sources of 500 records each, the most that a
search takes. Times come from a formula.

    python benchmarks/proposal_cost.py [--threads 1]

It takes a minute or two.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.fixture import dense, make_parser
from benchmarks.result import Table
from service.search.child import InlineModel
from service.search.search import Search
from service.search.transfer import Source
from strategy.op_strategy import candidates
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target

TRIAL_S = 0.1
BATCH = 8
FROM, TO = 200, 400
SOURCES, RECORDS = 4, 500


def spaces(threads: int) -> Iterator[tuple[str, ConfigSpace]]:
    for found in candidates(dense(128, 3072, 768), Target.parse("cpu").with_threads(threads)):
        if found.space is not None and found.implementation != "dense_gemv.cpu":
            yield found.implementation, found.space
    yield "8 knobs of 32 values", ConfigSpace([Knob(f"k{i}", range(32)) for i in range(8)])


def seconds(space: ConfigSpace, config: Mapping[str, Any], phase: float) -> float:
    """A formula over the digits, with several valleys."""
    digits = space.digits(config)
    sizes = [len(k.values) for k in space.knobs]
    places = [d / max(n - 1, 1) for d, n in zip(digits, sizes, strict=True)]
    bowl = sum((x - 0.3 - 0.1 * i % 0.5) ** 2 for i, x in enumerate(places))
    return 1e-3 * (1 + bowl) * (1.2 + math.sin(phase + 7 * sum(places)))


def cost_s(space: ConfigSpace, sources: Sequence[Source]) -> float:
    """CPU seconds of a trial."""
    search = Search(space, 0, InlineModel(), sources)
    began = 0.0
    while search.trials < TO:
        if search.trials == FROM:
            began = time.process_time()
        for config in search.ask(BATCH):
            search.tell(config, seconds(space, config, 0.0))
    return (time.process_time() - began) / (TO - FROM)


def drawn(space: ConfigSpace, seed: int) -> Source:
    configs: list[Config] = space.sample(random.Random(seed), RECORDS)
    return Source(configs, [seconds(space, c, 0.1 * seed) for c in configs])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--threads", type=int, default=2, help="of the target, which shapes the spaces")
    given = parser.parse_args()
    table = Table({"space": "", "size": "", "cold": "s", f"{SOURCES} sources": "s", "goal": "s"})
    with table.saved():
        for name, space in spaces(given.threads):
            warm = cost_s(space, [drawn(space, 1 + i) for i in range(SOURCES)])
            table.add(name, f"{space.size:.0e}", cost_s(space, ()), warm, 0.05 * TRIAL_S)


if __name__ == "__main__":
    main()
