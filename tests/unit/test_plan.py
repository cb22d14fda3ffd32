"""Plans of runs over several operators: which implementations each of them gets."""

from __future__ import annotations

import pytest

from service.errors import InvalidError
from service.tuning.plan import plan
from strategy.record import RunRequest, RunWorkload
from strategy.target import Target
from strategy.workload import Workload

TARGET = Target.parse("llvm -mcpu=znver4")
TWO = (
    Workload.make("dense", {"data": "float32[16,64]", "weight": "float32[32,64]"}, constants=["weight"]),
    Workload.make("softmax", {"data": "float32[16,64]"}),
)


def asked(*names: str) -> RunRequest:
    return RunRequest(
        workloads=tuple(RunWorkload(workload=w) for w in TWO), target=TARGET, implementations=names
    )


def test_each_operator_takes_those_of_the_named_that_it_has() -> None:
    planned = plan(asked("dense_pack.cpu", "softmax_row.cpu"))
    assert [[c.implementation for c in p.candidates] for p in planned] == [["dense_pack.cpu"], ["softmax_row.cpu"]]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("dense_pack.cpu",), r"softmax has no 'dense_pack.cpu' on .*; it has: softmax.cpu"),
        (("dense_pack.cpu", "softmax_row.cpu", "softmax_rov.cpu"), "no workload has 'softmax_rov.cpu' .*did you mean"),
        (("other", "another"), "dense has no 'other' or 'another' on"),
    ],
)
def test_a_name_that_leaves_an_operator_without_any_is_refused(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidError, match=f"implementations: {said}"):
        plan(asked(*names))
