"""The selection rule against the text of the design, and `policy="tvm"` against TVM's own cases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.attrs import Attrs
from strategy.condition import SpecializedCondition
from strategy.op import TypeReporter, register_op, register_strategy
from strategy.op import _ops as registered
from strategy.op_strategy import Candidate, OpStrategy, candidates
from strategy.record import Estimate, convert, decode, encode, to_json
from strategy.select import (
    Advised,
    Failed,
    History,
    Level,
    Measured,
    Policy,
    Prediction,
    Reason,
    Selection,
    SelectionError,
    Selector,
    choose,
    choose_as_tvm,
    holds,
    select,
    unsettled,
)
from strategy.space import Config, ConfigSpace, Knob
from strategy.table import show_seconds
from strategy.target import Target
from strategy.types import Dim, TensorType, Type
from strategy.workload import Input, Workload

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2 -model=epyc -keys=mine,cpu")
SPACE = ConfigSpace([Knob("tile", [1, 2, 4])], fallback={"tile": 4})
ROWS = Dim("var", ("data.shape[0]",))  # as the wire has it: by place, its value unknown


def workload(rows: int | str) -> Workload:
    return Workload("made_up", (Input("data", f"float32[{rows},8]"),))


@dataclass
class Records:
    """A database of lists."""

    measurements: list[Measured] = field(default_factory=list)
    past: list[History] = field(default_factory=list)

    def measured(self, w: Workload, target: Target, device: str | None) -> Sequence[Measured]:
        return self.measurements

    def failed(self, w: Workload, target: Target, device: str | None) -> Sequence[Failed]:
        return ()

    def history(self, w: Workload) -> Sequence[History]:
        return self.past

    def instances(
        self, w: Workload, target: Target, device: str | None
    ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
        return ()


# ---- the rule ---------------------------------------------------------------------------------

CONDITIONS = {
    None: lambda rows: True,
    SpecializedCondition(ROWS > 8): lambda rows: rows > 8,
    SpecializedCondition(ROWS % 4 == 0): lambda rows: rows % 4 == 0,
    SpecializedCondition(ROWS > 8, (ROWS == 12) | (ROWS > 20)): lambda rows: rows == 12 or rows > 20,
}


WIDER = (Level.TARGET, Level.TRANSFERRED)
WIDTHS = st.one_of(st.floats(0, 0.015), st.floats(0, 0.3))


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[Candidate], list[Measured]]:
    rows = draw(st.sampled_from([4, 9, 12, 24]))
    known = []
    for name in draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True)):
        tunable = draw(st.booleans())
        version = f"{draw(st.integers(1, 2))}.{SPACE.digest if tunable else '0'}"
        known.append(
            Candidate(
                name, version, draw(st.sampled_from([5, 10, 15])),
                draw(st.sampled_from(list(CONDITIONS))), SPACE if tunable else None,
            )
        )
    order = draw(st.permutations(range(12)))
    measured = []
    for rank in order[: draw(st.integers(0, 12))]:
        median = 1 + rank / 100  # all different; intervals overlap or not, and are bounded or not
        low, high = draw(st.tuples(WIDTHS, WIDTHS))
        level = draw(st.sampled_from(Level))
        name = draw(st.sampled_from([*(c.implementation for c in known), "f"]))
        stale = f"{draw(st.integers(1, 2))}.older"
        current = [c.version for c in known if c.implementation == name]
        measured.append(
            Measured(
                implementation=name,
                version=draw(st.sampled_from([*current, *current, stale])),
                config=Config({"tile": draw(st.sampled_from([1, 2, 3]))}),  # 3 is of another space
                level=level,
                estimate=Estimate(
                    median, median - low, median + high, draw(st.sampled_from([1, 5, 6, 20]))
                ),
                target=draw(st.sampled_from(["haswell", "znver3"]))
                if level is Level.TRANSFERRED
                else TARGET.key,
                model=draw(st.sampled_from(["", "x", "y"])) if level in WIDER else "",
            )
        )
    return rows, known, measured


def expected(rows: int, known: list[Candidate], measured: list[Measured]) -> tuple[Any, ...] | None:
    """A second implementation of the rule: (implementation, reason, level, time, unmeasured)."""
    # 1. Keep the implementations whose conditions hold.
    valid = [c for c in known if CONDITIONS[c.condition](rows)]
    if not valid:
        return None
    # 2. Current records of the device or its model, whichever has more implementations, the device's on
    #    a tie; where neither has any, of the other model that has most. On a tie, what is listed first.
    mine = ((Level.DEVICE, Level.MODEL), (Level.TARGET,))
    place, table = _tabulate([m for m in measured if _counts(m, valid)], mine)
    # 3. Stale ones of the newest other version, of the same place if there is one.
    old = [m for m in measured if m.level != Level.TRANSFERRED and _is_stale(m, valid)]
    if table:
        old = [m for m in old if _place_of(m) == place and m.implementation not in table]
    newest: dict[tuple[Any, ...], int] = {}
    for m in old:
        key = m.implementation, _place_of(m)
        newest[key] = max(int(m.version.split(".")[0]), newest.get(key, 0))
    old_place, stale = _tabulate(
        [m for m in old if int(m.version.split(".")[0]) == newest[m.implementation, _place_of(m)]], mine
    )
    missing = tuple(c.implementation for c in valid if c.implementation not in table)
    # They decide where they are below all that is current, without overlap.
    least = min((_span(m.estimate)[0] for m in table.values()), default=9e9)
    below = {name: m for name, m in stale.items() if _span(m.estimate)[2] < least}
    if below:
        return _fastest_of(valid, below), Reason.STALE, (place or old_place)[0], None, missing
    # 4. Where this target has none, current ones of the other target and model that have most.
    reason = Reason.MEASURED
    if not table:
        place, table = _tabulate([m for m in measured if _counts(m, valid)], ((Level.TRANSFERRED,),))
        missing = tuple(c.implementation for c in valid if c.implementation not in table)
        reason = Reason.TRANSFERRED
    if not table:
        # 5. The highest plevel, the first registered on a tie, with its fallback.
        top = max(c.plevel for c in valid)
        winner = [c for c in valid if c.plevel == top][0]  # noqa: RUF015
        return winner.implementation, Reason.PLEVEL, None, None, ()
    name = _fastest_of(valid, table)
    return name, reason, place[0], table[name].estimate.median_s, missing


def _tabulate(
    records: list[Measured], order: Sequence[tuple[Level, ...]]
) -> tuple[tuple[Any, ...], dict[str, Measured]]:
    for levels in order:
        places: dict[tuple[Any, ...], dict[str, Measured]] = {}
        if levels[0] is Level.DEVICE:
            places = {(level,): {} for level in levels}
        for m in records:
            if m.level not in levels:
                continue
            table = places.setdefault(_place_of(m), {})
            known_s = table[m.implementation].estimate.median_s if m.implementation in table else 9e9
            if m.estimate.median_s < known_s:
                table[m.implementation] = m
        ranked = sorted(places.items(), key=lambda item: (-len(item[1]), item[0][1:]))  # stable: the first on a tie
        if ranked and ranked[0][1]:
            return ranked[0]
    return (), {}


def _place_of(m: Measured) -> tuple[Any, ...]:
    return (m.level,) if m.level not in WIDER else (m.level, m.target, m.model)


def _fastest_of(valid: list[Candidate], table: dict[str, Measured]) -> str:
    # The lowest median; of those whose interval overlaps its interval, the highest plevel. An
    # interval that is not within 1.5 %, or of fewer than six samples, counts as its upper end.
    spans = {name: _span(m.estimate) for name, m in table.items()}
    lowest = sorted(spans.values(), key=lambda span: span[1])[0]
    close = [
        c for c in valid if c.implementation in spans and spans[c.implementation][0] <= lowest[2]
    ]
    top = max(c.plevel for c in close)
    return [c for c in close if c.plevel == top][0].implementation  # noqa: RUF015


def _is_stale(m: Measured, valid: list[Candidate]) -> bool:
    own = {c.implementation: c.version for c in valid}
    return m.implementation in own and m.version != own[m.implementation]


def _counts(m: Measured, valid: list[Candidate]) -> bool:
    own = {c.implementation: c for c in valid}.get(m.implementation)
    if own is None:
        return False
    if m.level != Level.TRANSFERRED:
        return m.version == own.version
    same = m.version.split(".")[0] == own.version.split(".")[0]
    return same and (own.space is None or m.config["tile"] in (1, 2, 4))


def _span(e: Estimate) -> tuple[float, float, float]:
    near = e.median_s - e.low_s <= 0.015 * e.median_s and e.high_s - e.median_s <= 0.015 * e.median_s
    return (e.low_s, e.median_s, e.high_s) if near and e.samples >= 6 else (e.high_s,) * 3


@given(cases())
def test_the_rule_is_what_the_design_says(
    case: tuple[int, list[Candidate], list[Measured]],
) -> None:
    rows, known, measured = case
    answer = expected(rows, known, measured)
    if answer is None:
        with pytest.raises(SelectionError, match="no implementation of made_up is valid"):
            choose(workload(rows), TARGET, known, measured)
        return
    found = choose(workload(rows), TARGET, known, measured)
    own = next(r for r in found.rivals if r.implementation == found.implementation)
    time = own.estimate.median_s if own.estimate else None
    assert (found.implementation, found.reason, found.level, time, found.unmeasured) == answer
    assert found.partial == bool(found.unmeasured)
    candidate = next(c for c in known if c.implementation == found.implementation)
    assert found.version == candidate.version
    if found.reason is Reason.PLEVEL:
        assert found.config == candidate.fallback
    elif found.reason is Reason.STALE:
        taken = [
            m.config for m in measured
            if (m.implementation, m.level) == (found.implementation, found.level)
            and m.version == found.stale[found.implementation] != found.version
        ]
        in_space = [c for c in taken if candidate.space is not None and candidate.space.contains(c)]
        assert found.config in (in_space if len(in_space) == len(taken) else [*in_space, candidate.fallback])
        assert f"version {found.version} is installed: tune again" in found.explanation
    else:
        record = next(m for m in measured if m.estimate.median_s == time)
        assert found.config == record.config
    # The rivals are all candidates, valid ones first, the measured of them by time.
    assert sorted(r.implementation for r in found.rivals) == sorted(c.implementation for c in known)
    assert [r.valid for r in found.rivals] == sorted((r.valid for r in found.rivals), reverse=True)
    times = [r.estimate.median_s for r in found.rivals if r.estimate]
    assert times == sorted(times)
    assert found.implementation in found.explanation


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_records_makes_no_difference(
    case: tuple[int, list[Candidate], list[Measured]], random: Random,
) -> None:
    rows, known, measured = case
    if expected(rows, known, measured) is not None:
        shuffled = random.sample(measured, len(measured))
        assert choose(workload(rows), TARGET, known, measured) == choose(workload(rows), TARGET, known, shuffled)


@given(cases())
def test_stale_records_never_make_the_known_time_worse(case: tuple[int, list[Candidate], list[Measured]]) -> None:
    rows, known, measured = case
    if expected(rows, known, measured) is None:
        return
    current = [m for m in measured if not _is_stale(m, known)]
    before = choose(workload(rows), TARGET, known, current)
    after = choose(workload(rows), TARGET, known, measured)
    if before.reason is not Reason.MEASURED:
        return
    assert after.level is before.level
    if after.reason is Reason.MEASURED:
        assert (after.implementation, after.config) == (before.implementation, before.config)
        return
    assert (after.reason, after.partial) == (Reason.STALE, True)
    (took,) = {
        min(
            (m.estimate.judged.high_s, m.estimate.median_s) for m in measured if m.level is after.level
            and (m.implementation, m.version) == (after.implementation, after.stale[after.implementation])
        )
    }
    assert took[0] < min(r.estimate.judged.low_s for r in after.rivals if r.estimate is not None)


@given(cases(), st.floats(0.5, 2))
def test_a_current_record_replaces_a_stale_one(
    case: tuple[int, list[Candidate], list[Measured]], median_s: float,
) -> None:
    rows, known, measured = case
    if expected(rows, known, measured) is None:
        return
    found = choose(workload(rows), TARGET, known, measured)
    for name, version in found.stale.items():
        (own,) = (c for c in known if c.implementation == name)
        old = [m for m in measured if (m.implementation, m.version, m.level) == (name, version, found.level)]
        new = [
            msgspec.structs.replace(
                m, version=own.version, config=own.fallback, estimate=Estimate(median_s, median_s, median_s, 20)
            )
            for m in old
        ]
        answer = choose(workload(rows), TARGET, known, [*measured, *new])
        assert name not in answer.stale
        if answer.implementation == name:
            assert (answer.reason, answer.config) == (Reason.MEASURED, own.fallback)


@given(cases())
def test_an_answer_is_the_same_from_json(case: tuple[int, list[Candidate], list[Measured]]) -> None:
    rows, known, measured = case
    if expected(rows, known, measured) is None:
        return
    offered = [decode(encode(c), Candidate) for c in known]
    records = Records([convert(to_json(m), Measured) for m in measured])
    answer = select(workload(rows), TARGET, records, offered=offered)
    assert answer == choose(workload(rows), TARGET, known, measured)
    assert decode(encode(answer), Selection) == answer


def plain(name: str, plevel: int, **more: Any) -> Candidate:
    return Candidate(name, "1.0", plevel, **more)


def measure(name: str, median: float, spread: float = 0.0, **more: Any) -> Measured:
    given_fields: dict[str, Any] = {
        "version": "1.0", "config": Config({"tile": 2}), "level": Level.DEVICE, **more,
    }
    return Measured(
        implementation=name,
        estimate=Estimate(median, median * (1 - spread), median * (1 + spread), 20),
        **given_fields,
    )


def test_noise_does_not_make_answers_flap() -> None:
    known = [plain("a", 10), plain("b", 15)]
    for fast, slow in ((1.00, 1.01), (1.01, 1.00)):
        answer = choose(
            workload(8), TARGET, known, [measure("a", fast, 0.015), measure("b", slow, 0.015)]
        )
        assert answer.implementation == "b"
    clear = choose(workload(8), TARGET, known, [measure("a", 1.0, 0.015), measure("b", 1.2, 0.015)])
    assert clear.implementation == "a"


def test_intervals_that_just_touch_overlap() -> None:
    known = [plain("a", 10), plain("b", 15)]
    ends = {"a": Estimate(1, 1, 1.01, 9), "b": Estimate(1.02, 1.01, 1.03, 9)}
    touching = [
        msgspec.structs.replace(measure(name, 1.0), estimate=found) for name, found in ends.items()
    ]
    assert choose(workload(8), TARGET, known, touching).implementation == "b"


def test_the_first_registered_wins_a_tie() -> None:
    for known in itertools.permutations([plain("a", 10), plain("b", 10), plain("c", 5)]):
        first = next(c.implementation for c in known if c.plevel == 10)
        assert choose(workload(8), TARGET, known, []).implementation == first
        same = [measure(c.implementation, 1.0, 0.1) for c in reversed(known)]
        assert choose(workload(8), TARGET, known, same).implementation == first


def test_the_model_decides_where_it_says_more_than_one_of_its_devices() -> None:
    known = [plain("a", 10), plain("b", 15)]
    fine = [measure("b", 1.0)]
    coarse = [measure(n, s, level=Level.MODEL) for n, s in (("a", 2.0), ("b", 3.0))]
    answer = choose(workload(8), TARGET, known, [*fine, *coarse])
    assert (answer.implementation, answer.level) == ("a", Level.MODEL)
    only = choose(workload(8), TARGET, known, fine)
    assert (only.implementation, only.level, only.unmeasured) == ("b", Level.DEVICE, ("a",))


def test_what_the_model_itself_measured_goes_before_what_others_did() -> None:
    known = [plain("a", 10), plain("b", 15)]
    own = measure("b", 117e-3, level=Level.MODEL)
    others = [measure(n, 480e-6, level=Level.TARGET, model="GTX 1080 Ti") for n in "ab"]
    answer = choose(workload(8), TARGET, known, [own, *others])
    assert (answer.implementation, answer.level, answer.unmeasured) == ("b", Level.MODEL, ("a",))
    without = choose(workload(8), TARGET, known, others)
    assert without.level is Level.TARGET
    assert "on devices of another model (GTX 1080 Ti): 480 µs" in without.explanation


@pytest.mark.parametrize("level", [Level.TARGET, Level.TRANSFERRED])
def test_times_of_different_models_are_not_compared(level: Level) -> None:
    known = [plain("a", 10), plain("b", 10)]
    records = [
        measure("a", 1.0, level=level, model="fast"),
        measure("a", 6.0, level=level, model="slow"),
        measure("b", 5.0, level=level, model="slow"),
    ]
    answer = choose(workload(8), TARGET, known, records)
    assert answer.implementation == "b"
    assert "slow" in answer.explanation


def test_times_that_were_taken_in_different_ways_are_not_compared() -> None:
    known = [plain("a", 10), plain("b", 10)]
    alone, warm = "thread-pool=tvm, constants=warm", "constants=warm"
    others = [
        measure("a", 1.0, timed=alone), measure("a", 6.0, timed=warm), measure("b", 5.0, timed=warm),
        measure("b", 0.1, level=Level.TRANSFERRED),
    ]
    answer = choose(workload(8), TARGET, known, others)
    assert answer.implementation == "b"
    assert f"on this device, timed with {warm}: 5.00 s" in answer.explanation
    own = choose(workload(8), TARGET, known, [*others, measure("a", 9.0)])
    assert own.implementation == "a"
    assert "timed with" not in own.explanation


TIES = [
    # Device models, and ways of timing, of which as many implementations are measured.
    [measure("a", 1.0, level=Level.TARGET, model="A-B"), measure("b", 2.0, level=Level.TARGET, model="AC")],
    [measure("a", 1.0, timed="constants=warm"), measure("b", 2.0, timed="thread-pool=tvm")],
    # Equal medians, of which the upper end of one's interval lets a third in.
    [
        msgspec.structs.replace(measure(name, 1.0), estimate=Estimate(1.0, low_s, high_s, 20))
        for name, low_s, high_s in (("a", 0.99, 1.0), ("b", 1.0, 1.01))
    ] + [measure("c", 1.01, 0.004)],
    # Equal times in versions that are no longer installed.
    [measure("a", 1.0, version="0.1"), measure("a", 1.0, version="0.2"), measure("b", 1.0, version="0.1")],
]


@pytest.mark.parametrize("records", TIES)
def test_the_order_in_which_a_database_has_its_records_has_no_effect(records: list[Measured]) -> None:
    known = [plain("a", 10), plain("b", 10), plain("c", 15)]
    answers = [choose(workload(8), TARGET, known, order) for order in itertools.permutations(records)]
    assert all(answer == answers[0] for answer in answers)


def test_times_of_different_targets_are_not_compared() -> None:
    known = [plain("a", 10), plain("b", 10)]
    elsewhere = {"level": Level.TRANSFERRED}
    records = [
        measure("a", 1.0, target="fast host", **elsewhere),
        measure("a", 6.0, target="slow host", **elsewhere),
        measure("b", 5.0, target="slow host", **elsewhere),
    ]
    answer = choose(workload(8), TARGET, known, records)
    assert answer.implementation == "b"
    assert "(slow host)" in answer.explanation


def test_the_interval_that_others_must_reach_is_that_of_the_lowest_median() -> None:
    known = [plain("wide", 5), plain("fast", 10), plain("other", 20)]
    records = [measure("fast", 1.0, 0.01), measure("other", 1.03, 0.012), measure("wide", 1.5, 0.4)]
    # `wide` reaches lower than all, and higher than `other` does: that is its own noise.
    answer = choose(workload(8), TARGET, known, records)
    assert answer.implementation == "fast"


def test_a_wide_interval_overlaps_nothing() -> None:
    """±26445 % and ±154 % were selected beside intervals of half a percent."""
    known = [plain("tiled", 10), plain("library", 15)]
    tiled = measure("tiled", 5.14e-3, 0.005)
    for median_s, spread, shown in (
        (9.33e-3, 1.54, "up to 2.54×"), (5.1e-3, 0.5, "±50.0%"), (6e-3, 264.45, "up to 265×"),
    ):
        answer = choose(workload(8), TARGET, known, [tiled, measure("library", median_s, spread)])
        assert answer.implementation == "tiled"
        doubt = f"library ({show_seconds(median_s)}, {shown})"
        assert f"compared by the upper ends of their intervals: {doubt}" in answer.explanation


def test_a_wide_interval_of_the_lowest_median_draws_nobody_in() -> None:
    known = [plain("noisy", 10), plain("slow", 20), plain("sure", 5)]
    records = [measure("noisy", 1.0, 2.0), measure("slow", 2.0, 0.01), measure("sure", 1.1, 0.01)]
    answer = choose(workload(8), TARGET, known, records)
    assert answer.implementation == "sure"
    assert "noisy (1.00 s, up to 3×)" in answer.explanation


def test_where_nothing_is_sure_the_longest_time_decides() -> None:
    known = [plain("a", 10), plain("b", 20)]
    answer = choose(workload(8), TARGET, known, [measure("a", 1.1, 0.1), measure("b", 1.0, 0.5)])
    assert answer.implementation == "a"
    assert "a has the lowest time measured" in answer.explanation
    assert "b, the next, takes 1.24× as long" in answer.explanation


@pytest.mark.parametrize(("samples", "text"), [(1, "1 sample"), (5, "5 samples"), (6, "±0.0%")])
def test_few_samples_have_no_interval(samples: int, text: str) -> None:
    few = Estimate(2.0, 2.0, 2.0, samples)
    assert few.show_spread() == text
    assert few.is_bounded == (samples >= 6)
    known = [plain("a", 10), plain("b", 20)]
    records = [measure("a", 2.0, 0.01), msgspec.structs.replace(measure("b", 2.001), estimate=few)]
    found = choose(workload(8), TARGET, known, records)
    assert ("(2.00 s, " + text in found.explanation) == (samples < 6)


def test_what_is_measured_again_is_what_may_win() -> None:
    def estimates(**of: tuple[float, float]) -> dict[str, Estimate]:
        return {n: measure(n, median, spread).estimate for n, (median, spread) in of.items()}

    assert unsettled({}) == set()
    assert unsettled(estimates(a=(1.0, 0.01), b=(1.1, 0.01))) == set()
    assert unsettled(estimates(a=(1.0, 0.01), b=(1.1, 0.2), c=(2.0, 0.2))) == {"a", "b"}
    assert unsettled(estimates(a=(1.0, 0.2), b=(1.1, 0.01), c=(2.0, 0.01))) == {"a", "b"}
    assert unsettled(estimates(a=(1.0, 0.2))) == {"a"}


def test_of_two_versions_elsewhere_the_faster_is_transferred() -> None:
    known = [Candidate("a", f"2.{SPACE.digest}", 10, None, SPACE)]
    records = [
        measure("a", seconds, version=f"2.{space}", config=Config({"tile": tile}),
                level=Level.TRANSFERRED, target="haswell")
        for seconds, space, tile in ((2.0, "wide", 1), (1.0, "narrow", 2), (3.0, "other", 4))
    ]
    assert choose(workload(8), TARGET, known, records).config == Config({"tile": 2})


def test_a_transferred_config_must_be_of_this_space() -> None:
    known = [Candidate("a", f"2.{SPACE.digest}", 10, None, SPACE)]
    for version, tile, reason in (
        ("2.other", 2, Reason.TRANSFERRED),  # another target's space: what counts is the config
        ("2.other", 3, Reason.PLEVEL),
        ("1.other", 2, Reason.PLEVEL),
    ):
        record = measure(
            "a", 1.0, version=version, config=Config({"tile": tile}), level=Level.TRANSFERRED
        )
        assert choose(workload(8), TARGET, known, [record]).reason is reason


# ---- explanations -----------------------------------------------------------------------------


def test_explanations_of_measurements() -> None:
    known = [plain("slow.cpu", 15), plain("fast.cpu", 10), plain("new.cpu", 5)]
    records = [measure("slow.cpu", 3e-3, 0.01), measure("fast.cpu", 2e-3, 0.01)]
    answer = choose(workload(8), TARGET, known, records)
    assert answer.explanation == (
        "fast.cpu has the lowest median measured on this device: 2.00 ms (95 %: 1.98 ms to 2.02 ms); "
        "slow.cpu, the next, takes 1.50× as long; not measured: new.cpu"
    )
    close = [measure("slow.cpu", 2.01e-3, 0.01), measure("fast.cpu", 2e-3, 0.01)]
    assert choose(workload(8), TARGET, known[:2], close).explanation == (
        "slow.cpu has the highest plevel (15) of the 2 whose interval overlaps the lowest median's "
        "(fast.cpu, 2.00 ms), measured on this device: 2.01 ms (95 %: 1.99 ms to 2.03 ms)"
    )
    for level, where in (
        (Level.MODEL, "on devices of this model"),
        (Level.TARGET, "on this target"),
        (Level.TRANSFERRED, "on another target (llvm/haswell/threads=2)"),
    ):
        record = measure("fast.cpu", 1.0, level=level, target="llvm/haswell/threads=2")
        assert (
            f"measured {where}: 1.00 s" in choose(workload(8), TARGET, known, [record]).explanation
        )


def test_what_was_measured_in_an_older_version_keeps_slower_ones_from_winning() -> None:
    """A raised version made a tuned database answer worse than an empty one."""
    known = [
        plain("slow.cpu", 15), Candidate("fast.cpu", "2.0", 10, None, SPACE), plain("new.cpu", 5),
        plain("older.cpu", 1),
    ]
    slow = measure("slow.cpu", 3e-3, 0.01)
    old = [
        measure("fast.cpu", s, 0.01, version=v, config=Config({"tile": t}))
        for s, v, t in ((1e-3, "1.a", 1), (2e-3, "1.b", 2))
    ]
    answer = choose(workload(8), TARGET, known, [slow, *old, measure("older.cpu", 5e-3, version="0.1")])
    assert (answer.implementation, answer.version, answer.config) == ("fast.cpu", "2.0", Config({"tile": 1}))
    assert (answer.reason, answer.level, answer.partial) == (Reason.STALE, Level.DEVICE, True)
    assert answer.unmeasured == ("fast.cpu", "new.cpu", "older.cpu")
    assert answer.stale == {"fast.cpu": "1.a", "older.cpu": "0.1"}
    # No time of the installed version is claimed.
    assert [(r.implementation, r.estimate, r.predicted_s) for r in answer.rivals] == [
        ("slow.cpu", slow.estimate, None), ("fast.cpu", None, 1e-3), ("older.cpu", None, 5e-3), ("new.cpu", None, None),
    ]
    assert answer.explanation == (
        "fast.cpu has the lowest median measured on this device: 1.00 ms (95 %: 990 µs to 1.01 ms); that is of version "
        "1.a, and version 2.0 is installed: tune again; of the installed versions slow.cpu takes the least, 3.00 ms; "
        "not measured: new.cpu; measured in another version than is installed: older.cpu 5.00 ms (version 0.1)"
    )
    # A current one that may be as fast is preferred.
    near = choose(workload(8), TARGET, known, [measure("slow.cpu", 1.02e-3, 0.012), *old])
    assert (near.implementation, near.reason) == ("slow.cpu", Reason.MEASURED)
    assert near.explanation.endswith(
        "; not measured: new.cpu, older.cpu; measured in another version than is installed: "
        "fast.cpu 1.00 ms (version 1.a)"
    )


def test_of_several_older_versions_the_newest_counts() -> None:
    """The one before may have been fast by an error that the newer one mended."""
    known = [plain("slow", 15), Candidate("mended", "12.0", 10, None, SPACE)]
    old = [measure("mended", s, 0.01, version=v) for s, v in ((1.0, "2.a"), (4.0, "11.a"))]
    assert choose(workload(8), TARGET, known, [measure("slow", 3.0, 0.01), *old]).implementation == "slow"
    assert choose(workload(8), TARGET, known, [measure("slow", 5.0, 0.01), *old]).implementation == "mended"


def test_the_newest_version_is_that_of_the_devices_that_decide() -> None:
    known = [plain("a", 15), Candidate("b", "9.0", 10)]
    own = [measure(name, s, version=v, level=Level.MODEL) for name, s, v in (("a", 3.0, "0.1"), ("b", 1.0, "7.0"))]
    other = measure("b", 5.0, version="8.0", level=Level.TARGET, model="x")
    answer = choose(workload(8), TARGET, known, [*own, other])
    assert (answer.implementation, answer.stale) == ("b", {"a": "0.1", "b": "7.0"})


def test_stale_records_of_another_device_model_are_not_compared() -> None:
    known = [plain("a", 15), plain("b", 10)]
    for level, model, reason in (
        (Level.TARGET, "x", Reason.STALE), (Level.TARGET, "y", Reason.MEASURED), (Level.MODEL, "", Reason.MEASURED),
    ):
        old = measure("b", 1.0, version="0.1", level=level, model=model)
        answer = choose(workload(8), TARGET, known, [measure("a", 2.0, level=Level.TARGET, model="x"), old])
        assert answer.reason is reason
    other = measure("b", 1.0, version="0.1", timed="constants=warm")
    assert choose(workload(8), TARGET, known, [measure("a", 2.0), other]).reason is Reason.MEASURED


def test_stale_records_of_this_target_come_before_all_that_is_not_of_it() -> None:
    known = [plain("a", 15), Candidate("b", "2.0", 10, None, SPACE)]
    old = measure("b", 1.0, version="1.0", config=Config({"tile": 3}))
    other = measure("a", 0.5, level=Level.TRANSFERRED, target="haswell")
    answer = choose(workload(8), TARGET, known, [old, other], Model(a=1e-3, b=2e-3))
    assert (answer.implementation, answer.reason, answer.config) == ("b", Reason.STALE, SPACE.fallback)
    assert "the configuration of then is not in the installed space, and the fallback is taken" in answer.explanation
    shorter = [(workload(4), [old])]
    anchored = choose(workload(8), TARGET, known, [], shorter=shorter)
    assert (anchored.implementation, anchored.reason) == ("b", Reason.ANCHOR)
    assert "that is of version 1.0, and version 2.0 is installed: tune again" in anchored.explanation


@pytest.mark.parametrize(("failed", "reason"), [("1.0", Reason.MEASURED), ("0.1", Reason.STALE), ("", Reason.STALE)])
def test_what_fails_in_the_installed_version_is_not_selected_by_an_older_one(failed: str, reason: Reason) -> None:
    class Tried(Records):
        def failed(self, w: Workload, target: Target, device: str | None) -> Sequence[Failed]:
            return [Failed(implementation="a", version=failed), Failed(implementation="b", version="1.0")]

    known = [plain("a", 5), plain("b", 10)]
    records = Tried([measure("a", 1.0, version="0.1"), measure("b", 2.0)])
    assert select(workload(8), TARGET, records, offered=known).reason is reason


def test_rivals_without_times_are_in_the_order_of_plevel() -> None:
    known = [plain("low", 5), plain("high", 15), plain("between", 10)]
    answer = choose(workload(8), TARGET, known, [])
    assert [r.implementation for r in answer.rivals] == ["high", "between", "low"]
    measured = choose(workload(8), TARGET, known, [measure("low", 1.0)])
    assert [r.implementation for r in measured.rivals] == ["low", "high", "between"]


def test_the_advice_of_the_finest_level_is_taken() -> None:
    known = [plain("a", 5), plain("b", 15)]
    advised = [
        Advised(implementation=name, version="1.0", config=Config({"tile": tile}), level=level, source="helion")
        for name, tile, level in (("b", 1, Level.TARGET), ("a", 2, Level.MODEL), ("a", 4, Level.MODEL))
    ]
    answer = choose(workload(8), TARGET, known, [], advised=advised)
    assert (answer.implementation, answer.config, answer.level) == ("a", Config({"tile": 2}), Level.MODEL)


def test_the_explanation_of_a_plevel() -> None:
    answer = choose(workload(8), TARGET, [plain("a", 10), plain("b", 15)], [])
    assert answer.explanation == (
        f"nothing is measured for this workload on {TARGET}; b has the highest plevel (15) of 2 valid, "
        "with its fallback configuration"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.50 s"), (1.0, "1.00 s"), (0.5, "500 ms"), (1.234e-3, "1.23 ms"), (12.34e-6, "12.3 µs"),
     (5e-9, "5.00 ns"), (0.9997, "1.00 s"), (0.999, "999 ms"), (9.997e-4, "1.00 ms"), (123.4, "123 s")],
)
def test_times_are_shown_with_their_unit(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


# ---- the cost model ---------------------------------------------------------------------------


class Model:
    """Ranks by the times given."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[str] = []

    def rank(self, w: Workload, target: Target, valid: Sequence[Candidate]) -> list[Prediction]:
        self.asked = [c.implementation for c in valid]
        return [
            Prediction(implementation=n, config=Config({"tile": 1}), median_s=s, sigma_log=0.1)
            for n, s in sorted(self.seconds.items(), key=lambda item: item[1])
        ]


