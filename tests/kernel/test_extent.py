"""Extents beyond 32 bits, which are refused by their names where TVM makes no code of them."""

from __future__ import annotations

from typing import Any

import pytest

from strategy.compile.extent import MOST
from strategy.compile.lower import lower
from strategy.fault import InstantiationError
from strategy.op_strategy import candidates
from strategy.target import Target
from strategy.workload import Workload

FAR = 2**31
CPU, CUDA = Target.parse("llvm -mcpu=znver4 -num-cores=2"), Target.parse("cuda -arch=sm_90")


@pytest.mark.parametrize(("target", "op", "inputs", "attrs", "implementation", "extent"), [
    (CPU, "resize2d", {"data": "float32[1,2,5,7]"}, {"size": [FAR - 1, 19]}, "injective.cpu", "output.shape[2]"),
    (CPU, "resize2d", {"data": f"float32[1,{FAR - 1},5,7]"}, {"size": 9}, "injective.cpu", "data.shape[1]"),
    (CPU, "tile", {"data": "float32[5,19]"}, {"reps": [2, FAR, 3]}, "injective.cpu", "output.shape[1]"),
    (CPU, "expand_dims", {"data": "bfloat16[54784,54784]"}, {"axis": [0, -1]}, "injective.cpu", "data.size"),
    (CPU, "one_hot", {"indices": f"int32[5,{FAR}]"}, {"depth": 7}, "injective.cpu", "indices.shape[1]"),
    (
        CPU, "conv2d", {"data": "float32[1,3,6,9]", "weight": f"float32[{FAR},3,3,3]"}, {"padding": 1},
        "conv2d_nchw_spatial_pack.cpu", "weight.shape[0]",
    ),
    (
        CUDA, "conv2d", {"data": "float32[1,3,6,9]", "weight": f"float32[{FAR},3,3,3]"}, {"padding": 1},
        "conv2d_nchw_implicit_gemm.cuda", "weight.shape[0]",
    ),
])
def test_an_extent_beyond_32_bits_is_named(
    target: Target, op: str, inputs: dict[str, str], attrs: dict[str, Any], implementation: str, extent: str
) -> None:
    with pytest.raises(InstantiationError) as raised:
        lower(Workload.make(op, inputs, attrs), target, implementation)
    said = str(raised.value)
    assert said.startswith(f"{implementation}: {extent} = ")
    assert f"exceeds {MOST}" in said
    assert "\n" not in said


def test_an_argument_with_an_extent_beyond_32_bits_has_its_type() -> None:
    workload = Workload.make("negative", {"data": f"int8[{FAR}]"})
    assert {a.type for a in lower(workload, CPU, "elementwise.cpu").arguments} == {f"int8[{FAR}]"}
    assert lower(workload, CPU, "elementwise.cpu").arguments[0].tensor.concrete_shape == (FAR,)


@pytest.mark.parametrize(("op", "data", "attrs"), [
    ("negative", f"float32[70001,{FAR // 70000}]", {}), ("cast", f"bool[{FAR + 17}]", {"dtype": "int8"}),
    ("reverse", f"int8[70001,{FAR // 70000}]", {"axis": 1}), ("pad", f"int8[{FAR + 17}]", {"pad_width": [[17, 3]]}),
])
def test_a_bound_beyond_32_bits_is_compiled(op: str, data: str, attrs: dict[str, Any]) -> None:
    """The lanes in use before it are few, as is their number in 32 bits."""
    workload = Workload.make(op, {"data": data}, attrs)
    for candidate in candidates(workload, CPU):
        lower(workload, CPU, candidate.implementation).compile(checks=False)
