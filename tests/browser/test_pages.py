"""Every page in a real browser: on a seeded and an empty database, narrow and wide, light and dark."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from service.dashboard.view import op_url
from tests.browser import seed
from tests.browser.visitor import WIDTHS, Site

MAX_PAGE_BYTES = 300_000
SYMBOLIC = "dense(data=float32[m,768],weight=float32[3072,768]:const)"
CONCRETE = SYMBOLIC.replace("[m,", "[128,")
EMPTY = ["/", "/runs", "/ops", "/select", "/devices", "/foreign", "/networks", "/models", "/records",
         "/tasks"]


def _select(workload: str, **more: str) -> str:
    return "/select?" + urlencode({"workload": workload, "target": seed.TARGET.key, **more})


def _pages(ids: dict[str, int]) -> list[str]:
    return [
        *EMPTY, "/import", "/runs/new",
        *(f"/runs/{ids[name]}" for name in ("done", "hostile", "live")),
        f"/tasks/{ids['task']}", f"/tasks/{ids['task']}?x=time&by=run", f"/tasks/{ids['stale']}",
        f"/tasks/{ids['hostile_task']}", "/ops/dense", "/ops/dense?value=time",
        op_url(seed.HOSTILE_OP), _select(CONCRETE), _select(SYMBOLIC), _select(CONCRETE, policy="tvm"),
        _select(seed.HOSTILE.key), "/records?op=dense&error=any", f"/records/{ids['failed_record']}",
        f"/networks/{ids['network']}", f"/networks/{ids['hostile_network']}",
        f"/devices/{ids['device']}", *(f"/models/{ids['model'] + i}" for i in (-2, 0, 1)),
    ]


# Each width and each scheme, and in each every other page; all four pairs, and all of their pages, with `--full`.
LOOKS = [
    (WIDTHS[0], "light"), (WIDTHS[1], "dark"),
    *(pytest.param(*p, marks=pytest.mark.full) for p in ((WIDTHS[0], "dark"), (WIDTHS[1], "light"))),
]


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_every_page_of_a_full_database(visit, seeded: Site, width: int, scheme: str, full: bool) -> None:
    visitor = visit(seeded, width, scheme)
    found = {}
    pages = _pages(seeded.ids)
    for path in pages if full else pages[WIDTHS.index(width) :: 2]:
        response = visitor.open(path)
        assert response.status == 200, path
        assert visitor.page.locator("h1").count() == 1, path
        assert visitor.page.evaluate("window.shift") < 0.02, f"{path} moves while it loads"
        visitor.check()
        if violations := visitor.violations():
            found[path] = violations
    assert found == {}
    assert max(visitor.sizes.values()) < MAX_PAGE_BYTES


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_of_an_empty_database_says_what_to_do(visit, empty: Site, width: int, full: bool) -> None:
    visitor = visit(empty, width)
    for path in EMPTY if full else EMPTY[WIDTHS.index(width) :: 2]:
        assert visitor.open(path).status == 200, path
        assert visitor.page.locator(".empty").count() >= 1, path
        visitor.check()
        assert visitor.violations() == [], path


def test_commands_to_copy_name_this_service(visit, empty: Site) -> None:
    visitor = visit(empty)
    visitor.page.route("**/page.js*", lambda route: route.abort())  # before it, as longer lines would move the others
    for path, command in (
        ("/", "--url {}"), ("/runs", "--url {}"), ("/devices", "plevel worker --url {}"),
        ("/networks", '"database": "{}"'),
    ):
        visitor.open(path)
        text = visitor.page.locator("main").inner_text()
        assert command.format(empty.url) in text, path
        assert "this service’s URL" not in text, path


def test_a_condition_is_one_line_and_filters_leave_room_on_a_phone(visit, seeded: Site) -> None:
    visitor = visit(seeded, 390)
    visitor.open(_select(SYMBOLIC))
    whole = "spans => spans.map(s => s.offsetHeight < 2 * parseFloat(getComputedStyle(s).fontSize))"
    lines = visitor.page.eval_on_selector_all("#answer tbody th .nowrap", whole)
    assert lines and all(lines)
    visitor.open("/records")
    assert visitor.page.eval_on_selector(".filters", "form => form.offsetHeight") < 450


# The numbers, and the parts of names between underscores and points, that a page breaks between lines.
BROKEN = """() => {
  const found = [];
  for (const [within, part] of [["main .key", /[0-9]+/g], [".heat thead .mono", /[^_.]+[_.]?/g]])
    for (const one of document.querySelectorAll(within)) {
      const texts = document.createTreeWalker(one, NodeFilter.SHOW_TEXT);
      while (texts.nextNode())
        for (const m of texts.currentNode.data.matchAll(part)) {
          const range = document.createRange();
          range.setStart(texts.currentNode, m.index);
          range.setEnd(texts.currentNode, m.index + m[0].length);
          if (range.getClientRects().length > 1) found.push(`${m[0]} of ${one.textContent}`);
        }
    }
  return found;
}"""


@pytest.mark.parametrize("width", [390, 1024])
def test_lines_break_between_the_parts_of_workloads_and_names(visit, seeded: Site, width: int) -> None:
    visitor = visit(seeded, width)
    for path in ("/ops/dense", "/tasks", "/runs", f"/networks/{seeded.ids['network']}"):
        visitor.open(path)
        assert visitor.page.evaluate(BROKEN) == [], path


def test_an_error_is_a_page_that_leads_on(visit, seeded: Site) -> None:
    visitor = visit(seeded)
    for path, status in (
        ("/tasks/999999", 404), ("/runs/999999", 404), ("/devices/999999", 404), ("/models/999999", 404),
        ("/networks/999999", 404),
        ("/ops/nothing", 404), ("/nowhere", 404), ("/records?run=x", 422),
    ):
        assert visitor.page.goto(seeded.url + path).status == status, path
        assert visitor.page.locator(".notice").inner_text(), path
    assert visitor.violations() == []
    visitor.page.get_by_role("link", name="Operators").last.click()
    assert visitor.page.url.endswith("/ops")


def test_the_interface_still_answers_with_problem_documents(chromium, seeded: Site) -> None:
    context = chromium.new_context(extra_http_headers={"accept": "text/html"})
    for path in ("/v1/runs/999999", "/tasks/999999/points.json"):
        response = context.request.get(seeded.url + path)
        assert response.status == 404
        assert response.headers["content-type"] == "application/problem+json"
    context.close()