def test_the_model_decides_only_where_nothing_is_measured() -> None:
    known = [
        plain("a", 15),
        plain("b", 10),
        plain("c", 5),
        plain("d", 20, condition=SpecializedCondition(ROWS > 8)),
    ]
    model = Model(a=2e-3, b=1e-3)
    answer = choose(workload(8), TARGET, known, [], model)
    assert (answer.implementation, answer.reason, answer.level) == ("b", Reason.PREDICTED, None)
    assert answer.config == Config({"tile": 1})
    assert "ranks b first, at about 1.00 ms" in answer.explanation
    assert model.asked == ["a", "b", "c"]
    # Implementations that the model does not rank come after those it does, and invalid ones last.
    assert [(r.implementation, r.predicted_s) for r in answer.rivals] == [
        ("b", 1e-3), ("a", 2e-3), ("c", None), ("d", None),
    ]
    assert choose(workload(8), TARGET, known, [measure("a", 1.0)], model).reason is Reason.MEASURED
    assert choose(workload(8), TARGET, known, [], Model()).reason is Reason.PLEVEL


# ---- conditions and errors --------------------------------------------------------------------


def test_an_undecidable_condition_does_not_hold() -> None:
    known = [plain("a", 10), plain("b", 15, condition=SpecializedCondition(ROWS > 16))]
    assert not holds(known[1], workload("m"))
    for policy in ("plevel", "tvm"):
        answer = select(workload("m"), TARGET, Records(), offered=known, policy=policy)
        assert answer.implementation == "a"


