"""Masked vector loops over code written for it: what no lane asks for is not accessed."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import s_tir, te, tirx

from strategy.compile.lower import Lowered, lower
from strategy.signature import Argument, Role, Signature
from strategy.target import Target
from strategy.workload import EpilogueStep, Workload
from workers.guard import Placement, allocate

from .guarded_run import forked

LANES = 16
TURNS = 400
Compute = Callable[[Any], Any]


def lowered(size: int, compute: Compute) -> Lowered:
    """A function of `TURNS` vectors, of which those behind `size` numbers have no lane in use."""
    data = te.placeholder((2,), "float32", name="data")
    output = te.compute((size,), compute(data), name="output")
    schedule = s_tir.Schedule(te.create_prim_func([data, output]))
    (loop,) = schedule.get_loops(schedule.get_sblock("output"))
    _, lanes = schedule.split(loop, [TURNS, LANES])
    schedule.vectorize(lanes)
    arguments = (
        Argument("data", Role.INPUT, "float32[2]"),
        Argument("output", Role.OUTPUT, f"float32[{size}]"),
    )
    return Lowered(schedule.mod, Signature(arguments, 1), Target.parse("llvm -num-cores=1"))


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize(
    ("size", "compute"),
    [
        (20, lambda data: lambda i: data[i // LANES]),
        (TURNS * LANES, lambda data: lambda i: tirx.if_then_else(i < 20, data[i // LANES], 0.0)),
        (TURNS * LANES, lambda data: lambda i: tirx.if_then_else(i >= 20, 0.0, data[i // LANES])),
    ],
    ids=["stored", "chosen", "otherwise"],
)
def test_a_number_that_no_lane_needs_is_not_loaded(size: int, compute: Compute, placement: Placement) -> None:
    artefact = lowered(size, compute).compile(checks=False)

    def run() -> None:
        data, output = (allocate(str(n), (n,), "float32", placement) for n in (2, size))
        data.array[...] = 1, 2
        artefact.main(data.tensor, output.tensor)
        for buffer in (data, output):
            buffer.verify()
        assert np.array_equal(output.array[:20], [1] * LANES + [2] * 4)
        assert not output.array[20:].any()

    assert not forked(run)


def test_lanes_far_beyond_a_bound_are_not_in_use() -> None:
    """The distance of the bound has more than 32 bits, whose lower ones are a few lanes."""
    extent = te.var("extent", "int64")
    data, far = te.placeholder((LANES,), "float32", name="data"), te.placeholder((extent,), "int8", name="far")
    output = te.compute((LANES,), lambda i: tirx.if_then_else(i + extent < 5, data[i], 0.0), name="output")
    schedule = s_tir.Schedule(te.create_prim_func([data, far, output]))
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("output"))[0])
    arguments = (
        Argument("data", Role.INPUT, f"float32[{LANES}]"), Argument("far", Role.INPUT, "int8[extent]"),
        Argument("output", Role.OUTPUT, f"float32[{LANES}]"),
    )
    found = Lowered(schedule.mod, Signature(arguments, 1), Target.parse("llvm -num-cores=1")).compile(checks=False)
    for size, used in ((2, 3), (1 << 32, 0)):
        far = np.frombuffer(mmap.mmap(-1, size), "int8")  # never read, and so no memory
        data, output = (tvm.runtime.tensor(np.full(LANES, number, "float32")) for number in (1, np.nan))
        found.main(data, tvm.runtime.from_dlpack(far), output)
        assert output.numpy().tolist() == [1] * used + [0] * (LANES - used)


@pytest.mark.parametrize("size", [49, 51, 73])
@pytest.mark.parametrize("arch", ["skylake-avx512", "emeraldrapids"])
def test_llvm_makes_no_masked_store_of_one_lane_of_a_scalar_loop(arch: str, size: int) -> None:
    inputs = dict.fromkeys(("lhs", "rhs"), f"bfloat16[{size}]")
    found = lower(Workload.make("add", inputs), Target.parse(f"llvm -mcpu={arch}"), "elementwise.cpu")
    code = found.compile(checks=False).executable.mod.inspect_source("ll")
    assert not re.search(r"masked\.store.*<i1 true(, i1 false)+>", code)


def test_a_value_that_is_bound_to_a_name_is_masked() -> None:
    """As a scalar loop over the lanes in use, a chain of functions would take several times as long at every edge."""
    silu = EpilogueStep("silu", (None,))
    work = Workload.make("exp", {"data": "bfloat16[3,21]"}, epilogue=[silu])
    found = lower(work, Target.parse("llvm -mcpu=emeraldrapids"), "elementwise.cpu")
    code = found.compile(checks=False).executable.mod.inspect_source("ll")
    assert "masked.store" in code
    assert not re.search(r"f(div|mul) (fast )?float ", code)
