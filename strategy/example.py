"""Examples of operators as workloads, to show what an operator has and how it is called."""

from __future__ import annotations

from strategy.op import Op
from strategy.workload import Workload

# Inputs that do not change between calls of a usual network.
_WEIGHTS = ("weight", "bias", "gamma", "beta", "alpha")


def examples(op: Op) -> tuple[Workload, ...]:
    """Workloads that an operator declares (`Op.example`), weights constant; none where it declares none."""
    found = []
    for declared in op.examples:
        constants = [
            name
            for name in declared.inputs
            if name in _WEIGHTS and not op.name.endswith("_backward_weight")
        ]
        found.append(Workload.make(op.name, declared.inputs, declared.attrs, constants=constants))
    return tuple(found)
