"""Ownership leases: a lease on a run's row, which the service that tunes it holds.

The owner renews it. Another service takes over when it expires, or at once if the owner's process is known to
be gone. A slow owner must not write after that: each transaction that writes calls `lasts`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import sqlalchemy as sa

from service.store.db import Store
from service.store.sql import is_due, now
from service.store.tables import LIVE, run


class Ownership:
    """The runs that one service holds.

    Args:
        term_s: the term of the lease, in seconds.
        name: the owner's name, unique among services; default: this process's.
    """

    def __init__(self, term_s: float, name: str | None = None) -> None:
        self.term_s = term_s
        self._name = name or process_name(os.getpid())

    def hold(self, store: Store) -> list[int]:
        """Renew leases and take free ones; return the live runs it owns, the oldest first."""
        with store.read() as connection:
            left_s = (run.c.tuner_until - now()).label("left_s")
            rows = connection.execute(
                sa.select(run.c.id, run.c.tuner, left_s, self._is_over().label("over"))
                .where(run.c.state.in_(LIVE))
                .order_by(run.c.id)
            ).all()
        held, wanted, dead = set(), [], set()
        for row in rows:
            if row.tuner == self._name and self.term_s / 2 < row.left_s <= self.term_s:
                held.add(row.id)
            elif row.tuner in (None, self._name) or row.over:
                wanted.append(row.id)
            elif is_gone(row.tuner):
                dead.add(row.tuner)
                wanted.append(row.id)
        # One transaction for each, as ending expired leases locks several runs in any order.
        for run_id in wanted:
            with store.write() as connection:
                if self._take(connection, run_id, dead):
                    held.add(run_id)
        return [row.id for row in rows if row.id in held]

    def _is_over(self) -> sa.ColumnElement[bool]:
        # More than one term, as the clock may be set back a little under a live owner.
        return is_due(run.c.tuner_until, 2 * self.term_s)

    def _take(self, connection: sa.Connection, run_id: int, dead: set[str]) -> bool:
        free = sa.or_(run.c.tuner.is_(None), self._is_over(), run.c.tuner.in_({self._name, *dead}))
        taken = connection.execute(
            sa.update(run)
            .where(run.c.id == run_id, run.c.state.in_(LIVE), free)
            .values(tuner=self._name, tuner_until=now() + self.term_s)
        )
        return bool(taken.rowcount)

    def lasts(self, connection: sa.Connection, run_id: int) -> bool:
        """Return whether the run is still owned, and lock the ownership until the transaction ends."""
        query = sa.select(run.c.tuner).where(run.c.id == run_id).with_for_update(key_share=True)
        return connection.scalar(query) == self._name

    def give_up(self, store: Store) -> None:
        """Release the runs at once; they are `is_interrupted` until another service takes them."""
        with store.read() as connection:
            held = connection.scalars(sa.select(run.c.id).where(run.c.tuner == self._name)).all()
        for run_id in held:
            with store.write() as connection:
                connection.execute(
                    sa.update(run)
                    .where(run.c.id == run_id, run.c.tuner == self._name)
                    .values(tuner=None)
                )


def is_interrupted(connection: sa.Connection, run_id: int) -> bool:
    """Return whether a live run has lost its owner; one without an owner yet is not interrupted."""
    return run_id in find_interrupted(connection, [run_id])


def find_interrupted(connection: sa.Connection, ids: Collection[int]) -> set[int]:
    """Those of the runs that are interrupted (`is_interrupted`)."""
    rows = connection.execute(
        sa.select(run.c.id, run.c.tuner, (run.c.tuner_until < now()).label("over"))
        .where(run.c.id.in_(ids), run.c.state.in_(LIVE), run.c.tuner_until.is_not(None))
    )
    return {r.id for r in rows if r.tuner is None or r.over or is_gone(r.tuner)}


def is_overdue(connection: sa.Connection, run_id: int) -> bool:
    """Return whether the owner of an interrupted run is known to live: it was stopped, or is slower than its term."""
    name = connection.scalar(sa.select(run.c.tuner).where(run.c.id == run_id))
    return name is not None and _visible_pid(name) is not None and not is_gone(name)


def process_name(pid: int) -> str:
    """A unique name of this process: its machine and PID namespace, its PID, and its start time."""
    return f"{_place()}/{pid}/{_began(pid)}"


def is_gone(name: str) -> bool:
    """Return whether the process of that name has ended; False if it is not visible from here."""
    pid = _visible_pid(name)
    return pid is not None and process_name(pid) != name


def _visible_pid(name: str) -> int | None:
    """The PID of a process by its name; None if it is another machine's, or in another PID namespace."""
    place, _, pid = name.rpartition("/")[0].rpartition("/")
    return int(pid) if place and place == _place() and pid.isdecimal() else None


def _place() -> str:
    """The boot id of this machine and the PID namespace of this process; empty if not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _began(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
