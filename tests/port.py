"""Ports for processes that must be told theirs, and for those that find nobody there."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_FIRST = 10_000


def free_port() -> int:
    """A port of this host that nobody has, nor gets meanwhile by asking for any.

    It lies below those that the kernel hands out: tests run beside each other.
    """
    handed_out = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    end = max(int(handed_out[0]), _FIRST + 1000)
    while True:
        port = random.SystemRandom().randrange(_FIRST, end)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
