"""Machine code of the configurations that run untuned: no device is needed to see spilled registers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm")

from strategy.compile.cuda import compile_cuda, emit
from strategy.compile.lower import lower
from strategy.cuda.compiler import find_nvcc
from strategy.cuda.limit import limits_of
from strategy.cuda.schedule import lanes_of_block
from strategy.cuda.wmma import register_wmma
from strategy.target import Target
from strategy.workload import Workload

compiled = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc on this host")


def dense(m: int, n: int, k: int) -> Workload:
    return Workload.make("dense", {"data": f"float32[{m},{k}]", "weight": f"float32[{n},{k}]"})


IMAGE: dict[str, Any] = {"data": "float32[1,64,56,56]", "weight": "float32[64,64,3,3]"}
# And how many blocks a multiprocessor has registers for.
FALLBACKS = [
    (dense(4096, 4096, 4096), "dense_tiled.cuda", 2),
    *(
        pytest.param(*case, marks=pytest.mark.full)
        for case in (
            (dense(1024, 1024, 1024), "dense_tiled.cuda", 2),
            (dense(1, 4096, 4096), "dense_gemv.cuda", 8),
            (dense(16, 11008, 4096), "dense_gemv.cuda", 4),
            (Workload.make("conv2d", IMAGE, {"padding": 1}, ("weight",)), "conv2d_nchw_implicit_gemm.cuda", 6),
            (Workload.make("conv2d", IMAGE, {"padding": 1}, ("weight",)), "conv2d_nchw_winograd.cuda", 3),
            (Workload.make("softmax", {"data": "float32[8192,1024]"}), "softmax_rows.cuda", 8),
            (Workload.make("cumsum", {"data": "float32[16777216]"}), "cumsum_parts.cuda", 2),  # of 512 threads
            (Workload.make("topk", {"data": "float32[4096,4096]"}, {"k": 16}), "topk_select.cuda", 6),
            (Workload.make("argsort", {"data": "float32[1048576]"}), "argsort_radix.cuda", 1),
            (Workload.make("argsort", {"data": "int64[1048576]"}), "argsort_radix.cuda", 1),
        )
    ),
]


@pytest.mark.full
@compiled
@pytest.mark.parametrize(("workload", "implementation", "blocks"), FALLBACKS)
@pytest.mark.parametrize("arch", ["sm_90", pytest.param("sm_80", marks=pytest.mark.full)])
def test_a_fallback_spills_nothing_and_leaves_room_for_other_blocks(
    workload: Workload, implementation: str, blocks: int, arch: str, tmp_path: Path
) -> None:
    target = Target.parse(f"cuda -arch={arch}")
    artefact = compile_cuda(lower(workload, target, implementation), find_nvcc(), tmp_path)
    for launch in artefact.programs["main"].launches:
        usage, (x, y, z) = artefact.usage[launch.kernel], launch.block
        assert (usage.spill_bytes, usage.stack_bytes) == (0, 0)
        # Registers are given to warps eight at a time for each thread.
        taken = -(-usage.registers // 8) * 8 * x * y * z
        assert blocks * taken <= limits_of(target).registers


@pytest.mark.parametrize(
    ("workload", "implementation", "loads"),
    [
        (dense(4096, 4096, 4096), "dense_tiled.cuda", ("data", "weight")),
        (dense(16, 4096, 4096), "dense_gemv.cuda", ("data", "weight")),
        (Workload.make("softmax", {"data": "float32[8192,1024]"}), "softmax_rows.cuda", ("data",)),
    ],
)
def test_a_fallback_loads_16_bytes_at_once(
    workload: Workload, implementation: str, loads: tuple[str, ...]
) -> None:
    code = emit(lower(workload, Target.parse("cuda -arch=sm_90"), implementation)).code
    for name in loads:
        # All of its loads: the parameter is declared twice, and else stands in them alone.
        assert code.count(f"*(float4*)({name}_ptr") == code.count(f"{name}_ptr") - 2 > 0


def test_elements_that_places_choose_are_no_vectors() -> None:
    from tvm import s_tir, te, tirx

    x = te.placeholder((64,), "float32", name="x")
    for condition, lanes in (
        (lambda i: x[i] > 0, 4), (lambda i: i < 32, 1), (lambda i: tirx.And(i < 32, x[i] > 0), 1),
    ):
        chosen = te.compute((64,), partial(lambda c, i: tirx.Select(c(i), x[i], x[63 - i]), condition), name="chosen")
        sch = s_tir.Schedule(te.create_prim_func([x, chosen]))
        assert lanes_of_block(sch, sch.get_sblock("chosen")) == lanes


def test_threads_may_register_an_intrinsic_at_once() -> None:
    assert register_wmma.__wrapped__("float16") == register_wmma.__wrapped__("float16")
