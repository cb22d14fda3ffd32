"""Pauses, which keep a farm from working, records, and the commands to copy that end or repeat them."""

from __future__ import annotations

import contextlib
import html
import json
import re
import shlex
from pathlib import Path

import httpx
import sqlalchemy as sa

from service.queue import pause
from service.queue.pause import PauseRequest
from service.store import migration
from service.store.db import Store
from service.store.sql import now
from service.store.tables import record, worker
from strategy.installed import installed
from strategy.installed_code import code_identity
from tests.browser import seed
from tests.browser.test_lists import _get
from tests.browser.visitor import Site
from tests.limit import HANG_S
from tests.serve import serve


def _states(page: str) -> dict[str, bool]:
    """The models of the devices, and for each if it is marked as paused."""
    rows = page.partition('aria-label="Devices"')[2].partition("</table>")[0].split("<tr>")[2:]
    return {re.sub("<[^>]*>", "", row.partition("</a>")[0]).strip(): ">paused<" in row for row in rows}


def test_pauses_are_shown_with_the_command_that_ends_them(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'plevel.db'}"
    migration.upgrade(database)
    with contextlib.closing(Store(database)) as store, serve(database, heartbeat_s=HANG_S) as url:
        site = Site(url, database)
        farm = seed.Farm(store)
        first, second = (html.escape(d.model) for d in farm.devices)
        assert "Pauses" not in _get(site, "/devices")
        with store.write() as c:
            of_device = pause.create(c, PauseRequest(reason=seed.SCRIPT, device=farm.devices[0].identity))
            pause.create(c, PauseRequest(reason="moves", target=seed.TARGET.key, starts_at=4e9, ends_at=5e9))
        page = _get(site, "/devices")
        assert _states(page) == {first: True, second: False}
        assert f"<td>{html.escape(seed.SCRIPT)}</td>" in page
        assert f"plevel fleet resume {of_device.id} --url" in page
        assert page.count(">later<") == 1
        assert "1 paused" in _get(site, "/")
        with store.write() as c:
            pause.end(c, of_device.id)
            pause.create(c, PauseRequest(reason="noise", target=seed.TARGET.key))
        assert _states(_get(site, "/devices")) == {first: True, second: True}
        of_one = _get(site, re.findall(r'href="(/devices/\d+)"', page)[0])
        assert ">noise<" in of_one and ">moves<" in of_one and f"<td>{html.escape(seed.SCRIPT)}</td>" not in of_one
        assert "2 paused" in _get(site, "/")
        found = _get(site, "/devices", device_has="epyc 3F2A9C")
        assert _states(found) == {first: True}
        assert "No device matches" in _get(site, "/devices", target="znver3")


def test_a_device_has_its_workers_and_those_that_have_left(seeded: Site) -> None:
    page = _get(seeded, f"/devices/{seeded.ids['device']}")
    rows = page.partition('aria-label="Workers"')[2].partition("</table>")[0].split("<tr>")[2:]
    assert len(rows) == 1
    assert "farm-1.example" in rows[0]


def test_workers_of_other_code_than_the_service_are_marked(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'plevel.db'}"
    migration.upgrade(database)
    with contextlib.closing(Store(database)) as store, serve(database, heartbeat_s=HANG_S) as url:
        seed.Farm(store)
        own = installed()
        other = own | {"dense": own["dense"] | {"dense_pack.cpu": 1}}
        with store.write() as c:
            c.execute(sa.update(worker).values(operators=other))
            same = {"version": code_identity(), "operators": own}
            c.execute(sa.update(worker).where(worker.c.name == "farm-1").values(**same))
        site = Site(url, database)
        page = _get(site, "/devices")
        told = f"1 implementation in another version: dense_pack.cpu 1 (here {own['dense']['dense_pack.cpu']})"
        pages = [_get(site, path) for path in sorted(set(re.findall(r'href="(/devices/\d+)"', page)))]
        assert sorted(told in one for one in pages) == [False, True]
        rows = page.partition('aria-label="Workers"')[2].partition("</table>")[0].split("<tr>")[2:]
        assert {"farm-1<" in row: ">other code<" in row for row in rows} == {True: False, False: True}
        assert f'This service is of <span class="mono">{code_identity()}<' in page
        assert httpx.get(f"{url}/openapi.json").json()["info"]["version"] == code_identity()


def test_a_run_without_a_worker_has_no_time_left(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'plevel.db'}"
    migration.upgrade(database)
    with contextlib.closing(Store(database)) as store, serve(database, heartbeat_s=HANG_S) as url:
        farm = seed.Farm(store)
        run = farm.ask([seed.RunWorkload(workload=seed.dense(64, 128, 96))], 40)
        farm.search(run, 4)
        times = []
        for ended in (None, 1.0):
            with store.write() as c:
                c.execute(sa.update(worker).values(seen_at=now(), ended_at=ended))
            page = _get(Site(url, database), f"/runs/{run}")
            times.append(page.partition("<dt>Time left</dt><dd><b>")[2].partition("<")[0])
        assert times[0].endswith(" s")
        assert times[1] == "–"


def test_a_record_has_the_command_that_measures_it_again(seeded: Site) -> None:
    with contextlib.closing(Store(seeded.database)) as store, store.read() as c:
        of_task = record.c.task_id == seeded.ids["task"]
        row = c.execute(sa.select(record.c.id, record.c.config).where(of_task).limit(1)).one()
    page = _get(seeded, f"/records/{row.id}")
    words = shlex.split(html.unescape(page.partition('aria-label="Command">')[2].partition("</pre>")[0]))
    assert words[:2] == ["plevel", "measure"]
    assert words[2].startswith("dense(data=float32[")
    assert words[words.index("-I") + 1] == "dense_pack.cpu"
    given = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "-c")
    assert {name: json.loads(text) for name, text in given.items()} == row.config
    assert words[words.index("--threads") + 1] == str(seed.TARGET.threads)
    # Neither of an operator that is not installed, nor of code that is no more.
    for other in (f"/records/{seeded.ids['failed_record']}", _of_stale(seeded)):
        assert 'aria-label="Command"' not in _get(seeded, other)
    assert httpx.get(f"{seeded.url}/records/{row.id}", headers={"hx-request": "true"}).status_code == 200


def _of_stale(site: Site) -> str:
    with contextlib.closing(Store(site.database)) as store, store.read() as c:
        query = sa.select(record.c.id).where(record.c.task_id == site.ids["stale"]).limit(1)
        return f"/records/{c.scalar(query)}"
