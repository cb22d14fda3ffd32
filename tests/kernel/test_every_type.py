"""Every operator in every dtype that its types accept: compiled, called and compared with NumPy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from strategy.op import TypeRelationError, all_ops
from strategy.workload import Workload
from tests.limit import HANG_S
from workers.fork import Limits
from workers.sandbox import Died, ForkServer

sys.path.insert(0, str(Path(__file__).parent))  # where the children find the module too
import sweep

LIMITS = Limits(module="sweep", environment={"TVM_NUM_THREADS": "2"})

Judge = Callable[[Sequence[Workload]], None]

OPS = [pytest.param(op, marks=[] if op in sweep.sampled() else [pytest.mark.full]) for op in all_ops()]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Have a child judge workloads: the same for all, as the first compilation of each is slow, until it dies."""
    with ForkServer(tmp_path_factory.mktemp("children"), ("numpy", "tvm", "ml_dtypes", "sweep")) as server:
        children = [server.spawn(LIMITS)]

        def judge(workloads: Sequence[Workload]) -> None:
            children[-1].send(
                [{"op": w.op, "inputs": {i.name: i.type for i in w.inputs}, "attrs": w.attrs} for w in workloads]
            )
            try:
                wrong = children[-1].receive(HANG_S)
            except Died as death:
                children.append(server.spawn(LIMITS))
                pytest.fail(f"run {children[-2].stage} of {workloads[0].op}: {death}")
            assert not wrong, "\n".join(wrong)

        yield judge
        children[-1].kill()


@pytest.mark.parametrize("op", OPS)
def test_what_types_accept_runs_right(judge: Judge, op: str, full: bool) -> None:
    workloads = sweep.accepted(op, full=full)
    assert workloads
    judge(workloads)


@pytest.mark.parametrize("op", all_ops())
def test_the_sample_has_every_implementation(op: str) -> None:
    def covered(full: bool) -> set[str]:
        return {i.name for w in sweep.accepted(op, full=full) for i in sweep.implementations(w)}

    assert covered(full=False) == covered(full=True)


def test_the_samples_together_have_every_dtype() -> None:
    def covered(full: bool) -> set[str]:
        ops = all_ops() if full else sweep.sampled()
        return {i.tensor.dtype for op in ops for w in sweep.accepted(op, full=full) for i in w.inputs}

    assert covered(full=False) == covered(full=True)


@pytest.mark.parametrize("op", OPS)
def test_empty_tensors_have_numpys_answer_or_are_refused(judge: Judge, op: str, full: bool) -> None:
    found = []
    for inputs, attrs in sweep.emptied(op, full=full):
        try:
            found.append(Workload.make(op, inputs, attrs))
        except TypeRelationError:
            continue
    if found:
        judge(found)


def test_a_reduction_without_a_value_names_the_empty_axis() -> None:
    for op in ("max", "min", "argmax", "argmin"):
        with pytest.raises(TypeRelationError, match=f"{op}: data is .* axis 1 is empty"):
            Workload.make(op, {"data": "float32[3,0]"}, {"axis": [1]})
        assert Workload.make(op, {"data": "float32[0,3]"}, {"axis": [1]})
