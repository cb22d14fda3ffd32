"""Lock files without a database: what they keep, and what the selection rule makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest

from plevel.cli.lock import _compare, _line
from plevel.kernel_selection import choose_kernel, measured_s
from strategy.op_strategy import Candidate
from strategy.record import Estimate
from strategy.select import (
    NO_RECORDS,
    Level,
    Measured,
    Prediction,
    Reason,
    Selection,
    SelectionError,
    choose,
    select,
)
from strategy.select.lock import Lock, LockDatabase, LockError
from strategy.space import Config
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload

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
    again = Lock.read(Lock.make([AT_DEVICE]).write()).select(WORKLOAD, TARGET).selection()
    assert again.partial
    assert again.unmeasured == AT_DEVICE.unmeasured == ("new",)
    assert (again.implementation, again.config, again.level) == ("fast", AT_DEVICE.config, Level.DEVICE)


def test_what_was_selected_by_an_older_version_is_selected_again() -> None:
    old = msgspec.structs.replace(measured("new", 0.5, Level.DEVICE), version="0.1")
    answer = selected([measured("fast", 1.0, Level.DEVICE), old])
    assert (answer.implementation, answer.reason) == ("new", Reason.STALE)
    text = Lock.make([answer]).write()
    lock = Lock.read(text)
    assert lock.write() == text
    assert lock.select(WORKLOAD, TARGET).estimate is None
    assert measured_s(answer) == measured_s(lock.select(WORKLOAD, TARGET).selection()) == 0.5
    again = select(WORKLOAD, TARGET, LockDatabase(lock), offered=OFFERED)
    assert (again.implementation, again.config, again.reason) == ("new", answer.config, Reason.STALE)
    assert again.stale == answer.stale == {"new": "0.1"}  # by which its time is told from a prediction
    # With a newer version, the times of the lock are stale themselves.
    newer = [msgspec.structs.replace(c, version="2.0") for c in OFFERED]
    later = select(WORKLOAD, TARGET, LockDatabase(lock), offered=newer)
    assert (later.implementation, later.reason, later.stale) == ("fast", Reason.STALE, {"fast": "1.0"})
    assert later.explanation.startswith("new has version 2.0 here, the lock has 1.0: write it again; fast has the")


def test_a_lock_for_another_processor_is_refused_as_a_whole() -> None:
    lock = Lock.make([AT_DEVICE])
    lock.require(TARGET)
    lock.require(TARGET.in_network())
    other = Target.parse("llvm -mcpu=znver5 -num-cores=2")
    with pytest.raises(SelectionError, match=r"nothing for llvm/znver5/threads=2 .* but for llvm/znver4/thr"):
        lock.require(other)


def test_a_lock_for_a_processor_answers_for_its_devices_and_not_one_for_a_device_for_others() -> None:
    device, other = (
        Target.parse({**TARGET.to_json(), "model": name, "libs": ["cblas"], "l2_bytes": 1 << 20}) for name in "ab"
    )
    lock = Lock.make([AT_DEVICE])
    for timed in (device, device.in_network()):
        lock.require(timed)
        told = lock.select(WORKLOAD, timed).selection(timed)
        assert (told.implementation, told.target) == ("fast", timed)
        assert f"from the lock's entry for {TARGET}" in told.explanation
    of_device = Lock.make([choose(WORKLOAD, device, OFFERED, [measured("fast", 1.0, Level.DEVICE)])])
    of_device.require(device)
    for target in (TARGET, other):
        with pytest.raises(SelectionError, match="nothing for"):
            of_device.require(target)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_time_that_is_none_makes_no_lock(seconds: float) -> None:
    lock = Lock.make([selected([measured("fast", 1.0, Level.DEVICE)])])
    (entry,) = lock.selections
    rivals = tuple(msgspec.structs.replace(r, estimate=Estimate(seconds, 1.0, 1.0, 20)) for r in entry.rivals)
    text = Lock(selections=(msgspec.structs.replace(entry, rivals=rivals),)).write()
    with pytest.raises(LockError, match="a time is not positive|not a lock file"):
        Lock.read(text)


@pytest.mark.parametrize(
    ("version", "said"),
    [(2, "2 of lock files is newer than 1: update"), (0, "0 of lock files does not exist: write the lock again"),
     ("1", "'1' of lock files does not exist: write")],
)
def test_another_version_is_told_with_its_remedy(version: object, said: str) -> None:
    body = {**json.loads(Lock.make([AT_DEVICE]).write()), "version": version}
    with pytest.raises(LockError, match=said):
        Lock.read(json.dumps(body))


def test_what_was_selected_without_measurements_is_selected_again() -> None:
    """By advice, a cost model, or measurements of the call with a shorter epilogue, of which a lock has none."""
    class Model:
        def rank(self, workload: Workload, target: Target, valid: Sequence[Candidate]) -> list[Prediction]:
            return [
                Prediction(implementation=c.implementation, config=Config({"tile": 8}), median_s=s, sigma_log=0.1)
                for s, c in enumerate(OFFERED, 1)
            ]

    relu = msgspec.structs.replace(WORKLOAD, epilogue=(EpilogueStep("relu", (None,)),))
    of_call = [measured("fast", 1.0, Level.DEVICE)]
    for before in (
        choose(WORKLOAD, TARGET, OFFERED, (), Model()), choose(relu, TARGET, OFFERED, (), None, [(WORKLOAD, of_call)]),
    ):
        database = LockDatabase(Lock.read(Lock.make([before]).write()))
        again = select(before.workload, TARGET, database, offered=OFFERED)
        assert (again.implementation, again.config, again.reason) == ("fast", before.config, before.reason)
        assert again.explanation == f"{before.explanation}; from the lock's entry for {TARGET}"
        inside = TARGET.in_network()  # the same processor, timed otherwise
        other = select(before.workload, inside, database, offered=OFFERED)
        assert (other.implementation, other.reason, other.target) == ("fast", before.reason, inside)
        assert (inside != TARGET) and again.target == TARGET
        # Its code has changed since: a configuration of before may mean something else.
        newer = [msgspec.structs.replace(OFFERED[0], version="2.0"), *OFFERED[1:]]
        assert select(before.workload, TARGET, database, offered=newer).reason is Reason.PLEVEL


def test_an_answer_by_a_call_with_a_shorter_epilogue_holds_beside_other_calls_of_the_lock() -> None:
    """The call that it was by is not in the lock; a still shorter one, with another answer, is."""
    steps = (EpilogueStep("relu", (None,)), EpilogueStep("relu", (None,)))
    once, twice = (msgspec.structs.replace(WORKLOAD, epilogue=steps[:n]) for n in (1, 2))
    before = choose(twice, TARGET, OFFERED, (), None, [(once, [measured("known", 1.0, Level.DEVICE)])])
    again = select(twice, TARGET, LockDatabase(Lock.make([AT_DEVICE, before])), offered=OFFERED)
    assert (again.implementation, again.reason) == (before.implementation, before.reason) == ("known", Reason.ANCHOR)


@pytest.mark.parametrize(
    ("offered", "has"),
    [
        ([msgspec.structs.replace(OFFERED[0], version="2.0"), *OFFERED[1:]], "has version 2.0 here"),
        (OFFERED[1:], "is not offered here"),
    ],
)
def test_an_answer_in_place_of_a_locked_one_says_why(offered: list[Candidate], has: str) -> None:
    database = LockDatabase(Lock.make([AT_DEVICE]))
    answer = select(WORKLOAD, TARGET, database, offered=offered)
    assert answer.implementation != "fast" or answer.version == "2.0"
    assert answer.explanation.startswith(f"fast {has}, the lock has {AT_DEVICE.version}: write it again; ")


def test_an_answer_in_place_of_a_library_that_the_target_is_without_says_so() -> None:
    """As of a network's kernels: the lock would have the library again."""
    own = Target.parse({**TARGET.to_json(), "libs": ["cblas"]})
    locked = choose(WORKLOAD, own, [Candidate("vendor", "1.0", 30, library="cblas")], [])
    answer = select(WORKLOAD, TARGET.in_network(), LockDatabase(Lock.make([locked])), offered=OFFERED)
    assert answer.implementation == "new"
    told = f"vendor calls cblas, which {TARGET.in_network()} is without: add this target to the lock; "
    assert answer.explanation.startswith(told)


