"""The main paths, clicked through: from the overview to a cause, a curve, an answer, a cancelled run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from service.store.db import Store
from service.store.sql import now
from service.store.tables import run as run_table
from service.store.tables import run_task, task, worker
from service.tuning import run as runs
from service.tuning import run_status
from strategy.record import RunState, RunWorkload
from tests.browser import seed
from tests.browser.test_pages import CONCRETE, SYMBOLIC
from tests.browser.visitor import Site
from tests.serve import serve

DATA = Path(__file__).parents[1] / "data" / "formats"


@pytest.fixture
def fresh_run(seeded: Site):
    """The id of a run of its own that is under way, and the store it is in."""
    store = Store(seeded.database)
    farm = seed.Farm(store)
    yield farm.ask([RunWorkload(workload=seed.dense(64, 128, 96))], 40), farm
    with store.write() as c:
        c.execute(
            sa.update(run_table).where(run_table.c.state == RunState.RUNNING)
            .where(run_table.c.id > seeded.ids["live"]).values(state=RunState.CANCELLED)
        )
    store.close()


def test_from_the_overview_to_a_failures_full_message(visit, seeded: Site) -> None:
    visitor = visit(seeded)
    page = visitor.page
    visitor.open(f"/runs/{seeded.ids['hostile']}")
    page.locator("details.failure summary").first.click()
    message = page.locator("details.failure pre").first
    message.wait_for()
    assert message.inner_text().strip() == seed.HOSTILE_MESSAGE.strip()
    page.locator("details.failure .message a").first.click()
    assert page.locator("h1").inner_text().startswith("Record ")
    visitor.check()


def test_a_live_run_follows_its_records_and_can_be_cancelled(visit, seeded: Site, fresh_run) -> None:
    run_id, farm = fresh_run
    visitor = visit(seeded)
    page = visitor.page
    visitor.open(f"/runs/{run_id}")
    assert page.locator("table").first.locator("text=not timed").count() >= 3
    farm.search(run_id, 6)
    # Neither a click nor a reload: the stream brings it.
    page.wait_for_selector("#live td b:has-text('s')")
    page.wait_for_selector("[data-curve] canvas")
    page.get_by_role("button", name="Cancel the run").click()
    page.wait_for_selector(".state-cancelled")
    with farm.store.read() as c:
        assert run_status.status(c, run_id, 60.0).state == RunState.CANCELLED
    visitor.check()


def test_a_redrawn_page_keeps_the_focus_and_the_place_of_its_tables(visit, seeded: Site) -> None:
    visitor = visit(seeded, 390)
    page = visitor.page
    visitor.open(f"/runs/{seeded.ids['live']}")
    table = page.get_by_label("Implementations", exact=True)
    link = table.locator("tbody a").last
    link.focus()
    table.evaluate("e => { e.scrollLeft = 120; window.old = e; }")
    page.evaluate("document.getElementById('live').dispatchEvent(new Event('plevel:change'))")
    page.wait_for_function("() => !window.old.isConnected")
    visitor.settle()
    assert table.evaluate("e => e.scrollLeft") == 120
    assert link.evaluate("e => e === document.activeElement")
    visitor.check()


def test_a_page_says_that_its_service_does_not_answer(visit, seeded: Site) -> None:
    page = visit(seeded).page
    page.clock.install()
    page.goto(seeded.url)
    page.wait_for_selector("text=No result of another tool")
    page.route("**/*", lambda route: route.abort())
    page.clock.fast_forward(6000)
    page.wait_for_selector("[role=alert]:has-text('has not answered since')")
    page.unroute("**/*")
    page.clock.fast_forward(6000)
    page.wait_for_selector("[role=alert]", state="detached")
    page.route("**/faster", lambda route: route.abort())
    page.goto(seeded.url)
    page.wait_for_selector(".later [role=alert]:has-text('does not answer')")
    page.route("**/live", lambda route: route.abort())
    page.goto(f"{seeded.url}/runs/{seeded.ids['live']}")
    page.clock.fast_forward(10_000)
    page.wait_for_selector("[role=alert]:has-text('has not answered since')")


def test_a_live_run_is_shown_anew_once_a_message_is_closed_and_as_its_workers_come_and_go(
    visit, seeded: Site, fresh_run
) -> None:
    run_id, farm = fresh_run
    visitor = visit(seeded)
    page = visitor.page
    with farm.store.write() as c:
        c.execute(sa.update(worker).values(ended_at=now()))
    visitor.open("/devices")
    assert f"plevel worker --url {seeded.url}" in page.locator("main").inner_text()
    visitor.open(f"/runs/{run_id}")
    page.wait_for_selector("text=is alive")
    with farm.store.write() as c:
        c.execute(sa.update(worker).values(ended_at=None, seen_at=now()))
    page.wait_for_selector("text=is alive", state="detached")
    page.evaluate(
        "document.getElementById('live').insertAdjacentHTML('beforeend', '<details open id=message>…</details>')"
    )
    with farm.store.write() as c:
        runs.cancel(c, run_id)
    page.wait_for_timeout(1500)
    assert page.locator(".state-cancelled").count() == 0
    page.evaluate("document.getElementById('message').open = false")
    page.wait_for_selector(".state-cancelled")
    visitor.check()


def test_run_again_asks_the_same_once_more(visit, seeded: Site, fresh_run) -> None:
    run_id, farm = fresh_run
    visitor = visit(seeded)
    with farm.store.write() as c:
        runs.cancel(c, run_id)
    visitor.open(f"/runs/{run_id}")
    visitor.page.get_by_role("button", name="Run again").click()
    visitor.page.wait_for_url(re.compile(rf"/runs/(?!{run_id}$)\d+$"))
    new = int(visitor.page.url.rsplit("/", 1)[1])
    with farm.store.read() as c:
        rows = c.execute(
            sa.select(run_table.c.id, run_table.c.request).where(run_table.c.id.in_([run_id, new]))
        )
        old, again = [r.request for r in sorted(rows, key=lambda r: r.id)]
    assert again == {**old, "force": True}
    visitor.check()


def test_a_form_of_another_site_is_refused(chromium, seeded: Site) -> None:
    context = chromium.new_context()
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        response = context.request.post(
            f"{seeded.url}/runs/{seeded.ids['live']}/cancel", headers=headers
        )
        assert response.status == 403
    context.close()
    store = Store(seeded.database)
    with store.read() as c:
        assert run_status.status(c, seeded.ids["live"], 60.0).state == RunState.RUNNING
    store.close()


def test_select_explains_without_leaving_the_page(visit, seeded: Site) -> None:
    visitor = visit(seeded)
    page = visitor.page
    visitor.open("/select")
    page.get_by_label("Workload").fill(CONCRETE)
    page.get_by_label("Target").fill(seed.TARGET.key)
    page.get_by_role("button", name="Select").click()
    page.wait_for_selector(".answer .why")
    assert "measured" in page.locator(".answer .why").inner_text()
    assert page.locator("tr.chosen").count() == 1
    # The address can be sent to a colleague.
    shared = page.url
    page.get_by_label("Workload").fill(SYMBOLIC)
    page.get_by_role("button", name="Select").click()
    page.wait_for_selector("text=Dispatch table over m")
    page.get_by_label("Workload").fill("dense(")
    page.get_by_role("button", name="Select").click()
    page.wait_for_selector("[role=alert]")
    page.go_back()
    page.wait_for_selector("text=Dispatch table over m")
    assert page.locator("h1").inner_text() == "Select"
    page.wait_for_function("wanted => document.querySelector('[name=workload]').value === wanted", arg=SYMBOLIC)
    page.goto(shared)
    assert page.locator(".answer .why").count() == 1
    visitor.check()


def test_the_heat_map_leads_to_the_task_and_its_knobs(visit, seeded: Site) -> None:
    visitor = visit(seeded)
    page = visitor.page
    visitor.open("/ops")
    page.get_by_role("link", name="dense", exact=True).click()
    assert "wrong at" in page.locator(".verdict").inner_text()
    # Each row with a time has one winner, and it is marked in words too; one of a run just begun has none.
    rows = page.locator("table.heat tbody tr").all()
    timed = [row for row in rows if row.locator("td[class*=heat-]:not(.heat-none):not(.heat-absent)").count()]
    assert len(timed) >= 12
    for row in timed:
        assert row.locator("td.wins").count() == 1
        assert "selected" in row.locator("td.wins").text_content()
    page.locator("table.heat td.wins a").first.click()
    visitor.settle()
    page.wait_for_selector(".scatter canvas")
    names = page.locator("#knob option").all_inner_texts()
    page.select_option("#knob", label=names[-1])
    assert f"knob={names[-1]}" in page.url
    assert page.reload().status == 200
    for _ in range(2):
        visitor.settle()
        page.wait_for_selector(".scatter canvas")
        assert page.locator("#knob option:checked").inner_text() == names[-1]
        page.get_by_role("link", name="device", exact=True).click()
    visitor.settle()
    assert "by=device" in page.url
    visitor.check()


def test_stale_records_are_marked(visit, seeded: Site) -> None:
    visitor = visit(seeded)
    visitor.open(f"/tasks/{seeded.ids['stale']}")
    assert "0.00000000" in visitor.page.locator(".notice.warn").inner_text()
    visitor.open(f"/tasks/{seeded.ids['task']}")
    assert visitor.page.locator(".notice.warn").count() == 0
    store = Store(seeded.database)
    with store.read() as c:
        shown = c.scalar(sa.select(task.c.workload_id).where(task.c.id == seeded.ids["stale"]))
    store.close()
    visitor.open(f"/runs/{seeded.ids['done']}?workload={shown}")
    marked = visitor.page.locator("#live tr:has(.badge:text-is('stale')) th a")
    assert [a.get_attribute("href") for a in marked.all()] == [f"/tasks/{seeded.ids['stale']}"]
    name = marked.inner_text()
    visitor.open("/ops/dense")
    assert visitor.page.locator(".notice.warn .mono").all_inner_texts() == [name]


def test_a_run_of_several_workloads_shows_the_time_of_what_is_selected(visit, seeded: Site) -> None:
    visitor = visit(seeded)
    visitor.open(f"/runs/{seeded.ids['done']}")
    first = visitor.page.locator("[aria-label='Workloads of this run'] tr.chosen td")
    name, told_s = first.nth(4).locator("a").inner_text(), first.nth(5).inner_text()
    own = visitor.page.locator("#live tbody tr", has=visitor.page.get_by_text(name, exact=True))
    assert own.locator("td b").inner_text() == told_s


def test_records_are_filtered_and_paged_by_their_address(visit, seeded: Site) -> None:
    visitor = visit(seeded)
    page = visitor.page
    visitor.open("/records")
    page.get_by_label("Operator").fill("dense")
    page.get_by_label("Outcome").select_option("any failure")
    page.get_by_role("button", name="Filter").click()
    visitor.settle()
    assert "op=dense" in page.url
    assert "error=any" in page.url
    first = [int(t) for t in page.locator("tbody th").all_inner_texts()]
    assert first == sorted(first, reverse=True)
    assert page.locator("tbody .badge.error").count() == len(first) == 45
    page.get_by_role("link", name="More").click()
    second = [int(t) for t in page.locator("tbody th").all_inner_texts()]
    assert second
    assert max(second) < min(first)
    assert "error=any" in page.url
    visitor.open("/records?message=" + quote("_onerror=window.hacked"))
    assert "No record matches" in page.locator(".empty").inner_text()  # an underscore stands for itself
    page.get_by_label("Message has").fill("onerror=window.hacked")
    page.get_by_role("button", name="Filter").click()
    assert page.locator("tbody .badge.error").count() == page.locator("tbody tr").count() > 0
    visitor.check()


def test_tasks_are_filtered_by_the_words_of_their_workloads_and_their_status(visit, seeded: Site) -> None:
    visitor = visit(seeded)
    page = visitor.page
    visitor.open("/ops")
    page.get_by_label("Workload has").fill("dense [128,768]")
    page.get_by_label("Workload has").press("Enter")
    page.get_by_role("link", name="Their tasks").click()
    page.get_by_label("Status").select_option("timed")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("link", name="Best median").click()
    visitor.settle()
    for told in ("workload_has=dense+%5B128%2C768%5D", "status=timed", "sort=-median"):
        assert told in page.url
    rows = page.locator("tbody tr")
    assert rows.count() > 3
    assert all("[128,768]" in row.text_content() for row in rows.all())
    assert page.get_by_label("Target").get_attribute("list") == "targets"
    assert page.locator("#targets option").first.get_attribute("value") == seed.TARGET.key
    page.get_by_role("link", name="Clear").click()
    assert rows.count() == 50
    visitor.check()


def test_a_page_is_used_by_keyboard_alone(visit, seeded: Site) -> None:
    visitor = visit(seeded)
    page = visitor.page
    visitor.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    visitor.open(f"/runs/{seeded.ids['hostile']}")
    page.locator("details.failure summary").first.focus()
    page.keyboard.press("Enter")
    page.locator("details.failure pre").first.wait_for()
    visitor.check()


def test_a_dropped_log_is_read_and_what_is_wrong_with_it_is_told(
    visit, chromium, tmp_path: Path
) -> None:
    lines = (DATA / "autotvm_0_2.log").read_text().splitlines()
    log = tmp_path / "<img src=x onerror=window.hacked=1>.log"
    log.write_text("\n".join([lines[2], f'{{"input": ["{seed.SCRIPT}"], "result": []}}', lines[3]]))
    with serve(f"sqlite:///{tmp_path / 'plevel.db'}") as url:
        visitor = visit(Site(url, ""))
        page = visitor.page
        visitor.open("/import")
        for known in (0, 2):
            page.get_by_label("Choose logs").set_input_files(log)
            card = page.locator("#imported .card").first
            card.locator(".tiles").wait_for()
            assert card.locator("h2").inner_text() == log.name
            counts = card.locator(".tile b").all_inner_texts()
            assert counts == ["3", str(2 - known), str(known), "1"]
            told = card.locator("table").last.locator("tbody tr").inner_text()
            assert told.startswith("2\t")
            assert seed.SCRIPT in told
            assert visitor.violations() == []
            page.reload()
        page.get_by_label("Choose logs").set_input_files(DATA.parent / "versions.json")
        page.locator(".notice.warn").wait_for()
        assert "versions.json was not read to its end" in page.locator(".notice.warn").inner_text()
        visitor.faults = [f for f in visitor.faults if "422" not in f]
        visitor.check()


def test_files_of_equal_names_are_each_read(visit, tmp_path: Path) -> None:
    pair = ("database_workload.json", "database_tuning_record.json")
    files = {name: (DATA / name).read_bytes() for name in pair}
    log = (DATA / "autotvm_0_2.log").read_bytes().splitlines()

    def upload(name: str, content: bytes) -> dict[str, object]:
        return {"name": name, "mimeType": "text/plain", "buffer": content}

    with serve(f"sqlite:///{tmp_path / 'plevel.db'}") as url:
        visitor = visit(Site(url, ""))
        page = visitor.page
        visitor.open("/import")
        chosen = [upload("a.log", log[2]), upload("a.log", log[3]), *(upload(n, files[n]) for n in pair)]
        page.get_by_label("Choose logs").set_input_files(chosen)
        cards = page.locator("#imported .card")
        cards.nth(2).wait_for()
        assert sorted(cards.locator("h2").all_inner_texts()) == ["a.log", "a.log", pair[1]]
        page.locator("#imported .card .tiles").nth(2).wait_for()
        for card in cards.all():
            read, new, _, rejected = card.locator(".tile b").all_inner_texts()
            assert (int(new) > 0, read, rejected) == (True, new, "0")
        page.reload()
        # Which of them belong together is not known: each is sent by itself.
        page.get_by_label("Choose logs").set_input_files([*chosen[2:], *chosen[2:]])
        cards.nth(3).wait_for()
        assert sorted(cards.locator("h2").all_inner_texts()) == sorted([*pair, *pair])


def test_a_file_without_a_device_is_imported_with_the_given_device_model(
    visit, tmp_path: Path
) -> None:
    with serve(f"sqlite:///{tmp_path / 'plevel.db'}") as url:
        visitor = visit(Site(url, ""))
        page = visitor.page
        visitor.open("/import")
        for model, rejected in (("", "1"), (" NVIDIA H100 ", "0")):
            page.get_by_label("Device model").fill(model)
            page.get_by_label("Choose logs").set_input_files(DATA.parent / "foreign" / "add_one.autotune.json")
            card = page.locator("#imported .card").first
            card.locator(".tiles").wait_for()
            assert card.locator(".tile b").all_inner_texts()[3] == rejected
            if model:
                break
            assert "give its model" in card.inner_text()
            page.reload()
        visitor.open("/foreign")
        assert "NVIDIA H100" in page.locator("main").inner_text()
        visitor.check()


def test_a_model_leads_to_its_versions_and_what_it_goes_by(visit, seeded: Site) -> None:
    visitor = visit(seeded)
    page = visitor.page
    visitor.open("/models")
    page.get_by_role("link", name="version 3").click()
    assert page.locator("h1").inner_text() == f"Cost model {seeded.ids['model']}"
    assert page.locator("svg .dots").get_attribute("d").count("M") == 200
    assert "knob rows" in page.get_by_label("Importance of features").inner_text()
    page.get_by_role("link", name="version 1").click()
    assert "version 3, the newest, which is below the bar" in page.locator(".notice").inner_text()
    assert "Above the bar" in page.locator(".tiles").inner_text()
    assert "plevel model train dense" in page.locator(".empty").inner_text()
    visitor.check()


def test_the_overview_leads_to_a_network_and_the_selection_of_its_workloads(visit, seeded: Site) -> None:
    visitor = visit(seeded)
    page = visitor.page
    visitor.open("/")
    listed = page.get_by_label("Networks")
    listed.get_by_role("link", name="cccccccccccc").first.click()
    assert page.locator("h1").inner_text() == f"Network {seeded.ids['network']}"
    tiles = page.locator(".tiles").inner_text()
    for shown in ("40.0 ms", "25.0 ms", "1.60×", "of the pool openmp", "torch 2.13.0"):
        assert shown in tiles, shown
    workloads = page.get_by_label("Workloads of the network").locator("tbody tr")
    assert "dense_pack.cpu" in workloads.nth(0).inner_text()
    assert "the whole graph is not faster with it" in workloads.nth(1).inner_text()
    assert "aten.bmm" in page.locator(".card", has_text="Not covered").inner_text()
    assert "0.610 to 0.640" in page.get_by_label("Comparisons of the whole graph").inner_text()
    page.get_by_label("Networks").get_by_role("link").first.click()
    assert page.locator("h1").inner_text() == f"Network {seeded.ids['hostile_network']}"
    page.go_back()
    workloads.nth(0).get_by_role("link").click()
    assert "dense_pack.cpu" in page.locator("#main").inner_text()
    visitor.check()


def test_two_runs_of_a_task_are_compared_by_their_address(visit, seeded: Site, fresh_run) -> None:
    run_id, farm = fresh_run
    farm.search(run_id, 6)
    farm.finish(run_id)  # an equal run would join it
    again = farm.ask([RunWorkload(workload=seed.dense(64, 128, 96))], 40)
    farm.search(again, 5)
    with farm.store.read() as c:
        which = c.scalar(
            sa.select(sa.func.max(run_task.c.task_id))
            .join(task, task.c.id == run_task.c.task_id)
            .where(run_task.c.run_id == again, task.c.space.is_not(None))
        )
    visitor = visit(seeded)
    page = visitor.page
    visitor.open(f"/tasks/{which}?by=run")
    told = page.get_by_label("Result of each curve").locator("tbody tr")
    assert {f"run {run_id}", f"run {again}"} <= set(told.locator("th").all_inner_texts())
    page.get_by_label("Compare").select_option(f"run {again}")
    assert told.count() == 1
    assert told.inner_text().startswith(f"run {again}\t")
    assert "of 5" in told.inner_text()
    visitor.open(page.url.removeprefix(seeded.url))
    assert told.count() == 1
    visitor.check()


def test_what_is_filtered_is_exported(visit, seeded: Site) -> None:
    visitor = visit(seeded)
    page = visitor.page
    visitor.open(f"/records?op=dense&error=any&device={seeded.ids['device']}")
    with page.expect_download() as begun:
        page.get_by_role("link", name="NDJSON").click()
    lines = Path(begun.value.path()).read_text().splitlines()
    found = [r for r in map(json.loads, lines) if r["kind"] == "record"]
    assert found
    assert all(r["error"] and r["task"]["workload"]["op"] == "dense" for r in found)
    visitor.check()