def test_nothing_valid_is_an_error_that_names_operator_and_target() -> None:
    known = [plain("a", 10, condition=SpecializedCondition(ROWS > 16))]
    for policy in ("plevel", "tvm"):
        with pytest.raises(SelectionError, match=r"made_up.*float32\[8,8\].*llvm/znver4.*1 exist"):
            select(workload(8), TARGET, Records(), offered=known, policy=policy)
    with pytest.raises(SelectionError, match="no implementation of made_up"):
        select(workload(8), TARGET, Records(), offered=[])


def test_a_condition_over_something_else_is_an_error() -> None:
    wrong = plain("a", 10, condition=SpecializedCondition(Dim("weight_rows") > 16))
    with pytest.raises(SelectionError, match="'weight_rows', which is no dimension of made_up"):
        select(workload(8), TARGET, Records(), offered=[wrong])


def test_two_candidates_of_one_name_are_an_error() -> None:
    with pytest.raises(SelectionError, match="is listed twice"):
        select(workload(8), TARGET, Records(), offered=[plain("a", 10), plain("a", 15)])


# ---- policy="tvm" -----------------------------------------------------------------------------

CONV2D = "test_select.conv2d"


def conv2d_rel(types: Sequence[Type], attrs: Any, reporter: TypeReporter) -> bool:
    data, weight = reporter.tensor(0), reporter.tensor(1)
    assert data is not None
    assert weight is not None
    n, _, h, w = data.shape
    reporter.assign(2, TensorType([n, weight.shape[0], h, w], data.dtype))
    return True


