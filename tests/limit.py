"""The limit of waits in tests: it ends a hang, and is no promise of how fast anything is."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

HANG_S = 300.0


def wait_until(condition: Callable[[], object], what: str = "it", look_s: float = 0.02) -> None:
    """Look again and again until the condition holds; fail the test if it never does.

    Args:
        what: the noun of the message.
        look_s: seconds from one look to the next.
    """
    give_up = time.monotonic() + HANG_S
    while not condition():
        if time.monotonic() > give_up:
            pytest.fail(f"{what} did not happen in {HANG_S:.0f} s")
        time.sleep(look_s)
