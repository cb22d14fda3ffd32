"""bfloat16 and float16 by the tunable implementations of float32: in guarded memory, against NumPy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from strategy.compile.lower import lower
from strategy.op import TypeRelationError, all_ops
from strategy.op_strategy import candidates
from strategy.workload import Workload
from strategy.workload_text import parse_workload
from workers.reference import numpy_dtype, reference

from .test_memory import TARGET, Check, check, offered, points

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
    ("cumsum", {"data": "[4099]"}, {"exclusive": True}),
    ("cumprod", {"data": "[2,9,17]"}, {"axis": 1, "dtype": "float32"}),
    ("cummax", {"data": "[9,17]"}, {"axis": 0}),
    ("topk", {"data": "[5,190]"}, {"k": 7, "ret_type": "values"}),
    ("topk", {"data": "[5,37,3]"}, {"k": 3, "axis": 1, "is_ascend": True, "ret_type": "indices"}),
    ("transpose", {"data": "[7,20,33]"}, {"axes": [0, 2, 1]}),
    ("transpose", {"data": "[48,1]"}, {}),
    ("layout_transform", {"data": "[2,32,5,7]"}, {"src_layout": "NCHW", "dst_layout": "NCHW16c"}),
    ("layout_transform", {"data": "[1,3,4,7,8]"}, {"src_layout": "NCHW8c", "dst_layout": "NCHW"}),
    ("conv2d", {"data": "[2,1,9,11,8]", "weight": "[24,8,3,3]"}, {"padding": 1, "data_layout": "NCHW8c"}),
    ("conv2d", {"data": "[1,1,8,9,16]", "weight": "[40,16,3,3]"}, {"data_layout": "NCHW16c", "out_layout": "NCHW8c"}),
    ("conv2d", {"data": "[1,3,7,13]", "weight": "[16,3,3,3]"}, {"strides": [3, 2], "out_layout": "NCHW16c"}),
    ("conv2d", {"data": "[2,2,1,17,16]", "weight": "[16,32,1,1]"}, {"data_layout": "NCHW16c", "out_dtype": "float32"}),
    (
        "conv2d", {"data": "[2,3,5,7,8]", "weight": "[24,1,3,3]"},
        {"groups": 24, "strides": 2, "dilation": [1, 2], "padding": [1, 2, 0, 3], "data_layout": "NCHW8c"},
    ),
    ("conv2d", {"data": "[1,1,6,9,16]", "weight": "[16,1,3,3]"}, {"groups": 16, "data_layout": "NCHW16c"}),
    ("conv2d", {"data": "[1,16,5,9]", "weight": "[20,16,3,3]"}, {"padding": 3, "dilation": 3}),
]


def narrowed(op: str, inputs: dict[str, str], attrs: dict[str, Any], dtype: str) -> Workload:
    return Workload.make(op, {name: f"{dtype}{shape}" for name, shape in inputs.items()}, attrs)


@pytest.mark.sample(4)
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


@pytest.mark.sample(4)
@pytest.mark.parametrize("work", [
    'broadcast_to(data=bfloat16[3,1]){"shape":[3,64]}',
    'broadcast_to(data=bfloat16[3,1]){"shape":[3,37]}',
    'repeat(data=bfloat16[3,5]){"repeats":64,"axis":1}',
    'tile(data=bfloat16[3,1]){"reps":[1,64]}',
    'take(data=bfloat16[5,1],indices=int64[64]){"axis":1}',
    'gather(data=bfloat16[3,1],indices=int64[3,64]){"axis":1}',
    'resize2d(data=bfloat16[1,2,3,1]){"method":"nearest_neighbor","size":[3,64]}',
    "zeros_like(data=bfloat16[3,64])",
    "where(condition=bool[3,64],x=bfloat16[3,1],y=bfloat16[])",
    'broadcast_to(data=bfloat16[3,1]){"shape":[3,64]}+add(.,e0=bfloat16[3,1])',
    'broadcast_to(data=bfloat16[3,1]){"shape":[3,64]}+where(e0=bool[3,64],.,e1=bfloat16[1,64])',
    'concatenate(data.0=bfloat16[64,1],data.1=bfloat16[64,1]){"axis":1}',
])
def test_one_number_in_all_lanes(check: Check, work: str) -> None:
    parsed = parse_workload(work).checked()
    wrong = [reason for found in offered(parsed) for reason in check(parsed, found.name, None)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("op", "shape", "attrs"), [
    ("softmax", (8, 37), {"axis": 0}), ("log_softmax", (8, 37), {"axis": 0}), ("cumsum", (8, 37), {"axis": 0}),
    ("cummax", (8, 37), {"axis": 0}), ("cummax", (8, 37), {"axis": 1}), ("transpose", (8, 37), {}),
    ("topk", (8, 37), {"k": 5, "ret_type": "values"}),
    ("topk", (8, 37), {"k": 5, "is_ascend": True, "ret_type": "values"}),
    ("max_pool2d", (1, 1, 8, 37), {"pool_size": 2, "padding": 1}),
    ("avg_pool2d", (1, 8, 37, 1), {"pool_size": 2, "padding": 1, "layout": "NHWC"}),
])
def test_nan_and_infinities_pass(op: str, shape: tuple[int, ...], attrs: dict[str, Any], dtype: str) -> None:
    import tvm

    work = Workload.make(op, {"data": f"{dtype}[{','.join(map(str, shape))}]"}, attrs)
    (name,) = (c.implementation for c in candidates(work, TARGET) if c.space is not None)
    kernel = lower(work, TARGET, name).compile(checks=False)
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -2.5])
    for seed in range(20):
        data = np.random.default_rng(seed).choice(odd, shape).astype(numpy_dtype(dtype))
        with np.errstate(all="ignore"):
            (right,) = reference(work, {"data": data})
        found = tvm.runtime.empty(work.out_type.concrete_shape, dtype)
        kernel.main(tvm.runtime.tensor(data), found)
        np.testing.assert_allclose(found.numpy().astype("float32"), right.astype("float32"), rtol=1e-2, atol=1e-2)


@pytest.mark.full
def test_float16_is_widened_to_float32_alone() -> None:
    """Few processors convert float64 to float16, and not all C libraries do."""
    for op, inputs, attrs in CASES:
        work = narrowed(op, inputs, attrs, "float16")
        for found in offered(work):
            if found.space is not None:
                assert "float64" not in lower(work, TARGET, found).module.script(), f"{work} {found.name}"


def floats() -> Iterator[Any]:
    """The examples of float32 whose operators take narrower floats."""
    for op, registered in all_ops().items():
        for example in registered.examples:
            if "float32" in str(example.inputs):
                yield pytest.param(op, dict(example.inputs), dict(example.attrs), id=f"{op}-{example.inputs}")


@pytest.mark.full
def test_every_tunable_implementation_of_float32_is_one_of_narrow_floats() -> None:
    missing = []
    for op, inputs, attrs in (case.values for case in floats()):
        wide = {c.implementation for c in candidates(Workload.make(op, inputs, attrs), TARGET, libraries=False)}
        for dtype in NARROW:
            try:
                work = Workload.make(op, {n: t.replace("float32", dtype) for n, t in inputs.items()}, attrs)
            except TypeRelationError:
                continue  # the operator is of float32 alone
            found = {c.implementation for c in candidates(work, TARGET, libraries=False)}
            missing += [f"{work} {name}" for name in wide - found]
    assert not missing, "\n".join(missing)
