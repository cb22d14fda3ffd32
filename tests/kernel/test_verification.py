"""Built libraries, run for real in guarded memory: what is wrong or leaves its buffers is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("tvm")

from strategy.compile.entry import Entry, LibraryRow
from strategy.compile.export import export_library, table_rows
from strategy.compile.lower import lower
from strategy.select import NO_RECORDS
from strategy.select.dispatch import dispatch
from strategy.signature import Argument, Role
from strategy.target import Target
from strategy.workload import Workload
from workers import verification
from workers.reference import WrongAnswerError
from workers.sandbox import WORKER_IMPORTS, ForkServer
from workers.verification import SIZES, Parameter, Request, VerificationError, verify

sys.path.insert(0, str(Path(__file__).parent))  # where the children find the operator too
import hostile

TARGET = Target.parse("llvm -num-cores=1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("logs"), (*WORKER_IMPORTS, "hostile")) as found:
        yield found


def check(server: ForkServer, folder: Path, workload: Workload, rows: list[LibraryRow]) -> int:
    export_library(workload, rows, folder / "lib.so")
    parameters = [Parameter(p.name, p.argument) for p in Entry("f", workload, rows).parameters]
    return verify(server, folder / "lib.so", workload, parameters)


def test_a_dispatch_table_is_run_at_many_sizes(server: ForkServer, tmp_path: Path) -> None:
    types = {"data": "float32[m,40]", "weight": "float32[56,40]"}
    workload = Workload.make("dense", types, constants=["weight"])
    rows = table_rows(dispatch(workload, TARGET, NO_RECORDS))
    assert check(server, tmp_path, workload, rows) == len(SIZES)


@pytest.mark.parametrize(
    ("op", "types", "cases"),
    [
        ("add", {"lhs": "float32[4,3]", "rhs": "float32[h,3]"}, 1),
        ("add", {"lhs": "float32[n,3]", "rhs": "float32[h,3]"}, len(SIZES)),
    ],
)
def test_a_library_is_run_at_sizes_that_it_takes(
    server: ForkServer, tmp_path: Path, op: str, types: dict[str, str], cases: int
) -> None:
    workload = Workload.make(op, types)
    assert check(server, tmp_path, workload, table_rows(dispatch(workload, TARGET, NO_RECORDS))) == cases


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("wrong", "64 of 64 elements are wrong"),
        ("code_reads_past_end", "past the end of input data"),
        ("code_reads_before", "before the beginning of input data"),
        ("code_writes_input", "it writes to its input data"),
        ("code_reads_past_workspace", "past the end of a workspace"),
        ("code_writes_past_workspace", "outside of a workspace"),
        ("aborts", "SIGABRT"),
    ],
)
def test_a_bad_library_is_refused(
    server: ForkServer, tmp_path: Path, deed: str, words: str
) -> None:
    workload = Workload.make("hostile", {"data": "float32[64]"})
    assert deed in hostile.DEEDS
    lowered = lower(workload, TARGET, "hostile.cpu", {"deed": deed, "id": 0})
    with pytest.raises(VerificationError, match=words):
        check(server, tmp_path, workload, [LibraryRow(lowered)])


def test_what_is_read_before_it_is_packed_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload.make("add", {"lhs": "float32[4,3]", "rhs": "float32[4,3]"}, constants=["rhs"])
    roles = {"lhs": Role.INPUT, "rhs": Role.PREPARED, "output": Role.OUTPUT}
    parameters = tuple(Parameter(name, Argument(name, role, "float32[4,3]")) for name, role in roles.items())
    request = Request(path="", allocator="", workload=workload, parameters=parameters, sizes=({},))
    read: list[Any] = []
    module = {"prepare_rhs": lambda raw, packed: None, "main": lambda lhs, rhs, out: read.append(rhs.numpy())}
    monkeypatch.setattr(verification, "guarded_workspaces", lambda *_: nullcontext())
    with pytest.raises(WrongAnswerError):
        verification._run(module, request, {}, Mock())
    assert len(read) == 2 and np.isnan(read).all()
