"""The accuracy of a cost model for unmeasured shapes of dense.

    python benchmarks/predict_cpu.py --record --seconds 380   times what is missing, and keeps it
    python benchmarks/predict_cpu.py                          trains, and says how well it ranks
    python benchmarks/predict_cpu.py --time                   and times what it picks for the unseen
    python benchmarks/predict_cpu.py --study                  what the ranking depends on

The model sees records of TRAIN only: of each of its shapes all tunable implementations, at random, with one
thread, and the library. For each shape of TEST it picks an implementation and a configuration, without
a measurement, as selection does. That is timed beside what selection answers without a model (plevel),
and beside the untuned configuration of the tunable implementation of highest plevel. The best known of a
shape is the best of its own records, of all picks, and of a search from there.

TRAIN and TEST were fixed before anything was trained. Ranking: the share of pairs of one shape of TEST in the
measured order, of those whose intervals are apart.

Recording takes an hour of one core, `--time` some minutes, the others seconds.
"""
# Over 300 lines: one experiment, from measuring to ranks.

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.fixture import dense, make_parser
from benchmarks.recording import DATA, Key, Log, Recording, Task, or_nan, pack, record, unpack
from benchmarks.result import Table

if TYPE_CHECKING:
    from service.search.predictor import Predictor, Trials

FILE = DATA / "predict_cpu.json.gz"
Shape = tuple[int, int, int]
TRAIN: list[Shape] = [
    (2, 768, 768), (4, 256, 1024), (8, 512, 256), (8, 1024, 512), (12, 384, 384), (16, 768, 768),
    (16, 128, 512), (20, 300, 700), (24, 1000, 256), (32, 256, 512), (32, 512, 512), (33, 96, 640),
    (40, 192, 960), (48, 768, 192), (49, 128, 256), (64, 64, 1024), (64, 512, 128), (64, 320, 320),
    (77, 640, 160), (96, 96, 96), (100, 200, 400), (128, 128, 512), (128, 384, 256), (160, 80, 320),
    (196, 256, 128), (197, 64, 768), (256, 256, 256), (384, 128, 128),
]
TEST: list[Shape] = [
    (3, 512, 512), (4, 768, 384), (6, 1024, 256), (8, 256, 768), (10, 640, 320), (12, 192, 1024),
    (14, 448, 448), (16, 384, 768), (16, 1000, 512), (18, 96, 512), (20, 512, 384), (24, 256, 640),
    (28, 720, 240), (32, 384, 384), (32, 96, 1024), (36, 500, 300), (37, 256, 512), (48, 192, 768),
    (50, 640, 128), (56, 160, 480), (64, 256, 256), (64, 128, 768), (72, 384, 192), (80, 320, 320),
    (96, 512, 96), (98, 64, 512), (112, 224, 224), (128, 256, 384), (144, 144, 144), (150, 100, 300),
    (192, 192, 256), (197, 192, 192), (224, 96, 448), (256, 128, 192), (320, 64, 256),
]
RECORDS = {"dense_pack.cpu": 40, "dense_large_m.cpu": 40, "dense_nopack.cpu": 20}
SEARCHED = 24  # further trials around what is known, for the best known of a shape of TEST


def tasks(shape: Shape, target: Any) -> dict[str, Task]:
    """Those of the implementations that are valid for a shape."""
    from strategy.op_strategy import candidates
    from strategy.select import holds

    asked = dense(*shape)
    return {
        c.implementation: Task(asked, target, c.implementation)
        for c in candidates(asked, target)
        if holds(c, asked)
    }


def label(shape: Shape, implementation: str) -> str:
    return f"{'×'.join(map(str, shape))} {implementation}"


def record_all(path: Path, seconds: float) -> bool:
    """Time what the log lacks; write the file in any case."""
    from strategy.target import Target

    target = Target.parse("cpu").with_threads(1)
    log, until = Log(path), time.monotonic() + seconds
    done = all(
        record(log, task, task.draw(RECORDS.get(name, 0), i), until)
        for i, shape in enumerate([*TRAIN, *TEST])
        for name, task in tasks(shape, target).items()
    )
    keep(log)
    return done


def keep(log: Log) -> None:
    from strategy.target import Target

    target = Target.parse("cpu").with_threads(1)
    found = {}
    for shape in (*TRAIN, *TEST):
        for name, task in tasks(shape, target).items():
            one = log.recording(task)
            if one.seconds:
                found[label(shape, name)] = one
    pack(FILE, found)
    print(f"{sum(len(r.seconds) for r in found.values())} records, {FILE.stat().st_size / 1024:.0f} KiB")


