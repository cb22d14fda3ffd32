"""Windows that slide over images: attributes that no code can compute with are refused by their names."""

from __future__ import annotations

import time
from typing import Any

import pytest

from strategy.attrs import AttrsError
from strategy.op_strategy import candidates
from strategy.target import Target
from strategy.workload import Workload

_FAR = (2**24 + 1, 2**31, 2**63 - 1, 2**64)
_OPERATORS: dict[str, dict[str, str]] = {
    "conv2d": {"data": "float32[1,3,6,9]", "weight": "float32[4,3,1,1]"},
    "conv2d_transpose": {"data": "float32[1,3,1,1]", "weight": "float32[3,4,3,3]"},
    "max_pool2d": {"data": "float32[1,3,6,9]"},
    "avg_pool2d": {"data": "float32[1,3,6,9]"},
}


@pytest.mark.parametrize("op", _OPERATORS)
@pytest.mark.parametrize("name", ["strides", "dilation", "padding"])
@pytest.mark.parametrize("value", _FAR)
def test_far_windows_are_refused_by_the_attribute(op: str, name: str, value: int) -> None:
    given: dict[str, Any] = {"pool_size": 1} if "pool" in op else {}
    with pytest.raises(AttrsError, match=rf"Attrs\.{name} = "):
        Workload.make(op, _OPERATORS[op], {**given, name: value})


@pytest.mark.parametrize("value", [2**31, 2**32, 2**63 - 1])
@pytest.mark.parametrize("op", ["depth_to_space", "space_to_depth"])
def test_blocks_whose_squares_are_too_large_are_refused_by_their_size(op: str, value: int) -> None:
    with pytest.raises(AttrsError, match=r"BlockAttrs\.block_size = "):
        Workload.make(op, {"data": "float32[1,4,4,4]"}, {"block_size": value})


@pytest.mark.parametrize(("op", "attrs"), [
    ("conv2d", {"padding": [2**24, 1]}), ("adaptive_avg_pool2d", {"output_size": [2**24, 1]}),
])
def test_spaces_of_very_many_windows_take_no_longer_than_others(op: str, attrs: dict[str, Any]) -> None:
    """Windows are counted, not looked at one by one, which took minutes."""
    work = Workload.make(op, _OPERATORS.get(op, {"data": "float32[1,3,6,9]"}), attrs)
    began = time.process_time()
    candidates(work, Target.parse("llvm -mcpu=znver4"))
    assert time.process_time() - began < 5
