"""Other tools' results in the database: times as records, winners without a time as advice, apart from them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.formats import Source, Summary, native, read
from service.records import exporter
from service.records.filter import Wanted
from service.records.importer import import_items
from service.selection import candidate
from service.selection.database import RecordDatabase
from service.store.db import Store
from service.store.tables import advice, best, history, record
from strategy.select import Evidence, Level, Selection, choose, select
from strategy.select import Reason as Why
from strategy.target import Target
from strategy.workload import Workload
from tests.integration.derived import assert_derived

DATA = Path(__file__).parents[1] / "data" / "foreign"
MOE = "E=128,N=384,device_name=NVIDIA_H20-3e.json"
ROW = Workload("vllm.fused_moe", (), {"E": 128, "N": 384, "M": 512})
H20 = Target.parse("cuda -arch=sm_90 -model='NVIDIA H20-3e'")


def put(store: Store, name: str, data: bytes | None = None, **more: Any) -> Summary:
    given = (DATA / name).read_bytes() if data is None else data
    model = {"device_model": "NVIDIA H100"} if "autotune" in name else {}
    items = read(Source(io.BytesIO(given), name), **model)
    return import_items(store, items, **more)


def asked(store: Store, target: Target, workload: Workload = ROW, **more: Any) -> Selection:
    with store.read() as connection:
        database = RecordDatabase(connection, **more)
        known = candidate.gather(database, workload, target, None, foreign=True, field="workload")
        return select(workload, target, database, offered=known)


def count(store: Store, table: sa.Table) -> int:
    with store.read() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def samples() -> list[str]:
    return sorted(p.name for p in DATA.iterdir() if p.name != "README.md")


@pytest.fixture
def full(store: Store) -> Store:
    for name in samples():
        assert put(store, name).rejected == 0
    return store


def test_advice_is_apart_from_times(full: Store) -> None:
    assert (count(full, advice), count(full, record)) == (3 + 2 + 1, 4 + 2 + 3 + 3)
    with full.read() as connection:
        timed = connection.scalars(sa.select(record.c.source).distinct()).all()
        advised = connection.scalars(sa.select(advice.c.source).distinct()).all()
        ids = set(connection.scalars(sa.select(advice.c.task_id)))
        for table in (best, history):
            assert not ids & set(connection.scalars(sa.select(table.c.task_id)))
    assert sorted(timed) == ["aiter", "inductor", "triton", "tunableop"]
    assert sorted(advised) == ["flashinfer", "helion", "vllm"]
    assert_derived(full)


def test_nothing_is_imported_twice_and_an_export_carries_all(full: Store) -> None:
    for name in samples():
        assert put(full, name).new == 0
    exported = b"".join(exporter.export(full, "native"))
    again = import_items(full, read(Source(io.BytesIO(exported))))
    assert (again.new, again.known, again.rejected) == (0, 18, 0)
    other = import_items(full, read(Source(io.BytesIO(exported))), namespace="other")
    assert other.new == 18
    back = b"".join(exporter.export(full, "native", Wanted(namespace="other")))
    assert sorted(back.splitlines()) == sorted(exported.splitlines())
    # Tables of records have none.
    assert b"vllm" not in b"".join(exporter.export(full, "csv"))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"source": "vllm"}, 3), ({"implementation": "helion:kernel"}, 1), ({"error": "any"}, 0),
        ({"op": "vllm.fused_moe", "since": 1.0}, 0), ({"target": "cuda/sm_100"}, 2),
    ],
)  # fmt: skip
def test_filters_hold_for_advice(full: Store, wanted: dict[str, Any], found: int) -> None:
    assert len(list(exporter.export_advice(full, Wanted(**wanted)))) == found


def test_selection_answers_from_advice_and_says_so(full: Store) -> None:
    found = asked(full, H20)
    assert (found.reason, found.level) == (Why.ADVISED, Level.MODEL)
    assert found.implementation == "vllm:fused_moe"
    assert found.config["BLOCK_SIZE_N"] == 128
    assert "without a time" in found.explanation
    assert all(r.estimate is None for r in found.rivals)
    sibling = asked(full, Target.parse("cuda -arch=sm_90 -model='NVIDIA H200'"))
    assert (sibling.reason, sibling.level) == (Why.ADVISED, Level.TARGET)
    assert "another model (NVIDIA H20-3e)" in sibling.explanation
    assert asked(full, Target.parse("cuda -arch=sm_80")).level is Level.TRANSFERRED
    # A client that applies the rule itself has the same evidence.
    with full.read() as connection:
        database = RecordDatabase(connection)
        known = database.foreign(ROW, H20)
        evidence = Evidence.read(database, ROW, H20, None)
    assert choose(ROW, H20, known, evidence.measured, advised=evidence.advised) == found


def test_a_time_outranks_advice_and_newer_advice_the_older(full: Store) -> None:
    put(full, MOE, b'{"512": {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 256}}')
    assert asked(full, H20).config["BLOCK_SIZE_N"] == 256
    line = {
        "kind": "foreign", "tool": "vllm", "kernel": "fused_moe", "attrs": ROW.attrs,
        "device_model": "NVIDIA H100",
        "candidates": [{"config": {"BLOCK_SIZE_M": 16}, "samples_s": [1e-4]}],
    }  # fmt: skip
    put(full, "x.ndjson", json.dumps(line).encode())
    found = asked(full, H20)
    assert (found.reason, found.level) == (Why.MEASURED, Level.TARGET)
    assert found.config["BLOCK_SIZE_M"] == 16


def test_advice_is_of_one_namespace_and_of_its_time(full: Store) -> None:
    with pytest.raises(Exception, match="not installed"):
        asked(full, H20, namespace="other")
    with full.read() as connection:
        database = RecordDatabase(connection, as_of=1.0)
        assert database.advised(ROW, H20, None) == []


def test_an_own_line_without_samples_is_no_advice(store: Store) -> None:
    put(store, MOE)
    (line, *_) = list(exporter.export_items(store)) or [b""]
    exported = b"".join(exporter.export(store, "native")).splitlines()
    bare = exported[1].replace(b'"advice":true,', b"")
    assert bare != exported[1]
    (rejected,) = native.read(Source(io.BytesIO(bare)))
    assert "exactly one" in rejected.detail
    assert line == b""
