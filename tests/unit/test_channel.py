"""The memory that a child and its handle share, beside their messages."""

from __future__ import annotations

import mmap
import os
import signal
import socket

from workers.fork import Channel


def test_the_time_of_a_mark_is_whole_whenever_it_is_read() -> None:
    """A time that is half-written would look like a stage that has lasted for ever."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours, mmap.mmap(-1, mmap.PAGESIZE))
    channel.mark(0)
    pid = os.fork()
    if pid == 0:
        while True:
            channel.mark(1)
    try:
        times = [channel.progress[1] for _ in range(500_000)]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ours.close()
        theirs.close()
    assert times == sorted(times)
