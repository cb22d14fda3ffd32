"""A browser's page that notes all that a user should never meet, and the site it looks at."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WIDTHS = (360, 2560)
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
# Record the layout shift of a page that loads as `window.shift`.
SHIFTS = """window.shift = 0; new PerformanceObserver(list => list.getEntries().forEach(e => {
  if (!e.hadRecentInput) window.shift += e.value;
})).observe({type: "layout-shift", buffered: true});"""


@dataclass
class Site:
    """A service that is up, and the ids of what its database holds."""

    url: str
    database: str
    ids: dict[str, int] = field(default_factory=dict)


class Visitor:
    """A browser's page that notes all that a user should never meet."""

    def __init__(self, page: Any, site: Site) -> None:
        self.page = page
        self.site = site
        self.faults: list[str] = []
        self.sizes: dict[str, int] = {}
        host = urlsplit(site.url).netloc
        page.add_init_script(SHIFTS)
        page.on("console", lambda m: self._note(f"console {m.type}: {m.text}", m.type != "log"))
        page.on("pageerror", lambda e: self._note(f"script: {e}"))
        page.on("dialog", lambda d: (self._note(f"dialog: {d.message}"), d.dismiss()))
        page.on("request", lambda r: self._note(f"off the host: {r.url}", _is_off(r.url, host)))

    def _note(self, text: str, wrong: bool = True) -> None:
        if wrong:
            self.faults.append(text)

    def open(self, path: str) -> Any:
        """Go to a page and wait until its charts and fragments are there."""
        response = self.page.goto(self.site.url + path, wait_until="load")
        self.sizes[path] = len(response.body())
        self.settle()
        return response

    def settle(self) -> None:
        """Until nothing is under way but the streams of a live page."""
        busy = (".htmx-request", "[data-curve] > noscript", ".scatter > noscript")
        self.page.wait_for_selector(
            "html" + "".join(f":not(:has({b}))" for b in busy), state="attached"
        )

    def check(self) -> None:
        """Fails for any fault so far, a script of the database's that ran, or content cut off."""
        assert self.faults == []
        assert self.page.evaluate("window.hacked") is None
        overflow = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert overflow <= 0, f"{self.page.url} is {overflow} pixels too wide"

    def violations(self) -> list[str]:
        """The violations that axe-core finds."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{v['id']}: {n['html']} {n.get('failureSummary', '')}"
            for v in found["violations"]
            for n in v["nodes"]
        ]


def _is_off(url: str, host: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme not in ("data", "blob", "about") and parts.netloc != host