def conv2d_space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Any, target: Target
) -> ConfigSpace:
    return ConfigSpace([Knob("tile", [1, 2, 4])])


def conv2d_strategy(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> OpStrategy:
    strategy = OpStrategy()
    channels = inputs[0].shape[1]
    strategy.add_implementation(print, repr, "conv2d_1", 10, space=conv2d_space)
    strategy.add_implementation(print, repr, "conv2d_2", 15, space=conv2d_space)
    with SpecializedCondition(channels >= 16):
        strategy.add_implementation(print, repr, "conv2d_3", 20)
    return strategy


@pytest.fixture
def conv2d() -> Iterator[None]:
    register_op(CONV2D).set_num_inputs(2).add_argument("data", "Tensor", "").add_argument(
        "weight", "Tensor", ""
    ).add_type_rel("Conv2D", conv2d_rel)
    register_strategy(CONV2D, conv2d_strategy)
    yield
    del registered[CONV2D]


class Log:
    """Tuned configurations by workload, as in AutoTVM's log."""

    def __init__(self) -> None:
        self.lines: dict[str, list[History]] = {}

    def add(self, w: Workload, implementation: str, seconds: float) -> None:
        line = History(
            implementation=implementation, config=Config({"tile": 2}), mean_s=seconds,
            model="unknown", keys=("cpu",),
        )
        self.lines.setdefault(w.key, []).append(line)

    def history(self, w: Workload) -> Sequence[History]:
        return self.lines.get(w.key, ())

    def measured(self, w: Workload, target: Target, device: str | None) -> Sequence[Measured]:
        return ()

    def instances(
        self, w: Workload, target: Target, device: str | None
    ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
        return ()


@pytest.mark.usefixtures("conv2d")
def test_what_tvm_tested() -> None:
    """`test_select_implementation` of TVM's compile engine."""
    target = Target.parse("llvm")
    log = Log()

    def conv(channels: int) -> Workload:
        shapes = {"data": f"float32[1,{channels},7,7]", "weight": f"float32[32,{channels},3,3]"}
        return Workload.make(CONV2D, shapes)

    def chosen(channels: int, policy: Policy = "tvm") -> str:
        return select(conv(channels), target, log, policy=policy).implementation

    valid = {c: [x for x in candidates(conv(c), target) if holds(x, conv(c))] for c in (8, 16)}
    assert [len(v) for v in valid.values()] == [2, 3]
    for policy in ("tvm", "plevel"):
        assert chosen(8, policy) == "conv2d_2"
        assert chosen(16, policy) == "conv2d_3"
    log.add(conv(8), "conv2d_1", 0.5)
    log.add(conv(16), "conv2d_1", 1.0)
    assert chosen(8) == "conv2d_1"
    assert chosen(16) == "conv2d_1"
    log.add(conv(8), "conv2d_2", 0.2)
    log.add(conv(16), "conv2d_1", 1.2)
    assert chosen(8) == "conv2d_2"
    answer = select(conv(16), target, log, policy="tvm")
    assert answer.implementation == "conv2d_1"
    assert answer.explanation == "policy tvm: the lowest mean cost on record, 1.00 s"
    assert (answer.config, answer.reason) == (Config({"tile": 2}), Reason.MEASURED)


tunables = st.lists(
    st.builds(
        lambda name, plevel, tunable: Candidate(name, "1.0", plevel, None, SPACE if tunable else None),
        st.sampled_from("abcd"), st.sampled_from([5, 10, 15]), st.booleans(),
    ),
    min_size=1, max_size=4, unique_by=lambda c: c.implementation,
)
histories = st.lists(
    st.tuples(
        st.sampled_from("abcde"),
        st.sampled_from(["epyc", "xeon", "unknown", ""]),
        st.sampled_from([("mine", "cpu"), ("cpu",), ("arm_cpu", "cpu"), ("gpu",)]),
    ),
    max_size=10,
).flatmap(
    lambda lines: st.permutations(range(len(lines))).map(
        lambda order: [
            History(implementation=n, config=Config({"tile": i}), mean_s=1.0 + i, model=m, keys=k)
            for i, (n, m, k) in zip(order, lines, strict=True)
        ]
    )
)


@given(tunables, histories, st.booleans())
def test_policy_tvm_is_what_tvm_did(
    known: list[Candidate], lines: list[History], has_model: bool
) -> None:
    target = TARGET if has_model else Target.parse({**TARGET.to_json(), "model": ""})
    # As ApplyHistoryBest keeps them: the best per (key, workload) and per (model, workload).
    by_model: dict[tuple[str, str], History] = {}
    by_key: dict[tuple[str, str], History] = {}
    for line in lines:
        for table, keys in ((by_model, [line.model]), (by_key, line.keys)):
            for key in keys:
                held = table.get((key, line.implementation))
                if held is None or line.mean_s < held.mean_s:
                    table[key, line.implementation] = line
    best: History | None = None
    for c in known:
        if c.space is None:
            continue
        found = by_model.get((target.model, c.implementation)) if target.model else None
        for key in target.keys:
            found = found or by_key.get((key, c.implementation))
        if found is not None and (best is None or found.mean_s < best.mean_s):
            best = found
    answer = choose_as_tvm(workload(8), target, known, lines)
    if best is None:
        winner = max(known, key=lambda c: c.plevel)
        assert (answer.implementation, answer.config) == (winner.implementation, winner.fallback)
        assert answer.reason is Reason.PLEVEL
    else:
        assert (answer.implementation, answer.config) == (best.implementation, best.config)
        assert show_seconds(best.mean_s) in answer.explanation


def test_policy_tvm_takes_the_model_before_the_keys_and_the_keys_in_order() -> None:
    def line(name: str, seconds: float, model: str, *keys: str) -> History:
        return History(implementation=name, config=Config(), mean_s=seconds, model=model, keys=keys)

    known = [Candidate("a", "1.0", 10, None, SPACE)]
    lines = [
        line("a", 3.0, "epyc", "gpu"), line("a", 2.0, "xeon", "mine"), line("a", 1.0, "xeon", "cpu"),
    ]
    for count, seconds in ((0, "3.00 s"), (1, "2.00 s"), (2, "1.00 s")):
        assert seconds in choose_as_tvm(workload(8), TARGET, known, lines[count:]).explanation


def test_policy_tvm_matches_no_model_where_the_target_names_none() -> None:
    known = [Candidate("a", "1.0", 10, None, SPACE)]
    lines = [
        History(implementation="a", config=Config(), mean_s=s, model=m, keys=("cpu",))
        for s, m in ((2.0, ""), (1.0, "epyc"))
    ]
    assert "1.00 s" in choose_as_tvm(workload(8), Target.parse("llvm"), known, lines).explanation


def test_policy_tvm_does_not_look_at_records_for_symbolic_shapes() -> None:
    known = [Candidate("a", "1.0", 10, None, SPACE), Candidate("b", "1.0", 15, None, SPACE)]
    line = History(implementation="a", config=Config(), mean_s=1.0, model="epyc", keys=("cpu",))
    assert choose_as_tvm(workload("m"), TARGET, known, [line]).implementation == "b"
    assert choose_as_tvm(workload(8), TARGET, known, [line]).implementation == "a"


@pytest.mark.parametrize("policy", ["plevel", "tvm"])
def test_what_needs_constant_shapes_is_not_selected_for_symbolic_ones(policy: Policy) -> None:
    known = [Candidate("a", "1.0", 10, None, SPACE), Candidate("b", "1.0", 15, None, SPACE, symbolic=False)]
    for rows, expected in (("m", "a"), (8, "b")):
        found = select(workload(rows), TARGET, Records(), offered=known, policy=policy)
        assert found.implementation == expected
        assert {r.implementation: r.valid for r in found.rivals} == {"a": True, "b": rows == 8}
    assert "not valid: needs constant shapes" in select(workload("m"), TARGET, Records(), offered=known)._repr_html_()
    with pytest.raises(SelectionError, match="1 exist, but their conditions fail, or they need constant shapes"):
        select(workload("m"), TARGET, Records(), offered=known[1:], policy=policy)


# ---- answers that are kept --------------------------------------------------------------------


@pytest.mark.usefixtures("conv2d")
def test_a_selector_keeps_answers_until_the_revision_changes() -> None:
    class Counted(Records):
        revision = 1
        asked = 0

        def measured(self, w: Workload, target: Target, device: str | None) -> Sequence[Measured]:
            self.asked += 1
            return super().measured(w, target, device)

    def conv(channels: int) -> Workload:
        shapes = {"data": f"float32[1,{channels},7,7]", "weight": f"float32[32,{channels},3,3]"}
        return Workload.make(CONV2D, shapes)

    records = Counted()
    selector = Selector(records, size=8)
    first = selector.select(conv(8), TARGET)
    assert first == select(conv(8), TARGET, records)
    asked = records.asked
    same_target = Target.parse(TARGET.to_json())
    assert selector.select(conv(8), same_target) is first
    assert records.asked == asked
    version = next(r.version for r in first.rivals if r.implementation == "conv2d_1")
    records.measurements.append(measure("conv2d_1", 1.0, version=version))
    assert selector.select(conv(8), TARGET) is first  # nobody said that anything changed
    records.revision = 2
    assert selector.select(conv(8), TARGET).implementation == "conv2d_1"
    # A question that differs in any part is another question.
    libs = Target.parse({**TARGET.to_json(), "libs": ["cblas"]})
    for question in (
        {"target": libs}, {"target": TARGET, "device": "x"}, {"target": TARGET, "policy": "tvm"},
    ):
        asked = records.asked
        selector.select(conv(8), **question)
        assert records.asked == asked + ("policy" not in question)
    assert selector.select(conv(8), TARGET, policy="tvm").implementation == "conv2d_2"
    assert selector.select(conv(16), TARGET).workload == conv(16)
