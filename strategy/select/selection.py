"""A selection: the implementation, its configuration, the reason, and its rivals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from strategy.op_strategy import Candidate
from strategy.record import Estimate
from strategy.select.evidence import Level, Measured
from strategy.space import Config
from strategy.table import html_table, time_cells
from strategy.target import Target
from strategy.workload import Workload


class Reason(StrEnum):
    """The evidence that decided; the later, the less it says of the installed code."""

    MEASURED = "measured"
    TRANSFERRED = "transferred"
    STALE = "stale"  # measured in another version than is installed
    ANCHOR = "anchor"
    ADVISED = "advised"  # another tool's winner, without a time
    PREDICTED = "predicted"
    PLEVEL = "plevel"


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence about one implementation, the selected one included.

    `predicted_s` is by the cost model or, where the selection's `stale` has it, the median of that version.
    """

    implementation: str
    version: str
    plevel: int
    valid: bool
    condition: str | None = None
    tunable: bool = False
    library: str | None = None
    config: Config | None = None
    estimate: Estimate | None = None
    level: Level | None = None
    target: str = ""  # the key of the target that the estimate is of
    model: str = ""  # its device model, empty if unknown
    predicted_s: float | None = None


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, its reason, and the rivals.

    `stale` has the implementations that are measured in other versions than the installed one alone, each with the
    newest of them; for the reason `stale` the selected one, whose time is of that version, is among them.
    """

    workload: Workload
    target: Target
    implementation: str
    version: str
    config: Config
    reason: Reason
    level: Level | None
    explanation: str
    partial: bool = False
    unmeasured: tuple[str, ...] = ()
    stale: dict[str, str] = {}
    rivals: tuple[Rival, ...] = ()

    def _repr_html_(self) -> str:
        rows = []
        for rival in self.rivals:
            known = "" if rival.valid else f"not valid: needs {rival.condition or 'constant shapes'}"
            last = known or str(rival.level or "")
            row = (rival.implementation, str(rival.plevel), *time_cells(rival.estimate), last)
            rows.append((row, rival.implementation == self.implementation))
        head = f"{self.workload} on {self.target}: {self.explanation}"
        return html_table(head, ("implementation", "plevel", "median", "95 %", "level"), rows)


def rank_rivals(
    known: Sequence[Candidate],
    valid: Sequence[Candidate],
    best: Mapping[str, Measured],
    predicted: Mapping[str, float] = {},
) -> tuple[Rival, ...]:
    """The known candidates with their measured or predicted times, the fastest first."""
    rivals = []
    for c in known:
        m = best.get(c.implementation)
        rivals.append(
            Rival(
                implementation=c.implementation, version=c.version, plevel=c.plevel, valid=c in valid,
                condition=None if c.condition is None else str(c.condition),
                tunable=c.tunable, library=c.library,
                config=m.config if m else None, estimate=m.estimate if m else None,
                level=m.level if m else None, target=m.target if m else "", model=m.model if m else "",
                predicted_s=predicted.get(c.implementation),
            )
        )
    # Then by plevel; sorted() keeps the order of registration on a tie.
    return tuple(
        sorted(
            rivals,
            key=lambda r: (not r.valid, r.estimate is None,
                           r.estimate.median_s if r.estimate else r.predicted_s or math.inf, -r.plevel),
        )
    )
