"""Other tools' results in the database: times as records, winners without a time as advice, apart from them."""

from __future__ import annotations

import io
import json
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from plevel.client import Client, ServiceError
from service.formats import Source, Summary, native, read
from service.records import exporter, foreign, foreign_ranking, foreign_reading, retention
from service.records.filter import Wanted
from service.records.foreign_ranking import ForeignQuestion, ForeignTerms
from service.records.importer import import_items
from service.records.retention import Doubtful
from service.selection import candidate
from service.selection.database import RecordDatabase
from service.store.db import Store
from service.store.tables import advice, best, history, record
from strategy.select import Evidence, Level, Selection, choose
from strategy.select import Reason as Why
from strategy.target import Target
from strategy.workload import Workload
from tests.integration.conftest import admin
from tests.integration.derived import assert_derived
from tests.integration.process import Service
from tests.integration.test_import import count
from tests.postgres import MIGRATED, create_database

pytestmark = pytest.mark.in_turn("url")

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
        return candidate.choose(database, workload, target, None, foreign=True)


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


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"source": "vllm"}, 3), ({"implementation": "helion:kernel"}, 1), ({"error": "any"}, 0),
        ({"op": "vllm.fused_moe", "since": 1.0}, 0), ({"target": "cuda/sm_100"}, 2),
    ],
)
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
    }
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


def line(model: str, *candidates: Any, **more: Any) -> bytes:
    """A foreign line of one matmul of Triton's."""
    base = {
        "kind": "foreign", "tool": "triton", "kernel": "matmul", "attrs": {"key": [64, "fp16"]},
        "version": "aa", "device_model": model, "worker": "host7",
        "candidates": [
            {"config": {"B": b}} | (
                {"error": took} if isinstance(took, str) else {} if took is None
                else {"samples_s": [took]}
            )
            for b, took in candidates
        ],
    }
    return json.dumps(base | more).encode() + b"\n"


MATMUL = Workload("triton.matmul", (), {"key": [64, "fp16"]})
LINES = (
    line("NVIDIA H200", (1, 2e-3), (2, 1e-3), (3, None))
    + line("NVIDIA H100", (1, 5e-3), (2, 6e-3), (2, 4e-3), (8, "oom"), (9, None))
    + line("NVIDIA A100-SXM4-80GB", (4, 1e-4))
    + line("NVIDIA H100", (7, 1e-6), version="other")
    + line("NVIDIA H100", (5, 1e-6), (5, "wrong_answer"), (5, "oom"))
)


