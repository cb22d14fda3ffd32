"""A call with an epilogue more: the records of the call with a shorter one answer, until it is measured."""

from __future__ import annotations

import random

import pytest

from service.formats import ImportedRecord, Task
from service.records.importer import import_items
from service.selection.database import RecordDatabase
from service.store.db import Store
from strategy.op_strategy import Candidate, candidates
from strategy.select import Reason, Selection, select
from strategy.space import Config
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload

pytestmark = pytest.mark.in_turn("url")

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")
BIAS = EpilogueStep("bias_add", (None, Input("bias_add0.bias", "float32[128]", True)))
RELU = EpilogueStep("relu", (None,))


def dense(*steps: EpilogueStep, k: int = 64) -> Workload:
    types = {"data": f"float32[16,{k}]", "weight": f"float32[128,{k}]"}
    return Workload.make("dense", types, constants=["weight"], epilogue=steps)


def pack(workload: Workload) -> Candidate:
    return next(c for c in candidates(workload, TARGET) if c.implementation == "dense_pack.cpu")


def measure(store: Store, workload: Workload, place: int) -> Config:
    """A record of a workload with one of the configurations that are no fallback, which it returns."""
    known = pack(workload)
    assert known.space is not None
    config = [c for c in known.space.sample(random.Random(3), 9) if c != known.fallback][place]
    of = Task(
        workload=workload, target=TARGET, implementation=known.implementation,
        version=known.version, plevel=known.plevel,
    )
    samples = tuple(1e-3 * (1 + i / 1000) for i in range(-3, 4))
    one = ImportedRecord(source="plevel", task=of, config_key=config.key, samples_s=samples)
    import_items(store, [one])
    return config


def answers(store: Store, *workloads: Workload) -> list[Selection]:
    with store.read() as connection:
        database = RecordDatabase(connection, together=workloads)
        return [select(w, TARGET, database, ranker=database.ranker) for w in workloads]


def test_a_shorter_epilogue_answers_until_the_workload_is_measured(store: Store) -> None:
    alone, biased, wanted = dense(), dense(BIAS), dense(BIAS, RELU)
    best = measure(store, alone, 0)
    first, other = answers(store, wanted, dense(RELU, k=72))
    assert (first.reason, first.level, first.config) == (Reason.ANCHOR, None, best)
    assert f"of {alone}, the same call with a shorter epilogue, {first.implementation}" in first.explanation
    assert all(r.estimate is None for r in first.rivals)
    assert other.reason is Reason.PLEVEL
    nearer = measure(store, biased, 1)
    (second,) = answers(store, wanted)
    assert second.config == nearer
    assert f"of {biased}, the same call" in second.explanation
    own = measure(store, wanted, 2)
    (third,) = answers(store, wanted)
    assert (third.reason, third.config) == (Reason.MEASURED, own)


@pytest.mark.parametrize("steps", [(), (BIAS,), (BIAS, RELU)])
def test_shorter_workloads_are_in_normal_form(steps: tuple[EpilogueStep, ...]) -> None:
    found = dense(*steps)
    assert found.shorter == tuple(dense(*steps[:n]) for n in reversed(range(len(steps))))
    assert found.anchor == dense()
