"""The number of pilot jobs that a backlog asks for.

All that a decision needs is read from the service's queue and the batch system, so that a scaler may end at any time
and another may go on anywhere; only back-off is lost with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plevel.client import ServiceError, UnreachableError
from plevel.pilots.engine import Engine, EngineError, Pilot
from strategy.table import show_number

_LONGEST_S = 900.0
_SILENT_S = 600.0  # longer than a started pilot takes to register its worker


@dataclass(frozen=True)
class Bounds:
    """The bounds of the number of pilots, and the number of queued jobs that one is worth."""

    least: int = 0
    most: int = 10
    jobs: int = 2


@dataclass(frozen=True)
class Backlog:
    """The queued jobs of a target, and the names of the live workers, of all and of those that have a lease."""

    queued: int
    live: frozenset[str]
    busy: frozenset[str]


@dataclass(frozen=True)
class Plan:
    """The pilots to submit, and the ids of those to cancel, none of which has started."""

    submit: int = 0
    cancel: tuple[str, ...] = ()


def plan(backlog: Backlog, pilots: tuple[Pilot, ...], bounds: Bounds) -> Plan:
    """Return what makes the pilots as many as wanted.

    Pilots that have a job keep it. Those that are pending, starting or idle take what is queued; more are submitted
    only if that is too much for them. Suspended ones do no work meanwhile: others are submitted in their place, up to
    the most of all together.
    """
    suspended = sum(p.suspended for p in pilots)
    busy = sum(p.name in backlog.busy and not p.suspended for p in pilots)
    wanted = min(max(busy - -backlog.queued // bounds.jobs, bounds.least) + suspended, bounds.most)
    if wanted >= len(pilots):
        return Plan(submit=wanted - len(pilots))
    pending = [p.id for p in pilots if p.waits]
    return Plan(cancel=tuple(pending[::-1][: len(pilots) - wanted]))


@dataclass(eq=False)
class Scaler:
    """Keep as many pilots as a backlog asks for, by one `step` after the other.

    Args:
        batch: the batch system.
        look: reads the backlog.
        command: of a pilot.
        bounds: of their number.
        every_s: seconds between steps, from which back-off starts.
        idle_s: seconds for which pending pilots are kept that are too many, as idle ones are.
        say: takes lines for people.
        logs: the folder of the pilots' logs.
        clock: seconds, as of `time.monotonic`.
    """

    batch: Engine
    look: Callable[[], Backlog]
    command: str
    bounds: Bounds
    every_s: float
    idle_s: float
    say: Callable[[str], None]
    logs: Path
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._pause_s = self.every_s  # doubled by each failure
        self._resume_at = 0.0
        self._idle: set[str] = set()  # pilots that have not been seen with a job
        self._silent: dict[str, float] = {}  # started pilots without a live worker, and since when
        self._excess: dict[str, float] = {}  # pending pilots that were too many at the last step, and since when
        self._suspended: frozenset[str] = frozenset()

    def step(self) -> bool:
        """Look once, submit and cancel; return False if the service or the batch system failed."""
        try:
            backlog = self.look()
            pilots = self.batch.pilots()
        except (EngineError, ServiceError, UnreachableError) as error:
            if not isinstance(error, EngineError):
                self._silent.clear()  # workers could not register either
            self.say(f"{error}; trying again in {self.every_s:g} s")
            return False
        self._clean()
        self._tell_suspended(pilots)
        pilots = self._cancel_silent(backlog, pilots)
        self._judge(backlog, pilots)
        wanted = plan(backlog, pilots, self.bounds)
        try:
            if wanted.submit and self.clock() >= self._resume_at:
                self.say(f"{describe(backlog, pilots)}; submitting {wanted.submit}")
                for _ in range(wanted.submit):
                    self._idle.add(self.batch.submit(self.command))
            # The queue of a run is empty for moments, and a pilot that is submitted anew waits behind all others.
            known, now = self._excess, self.clock()
            self._excess = {one: known.get(one, now) for one in wanted.cancel}
            cancelled = [one for one, since in self._excess.items() if one in known and now - since >= self.idle_s]
            if cancelled:
                self.say(f"{describe(backlog, pilots)}; cancelling {len(cancelled)} that have not started")
                self.batch.cancel(cancelled)
                self._idle.difference_update(cancelled)
        except EngineError as error:
            self._back_off(str(error))
            return False
        return True

    def _clean(self) -> None:
        """Cancel pilots that the batch system has given up. One that it keeps holds up no other."""
        try:
            for lost in self.batch.clean():
                self.say(f"pilot {lost.id} was cancelled, as it could not be started: {lost.given_up}")
        except EngineError as error:
            self.say(f"{error}; trying again in {self.every_s:g} s")

    def _tell_suspended(self, pilots: tuple[Pilot, ...]) -> None:
        """Say once of each pilot that the batch system has suspended it, and that it goes on."""
        known, self._suspended = self._suspended, frozenset(p.id for p in pilots if p.suspended)
        if new := sorted(self._suspended - known):
            self.say(
                f"pilots {', '.join(new)} are suspended: they take no job until the batch system resumes them, and "
                "count towards --max"
            )
        if resumed := sorted(p.id for p in pilots if p.id in known - self._suspended):
            self.say(f"pilots {', '.join(resumed)} go on")

    def _cancel_silent(self, backlog: Backlog, pilots: tuple[Pilot, ...]) -> tuple[Pilot, ...]:
        """Cancel pilots without a live worker, as where a node has lost track of a job; return the others.

        One that the batch system keeps holds up no other: it counts no more, and is cancelled again at the next step.
        """
        now, known = self.clock(), self._silent
        self._silent = {
            p.id: known.get(p.id, now)
            for p in pilots
            if not (p.waits or p.suspended or p.name in backlog.live)
        }
        stuck = [one for one, since in self._silent.items() if now - since >= _SILENT_S]
        if stuck:
            self.say(f"cancelling {', '.join(stuck)}: started, but without a worker for {_SILENT_S / 60:g} minutes")
            try:
                self.batch.cancel(stuck)
            except EngineError as error:
                self.say(f"{error}; trying again in {self.every_s:g} s")
        return tuple(p for p in pilots if p.id not in stuck)

    def _judge(self, backlog: Backlog, pilots: tuple[Pilot, ...]) -> None:
        """Back off if pilots ended without a job although there are jobs, until another one gets its first."""
        ended = self._idle - {p.id for p in pilots}
        working = {p.id for p in pilots if p.name in backlog.busy}
        if self._idle & working:  # older ones say nothing of nodes that end each new one
            self._pause_s, self._resume_at = self.every_s, 0.0
        self._idle = {p.id for p in pilots} & (self._idle | {p.id for p in pilots if p.waits}) - working
        if ended and backlog.queued:
            self._back_off(
                f"{show_number(len(ended), 'pilot')} ended without a job though {backlog.queued} are queued: "
                f"see the logs in {self.logs}"
            )

    def _back_off(self, reason: str) -> None:
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        self._resume_at = self.clock() + self._pause_s
        self.say(f"{reason}; backing off for {self._pause_s:g} s")


def describe(backlog: Backlog, pilots: tuple[Pilot, ...]) -> str:
    """A line of the backlog and the pilots."""
    waiting = sum(p.waits for p in pilots)
    suspended = sum(p.suspended for p in pilots)
    busy = sum(p.name in backlog.busy and not p.suspended for p in pilots)
    return (
        f"{show_number(backlog.queued, 'queued job')}; {show_number(len(pilots), 'pilot')}: {waiting} pending, "
        f"{busy} with a job" + (f", {suspended} suspended" if suspended else "")
    )
