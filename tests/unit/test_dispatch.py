"""Dispatch tables against brute force over shapes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plevel.database import Rest, _Cached
from strategy.condition import SpecializedCondition
from strategy.op_strategy import Candidate, candidates
from strategy.record import Estimate, decode, encode
from strategy.select import (
    Evidence,
    Failed,
    History,
    Instance,
    Level,
    Measured,
    Reason,
    SelectionError,
    choose,
    holds,
    select,
)
from strategy.select.combination import satisfiable
from strategy.select.dispatch import DispatchTable, Row, dispatch
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import Dim
from strategy.workload import EpilogueStep, Input, Workload

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")
SPACE = ConfigSpace([Knob("tile", [1, 2, 4])], fallback={"tile": 2})
m, n = Dim("m"), Dim("n")


def workload(rows: int | str, columns: int | str = 64) -> Workload:
    return Workload("made_up", (Input("data", f"float32[{rows},{columns}]"),))


def candidate(name: str, plevel: int, condition: object = None, **more: bool) -> Candidate:
    # Conditions arrive by place, as a strategy evaluated on a concrete shape sends them.
    if condition is not None:
        condition = SpecializedCondition(condition).substitute(
            {"m": Dim("var", ("data.shape[0]",)), "n": Dim("var", ("data.shape[1]",))}
        )
    return Candidate(name, "1.0", plevel, condition, SPACE, **more)


class Records:
    """Medians by shape and implementation, each measured on this target with a narrow interval."""

    def __init__(self, medians: dict[tuple[int, int], dict[str, float]]) -> None:
        self.medians = medians

    def measured(self, w: Workload, target: Target, device: str | None) -> Sequence[Measured]:
        shape = tuple(w.inputs[0].tensor.concrete_shape)
        return [
            Measured(
                implementation=name, version="1.0", config=Config({"tile": 4}), level=Level.TARGET,
                estimate=Estimate(s, s * 0.99, s * 1.01, 20),
            )
            for name, s in self.medians.get(shape, {}).items()
        ]

    def instances(
        self, w: Workload, target: Target, device: str | None
    ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
        shapes = [workload(*shape) for shape in self.medians]
        return [(s, self.measured(s, target, device)) for s in shapes]

    def history(self, w: Workload) -> Sequence[History]:
        return []


def test_sizes_of_an_epilogue_are_bound_and_matched_with_the_rest() -> None:
    def dense(rows: int | str, residual: int | str) -> Workload:
        step = EpilogueStep("add", (None, Input("add0.rhs", f"float32[{residual},128]")))
        types = {"data": f"float32[{rows},64]", "weight": "float32[128,64]"}
        return Workload.make("dense", types, constants=["weight"], epilogue=[step])

    symbolic, concrete = dense("m", "m"), dense(8, 8)
    assert symbolic.bind({"m": 8}) == concrete
    assert symbolic.match(concrete) == {"m": 8}
    assert symbolic.match(dense(8, 1)) is None
    assert symbolic.match(concrete.anchor) is None


def test_a_row_says_how_its_times_were_taken() -> None:
    class Warm(Records):
        def measured(self, w: Workload, target: Target, device: str | None) -> Sequence[Measured]:
            return [msgspec.structs.replace(m, timed="constants=warm") for m in super().measured(w, target, device)]

    offered = [candidate("common", 5), candidate("one", 20, m == 1)]
    medians = {(8, 64): {"common": 1.0}, (16, 64): {"common": 2.0}}
    table = dispatch(workload("m"), TARGET, Warm(medians), offered=offered)
    assert table.row(m=8).timed == ("constants=warm",)
    assert "2 shapes on record, timed with constants=warm)" in table.explain_row(table.row(m=8))
    own = dispatch(workload("m"), TARGET, Records(medians), offered=offered)
    assert "timed with" not in own.explanation


def test_a_row_names_its_conditions_unambiguously() -> None:
    offered = [candidate("common", 5), candidate("one", 20, m == 1), candidate("some", 15, (m > 16) | (m == 4))]
    shown = dispatch(workload("m"), TARGET, NOTHING, offered=offered).explanation
    assert "not (m == 1) and ((m == 4) | (m > 16)): some (plevel; no shape on record)" in shown
    alone = dispatch(workload("m"), TARGET, NOTHING, offered=[offered[0], offered[2]]).explanation
    assert alone.startswith("(m == 4) | (m > 16): some")


def test_libraries_can_be_left_out() -> None:
    types = {"data": "float32[m,64]", "weight": "float32[128,64]"}
    asked = Workload.make("dense", types, constants=["weight"])
    target = Target.parse("llvm -mcpu=znver4 -num-cores=2 -libs=cblas")
    found = {
        every: {name for row in dispatch(asked, target, NOTHING, libraries=every).rows for name in row.valid}
        for every in (True, False)
    }
    assert found[True] - found[False] == {"dense_cblas.cpu"}


NOTHING = Records({})
OVERLAP = [
    candidate("common", 5),
    candidate("large", 12, m > 16),
    candidate("aligned", 14, (m % 4 == 0) & (m > 8)),
    candidate("one", 20, m == 1),
]


@pytest.mark.parametrize(
    "offered", [OVERLAP, OVERLAP[:2], [*OVERLAP, candidate("gap", 30, (m < 4) | (m > 1000))]]
)
def test_without_records_every_m_takes_the_highest_plevel_that_is_valid(
    offered: list[Candidate],
) -> None:
    table = dispatch(workload("m"), TARGET, NOTHING, offered=offered)
    for value in range(1, 1500):
        valid = [c for c in offered if holds(c, workload(value))]
        assert table(m=value)[0] == max(valid, key=lambda c: c.plevel).implementation
    assert all(row.reason is Reason.PLEVEL for row in table.rows)


def test_rows_are_exactly_the_satisfiable_combinations() -> None:
    table = dispatch(workload("m"), TARGET, NOTHING, offered=OVERLAP)
    met = {tuple(bool(c.evaluate({"m": v})) for c in table.conditions) for v in range(1, 10_000)}
    assert {row.holds for row in table.rows} == met
    for row in table.rows:
        assert tuple(bool(c.evaluate(row.example)) for c in table.conditions) == row.holds


comparison = st.builds(
    lambda scale, mod, op, c: getattr(m * scale % mod if mod else m * scale, op)(c),
    st.integers(1, 5),
    st.sampled_from([0, 0, 2, 3, 7]),
    st.sampled_from(["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]),
    st.integers(0, 300),
)
clause = st.lists(comparison, min_size=1, max_size=3).map(
    lambda cs: cs[0] if len(cs) == 1 else cs[0] | cs[1] if len(cs) == 2 else cs[0] | cs[1] | cs[2]
)
condition = st.lists(clause, min_size=1, max_size=2).map(lambda cs: SpecializedCondition(*cs))


@settings(max_examples=settings.default.max_examples // 3)
@given(st.lists(condition, min_size=1, max_size=4))
def test_satisfiable_combinations_of_one_dimension_are_complete(
    conditions: list[SpecializedCondition],
) -> None:
    found = dict(satisfiable(conditions, ["m"]))
    for value in range(1, 2000):
        assert tuple(bool(c.evaluate({"m": value})) for c in conditions) in found


def test_conditions_whose_common_period_is_long_have_all_their_rows() -> None:
    found = dict(satisfiable([SpecializedCondition(m % p == 0) for p in (7, 11, 13, 16)], ["m"]))
    assert len(found) == 2**4
    assert found[True, True, True, True] == {"m": 7 * 11 * 13 * 16}


def test_two_dimensions_and_a_condition_over_both() -> None:
    offered = [
        candidate("common", 5),
        candidate("big", 10, m * n > 4096),
        candidate("wide", 12, n >= 256),
    ]
    table = dispatch(workload("m", "n"), TARGET, NOTHING, offered=offered)
    for rows in (1, 15, 16, 17, 64, 4097):
        for columns in (1, 255, 256, 257, 4096):
            valid = [c for c in offered if holds(c, workload(rows, columns))]
            assert table(m=rows, n=columns)[0] == max(valid, key=lambda c: c.plevel).implementation
    assert len(table.rows) == 4


@pytest.mark.parametrize("constants", [(16,), (1, 17, 100), (128, 4096)])
@pytest.mark.parametrize("names", ["mn", "mnk"])
def test_conditions_that_one_size_of_several_dimensions_meets_have_rows(
    names: str, constants: tuple[int, ...]
) -> None:
    conditions = [SpecializedCondition(Dim(d) == c) for d in names for c in constants]
    found = dict(satisfiable(conditions, tuple(names)))
    # Each dimension is one of the constants, or none of them.
    assert len(found) == (len(constants) + 1) ** len(names)
    for holds_, example in found.items():
        assert tuple(bool(c.evaluate(example)) for c in conditions) == holds_


def test_products_beyond_64_bits_make_no_combination() -> None:
    conditions = [SpecializedCondition(m <= 16), SpecializedCondition(m * n > 16)]
    found = dict(satisfiable(conditions, ("m", "n")))
    assert found.keys() == {(True, True), (True, False), (False, True)}
    for held, example in found.items():
        assert tuple(bool(c.evaluate(example)) for c in conditions) == held


def test_sizes_between_fractions_have_rows() -> None:
    found = dict(satisfiable([SpecializedCondition(m > 1000.5), SpecializedCondition(m > 1010.5)], ["m"]))
    assert found.keys() == {(False, False), (True, False), (True, True)}


def test_records_of_sizes_that_a_table_refuses_are_no_evidence() -> None:
    sums = Workload.make("add", {"lhs": "float32[m,768]", "rhs": "float32[n,768]"})
    own = [candidate("common", 5), candidate("other", 4)]

    class Broadcast(Records):
        def instances(
            self, w: Workload, target: Target, device: str | None
        ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
            shape = Workload.make("add", {"lhs": "float32[128,768]", "rhs": "float32[1,768]"})
            return [(shape, self.measured(shape, target, device))]

    table = dispatch(sums, TARGET, Broadcast({(128, 768): {"other": 1e-6, "common": 2e-6}}), offered=own)
    assert [row.reason for row in table.rows] == [Reason.PLEVEL]
    assert table.row(**table.rows[0].example) is table.rows[0]


def test_a_shape_on_record_shows_the_answer_of_select_for_it() -> None:
    symbolic = Workload.make("relu", {"data": "float32[m,768]"})
    concrete = symbolic.bind({"m": 128})
    own = {c.implementation: c for c in candidates(concrete, TARGET)}
    everywhere = {c.implementation for c in candidates(symbolic, TARGET) if c.symbolic}
    only = next(name for name in own if name not in everywhere)

    class Both(Records):
        def measured(self, w: Workload, target: Target, device: str | None) -> Sequence[Measured]:
            return [
                Measured(
                    implementation=c.implementation, version=c.version, config=c.fallback, level=Level.TARGET,
                    estimate=Estimate(s, s * 0.99, s * 1.01, 20),
                )
                for c in own.values() for s in [1e-6 if c.implementation == only else 2e-6]
            ]

        def instances(
            self, w: Workload, target: Target, device: str | None
        ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
            return [(concrete, self.measured(concrete, target, device))]

    (row,) = dispatch(symbolic, TARGET, Both({})).rows
    (shape,) = row.shapes
    assert shape.selected == select(concrete, TARGET, Both({})).implementation == only != row.implementation
    assert row.dissent == (shape,)


def test_a_dimension_without_conditions_does_not_make_another_inexact() -> None:
    found = dict(satisfiable([SpecializedCondition(m * 7 % 1000 == 321)], ("k", "m", "n")))
    assert found.keys() == {(True,), (False,)}
    assert found[True,] == {"k": 1, "m": 903, "n": 1}


def test_a_row_takes_the_geometric_mean_over_the_shapes_on_record() -> None:
    records = Records({
        (32, 64): {"common": 1.0, "large": 2.0},
        (64, 64): {"common": 4.0, "large": 1.0},
        (4, 64): {"common": 1.0},
        (32, 99): {"common": 9.0, "large": 1.0},  # another n: no instance of this workload
    })
    table = dispatch(workload("m"), TARGET, records, offered=OVERLAP[:2])
    row = table.row(m=100)
    assert row.implementation == "large"
    assert row.ratio == pytest.approx({"common": 2.0, "large": 2**0.5})
    assert [s.dims for s in row.shapes] == [{"m": 32}, {"m": 64}]
    assert [s.dims for s in row.dissent] == [{"m": 32}]
    assert row.config == Config({"tile": 4})
    assert table.row(m=2).reason is Reason.MEASURED
    assert "1 of which select would answer otherwise" in table.explanation


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 64), st.just(64)),
        st.dictionaries(
            st.sampled_from(["common", "large", "aligned"]), st.floats(1e-6, 1), min_size=1
        ),
        max_size=6,
    )
)
def test_it_agrees_with_select_at_every_shape_on_record_or_says_where_not(
    medians: dict[tuple[int, int], dict[str, float]],
) -> None:
    records = Records(medians)
    table = dispatch(workload("m"), TARGET, records, offered=OVERLAP)
    for shape in medians:
        concrete = workload(*shape)
        answer = choose(concrete, TARGET, OVERLAP, records.measured(concrete, TARGET, None))
        row = table.row(m=shape[0])
        if answer.reason is Reason.PLEVEL:
            continue  # records of implementations that are not valid there
        dissenting = {s.dims["m"]: s.selected for s in row.dissent}
        assert dissenting.get(shape[0], row.implementation) == answer.implementation
        if len(row.shapes) == 1:
            assert not row.dissent


class Given(Records):
    """Measurements by m, with n = 64: implementation, median, half its interval, tile."""

    level = Level.TARGET

    def __init__(self, found: dict[int, list[tuple[str, float, float, int]]]) -> None:
        super().__init__({(rows, 64): {} for rows in found})
        self.found = found

    def measured(self, w: Workload, target: Target, device: str | None) -> Sequence[Measured]:
        rows, _ = w.inputs[0].tensor.concrete_shape
        return [
            Measured(
                implementation=name, version="1.0", config=Config({"tile": tile}),
                level=self.level, estimate=Estimate(s, s - half, s + half, 20),
            )
            for name, s, half, tile in self.found.get(rows, ())
        ]


class Priors(Given):
    level = Level.TRANSFERRED


def row_of(found: dict[int, list[tuple[str, float, float, int]]]) -> Row:
    offered = [candidate("common", 5), candidate("other", 10)]
    (row,) = dispatch(workload("m"), TARGET, Given(found), offered=offered).rows
    return row


def test_those_measured_at_different_shapes_are_compared_where_both_were() -> None:
    offered = [candidate("common", 5), candidate("other", 10), candidate("quick", 15)]
    found = {
        8: [("common", 3.0, 0, 1), ("quick", 1.0, 0, 1)],  # the only one that meets the quick one
        16: [("common", 1.0, 0, 1), ("other", 1.2, 0, 1)],
        32: [("common", 1.0, 0, 1), ("other", 1.2, 0, 1)],
        64: [("other", 1.0, 0, 1)],
    }
    (row,) = dispatch(workload("m"), TARGET, Given(found), offered=offered).rows
    assert (row.implementation, row.ratio) == ("common", pytest.approx({"common": 1.0, "other": 1.2}))
    del found[16], found[32]
    (row,) = dispatch(workload("m"), TARGET, Given(found), offered=offered[:2]).rows
    assert (row.implementation, row.ratio) == ("other", pytest.approx({"common": 1.0, "other": 1.0}))


def test_what_is_measured_at_fewer_shapes_is_not_compared() -> None:
    once = row_of({8: [("common", 1.0, 0, 1)], 16: [("common", 1.0, 0, 1), ("other", 0.1, 0, 1)]})
    assert (once.implementation, set(once.ratio)) == ("common", {"common"})


def test_a_row_says_where_all_was_measured_elsewhere() -> None:
    offered = [candidate("common", 5), candidate("other", 10)]
    records = Priors({8: [("common", 1.0, 0, 1)]})
    (row,) = dispatch(workload("m"), TARGET, records, offered=offered).rows
    assert (row.implementation, row.reason) == ("common", Reason.TRANSFERRED)
    assert row_of({8: [("common", 1.0, 0, 1)]}).reason is Reason.MEASURED

    class Both(Given):
        def instances(
            self, w: Workload, target: Target, device: str | None
        ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
            there, here = (kind(self.found).instances(w, target, device) for kind in (Priors, Given))
            return [there[0], here[1]]

    both = Both({8: [("common", 1.0, 0, 1)], 16: [("common", 1.0, 0, 1)]})
    assert dispatch(workload("m"), TARGET, both, offered=offered).rows[0].reason is Reason.MEASURED


def test_what_the_noise_cannot_tell_apart_is_decided_by_plevel_in_a_row_too() -> None:
    def row(half: float) -> Row:
        return row_of({8: [("common", 1.0, half, 1), ("other", 1.02, half, 1)]})

    assert row(0.001).implementation == "common"
    assert row(0.012).implementation == "other"
    assert row(0.10).implementation == "common"  # no interval that decides


def test_the_configuration_of_a_row_is_the_best_of_most_shapes_then_of_the_slowest() -> None:
    most = row_of({8: [("common", 9.0, 0, 1)], 16: [("common", 1.0, 0, 4)], 32: [("common", 2.0, 0, 4)]})
    assert most.config == Config({"tile": 4})
    slowest = row_of({8: [("common", 2.0, 0, 1)], 16: [("common", 9.0, 0, 4)]})
    assert slowest.config == Config({"tile": 4})
    # Of another target's space: what this one has instead is its fallback.
    assert row_of({8: [("common", 1.0, 0, 3)]}).config == Config({"tile": 2})


def test_a_row_of_one_size_is_an_ordinary_selection() -> None:
    """Implementations that take no symbols are among its candidates, with their own records."""
    dense = Workload.make("dense", {"data": "float32[m,64]", "weight": "float32[32,64]"})
    one = dense.bind({"m": 1})
    (found,) = (c for c in candidates(one, TARGET) if c.implementation == "dense_nopack.cpu")

    class OfOneRow(Records):
        def measured(self, w: Workload, target: Target, device: str | None) -> Sequence[Measured]:
            config = found.fallback if w == one else Config()
            return [
                Measured(
                    implementation=found.implementation, version=found.version, config=config,
                    level=Level.TARGET, estimate=Estimate(1.0, 1.0, 1.0, 20),
                )
            ]

    table = dispatch(dense, TARGET, OfOneRow({}))
    row = table.row(m=1)
    assert (row.implementation, row.reason) == ("dense_nopack.cpu", Reason.MEASURED)
    assert [s.dims for s in row.shapes] == [{"m": 1}]
    assert table.row(m=2).reason is Reason.PLEVEL


def test_a_row_of_one_size_follows_the_same_call_with_a_shorter_epilogue() -> None:
    bias = EpilogueStep("bias_add", (None, Input("bias_add0.bias", "float32[32]", True)))
    types = {"data": "float32[m,64]", "weight": "float32[32,64]"}
    dense = Workload.make("dense", types, constants=["weight"], epilogue=[bias])
    one = dense.bind({"m": 1})
    (found,) = (c for c in candidates(one.anchor, TARGET) if c.implementation == "dense_nopack.cpu")

    class OfTheAnchor(Records):
        def measured(self, w: Workload, target: Target, device: str | None) -> Sequence[Measured]:
            took = Estimate(1.0, 1.0, 1.0, 20)
            return [
                Measured(
                    implementation=found.implementation, version=found.version, config=found.fallback,
                    level=Level.TARGET, estimate=took,
                )
            ] if w == one.anchor else []

    records = OfTheAnchor({})
    row, answer = dispatch(dense, TARGET, records).row(m=1), select(one, TARGET, records)
    assert answer.reason is Reason.ANCHOR
    assert (row.implementation, row.config, row.reason) == (answer.implementation, answer.config, answer.reason)


def test_implementations_that_decline_symbols_are_left_out() -> None:
    offered = [candidate("common", 5), candidate("fixed", 20, symbolic=False)]
    table = dispatch(workload("m"), TARGET, NOTHING, offered=offered)
    assert table(m=7) == ("common", Config({"tile": 2}))


def test_a_gap_that_no_implementation_covers_is_an_error() -> None:
    with pytest.raises(SelectionError, match="made_up"):
        dispatch(workload("m"), TARGET, NOTHING, offered=[candidate("large", 5, m > 16)])


def test_a_table_is_a_value() -> None:
    records = Records({(32, 64): {"common": 1.0, "large": 2.0}})
    table = dispatch(workload("m"), TARGET, records, offered=OVERLAP)
    again = decode(encode(table), DispatchTable)
    assert encode(again) == encode(table)
    for value in (1, 2, 4, 12, 17, 20, 100_000):
        assert again(m=value) == table(m=value)
    with pytest.raises(AttributeError):
        again.rows = ()


@pytest.mark.parametrize("dims", [{}, {"m": 0}, {"m": 1.5}, {"m": 4, "k": 2}])
def test_a_call_names_the_dimension_at_fault(dims: dict[str, int]) -> None:
    table = dispatch(workload("m"), TARGET, NOTHING, offered=OVERLAP)
    with pytest.raises(ValueError, match=r"dimension|'k'"):
        table.row(**dims)


def test_what_is_measured_at_one_size_counts_in_the_table():
    """The space of a size, and with it the version, is another than that of the symbol."""
    target = Target.parse("llvm -mcpu=znver4 -num-cores=2")
    symbolic = Workload.make("dense", {"data": "float32[m,64]", "weight": "float32[48,64]"})
    shape = symbolic.bind({"m": 64})
    own = {c.implementation: c for c in candidates(shape, target)}
    slow = own["dense_nopack.cpu"]
    assert slow.version not in {c.version for c in candidates(symbolic, target)}
    stale = msgspec.structs.replace(own["dense_pack.cpu"], version="1.00000000")

    class One:
        def measured(self, workload, target, device):
            return []

        def failed(self, workload, target, device):
            return [Failed(implementation=name, version=own[name].version) for name in tried]

        def instances(self, workload, target, device):
            return [(shape, [
                Measured(
                    implementation=c.implementation, version=c.version, config=c.fallback,
                    level=Level.TARGET, estimate=Estimate(s, s, s, 9),
                )
                for c, s in ((slow, 1e-3), (stale, 1e-6))
            ])]

    tried: list[str] = []
    row = dispatch(symbolic, target, One()).row(m=70)
    assert (row.implementation, row.reason) == ("dense_pack.cpu", Reason.STALE)
    assert row.shapes[0].median_s == {"dense_nopack.cpu": 1e-3, "dense_pack.cpu": 1e-6}
    assert not row.dissent
    tried = ["dense_pack.cpu"]  # in the installed version, without a time
    row = dispatch(symbolic, target, One()).row(m=70)
    assert (row.implementation, row.reason) == ("dense_nopack.cpu", Reason.MEASURED)
    assert [s.dims for s in row.shapes] == [{"m": 64}]
    assert row.shapes[0].median_s == {"dense_nopack.cpu": 1e-3}


@pytest.mark.parametrize(("told", "questions"), [(True, 1), (False, 4)])
def test_what_failed_of_all_shapes_is_asked_for_once(told: bool, questions: int) -> None:
    """A service of an earlier version does not tell it with the shapes: it is asked for each."""
    shapes = [workload(rows) for rows in (1, 2, 3)]
    wrong = (Failed(implementation="a", version="1.0"),)
    old = Measured(
        implementation="a", version="0.1", config=Config({"tile": 4}), level=Level.TARGET,
        estimate=Estimate(1e-6, 1e-6, 1e-6, 20),
    )
    asked: list[Workload] = []

    def ask(w: Workload, target: Target, device: str | None) -> Evidence:
        asked.append(w)
        if w.is_constant:
            return Evidence(measured=(old,), failed=wrong)
        found = (Instance(workload=s, measured=(old,), failed=wrong if told else None) for s in shapes)
        return Evidence(instances=tuple(found))

    offered = [candidate("a", 1), candidate("b", 5)]
    table = dispatch(workload("m"), TARGET, _Cached(ask, "http://farm", Rest()), offered=offered)
    assert (table.row(m=2).implementation, table.row(m=2).reason) == ("b", Reason.PLEVEL)
    assert len(asked) == questions
