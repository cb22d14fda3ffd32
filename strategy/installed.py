"""Operators that can be built here, with the versions of their implementations.

A strategy offers what is valid for one workload, so that no call lists all that there is. For our own
operators `implementations.json` does: `make operators` writes it, and tests/unit/test_version.py holds it
to the truth. Of those that other packages bring, only the operators are known.
"""

from __future__ import annotations

import json
from importlib.resources import files

from strategy.op import all_ops
from strategy.record import ALL


def installed() -> dict[str, dict[str, int]]:
    """Operator → implementation → declared version, as `WorkerInfo.operators` has it."""
    listed: dict[str, dict[str, int]] = json.loads(
        files("strategy").joinpath("implementations.json").read_text()
    )
    tunable = [name for name, op in all_ops().items() if op.get_attr("FTVMStrategy") is not None]
    return {name: listed.get(name, {ALL: 0}) for name in tunable}
