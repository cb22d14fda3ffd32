"""Tests of the pages without a browser: vendored files, headers, and names that are addresses."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
import pytest

from service.dashboard.view import STATIC, op_url
from service.dashboard.workload_text import FAULTS, read_workload
from strategy.workload import Input
from tests.browser import seed
from tests.browser.visitor import Site

TEMPLATES = STATIC.parent / "templates"


@pytest.mark.parametrize("folder", [STATIC / "vendor", Path(__file__).parent / "vendor"])
def test_vendored_files_have_their_checksums_and_licences(folder: Path) -> None:
    listed = [line.split() for line in (folder / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in listed} == {p.name for p in folder.iterdir() if p.suffix in (".js", ".css")}
    for digest, name in listed:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
        assert (folder / f"{name.partition('.')[0]}.LICENSE").exists(), name


@pytest.mark.parametrize("template", sorted(TEMPLATES.glob("*.html")), ids=lambda p: p.name)
def test_no_template_has_inline_script_or_style_or_trusts_text(template: Path) -> None:
    text = template.read_text()
    for forbidden in ("style=", "onclick", "onload", "|safe", "autoescape false", "http://", "https://", "hx-on"):
        assert forbidden not in text, forbidden
    assert text.count("<script") == text.count("<script src=")


def test_every_page_has_a_policy_and_no_page_is_cached(seeded: Site) -> None:
    for path in ("/", "/runs", op_url(seed.HOSTILE_OP), "/tasks/999999"):
        headers = httpx.get(seeded.url + path, headers={"accept": "text/html"}).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"


def test_static_files_are_cached_for_good_under_an_address_of_their_content(seeded: Site) -> None:
    page = httpx.get(seeded.url + "/").text
    style = page.partition('href="/static/style.css')[2].partition('"')[0]
    response = httpx.get(f"{seeded.url}/static/style.css{style}")
    assert "immutable" in response.headers["cache-control"]
    assert httpx.get(f"{seeded.url}/static/../view.py").status_code == 404
    assert httpx.get(f"{seeded.url}/static/%2e%2e/view.py").status_code == 404


def test_a_workload_is_read_as_it_is_written() -> None:
    found = read_workload(' dense(data=float32[128,768], weight=float32[3072,768]:const){"a":[1,2]} ')
    assert found.op == "dense"
    assert found.inputs == (
        Input("data", "float32[128,768]"), Input("weight", "float32[3072,768]", constant=True)
    )
    assert found.attrs == {"a": [1, 2]}
    assert read_workload(found.key) == found
    assert read_workload(seed.HOSTILE.key) == seed.HOSTILE


@pytest.mark.parametrize(
    "text",
    ["dense", "dense(", "(a=float32[1])", "dense(data)", "dense(a=float32[1]){",
     "dense(a=float32[1])[1]", "{", '{"op": 3}', '{"op":' * 100_000, "x" * 30_000],
)
def test_what_is_no_workload_is_shown_beside_the_form(text: str) -> None:
    with pytest.raises(FAULTS):
        read_workload(text)
