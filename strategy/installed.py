"""The operators that can be built here, with the versions of their implementations.

A strategy offers the implementations of one workload, so none lists all. For plevel's own implementations
`implementations.json` does: `make operators` writes it, and tests/unit/test_version.py checks it. Of those of other
packages only the operators are known, plevel's own ones among them.
"""

from __future__ import annotations

import json
from importlib.resources import files

from strategy.op import all_ops, has_own_strategy
from strategy.record import ALL, RunStatus

OTHER_VERSIONS = "needs other versions of implementations than are installed"


def installed() -> dict[str, dict[str, int]]:
    """Operator → implementation → declared version, the form of `WorkerInfo.operators`."""
    listed: dict[str, dict[str, int]] = json.loads(
        files("strategy").joinpath("implementations.json").read_text()
    )
    tunable = {name: op for name, op in all_ops().items() if op.get_attr("FTVMStrategy") is not None}
    return {
        name: listed[name] if name in listed and has_own_strategy(op) else listed.get(name, {}) | {ALL: 0}
        for name, op in tunable.items()
    }


def can_measure(run: RunStatus) -> bool:
    """Return whether all implementations of a run are installed here in its versions; else the run `OTHER_VERSIONS`."""
    operators = installed()
    for task in run.tasks:
        known = operators.get(task.workload.partition("(")[0], {})
        version = known.get(task.implementation)
        if ALL not in known if version is None else task.version.partition(".")[0] != str(version):
            return False
    return True
