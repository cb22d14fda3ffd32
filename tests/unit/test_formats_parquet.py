"""Records as Parquet: what is in the table is what is on record, a row group at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow", reason="the parquet extra is not installed")

from pyarrow.parquet import ParquetFile

from service.formats import Attachment, ImportedRecord, Task, parquet
from strategy.record import Device, ErrorKind, Phase
from strategy.target import Target
from strategy.workload import Input, Workload

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")
TASK = Task(
    workload=Workload("filter", (Input("data", "float32[64,64]"),)), target=TARGET,
    implementation="filter_tiled.cpu", version="1.0",
)
BARE = ImportedRecord(
    source="autotvm", task=TASK, config_key="{}", error=ErrorKind.COMPILE, message="no é",
    device_model="v100",
)
FULL = ImportedRecord(
    source="plevel", task=TASK, config_key='{"x":3}', samples_s=(3e-3, 1e-3, 2e-3), phase=Phase.CONFIRM,
    measured_at=1.7e9, device=Device(identity="h/cpu:0", slot="cpu:0", model="A", target=TARGET),
    environment={"tvm": "0.27"}, worker="w", run=7, seed=2**40, session="s", prepare_s=0.5, build_s=0.1,
    check_s=0.2, run_s=0.3, code_digest="c",
)


def opened(*items: ImportedRecord | Attachment) -> ParquetFile:
    return ParquetFile(io.BytesIO(b"".join(parquet.write(items))))


def test_a_row_has_all_that_the_columns_say() -> None:
    bare, full = opened(BARE, Attachment(what="space", key="k", text="{}"), FULL).read().to_pylist()
    assert list(full) == list(parquet.COLUMNS)
    assert full == {
        "workload": TASK.workload.key, "op": "filter", "target": TARGET.key,
        "implementation": "filter_tiled.cpu", "version": "1.0", "config": '{"x":3}',
        "phase": "confirm", "error": None, "message": None, "median_s": 2e-3,
        "samples_s": [3e-3, 1e-3, 2e-3], "prepare_s": 0.5, "build_s": 0.1, "check_s": 0.2,
        "run_s": 0.3, "measured_at": 1.7e9, "device_model": "A", "device": "h/cpu:0",
        "environment": '{"tvm":"0.27"}', "worker": "w", "run": 7, "seed": 2**40, "session": "s",
        "source": "plevel", "code_digest": "c",
    }
    known = {name: value for name, value in bare.items() if value not in (None, [], 0.0)}
    assert known == {
        "workload": TASK.workload.key, "op": "filter", "target": TARGET.key, "config": "{}",
        "implementation": "filter_tiled.cpu", "version": "1.0", "phase": "search",
        "error": "compile", "message": "no é", "device_model": "v100", "source": "autotvm",
    }


def test_rows_are_written_group_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP", 3)
    taken: list[int] = []

    def items() -> Iterator[ImportedRecord]:
        for i in range(7):
            taken.append(i)
            yield FULL

    pieces, after = [], []
    for piece in parquet.write(items()):
        pieces.append(piece)
        after.append(len(taken))
    assert after == [3, 6, 7, 7]  # a group is given away before the next is read
    metadata = ParquetFile(io.BytesIO(b"".join(pieces))).metadata
    assert [metadata.row_group(i).num_rows for i in range(3)] == [3, 3, 1]


def test_nothing_is_a_table_too() -> None:
    found = opened().read()
    assert found.num_rows == 0
    assert found.column_names == list(parquet.COLUMNS)
