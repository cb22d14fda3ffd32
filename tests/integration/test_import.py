"""Logs into the database and out of it again: nothing twice, nothing lost, nothing half-done."""

from __future__ import annotations

import io
import json
import math
import os
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from service.dashboard.query import op as op_query
from service.formats import (
    Attachment,
    Format,
    ImportedRecord,
    Joined,
    Reason,
    Rejected,
    Source,
    Task,
    admitted,
    autotvm,
    grouped,
    metaschedule,
    native,
    read,
)
from service.formats.entry import RejectError, checked, config_key
from service.queue import fleet
from service.records import best as ranks
from service.records import exporter, importer
from service.records.batch import COLUMNS
from service.records.filter import Wanted
from service.records.importer import SWITCH_S, import_items
from service.records.retention import Doubtful, purge_doubtful
from service.selection.candidate import normal
from service.selection.database import RecordDatabase
from service.store import migration
from service.store.db import Store
from service.store.sql import add_rows
from service.store.tables import attachment, best, device, record, task
from strategy.record import REFUTING, Device, ErrorKind, Phase, estimate
from strategy.select import Level, Selection, select
from strategy.select import Reason as Why
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload
from tests.integration.scene import FAST, TARGET, WORKLOAD, Scene, configs, timed
from tests.integration.scene import device as describe

pytestmark = pytest.mark.in_turn("url")

DATA = Path(__file__).parents[1] / "data" / "formats"
FILES = sorted(p.name for p in DATA.iterdir() if p.name != "database_tuning_record.json")
HOST = "host-a/cpu:0-1"
REAL = os.environ.get("PLEVEL_TEST_DATA", "")
SPACE = ConfigSpace([Knob("x", range(12)), Knob("y", range(12))])


def items_of(name: str) -> list[Any]:
    names = ("database_workload.json", "database_tuning_record.json")
    group = [DATA / n for n in names] if name == names[0] else [DATA / name]
    return list(read(Source(Joined(group), name)))


def records_of(items: list[Any]) -> list[ImportedRecord]:
    return [i for i in items if isinstance(i, ImportedRecord)]


def table(store: Store, which: sa.Table) -> list[Any]:
    with store.read() as c:
        return list(c.execute(sa.select(which)))


def count(store: Store, which: sa.Table = record) -> int:
    with store.read() as c:
        return c.scalar(sa.select(sa.func.count()).select_from(which)) or 0