@pytest.fixture(scope="module")
def on_postgres(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    name = f"{MIGRATED}_foreign"
    with admin(postgres_server) as connection:
        create_database(connection, name, MIGRATED)
        one = Service(
            f"postgresql://plevel@/{name}?host={postgres_server}", tmp_path_factory.mktemp("foreign"),
            PLEVEL_AUTH="open",
        )
        yield one
        one.close()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def served(request: pytest.FixtureRequest) -> Service:
    """A shared service over either database."""
    name = "service" if request.param == "sqlite" else "on_postgres"
    found: Service = request.getfixturevalue(name)
    return found


@pytest.fixture
def client(served: Service, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(str(served.http.base_url), namespace=f"f{abs(hash(request.node.name))}") as found:
        for one in LINES.splitlines(keepends=True):
            found.import_records([one], name="lines.ndjson")
        yield found


def test_devices_of_the_same_model_come_first_then_of_the_same_architecture(client: Client) -> None:
    found = client.foreign_best(
        "triton", MATMUL, device_model="NVIDIA H100", version="aa", limit=20, failures=True
    )
    assert [(a["likeness"], a["config"]["B"], a["median_s"]) for a in found["answers"]] == [
        ("model", 1, 5e-3), ("model", 2, 5e-3), ("model", 9, None),
        ("architecture", 2, 1e-3), ("architecture", 1, 2e-3), ("architecture", 3, None),
        ("other", 4, 1e-4),
    ]
    first = found["answers"][0]
    assert (first["worker"], first["source"], first["version"]) == ("host7", "triton", "aa")
    assert first["recorded_at"] > 1.7e9
    assert sorted(c["B"] for c in found["failed"]) == [5, 8]
    # Without a version any source counts; the limit cuts.
    (best,) = client.foreign_best("triton", str(MATMUL), device_model="NVIDIA H100", limit=1)["answers"]
    assert best["config"] == {"B": 7}
    # A model that nobody has, of a given architecture.
    other = client.foreign_best("triton", MATMUL, architecture="sm_80", limit=1)["answers"]
    assert [a["config"] for a in other] == [{"B": 4}]
    assert client.foreign_best("helion", MATMUL) == {"answers": [], "failed": []}


def test_all_problems_of_a_kernel_are_read_page_by_page(client: Client) -> None:
    for i in range(5):
        client.import_records(
            [line("NVIDIA H200", (i, 1e-3), attrs={"key": [i]})], name="lines.ndjson"
        )
    asked = {"device_model": "NVIDIA H100", "version": "aa", "failures": True, "limit": 20}
    for page in (2, 100):
        found = list(client.iter_foreign_problems("triton", "matmul", page=page, **asked))
        assert [p["workload"] for p in found] == [
            *(f'triton.matmul(){{"key":[{i}]}}' for i in reversed(range(5))), str(MATMUL),
        ]
        assert [a["config"]["B"] for a in found[0]["answers"]] == [4]
        whole = client.foreign_best("triton", MATMUL, **asked)
        own = [a for a in whole["answers"] if a["likeness"] == "model"]  # of the likest device only
        assert (found[-1]["answers"], found[-1]["failed"]) == (own, whole["failed"])
    other = list(client.iter_foreign_problems("triton", "matmul", version="other"))
    assert [(p["workload"], len(p["answers"])) for p in other] == [(str(MATMUL), 1)]
    assert list(client.iter_foreign_problems("triton", "matmu")) == []
    assert list(client.iter_foreign_problems("helion", "matmul")) == []


def test_many_questions_are_one_request(client: Client) -> None:
    asked = {"workload": str(MATMUL), "device_model": "NVIDIA A100-SXM4-80GB", "limit": 1}
    one, none = client.foreign_best_many("triton", [asked, {"workload": "triton.none()"}])
    assert [a["config"] for a in one["answers"]] == [{"B": 4}]
    assert none["answers"] == []
    with pytest.raises(ServiceError, match="limit"):
        client.foreign_best_many("triton", [{**asked, "limit": 0}])
    assert len(client.foreign_best_many("triton", [{**asked, "limit": 500}] * 2)) == 2
    with pytest.raises(ServiceError, match=r"requests: .*1003.*divide the batch") as refused:
        client.foreign_best_many("triton", [{**asked, "limit": 501}, {**asked, "limit": 502}])
    assert refused.value.status == 422


def test_equal_questions_of_a_batch_are_answered_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x.ndjson", LINES)
    asked, find = [], foreign.find_best

    def counted(*given: Any) -> Any:
        asked.append(given[2].limit)
        return find(*given)

    monkeypatch.setattr(foreign, "find_best", counted)
    questions = [ForeignQuestion(workload=MATMUL, limit=n) for n in (1, 2, 1, 2, 1)]
    with store.read() as connection:
        found = foreign.find_many(connection, "triton", questions, "default")
    assert [len(one.answers) for one in found] == [1, 2, 1, 2, 1]
    assert asked == [1, 2]


def test_bodies_of_unanswered_results_are_not_read(store: Store) -> None:
    """An answer takes memory for what it holds, not for the configurations and extra fields of all results."""
    size, extra = 50_000, "x" * 50_000
    for at in range(20):
        one = {"config": {"B": at}, "samples_s": [1e-3 * (1 + at)], "extra": {"note": extra}}
        put(store, "x.ndjson", line("NVIDIA H100", candidates=[one]))
    put(store, "x.ndjson", line("NVIDIA H100", *((100 + at, "oom") for at in range(4))))

    def peak(limit: int) -> int:
        asked = ForeignQuestion(workload=MATMUL, limit=limit, failures=True, device_model="NVIDIA H100")
        with store.read() as connection:
            tracemalloc.start()
            found = foreign.find_best(connection, "triton", asked, "default")
            taken = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert [a.config["B"] for a in found.answers] == list(range(limit))
        assert found.answers[0].extra == {"note": extra}
        assert len(found.failed) == min(limit, 4)
        return taken

    peak(1)  # compiles the statements
    assert peak(1) < 6 * size < 20 * size < peak(20)
    question = ForeignQuestion(workload=MATMUL, limit=1)
    with store.write() as connection:
        connection.execute(sa.update(record).values(extra='{"note":1e400}'))  # older versions stored such
        (answer,) = foreign.find_best(connection, "triton", question, "default").answers
    assert answer.extra == {"note": "1e400"}


def test_kernels_are_listed_the_newest_first_page_by_page(client: Client) -> None:
    found = list(client.iter_foreign("triton", limit=1))
    assert [(k["best"]["device_model"], k["best"]["config"]["B"]) for k in found] == [
        ("NVIDIA H100", 7), ("NVIDIA A100-SXM4-80GB", 4), ("NVIDIA H100", 1), ("NVIDIA H200", 2),
    ]
    own = next(k for k in found if k["best"]["device_model"] == "NVIDIA H200")
    assert (own["candidates"], own["failures"], own["slowest_s"]) == (3, 0, 2e-3)
    wanted = {"kernel": "matmul", "device_model": "NVIDIA A100-SXM4-80GB"}
    assert len(list(client.iter_foreign("triton", **wanted))) == 1
    for other in ("other", "MatMul"):
        assert list(client.iter_foreign("triton", kernel=other)) == []


def test_a_page_ends_before_the_results_that_it_cannot_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel is on some page, however many results those before it have."""
    for at in range(5):
        put(store, "x.ndjson", line("NVIDIA H100", (1, 1e-3), (2, 2e-3), attrs={"key": [at]}))
    monkeypatch.setattr(foreign_reading, "MAX_ROWS", 5)
    sizes, cursor = [], None
    with store.read() as connection:
        while not sizes or cursor is not None:
            page = foreign.list_kernels(connection, "triton", "default", cursor=cursor)
            assert all(k.candidates == 2 for k in page.kernels)
            sizes.append(len(page.kernels))
            cursor = page.next
    assert sizes == [2, 2, 1]
    cursor, found = None, list[int]()
    asked = ForeignTerms(device_model="NVIDIA H100")
    with store.read() as connection:
        while not found or cursor is not None:
            part = foreign.find_problems(
                connection, "triton", "matmul", asked, "default", page=4, cursor=cursor
            )
            assert all(len(p.answers) == 2 for p in part.problems)
            found.append(len(part.problems))
            cursor = part.next
    assert found == sizes


def test_a_page_ends_before_it_is_too_large(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel and problem is on some page, however large the extra fields of those before it are."""
    for at in range(6):
        outcome = {} if at % 2 else {"samples_s": [1e-3]}
        one = {"config": {"B": at}, "extra": {"note": "x" * 1000}, **outcome}
        put(store, "x.ndjson", line("NVIDIA H100", attrs={"key": [at]}, candidates=[one]))
    monkeypatch.setattr(foreign_ranking, "MAX_SIZE", 2500)
    asked = ForeignTerms(device_model="NVIDIA H100")
    pages: tuple[list[list[str]], list[list[str]]] = [], []
    with store.read() as c:
        cursors: list[int | None] = [None, None]
        while not pages[0] or cursors[0] is not None:
            listed = foreign.list_kernels(c, "triton", "default", cursor=cursors[0])
            found = foreign.find_problems(
                c, "triton", "matmul", asked, "default", page=100, cursor=cursors[1]
            )
            cursors = [listed.next, found.next]
            pages[0].append([k.workload for k in listed.kernels if k.best and k.best.extra])
            pages[1].append([p.workload for p in found.problems if p.answers[0].extra])
    assert cursors == [None, None]
    assert pages[0] == pages[1]
    assert [len(p) for p in pages[0]] == [2, 2, 2]
    assert len({w for p in pages[0] for w in p}) == 6


def test_pages_of_a_device_model_are_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of other models, and those without any result, take no place on a page, nor rows of an answer."""
    for at in range(6):
        model = "NVIDIA H100" if at < 3 else "NVIDIA H200"
        put(store, "x.ndjson", line(model, (1, None if at == 0 else 1e-3), attrs={"key": [at]}))
    put(store, "x.ndjson", line("NVIDIA A100", (1, 1e-3), attrs={"key": [9]}, worker="w"))
    # One task of two models: the results of the other one, which are newer, do not hide the asked ones.
    put(store, "x.ndjson", line("NVIDIA H200", *((b, 1e-3) for b in range(5)), attrs={"key": [1]}))
    with store.write() as connection:
        assert retention.purge_doubtful(connection, Doubtful(worker="w"), "a broken fan").records == 1
    monkeypatch.setattr(foreign_reading, "MAX_ROWS", 4)

    def pages(model: str | None, limit: int) -> list[list[str]]:
        found, cursor = [], None
        while not found or cursor is not None:
            with store.read() as connection:
                page = foreign.list_kernels(
                    connection, "triton", "default", device_model=model, limit=limit, cursor=cursor
                )
            assert all(k.best and model in (None, k.best.device_model) for k in page.kernels)
            found.append([k.workload for k in page.kernels])
            cursor = page.next
        return found

    key = 'triton.matmul(){{"key":[{}]}}'.format
    assert pages("NVIDIA H100", 2) == [[key(2), key(1)], [key(0)]]
    assert pages("NVIDIA H100", 3) == [[key(2), key(1), key(0)]]
    assert pages("NVIDIA A100", 1) == [[]]
    assert pages(None, 1)[0] == [key(5)]


def test_the_fastest_of_one_model_comes_first_whatever_its_source(store: Store) -> None:
    """Sources are compared within one device model where none is asked for; times of two models never are."""
    for model, version, *candidates in (
        ("NVIDIA H100", "aa", (1, 1e-3), (2, 4e-3)), ("NVIDIA H100", "unknown", (3, 2e-3), (4, None)),
        ("NVIDIA H200", "aa", (5, 3e-3)), ("NVIDIA H200", "unknown", (6, 1e-6)),
        ("NVIDIA H20", "unknown", (7, 1e-7)),
    ):
        put(store, "x.ndjson", line(model, *candidates, version=version))

    def order(model: str, version: str | None) -> list[int]:
        asked = ForeignQuestion(
            workload=MATMUL, device_model=model, architecture="sm_90", version=version, limit=9
        )
        with store.read() as connection:
            found = foreign.find_best(connection, "triton", asked, "default")
        return [a.config["B"] for a in found.answers]

    assert order("NVIDIA H100", None) == [1, 3, 2, 4, 7, 6, 5]
    # A model with results of the asked source precedes one without, however new.
    assert order("NVIDIA H100 PCIe", "aa") == [5, 6, 1, 2, 3, 4, 7]


def test_results_of_the_asked_source_precede_newer_ones_of_an_unknown(store: Store) -> None:
    put(store, "x.ndjson", line("NVIDIA H100", (1, 1e-6)))
    put(store, "x.ndjson", line("NVIDIA H100", (2, 1e-3), version="unknown"))
    asked = ForeignQuestion(workload=MATMUL, device_model="NVIDIA H100", version="aa")
    with store.read() as connection:
        found = foreign.find_best(connection, "triton", asked, "default")
    assert [a.config["B"] for a in found.answers] == [1, 2]


def test_an_unchanged_answer_is_not_sent_again(served: Service, client: Client) -> None:
    namespace = client._http.params["namespace"]
    params = {"workload": str(MATMUL), "namespace": namespace}
    first = served.http.get("/v1/foreign/triton/best", params=params)
    tag = {"if-none-match": first.headers["etag"]}
    assert served.http.get("/v1/foreign/triton/best", params=params, headers=tag).status_code == 304
    client.import_records([line("NVIDIA H100", (11, 1e-7))], name="x.ndjson")
    assert served.http.get("/v1/foreign/triton/best", params=params, headers=tag).status_code == 200
    for path in ("/v1/foreign/Triton/list", "/v1/foreign/triton/best?workload=x"):
        assert served.http.get(path).status_code == 422


def test_the_pages_show_kernels_their_spread_and_origin(served: Service, client: Client) -> None:
    sample = (DATA / MOE).read_bytes()
    client.import_records([sample], name=MOE)
    html = {"accept": "text/html"}
    page = served.http.get("/foreign", params={"device": "NVIDIA H200"}, headers=html)
    assert page.status_code == 200
    for shown in ("triton", "matmul", "NVIDIA H200", "1.00 ms", "2.00×", "host7"):
        assert shown in page.text, shown
    advised = served.http.get("/foreign?tool=vllm", headers=html).text
    assert "advice" in advised
    assert "fused_moe" in advised
    for task in set(re.findall(r"/tasks/\d+", advised)):
        assert served.http.get(task, headers=html).status_code == 200
    assert "No result of another tool matches" in served.http.get("/foreign?tool=none", headers=html).text
    latest = served.http.get("/foreign", headers={**html, "hx-request": "true"}).text
    assert "<html" not in latest
    assert 1 < latest.count("<tr>") <= 1 + 6
    assert 'hx-get="/foreign"' in served.http.get("/", headers=html).text
    # A text of a log is no markup.
    client.import_records([line("<b>x</b>", (1, 1e-3), kernel="<i>k</i>")], name="x.ndjson")
    hostile = served.http.get("/foreign", params={"device": "<b>x</b>"}, headers=html).text
    assert "&lt;i&gt;k" in hostile
    assert "<i>k" not in hostile
