"""The spaces of `dense`: untuned, every shape on every target has a valid configuration."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from strategy.op_strategy import candidates
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
)  # fmt: skip
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
