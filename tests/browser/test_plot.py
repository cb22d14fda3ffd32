"""Parallel coordinates: every name is whole, and within the plot, at any width."""

from __future__ import annotations

import itertools

import pytest

from tests.browser.visitor import Site


@pytest.mark.sample(2)
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("which", ["task", "hostile_task"])
def test_names_of_parallel_coordinates_are_whole(visit, seeded: Site, which: str, width: int) -> None:
    visitor = visit(seeded, width)
    page = visitor.page
    visitor.open(f"/tasks/{seeded.ids[which]}")
    page.wait_for_selector(".parallel .name")
    names = page.locator(".parallel .name").all_text_contents()
    assert names == [*page.locator("#knob option").all_text_contents(), "time"]
    page.locator(".parallel").scroll_into_view_if_needed()
    plot = page.locator(".parallel").bounding_box()
    boxes = [t.bounding_box() for t in page.locator(".parallel .name").all()]
    for box in boxes:
        assert plot["x"] <= box["x"]
        assert box["x"] + box["width"] <= plot["x"] + plot["width"]
        assert box["y"] + box["height"] <= plot["y"] + plot["height"]
    for above, below in itertools.pairwise(boxes):
        assert above["y"] + above["height"] <= below["y"]  # none lies on another
    assert page.locator(".parallel polyline").count() > 10
    visitor.check()


def test_the_importance_of_knobs_is_computed_on_demand(visit, seeded: Site) -> None:
    visitor = visit(seeded, 400)
    page = visitor.page
    visitor.open(f"/tasks/{seeded.ids['task']}")
    page.get_by_role("link", name="Compute from the trials").click()
    rows = page.get_by_label("Importance of knobs").locator("tbody th")
    rows.first.wait_for()
    assert sorted(rows.all_text_contents()) == sorted(page.locator("#knob option").all_text_contents())
    visitor.open(f"/tasks/{seeded.ids['hostile_task']}/importance")  # as without scripts
    assert page.locator("h1").inner_text() == "Importance of knobs"
    assert page.get_by_label("Importance of knobs").locator("tbody tr").count() == 3
    visitor.check()
    assert visitor.violations() == []
