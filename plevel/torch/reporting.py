"""Reports of confirmations to the service or database that the selections are from.

Nothing of a model is sent but its workloads, digests, and times.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import torch

from plevel.cli.location import locate_database
from plevel.database import is_lock
from plevel.direct import connect
from plevel.kernel_selection import find_records
from plevel.torch.explanation import Report, Row
from plevel.torch.verdict import Verdict
from strategy.confirmation import Confirmation, Part
from strategy.target import Target

REST_S = 30.0  # after a failure, before the same place is tried again

_away_until: dict[str, float] = {}


def report(made: Report, verdict: Verdict, target: Target, database: str | None) -> None:
    """Records a verdict at the place of selections; without one, or in a lock file, nothing.

    A failure costs no graph its kernels: the first at each place is warned of.
    """
    place = find_records(database)
    if place is None or time.monotonic() < _away_until.get(place, 0.0):
        return
    if "://" not in place and is_lock(Path(place)):
        return
    is_service = place.startswith(("http://", "https://"))
    try:
        with connect(place, None) if is_service else connect(None, locate_database(place)) as records:
            records.record_network(_confirmation(made, verdict, target))
    except Exception as error:
        if place not in _away_until:
            warnings.warn(
                f"plevel: the times of a graph are not recorded, and its kernels stay: {error}", stacklevel=2
            )
        _away_until[place] = time.monotonic() + REST_S


def _confirmation(made: Report, verdict: Verdict, target: Target) -> Confirmation:
    return Confirmation(
        key=verdict.key, graph=verdict.graph, framework=f"torch {torch.__version__}",
        target=target, parts=tuple(map(_part, made.rows)),
        missed=dict(made.missed), steps=verdict.steps, refused=verdict.refused,
        before_s=verdict.before_s, after_s=verdict.after_s,
    )  # fmt: skip


def _part(row: Row) -> Part:
    # The message of a failed build has paths of this machine.
    reason = "it has no kernel here" if row.failed else row.reason
    return Part(
        workload=row.workload, occurrences=row.occurrences, share=row.share,
        implementation=row.implementation, reason=reason[:4000], config=row.config,
    )  # fmt: skip
