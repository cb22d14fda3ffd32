"""Lists by their addresses alone, without scripts: days, orders, pages, names of devices, calibration kernels."""

from __future__ import annotations

import contextlib
import csv
import html
import io
import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from service.access import token
from service.dashboard.query import run as run_query
from service.dashboard.show import show_duration
from service.selection.database import RecordDatabase
from service.store import migration
from service.store.db import Store
from service.store.tables import TokenScope
from service.tuning.tally import tally
from strategy.select import select
from strategy.target import Target
from tests.browser import seed
from tests.browser.visitor import Site
from tests.limit import HANG_S
from tests.serve import serve

LISTS = ("/runs", "/records", "/devices", "/tasks")


def _get(site: Site, path: str, **query: object) -> str:
    answer = httpx.get(site.url + path, params=query or None, headers={"accept": "text/html"}, timeout=HANG_S)
    assert answer.status_code == 200, answer.text[-500:]
    return answer.text


def _ids(page: str, path: str) -> list[int]:
    """The subjects of a list's rows, in order."""
    rows = page.partition("<tbody>")[2].partition("</tbody>")[0]
    return [int(i) for i in re.findall(rf'<th scope="row"><a href="{path}/(\d+)"', rows)]


def _day(days_ago: float) -> str:
    return (datetime.now(UTC) - timedelta(days=days_ago)).strftime("%Y-%m-%d")


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"since": "yesterday"}, "since: &#39;yesterday&#39; is no date: write it as 2026-01-31"),
        ({"until": "2026-02-30"}, "until: &#39;2026-02-30&#39; is no date"),
        ({"until": "9999-12-31"}, "is no date"),
        ({"since": "2026-02-02", "until": "2026-02-01"}, "is before since"),
        ({"sort": "nothing"}, "sort: &#39;nothing&#39; is no sortable column"),
    ],
)
def test_a_wrong_day_or_order_is_one_line(
    seeded: Site, path: str, query: dict[str, str], told: str
) -> None:
    answer = httpx.get(seeded.url + path, params=query, headers={"accept": "text/html"})
    assert answer.status_code == 422
    assert told in answer.text.partition('class="notice warn">')[2].partition("</p>")[0]


def test_runs_of_some_days(seeded: Site) -> None:
    done, live = seeded.ids["done"], seeded.ids["live"]  # eight days and two minutes ago
    assert done in _ids(_get(seeded, "/runs"), "/runs")
    late = _ids(_get(seeded, "/runs", since=_day(2)), "/runs")
    assert live in late
    assert done not in late
    assert _ids(_get(seeded, "/runs", since=_day(10), until=_day(6)), "/runs") == [done]
    assert "No run matches" in _get(seeded, "/runs", until="2020-01-01")


def test_records_of_some_days_are_found_at_once(seeded: Site) -> None:
    page = _get(seeded, "/records", since=_day(10), until=_day(6), op="dense")
    assert set(re.findall(r'<td><a href="/runs/(\d+)">', page)) == {str(seeded.ids["done"])}
    assert "No record matches" in _get(seeded, "/records", until="2020-01-01")


@pytest.mark.parametrize(
    ("path", "name"), [("/runs", "run"), ("/records", "record"), ("/tasks", "task")]
)
def test_a_heading_turns_the_order_around_and_keeps_the_filter(
    seeded: Site, path: str, name: str
) -> None:
    since = _day(30)
    page = _get(seeded, path, op="dense", since=since)
    newest = _ids(page, path)
    assert newest == sorted(newest, reverse=True)
    heading = re.search(rf'aria-sort="descending"><a href="({path}\?[^"]*sort={name}[^"]*)"', page)
    assert heading is not None
    address = heading[1].replace("&amp;", "&")
    assert "op=dense" in address
    assert f"since={since}" in address
    oldest = _ids(_get(seeded, address), path)
    assert oldest == sorted(oldest)
    assert oldest[0] <= newest[-1]


@pytest.mark.parametrize("sort", ["record", "-record", "median", "-median"])
def test_pages_of_records_in_any_order_have_each_once(seeded: Site, sort: str) -> None:
    run, seen = seeded.ids["hostile"], []
    query = {"run": run, "sort": sort}
    address: str | None = "/records"
    while address is not None:
        page = _get(seeded, address, **(query if address == "/records" else {}))
        seen += _ids(page, "/records")
        further = re.search(r'rel="next" href="([^"]*)"', page)
        address = further and further[1].replace("&amp;", "&")
    found = httpx.get(f"{seeded.url}/v1/records", params={"run_id": run, "limit": 1000}).json()["records"]
    found = [r for r in found if r["phase"] != "reference"]
    assert len(found) > 50
    assert sorted(seen) == sorted(r["id"] for r in found)
    if sort.endswith("median"):
        medians = {r["id"]: r["estimate"]["median_s"] for r in found if r["estimate"]}
        timed = [medians[i] for i in seen if i in medians]
        assert timed == sorted(timed, reverse=sort == "-median")
        assert not any(i in medians for i in seen[len(timed) :])  # failures last


def test_calibration_kernels_are_shown_on_demand(seeded: Site) -> None:
    def shows(path: str, **query: object) -> bool:
        return "reference.sqrt" in _get(seeded, path, **query).replace("<wbr>", "")

    for path in ("/records", "/tasks"):
        assert not shows(path)
        assert shows(path, calibration=1, sort="record" if path == "/records" else "task")
    assert shows("/records", phase="reference")


