"""The end of a worker by signals: the first drains it, another stops it."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from strategy.ending import ending_signals


@contextlib.contextmanager
def ended_by_signals(drain: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    """Call `drain` at the first signal during the block, and `stop` at the second, each in a thread of its own.

    So `stop` is called whatever becomes of `drain`. A signal's handler runs in the middle of other code: it would wait
    for ever for a lock that this holds, such as an event's. After the block, further signals are ignored if there was
    one, as they would make a failure of an end that was asked for.
    """
    given: queue.SimpleQueue[int] = queue.SimpleQueue()  # its `put` may interrupt itself
    came = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        given.put(number)

    def obey() -> None:
        given.get()
        threading.Thread(target=drain, name="drain", daemon=True).start()
        given.get()
        stop()

    threading.Thread(target=obey, name="signals", daemon=True).start()
    for number in ending_signals():
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        if came:
            for number in ending_signals():
                signal.signal(number, signal.SIG_IGN)
