"""Messages about a child that died."""

from __future__ import annotations

import logging
import traceback

import pytest

from workers.sandbox import Died


def trace(message: str) -> str:
    try:
        raise MemoryError(message)
    except MemoryError:
        return traceback.format_exc().strip()


@pytest.mark.parametrize("cut", [0, 40])  # of a long trace only the end is kept
def test_of_a_trace_the_message_has_the_line_that_says_what_happened(
    caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    log = f"warming up\n{trace('Unable to allocate 3.64 TiB')}"[cut:]
    with caplog.at_level(logging.INFO):
        died = Died(0, 1, log)
    assert str(died) == "the child died (exit status 1): MemoryError: Unable to allocate 3.64 TiB"
    assert died.out_of_memory
    assert log in caplog.text


def test_the_line_is_bounded_and_other_words_stay() -> None:
    assert len(str(Died(0, 1, trace("x" * 5000)))) < 1100
    said = "terminate called\n  what(): std::bad_alloc"
    assert str(Died(6, 0, said)) == f"the child died (SIGABRT): {said}"
