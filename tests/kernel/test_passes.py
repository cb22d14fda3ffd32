"""Our passes for processors against TVM's own sequence of them: the same code."""

from __future__ import annotations

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
    # TVM has sums in memory of a pool.
    monkeypatch.setattr("strategy.cpu.registers.keep_on_stack", lambda module: module)
    op, inputs = EXAMPLES[implementation]
    workload, target = Workload.make(op, inputs), Target.parse("cpu").with_threads(2)
    (fallback,) = (c.fallback for c in candidates(workload, target) if c.implementation == implementation)
    # Nor have they prefetches.
    config = {**fallback, **({"ahead": False} if "ahead" in fallback else {})}
    lowered = lower(workload, target, implementation, config)
    lowered.compile().write_object(tmp_path / "ours.o")
    _compile_with_all(lowered).write_object(tmp_path / "all.o")
    assert (tmp_path / "ours.o").read_bytes() == (tmp_path / "all.o").read_bytes()


def _compile_with_all(lowered: Lowered) -> Artefact:
    import tvm

    target = tvm.target.Target(lowered.target.to_tvm())
    with target, tvm.transform.PassContext(opt_level=3):
        executable = tvm.compile(lowered.module, target=target)
    return Artefact(executable, lowered.signature)
