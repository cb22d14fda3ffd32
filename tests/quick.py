"""`python -m tests.quick`: the command line, with finals that end soon.

A final lasts until its times are known within 1 %; on the busy cores of tests that is its whole budget.
"""

from __future__ import annotations

import msgspec

from plevel.cli.main import main
from strategy import record

FINALS = msgspec.structs.replace(record.CONFIRM_POLICY, min_repeats=6, budget_s=0.05)

if __name__ == "__main__":
    record.CONFIRM_POLICY = FINALS
    main()
