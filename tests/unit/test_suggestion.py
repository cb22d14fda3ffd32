"""Suggestions for mistyped names, wherever a name is looked up."""

from __future__ import annotations

import pytest

from strategy.op import get_op
from strategy.op_strategy import find_implementation
from strategy.space import ConfigSpace, Knob
from strategy.suggestion import suggest
from strategy.target import Target
from strategy.types import TensorType
from strategy.workload import Workload

DENSE = Workload.make("dense", {"data": "float32[4,8]", "weight": "float32[6,8]"})


def test_the_nearest_is_suggested_and_nothing_where_none_is_near() -> None:
    assert suggest("dens", ["conv2d", "dense"]) == ", did you mean dense?"
    assert suggest("xyz", ["conv2d", "dense"]) == ""
    assert suggest("dens", []) == ""
    assert suggest("", ["dense"]) == ""


@pytest.mark.parametrize(
    ("ask", "meant"),
    [
        (lambda: get_op("dens"), "dense"),
        (lambda: Target.parse("lvm"), "llvm"),
        (lambda: Target.parse("llvm -mcu=znver4"), "mcpu"),
        (lambda: Workload.make("topk", {"data": "float32[4]"}, {"kk": 1}), "k"),
        (lambda: TensorType.parse("floa32[4]"), "float32"),
        (lambda: find_implementation(DENSE, Target.parse("llvm"), "dense_pak.cpu"), "dense_pack.cpu"),
        (lambda: ConfigSpace([Knob("rows", [1, 2])]).check({"row": 1}), "rows"),
    ],
)
def test_every_name_that_is_not_known_gets_one(ask, meant) -> None:
    with pytest.raises(ValueError, match=rf"did you mean {meant}\?"):
        ask()
