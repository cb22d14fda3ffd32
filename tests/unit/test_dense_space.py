"""The spaces of `dense`: untuned, every shape on every target has a valid configuration."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strategy.op_strategy import candidates
from strategy.schedule import integer
from strategy.select import NO_RECORDS, select
from strategy.target import Target
from strategy.workload import Workload

extents = st.integers(1, 70) | st.sampled_from([127, 128, 768, 1000, 1009, 2304, 50257])
architectures = st.sampled_from(["-mcpu=znver4", "-mcpu=haswell", "", "-mcpu=neoverse-n1"])


# 51 tiles of rows, which threads could share evenly, but no knob offers 51 tasks.
@example(1009, 1, 128, "float32", "-mcpu=neoverse-n1", 64)
@given(
    extents | st.just("m"), extents, extents,
    st.sampled_from(["float16", "float32", "float64"]),
    architectures, st.integers(1, 256),
)
def test_the_fallback_is_of_its_space(
    m: int | str, n: int, k: int, dtype: str, architecture: str, threads: int
) -> None:
    target = Target.parse(f"llvm {architecture} -num-cores={threads}")
    shapes = {"data": f"{dtype}[{m},{k}]", "weight": f"{dtype}[{n},{k}]"}
    spaces = {
        c.implementation: c.space
        for c in candidates(Workload.make("dense", shapes), target)
        if c.space is not None
    }
    assert {"dense_nopack.cpu", "dense_pack.cpu"} <= spaces.keys()
    for space in spaces.values():
        assert space.contains(space.fallback)


def test_what_declines_a_symbolic_dimension_is_no_candidate() -> None:
    """A product's inner extent is a constant of the tiles, but OpenBLAS takes any."""
    shapes = {"data": "float32[m,k]", "weight": "float32[8,k]"}
    found = candidates(Workload.make("dense", shapes), Target.parse("llvm -libs=cblas"))
    assert [c.implementation for c in found] == ["dense_cblas.cpu"]


@pytest.mark.parametrize(
    ("m", "k", "constant", "library", "alone"),
    [
        (1, 768, True, "gemv", "gemv"), (1, 768, False, "cblas", "nopack"),
        (16, 768, True, "pack", "pack"), (16, 768, False, "nopack", "nopack"),
        (64, 768, True, "pack", "pack"), (64, 768, False, "cblas", "nopack"),
        (64, 4096, True, "large_m", "large_m"), (128, 4096, False, "cblas", "large_m"),
        (512, 768, True, "pack", "pack"), (513, 768, True, "pack", "pack"), (512, 768, False, "cblas", "pack"),
        (513, 4096, True, "cblas", "large_m"),
    ],
)
def test_what_runs_untuned(m: int, k: int, constant: bool, library: str, alone: str) -> None:
    """OpenBLAS packs both operands at each call, which only many rows of long sums pay for."""
    types = {"data": f"float32[{m},{k}]", "weight": f"float32[4096,{k}]"}
    workload = Workload.make("dense", types, constants=["weight"] if constant else [])
    target = "llvm -mcpu=znver5 -num-cores=2"
    for text, expected in ((f"{target} -libs=cblas", library), (target, alone)):
        assert select(workload, Target.parse(text), NO_RECORDS).implementation == f"dense_{expected}.cpu"


@pytest.mark.parametrize(("l2_bytes", "expected"), [(2**20, "large_m"), (2**21, "pack")])
def test_panels_that_stay_in_the_second_level_are_of_all_steps(l2_bytes: int, expected: str) -> None:
    types = {"data": "float32[64,4096]", "weight": "float32[4096,4096]"}
    target = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2, "l2_bytes": l2_bytes})
    chosen = select(Workload.make("dense", types, constants=["weight"]), target, NO_RECORDS)
    assert chosen.implementation == f"dense_{expected}.cpu"
    if expected == "pack":
        assert chosen.config["ahead"]


@pytest.mark.parametrize(
    ("m", "n", "k", "threads", "expected"),
    [
        (2048, 512, 512, 2, (8, 1)),  # 147 tiles of rows: each thread takes half of the panels
        (784, 256, 512, 2, (8, 14)),
        (4000, 1024, 128, 1, (32, 2)),
        (1000, 768, 768, 1, (4, 5)),  # the weight is more than half of the second level
        (600, 768, 768, 1, None), (512, 512, 256, 1, None),  # the weight is larger than the data; the data stays
    ],
)
def test_untuned_rows_pass_once_for_as_many_panels_as_stay(
    m: int, n: int, k: int, threads: int, expected: tuple[int, int] | None
) -> None:
    sizes = {"l1d_bytes": 48 << 10, "l2_bytes": 2 << 20}
    target = Target.parse({"kind": "llvm", "mcpu": "emeraldrapids", "num-cores": threads} | sizes)
    work = Workload.make("dense", {"data": f"float32[{m},{k}]", "weight": f"float32[{n},{k}]"}, constants=["weight"])
    config = select(work, target, NO_RECORDS).config
    assert (config["inner"] == "panels") == (expected is not None)
    if expected is not None:
        assert (config["n_block"], config["m_tasks"]) == expected


