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
