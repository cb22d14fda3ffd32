"""Lock files without a database: what they keep, and what the selection rule makes of it."""

from __future__ import annotations

from collections.abc import Sequence

from plevel.cli.lock import _compare, _line
from strategy.op_strategy import Candidate
from strategy.record import Estimate
from strategy.select import Level, Measured, Selection, choose, select
from strategy.select.lock import Lock, LockDatabase
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Input, Workload

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")
WORKLOAD = Workload("made_up", (Input("data", "float32[8,64]"),))
OFFERED = [Candidate("fast", "1.0", 5), Candidate("known", "1.0", 10), Candidate("new", "1.0", 20)]


def measured(name: str, seconds: float, level: Level) -> Measured:
    spread = Estimate(seconds, seconds * 0.99, seconds * 1.01, 20)
    return Measured(
        implementation=name, version="1.0", config=Config({"tile": 4}), level=level, estimate=spread
    )


def selected(records: Sequence[Measured], offered: Sequence[Candidate] = OFFERED) -> Selection:
    return choose(WORKLOAD, TARGET, offered, records)


AT_DEVICE = selected([measured(n, s, Level.DEVICE) for n, s in (("fast", 1.0), ("known", 2.0))])


def test_what_was_not_measured_is_not_measured_in_the_lock() -> None:
    again = Lock.read(Lock.make([AT_DEVICE]).write()).find(WORKLOAD, TARGET).selection()
    assert again.partial
    assert again.unmeasured == AT_DEVICE.unmeasured == ("new",)
    assert (again.implementation, again.config, again.level) == ("fast", AT_DEVICE.config, Level.DEVICE)


def test_records_of_one_device_are_not_told_as_those_of_another() -> None:
    database = LockDatabase(Lock.make([AT_DEVICE], device="lab-7/cpu:0"))
    for device, level in (("lab-7/cpu:0", Level.DEVICE), ("lab-8/cpu:0", Level.TARGET), (None, Level.TARGET)):
        answer = select(WORKLOAD, TARGET, database, device=device, offered=OFFERED)
        assert (answer.implementation, answer.level) == ("fast", level)
        symbolic = Workload("made_up", (Input("data", "float32[m,64]"),))
        ((_, found),) = database.instances(symbolic, TARGET, device)
        assert {m.level for m in found} == {level}


def test_another_answer_by_plevel_is_a_change_that_is_no_worse() -> None:
    (before,) = Lock.make([selected([], OFFERED[:2])]).selections
    assert _compare(before, selected([], OFFERED[:2])) is None
    change = _compare(before, selected([]))
    assert change is not None
    assert (change["locked"], change["now"], change["ratio"]) == ("known", "new", 0.0)
    assert _line(change).endswith("is not measured; new in place of known")
