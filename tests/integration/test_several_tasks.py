"""Exports of several tasks: what is written can be read again as the same records, or it is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.errors import InvalidError
from service.formats import Source, read
from service.records import exporter
from service.records.filter import Wanted
from service.records.importer import import_items
from service.store.db import Store
from service.store.tables import task
from tests.integration.test_import import DATA, items_of, records_of
from tests.integration.test_transfer import call

pytestmark = pytest.mark.in_turn("url")

__all__ = ["call"]  # a fixture
FILES = {
    "autotvm": "autotvm_0_2.log", "kernel_tuner": "kernel_tuner_cache.json",
    "metaschedule": "database_workload.json",
}


@pytest.fixture
def filled(store: Store) -> Store:
    for name in FILES.values():
        import_items(store, items_of(name))
    return store


def read_back(data: bytes, name: str = "") -> list[Any]:
    return list(read(Source(io.BytesIO(data), name)))


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", ["native", "autotvm", "metaschedule"])
def test_all_tasks_come_back(filled: Store, form: Any) -> None:
    wanted = Wanted(source=None if form == "native" else form)
    data = b"".join(exporter.export(filled, form, wanted))
    of = [r for name in FILES.values() for r in records_of(items_of(name))]
    expected = [r for r in of if form in ("native", r.source)]
    assert len({r.task.key for r in expected}) > (form != "metaschedule")
    back = read_back(data)
    assert {r.identity for r in records_of(back)} == {r.identity for r in expected}
    assert not [i for i in back if hasattr(i, "reason")]


def test_our_own_records_come_back_from_autotvm_s_lines(filled: Store) -> None:
    """Of other tools' records AutoTVM's lines keep the measurements."""
    wanted = Wanted(source="kernel_tuner")
    back = read_back(b"".join(exporter.export(filled, "autotvm", wanted)))
    expected = records_of(items_of(FILES["kernel_tuner"]))
    assert len(records_of(back)) == len({r.identity for r in expected})


def test_a_kernel_tuner_file_is_of_one_task(filled: Store) -> None:
    with pytest.raises(InvalidError, match=r"one task.*--task\): \d+, \d+"):
        exporter.export(filled, "kernel_tuner")
    with filled.read() as connection:
        tasks = connection.scalars(task.select().with_only_columns(task.c.id)).all()
    assert len(tasks) > 2
    for task_id in tasks:
        if task_id == tasks[-1]:
            with pytest.raises(InvalidError, match="cannot hold MetaSchedule's traces"):
                exporter.export(filled, "kernel_tuner", Wanted(task_id=task_id))
            continue
        items = list(exporter.export_items(filled, Wanted(task_id=task_id)))
        data = b"".join(exporter.export(filled, "kernel_tuner", Wanted(task_id=task_id)))
        back = read_back(data, "t4.json")
        assert not [i for i in back if hasattr(i, "reason")], back[-1]
        mine, theirs = records_of(items), records_of(back)
        assert [r.config_key for r in theirs] == [r.config_key for r in mine]
        assert [r.error is None for r in theirs] == [r.error is None for r in mine]
        assert {r.device_model for r in theirs} == {r.device_model or r.task.target.model for r in mine[:1]}


def test_kernel_tuner_s_own_comes_back_as_the_same_kernel(filled: Store) -> None:
    wanted = Wanted(source="kernel_tuner")
    back = read_back(b"".join(exporter.export(filled, "kernel_tuner", wanted)), "other.json")
    expected = records_of(items_of(FILES["kernel_tuner"]))
    (name,) = {r.task.implementation for r in expected}
    assert {r.task.implementation for r in records_of(back)} == {name}
    assert {r.device_model for r in records_of(back)} == {r.device_model for r in expected}
    assert len(records_of(back)) == len({r.identity for r in expected})


@pytest.mark.full
def test_the_command_line_refuses_what_matches_nothing(call: Callable[..., str], tmp_path: Path) -> None:
    database = ["--database", str(tmp_path / "p.db")]
    call("import", *(str(DATA / f) for f in (FILES["autotvm"], FILES["kernel_tuner"])), *database)
    out = tmp_path / "out"
    for form in ("native", "autotvm", "kernel_tuner", "metaschedule", "csv"):
        said = call("export", "--op", "nope", "--format", form, "-o", str(out), *database, code=1)
        assert "no record matches" in said
        assert "op nope" in said
        assert not out.exists()
    said = call("export", "--format", "metaschedule", "-o", str(out), *database, code=1)
    assert "source metaschedule" in said
    assert not out.exists()
    said = call("export", "--format", "kernel_tuner", *database, code=2)
    assert "--task" in said
    call("export", "--format", "kernel_tuner", "--source", "kernel_tuner", "-o", str(out), *database)
    summary = json.loads(call("import", str(out), "--database", str(tmp_path / "q.db"), "--json"))
    assert (summary["rejected"], summary["new"] > 0) == (0, True)
