"""Whole logs from the field, where PLEVEL_TEST_DATA names a folder that has them."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from service.formats import (
    Attachment,
    ImportedRecord,
    Rejected,
    Source,
    autotvm,
    metaschedule,
    native,
    read,
)

FOLDER = os.environ.get("PLEVEL_TEST_DATA", "")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="PLEVEL_TEST_DATA names no folder with tophub, kernel_tuner and metaschedule"
)


def content(name: str) -> bytes:
    return (Path(FOLDER) / name).read_bytes()


def items_of(name: str) -> list[Any]:
    return list(read(Source(io.BytesIO(content(name)), name)))


@pytest.mark.parametrize(
    ("name", "count"),
    [("cuda_v0.01.log", 188), ("cuda_v0.10.log", 825), ("llvm_v0.04.log", 35)],
)
def test_every_line_of_tophub_is_read_and_written_as_it_was(name: str, count: int) -> None:
    items = items_of(f"tophub/{name}")
    assert [type(i) for i in items] == [ImportedRecord] * count
    lines = [x for x in content(f"tophub/{name}").splitlines(keepends=True) if x.startswith(b"{")]
    written = list(autotvm.write(items))
    assert [json.loads(x) for x in written] == [json.loads(x) for x in lines]
    if name != "cuda_v0.01.log":
        assert written == lines
    # Only lines that are in it twice are the same record.
    assert len({i.identity for i in items}) == len(set(lines))
    ours = b"".join(native.write(items))
    assert list(native.read(Source(io.BytesIO(ours)))) == items


def test_kernel_tuners_cache_and_t4_say_the_same() -> None:
    cache = items_of("kernel_tuner/convolution_A100.json.gz")
    t4 = items_of("kernel_tuner/convolution_A100_T4.json.gz")
    assert [Counter(map(type, items)) for items in (cache, t4)] == [
        {ImportedRecord: 4362, Attachment: 1}
    ] * 2
    assert cache[0] == t4[0]
    said = [
        {r.config_key: (r.samples_s, r.error, r.measured_at) for r in items[1:]}
        for items in (cache, t4)
    ]
    assert said[0] == said[1]
    errors = Counter(r.error for r in cache[1:])
    assert (errors["compile"], errors["runtime"]) == (6, 155)
    whole = gzip.decompress(content("kernel_tuner/convolution_A100.json.gz"))
    left_open = whole.rstrip()[:-2] + b","
    assert list(read(Source(io.BytesIO(left_open)))) == cache


def test_metaschedules_pair_comes_back_byte_for_byte() -> None:
    workloads = content("metaschedule/database_workload.json")
    records = content("metaschedule/database_tuning_record.json")
    items = list(read(Source(io.BytesIO(workloads + records))))
    assert Counter(map(type, items)) == {ImportedRecord: 95, Attachment: 1}
    written = {"workload": b"", "tuning_record": b""}
    for line in metaschedule.write(i for i in items if not isinstance(i, Rejected)):
        assert not isinstance(line, Rejected)
        written[line[0]] += line[1]
    assert written == {"workload": workloads, "tuning_record": records}