def test_the_other_forms_of_a_task_s_page_keep_its_knobs(seeded: Site) -> None:
    page = _get(seeded, f"/tasks/{seeded.ids['task']}", by="run", knob="rows", colour="width")
    forms = re.findall(r'<a href="(/tasks/[^"]*)"', page.partition('id="curves"')[2].partition("</div>")[0])
    assert len(forms) == 6
    assert all("knob=rows" in f and "colour=width" in f for f in forms)


def test_the_command_that_trains_a_model_has_a_target_that_is_read(seeded: Site) -> None:
    page = _get(seeded, f"/models/{seeded.ids['model'] - 2}")  # has no evaluation
    words = shlex.split(html.unescape(page.partition("<code>")[2].partition("</code>")[0]))
    assert words[:4] == ["plevel", "model", "train", "dense"]
    assert Target.parse(words[words.index("--target") + 1]).key == seed.TARGET.key


def test_an_export_has_all_namespaces_and_devices_known_by_their_model_alone(tmp_path: Path) -> None:
    log = (Path(__file__).parents[1] / "data/formats/autotvm_0_2.log").read_bytes()
    with serve(f"sqlite:///{tmp_path / 'plevel.db'}") as url:
        site = Site(url, "")
        query = {"namespace": "team", "name": "a.log"}
        assert httpx.post(f"{url}/v1/records:import", params=query, content=log).status_code == 200
        devices = re.findall(r'href="/devices/(\d+)"', _get(site, "/devices"))
        assert devices
        for query in ({}, *({"device": i} for i in devices)):
            page = _get(site, "/records", **query)
            native, table = map(html.unescape, re.findall(r'href="(/records/export[^"]*)"', page))
            lines = map(json.loads, _get(site, native).splitlines())
            listed = len(_ids(page, "/records"))
            assert 0 < listed == sum(line["kind"] == "record" for line in lines)
            assert len(list(csv.DictReader(io.StringIO(_get(site, table), newline="")))) == listed
        missing = httpx.get(f"{url}/records/export", params={"device": 10**6})
        assert missing.status_code == 404


def test_an_export_respects_the_namespace_of_a_token(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'plevel.db'}"
    migration.upgrade(database)
    with contextlib.closing(Store(database)) as store, store.write() as c:
        inside, outside = (
            token.create(c, name, {TokenScope.READ}, namespace=of).secret
            for name, of in (("inside", "team"), ("outside", None))
        )
    with serve(database) as url:
        def ask(secret: str) -> int:
            return httpx.get(f"{url}/records/export", auth=("", secret)).status_code

        assert (ask(inside), ask(outside)) == (403, 404)  # there are no records


@pytest.mark.parametrize("digits", [20, 5000])
def test_a_long_number_is_no_id(seeded: Site, digits: int) -> None:
    answer = httpx.get(f"{seeded.url}/records", params={"run": "1" * digits})
    assert (answer.status_code, "is no id" in answer.text) == (422, True)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(9.94, "9.9 s"), (9.96, "10 s"), (119.4, "119 s"), (119.6, "2 min 00 s"), (179.7, "3 min 00 s"),
     (7199.7, "2 h 00 min"), (10_799.0, "3 h 00 min"), (172_799.0, "2 days"), (259_200.0, "3 days"), (-1.0, "0.0 s")],
)
def test_a_duration_is_rounded_once(seconds: float, shown: str) -> None:
    assert show_duration(seconds) == shown


def test_devices_have_their_names_before_their_identities(seeded: Site) -> None:
    name, identity = "AMD EPYC 9B45", "3f2a9c11e07b4d52"
    device = f"/devices/{seeded.ids['device']}"
    for path in ("/devices", device, "/records?op=dense", f"/tasks/{seeded.ids['task']}", "/select"):
        page = _get(seeded, path).partition("<h1>")[2]
        assert identity in page, path
        assert 0 <= page.find(name) < page.find(f">{identity}") or f"{name} ({identity}" in page, path
    curves = httpx.get(f"{seeded.url}/tasks/{seeded.ids['task']}/curve.json?by=device").json()["curves"]
    assert any(c["name"].startswith(f"{name} ({identity}") for c in curves)



def test_a_run_over_several_workloads_has_their_weights_shares_and_selections(seeded: Site) -> None:
    assert "12 workloads" in _get(seeded, "/runs")
    path = f"/runs/{seeded.ids['done']}"
    page = _get(seeded, path)
    assert f"<h1>Run {seeded.ids['done']}: 12 workloads</h1>" in page
    table = page.partition("Workloads of this run</h2>")[2]
    assert len(re.findall(r'href="/select[^"]*">(dense\w*\.cpu)</a>', table)) == 12
    with contextlib.closing(Store(seeded.database)) as store, store.read() as c:
        told = tally(c, seeded.ids["done"])
        portions = run_query.portions(
            c, seeded.ids["done"], told, run_query.device_model(c, seeded.ids["done"])
        )
        bodies = run_query.bodies(c, list(portions))
        for i, workload in bodies.items():
            taken = select(workload, seed.TARGET, RecordDatabase(c)).implementation
            row = table.partition(f"workload={i}&")[2] or table.partition(f'workload={i}"')[2]
            assert f">{taken}</a>" in row.partition("</tr>")[0]
    searched = sum(t.n for t in told if t.phase == "search")
    assert sum(p.trials for p in portions.values()) == searched
    assert sum(p.of_trials for p in portions.values()) == pytest.approx(1)
    assert sum(p.of_time or 0 for p in portions.values()) == pytest.approx(1)
    assert all(f'<td class="num">{p.trials}</td>' in table for p in portions.values())
    assert "<h1>Run " + str(seeded.ids["live"]) + "</h1>" in _get(seeded, f"/runs/{seeded.ids['live']}")
