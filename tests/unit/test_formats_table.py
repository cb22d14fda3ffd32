"""CSV: rows that a spreadsheet shows and does not compute."""

from __future__ import annotations

import csv
import io

import pytest

from service.formats import ImportedRecord, Task, table
from strategy.target import Target
from strategy.workload import Workload


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_text_is_no_formula(text: str) -> None:
    task = Task(
        workload=Workload("o", ()), target=Target.parse("llvm"), implementation=f"{text.strip()}i",
        version="1",
    )
    item = ImportedRecord(
        source="plevel", task=task, config_key="{}", samples_s=(0.5, 0.5), measured_at=-1.5,
        worker=text, session="plain", run=-3,
    )
    (row,) = csv.DictReader(io.StringIO(b"".join(table.write([item])).decode(), newline=""))
    assert row["worker"] == f"'{text}"
    assert row["implementation"].startswith("'")
    assert row["session"] == "plain"
    # Numbers stay numbers, negative ones too.
    assert (float(row["measured_at"]), int(row["run"])) == (-1.5, -3)
    assert float(row["median_s"]) == 0.5
