"""The page of the REST interface: complete without another host, under the policy of all pages."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from tests.browser.visitor import Site, Visitor


def test_it_shows_every_operation(seeded: Site, visit: Callable[..., Visitor]) -> None:
    document = httpx.get(f"{seeded.url}/openapi.json").json()
    visitor = visit(seeded)
    response = visitor.open("/docs")
    policy = response.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    visitor.page.wait_for_selector(".opblock")
    shown = visitor.page.locator(".opblock").count()
    assert shown == sum(len(methods) for methods in document["paths"].values())
    visitor.page.locator("#operations-health-healthz_healthz_get, .opblock").first.click()
    visitor.page.wait_for_selector(".opblock-body")
    visitor.check()  # nothing off the host, nothing that the policy has blocked