def bests(store: Store) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The table of the best, by what its rows stand for instead of their ids."""
    with store.read() as c:
        tasks = {t.id: (t.implementation, t.version, t.workload_id) for t in c.execute(sa.select(task))}
        rows = c.execute(sa.select(best)).all()
        names = {str(d.id): d.identity for d in c.execute(sa.select(device))}
    return {
        (tasks[r.task_id], r.scope, names[r.scope_value] if r.scope == "device" else r.scope_value):
        (r.config_digest, r.phase, r.median_s, r.low_s, r.high_s, r.samples)
        for r in rows
    }


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    """Another database."""
    url = f"sqlite:///{tmp_path / 'other.db'}"
    migration.upgrade(url)
    opened = Store(url)
    yield opened
    opened.close()


def made(i: int, samples: tuple[float, ...] = (1.0,), **values: Any) -> ImportedRecord:
    """A record of plevel's own: configuration `i`, measured at instant `i`."""
    of = Task(
        workload=WORKLOAD, target=TARGET, implementation=FAST.implementation, version="1.0",
        space=values.pop("space", ""),
    )
    key = Config({"x": i % 12, "y": i // 12}).key
    given = {"samples_s": samples, "measured_at": float(i)} | values
    return ImportedRecord(**({"source": "plevel", "task": of, "config_key": key} | given))


def test_batches_that_take_long_become_smaller(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports to their tasks wait meanwhile."""
    sizes: list[int] = []
    write = importer.Importer.store

    def note(self: importer.Importer, pending: Any, also: Any = None) -> frozenset[bytes]:
        sizes.append(pending.count)
        monkeypatch.setattr(ranks, "LOCKED_S", 0.0 if len(sizes) < 5 else math.inf)
        return write(self, pending, also)

    monkeypatch.setattr(importer, "LEAST", 2)
    monkeypatch.setattr(importer.Importer, "store", note)
    import_items(store, [made(n) for n in range(34)], batch=8, ahead=False)
    assert sizes == [8, 4, 2, 2, 2, 4, 8, 4]
    assert count(store) == 34


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_once(store: Store, name: str) -> None:
    items = items_of(name)
    records = records_of(items)
    identities = {r.identity for r in records}
    bad = sum(isinstance(i, Rejected) for i in items)
    aside: list[Rejected] = []
    summary = import_items(store, items, aside.append)
    assert summary.to_json() == {
        "read": len(records) + bad, "new": len(identities), "known": len(records) - len(identities),
        "rejected": bad, "reasons": summary.to_json()["reasons"],
    }
    assert len(aside) == bad
    assert count(store) == len(identities) > 0
    before = bests(store)
    again = import_items(store, items)
    assert (again.new, again.known) == (0, len(records))
    assert count(store) == len(identities)
    assert bests(store) == before


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FILES)
def test_what_comes_out_is_what_came_in(store: Store, other: Store, name: str) -> None:
    items = items_of(name)
    seen: set[str] = set()
    distinct = [r for r in records_of(items) if not (r.identity in seen or seen.add(r.identity))]
    import_items(store, items)
    out = list(exporter.export_items(store))
    assert records_of(out) == distinct
    data = b"".join(exporter.export(store, "native"))
    assert import_items(other, native.read(Source(io.BytesIO(data)))).new == len(distinct)
    assert b"".join(exporter.export(other, "native")) == data
    assert bests(other).values() != {}
    if distinct[0].source == "autotvm":
        assert b"".join(exporter.export(store, "autotvm")) == b"".join(autotvm.write(distinct))


def test_metaschedules_pair_comes_out_byte_for_byte(store: Store) -> None:
    import_items(store, items_of("database_workload.json"))
    names = ("database_workload.json", "database_tuning_record.json")
    written = b"".join(exporter.export(store, "metaschedule"))
    assert written == b"".join((DATA / n).read_bytes() for n in names)


def test_what_is_purged_during_an_export_of_metaschedules_pair_shifts_no_record(store: Store) -> None:
    """Records name their modules by the number of the line, and are read after these are written."""
    for n, text in enumerate(("Zmlyc3Q=", "c2Vjb25k", "dGhpcmQ=")):
        module = metaschedule.attach(str(n), text)
        of = Workload("metaschedule.module", (), {"structural_hash": str(n), "module": module.key})
        record = ImportedRecord(
            source="metaschedule", config_key="{}", samples_s=(1.0,), extra=b"%d" % n, measured_at=float(1 + n),
            task=Task(workload=of, target=TARGET, implementation="metaschedule:trace", version="1.0"),
        )
        import_items(store, [module, record])
    parts = exporter.export(store, "metaschedule")
    modules = [next(parts) for _ in range(3)]
    with store.write() as c:
        purge_doubtful(c, Doubtful(until=1.5), "it was wrong")
    assert [*parts] == [b"[1,1]\n", b"[2,2]\n"]
    assert len(set(modules)) == 3


def test_only_what_is_asked_for_comes_out(store: Store) -> None:
    for name in ("autotvm_0_2.log", "kernel_tuner_cache.json"):
        import_items(store, items_of(name))
    wanted = Wanted(source="kernel_tuner", until=1e9)
    assert {r.source for r in records_of(list(exporter.export_items(store, wanted)))} <= {
        "kernel_tuner"
    }
    wanted = Wanted(op="autotvm.conv2d_nchw")
    found = records_of(list(exporter.export_items(store, wanted)))
    assert {r.task.workload.op for r in found} == {"autotvm.conv2d_nchw"}
    lines = b"".join(exporter.export(store, "csv", wanted)).decode().splitlines()
    assert len(lines) == 1 + len(found)


def expected_best(rows: list[ImportedRecord]) -> dict[tuple[str, str], tuple[str, str, float]]:
    """The best per model and target, of all records at once and in no clever way."""
    places = defaultdict(list)
    for r in rows:
        model = r.device.model if r.device else r.device_model
        places["target", ""].append(r)
        if model:
            places["model", model].append(r)
    found = {}
    for place, of_place in places.items():
        wrong = {r.config_digest for r in of_place if r.error in REFUTING}
        for phase in (Phase.CONFIRM, Phase.SEARCH):
            pools = defaultdict(list)
            for r in of_place:
                if r.error is None and r.phase is phase and r.config_digest not in wrong:
                    pools[r.config_digest] += r.samples_s
            if pools:
                lowest = min((statistics.median(p), d) for d, p in pools.items())
                found[place] = (lowest[1], phase.value, lowest[0])
                break
    return found


@pytest.mark.sample(4)
@pytest.mark.parametrize("batch", [1, 3, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_is_kept_however_records_come(store: Store, batch: int, seed: int) -> None:
    rng = random.Random(seed)
    rows = []
    for i in range(60):
        failed = rng.random() < 0.15
        rows.append(
            made(
                rng.randrange(8),
                () if failed else tuple(rng.choice((1.0, 2.0, 3.0)) for _ in range(rng.randint(1, 3))),
                error=rng.choice((*REFUTING, ErrorKind.COMPILE)) if failed else None,
                phase=rng.choice((Phase.SEARCH, Phase.SEARCH, Phase.CONFIRM)),
                device_model=rng.choice(("", "Model A", "Model B")), measured_at=float(i),
            )
        )
    import_items(store, rows, batch=batch)
    found = {k[1:]: v[:3] for k, v in bests(store).items()}
    assert found == expected_best(rows)


def test_devices_are_told_apart_and_models_are_shared(store: Store) -> None:
    place = Device(
        identity="m/cuda:0", slot="cuda:0", model="Model A", target=TARGET, fingerprint={"sm": 90}
    )
    import_items(
        store, [made(1, (3.0,), device=place), made(2, (2.0,), device_model="Model A")]
    )
    assert {k[1:]: v[2] for k, v in bests(store).items()} == {
        ("device", "m/cuda:0"): 3.0, ("model", "Model A"): 2.0, ("target", ""): 2.0,
    }
    out = records_of(list(exporter.export_items(store)))
    assert [(r.device, r.device_model) for r in out] == [(place, ""), (None, "Model A")]


def test_an_identity_with_another_description_is_another_device(store: Store) -> None:
    before, now = (
        Device(identity="m/cuda:0", slot="cuda:0", model=model, target=TARGET) for model in ("Model A", "Model B")
    )
    import_items(store, [made(1, (3.0,), device=before), made(2, (2.0,), device=now)])
    assert {k[2]: v[2] for k, v in bests(store).items() if k[1] == "model"} == {"Model A": 3.0, "Model B": 2.0}


def test_an_interrupted_import_leaves_whole_batches_and_is_run_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "BATCH", 10)
    monkeypatch.setattr(importer, "ALONE", 12)
    stored = 20 if store.is_sqlite else 24
    rows = [made(i) for i in range(50)]
    switching: list[float] = []

    def broken() -> Iterator[ImportedRecord]:
        yield from rows[:25]
        switching.append(sys.getswitchinterval())
        raise ConnectionResetError("the client has gone")

    usual = sys.getswitchinterval()
    with pytest.raises(ConnectionResetError):
        import_items(store, broken())
    assert switching == [pytest.approx(usual if store.is_sqlite else SWITCH_S)]
    assert sys.getswitchinterval() == usual
    assert count(store) == stored
    summary = import_items(store, rows, batch=10)
    assert (summary.new, summary.known) == (50 - stored, stored)
    assert count(store) == 50


def test_the_last_of_concurrent_imports_restores_the_switch_interval() -> None:
    usual = sys.getswitchinterval()
    first, second = importer._switching(), importer._switching()
    for step, expected in (
        (first.__enter__, importer.SWITCH_S), (second.__enter__, importer.SWITCH_S),
        (lambda: first.__exit__(None, None, None), importer.SWITCH_S),
        (lambda: second.__exit__(None, None, None), usual),
    ):
        step()
        assert sys.getswitchinterval() == pytest.approx(expected)


def test_a_batch_that_fails_leaves_nothing_behind(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.records import importer

    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(importer.best, "settle", fail)
        with pytest.raises(OSError, match="no space"):
            import_items(store, [made(1)])
    assert (count(store), count(store, task)) == (0, 0)
    assert import_items(store, [made(1)]).new == 1


@pytest.mark.parametrize("count_of", [15, 150], ids=["few", "many"])
def test_a_batch_that_meets_a_row_of_another_transaction_is_stored_again(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch, count_of: int
) -> None:
    from service.records import importer

    store, known, asked = Store(postgres_copy), importer.ask_known, []

    def late(connection: sa.Connection, ask: Any, table: sa.Table, identities: Any) -> Any:
        asked.append(table)
        return [] if len(asked) == 1 else known(connection, ask, table, identities)

    rows = [made(i) for i in range(count_of)]
    import_items(store, rows[:10])
    monkeypatch.setattr(importer, "ask_known", late)
    assert (import_items(store, rows).new, count(store), len(asked)) == (count_of - 10, count_of, 2)
    store.close()


def test_imports_at_the_same_time_agree(store: Store) -> None:
    rows = [made(i % 40, (1.0 + i,), measured_at=float(i), seed=i % 3) for i in range(120)]
    rows += records_of(items_of("autotvm_0_2.log"))
    orders = [random.Random(seed).sample(rows, len(rows)) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda order: import_items(store, order, batch=7), orders))
    assert sum(s.new for s in done) == count(store) == len({r.identity for r in rows})
    of_ours = {k[1:]: v[:3] for k, v in bests(store).items() if k[0][0] == FAST.implementation}
    assert of_ours == expected_best(rows[:120])


@pytest.mark.parametrize("count", [19, 280], ids=["few", "many"])
def test_texts_come_back_whatever_they_hold(store: Store, count: int) -> None:
    texts = [
        "", "\t", "\\", r"\N", r"\.", "a\nb\r\n", r"\x00 \t", "é\u2028🙂", '"quoted" {json}', "\x7f\x1b[0m",
        r"\u0000", r"\ud800", r"\\ud83d\ude00", "\b\f\x01", r"\n", '\\"\\', "a\n\\.\n", "null", ", ,",
    ]
    rows = [
        made(i, (), error=ErrorKind.RUNTIME, message=f"{texts[i % len(texts)]}{i}", worker=texts[i % len(texts)])
        for i in range(count)
    ]
    assert import_items(store, rows).new == count
    assert {(r.message, r.origin_worker) for r in table(store, record)} == {(r.message, r.worker or None) for r in rows}
    exported = b"".join(exporter.export(store, "native"))
    assert import_items(store, native.read(Source(io.BytesIO(exported)))).known == count


@pytest.mark.parametrize("times", [1, 20], ids=["few", "many"])
def test_numbers_come_back_as_they_were(store: Store, times: int) -> None:
    numbers = [1e16, 10**16, 1.5e17, -1e18, 1e22, 1e300, 5e-324, 0.0, -0.0, 0, 2.0, 2**63 - 1, 1e15, "1e16"]
    named = {f"n{i}": n for i, n in enumerate(numbers)}
    of = msgspec.structs.replace(made(0).task, workload=msgspec.structs.replace(WORKLOAD, attrs={"n": 1e16, "m": 1}))
    place = Device(identity="d", slot="s", model="m", target=TARGET, fingerprint=named | {"n8": 0.0})
    rows = [
        made(i, config_key=config_key({"x": n, "e": i}), task=of, environment={"e": 1e17}, device=place)
        for i, n in enumerate(numbers * times)
    ]
    data = b"".join(native.write(rows))
    assert import_items(store, native.read(Source(io.BytesIO(data)))).new == len(rows)
    out = b"".join(exporter.export(store, "native"))
    came, went = ([json.dumps(json.loads(line), sort_keys=True) for line in d.splitlines()] for d in (out, data))
    assert came == went
    assert import_items(store, native.read(Source(io.BytesIO(out)))).known == len(rows)


@pytest.mark.parametrize("count", [3, 150], ids=["few", "many"])
def test_a_row_that_is_there_is_the_databases_error(store: Store, count: int) -> None:
    import_items(store, [made(i) for i in range(count)])
    stored = [tuple(r._mapping[c.name] for c in COLUMNS) for r in table(store, record)]
    as_text = [tuple(json.dumps(v) if isinstance(v, (dict, list)) else v for v in row) for row in stored]
    with pytest.raises(sa.exc.IntegrityError) as raised, store.write() as c:
        add_rows(c, COLUMNS, as_text, record.c.recorded_at)
    if not store.is_sqlite:
        assert getattr(raised.value.orig, "sqlstate", None) == "23505"
    assert len(table(store, record)) == count


def test_what_a_database_cannot_keep_is_put_aside(store: Store) -> None:
    features = [f"+{'f' * 100}{i}" for i in range(30)]
    huge = Target.parse({"kind": "llvm", "mcpu": "x", "mattr": features})
    good = made(1)
    items = [
        good,
        made(2, space="d" * 65),
        msgspec.structs.replace(good, task=msgspec.structs.replace(good.task, target=huge)),
        made(3, environment={"n": 2**70}),
        made(4, device=Device(identity="d", slot="s", model="m" * 3000, target=TARGET)),
        Attachment(what="space", key="0" * 8, text=json.dumps(SPACE.to_json())),
        Attachment(what="module", key="k" * 65, text=""),
        msgspec.structs.replace(good, task=msgspec.structs.replace(good.task, plevel=2**40)),
    ]
    aside: list[Rejected] = []
    summary = import_items(store, admitted(items), aside.append)
    assert (summary.new, summary.rejected) == (1, 7)
    assert [a.reason for a in aside] == [
        Reason.SPACE, Reason.TARGET, Reason.FIELD, Reason.FIELD, Reason.SPACE, Reason.FIELD,
        Reason.FIELD,
    ]
    assert all(a.text for a in aside)


def test_numbers_without_json_that_a_database_holds_are_text(sqlite_copy: str, tmp_path: Path) -> None:
    """Older versions stored them in SQLite's files."""
    store = Store(sqlite_copy)
    scene = Scene.make(store)
    scene.enqueue(configs(2))
    held = scene.leased(scene.register())
    scene.report(held, [timed(e) for e in held.job.entries])
    with store.write() as c:
        for table in ("record", "best", "history"):
            change = sa.text(f"UPDATE {table} SET config = :bad WHERE config LIKE :good")
            c.execute(change, {"bad": '{"x":NaN,"y":-Infinity,"z":1e400}', "good": '%"x":1,%'})
    with store.read() as c:
        answer = select(WORKLOAD, TARGET, RecordDatabase(c), offered=(FAST,))
    assert answer.implementation == FAST.implementation
    for form in ("native", "csv"):
        data = b"".join(exporter.export(store, form))
        assert data.count(b"-Infinity") == 1 and b"NaN" in data and b'"1e400"' in data
    other = Store(f"sqlite:///{tmp_path / 'other.db'}")
    migration.upgrade(str(other.url))
    exported = b"".join(exporter.export(store, "native"))
    assert import_items(other, native.read(Source(io.BytesIO(exported)))).new == 2
    assert import_items(store, [made(1), made(3)]).new == 2
    store.close()
    other.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400"])
def test_a_number_that_is_none_is_put_aside_and_spoils_nothing(store: Store, number: str) -> None:
    lines = (DATA / "autotvm_0_2.log").read_text().splitlines()
    good = next(line for line in lines if '"ot", ' in line)
    data = json.loads(good)
    next(knob for knob in data["config"]["entity"] if knob[1] == "ot")[2] = "HERE"
    bad = json.dumps(data).replace('"HERE"', number)
    aside: list[Rejected] = []
    summary = import_items(store, read(Source(io.BytesIO(f"{bad}\n{good}\n".encode()))), aside.append)
    assert (summary.new, [a.reason for a in aside]) == (1, [Reason.CONFIG])
    assert len(b"".join(exporter.export(store, "native")).splitlines()) == 2


@pytest.mark.parametrize("of_step", [False, True])
def test_a_task_has_finite_numbers_and_no_sign_of_zero(of_step: bool) -> None:
    def with_attrs(**attrs: Any) -> Task:
        given = {"epilogue": (EpilogueStep("step", (None,), attrs),)} if of_step else {"attrs": attrs}
        return msgspec.structs.replace(made(0).task, workload=msgspec.structs.replace(WORKLOAD, **given))

    for number in (math.inf, -math.inf, math.nan):
        with pytest.raises(RejectError, match="cannot be stored"):
            checked(with_attrs(n=[1.0, {"m": number}]))
    zeros = with_attrs(n=[-0.0, {"m": -0.0}], text="-0.0", i=0)
    for unsigned in (checked(zeros).workload, normal(zeros.workload)):
        assert unsigned.key == with_attrs(n=[0.0, {"m": 0.0}], text="-0.0", i=0).workload.key


def test_a_space_that_was_lost_is_found_again(store: Store) -> None:
    rows = [made(1, space=SPACE.digest)]
    import_items(store, rows)
    assert table(store, task)[0].space is None
    space = Attachment(what="space", key=SPACE.digest, text=json.dumps(SPACE.to_json()))
    import_items(store, [space, made(2, space=SPACE.digest)])
    assert [t.space for t in table(store, task)] == [SPACE.to_json()]
    assert count(store, attachment) == 1
    out = list(exporter.export_items(store))
    assert isinstance(out[0], Attachment)
    assert (out[0].what, out[0].key) == ("space", SPACE.digest)


def test_what_was_measured_here_is_known_when_it_comes_back(store: Store, other: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(5))
    held = scene.leased(scene.register())
    scene.report(held, [timed(e) for e in held.job.entries])
    data = b"".join(exporter.export(store, "native"))
    items = list(native.read(Source(io.BytesIO(data))))
    assert [type(i) for i in items] == [Attachment] + [ImportedRecord] * 5
    assert import_items(store, items).known == 5
    assert import_items(other, items).new == 5
    assert b"".join(exporter.export(other, "native")) == data
    first = {k[1:]: v for k, v in bests(store).items()}
    assert {k[1:]: v for k, v in bests(other).items()} == first
    with other.read() as c:
        answer = select(WORKLOAD, TARGET, RecordDatabase(c), offered=(FAST,))
    assert answer.reason is Why.MEASURED


def test_what_a_renamed_device_measured_is_known_when_it_comes_back(store: Store) -> None:
    scene = Scene.make(store)
    new = "host-b/cpu:0-1"

    def measure(tried: list[Config], identity: str) -> None:
        scene.enqueue(tried)
        held = scene.leased(scene.register(describe(identity)), identity)
        scene.report(held, [timed(e) for e in held.job.entries])

    measure(configs(3), HOST)
    with store.write() as c:
        fleet.rename(c, HOST, new)
    measure(configs(7)[3:], new)
    items = list(native.read(Source(io.BytesIO(b"".join(exporter.export(store, "native"))))))
    measured = [i for i in records_of(items) if i.config_key in {c.key for c in configs(7)[3:]}]
    assert import_items(store, measured).known == len(measured) == 4


def test_a_log_that_is_imported_again_brings_no_device_back(store: Store) -> None:
    items = [made(i, device=describe(f"{host}/cpu:0")) for i, host in enumerate("ab")]
    assert import_items(store, items).new == 2
    with store.write() as c:
        fleet.rename(c, "a/cpu:0", "c/cpu:0")
    assert import_items(store, [*items, made(2, device=describe("b/cpu:0"))]).known == 2
    assert {d.identity for d in table(store, device)} == {"b/cpu:0", "c/cpu:0"}


@pytest.mark.parametrize("count", [3, 150], ids=["few", "many"])
def test_texts_are_encoded_as_the_connection_is(url: str, count: int) -> None:
    store = Store(url if url.startswith("sqlite") else f"{url}&client_encoding=LATIN1")
    import_items(store, [made(i, worker="é°ü") for i in range(count)])
    store.close()
    reader = Store(url)
    assert {r.origin_worker for r in table(reader, record)} == {"é°ü"}
    reader.close()


def test_attempts_that_nobody_can_tell_apart_are_all_kept(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue([configs(1)[0]] * 3)
    held = scene.leased(scene.register())
    accepted = scene.report(held, [timed(e) for e in held.job.entries])
    assert accepted.accepted == 3
    assert len(scene.records()) == 3


# AutoTVM's own rule, over its own logs


def apply_history_best(lines: list[bytes]) -> Any:
    """The rule of `tvm.autotvm.ApplyHistoryBest`, as TVM wrote it (`dispatcher.py`).

    Returns a function of target and task: the mean cost of the configuration that it applies.
    """
    by_model: dict[tuple[str, str], float] = {}
    by_key: dict[tuple[str, str], float] = {}
    for line in lines:
        data = json.loads(line)
        spec, name, args, kwargs = data["input"]
        costs, error_no = data["result"][:2]
        if error_no:
            continue
        cost = sum(costs) / len(costs)
        of = json.dumps([name, args, kwargs])
        target = Target.parse(spec)
        for key in target.keys:
            by_key[key, of] = min(by_key.get((key, of), math.inf), cost)
        if target.model and target.model != "unknown":
            by_model[target.model, of] = min(by_model.get((target.model, of), math.inf), cost)

    def query(target: Target, of: str) -> float | None:
        if (target.model, of) in by_model:
            return by_model[target.model, of]
        return next((by_key[k, of] for k in target.keys if (k, of) in by_key), None)

    return query


def decided_as_tvm(store: Store, content: bytes, asked: list[str]) -> int:
    """Compare every workload of a log on every target asked; return how many had rivals."""
    lines = [x for x in content.splitlines() if x.startswith(b"{")]
    lines = [x for x in lines if json.loads(x).get("version") == 0.2]
    items = list(autotvm.read(Source(io.BytesIO(b"\n".join(lines)))))
    pairs = [(i, x) for i, x in zip(items, lines, strict=True) if isinstance(i, ImportedRecord)]
    query = apply_history_best([x for _, x in pairs])
    rivals: dict[Workload, dict[str, str]] = defaultdict(dict)
    for item, line in pairs:
        _, name, args, kwargs = json.loads(line)["input"]
        rivals[item.task.workload][f"autotvm:{name}"] = json.dumps([name, args, kwargs])
    contested = 0
    with store.read() as c:
        database = RecordDatabase(c)
        for spec in asked:
            target = Target.parse(spec)
            for workload, names in rivals.items():
                offered = database.foreign(workload, target)
                costs = {n: cost for n, of in names.items() if (cost := query(target, of)) is not None}
                if not costs:
                    continue
                answer = select(workload, target, database, policy="tvm", offered=offered)
                lowest = min(costs.values())
                assert costs[answer.implementation] == lowest, (workload, target)
                assert answer.reason is Why.MEASURED
                contested += len(costs) > 1
    return contested


def test_direct_and_winograd_are_decided_as_tvm_did(store: Store) -> None:
    content = (DATA / "autotvm_0_2.log").read_bytes()
    import_items(store, items_of("autotvm_0_2.log"))
    asked = ["cuda", "cuda -model=v100", "cuda -model=1080ti", "llvm", "llvm -device=arm_cpu"]
    assert decided_as_tvm(store, content, asked) >= 6


@pytest.mark.skipif(
    not REAL, reason="PLEVEL_TEST_DATA names no folder with tophub, kernel_tuner and metaschedule"
)
@pytest.mark.parametrize("name", ["cuda_v0.10.log", "llvm_v0.04.log", "cuda_v0.01.log"])
def test_tophub_is_decided_as_tvm_did(store: Store, name: str) -> None:
    content = (Path(REAL) / "tophub" / name).read_bytes()
    import_items(store, read(Source(io.BytesIO(content), name)))
    models = {json.loads(x)["input"][0] for x in content.splitlines() if x.startswith(b'{"input')}
    contested = decided_as_tvm(store, content, [*sorted(models), "cuda", "llvm"])
    if name == "cuda_v0.10.log":
        assert contested > 50


def test_targets_of_one_key_keep_their_models(store: Store) -> None:
    """`cuda -model=titanx` and `-model=1080ti` have one key, and each its own answer."""
    line = json.loads(
        next(
            x for x in (DATA / "autotvm_0_2.log").read_bytes().splitlines()
            if x.startswith(b"{") and json.loads(x)["result"][1] == 0
        )
    )
    lines = []
    for model, unroll, cost in (("titanx", 0, 3e-4), ("1080ti", 512, 2e-4), ("", 1500, 1e-4)):
        line["input"][0] = f"cuda -model={model}" if model else "cuda"
        line["config"]["entity"] = [["auto_unroll_max_step", "ot", unroll]]
        line["result"][0] = [cost]
        lines.append(json.dumps(line).encode())
    items = list(read(Source(io.BytesIO(b"\n".join(lines))), Format.AUTOTVM))
    import_items(store, items)
    workload = items[0].task.workload
    for spec, unroll in (("cuda -model=titanx", 0), ("cuda -model=1080ti", 512), ("cuda", 1500)):
        with store.read() as c:
            database, target = RecordDatabase(c), Target.parse(spec)
            found = select(
                workload, target, database, policy="tvm", offered=database.foreign(workload, target)
            )
        assert found.config.to_json() == {"auto_unroll_max_step": unroll}, spec
    # By our own rule too, as the finest level that says as much.
    with store.read() as c:
        database, target = RecordDatabase(c), Target.parse("cuda -model=titanx")
        offered = database.foreign(workload, target)
        found = select(workload, target, database, offered=offered)
    assert found.config.to_json() == {"auto_unroll_max_step": 0}
    assert estimate((3e-4,)) == next(r for r in found.rivals if r.estimate).estimate


def test_a_selection_among_imported_records_is_within_one_device_model(store: Store) -> None:
    """A processor's GPU is not answered with the times of a GTX 1080 Ti, which took as well part."""
    workload = Workload("autotvm.conv2d_nchw", (Input("a", "float32[1]"),))
    mali, gtx = "opencl -device=mali -model=rk3399", "opencl -model=1080ti"
    for spec, template, cost_s in (
        (mali, "spatial_pack.mali", 117e-3),
        (gtx, "direct", 480e-6), (gtx, "winograd", 500e-6), (gtx, "spatial_pack.mali", 700e-6),
        ("cuda -model=1080ti", "direct.cuda", 300e-6),
    ):
        of = Task(workload=workload, target=Target.parse(spec), implementation=f"autotvm:{template}", version="1.0")
        import_items(store, [ImportedRecord(
            source="autotvm", task=of, config_key="{}", samples_s=(cost_s,),
            device_model=of.target.model,
        )])

    def ask(spec: str) -> Selection:
        with store.read() as c:
            database, target = RecordDatabase(c), Target.parse(spec)
            return select(workload, target, database, offered=database.foreign(workload, target))

    own = ask(mali)
    assert (own.implementation, own.level) == ("autotvm:spatial_pack.mali", Level.MODEL)
    assert "117 ms (1 sample)" in own.explanation
    assert ask(gtx).implementation == "autotvm:direct"
    ti = ask("cuda -model=1080ti")
    assert (ti.implementation, ti.reason) == ("autotvm:direct.cuda", Why.MEASURED)
    # A model that nobody measured: one of the others, named, and no mixture.
    other = ask("opencl -device=mali -model=t860")
    assert (other.implementation, other.level) == ("autotvm:direct", Level.TARGET)
    assert "another model (1080ti)" in other.explanation
    # Schedules for OpenCL are none for CUDA, though both are for GPUs.
    assert ask("cuda -model=h100").level is Level.TARGET
    assert ask("metal -keys=gpu").reason is Why.PLEVEL
    with store.read() as c:
        for t in op_query.targets(c, workload.op):
            for m in op_query.models(c, workload.op, t.id):
                judged = op_query.judge(c, t.id, m.model, op_query.newest_shapes(c, workload.op, t.id))
                own_s = {n: cell.median_s for n, cell in judged[1].items() if cell.median_s}
                assert (m.model, len(own_s)) in {("rk3399", 1), ("1080ti", 3), ("1080ti", 1)}
                assert op_query.plevel_cost(judged)["shapes"] == 0  # logs have no plevels


def test_keys_of_all_that_share_a_target_count(store: Store) -> None:
    workload = Workload("autotvm.x", (Input("a", "float32[1]"),))
    for i, spec in enumerate(("llvm -keys=cpu", "llvm -keys=arm_cpu,cpu")):
        of = Task(workload=workload, target=Target.parse(spec), implementation=f"autotvm:x.{i}", version="1.0")
        import_items(
            store,
            [ImportedRecord(source="autotvm", task=of, config_key="{}", samples_s=(1.0 + i,))],
        )
    with store.read() as c:
        database = RecordDatabase(c)
        arm = Target.parse("llvm -keys=arm_cpu")
        found = database.history(workload)
        assert sorted((h.implementation, h.keys) for h in found) == [
            ("autotvm:x.0", ("cpu",)), ("autotvm:x.1", ("arm_cpu", "cpu")),
        ]
        answer = select(workload, arm, database, policy="tvm", offered=database.foreign(workload, arm))
    assert answer.implementation == "autotvm:x.1"


def test_the_files_of_a_folder_belong_together() -> None:
    pair = [DATA / "database_workload.json", DATA / "database_tuning_record.json"]
    assert grouped([pair[1]]) == [pair]
    assert sum(isinstance(i, ImportedRecord) for i in metaschedule.read(Source(Joined(pair)))) == 4
