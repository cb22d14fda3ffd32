"""`python -m tests.quick`: the command line, with trials and finals that end soon.

Each lasts until its times are known within 2 or 1 %; on the busy cores of tests that is its whole budget.
"""

from __future__ import annotations

import msgspec

from plevel.cli.main import main
from strategy import record

TRIALS = msgspec.structs.replace(record.SEARCH_POLICY, budget_s=0.015)
FINALS = msgspec.structs.replace(record.CONFIRM_POLICY, min_repeats=6, budget_s=0.05)

if __name__ == "__main__":
    record.SEARCH_POLICY, record.CONFIRM_POLICY = TRIALS, FINALS
    main()
