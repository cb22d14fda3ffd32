"""`plevel lock` and `plevel check`: selections in a lock file, and changes since it was written."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plevel.cli import location, option
from plevel.cli.chosen import tell_outdated
from plevel.cli.error import CommandError, UsageError
from plevel.cli.file import whole
from plevel.cli.processor import check_name
from plevel.reading import load_lock

if TYPE_CHECKING:
    from strategy.select import Selection
    from strategy.select.lock import Lock, Locked
    from strategy.target import Target
    from strategy.workload import Workload


def lock(
    file: Annotated[
        Path,
        typer.Argument(metavar="MODEL|LOCK", help="A model file; with --check, a lock file.",
                       show_default=False),
    ],
    out: Annotated[Path | None, option.out("The lock file to write.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare a lock with current selections.")
    ] = False,
    target: option.ModelTarget = None,
    threads: option.Threads = None,
    device: option.Device = None,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """Write a model's selections to a lock file, or compare one with current selections.

    Example: plevel lock model.toml -o plevel.lock
    """
    from strategy.table import show_number

    if check == (out is not None):
        raise UsageError("--out, --check: give one of them, to write a lock or to compare one")
    for flag, given in (("--target", target), ("--threads", threads), ("--device", device)):
        if check and given is not None:
            raise UsageError(f"--check: the lock names the target and device of each selection: leave {flag} out")
    place = location.locate(url, database, namespace)
    if check:
        _report(read_lock(file), place, as_json)
        return
    assert out is not None
    option.check_apart("--out", out, [file])
    from plevel.cli.model_file import read_model
    from plevel.cli.output import tell
    from strategy.select.lock import Lock

    wanted = read_model(file, far=place.url is not None)
    where = wanted.read_target(target, threads)
    check_name(where, far=place.url is not None)
    with place.connect() as records:
        found = [records.select(w.workload, where, device=device) for w in wanted.workloads]
    made = Lock.make(found, device)
    with whole(out) as kept:
        kept.write(made.write().encode())
    measured = sum(s.estimate is not None for s in made.selections)
    outdated = tell_outdated(s.reason for s in made.selections)
    tell(
        f"{out}: {show_number(len(made.selections), 'selection')}, {measured} of them measured{outdated}",
        {"lock": str(out), "selections": len(made.selections), "measured": measured},
        as_json=as_json,
    )


def check(
    against: Annotated[
        Path, typer.Option("--against", metavar="LOCK", help="The lock.", show_default=False)
    ],
    tolerance: Annotated[
        str,
        typer.Option("--tolerance", metavar="PERCENT", help="The slowdown to accept: 5%, or 0.05."),
    ] = "5%",
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """Fail if a selection is slower than in the lock, or no longer measured.

    Example: plevel check --against plevel.lock --tolerance 10%
    """
    from strategy.table import show_number

    share = option.read_share("--tolerance", tolerance, lambda share: 0 <= share < math.inf)
    place = location.locate(url, database, namespace)
    locked = read_lock(against)
    changes = _report(locked, place, as_json)
    worse = [c for c in changes if c["ratio"] is None or c["ratio"] > 1 + share]
    if worse:
        raise CommandError(
            f"{len(worse)} of {show_number(len(locked.selections), 'selection')} in {against} are slower by more "
            f"than {100 * share:g}%, or no longer measured: see the lines above; tune them again, or accept them "
            f"with `plevel lock MODEL -o {shlex.quote(str(against))}`", answered=True,
        )


def read_lock(path: Path) -> Lock:
    """The lock in a file; raise `UsageError` if there is none."""
    from strategy.select.lock import LockError

    try:
        return load_lock(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except LockError as error:
        raise UsageError(f"{path}: {error}") from error


def _report(locked: Lock, place: location.Location, as_json: bool) -> list[dict[str, Any]]:
    """Print and return the selections that have changed, or whose times have."""
    from plevel.cli.output import print_json
    from strategy.table import show_number

    with place.connect() as records:
        changes = [
            change for entry in locked.selections
            if (change := _compare(
                entry, records.select(entry.workload, entry.target, device=entry.device)
            )) is not None
        ]
    if as_json:
        print_json({"selections": len(locked.selections), "changed": changes})
    elif not changes:
        count = show_number(len(locked.selections), "selection")
        print(f"{count} unchanged since the lock")
    else:
        for change in changes:
            print(_line(change))
    return changes


def _compare(before: Locked, now: Selection) -> dict[str, Any] | None:
    """Return the difference between a selection and the locked one, None if they agree."""
    from strategy.select import Level

    own, locked = (
        next((r for r in of.rivals if r.implementation == of.implementation), None) for of in (now, before)
    )
    after = None if own is None else own.estimate
    if (before.implementation, before.version, before.config, before.estimate) == (
        now.implementation, now.version, now.config, after,
    ):
        return None
    # Times of another target, such as one that is timed otherwise, or of another device model do not compare.
    near = (Level.DEVICE, Level.MODEL)
    alike = own is not None and locked is not None and (
        locked.target in ("", own.target) and (own.level in near) == (locked.level in near)
        and (own.level in near or not locked.target or own.model == locked.model)
    )
    was_s, now_s = (None if e is None else e.median_s for e in (before.estimate, after))
    ratio: float | None = 0.0  # without an earlier time that compares, it cannot have become worse
    if was_s is not None and (now_s is None or alike):
        ratio = None if now_s is None else now_s / was_s
    return {
        "workload": before.workload.key, "target": before.target.key,
        "locked": _shown(before), "now": _shown(now), "locked_s": was_s, "now_s": now_s, "ratio": ratio,
        "stale": now.stale.get(before.implementation),
    }


def _shown(of: Locked | Selection) -> str:
    return f"{of.implementation} {of.config}".strip()


def _line(change: dict[str, Any]) -> str:
    from strategy.table import show_seconds

    ratio = change["ratio"]
    if ratio is None:
        old = change["stale"]
        what = "is no longer measured" if old is None else f"is measured in version {old} only, not the installed one"
    elif change["now_s"] is None:
        what = "is not measured"
    elif not ratio:
        what = f"is measured so now: {show_seconds(change['now_s'])}"
    else:
        what = (
            f"{show_seconds(change['now_s'])}, {ratio:.2f}× the {show_seconds(change['locked_s'])} of the lock"
        )
    instead = "" if change["now"] == change["locked"] else f" in place of {change['locked']}"
    return f"{change['workload']} on {change['target']}: {what}; {change['now']}{instead}"


def find_locked(locked: Lock | None, workload: Workload, target: Target) -> Locked | None:
    from strategy.select import SelectionError

    try:
        return None if locked is None else locked.select(workload, target)
    except SelectionError as error:
        raise CommandError(f"--lock: {error}") from error
