"""Untunable implementations by TVM's own rules for GPUs (`tvm.s_tir.dlight`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.source import tvm_target
from strategy.schedule import Outs, ScheduleError, new_schedule
from strategy.target import Target


def schedule_by(*rules: str) -> Callable[[Attrs, Outs, Target], Any]:
    """A schedule by the first of the named rules of `dlight.gpu` that takes the computation.

    `Fallback`, which takes everything, is no rival: what only it takes has our plain schedules.
    """

    def schedule(attrs: Attrs, outs: Outs, target: Target) -> Any:
        import tvm
        from tvm import s_tir
        from tvm.s_tir.dlight import gpu

        function = new_schedule(outs).mod["main"]
        with tvm_target(target):
            for rule in rules:
                found = getattr(gpu, rule)().apply(function, tvm.target.Target.current(), False)
                if isinstance(found, s_tir.Schedule):
                    return found
        raise ScheduleError(f"no rule of dlight covers this computation ({', '.join(rules)})")

    return schedule
