"""Idle knobs: configurations that differ in these alone have the same machine code, and few others have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from service.search.pool import Candidates
from strategy.compile.lower import lower
from strategy.op_strategy import candidates
from strategy.space import ConfigSpace
from strategy.target import Target
from strategy.workload import Workload
from workers.builder import link

AVX512, AMX = (Target.parse(f"llvm -mcpu={cpu} -num-cores=2") for cpu in ("skylake-avx512", "sapphirerapids"))


def conv2d(shape: str, weight: str, dtype: str = "float32", padding: int = 1, groups: int = 1, **more: str) -> Workload:
    inputs = {"data": f"{dtype}[{shape}]", "weight": f"{dtype}[{weight}]"}
    return Workload.make("conv2d", inputs, {"padding": padding, "groups": groups, **more}, ["weight"])


def dense(m: int | str, dtype: str = "float32") -> Workload:
    return Workload.make("dense", {"data": f"{dtype}[{m},96]", "weight": f"{dtype}[160,96]"}, constants=["weight"])


PARTED = Workload.make("dense", {"data": "bfloat16[512,2048]", "weight": "bfloat16[96,2048]"}, constants=["weight"])
CASES: list[tuple[Target, str, Workload]] = [
    (AVX512, "conv2d_nchw_spatial_pack.cpu", conv2d("1,32,14,14", "64,32,3,3")),
    (AVX512, "conv2d_nchw_spatial_pack.cpu", conv2d("1,32,14,14", "64,32,1,1", padding=0)),
    (AVX512, "conv2d_nchw_spatial_pack.cpu", conv2d("n,32,h,w", "64,32,1,1", padding=0)),
    (AVX512, "conv2d_nchw_im2col.cpu", conv2d("1,32,16,16", "64,32,3,3")),
    (AVX512, "conv2d_nchw_lines.cpu", conv2d("1,32,32,32", "32,8,3,3", groups=4)),
    (AVX512, "conv2d_nchw_1x1.cpu", conv2d("1,32,14,14", "64,32,1,1", padding=0)),
    (AVX512, "conv2d_nchwc_spatial_pack.cpu", conv2d("1,2,14,14,16", "64,32,3,3", data_layout="NCHW16c")),
    (AVX512, "conv2d_nhwc_spatial_pack.cpu", conv2d("1,14,14,32", "64,32,3,3", data_layout="NHWC")),
    (AVX512, "dense_pack.cpu", dense(37)),
    (AVX512, "dense_pack.cpu", dense("m")),
    (AVX512, "dense_nopack.cpu", dense(37)),
    (AVX512, "dense_large_m.cpu", Workload.make("dense", {"data": "float32[64,2048]", "weight": "float32[96,2048]"})),
    (AVX512, "batch_matmul_pack.cpu", Workload.make("batch_matmul", {"x": "float32[3,8,32]", "y": "float32[3,64,32]"})),
    (AMX, "dense_dot.cpu", dense(37, "bfloat16")),
    (AMX, "dense_amx.cpu", dense(64, "bfloat16")),
    (AMX, "conv2d_nhwc_dot.cpu", conv2d("1,14,14,32", "64,32,3,3", "bfloat16", data_layout="NHWC")),
    (AMX, "conv2d_nhwc_amx.cpu", conv2d("1,14,14,32", "64,32,3,3", "bfloat16", data_layout="NHWC")),
    (AMX, "conv2d_nhwc_amx_direct.cpu", conv2d("1,14,14,32", "64,32,3,3", "bfloat16", data_layout="NHWC")),
    (AMX, "conv2d_nchw_amx_direct.cpu", conv2d("1,32,14,14", "64,32,3,3", "bfloat16")),
    (AMX, "conv2d_nchw_amx_direct.cpu", conv2d("1,32,7,7", "64,32,3,3", "bfloat16")),
    (AMX, "conv2d_nchw_dot.cpu", conv2d("1,32,16,16", "64,32,3,3", "bfloat16")),
    (AMX, "conv2d_nchw_dot_direct.cpu", conv2d("1,32,16,16", "64,32,3,3", "bfloat16")),
    (AMX, "conv2d_nchw_dot_direct.cpu", conv2d("1,32,14,14", "64,32,1,1", "bfloat16", padding=0)),
]
NAMES = [f"{name}-{workload.inputs[0].tensor}" for _, name, workload in CASES]


def space_of(target: Target, name: str, workload: Workload) -> ConfigSpace:
    (found,) = (c.space for c in candidates(workload, target) if c.implementation == name)
    assert found is not None
    return found


def codes(case: tuple[Target, str, Workload], rows: Iterable[list[int]], path: Path) -> list[str]:
    """The digests of the machine code of configurations, by their digits."""
    target, name, workload = case
    space, made = space_of(*case), []
    for row in rows:
        config = {k.name: k.values[digit] for k, digit in zip(space.knobs, row, strict=True)}
        made.append(link(lower(workload, target, name, config), path / "kernel.so"))
    return made


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_idle_knobs_do_not_change_the_code(case: tuple[Target, str, Workload], tmp_path: Path) -> None:
    space = space_of(*case)
    pool = Candidates(space, np.random.default_rng(0))
    drawn = np.random.default_rng(1).integers([len(k.values) for k in space.knobs], size=(20_000, len(space.knobs)))
    rows = drawn[pool.allowed(drawn)].astype(np.int32)
    settled = pool.settle(rows)
    changed = np.flatnonzero((rows != settled).any(axis=1))[:3]
    assert len(changed)
    assert codes(case, rows[changed].tolist(), tmp_path) == codes(case, settled[changed].tolist(), tmp_path)


def test_the_order_of_blocks_of_parts_of_k_is_not_idle_where_tasks_copy() -> None:
    space = space_of(AMX, "dense_amx.cpu", PARTED)
    base = {**space.fallback, "rows": 32, "width": 32, "n_block": 1, "m_tasks": 16, "ahead": False}
    pool = Candidates(space, np.random.default_rng(0))
    for copied, parts, idle in ((1, 1, True), (1, 2, False), (2, 2, True)):
        given = {**base, "copied": copied, "parts": parts}
        both = [space.digits({**given, "inner": inner}) for inner in space["inner"].values]
        settled = pool.settle(np.array(both, dtype=np.int32))
        assert (len(np.unique(settled, axis=0)) == 1) == idle


@pytest.mark.full
@pytest.mark.parametrize("case", CASES[:6], ids=NAMES[:6])
def test_few_candidates_have_the_code_of_another(case: tuple[Target, str, Workload], tmp_path: Path) -> None:
    space = space_of(*case)
    rows = Candidates(space, np.random.default_rng(0)).draw(60).tolist()
    made = codes(case, rows, tmp_path)
    assert len(made) - len(set(made)) <= len(made) // 30
