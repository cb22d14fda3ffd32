"""`python -m tests.quick`: the command line, with trials and finals that end soon.

Each lasts until its times are known within 2 or 1 %; on the busy cores of tests that is its whole budget.
"""

from __future__ import annotations

import msgspec

from plevel.cli.main import main
from plevel.client import Client
from strategy import record
from strategy.record import RunRequest, RunStatus

TRIALS = msgspec.structs.replace(record.SEARCH_POLICY, budget_s=0.015)
FINALS = msgspec.structs.replace(record.CONFIRM_POLICY, min_repeats=6, budget_s=0.05)
_create = Client.create_run


def _create_quick(client: Client, request: RunRequest) -> RunStatus:
    """Ask for a run; requests have the usual policies by default, whatever the module has by then."""
    flush = request.search_policy.cache_flush
    search, confirm = (msgspec.structs.replace(policy, cache_flush=flush) for policy in (TRIALS, FINALS))
    return _create(client, msgspec.structs.replace(request, search_policy=search, confirm_policy=confirm))


if __name__ == "__main__":
    record.CONFIRM_POLICY = FINALS  # of `plevel measure`
    Client.create_run = _create_quick
    main()
