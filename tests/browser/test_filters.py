"""Filters of lists by words of workloads and targets, by their addresses alone, without scripts."""

from __future__ import annotations

import html
import re

import httpx
import pytest

from tests.browser import seed
from tests.browser.test_lists import _get
from tests.browser.visitor import Site

WORDS = "DENSE 3072,768 [128,"


@pytest.mark.parametrize("path", ["/runs", "/tasks", "/records", "/ops/dense"])
def test_a_list_of_workloads_that_have_all_words_keeps_them(seeded: Site, path: str) -> None:
    """The field, the headings and the pages; links to what is not filtered, and to what is on an empty list."""
    page = _get(seeded, path, workload_has=WORDS)
    listed = re.sub("<wbr[^>]*>", "", page).partition("<tbody>")[2].partition("</tbody>")[0]
    keys = set(re.findall(r"\(data=float32[^<]*", listed))
    live = {"(data=float32[128,768],weight=float32[3072,768]:const)"}
    assert keys <= {html.escape(f"({seed.dense(128, 3072, 768).key.partition('(')[2]}")} == live
    assert keys or path == "/runs"  # a run is shown by its first workload
    assert f'name="workload_has" value="{html.escape(WORDS)}"' in page
    for address in re.findall(r'(?:aria-sort="\w+"><a|rel="next") href="([^"]*)"', page):
        assert "workload_has=DENSE+3072%2C768+%5B128%2C" in address
    assert re.search(rf'<a class="button" href="{path}(\?[^"]*)?">(Clear|All shapes)<', page)
    for words in ("dense softmax", "d_nse", "dense %"):
        nothing = _get(seeded, path, workload_has=words)
        assert re.search(rf'class="empty card">No .* matches. <a href="{path}', nothing), words


def test_operators_and_models_are_filtered(seeded: Site) -> None:
    assert ">dense</a>" in _get(seeded, "/ops", workload_has="float32 [16,768]")
    assert ">dense</a>" in _get(seeded, "/ops", target="znver4")
    assert 'href="/ops/dense?workload_has=float32"' in _get(seeded, "/ops", workload_has="float32")
    assert "No operator has a task that matches" in _get(seeded, "/ops", workload_has="float64")
    assert ">dense</a>" in _get(seeded, "/models", op="ENS", answers="no")
    assert "No cost model matches" in _get(seeded, "/models", op="dense", answers="yes")


def test_networks_are_found_by_what_is_shown_of_their_digest_and_by_words_of_their_device(seeded: Site) -> None:
    page = _get(seeded, "/networks")
    rows = re.findall(r'href="/networks/(\d+)">(c+)</a>', page)
    assert len(rows) == 2
    assert re.findall(r'href="/networks/(\d+)">(c+)</a>', _get(seeded, "/networks", graph=f" {rows[0][1]}")) == rows
    for query in ({"graph": "d"}, {"graph": "_"}, {"device": "no such"}):
        assert "No network matches" in _get(seeded, "/networks", **query)


@pytest.mark.parametrize(
    ("path", "query", "told"),
    [
        ("/tasks", {"status": "measured"}, "status: &#39;measured&#39; is unknown: expected one of timed, failed"),
        ("/runs", {"state": "ended"}, "state: &#39;ended&#39; is unknown"),
        ("/models", {"answers": "1"}, "answers: &#39;1&#39; is unknown: expected one of yes, no"),
        ("/records", {"target": " ".join(map(str, range(60)))}, "a filter by 60 words: at most 50"),
    ],
)
def test_a_filter_that_cannot_be_is_one_line(seeded: Site, path: str, query: dict[str, str], told: str) -> None:
    answer = httpx.get(seeded.url + path, params=query, headers={"accept": "text/html"})
    assert answer.status_code == 422
    assert told in answer.text.partition('class="notice warn">')[2].partition("</p>")[0]
