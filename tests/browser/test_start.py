"""Starting a run from the page: what a form leads to, and what is said of a wrong one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from service.access import token
from service.store import migration
from service.store.db import Store
from service.store.tables import TokenScope
from service.store.tables import run as run_table
from tests.browser import seed
from tests.browser.test_pages import CONCRETE
from tests.browser.visitor import WIDTHS, Site
from tests.serve import serve

SPEC = "llvm -mcpu=znver4 -num-cores=2"
OTHER = seed.dense(16, 64, 32).key


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Site]:
    database = f"sqlite:///{tmp_path / 'plevel.db'}"
    migration.upgrade(database)
    with serve(database) as url:
        yield Site(url, database)


def _runs(site: Site) -> list[sa.Row]:
    with contextlib.closing(Store(site.database)) as store, store.read() as c:
        return list(c.execute(sa.select(run_table).order_by(run_table.c.id)))


def test_a_form_leads_to_the_page_of_its_run(visit, own: Site) -> None:
    visitor = visit(own)
    page = visitor.page
    visitor.open("/runs")
    page.get_by_role("link", name="Start a run").click()
    page.get_by_label("Workloads, one").fill(f"{CONCRETE}\n\n {OTHER} \n")
    page.get_by_label("Target").fill(SPEC)
    page.get_by_label("Trials").fill("64")
    page.get_by_label("Namespace").fill("mine")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    (row,) = _runs(own)
    assert page.url.endswith(f"/runs/{row.id}")
    assert (row.namespace, row.request["trials"], row.forced) == ("mine", 64, False)
    assert [w["workload"]["op"] for w in row.request["workloads"]] == ["dense", "dense"]
    # The same once more joins it.
    page.go_back()
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    assert len(_runs(own)) == 1
    visitor.check()


@pytest.mark.parametrize("width", WIDTHS)
def test_each_fault_stands_beside_its_field(visit, own: Site, width: int) -> None:
    visitor = visit(own, width)
    page = visitor.page
    wrong = {
        "Workloads, one": ("dens(data=float32[1,2],weight=float32[3,2])", "did you mean dense?"),
        "Target": ("llwm", "did you mean llvm?"),
        "Trials": ("many", "whole number from 1"),
        "Namespace": ("No Name", "first a letter or digit"),
    }
    visitor.open("/runs/new")
    for label, (text, _) in wrong.items():
        page.get_by_label(label).fill(text)
    page.get_by_role("button", name="Start").click()
    page.locator(".fault").first.wait_for()
    for label, (text, told) in wrong.items():
        field = page.get_by_label(label)
        assert field.input_value() == text
        assert field.get_attribute("aria-invalid") == "true"
        assert told in page.locator(f"#{field.get_attribute('aria-describedby')}").inner_text()
    assert visitor.violations() == []
    visitor.faults = [f for f in visitor.faults if "422" not in f]
    visitor.check()
    assert _runs(own) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("dens(data=float32[1,2],weight=float32[3,2])", "did you mean dense?"),
        ("dens", "did you mean dense?"),
        ("dense", "write dense(data=float32[…],weight=float32[…])"),
        (f"{CONCRETE}\ndense(data=flot32[1,2],weight=float32[3,2])", "line 2: "),
        ('conv2d(data=float32[1,1,9,9],weight=float32[1,1,3,3]){"stride":2}', "did you mean strides?"),
        ("dense(data=float32[m,2],weight=float32[3,2])", "symbolic"),
        ("", "one per line"),
    ],
)
def test_a_wrong_workload_says_what_is_meant(seeded: Site, text: str, told: str) -> None:
    fields = {"workload": text, "target": seed.TARGET.key, "trials": "8", "namespace": "default"}
    answer = httpx.post(f"{seeded.url}/runs/new", data=fields)
    assert answer.status_code == 422
    fault = answer.text.partition('id="workload-fault" role="alert">')[2].partition("</span>")[0]
    assert told in fault


def test_another_site_s_form_and_one_without_scope_start_nothing(own: Site) -> None:
    with contextlib.closing(Store(own.database)) as store, store.write() as c:
        read, submit = (
            token.create(c, s.value, {s}).secret for s in (TokenScope.READ, TokenScope.SUBMIT)
        )
    fields = {"workload": CONCRETE, "target": SPEC, "trials": "8", "namespace": "default"}

    def post(secret: str, **headers: str) -> int:
        url = f"{own.url}/runs/new"
        return httpx.post(url, data=fields, auth=("", secret), headers=headers).status_code

    assert post(submit, origin="http://evil.example") == 403
    assert post(submit, **{"sec-fetch-site": "cross-site"}) == 403
    assert post(read) == 403
    assert _runs(own) == []
    assert post(submit) == 303
    assert len(_runs(own)) == 1


def test_a_request_that_is_not_admitted_gets_a_page(own: Site) -> None:
    with contextlib.closing(Store(own.database)) as store, store.write() as c:
        secret, other = (token.create(c, s.value, {s}).secret for s in (TokenScope.READ, TokenScope.SUBMIT))
    browser = {"accept": "text/html"}
    refused = httpx.post(f"{own.url}/runs/new", auth=("", secret), headers=browser)
    assert refused.status_code == 403
    assert "<h1>This is not allowed</h1>" in refused.text and "--scope submit" in refused.text
    assert "to use another, open a private window" in refused.text
    foreign = httpx.post(f"{own.url}/runs/new", auth=("", other), headers={**browser, "sec-fetch-site": "cross-site"})
    assert foreign.status_code == 403
    assert "is another site" in foreign.text and "private window" not in foreign.text
    unknown = httpx.get(own.url, headers=browser)
    assert unknown.status_code == 401
    assert unknown.headers["www-authenticate"].startswith("Basic ")
    assert unknown.headers["content-type"].startswith("text/html") and "<h1>A token is needed</h1>" in unknown.text
    for path, headers in (("/v1/runs", browser), ("/", {"accept": "application/json"})):
        assert httpx.get(own.url + path, headers=headers).headers["content-type"] == "application/problem+json"
    assert httpx.get(own.url, headers={**browser, "host": "["}).status_code == 400


def test_an_interrupted_run_says_how_to_go_on(own: Site) -> None:
    fields = {"workload": CONCRETE, "target": SPEC, "trials": "8", "namespace": "mine"}
    path = httpx.post(f"{own.url}/runs/new", data=fields).headers["location"]
    assert "Interrupted" not in httpx.get(own.url + path).text
    assert "interrupted" not in httpx.get(f"{own.url}/runs").text
    with contextlib.closing(Store(own.database)) as store, store.write() as c:
        c.execute(sa.update(run_table).values(tuner="elsewhere", tuner_until=1.0))
    page = httpx.get(own.url + path).text
    assert "its measurements are kept" in page
    assert f"plevel tune --run {path.rsplit('/', 1)[1]} --namespace mine --database URL" in page
    assert "A service that tunes takes it over by itself" in page
    assert '<span class="badge state-interrupted">interrupted</span>' in httpx.get(f"{own.url}/runs").text
