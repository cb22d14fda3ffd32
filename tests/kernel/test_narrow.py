"""bfloat16 and float16 by the tunable implementations of float32: in guarded memory, against NumPy."""

from __future__ import annotations

import random
from typing import Any

import pytest

from strategy.workload import Workload

from .test_memory import Check, check, offered, points

__all__ = ["check"]

NARROW = ("bfloat16", "float16")

# No vector divides the extents, or one number is behind the last whole vector.
CASES: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("max_pool2d", {"data": "[1,3,15,37]"}, {"pool_size": 3, "strides": 2, "padding": 1}),
    ("max_pool2d", {"data": "[2,6,9,33]"}, {"pool_size": [2, 3], "layout": "NHWC"}),
    ("max_pool2d", {"data": "[1,2,7,5,8]"}, {"pool_size": 3, "padding": 1, "layout": "NCHW8c"}),
    ("avg_pool2d", {"data": "[2,3,9,33]"}, {"pool_size": 2, "strides": 2}),
    ("avg_pool2d", {"data": "[1,5,4,17]"}, {"pool_size": 3, "strides": 2, "padding": 1, "layout": "NHWC"}),
    ("adaptive_avg_pool2d", {"data": "[2,3,9,35]"}, {"output_size": [5, 17]}),
    ("adaptive_max_pool2d", {"data": "[2,7,9,33]"}, {"output_size": [4, 5], "layout": "NHWC"}),
    ("resize2d", {"data": "[1,2,9,17]"}, {"size": [7, 33]}),
    ("resize2d", {"data": "[2,3,5,7]"}, {"size": [9, 19], "method": "cubic"}),
    ("softmax", {"data": "[5,17]"}, {"axis": 0}),
    ("softmax", {"data": "[2,7,33]"}, {"axis": 1, "scale": 0.5}),
    ("log_softmax", {"data": "[2,7,33]"}, {"axis": 1}),
    ("softmax_bias", {"data": "[3,4,5,17]", "bias": "[3,1,5,17]"}, {"axis": 1}),
    ("cumsum", {"data": "[9,33]"}, {"axis": 0, "exclusive": True}),
    ("cumsum", {"data": "[6,40]"}, {"axis": 1}),
    ("cumsum", {"data": "[4099]"}, {}),
    ("cumprod", {"data": "[2,9,17]"}, {"axis": 1, "dtype": "float32"}),
    ("cummax", {"data": "[9,17]"}, {"axis": 0}),
    ("topk", {"data": "[5,190]"}, {"k": 7, "ret_type": "values"}),
    ("topk", {"data": "[5,37,3]"}, {"k": 3, "axis": 1, "is_ascend": True, "ret_type": "indices"}),
    ("transpose", {"data": "[7,20,33]"}, {"axes": [0, 2, 1]}),
    ("transpose", {"data": "[48,1]"}, {}),
    ("layout_transform", {"data": "[2,32,5,7]"}, {"src_layout": "NCHW", "dst_layout": "NCHW16c"}),
    ("layout_transform", {"data": "[1,3,4,7,8]"}, {"src_layout": "NCHW8c", "dst_layout": "NCHW"}),
]  # fmt: skip


def narrowed(op: str, inputs: dict[str, str], attrs: dict[str, Any], dtype: str) -> Workload:
    return Workload.make(op, {name: f"{dtype}{shape}" for name, shape in inputs.items()}, attrs)


@pytest.mark.sample(14)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES)
def test_in_guarded_memory(
    check: Check, op: str, inputs: dict[str, str], attrs: dict[str, Any], dtype: str, full: bool
) -> None:
    work = narrowed(op, inputs, attrs, dtype)
    tunable = [found for found in offered(work) if found.space is not None]
    assert tunable
    wrong = []
    for found in tunable:
        for config in points(work, found, random.Random(str(work)), 4 if full else 1):
            wrong += check(work, found.name, config)
    assert not wrong, "\n".join(wrong)
