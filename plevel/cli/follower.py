"""Following a run across interruptions of its service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from plevel.cli.location import Location
    from plevel.client import Client
    from strategy.record import RunStatus

AWAY_S = 3600.0  # time to wait for a service that does not answer
PAUSE_S = 1.0
_AWAY = (502, 503, 504)  # of a proxy without its service, or a service without its database


def follow(client: Client, run_id: int, place: Location, console: Console) -> Iterator[RunStatus]:
    """A run's statuses as `Client.follow` yields them; wait for a service that is away.

    Raises:
        UnreachableError: the service has been away for `AWAY_S`.
    """
    from plevel.client import ServiceError, UnreachableError

    say = partial(console.print, markup=False, soft_wrap=True)
    since: float | None = None
    while True:
        try:
            for status in client.follow(run_id):
                if since is not None:
                    since = None
                    say(f"{place.shown} answers again")
                yield status
            return
        except (UnreachableError, ServiceError) as error:
            if isinstance(error, ServiceError) and error.status not in _AWAY:
                raise
            if since is None:
                since = time.monotonic()
                say(f"{place.shown} does not answer; trying again (run {run_id} continues there)")
            elif time.monotonic() - since > AWAY_S:
                raise UnreachableError(
                    f"{place.shown} has not answered for {AWAY_S / 60:g} minutes: start it, and repeat the "
                    f"command or the call to follow run {run_id}"
                ) from error
        time.sleep(PAUSE_S)
