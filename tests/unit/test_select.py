"""The selection rule against the text of the design, and `policy="tvm"` against TVM's own cases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    History,
    Level,
    Measured,
    Policy,
    Prediction,
    Reason,
    Selection,
    SelectionError,
    choose,
    choose_as_tvm,
    holds,
    select,
    show_seconds,
)
from strategy.selector import Selector
from strategy.space import Config, ConfigSpace, Knob
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
}  # fmt: skip


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
        )  # fmt: skip
    order = draw(st.permutations(range(12)))
    measured = []
    for rank in order[: draw(st.integers(0, 12))]:
        median = 1 + rank / 10  # all different; intervals overlap or not
        low, high = draw(st.floats(0, 0.3)), draw(st.floats(0, 0.3))
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
                estimate=Estimate(median, median - low, median + high, 20),
                target=draw(st.sampled_from(["haswell", "znver3"]))
                if level is Level.TRANSFERRED
                else TARGET.key,
            )
        )
    return rows, known, measured


def expected(rows: int, known: list[Candidate], measured: list[Measured]) -> tuple[Any, ...] | None:
    """What the design says, read once more: (implementation, reason, level, time, unmeasured)."""
    # 1. Keep the implementations whose conditions hold.
    valid = [c for c in known if CONDITIONS[c.condition](rows)]
    if not valid:
        return None
    # 2. The level with current records of the most valid implementations decides, finer on a tie;
    #    what is transferred is valid in this target's space, and from one other target.
    sources: list[tuple[Level, list[Measured]]] = [
        (level, [m for m in measured if m.level == level])
        for level in (Level.DEVICE, Level.MODEL, Level.TARGET)
    ]
    others = [m for m in measured if m.level == Level.TRANSFERRED]
    scored: list[tuple[int, Level, dict[str, Measured]]] = []
    for level, records in [
        *sources,
        *((Level.TRANSFERRED, [m for m in others if m.target == t]) for t in ("haswell", "znver3")),
    ]:
        table: dict[str, Measured] = {}
        for c in valid:
            own = []
            for m in records:
                if m.implementation != c.implementation:
                    continue
                if level == Level.TRANSFERRED:
                    current = m.version.split(".")[0] == c.version.split(".")[0]
                    current = current and (c.space is None or m.config["tile"] in (1, 2, 4))
                else:
                    current = m.version == c.version
                if current:
                    own.append(m)
            if own:
                table[c.implementation] = sorted(own, key=lambda m: m.estimate.median_s)[0]
        scored.append((len(table), level, table))
    most = max(count for count, _, _ in scored)
    if most == 0:
        # 5. The highest plevel, the first registered on a tie, with its fallback.
        top = max(c.plevel for c in valid)
        winner = [c for c in valid if c.plevel == top][0]  # noqa: RUF015
        return winner.implementation, Reason.PLEVEL, None, None, ()
    answers = []
    for count, level, table in scored:
        if count != most:
            continue
        # 3. The lowest median; of those whose interval overlaps its interval, the highest plevel.
        lowest = sorted(table.values(), key=lambda m: m.estimate.median_s)[0].estimate
        close = [
            c
            for c in valid
            if c.implementation in table
            and not table[c.implementation].estimate.low_s > lowest.high_s
            and not table[c.implementation].estimate.high_s < lowest.low_s
        ]
        top = max(c.plevel for c in close)
        winner = [c for c in close if c.plevel == top][0]  # noqa: RUF015
        reason = Reason.TRANSFERRED if level == Level.TRANSFERRED else Reason.MEASURED
        missing = tuple(c.implementation for c in valid if c.implementation not in table)
        time = table[winner.implementation].estimate.median_s
        answers.append((winner.implementation, reason, level, time, missing))
    finest = answers[0]
    if finest[2] == Level.TRANSFERRED and len(answers) == 2:
        # Two targets say as much: the one that the database lists first.
        current_at = {m.estimate.median_s: i for i, m in enumerate(measured)}
        tables = [t for count, _, t in scored if count == most]
        first = [
            min(_first_seen(m, valid, measured, current_at) for m in t.values()) for t in tables
        ]
        return answers[first.index(min(first))]
    return finest


def _first_seen(
    m: Measured, valid: list[Candidate], measured: list[Measured], at: dict[float, int]
) -> int:
    """Where the first current record of the same other target stands."""
    own = {c.implementation: c for c in valid}
    return min(
        at[x.estimate.median_s]
        for x in measured
        if x.level == Level.TRANSFERRED
        and x.target == m.target
        and x.implementation in own
        and x.version.split(".")[0] == own[x.implementation].version.split(".")[0]
        and (own[x.implementation].space is None or x.config["tile"] in (1, 2, 4))
    )


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
    else:
        record = next(m for m in measured if m.estimate.median_s == time)
        assert found.config == record.config
    # The rivals are all candidates, valid ones first, the measured of them by time.
    assert sorted(r.implementation for r in found.rivals) == sorted(c.implementation for c in known)
    assert [r.valid for r in found.rivals] == sorted((r.valid for r in found.rivals), reverse=True)
    times = [r.estimate.median_s for r in found.rivals if r.estimate]
    assert times == sorted(times)
    assert found.implementation in found.explanation


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
    }  # fmt: skip
    return Measured(
        implementation=name,
        estimate=Estimate(median, median * (1 - spread), median * (1 + spread), 20),
        **given_fields,
    )


def test_noise_does_not_make_answers_flap() -> None:
    known = [plain("a", 10), plain("b", 15)]
    for fast, slow in ((1.00, 1.01), (1.01, 1.00)):
        answer = choose(
            workload(8), TARGET, known, [measure("a", fast, 0.02), measure("b", slow, 0.02)]
        )
        assert answer.implementation == "b"
    clear = choose(workload(8), TARGET, known, [measure("a", 1.0, 0.02), measure("b", 1.2, 0.02)])
    assert clear.implementation == "a"


def test_intervals_that_just_touch_overlap() -> None:
    known = [plain("a", 10), plain("b", 15)]
    touching = [
        Measured(implementation="a", version="1.0", config=Config(), level=Level.MODEL, estimate=Estimate(1, 1, 2, 9)),
        Measured(implementation="b", version="1.0", config=Config(), level=Level.MODEL, estimate=Estimate(3, 2, 4, 9)),
    ]  # fmt: skip
    assert choose(workload(8), TARGET, known, touching).implementation == "b"


def test_the_first_registered_wins_a_tie() -> None:
    for known in itertools.permutations([plain("a", 10), plain("b", 10), plain("c", 5)]):
        first = next(c.implementation for c in known if c.plevel == 10)
        assert choose(workload(8), TARGET, known, []).implementation == first
        same = [measure(c.implementation, 1.0, 0.1) for c in reversed(known)]
        assert choose(workload(8), TARGET, known, same).implementation == first


def test_a_coarser_level_decides_where_it_says_more() -> None:
    known = [plain("a", 10), plain("b", 15)]
    fine = [measure("b", 1.0)]
    coarse = [measure(n, s, level=Level.TARGET) for n, s in (("a", 2.0), ("b", 3.0))]
    answer = choose(workload(8), TARGET, known, [*fine, *coarse])
    assert (answer.implementation, answer.level) == ("a", Level.TARGET)
    only = choose(workload(8), TARGET, known, fine)
    assert (only.implementation, only.level, only.unmeasured) == ("b", Level.DEVICE, ("a",))


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
    records = [measure("fast", 1.0, 0.01), measure("other", 1.1, 0.05), measure("wide", 1.5, 0.4)]
    # `wide` reaches lower than all, and higher than `other` does: that is its own noise.
    answer = choose(workload(8), TARGET, known, records)
    assert answer.implementation == "fast"


def test_of_two_versions_elsewhere_the_faster_is_transferred() -> None:
    known = [Candidate("a", f"2.{SPACE.digest}", 10, None, SPACE)]
    records = [
        measure("a", seconds, version=f"2.{space}", config=Config({"tile": tile}),
                level=Level.TRANSFERRED, target="haswell")
        for seconds, space, tile in ((2.0, "wide", 1), (1.0, "narrow", 2), (3.0, "other", 4))
    ]  # fmt: skip
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
)  # fmt: skip
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
    # What the model says nothing of comes after what it ranks, and what is not valid last.
    assert [(r.implementation, r.predicted_s) for r in answer.rivals] == [
        ("b", 1e-3), ("a", 2e-3), ("c", None), ("d", None),
    ]  # fmt: skip
    assert choose(workload(8), TARGET, known, [measure("a", 1.0)], model).reason is Reason.MEASURED
    assert choose(workload(8), TARGET, known, [], Model()).reason is Reason.PLEVEL


# ---- conditions and errors --------------------------------------------------------------------


def test_an_undecidable_condition_does_not_hold() -> None:
    known = [plain("a", 10), plain("b", 15, condition=SpecializedCondition(ROWS > 16))]
    assert not holds(known[1], workload("m"))
    for policy in ("plevel", "tvm"):
        answer = select(workload("m"), TARGET, Records(), offered=known, policy=policy)  # type: ignore[arg-type]
        assert answer.implementation == "a"


def test_nothing_valid_is_an_error_that_names_operator_and_target() -> None:
    known = [plain("a", 10, condition=SpecializedCondition(ROWS > 16))]
    for policy in ("plevel", "tvm"):
        with pytest.raises(SelectionError, match=r"made_up.*float32\[8,8\].*llvm/znver4.*1 exist"):
            select(workload(8), TARGET, Records(), offered=known, policy=policy)  # type: ignore[arg-type]
    with pytest.raises(SelectionError, match="no implementation of made_up"):
        select(workload(8), TARGET, Records(), offered=[])


def test_a_condition_over_something_else_is_an_error() -> None:
    wrong = plain("a", 10, condition=SpecializedCondition(Dim("weight_rows") > 16))
    with pytest.raises(SelectionError, match="'weight_rows', which is no dimension of made_up"):
        select(workload(8), TARGET, Records(), offered=[wrong])


def test_two_candidates_of_one_name_are_an_error() -> None:
    with pytest.raises(SelectionError, match="two candidates have the same implementation"):
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
    """What was tuned, as AutoTVM's log has it: by workload."""

    def __init__(self) -> None:
        self.lines: dict[str, list[History]] = {}

    def add(self, w: Workload, implementation: str, seconds: float) -> None:
        line = History(
            implementation=implementation, config=Config({"tile": 2}), mean_s=seconds,
            model="unknown", keys=("cpu",),
        )  # fmt: skip
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
        assert chosen(8, policy) == "conv2d_2"  # type: ignore[arg-type]
        assert chosen(16, policy) == "conv2d_3"  # type: ignore[arg-type]
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
)  # fmt: skip
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
    ]  # fmt: skip
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
    # What differs in any part of the question is another question.
    libs = Target.parse({**TARGET.to_json(), "libs": ["cblas"]})
    for question in (
        {"target": libs}, {"target": TARGET, "device": "x"}, {"target": TARGET, "policy": "tvm"},
    ):  # fmt: skip
        asked = records.asked
        selector.select(conv(8), **question)  # type: ignore[arg-type]
        assert records.asked == asked + ("policy" not in question)
    assert selector.select(conv(8), TARGET, policy="tvm").implementation == "conv2d_2"
    assert selector.select(conv(16), TARGET).workload == conv(16)
