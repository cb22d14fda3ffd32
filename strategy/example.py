"""Examples of operators as workloads, for listings and tests."""

from __future__ import annotations

from strategy.op import Op
from strategy.workload import Workload

# Inputs that are constant in usual networks.
_WEIGHTS = ("weight", "bias", "gamma", "beta", "alpha")


def examples(op: Op) -> tuple[Workload, ...]:
    """The workloads that an operator declares (`Op.example`), with constant weights."""
    found = []
    for declared in op.examples:
        constants = [
            name
            for name in declared.inputs
            if name in _WEIGHTS and not op.name.endswith("_backward_weight")
        ]
        found.append(Workload.make(op.name, declared.inputs, declared.attrs, constants=constants))
    return tuple(found)
