"""The fallbacks of attention's spaces, also where keys are fewer than a register tile has room for."""

from __future__ import annotations

import pytest

from strategy.op_strategy import candidates
from strategy.target import Target
from strategy.workload import Workload


@pytest.mark.parametrize("m", [1, 12, 40])
@pytest.mark.parametrize("n", [1, 12, 16, 40])
def test_every_size_has_a_fallback(m: int, n: int) -> None:
    types = {"query": f"float32[2,2,{m},16]"} | dict.fromkeys(("key", "value"), f"float32[2,2,{n},16]")
    found = candidates(Workload.make("attention", types), Target.parse("llvm -mcpu=znver4 -num-cores=2"))
    for candidate in found:
        if candidate.space is not None:
            candidate.space.check(candidate.fallback)


def test_operations_of_causal_attention_are_counted_without_a_step_for_each_query():
    def flops(m: int, n: int) -> int | None:
        inputs = {"query": f"float32[1,1,{m},3]", "key": f"float32[1,1,{n},3]", "value": f"float32[1,1,{n},5]"}
        return Workload.make("attention", inputs, {"is_causal": True}).flops

    for m, n in ((1, 1), (1, 7), (4, 4), (7, 3), (3, 7)):
        assert flops(m, n) == 2 * 8 * sum(min(i + 1, n) for i in range(m))
    assert flops(2**40, 1) == 2 * 8 * 2**40
