"""`plevel lock` and `plevel check`: selections kept in a file, and what has changed since."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plevel.cli import option
from plevel.cli.error import CommandError, UsageError
from plevel.cli.transfer import whole

if TYPE_CHECKING:
    from plevel.client import Client
    from plevel.direct import Direct
    from strategy.lock import Lock, Locked
    from strategy.select import Selection
    from strategy.target import Target
    from strategy.workload import Workload

Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to write the lock.")
]


def lock(
    file: Annotated[
        Path,
        typer.Argument(metavar="MODEL|LOCK", help="A model file; with --check a lock.",
                       show_default=False),
    ],
    out: Out = None,
    check: Annotated[
        bool, typer.Option("--check", help="Say what would be selected otherwise by now.")
    ] = False,
    target: option.TargetSpec = "cpu",
    threads: option.Threads = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="ID", help="A device's identity: its own records first."),
    ] = None,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Write a model's selections to a file, or compare it with now.

    Example: plevel lock model.toml -o plevel.lock
    """
    from strategy.table import show_number

    if check == (out is not None):
        raise UsageError("write a lock with -o FILE, or compare one with --check: one of them")
    if out is not None:
        option.check_out(out)
    place = option.locate(url, database, namespace)
    if check:
        _report(read_lock(file), place, as_json)
        return
    from plevel.cli.model_file import read_model
    from plevel.cli.output import tell
    from plevel.direct import connect
    from strategy.lock import Lock

    where = option.read_target(target, threads)
    wanted = read_model(file, far=place.url is not None)
    with connect(place.url, place.database, place.namespace) as records:
        found = [_select(records, w.workload, where, device) for w in wanted]
    made = Lock.make(found, device)
    assert out is not None
    try:
        with whole(out) as kept:
            kept.write(made.write().encode())
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror}") from error
    measured = sum(s.estimate is not None for s in made.selections)
    tell(
        f"{out}: {show_number(len(made.selections), 'selection')}, {measured} of them measured",
        {"lock": str(out), "selections": len(made.selections), "measured": measured},
        as_json=as_json,
    )


def check(
    against: Annotated[
        Path, typer.Option("--against", metavar="LOCK", help="The lock.", show_default=False)
    ],
    tolerance: Annotated[
        str,
        typer.Option("--tolerance", metavar="PERCENT", help="How much slower is no matter: 5%, or 0.05."),
    ] = "5%",
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """Fail where a selection is slower than the lock has it.

    And where it is not measured any more.

    Example: plevel check --against plevel.lock --tolerance 10%
    """
    from strategy.table import show_number

    share = option.read_share("--tolerance", tolerance, lambda share: 0 <= share < math.inf)
    place = option.locate(url, database, namespace)
    locked = read_lock(against)
    changes = _report(locked, place, as_json)
    worse = [c for c in changes if c["ratio"] is None or c["ratio"] > 1 + share]
    if worse:
        raise CommandError(
            f"{len(worse)} of {show_number(len(locked.selections), 'selection')} in {against}: slower by more "
            f"than {100 * share:g}%, or not measured any more"
        )


def read_lock(path: Path) -> Lock:
    """The lock in a file; raises `UsageError` where there is none."""
    from strategy.lock import Lock, LockError

    try:
        return Lock.read(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except LockError as error:
        raise UsageError(f"{path}: {error}") from error


def _select(
    records: Client | Direct, workload: Workload, target: Target, device: str | None
) -> Selection:
    from strategy.op import OpError
    from strategy.select import SelectionError

    try:
        return records.select(workload, target, device=device)
    except (OpError, SelectionError) as error:
        raise CommandError(str(error)) from error


def _report(locked: Lock, place: option.Location, as_json: bool) -> list[dict[str, Any]]:
    """Print and return what would be selected otherwise now, or costs something else."""
    from plevel.cli.output import print_json
    from plevel.direct import connect
    from strategy.table import show_number

    with connect(place.url, place.database, place.namespace) as records:
        changes = [
            change for entry in locked.selections
            if (change := _compare(
                entry, _select(records, entry.workload, entry.target, entry.device)
            )) is not None
        ]  # fmt: skip
    if as_json:
        print_json({"selections": len(locked.selections), "changed": changes})
    elif not changes:
        count = show_number(len(locked.selections), "selection")
        print(f"{count}, as in the lock")
    else:
        for change in changes:
            print(_line(change))
    return changes


def _compare(before: Locked, now: Selection) -> dict[str, Any] | None:
    """Return the difference between a selection and the locked one; None if there is none."""
    own = next((r for r in now.rivals if r.implementation == now.implementation), None)
    after = None if own is None else own.estimate
    same = (before.implementation, before.version, before.config, before.estimate) == (
        now.implementation, now.version, now.config, after,
    )  # fmt: skip
    if same:
        return None
    return {
        "workload": before.workload.key, "target": before.target.key,
        "locked": _shown(before), "now": _shown(now),
        "locked_s": None if before.estimate is None else before.estimate.median_s,
        "now_s": None if after is None else after.median_s,
        # A selection that nobody had measured can only become better.
        "ratio": 0.0 if before.estimate is None
        else None if after is None else after.median_s / before.estimate.median_s,
    }  # fmt: skip


def _shown(of: Locked | Selection) -> str:
    return f"{of.implementation} {of.config}".strip()


def _line(change: dict[str, Any]) -> str:
    from strategy.table import show_seconds

    ratio = change["ratio"]
    if ratio is None:
        what = "is not measured any more"
    elif change["now_s"] is None:
        what = "is not measured"
    elif not ratio:
        what = f"is measured now: {show_seconds(change['now_s'])}"
    else:
        what = (
            f"{show_seconds(change['now_s'])} for {show_seconds(change['locked_s'])}: {ratio:.2f}× the time"
        )
    instead = "" if change["now"] == change["locked"] else f" in place of {change['locked']}"
    return f"{change['workload']} on {change['target']}: {what}; {change['now']}{instead}"
