"""Services and workers as processes, in weather of every kind at once: nothing is lost or doubled.

`benchmarks/soak.py` does it, for hours if one likes, and has the invariants, as SQL.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import soak
from service.store.db import Store
from tests.integration.derived import assert_derived

pytestmark = pytest.mark.in_turn("url")


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
def test_a_farm_in_bad_weather(
    url: str, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    said = soak.soak(url, tmp_path, 90.0, seed, trials=100)
    with capsys.disabled():
        print(f"\n{said}", end="")
    store = Store(url)
    try:
        assert_derived(store)
    finally:
        store.close()
