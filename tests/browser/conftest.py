"""A service on a seeded database and one on an empty one, and a real browser to look at them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.store import migration
from service.store.db import Store
from tests.browser import seed
from tests.browser.visitor import Site, Visitor
from tests.limit import HANG_S
from tests.once import make_once
from tests.serve import serve


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    path = tmp_path_factory.mktemp("seeded") / "plevel.db"
    made = make_once("seeded", _fill)
    shutil.copy(made / "plevel.db", path)
    database = f"sqlite:///{path}"
    with serve(database) as url:
        yield Site(url, database, json.loads((made / "ids").read_text()))


def _fill(folder: Path) -> None:
    folder.mkdir()
    database = f"sqlite:///{folder / 'plevel.db'}"
    migration.upgrade(database)
    store = Store(database)
    (folder / "ids").write_text(json.dumps(seed.fill(store)))
    store.close()


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    database = f"sqlite:///{tmp_path_factory.mktemp('empty') / 'plevel.db'}"
    with serve(database) as url:
        yield Site(url, database)


@pytest.fixture(scope="module")  # while Playwright runs, its thread has an event loop, which tests of other files start
def chromium() -> Iterator[Any]:
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome", "chrome"))
    program = next(filter(None, found), None)
    if program is None:
        pytest.skip("no chromium on this host (Debian: apt install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Visitor]]:
    """Open a page of a site: `visit(site, width=360, scheme="dark")`."""
    contexts = []

    def make(site: Site, width: int = 1280, scheme: str = "light") -> Visitor:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        context.set_default_timeout(1000 * HANG_S)
        contexts.append(context)
        return Visitor(context.new_page(), site)

    yield make
    for context in contexts:
        context.close()