def trials_of(found: dict[str, Recording], shapes: Sequence[Shape]) -> list[Trials]:
    from service.search.predictor import Trials

    wanted = {dense(*shape).key for shape in shapes}
    return [
        Trials(
            r.task.workload, r.task.implementation, r.task.space, r.digits,
            np.log(list(r.worked.values())), np.log1p([r.doubt[k] for k in r.worked]),
        )
        for r in found.values()
        if r.task.workload.key in wanted and r.worked
    ]


def pick(model: Predictor, offered: dict[str, Task]) -> tuple[str, Key]:
    """The implementation and configuration that the model predicts to be fastest."""
    predicted = {}
    for name, task in offered.items():
        config, log_s = model.best(task.workload, name, task.space)
        predicted[name] = log_s, () if task.space is None else task.space.digits(config)
    fastest = min(predicted, key=lambda name: predicted[name][0])
    return fastest, predicted[fastest][1]


def time_picks(model: Predictor, path: Path, until: float) -> bool:
    """Time the picks beside what stands against them, and search from there."""
    from search_cpu import Ours

    from strategy.op_strategy import candidates
    from strategy.target import Target

    target = Target.parse("cpu").with_threads(1)
    log = Log(path)
    for shape in TEST:
        offered = tasks(shape, target)
        name, key = pick(model, offered)
        plevels = {c.implementation: c.plevel for c in candidates(dense(*shape), target)}
        for other, task in offered.items():
            keys = [key] if other == name else []
            if other in _rivals(plevels, offered):
                keys = list(dict.fromkeys([*keys, task.fallback]))
            # Together and anew, so that none has the better minutes.
            if time.monotonic() > until or not record(log, task, keys, until, again=True):
                keep(log)
                return False
        best = min(
            (t for t in offered.values() if t.space is not None and log.recording(t).worked),
            key=lambda t: log.recording(t).best_s,
        )
        search = Ours(best, 0)
        known = log.recording(best).seconds
        search.tell(list(known), [or_nan(t) for t in known.values()])
        for _ in range(SEARCHED // 8):
            keys = search.ask(8)
            if not record(log, best, keys, until):
                keep(log)
                return False
            told = log.recording(best).seconds
            search.tell(keys, [or_nan(told[k]) for k in keys])
    keep(log)
    return True


def _rivals(plevels: dict[str, int], offered: dict[str, Task]) -> list[str]:
    """The implementation of the highest plevel, and the tunable one of the highest."""
    by_plevel = sorted(offered, key=lambda n: -plevels[n])
    return [by_plevel[0], next(n for n in by_plevel if offered[n].space is not None)]


def report(found: dict[str, Recording], model: Predictor, accuracy: float) -> None:
    from strategy.op_strategy import candidates

    over, against, untuned = [], [], []
    for shape in TEST:
        ours = {n: r for n, r in found.items() if n.startswith(label(shape, ""))}
        offered = {r.task.implementation: r.task for r in ours.values()}
        name, key = pick(model, offered)
        took = ours[label(shape, name)].seconds.get(key)
        if took is None:
            print(f"{label(shape, name)}: not timed yet: --time does it")
            continue
        plevels = {c.implementation: c.plevel for c in candidates(dense(*shape), offered[name].target)}
        first, tunable = (
            ours[label(shape, n)].seconds[offered[n].fallback] for n in _rivals(plevels, offered)
        )
        assert first is not None
        assert tunable is not None
        over.append(took / min(r.best_s for r in ours.values() if r.worked))
        against.append(first / took)
        untuned.append(tunable / took)
        print(
            f"  {label(shape, name):34} {took * 1e6:8.1f} µs  {over[-1]:5.2f}× the best known  "
            f"{against[-1]:5.2f}× as fast as plevel's answer, {untuned[-1]:5.2f}× as the untuned"
        )
    if over:
        table = Table({f"on {len(over)} unseen shapes": "", "found": "", "goal": ""})
        table.add("pairs of unseen shapes in the measured order", accuracy, "≥ 0.85")
        table.add("pick over the best known, median", (statistics.median(over), "×"), "≤ 1.2×")
        table.add("the same, worst", (max(over), "×"), None)
        table.add("faster than the answer by plevel", (float(np.mean(np.array(against) > 1)), "%"), "≥ 80 %")
        table.add("as fast as that, geometric mean", (statistics.geometric_mean(against), "×"), None)
        table.add("faster than the untuned configuration", (float(np.mean(np.array(untuned) > 1)), "%"), None)
        table.add("as fast as that, geometric mean", (statistics.geometric_mean(untuned), "×"), None)
        table.save(peer="the best of records, picks, and a search of 24 trials from there")


def study(found: dict[str, Recording]) -> None:
    """Print the accuracy by the noise of records, their number of shapes, and what is fitted."""
    from service.search.predictor import Predictor

    train, test = trials_of(found, TRAIN), trials_of(found, TEST)
    table = Table({"": "", "pairs in the measured order": "", "in the true order": ""})
    table.add("regression of log-seconds, as used", Predictor.fit(train).rank(test).accuracy, None)
    table.add("`rank:pairwise`", _fit_ranks(train).rank(test).accuracy, None)
    for shapes in (5, 10, 20):
        few = trials_of(found, TRAIN[:: len(TRAIN) // shapes][:shapes])
        table.add(f"of {shapes} shapes", Predictor.fit(few).rank(test).accuracy, None)
    for sigma in (0.1, 0.3, 0.5):
        known, asked = (_blurred(trials, sigma) for trials in (train, test))
        model = Predictor.fit(known)
        table.add(f"times off by {sigma:.0%}", model.rank(asked).accuracy, model.rank(test).accuracy)
    table.save(variant="study")


def _blurred(trials: Sequence[Trials], sigma: float) -> list[Trials]:
    """Times as another program's bursts would leave them, whose intervals do not show it."""
    rng = np.random.default_rng(0)
    return [
        t._replace(log_s=t.log_s + np.abs(rng.normal(0, sigma, len(t.log_s))), doubt=None) for t in trials
    ]


def _fit_ranks(trials: Sequence[Trials]) -> Predictor:
    """The same features and trees, fitted to the order within each shape."""
    import xgboost

    from service.search.booster import PARAMETERS, ROUNDS
    from service.search.predictor import Predictor, learnable

    columns, x, y = learnable(trials)
    names = [t.workload.key for t in trials for _ in t.log_s]
    place = {name: i for i, name in enumerate(dict.fromkeys(names))}
    shape = np.array([place[name] for name in names])
    order = np.argsort(shape, kind="stable")
    # The ranker wants the fastest to be highest, and nothing negative.
    data = xgboost.DMatrix(x[order], label=float(y.max()) - y[order], qid=shape[order])
    parameters = {k: v for k, v in PARAMETERS.items() if k != "base_score"}
    booster = xgboost.train(
        parameters | {"objective": "rank:pairwise", "lambdarank_pair_method": "mean",
                      "lambdarank_num_pair_per_sample": 8}, data, ROUNDS,
    )

    class Ranks(Predictor):
        def predict(self, *asked: Any) -> Any:
            return -super().predict(*asked)

    return Ranks(columns, booster)


def main() -> int:
    from service.search.predictor import Predictor

    parser = make_parser(__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--time", action="store_true", help="time what the model picks")
    parser.add_argument("--study", action="store_true", help="what the accuracy depends on")
    parser.add_argument("--seconds", type=float, default=3600, help="after which timing stops")
    parser.add_argument("--log", type=Path, default=Path("build/predict_cpu.jsonl"), help="of the recording")
    given = parser.parse_args()
    if given.record:
        return 0 if record_all(given.log, given.seconds) else 3
    if given.time and not Log(given.log).samples:
        parser.error(f"--time: {given.log} has none of this machine, and would replace all kept: --record first")
    found = unpack(FILE)
    if given.study:
        study(found)
        return 0
    began = time.perf_counter()
    model = Predictor.fit(trials_of(found, TRAIN))
    took = time.perf_counter() - began
    if given.time:
        done = time_picks(model, given.log, time.monotonic() + given.seconds)
        found = unpack(FILE)
        if not done:
            return 3
    ranking = model.rank(trials_of(found, TEST))
    report(found, model, ranking.accuracy)
    print(
        f"trained on {sum(len(t.log_s) for t in trials_of(found, TRAIN))} records of {len(TRAIN)} shapes in "
        f"{took:.1f} s; {ranking.accuracy:.3f} of {ranking.pairs} pairs of {ranking.workloads} unseen shapes are "
        f"in the measured order; off by a factor of {np.exp(ranking.sigma_log):.2f} (one sigma)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
