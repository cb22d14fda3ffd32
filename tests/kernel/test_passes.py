"""Our passes for processors against TVM's own sequence of them: the same code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strategy.compile.artefact import Artefact
from strategy.compile.lower import Lowered, lower
from strategy.op_strategy import candidates
from strategy.target import Target
from strategy.workload import Workload

# Without bound checks in their vector loops: those TVM's passes treat in another way.
EXAMPLES = {
    "dense_pack.cpu": ("dense", {"data": "float32[32,64]", "weight": "float32[96,64]"}),
    "dense_nopack.cpu": ("dense", {"data": "float32[32,64]", "weight": "float32[96,64]"}),
    "batch_matmul.cpu": ("batch_matmul", {"x": "float32[3,16,32]", "y": "float32[3,16,32]"}),
    "reduce.cpu": ("sum", {"data": "float32[32,64]"}),
    "broadcast.cpu": ("add", {"lhs": "bfloat16[32,64]", "rhs": "bfloat16[32,64]"}),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("implementation", EXAMPLES)
def test_the_same_code_as_of_all_passes(
    implementation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TVM has sums in memory of a pool, and the stack as it happens to be.
    for added in ("registers.keep_on_stack", "stack.align_stack"):
        monkeypatch.setattr(f"strategy.cpu.{added}", lambda module: module)
    op, inputs = EXAMPLES[implementation]
    workload, target = Workload.make(op, inputs), Target.parse("cpu").with_threads(2)
    (fallback,) = (c.fallback for c in candidates(workload, target) if c.implementation == implementation)
    # Nor have they prefetches.
    config = {**fallback, **({"ahead": False} if "ahead" in fallback else {})}
    lowered = lower(workload, target, implementation, config)
    lowered.compile().write_object(tmp_path / "ours.o")
    _compile_with_all(lowered).write_object(tmp_path / "all.o")
    assert (tmp_path / "ours.o").read_bytes() == (tmp_path / "all.o").read_bytes()


def test_vectors_on_the_stack_cross_no_line() -> None:
    """Of steps of four rows that are unrolled, LLVM computes more side by side than registers hold."""
    inputs = {"data": "float32[4,512]", "weight": "uint8[64,2,128]", "scales": "float32[64,2]"}
    workload = Workload.make("matmul_nbits", inputs, {"block_size": 256}, ["weight", "scales"])
    target = Target.parse("llvm -mcpu=znver4 -num-cores=2")
    (space,) = (c.space for c in candidates(workload, target) if c.implementation == "matmul_nbits_panel.cpu")
    assert space is not None
    lowered = lower(workload, target, "matmul_nbits_panel.cpu", {**space.fallback, "unroll": 16})
    code = lowered.compile(checks=False).executable.mod.inspect_source("s")
    stores = [line.split() for line in code.splitlines() if re.search(r"%zmm\d+, \S*\(%rsp\)", line)]
    assert stores
    assert {name for name, *_ in stores} <= {"vmovaps", "vmovdqa64", "vmovapd"}


def _compile_with_all(lowered: Lowered) -> Artefact:
    import tvm

    target = tvm.target.Target(lowered.target.to_tvm())
    with target, tvm.transform.PassContext(opt_level=3):
        executable = tvm.compile(lowered.module, target=target)
    return Artefact(executable, lowered.signature)
