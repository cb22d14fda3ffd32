"""The judgement of a kernel: what it computes, beside the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from strategy.compile.artefact import Artefact
from strategy.workload import Workload
from workers.reference import compare, poison, reference, tolerances


def judge(artefact: Artefact, workload: Workload, inputs: Mapping[str, Any]) -> None:
    """Run an artefact of one output over poison; raise `WrongAnswerError` unless it computes as the reference."""
    import tvm

    (right,) = map(np.asarray, reference(workload, inputs))
    *given, out = artefact.arguments
    found = tvm.runtime.tensor(poison(right, out.tensor.dtype))
    artefact.main(*(artefact.prepare(a, tvm.runtime.tensor(inputs[a.name])) for a in given), found)
    compare(found.numpy(), right, *tolerances(workload, inputs, [right]))
