"""Selection of the kernels of whole models: by a lock, by records, else by plevel; on OpenMP's threads."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from plevel.reading import load_lock
from strategy.network.blocking import is_blocked
from strategy.network.separable import JOINED
from strategy.op_strategy import candidates
from strategy.select import NO_RECORDS, Database, Reason, Selection, SelectionError, select
from strategy.select.dispatch import DispatchTable, dispatch
from strategy.select.lock import Lock, LockDatabase, Locked
from strategy.target import Target
from strategy.workload import Workload

if TYPE_CHECKING:
    from plevel.database import Rest

Chosen = Selection | DispatchTable
Choose = Callable[[Workload], Chosen]


def make_chooser(target: Target, database: Database, lock: Lock | None = None) -> Choose:
    """`choose_kernel` for one target and state of the records: each workload is selected once."""
    return cache(lambda workload: choose_kernel(workload, target, database, lock))


def choose_kernel(workload: Workload, target: Target, database: Database, lock: Lock | None) -> Chosen:
    """The lock's selection, if its implementation is still the one that is installed, else the database's, and why.

    Symbolic sizes have a dispatch table, by the database.

    Raises:
        SelectionError: no implementation is valid; or a lock has none of a convolution in a blocked layout, or of a
            joined one, as the convolutions of a network have the layouts of its lock, and are joined where those are.
    """
    # A library with threads of its own would take the cores from OpenMP's.
    if not workload.is_constant:
        return dispatch(workload, target, database, libraries=False)
    offered = candidates(workload, target, libraries=False)
    if lock is not None:
        versions = {c.implementation: c.version for c in offered}
        try:
            locked = lock.select(workload, target)
        except SelectionError:
            # The lock need not have what turns or pools their images.
            if workload.op in ("conv2d", JOINED) and is_blocked(workload):
                raise
        else:
            if versions.get(locked.implementation) == locked.version:
                return locked.selection(target)
            return LockDatabase(lock).settle(select(workload, target, database, offered=offered), offered)
    return select(workload, target, database, offered=offered)


def read_lock(path: str | None, target: Target, database: str | None) -> Lock | None:
    """The lock in a file, if one is named; one for other processors alone is warned of, unless a database is named."""
    if path is None:
        return None
    lock = load_lock(Path(path))
    try:
        lock.require(target)
    except SelectionError as error:
        if database is None:
            warnings.warn(f"plevel: kernels are selected untuned: {path}: {error}", stacklevel=3)
    return lock


def is_outdated(entry: Locked, target: Target) -> bool:
    """Return whether a lock's entry for a kernel has another version of its implementation than the installed one."""
    offered = {c.implementation: c.version for c in candidates(entry.workload, target, libraries=False)}
    return offered.get(entry.implementation, entry.version) != entry.version


def measured_s(chosen: Chosen) -> float:
    """The median seconds of what is selected, of an older version where it is stale; NaN where none was measured."""
    if isinstance(chosen, DispatchTable):
        return math.nan
    own = next((r for r in chosen.rivals if r.implementation == chosen.implementation), None)
    if own is not None and own.estimate is not None:
        return own.estimate.median_s
    stale_s = own.predicted_s if own is not None and chosen.reason is Reason.STALE else None
    return math.nan if stale_s is None else stale_s


def find_records(named: str | None) -> str | None:
    """The named database or lock file, else the database of the environment, else this user's own if it exists."""
    from plevel.cli.location import locate
    from service.address import path_of

    if named is not None:
        return named
    own = locate(None, None)
    path = None if own.database is None else path_of(own.database)
    return (own.url or own.database) if path is None or path.exists() else None


@contextmanager
def open_records(
    named: str | None, namespace: str | None = None, *, rest: Rest | None = None
) -> Iterator[Database]:
    """The records of `find_records`, in the given or the environment's namespace; none where there is no database."""
    from plevel.database import plevel_database

    place = find_records(named)
    with nullcontext(NO_RECORDS) if place is None else plevel_database(place, namespace=namespace, rest=rest) as found:
        yield found