def test_a_kernel_of_a_model_says_why_its_lock_does_not_answer() -> None:
    softmax = Workload.make("softmax", {"data": "float32[4,8]"})
    locked = select(softmax, TARGET, NO_RECORDS)
    older = Lock.make([msgspec.structs.replace(locked, version="0.1")])
    why = f"{locked.implementation} has version {locked.version} here, the lock has 0.1: write it again; "
    for database in (NO_RECORDS, LockDatabase(older)):
        found = choose_kernel(softmax, TARGET, database, older)
        assert isinstance(found, Selection)
        assert (found.implementation, found.version) == (locked.implementation, locked.version)
        assert found.explanation == why + locked.explanation


def test_records_of_one_device_are_not_told_as_those_of_another() -> None:
    database = LockDatabase(Lock.make([AT_DEVICE], device="lab-7/cpu:0"))
    for device, level in (("lab-7/cpu:0", Level.DEVICE), ("lab-8/cpu:0", Level.TARGET), (None, Level.TARGET)):
        answer = select(WORKLOAD, TARGET, database, device=device, offered=OFFERED)
        assert (answer.implementation, answer.level) == ("fast", level)
        symbolic = Workload("made_up", (Input("data", "float32[m,64]"),))
        ((_, found),) = database.instances(symbolic, TARGET, device)
        assert {m.level for m in found} == {level}


