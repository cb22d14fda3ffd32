"""One model for all workloads of an operator: what it learns, and how well it ranks the unseen."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.predict.evaluation import MOST_POINTS, evaluate
from service.predict.spool import Pages
from service.search.description import CHUNK, Description
from service.search.predictor import Predictor, Trials, grow, learnable
from strategy.space import ConfigSpace, Knob, knob
from strategy.workload import Input, Workload

SPACE = ConfigSpace(
    [Knob("tile", (1, 2, 4, 8, 16, 32)), Knob("unroll", (1, 2, 4)), Knob("by", ("rows", "steps"))],
    derived={"bytes": knob("tile") * knob("unroll") * 4},
)
SHAPES = [(16, 64), (64, 64), (128, 32), (256, 256), (1000, 64), (96, 512), (32, 768), (512, 40)]


def workload(m: int, k: int) -> Workload:
    return Workload(
        "mul", (Input("a", f"float32[{m},{k}]"), Input("b", f"float32[8,{k}]", constant=True))
    )


def trials(m: int, k: int, implementation: str = "mul_tiled.cpu", slower: float = 1.0) -> Trials:
    """The whole space: a tile wastes what it does not divide, and pays for being small."""
    digits = np.array([SPACE.digits(c) for c in SPACE], dtype=np.int32)
    tile = np.array([1, 2, 4, 8, 16, 32])[digits[:, 0]]
    waste = np.ceil(m / tile) * tile / m
    by = np.where(digits[:, 2] == 1, 1.4, 1.0)
    seconds = slower * 1e-9 * m * k * waste * (1 + 4 / tile) * by * (1 + 0.1 * digits[:, 1])
    return Trials(workload(m, k), implementation, SPACE, digits, np.log(seconds))


SEEN = [trials(*s) for s in SHAPES[:-2]] + [trials(*s, "mul_plain.cpu", 3.0) for s in SHAPES[:-2]]


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.fit(SEEN)


def test_it_ranks_shapes_that_it_has_not_seen(predictor: Predictor) -> None:
    ranking = predictor.rank([trials(*s) for s in SHAPES[-2:]])
    assert ranking.accuracy > 0.9
    assert ranking.workloads == 2
    assert ranking.sigma_log < 0.3


def test_a_bias_is_part_of_the_error_and_each_pair_counts_once(predictor: Predictor) -> None:
    few = trials(*SHAPES[-1])
    chosen = np.arange(4) * 9
    predicted = predictor.predict(few.workload, few.implementation, SPACE, few.digits[chosen])
    biased = Trials(few.workload, few.implementation, SPACE, few.digits[chosen], predicted + np.log(3.0))
    ranking = predictor.rank([biased])
    assert ranking.pairs <= 6
    assert ranking.sigma_log == pytest.approx(np.log(3.0))


def test_times_of_two_implementations_compare(predictor: Predictor) -> None:
    m, k = SHAPES[-1]
    digits = trials(m, k).digits
    fast = predictor.predict(workload(m, k), "mul_tiled.cpu", SPACE, digits)
    slow = predictor.predict(workload(m, k), "mul_plain.cpu", SPACE, digits)
    assert np.abs(slow - fast - np.log(3.0)).max() < 0.4
    asked = workload(m, k)
    assert predictor.covers(asked, "mul_plain.cpu")
    assert not predictor.covers(asked, "mul_vendor.cpu")
    halves = Workload("mul", (Input("a", f"bfloat16[{m},{k}]"), Input("b", f"bfloat16[8,{k}]", constant=True)))
    assert not predictor.covers(halves, "mul_plain.cpu")
    assert not predictor.covers(Workload("mul", asked.inputs, {"layout": "NHWC"}), "mul_plain.cpu")


def test_strides_tell_workloads_apart() -> None:
    inputs = (Input("data", "float32[1,8,16,16]"), Input("weight", "float32[8,8,3,3]", constant=True))
    one, two = (
        Description(Workload("conv2d", inputs, {"strides": [s, s]}), "conv2d_direct.cpu", None, ()) for s in (1, 2)
    )
    assert one.names == two.names
    digits = np.zeros((1, 0), np.int32)
    assert (one.matrix(digits) != two.matrix(digits)).sum() == 2


def test_a_ranking_upside_down_counts_as_wrong(predictor: Predictor) -> None:
    found = trials(*SHAPES[-1])
    assert predictor.rank([found._replace(log_s=-found.log_s)]).accuracy < 0.1


def test_pairs_whose_intervals_overlap_do_not_count(predictor: Predictor) -> None:
    found = trials(*SHAPES[-1])
    wrong = found._replace(log_s=-found.log_s)
    none = np.zeros(len(found.log_s))
    assert predictor.rank([wrong._replace(doubt=none)]) == predictor.rank([wrong])
    # Times with a known error do not tell which of two that are close is faster.
    rough = found._replace(log_s=found.log_s + np.random.default_rng(0).normal(0, 0.1, len(none)))
    sure, unsure = predictor.rank([rough]), predictor.rank([rough._replace(doubt=none + 0.15)])
    assert 0 < unsure.pairs < sure.pairs
    assert unsure.accuracy > sure.accuracy
    assert predictor.rank([found._replace(doubt=none + 100)]).pairs == 0


def test_times_of_one_configuration_are_no_pair(predictor: Predictor) -> None:
    """Finals time again what the search has timed, on another day perhaps."""
    found = trials(*SHAPES[-1])
    one = found._replace(digits=np.repeat(found.digits[:1], 4, axis=0), log_s=np.log([1.0, 1.1, 1.2, 1.3]))
    assert predictor.rank([one]).pairs == 0
    # Nor are those of an implementation without a space, whose digits have no columns.
    library = Trials(found.workload, "mul_vendor.cpu", None, np.zeros((3, 0), np.int32), np.log([1.0, 1.1, 1.2]))
    assert predictor.rank([library]).pairs == 0
    assert predictor.rank([library, one]).pairs > 0


def test_more_rows_than_are_made_at_a_time_are_the_same_rows(predictor: Predictor) -> None:
    found = trials(*SHAPES[-1])
    asked = (found.workload, found.implementation, found.space)
    many = np.tile(found.digits, (2 * CHUNK // len(found.digits) + 1, 1))
    predicted = predictor.predict(*asked, many).reshape(-1, len(found.digits))
    assert (predicted == predictor.predict(*asked, found.digits)).all()


def test_trees_that_were_stored_predict_the_same(predictor: Predictor) -> None:
    columns, features, labels = learnable(SEEN)
    again = Predictor.load(json.dumps(columns), grow(features, labels))
    found = trials(*SHAPES[-1])
    asked = (found.workload, found.implementation, found.space, found.digits)
    assert np.allclose(again.predict(*asked), predictor.predict(*asked), atol=1e-6)


def test_an_implementation_without_a_space_is_one_row() -> None:
    nothing = np.zeros((1, 0), dtype=np.int32)
    library = [
        Trials(workload(*s), "mul_vendor.cpu", None, nothing, np.log([1e-9 * s[0] * s[1]]))
        for s in SHAPES
    ]
    predictor = Predictor.fit([*library, *(trials(*s) for s in SHAPES)])
    (log_s,) = predictor.predict(workload(200, 200), "mul_vendor.cpu", None, nothing)
    assert abs(log_s - np.log(4e-5)) < 0.7


def test_a_dimension_that_two_inputs_share_counts_once() -> None:
    predictor = Predictor.fit([trials(*s) for s in SHAPES])
    assert "extent 1" in predictor.columns
    assert "extent 3" not in predictor.columns


def test_knobs_that_were_not_seen_are_passed_over(predictor: Predictor) -> None:
    wider = ConfigSpace([*SPACE.knobs, Knob("pad", (0, 1))], derived=SPACE.derived)
    digits = np.array([wider.digits(c) for c in wider], dtype=np.int32)
    predicted = predictor.predict(workload(64, 64), "mul_tiled.cpu", wider, digits)
    assert np.isfinite(predicted).all()


def test_an_evaluation_has_predictions_beside_measurements_and_what_they_rest_on(
    predictor: Predictor,
) -> None:
    unseen = [trials(*s, slower=1.0 + i / 1000) for i, s in enumerate(SHAPES[-2:] * 40)]
    found = evaluate(predictor, unseen)
    total = sum(len(t.log_s) for t in unseen)
    assert MOST_POINTS / 2 <= len(found.points) <= MOST_POINTS + len(unseen) < total
    measured, predicted = np.log(np.array(found.points)).T
    assert np.corrcoef(measured, predicted)[0, 1] > 0.9
    assert {round(s, 12) for s, _ in found.points} <= {
        round(s, 12) for t in unseen for s in np.exp(t.log_s)
    }
    names, shares = zip(*found.importance, strict=True)
    assert list(shares) == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1 + 1e-9
    assert any(n.startswith(("knob tile", "into tile", "waste tile")) for n in names[:3])


def test_attributes_beyond_float32_are_finite_features() -> None:
    clip = Workload("clip", (Input("data", "float64[0,5]"),), {"a_min": -1.7e308, "a_max": 1e300})
    described = Description(clip, "elementwise.cpu", None, ())
    row = described.matrix(np.zeros((1, 0), np.int32))
    assert np.isfinite(row).all()
    assert np.isfinite(described.log_volume)


def test_pages_that_cannot_be_listed_are_not_left_out_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a file server, for a moment."""
    for part in ("0", "1"):
        (tmp_path / part).mkdir()
        np.save(tmp_path / part / "learned-000000.npy", np.zeros((3, 4), dtype=np.float32))
    scan = os.scandir

    def fail(path: Any) -> Any:
        if str(path).endswith("/1"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return scan(path)

    assert Pages(tmp_path).find(everything=True)[1] == 6
    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(OSError, match="Permission"):
        Pages(tmp_path).find(everything=True)