@pytest.mark.parametrize(("k", "unroll"), [(768, 4), (770, 2), (531, 1)])
def test_untuned_a_turn_has_as_many_steps_as_divide_all(k: int, unroll: int) -> None:
    """Products of one kind and the other; a turn with fewer steps at the end would check each."""
    target = Target.parse("llvm -mcpu=znver5 -num-cores=2")
    dense = Workload.make("dense", {"data": f"float32[64,{k}]", "weight": f"float32[96,{k}]"}, constants=["weight"])
    batch = Workload.make("batch_matmul", {"x": f"float32[4,64,{k}]", "y": f"float32[4,96,{k}]"}, {"transpose_b": True})
    for work, name in ((dense, "dense_pack.cpu"), (batch, "batch_matmul_pack.cpu")):
        (space,) = (c.space for c in candidates(work, target) if c.implementation == name)
        assert space is not None
        assert space.fallback["unroll"] == unroll


@pytest.mark.parametrize(
    ("m", "n", "k", "depth", "rows", "m_block"),
    [
        (128, 1024, 4096, 256, 8, 16),
        (197, 1000, 8192, 128, 5, 10),  # of 22 tiles of nine rows, two would share a panel
        (333, 768, 6144, 192, 7, 48),  # 37 tiles of nine rows would share none
    ],
)
def test_untuned_many_tiles_of_data_share_a_part_of_a_panel_that_stays_in_the_first_level(
    m: int, n: int, k: int, depth: int, rows: int, m_block: int
) -> None:
    sizes = {"l1d_bytes": 32 << 10, "l2_bytes": 1 << 20}
    target = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2} | sizes)
    types = {"data": f"float32[{m},{k}]", "weight": f"float32[{n},{k}]"}
    chosen = select(Workload.make("dense", types, constants=["weight"]), target, NO_RECORDS)
    assert chosen.implementation == "dense_large_m.cpu"
    assert tuple(chosen.config[name] for name in ("depth", "rows", "m_block")) == (depth, rows, m_block)


@pytest.mark.parametrize(
    ("spec", "registers"),
    [
        ("-mcpu=x86-64-v2", 14), ("-mcpu=haswell -mattr=-fma", 14),
        ("-mcpu=haswell", 16), ("-mcpu=skylake-avx512", 32), ("-mtriple=aarch64-linux-gnu -mcpu=neoverse-n1", 32),
    ],
)
def test_untuned_tiles_leave_registers_for_products_that_another_instruction_adds(spec: str, registers: int) -> None:
    target = Target.parse(f"llvm {spec} -num-cores=2")
    found = []
    for m in (64, 96, 128, 197):
        types = {"data": f"float32[{m},768]", "weight": "float32[768,768]"}
        work = Workload.make("dense", types, constants=["weight"])
        for candidate in candidates(work, target):
            if candidate.implementation in ("dense_pack.cpu", "dense_large_m.cpu"):
                assert candidate.space is not None
                rows, width = (integer(candidate.space.fallback, name) for name in ("rows", "width"))
                vectors = width * 4 // target.vector_bytes
                found.append(rows * vectors + vectors + 1)
    assert registers - 2 < max(found) <= registers


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (22016, 4096), (4096, 11008)])
def test_untuned_blocks_leave_the_data_in_place_unless_a_copy_is_wider(n: int, k: int, dtype: str) -> None:
    """Then a copy pays for few panels, and the sums of few panels stay in the second level with the block."""
    sizes = {"l1d_bytes": 48 << 10, "l2_bytes": 1 << 20}
    target = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2} | sizes)
    work = Workload.make("dense", {"data": f"{dtype}[128,{k}]", "weight": f"{dtype}[{n},{k}]"}, constants=["weight"])
    (space,) = (c.space for c in candidates(work, target) if c.implementation == "dense_large_m.cpu")
    assert space is not None
    config = space.fallback
    assert config["ahead"]
    assert config["by"] == ("place" if dtype == "float32" else "rows")
    sums = 4 * math.prod(integer(config, name) for name in ("m_block", "rows", "n_block", "width"))
    assert (sums <= target.l2_bytes // 4) == (dtype == "float32")


@pytest.mark.parametrize(
    ("k", "l1d_bytes", "rows"),
    [(1024, 48 * 1024, 8), (1024, 80 * 1024, 13), (1040, 48 * 1024, 13), (768, 48 * 1024, 13)],
)
def test_untuned_rows_whole_pages_apart_leave_ways_of_the_first_level(k: int, l1d_bytes: int, rows: int) -> None:
    target = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2, "l1d_bytes": l1d_bytes})
    work = Workload.make("dense", {"data": f"float32[128,{k}]", "weight": f"float32[1024,{k}]"}, constants=["weight"])
    (space,) = (c.space for c in candidates(work, target) if c.implementation == "dense_pack.cpu")
    assert space is not None
    assert space.fallback["rows"] == rows