def test_a_lock_answers_for_a_target_that_is_timed_otherwise_and_says_so() -> None:
    alone = Target.parse("llvm -mcpu=znver4 -num-cores=2 -libs=cblas")
    inside = alone.in_network()
    written = [
        msgspec.structs.replace(measured("known", 1.0, Level.DEVICE), target=alone.key),
        msgspec.structs.replace(measured("fast", 2.0, Level.TRANSFERRED), target="llvm/skylake/threads=2"),
    ]
    lock = Lock.read(Lock.make([choose(WORKLOAD, alone, OFFERED, written[:1])]).write())
    answer = select(WORKLOAD, inside, LockDatabase(lock), offered=OFFERED)
    assert answer.implementation == "known"
    assert "timed with thread-pool=tvm, constants=warm" in answer.explanation
    told = lock.select(WORKLOAD, inside).selection(inside)
    assert told.target == inside
    assert told.explanation.endswith(
        f"; from the lock's entry for {alone} with cblas, timed with thread-pool=tvm, constants=warm"
    )
    of_device = Lock.make([choose(WORKLOAD, alone, OFFERED, written[:1])], "lab-7/cpu:0").select(WORKLOAD, alone)
    assert of_device.selection(alone).explanation.endswith(f"; from the lock's entry for {alone}, device lab-7/cpu:0")
    assert (of_device.selection().target, of_device.selection().explanation) == (alone, of_device.explanation)
    symbolic = Workload("made_up", (Input("data", "float32[m,64]"),))
    ((_, found),) = LockDatabase(lock).instances(symbolic, inside, None)
    assert [m.timed for m in found] == ["thread-pool=tvm, constants=warm"]
    assert LockDatabase(lock).instances(symbolic, alone.with_threads(7), None) == []
    transferred = Lock.make([choose(WORKLOAD, alone, OFFERED, written[1:])])
    (other,) = LockDatabase(transferred).measured(WORKLOAD, inside, None)
    assert (other.timed, other.target) == ("", "llvm/skylake/threads=2")


def test_a_lock_names_the_targets_that_it_has_a_workload_for() -> None:
    lock = Lock.make([AT_DEVICE], None)
    with pytest.raises(SelectionError, match=r"is not in the lock, which has it for .*znver4.*: select"):
        lock.select(WORKLOAD, Target.parse("llvm -mcpu=znver5"))


def test_a_target_without_libraries_gets_none_from_a_lock() -> None:
    alone = Target.parse("llvm -mcpu=znver4 -num-cores=2 -libs=cblas")
    offered = [*OFFERED, Candidate("vendor", "1.0", 30, library="cblas")]
    lock = Lock.read(Lock.make([choose(WORKLOAD, alone, offered, [measured("vendor", 1.0, Level.DEVICE)])]).write())
    own = lock.select(WORKLOAD, alone)
    assert own.implementation == "vendor"
    assert own.selection(alone).explanation == f"{own.explanation}; from the lock's entry for {alone}"
    with pytest.raises(SelectionError, match="whose vendor for llvm/znver4/threads=2 calls cblas: add this target"):
        lock.select(WORKLOAD, alone.in_network())
    # The evidence holds for those that the target has.
    assert select(WORKLOAD, alone.in_network(), LockDatabase(lock), offered=OFFERED).implementation == "new"


def test_times_that_do_not_compare_with_the_locked_ones_are_no_worse() -> None:
    warm, cold = (
        msgspec.structs.replace(measured("fast", s, Level.DEVICE), target=key)
        for s, key in ((1.0, TARGET.key), (2.0, TARGET.in_network().key))
    )
    (before,) = Lock.make([selected([warm])]).selections
    for now, ratio in ((msgspec.structs.replace(warm, estimate=cold.estimate), 2.0), (cold, 0.0)):
        change = _compare(before, selected([now]))
        assert change is not None
        assert change["ratio"] == ratio
    assert "is measured so now: 2.00 s" in _line(change)


def test_what_is_measured_in_another_version_alone_is_told_so() -> None:
    found = measured("fast", 1.0, Level.DEVICE)
    (before,) = Lock.make([selected([found])]).selections
    change = _compare(before, selected([msgspec.structs.replace(found, version="0.9")]))
    assert change is not None and change["ratio"] is None
    assert "is measured in version 0.9 only, not the installed one; " in _line(change)


def test_another_answer_by_plevel_is_a_change_that_is_no_worse() -> None:
    (before,) = Lock.make([selected([], OFFERED[:2])]).selections
    assert _compare(before, selected([], OFFERED[:2])) is None
    change = _compare(before, selected([]))
    assert change is not None
    assert (change["locked"], change["now"], change["ratio"]) == ("known", "new", 0.0)
    assert _line(change).endswith("is not measured; new in place of known")
